//! Metrics as OTLP has them (opentelemetry-proto, `metrics/v1`): the same families under the same names, so that a query, a dashboard
//! or an alert does not care which way they came.
//!
//! Counters are cumulative sums, histograms have the bounds of the text formats.

use std::time::SystemTime;

use prost::Message;

use super::super::histogram::Distribution;
use super::super::otlp::{KeyValue, Resource, Scope, nanos};
use super::{Family, Kind, Labels, Value, classic, seconds};

/// `NumberDataPoint`.
#[derive(Clone, PartialEq, Message)]
pub struct Number {
    /// Since when it is counted, nanoseconds after 1970.
    #[prost(fixed64, tag = "2")]
    pub start_time_unix_nano: u64,
    /// When it was read.
    #[prost(fixed64, tag = "3")]
    pub time_unix_nano: u64,
    /// The value.
    #[prost(double, optional, tag = "4")]
    pub as_double: Option<f64>,
    /// Labels.
    #[prost(message, repeated, tag = "7")]
    pub attributes: Vec<KeyValue>,
}

/// `HistogramDataPoint`.
#[derive(Clone, PartialEq, Message)]
pub struct Times {
    /// Since when it is counted, nanoseconds after 1970.
    #[prost(fixed64, tag = "2")]
    pub start_time_unix_nano: u64,
    /// When it was read.
    #[prost(fixed64, tag = "3")]
    pub time_unix_nano: u64,
    /// How many values.
    #[prost(fixed64, tag = "4")]
    pub count: u64,
    /// All together.
    #[prost(double, optional, tag = "5")]
    pub sum: Option<f64>,
    /// How many are in each bucket, one more than there are bounds.
    #[prost(fixed64, repeated, tag = "6")]
    pub bucket_counts: Vec<u64>,
    /// Upper bounds.
    #[prost(double, repeated, tag = "7")]
    pub explicit_bounds: Vec<f64>,
    /// Labels.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
}

/// `Gauge`.
#[derive(Clone, PartialEq, Message)]
pub struct Gauge {
    /// Values.
    #[prost(message, repeated, tag = "1")]
    pub data_points: Vec<Number>,
}

/// `Sum`.
#[derive(Clone, PartialEq, Message)]
pub struct Sum {
    /// Values.
    #[prost(message, repeated, tag = "1")]
    pub data_points: Vec<Number>,
    /// 2: since the start.
    #[prost(int32, tag = "2")]
    pub aggregation_temporality: i32,
    /// It only grows.
    #[prost(bool, tag = "3")]
    pub is_monotonic: bool,
}

/// `Histogram`.
#[derive(Clone, PartialEq, Message)]
pub struct Histogram {
    /// Values.
    #[prost(message, repeated, tag = "1")]
    pub data_points: Vec<Times>,
    /// 2: since the start.
    #[prost(int32, tag = "2")]
    pub aggregation_temporality: i32,
}

/// `Metric`: one of the last three is set.
#[derive(Clone, PartialEq, Message)]
pub struct Metric {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What it tells.
    #[prost(string, tag = "2")]
    pub description: String,
    /// Of UCUM.
    #[prost(string, tag = "3")]
    pub unit: String,
    /// What goes up and down.
    #[prost(message, optional, tag = "5")]
    pub gauge: Option<Gauge>,
    /// What only grows.
    #[prost(message, optional, tag = "7")]
    pub sum: Option<Sum>,
    /// Times.
    #[prost(message, optional, tag = "9")]
    pub histogram: Option<Histogram>,
}

/// `ScopeMetrics`.
#[derive(Clone, PartialEq, Message)]
pub struct ScopeMetrics {
    /// Whose.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    /// Its metrics.
    #[prost(message, repeated, tag = "2")]
    pub metrics: Vec<Metric>,
}

/// `ResourceMetrics`.
#[derive(Clone, PartialEq, Message)]
pub struct ResourceMetrics {
    /// Whose.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// Its metrics.
    #[prost(message, repeated, tag = "2")]
    pub scope_metrics: Vec<ScopeMetrics>,
}

/// `ExportMetricsServiceRequest`: the body of `POST /v1/metrics`.
#[derive(Clone, PartialEq, Message)]
pub struct MetricsRequest {
    /// Metrics.
    #[prost(message, repeated, tag = "1")]
    pub resource_metrics: Vec<ResourceMetrics>,
}

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: i32 = 2;

/// The body of a request with these families, counted since `began`.
pub fn encode(
    families: &[Family],
    resource: &Resource,
    (began, now): (SystemTime, SystemTime),
) -> Vec<u8> {
    let times = (nanos(began), nanos(now));
    let families = families.iter().filter(|family| !family.samples.is_empty());
    let request = MetricsRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource.clone()),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(Scope::ours()),
                metrics: families.map(|family| metric(family, times)).collect(),
            }],
        }],
    };
    request.encode_to_vec()
}

fn metric(family: &Family, times: (u64, u64)) -> Metric {
    let mut metric = Metric {
        name: family.name.to_owned(),
        description: family.help.to_owned(),
        unit: unit(family.name).to_owned(),
        ..Metric::default()
    };
    let numbers = || {
        family
            .samples
            .iter()
            .filter_map(|sample| number(sample, times))
    };
    match family.kind {
        Kind::Gauge => {
            metric.gauge = Some(Gauge {
                // A gauge is not counted since any time.
                data_points: numbers()
                    .map(|point| Number {
                        start_time_unix_nano: 0,
                        ..point
                    })
                    .collect(),
            });
        }
        Kind::Counter => {
            metric.sum = Some(Sum {
                data_points: numbers().collect(),
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            });
        }
        Kind::Histogram => {
            let points = family.samples.iter();
            metric.histogram = Some(Histogram {
                data_points: points
                    .filter_map(|sample| histogram(sample, times))
                    .collect(),
                aggregation_temporality: CUMULATIVE,
            });
        }
    }
    metric
}

/// As the name says. (Without one, none: what makes Prometheus' names of these would put it behind.)
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    if name.ends_with("_seconds") {
        "s"
    } else if name.ends_with("_bytes") {
        "By"
    } else {
        ""
    }
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    let labels = labels.iter();
    labels
        .map(|(name, value)| KeyValue::text(name, value))
        .collect()
}

fn number((labels, value): &(Labels, Value), (began, now): (u64, u64)) -> Option<Number> {
    let Value::Number(number) = value else {
        return None;
    };
    Some(Number {
        start_time_unix_nano: began,
        time_unix_nano: now,
        as_double: Some(*number),
        attributes: attributes(labels),
    })
}

fn histogram((labels, value): &(Labels, Value), (began, now): (u64, u64)) -> Option<Times> {
    let Value::Times(times) = value else {
        return None;
    };
    let times: &Distribution = times;
    let count = times.count();
    let (mut bounds, mut counts, mut seen) = (Vec::new(), Vec::new(), 0);
    for (bound, below) in classic(times) {
        bounds.push(bound);
        counts.push(below - seen);
        seen = below;
    }
    counts.push(count.saturating_sub(seen));
    Some(Times {
        start_time_unix_nano: began,
        time_unix_nano: now,
        count,
        sum: Some(seconds(times.sum)),
        bucket_counts: counts,
        explicit_bounds: bounds,
        attributes: attributes(labels),
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn family(name: &'static str, kind: Kind, value: Value) -> Family {
        Family {
            name,
            help: "Something.",
            kind,
            samples: vec![(vec![("database", "app".to_owned())], value)],
        }
    }

    #[test]
    fn each_kind_is_read_again_as_it_was() {
        let mut times = Distribution::default();
        (times.counts[100], times.counts[120], times.counts[255]) = (3, 4, 1);
        times.sum = 2_500_000;
        let nothing = Family {
            samples: Vec::new(),
            ..family("nothing_total", Kind::Counter, Value::Number(0.0))
        };
        let families = [
            family("a_bytes", Kind::Gauge, Value::Number(1.5)),
            family("b_total", Kind::Counter, Value::Number(7.0)),
            family("c_seconds", Kind::Histogram, Value::Times(Box::new(times))),
            nothing,
        ];
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let body = encode(&families, &Resource::default(), (at(1), at(2)));
        let read = MetricsRequest::decode(body.as_slice()).unwrap();
        let metrics = &read.resource_metrics[0].scope_metrics[0].metrics;
        let units: Vec<_> = metrics.iter().map(|it| it.unit.as_str()).collect();
        assert_eq!(units, ["By", "", "s"]);
        let gauge = &metrics[0].gauge.as_ref().unwrap().data_points[0];
        assert_eq!(
            (gauge.as_double, gauge.start_time_unix_nano),
            (Some(1.5), 0)
        );
        let sum = metrics[1].sum.as_ref().unwrap();
        assert!(sum.is_monotonic && sum.aggregation_temporality == CUMULATIVE);
        let point = &sum.data_points[0];
        assert_eq!(point.start_time_unix_nano, 1_000_000_000);
        assert_eq!(point.attributes, [KeyValue::text("database", "app")]);
        let point = &metrics[2].histogram.as_ref().unwrap().data_points[0];
        assert_eq!((point.count, point.sum), (8, Some(2.5)));
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        assert_eq!(point.bucket_counts.iter().sum::<u64>(), 8);
        assert_eq!(point.bucket_counts.last(), Some(&1));
    }
}
