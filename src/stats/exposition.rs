//! Metrics as monitoring systems read them: families of samples, written as text (OpenMetrics 1.0 and Prometheus' text format
//! 0.0.4), as Prometheus' protobuf, which has native histograms, or as OTLP.
//!
//! What is measured, and what it is called, is `admin`'s. Here is only the form.

use std::fmt::Write;

use super::histogram::{BUCKETS, Distribution, bound};

pub mod otlp;
pub mod protobuf;

/// What a family's samples are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Something that goes up and down.
    Gauge,
    /// Something that only grows. Its name ends with `_total`.
    Counter,
    /// Times by their length, in seconds.
    Histogram,
}

impl Kind {
    /// As the text formats call it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// A number, or what a histogram holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Of a gauge or a counter.
    Number(f64),
    /// Of a histogram.
    Times(Box<Distribution>),
}

/// Labels with their values, in the order in which they are written.
pub type Labels = Vec<(&'static str, String)>;

/// One metric with all its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// As it is queried, with unit and `_total`.
    pub name: &'static str,
    /// What it tells.
    pub help: &'static str,
    /// What its samples are.
    pub kind: Kind,
    /// The samples, no two with the same labels.
    pub samples: Vec<(Labels, Value)>,
}

/// The text formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `application/openmetrics-text; version=1.0.0`.
    OpenMetrics,
    /// `text/plain; version=0.0.4`.
    Prometheus,
}

/// The upper bounds of the buckets that are written as text, as positions of the bounds of a [`Distribution`]: powers of two from 15 µs
/// to 128 s.
fn classic_bounds() -> impl Iterator<Item = usize> {
    (4..=27).map(|octave| octave * 8 - 1)
}

/// All families as text.
pub fn text(families: &[Family], format: Format) -> String {
    let mut out = String::with_capacity(64 * 1024);
    for family in families {
        put_family(&mut out, family, format);
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

// Writing to a string does not fail.
fn put_family(out: &mut String, family: &Family, format: Format) {
    // OpenMetrics calls a counter's family by the name without the suffix.
    let name = match format {
        Format::OpenMetrics => family.name.strip_suffix("_total").unwrap_or(family.name),
        Format::Prometheus => family.name,
    };
    let _ = writeln!(out, "# HELP {name} {}", family.help);
    let _ = writeln!(out, "# TYPE {name} {}", family.kind.word());
    for (labels, value) in &family.samples {
        match value {
            Value::Number(number) => {
                out.push_str(family.name);
                put_labels(out, labels, None);
                let _ = writeln!(out, " {number}");
            }
            Value::Times(times) => put_times(out, family.name, labels, times),
        }
    }
}

fn put_times(out: &mut String, name: &str, labels: &Labels, times: &Distribution) {
    for (bound, seen) in classic(times) {
        let _ = write!(out, "{name}_bucket");
        put_labels(out, labels, Some(&bound.to_string()));
        let _ = writeln!(out, " {seen}");
    }
    let count = times.count();
    let _ = write!(out, "{name}_bucket");
    put_labels(out, labels, Some("+Inf"));
    let _ = writeln!(out, " {count}");
    let _ = write!(out, "{name}_sum");
    put_labels(out, labels, None);
    let _ = writeln!(out, " {}", seconds(times.sum));
    let _ = write!(out, "{name}_count");
    put_labels(out, labels, None);
    let _ = writeln!(out, " {count}");
}

/// The classic buckets: upper bounds in seconds, and how many values are not above each.
fn classic(times: &Distribution) -> impl Iterator<Item = (f64, u64)> {
    let (mut from, mut seen) = (0, 0);
    classic_bounds().map(move |to| {
        let counts = times.counts.get(from..=to).unwrap_or_default();
        seen += counts.iter().sum::<u64>();
        from = to + 1;
        (bound(to), seen)
    })
}

/// Microseconds in seconds.
#[allow(clippy::cast_precision_loss, reason = "285 years are exact")]
pub fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn put_labels(out: &mut String, labels: &Labels, bound: Option<&str>) {
    let all = labels.iter().map(|(name, value)| (*name, value.as_str()));
    let mut all = all.chain(bound.map(|bound| ("le", bound))).peekable();
    if all.peek().is_none() {
        return;
    }
    for (at, (name, value)) in all.enumerate() {
        let _ = write!(out, "{}{name}=\"", if at == 0 { '{' } else { ',' });
        for char in value.chars() {
            match char {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                char => out.push(char),
            }
        }
        out.push('"');
    }
    out.push('}');
}

/// The buckets that hold something: position and count.
fn filled(times: &Distribution) -> impl Iterator<Item = (usize, u64)> {
    let counts = times.counts.iter().take(BUCKETS).copied().enumerate();
    counts.filter(|(_, count)| *count > 0)
}

#[cfg(test)]
mod tests;
