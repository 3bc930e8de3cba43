use super::super::histogram::Histogram;
use super::*;

fn families() -> Vec<Family> {
    let histogram = Histogram::default();
    for micros in [3, 20, 20, 5_000_000] {
        histogram.add(micros);
    }
    let mut times = Distribution::default();
    times.add(&histogram);
    times.sum = 5_000_043;
    let labels = |value: &str| vec![("database", value.to_owned())];
    vec![
        Family {
            name: "a_queries_total",
            help: "Queries.",
            kind: Kind::Counter,
            samples: vec![
                (labels("x\"\\\n"), Value::Number(7.0)),
                (labels("y"), Value::Number(0.5)),
            ],
        },
        Family {
            name: "a_up",
            help: "Whether.",
            kind: Kind::Gauge,
            samples: vec![(Labels::new(), Value::Number(1.0))],
        },
        Family {
            name: "a_wait_seconds",
            help: "Waits.",
            kind: Kind::Histogram,
            samples: vec![(labels("z"), Value::Times(Box::new(times)))],
        },
    ]
}

#[test]
fn labels_can_not_leave_their_quotes_and_counters_have_their_suffix() {
    let text = text(&families()[..2], Format::OpenMetrics);
    let wanted = "# HELP a_queries Queries.\n# TYPE a_queries counter\n\
                  a_queries_total{database=\"x\\\"\\\\\\n\"} 7\na_queries_total{database=\"y\"} 0.5\n\
                  # HELP a_up Whether.\n# TYPE a_up gauge\na_up 1\n# EOF\n";
    assert_eq!(text, wanted);
    let text = super::text(&families()[..1], Format::Prometheus);
    assert!(text.starts_with("# HELP a_queries_total Queries.\n") && !text.contains("EOF"));
}

#[test]
fn the_buckets_of_a_histogram_add_up() {
    let text = text(&families(), Format::Prometheus);
    let lines = text
        .lines()
        .filter(|line| line.starts_with("a_wait_seconds"));
    let samples: Vec<(&str, f64)> = lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect();
    let buckets: Vec<f64> = samples
        .iter()
        .filter(|(name, _)| name.contains("_bucket"))
        .map(|(_, value)| *value)
        .collect();
    assert_eq!(
        (buckets[0], buckets[1], buckets.last()),
        (1.0, 3.0, Some(&4.0))
    );
    assert!(buckets.is_sorted());
    let rest = [
        ("a_wait_seconds_sum{database=\"z\"}", 5.000_043),
        ("a_wait_seconds_count{database=\"z\"}", 4.0),
    ];
    assert_eq!(samples[samples.len() - 2..], rest);
}
