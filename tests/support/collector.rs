//! A collector of telemetry: OTLP over HTTP, as far as one is needed to see what it is sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use pgferry::stats::exposition::otlp::{Metric, MetricsRequest};
use pgferry::stats::otlp::{AnyValue, KeyValue, Resource, Span, TraceRequest};
use prost::Message;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::eventually;

/// What it does with requests.
#[derive(Clone, Copy)]
pub enum Behaviour {
    /// It takes them.
    Takes,
    /// It answers with this status, and this line in the head.
    Refuses(u16, &'static str),
    /// It takes this many of a request's spans less.
    TakesLess(i64),
    /// It says nothing.
    Hangs,
}

/// A request that came.
pub struct Request {
    pub path: String,
    /// In lower case.
    pub head: String,
    pub body: Vec<u8>,
}

struct Shared {
    behaviour: Mutex<Behaviour>,
    /// With those that it refused.
    seen: Mutex<Vec<Request>>,
    /// Those that it took.
    spans: Mutex<Vec<(Resource, Span)>>,
    metrics: Mutex<Vec<(Resource, Vec<Metric>)>>,
}

/// It runs as long as the test.
pub struct Collector {
    port: u16,
    shared: Arc<Shared>,
}

impl Collector {
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// With TLS.
    pub fn start_with(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            behaviour: Mutex::new(Behaviour::Takes),
            seen: Mutex::default(),
            spans: Mutex::default(),
            metrics: Mutex::default(),
        });
        let own = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, own, tls) = (stream.unwrap(), own.clone(), tls.clone());
                std::thread::spawn(move || match tls {
                    None => own.serve(stream),
                    Some(tls) => {
                        let session = ServerConnection::new(tls).unwrap();
                        own.serve(StreamOwned::new(session, stream));
                    }
                });
            }
        });
        Self { port, shared }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn behaves(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().unwrap() = behaviour;
    }

    /// How many requests came for this path.
    pub fn requests(&self, path: &str) -> usize {
        let seen = self.shared.seen.lock().unwrap();
        seen.iter().filter(|request| request.path == path).count()
    }

    /// The first request.
    pub fn head(&self) -> String {
        let seen = self.shared.seen.lock().unwrap();
        seen.first().map(|it| it.head.clone()).unwrap_or_default()
    }

    /// All spans that it took.
    pub fn spans(&self) -> Vec<Span> {
        let spans = self.shared.spans.lock().unwrap();
        spans.iter().map(|(_, span)| span.clone()).collect()
    }

    /// Waits for a span of which this is so.
    pub fn span(&self, is_it: impl Fn(&Span) -> bool) -> Span {
        eventually("a span", || self.spans().into_iter().find(&is_it))
    }

    /// Waits for metrics of which this is so; with whom they are of.
    pub fn metrics(&self, are_they: impl Fn(&[Metric]) -> bool) -> (Resource, Vec<Metric>) {
        eventually("metrics", || {
            let metrics = self.shared.metrics.lock().unwrap();
            metrics.iter().find(|(_, it)| are_they(it)).cloned()
        })
    }
}

impl Shared {
    fn serve(&self, stream: impl Read + Write) {
        let mut stream = BufReader::new(stream);
        while let Some(request) = read(&mut stream) {
            let behaviour = *self.behaviour.lock().unwrap();
            let is_taken = matches!(behaviour, Behaviour::Takes | Behaviour::TakesLess(_));
            if is_taken {
                self.take(&request);
            }
            self.seen.lock().unwrap().push(request);
            let (status, line, body) = match behaviour {
                Behaviour::Takes => (200, "x-is: taken", Vec::new()),
                Behaviour::TakesLess(count) => {
                    let partial_success = Some(pgferry::stats::otlp::PartialSuccess {
                        rejected: count,
                        message: "too many".to_owned(),
                    });
                    let answer = pgferry::stats::otlp::Response { partial_success };
                    (200, "x-is: taken", answer.encode_to_vec())
                }
                Behaviour::Refuses(status, line) => (status, line, b"no".to_vec()),
                Behaviour::Hangs => continue,
            };
            let head = format!(
                "HTTP/1.1 {status} x\r\n{line}\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let stream = stream.get_mut();
            let sent = stream.write_all(&[head.into_bytes(), body].concat());
            if sent.and_then(|()| stream.flush()).is_err() {
                return;
            }
        }
    }

    fn take(&self, request: &Request) {
        let body = request.body.as_slice();
        match request.path.as_str() {
            "/v1/traces" => {
                let read = TraceRequest::decode(body).unwrap();
                for of in read.resource_spans {
                    let resource = of.resource.unwrap();
                    let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
                    let spans = spans.map(|span| (resource.clone(), span));
                    self.spans.lock().unwrap().extend(spans);
                }
            }
            "/v1/metrics" => {
                let read = MetricsRequest::decode(body).unwrap();
                for of in read.resource_metrics {
                    let metrics = of.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
                    let metrics = (of.resource.unwrap(), metrics.collect());
                    self.metrics.lock().unwrap().push(metrics);
                }
            }
            path => panic!("{path}"),
        }
    }
}

fn read(stream: &mut impl BufRead) -> Option<Request> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let path = head.split(' ').nth(1)?.to_owned();
    let head = head.to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))?;
    let mut body = vec![0; length.parse().ok()?];
    stream.read_exact(&mut body).ok()?;
    Some(Request { path, head, body })
}

/// What an attribute says.
pub fn attribute(attributes: &[KeyValue], key: &str) -> Option<AnyValue> {
    let found = attributes.iter().find(|it| it.key == key);
    found.and_then(|it| it.value.clone())
}

/// The same, of one that is text.
pub fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    attribute(attributes, key).and_then(|value| value.string_value)
}

/// Nobody listens there.
pub fn nobody() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
    drop(listener);
    // (And nobody does.)
    let _ = TcpStream::connect(url.trim_start_matches("http://"));
    url
}
