//! One request after the other to a collector (OTLP specification, "OTLP/HTTP").
//!
//! Owns the connection, which is kept, what an answer means, and when to try again. What is sent is not known here.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use prost::Message;
use rand::RngExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::config::otlp::{Headers, Url};
use crate::net::tls::{HandshakeError, SetupError, WithWeb};
use crate::stats::otlp;

/// How long a request may take, the connection included (`OTEL_EXPORTER_OTLP_TIMEOUT`'s default).
const PATIENCE: Duration = Duration::from_secs(10);

/// The first pause after a failure; it doubles.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause, also if a collector asks for more.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The most that is read of an answer.
const LONGEST_ANSWER: usize = 64 * 1024;

const PROTOBUF: &str = "application/x-protobuf";

/// Why something was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection, or one that broke.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// No TLS.
    #[error("TLS handshake error: {0}")]
    Tls(#[from] HandshakeError),
    /// Nobody is trusted.
    #[error("TLS: {0}")]
    Trust(#[from] SetupError),
    /// What came is no HTTP, or it ended too soon.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// It can't be asked so.
    #[error("{0}")]
    Request(#[from] hyper::http::Error),
    /// The answer is too long, or broke off.
    #[error("the answer can't be read: {0}")]
    Answer(Box<dyn std::error::Error + Send + Sync>),
    /// It takes too long.
    #[error("no answer in time")]
    TimedOut,
    /// The collector does not take it.
    #[error("the collector answers {status}")]
    Status {
        /// What it said.
        status: StatusCode,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
}

impl Error {
    /// May the same be sent again (OTLP specification, "Retryable Response Codes")?
    fn is_passing(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            Self::Request(_) => false,
            Self::Io(_)
            | Self::Tls(_)
            | Self::Trust(_)
            | Self::Http(_)
            | Self::Answer(_)
            | Self::TimedOut => true,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Where something goes.
#[derive(Debug, Clone)]
pub struct Target {
    /// The collector.
    pub url: Url,
    /// What goes along.
    pub headers: Headers,
    /// `/v1/metrics` or `/v1/traces`.
    pub path: &'static str,
}

/// A way to a collector.
#[derive(Debug, Default)]
pub struct Way {
    /// Where it leads, if it is open.
    link: Option<(Url, SendRequest<Full<Bytes>>)>,
    /// What drives the connection; it ends with this.
    drivers: JoinSet<()>,
    /// Whom we trust, once somebody had to be.
    tls: Option<WithWeb>,
}

impl Way {
    /// Sends a body, at least once, and again until it is taken, refused for good, or the time is over. `note` hears of each failure.
    /// `Ok`: what the collector has left of it. Cancel-safe, but that it may have been taken all the same.
    pub async fn send(
        &mut self,
        target: &Target,
        body: &Bytes,
        limit: Duration,
        mut note: impl FnMut(&Error),
    ) -> Result<Option<otlp::PartialSuccess>, Error> {
        let began = Instant::now();
        let mut pause = PAUSE;
        loop {
            let error = match self.send_once(target, body).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            note(&error);
            let wait = error.retry_after().unwrap_or_else(|| {
                // Or all that lost it at once come back at once.
                pause.mul_f64(rand::rng().random_range(0.8..1.2))
            });
            let wait = wait.min(LONGEST_PAUSE);
            if !error.is_passing() || began.elapsed() + wait >= limit {
                return Err(error);
            }
            sleep(wait).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The same, once.
    async fn send_once(
        &mut self,
        target: &Target,
        body: &Bytes,
    ) -> Result<Option<otlp::PartialSuccess>, Error> {
        let result = timeout(PATIENCE, Box::pin(self.ask(target, body))).await;
        let result = result.unwrap_or(Err(Error::TimedOut));
        if !matches!(result, Ok(_) | Err(Error::Status { .. })) {
            // The next one begins anew, also with what is trusted: certificates may have been added.
            self.link = None;
            self.tls = None;
            self.drivers.abort_all();
        }
        result
    }

    async fn ask(
        &mut self,
        target: &Target,
        body: &Bytes,
    ) -> Result<Option<otlp::PartialSuccess>, Error> {
        while self.drivers.try_join_next().is_some() {}
        let url = &target.url;
        let mut request = Request::post(format!("{}{}", url.path, target.path))
            .header(HOST, url.authority())
            .header(CONTENT_TYPE, PROTOBUF)
            .header(USER_AGENT, concat!("pgferry/", env!("CARGO_PKG_VERSION")));
        for (name, value) in target.headers.iter() {
            let mut value =
                hyper::header::HeaderValue::try_from(value).map_err(hyper::http::Error::from)?;
            value.set_sensitive(true);
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body.clone()))?;
        let link = self.link.take();
        let open = link.filter(|(to, sender)| to == url && !sender.is_closed());
        let mut sender = match open {
            Some((_, sender)) => sender,
            None => self.connect(url).await?,
        };
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let answer = answer(response).await;
        self.link = Some((url.clone(), sender));
        answer
    }

    async fn connect(&mut self, url: &Url) -> Result<SendRequest<Full<Bytes>>, Error> {
        let socket = TcpStream::connect((url.host.as_str(), url.port)).await?;
        socket.set_nodelay(true)?;
        if !url.is_https {
            return self.drive(socket).await;
        }
        let tls = match self.tls.take() {
            Some(tls) => tls,
            None => WithWeb::load()?,
        };
        let stream = tls.connect(socket, &url.host).await?;
        self.tls = Some(tls);
        self.drive(stream).await
    }

    async fn drive(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<SendRequest<Full<Bytes>>, Error> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        self.drivers.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!("otlp: {error}");
            }
        });
        Ok(sender)
    }
}

async fn answer(response: Response<Incoming>) -> Result<Option<otlp::PartialSuccess>, Error> {
    let status = response.status();
    let retry_after = response.headers().get(RETRY_AFTER);
    // Seconds; a date (RFC 9110 section 10.2.3) is as good as nothing.
    let retry_after = retry_after
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    // To its end, so that the connection can be used again.
    let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect();
    let body = body.await.map_err(Error::Answer)?.to_bytes();
    if !status.is_success() {
        return Err(Error::Status {
            status,
            retry_after,
        });
    }
    // What is no message of ours says nothing against what was sent.
    let read = otlp::Response::decode(body).unwrap_or_default();
    Ok(read.partial_success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_tried_again_and_what_is_refused_is_not() {
        let status = |code| Error::Status {
            status: StatusCode::from_u16(code).unwrap(),
            retry_after: None,
        };
        for (code, is_passing) in [
            (400, false),
            (401, false),
            (404, false),
            (413, false),
            (429, true),
            (500, false),
            (502, true),
            (503, true),
            (504, true),
        ] {
            assert_eq!(status(code).is_passing(), is_passing, "{code}");
        }
        assert!(Error::TimedOut.is_passing());
    }
}
