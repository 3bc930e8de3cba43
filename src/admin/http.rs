//! The pages for machines and people (`http_listen`): metrics, health, readiness and a status page.
//!
//! It answers GET and HEAD, and takes nothing. There is no login, as usual for such ports: it belongs where only monitoring gets.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::admin::{Console, metrics, status_page};
use crate::stats::exposition::{self, Format, protobuf};

/// So many connections at the same time; others wait.
const MOST: usize = 64;

/// How long a client may take for the head of its request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause after a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(500);

const PLAIN: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// Serves until it is dropped, and all conversations with it.
pub async fn serve(listener: TcpListener, console: Arc<Console>) {
    let mut conversations = JoinSet::new();
    loop {
        if conversations.len() >= MOST {
            conversations.join_next().await;
        }
        // Those that are over.
        while conversations.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let console = console.clone();
                conversations.spawn(async move { converse(stream, &console).await });
            }
            Err(error) => {
                tracing::warn!("http_listen: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, console: &Arc<Console>) {
    let answer = service_fn(|request: Request<Incoming>| {
        let response = answer(
            console,
            request.method(),
            request.uri().path(),
            accepts(&request),
        );
        async move { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
    if let Err(error) = served {
        tracing::debug!("http: {error}");
    }
}

/// In which form metrics are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Text(Format),
    Protobuf,
}

fn accepts<B>(request: &Request<B>) -> Wanted {
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    // Prometheus names what it likes best first.
    let mut kinds = accept.split(',').map(str::trim);
    let known = kinds.find_map(|kind| {
        let essence = kind.split(';').next().unwrap_or_default().trim();
        match essence {
            "application/vnd.google.protobuf"
                if kind.contains("io.prometheus.client.MetricFamily") =>
            {
                Some(Wanted::Protobuf)
            }
            "application/openmetrics-text" => Some(Wanted::Text(Format::OpenMetrics)),
            "text/plain" => Some(Wanted::Text(Format::Prometheus)),
            _ => None,
        }
    });
    known.unwrap_or(Wanted::Text(Format::Prometheus))
}

fn answer(console: &Console, method: &Method, path: &str, wanted: Wanted) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refusal = page(
            StatusCode::METHOD_NOT_ALLOWED,
            PLAIN,
            "only GET\n".to_owned(),
        );
        refusal
            .headers_mut()
            .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match path {
        "/metrics" => {
            let families = metrics::gather(console);
            match wanted {
                Wanted::Protobuf => page(StatusCode::OK, PROTOBUF, protobuf::encode(&families)),
                Wanted::Text(Format::OpenMetrics) => page(
                    StatusCode::OK,
                    OPENMETRICS,
                    exposition::text(&families, Format::OpenMetrics),
                ),
                Wanted::Text(Format::Prometheus) => page(
                    StatusCode::OK,
                    PROMETHEUS,
                    exposition::text(&families, Format::Prometheus),
                ),
            }
        }
        "/healthz" => page(StatusCode::OK, PLAIN, "ok\n".to_owned()),
        "/readyz" if console.control.is_shutting_down() => page(
            StatusCode::SERVICE_UNAVAILABLE,
            PLAIN,
            "shutting down\n".to_owned(),
        ),
        "/readyz" => page(StatusCode::OK, PLAIN, "ready\n".to_owned()),
        "/" => page(StatusCode::OK, HTML, status_page::html(console)),
        _ => page(
            StatusCode::NOT_FOUND,
            PLAIN,
            "there are /, /metrics, /healthz and /readyz\n".to_owned(),
        ),
    }
}

fn page(
    status: StatusCode,
    content: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        hyper::header::HeaderValue::from_static(content),
    );
    headers.insert(
        CACHE_CONTROL,
        hyper::header::HeaderValue::from_static("no-store"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_that_is_named_first_is_taken() {
        let wanted =
            |accept: &str| accepts(&Request::builder().header(ACCEPT, accept).body(()).unwrap());
        let prometheus = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
                          application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1";
        assert_eq!(wanted(prometheus), Wanted::Protobuf);
        assert_eq!(
            wanted("application/openmetrics-text; version=1.0.0, text/plain;q=0.5"),
            Wanted::Text(Format::OpenMetrics)
        );
        for accept in [
            "*/*",
            "",
            "text/html",
            "application/vnd.google.protobuf;proto=other",
        ] {
            assert_eq!(wanted(accept), Wanted::Text(Format::Prometheus), "{accept}");
        }
    }
}
