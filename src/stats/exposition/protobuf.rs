//! Prometheus' own protobuf (`io.prometheus.client`, each MetricFamily with its length ahead), for the native histograms that no
//! text format has. A server asks for it by its Accept header.

use prost::Message;

use super::super::histogram::{Distribution, power};
use super::{Family, Kind, Value, classic, filled, seconds};

/// The schema of our buckets: 2^(2^-3) from bound to bound.
const SCHEMA: i32 = 3;

/// Half of what is counted as the shortest time.
const NEAR_ZERO: f64 = 0.5e-6;

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<Span>,
    #[prost(sint64, repeated, tag = "13")]
    positive_delta: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<Label>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    help: Option<String>,
    /// COUNTER 0, GAUGE 1, HISTOGRAM 4.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

/// All families, each with its length ahead.
pub fn encode(families: &[Family]) -> Vec<u8> {
    let mut out = Vec::new();
    for family in families {
        let message = MetricFamily {
            name: Some(family.name.to_owned()),
            help: Some(family.help.to_owned()),
            kind: Some(match family.kind {
                Kind::Counter => 0,
                Kind::Gauge => 1,
                Kind::Histogram => 4,
            }),
            metric: family
                .samples
                .iter()
                .map(|(labels, value)| {
                    let label = labels.iter().map(|(name, value)| Label {
                        name: Some((*name).to_owned()),
                        value: Some(value.clone()),
                    });
                    let mut metric = Metric {
                        label: label.collect(),
                        ..Metric::default()
                    };
                    match value {
                        Value::Number(number) => {
                            let number = Some(Number {
                                value: Some(*number),
                            });
                            match family.kind {
                                Kind::Counter => metric.counter = number,
                                Kind::Gauge | Kind::Histogram => metric.gauge = number,
                            }
                        }
                        Value::Times(times) => metric.histogram = Some(native(times)),
                    }
                    metric
                })
                .collect(),
        };
        out.extend_from_slice(&message.encode_length_delimited_to_vec());
    }
    out
}

/// Buckets that follow each other are a span; what is counted is told as the difference to the bucket before.
fn native(times: &Distribution) -> Histogram {
    let mut histogram = Histogram {
        sample_count: Some(times.count()),
        sample_sum: Some(seconds(times.sum)),
        // For who does not take native ones.
        bucket: classic(times)
            .map(|(bound, count)| Bucket {
                cumulative_count: Some(count),
                upper_bound: Some(bound),
            })
            .collect(),
        schema: Some(SCHEMA),
        zero_threshold: Some(NEAR_ZERO),
        zero_count: Some(0),
        ..Histogram::default()
    };
    let (mut next, mut before) = (0, 0);
    for (at, count) in filled(times) {
        let index = power(at);
        match histogram.positive_span.last_mut() {
            Some(span) if index == next => span.length = span.length.map(|length| length + 1),
            _ => histogram.positive_span.push(Span {
                offset: Some(index - next),
                length: Some(1),
            }),
        }
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        histogram.positive_delta.push(count - before);
        (next, before) = (index + 1, count);
    }
    if histogram.positive_span.is_empty() {
        // Or it would pass for a classic one.
        histogram.positive_span.push(Span {
            offset: Some(0),
            length: Some(0),
        });
    }
    histogram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_read_again_with_its_gaps() {
        let mut times = Distribution::default();
        for (at, count) in [(40, 5), (41, 3), (50, 7)] {
            times.counts[at] = count;
        }
        let histogram = native(&times);
        assert_eq!(histogram.positive_delta, [5, -2, 4]);
        let spans: Vec<_> = histogram
            .positive_span
            .iter()
            .map(|span| (span.offset(), span.length()))
            .collect();
        assert_eq!(spans, [(power(40), 2), (8, 1)]);
        let families = [Family {
            name: "a_seconds",
            help: "Times.",
            kind: Kind::Histogram,
            samples: vec![(
                vec![("database", "d".to_owned())],
                Value::Times(Box::new(times)),
            )],
        }];
        let bytes = encode(&families);
        let read = MetricFamily::decode_length_delimited(bytes.as_slice()).unwrap();
        assert_eq!((read.name(), read.kind()), ("a_seconds", 4));
        assert_eq!(read.metric[0].histogram, Some(histogram));
    }
}
