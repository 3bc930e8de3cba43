//! Telemetry as collectors take it: the messages of OTLP 1.x (opentelemetry-proto, `opentelemetry/proto`, package `v1`), as far as they
//! are used here, and spans written in them. Metrics are written by [`exposition`](super::exposition::otlp).
//!
//! Numbers of fields are those of `common`, `resource`, `metrics`, `trace` and `collector` there; fields that are left out are never set.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message;

use super::spans::Span as Seen;

/// `AnyValue`: one of these is set.
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    /// Text.
    #[prost(string, optional, tag = "1")]
    pub string_value: Option<String>,
    /// A whole number.
    #[prost(int64, optional, tag = "3")]
    pub int_value: Option<i64>,
    /// A number.
    #[prost(double, optional, tag = "4")]
    pub double_value: Option<f64>,
}

/// `KeyValue`: an attribute.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// What it is.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

impl KeyValue {
    /// A text.
    pub fn text(key: &str, value: impl Into<String>) -> Self {
        Self::new(
            key,
            AnyValue {
                string_value: Some(value.into()),
                ..AnyValue::default()
            },
        )
    }

    /// A whole number.
    pub fn whole(key: &str, value: impl TryInto<i64>) -> Self {
        Self::new(
            key,
            AnyValue {
                int_value: Some(value.try_into().unwrap_or(i64::MAX)),
                ..AnyValue::default()
            },
        )
    }

    /// Microseconds, as seconds.
    fn seconds(key: &str, micros: u64) -> Self {
        Self::new(
            key,
            AnyValue {
                double_value: Some(super::exposition::seconds(micros)),
                ..AnyValue::default()
            },
        )
    }

    fn new(key: &str, value: AnyValue) -> Self {
        Self {
            key: key.to_owned(),
            value: Some(value),
        }
    }
}

/// `Resource`: who says it.
#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    /// Its names.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// `InstrumentationScope`: which part of it.
#[derive(Clone, PartialEq, Message)]
pub struct Scope {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Which version.
    #[prost(string, tag = "2")]
    pub version: String,
}

impl Scope {
    /// All of it.
    pub fn ours() -> Self {
        Self {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// `Status` of a span.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// What is wrong.
    #[prost(string, tag = "2")]
    pub message: String,
    /// 2: an error.
    #[prost(int32, tag = "3")]
    pub code: i32,
}

/// `Span`.
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// 8 bytes, or none.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// What it is.
    #[prost(string, tag = "5")]
    pub name: String,
    /// 3: a client's.
    #[prost(int32, tag = "6")]
    pub kind: i32,
    /// Nanoseconds after 1970.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// Nanoseconds after 1970.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// What is known of it.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    /// `None`: no error.
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
    /// Flags of the W3C's, and whether the parent was another process.
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

/// `ScopeSpans`.
#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    /// Whose.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    /// Its spans.
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

/// `ResourceSpans`.
#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    /// Whose.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// Its spans.
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

/// `ExportTraceServiceRequest`: the body of `POST /v1/traces`.
#[derive(Clone, PartialEq, Message)]
pub struct TraceRequest {
    /// Spans.
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// `ExportTracePartialSuccess`, and the same for metrics.
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// So many were not taken.
    #[prost(int64, tag = "1")]
    pub rejected: i64,
    /// Why.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `ExportTraceServiceResponse`, and the same for metrics.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    /// `None`: all were taken.
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

/// `SPAN_KIND_CLIENT`, which spans of databases are (semantic conventions, "Database client spans").
const CLIENT: i32 = 3;

/// `STATUS_CODE_ERROR`.
const ERROR: i32 = 2;

/// The W3C's `sampled`, and `SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK`.
const SAMPLED: u32 = 0x101;

/// `SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK`.
const REMOTE: u32 = 0x200;

/// How a number of the live list becomes a time: both at the same moment.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Microseconds after the live list's epoch.
    pub micros: u64,
    /// The wall clock, which others' spans go by; it may have been set since the epoch.
    pub wall: SystemTime,
}

impl Now {
    fn nanos(self, micros: u64) -> u64 {
        let ago = Duration::from_micros(self.micros.saturating_sub(micros));
        nanos(self.wall.checked_sub(ago).unwrap_or(self.wall))
    }
}

/// Nanoseconds after 1970.
pub fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The body of a request with these spans.
pub fn encode_spans(spans: Vec<Seen>, resource: &Resource, now: Now) -> Vec<u8> {
    let spans = spans.into_iter().map(|span| written(span, now));
    let scope_spans = vec![ScopeSpans {
        scope: Some(Scope::ours()),
        spans: spans.collect(),
    }];
    let request = TraceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource.clone()),
            scope_spans,
        }],
    };
    request.encode_to_vec()
}

fn written(span: Seen, now: Now) -> Span {
    let name = match (span.operation, span.database.as_str()) {
        ("", database) => database.to_owned(),
        (operation, database) => format!("{operation} {database}"),
    };
    let mut attributes = vec![
        KeyValue::text("db.system.name", "postgresql"),
        KeyValue::text("db.namespace", span.database),
        KeyValue::text("user.name", span.user),
        KeyValue::seconds("pgferry.wait", span.wait),
        KeyValue::seconds("pgferry.work", span.work),
        KeyValue::whole("pgferry.queries", span.queries),
        KeyValue::whole("pgferry.rows", span.rows),
        KeyValue::whole("pgferry.response_bytes", span.bytes),
    ];
    if !span.operation.is_empty() {
        attributes.push(KeyValue::text("db.operation.name", span.operation));
    }
    attributes.extend(span.text.map(|text| KeyValue::text("db.query.text", text)));
    if let Some(server) = span.server {
        attributes.push(KeyValue::text("server.address", server.host));
        attributes.extend(server.port.map(|port| KeyValue::whole("server.port", port)));
        attributes.push(KeyValue::whole("pgferry.server_pid", server.pid));
    }
    let status = span.error.map(|error| {
        let is_sqlstate = error.len() == 5;
        attributes.extend(is_sqlstate.then(|| KeyValue::text("db.response.status_code", &*error)));
        attributes.push(KeyValue::text("error.type", &*error));
        Status {
            message: error,
            code: ERROR,
        }
    });
    let remote = span.parent.map_or(0, |_| REMOTE);
    Span {
        trace_id: span.trace.to_vec(),
        span_id: span.id.to_vec(),
        parent_span_id: span
            .parent
            .map(|parent| parent.to_vec())
            .unwrap_or_default(),
        name,
        kind: CLIENT,
        start_time_unix_nano: now.nanos(span.began),
        end_time_unix_nano: now.nanos(span.ended),
        attributes,
        status,
        flags: SAMPLED | remote,
    }
}

#[cfg(test)]
mod tests {
    use super::super::spans::Place;
    use super::*;

    #[test]
    fn a_span_is_read_again_as_it_was() {
        let seen = Seen {
            trace: [7; 16],
            id: [8; 8],
            parent: Some([9; 8]),
            began: 1_000_000,
            ended: 1_500_000,
            wait: 250_000,
            database: "app".to_owned(),
            operation: "SELECT",
            server: Some(Place {
                host: "db".to_owned(),
                port: Some(5432),
                pid: 77,
            }),
            error: Some("40001".to_owned()),
            ..Seen::default()
        };
        let now = Now {
            micros: 2_000_000,
            wall: UNIX_EPOCH + Duration::from_secs(100),
        };
        let body = encode_spans(vec![seen], &Resource::default(), now);
        let read = TraceRequest::decode(body.as_slice()).unwrap();
        let span = &read.resource_spans[0].scope_spans[0].spans[0];
        assert_eq!(
            (span.trace_id.as_slice(), span.flags),
            (&[7; 16][..], 0x301)
        );
        assert_eq!((span.name.as_str(), span.kind), ("SELECT app", CLIENT));
        assert_eq!(span.start_time_unix_nano, 99_000_000_000);
        assert_eq!(span.end_time_unix_nano, 99_500_000_000);
        let get = |key: &str| {
            let found = span.attributes.iter().find(|it| it.key == key);
            found.and_then(|it| it.value.clone())
        };
        assert_eq!(get("pgferry.wait").unwrap().double_value, Some(0.25));
        assert_eq!(get("server.port").unwrap().int_value, Some(5432));
        assert_eq!(get("db.query.text"), None);
        let code = get("db.response.status_code").unwrap();
        assert_eq!(code.string_value.as_deref(), Some("40001"));
        assert_eq!(span.status.as_ref().unwrap().code, ERROR);
    }
}
