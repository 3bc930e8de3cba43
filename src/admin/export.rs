//! Telemetry sent to a collector by OTLP over HTTP (`otlp_endpoint`): metrics every `otlp_interval`, spans as they come.
//!
//! Runs on the main thread, apart from clients: what a collector does not take in time is counted and dropped. What is measured is
//! [`metrics`]', what is traced the clients'; the form is `stats::otlp`'s, the conversation [`post`]'s.
//!
//! ```text
//!   workers ── Spans (bounded) ──┐
//!                                ├── encoded ── POST, again after a pause ──▶ collector
//!   metrics::gather ─────────────┘
//! ```

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::body::Bytes;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::admin::{Console, metrics};
use crate::config::Settings;
use crate::net::dns::own_name;
use crate::stats::exposition;
use crate::stats::otlp::{self, KeyValue, Now, Resource};

mod post;

use post::{Error, Target, Way};

/// How often it is looked whether there is something to send.
const TICK: Duration = Duration::from_secs(1);

/// How long a batch of spans is tried.
const LIMIT: Duration = Duration::from_secs(60);

/// How long the end of the process may wait for what is left.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long the log is silent about more failures.
const SILENCE: Duration = Duration::from_secs(60);

/// The default of `otlp_service_name`.
const SERVICE: &str = "pgferry";

/// Sends telemetry.
pub struct Exporter {
    console: Arc<Console>,
    began: SystemTime,
    metrics: Lane,
    spans: Lane,
    /// Spans that are being sent, encoded.
    pending: Option<Batch>,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Exporter(..)")
    }
}

struct Batch {
    body: Bytes,
    count: u64,
}

/// The way of one signal, and what the log knows of it.
struct Lane {
    path: &'static str,
    what: &'static str,
    way: Way,
    trouble: Trouble,
}

impl Lane {
    fn new(path: &'static str, what: &'static str) -> Self {
        Self {
            path,
            what,
            way: Way::default(),
            trouble: Trouble::default(),
        }
    }

    /// Where it goes at present; `None`: nowhere.
    fn target(&self, settings: &Settings) -> Option<Target> {
        Some(Target {
            url: settings.otlp_endpoint.0.clone()?,
            headers: settings.otlp_headers.clone(),
            path: self.path,
        })
    }

    /// Sends a body, for at most so long; once, if there is no time. How many items were refused, or that all were.
    async fn send(
        &mut self,
        console: &Console,
        target: &Target,
        body: &Bytes,
        limit: Duration,
    ) -> Result<u64, ()> {
        let spans = &console.manager.parts().registry.spans;
        let (what, trouble) = (self.what, &mut self.trouble);
        let note = |error: &Error| {
            spans.note_failure();
            trouble.note(what, target, error);
        };
        match self.way.send(target, body, limit, note).await {
            Ok(partial) => {
                let rejected = partial.as_ref().map_or(0, |partial| partial.rejected);
                if let Some(partial) = partial.filter(|partial| partial.rejected > 0) {
                    tracing::debug!("otlp: {rejected} {what} refused: {}", partial.message);
                }
                trouble.is_over(what, target);
                Ok(u64::try_from(rejected).unwrap_or_default())
            }
            Err(_) => Err(()),
        }
    }
}

/// What the log has of failures: the first, then one line a minute, and the end.
#[derive(Debug, Default)]
struct Trouble {
    last: Option<Instant>,
    left_out: u64,
}

impl Trouble {
    fn note(&mut self, what: &str, target: &Target, error: &Error) {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last < SILENCE) {
            self.left_out += 1;
            tracing::debug!("otlp: {what}: {error}");
            return;
        }
        let left_out = std::mem::take(&mut self.left_out);
        self.last = Some(now);
        let to = target.url.authority();
        tracing::warn!("could not send {what} to {to}: {error} ({left_out} more failures before)");
    }

    fn is_over(&mut self, what: &str, target: &Target) {
        if self.last.take().is_some() {
            self.left_out = 0;
            tracing::info!("{what} are sent to {} again", target.url.authority());
        }
    }
}

impl Exporter {
    /// For what this console knows.
    pub fn new(console: Arc<Console>) -> Self {
        let began = SystemTime::now() - console.manager.started().elapsed();
        Self {
            console,
            began,
            metrics: Lane::new("/v1/metrics", "metrics"),
            spans: Lane::new("/v1/traces", "spans"),
            pending: None,
        }
    }

    /// Sends as long as it is polled; never returns.
    pub async fn run(&mut self) {
        let (console, began) = (&*self.console, self.began);
        tokio::join!(
            run_metrics(console, &mut self.metrics, began),
            run_spans(console, &mut self.spans, &mut self.pending),
        );
    }

    /// The process ends: what is left is sent once, if a collector takes it at once.
    pub async fn finish(&mut self) {
        let (console, began) = (&*self.console, self.began);
        let config = console.manager.parts().config.load();
        let settings = &config.settings;
        let (metrics, spans, pending) = (&mut self.metrics, &mut self.spans, &mut self.pending);
        let last = async {
            if let Some(target) = metrics.target(settings)
                && !settings.otlp_interval.is_zero()
            {
                let body = gather(console, settings, began);
                // Whoever ends does not complain.
                let _ = metrics.send(console, &target, &body, Duration::ZERO).await;
            }
        };
        let rest = async {
            let Some(target) = spans.target(settings) else {
                return;
            };
            while fetch(console, settings, pending)
                && send_spans(console, spans, (&target, Duration::ZERO), pending).await
            {
            }
        };
        // What it does not take in time is lost.
        let _ = timeout(FAREWELL, async { tokio::join!(last, rest) }).await;
    }
}

/// Metrics, each `otlp_interval`.
async fn run_metrics(console: &Console, lane: &mut Lane, began: SystemTime) {
    let mut last = Instant::now();
    loop {
        sleep(TICK).await;
        let config = console.manager.parts().config.load();
        let period = config.settings.otlp_interval;
        if period.is_zero() || last.elapsed() < period {
            continue;
        }
        last = Instant::now();
        if let Some(target) = lane.target(&config.settings) {
            let body = gather(console, &config.settings, began);
            // What is not taken by then is told by the next ones.
            let _ = lane.send(console, &target, &body, period.min(LIMIT)).await;
        }
    }
}

fn gather(console: &Console, settings: &Settings, began: SystemTime) -> Bytes {
    let families = metrics::gather(console);
    let times = (began, SystemTime::now());
    exposition::otlp::encode(&families, &resource(settings), times).into()
}

/// Spans, as they come.
async fn run_spans(console: &Console, lane: &mut Lane, pending: &mut Option<Batch>) {
    let spans = &console.manager.parts().registry.spans;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = spans.are_many() => {}
        }
        loop {
            let config = console.manager.parts().config.load();
            if !fetch(console, &config.settings, pending) {
                break;
            }
            match lane.target(&config.settings) {
                Some(target) => {
                    send_spans(console, lane, (&target, LIMIT), pending).await;
                }
                // It was switched off meanwhile.
                None => drop_pending(console, pending),
            }
        }
    }
}

/// Encodes the next batch, unless there is one. False: there are no spans.
fn fetch(console: &Console, settings: &Settings, pending: &mut Option<Batch>) -> bool {
    if pending.is_some() {
        return true;
    }
    let registry = &console.manager.parts().registry;
    let spans = registry.spans.take();
    if spans.is_empty() {
        return false;
    }
    let now = Now {
        micros: registry.now(),
        wall: SystemTime::now(),
    };
    let count = spans.len() as u64;
    *pending = Some(Batch {
        body: otlp::encode_spans(spans, &resource(settings), now).into(),
        count,
    });
    true
}

/// Sends the batch, and counts what becomes of it. True: it was taken.
async fn send_spans(
    console: &Console,
    lane: &mut Lane,
    (target, limit): (&Target, Duration),
    pending: &mut Option<Batch>,
) -> bool {
    let Some(batch) = pending.as_ref() else {
        return false;
    };
    let result = lane.send(console, target, &batch.body, limit).await;
    let Ok(rejected) = result else {
        drop_pending(console, pending);
        return false;
    };
    let spans = &console.manager.parts().registry.spans;
    let rejected = rejected.min(batch.count);
    spans.note_sent(batch.count - rejected);
    spans.note_dropped(rejected);
    *pending = None;
    true
}

fn drop_pending(console: &Console, pending: &mut Option<Batch>) {
    if let Some(batch) = pending.take() {
        console
            .manager
            .parts()
            .registry
            .spans
            .note_dropped(batch.count);
    }
}

/// Who says it (semantic conventions: "Resource", "Service", "Process").
fn resource(settings: &Settings) -> Resource {
    let (host, process) = (own_name(), std::process::id());
    // Several processes may have a host and a port together.
    let instance = format!("{host}:{}:{process}", settings.listen_port);
    let mut attributes = vec![
        KeyValue::text("service.name", &*settings.otlp_service_name),
        KeyValue::text("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::text("service.instance.id", instance),
        KeyValue::text("host.name", host),
        KeyValue::whole("process.pid", process),
    ];
    for (name, value) in &settings.otlp_resource_attributes.0 {
        // It has a setting of its own, which comes first if it is set (specification of `OTEL_SERVICE_NAME`).
        if name == "service.name" && settings.otlp_service_name != SERVICE {
            continue;
        }
        attributes.retain(|known| known.key != *name);
        attributes.push(KeyValue::text(name, value));
    }
    Resource { attributes }
}
