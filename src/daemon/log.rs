//! The log: `PgBouncer`'s line on stderr and in `logfile`, or one JSON object a line.
//!
//! Owns where lines go and how they look, both changeable while the process runs. What is
//! worth a line is everybody else's decision, made through `tracing`'s macros:
//!
//! - `error!`, `warn!`, `info!`, `debug!`, `trace!` become `ERROR`, `WARNING`, `LOG`, `DEBUG`,
//!   `NOISE`; `error!(fatal = true, …)` becomes `FATAL`;
//! - a field `conn`, of the event or else of the innermost span that has one, stands before the
//!   message (`C-0x1: db/user@127.0.0.1:5000 login attempt`), as tools expect it;
//! - other fields follow the message as ` key=value`, the event's own first, then the spans'.

use crate::daemon::Error;
use crate::daemon::syslog::{Filing, Severity, Syslog};
use jiff::{Timestamp, Zoned};
use parking_lot::Mutex;
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// Local time with milliseconds and the zone's abbreviation.
const TIME: &str = "%Y-%m-%d %H:%M:%S%.3f %Z";

/// How the log starts; everything but the format can change later through [`LogHandle`].
#[derive(Debug, Clone, Default)]
pub struct LogOptions {
    /// Nothing on stderr (`-q`, and `-d` implies it); a `logfile` is written all the same.
    pub quiet: bool,
    /// `logfile`: appended to beside stderr.
    pub file: Option<PathBuf>,
    /// `-v` times and `verbose`: see [`LogHandle::set_verbosity`].
    pub verbosity: u8,
    /// The shape of a line.
    pub format: Format,
    /// `syslog`: where lines are sent as well.
    pub syslog: Option<Filing>,
}

/// The shape of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// `PgBouncer`'s: `2026-11-21 09:06:06.093 UTC [16192] LOG text key=value`.
    #[default]
    Text,
    /// One JSON object a line, for collectors: `timestamp` (RFC 3339, UTC), `level`, `message`,
    /// the fields, and the innermost span under `span`.
    Json,
}

impl Format {
    /// Reads `PGFERRY_LOG_FORMAT`: `json`, or text for anything else.
    pub fn from_env() -> Self {
        match std::env::var("PGFERRY_LOG_FORMAT") {
            Ok(name) if name.eq_ignore_ascii_case("json") => Self::Json,
            _ => Self::Text,
        }
    }
}

/// Makes this log the process's; later calls fail with [`Error::LogSetup`].
pub fn init(options: &LogOptions) -> Result<LogHandle, Error> {
    let (subscriber, handle) = build(options)?;
    subscriber.try_init().map_err(|error| Error::LogSetup {
        reason: error.to_string(),
    })?;
    Ok(handle)
}

/// The same log without making it the process's, for `tracing::subscriber::with_default`.
pub fn build(
    options: &LogOptions,
) -> Result<(impl Subscriber + Send + Sync + 'static, LogHandle), Error> {
    let destination = Arc::new(Destination {
        quiet: options.quiet,
        file: Mutex::new(options.file.clone().map(OpenFile::open).transpose()?),
        syslog: Mutex::new(options.syslog.clone().map(open_syslog).transpose()?),
    });
    let (filter, verbosity) = reload::Layer::new(targets(options.verbosity));
    let output: Box<dyn Layer<_> + Send + Sync> = match options.format {
        Format::Text => Box::new(TextLayer {
            destination: Arc::clone(&destination),
        }),
        Format::Json => Box::new(
            tracing_subscriber::fmt::layer()
                .json()
                .flatten_event(true)
                .with_span_list(false)
                .with_timer(Rfc3339)
                .with_writer(Arc::clone(&destination)),
        ),
    };
    let subscriber = tracing_subscriber::registry().with(filter).with(output);
    Ok((
        subscriber,
        LogHandle {
            destination,
            verbosity,
        },
    ))
}

/// Steers the log of a running process; clones steer the same log.
#[derive(Debug, Clone)]
pub struct LogHandle {
    destination: Arc<Destination>,
    verbosity: reload::Handle<Targets, Registry>,
}

impl LogHandle {
    /// How much is logged: 0 up to `LOG`, 1 `DEBUG`, 2 `NOISE`, 3 and more also what the
    /// libraries we use have to say (`-v`, `verbose`). Release builds contain no `NOISE`.
    pub fn set_verbosity(&self, verbosity: u8) -> Result<(), Error> {
        self.verbosity
            .reload(targets(verbosity))
            .map_err(|error| Error::LogSetup {
                reason: error.to_string(),
            })
    }

    /// Writes to this file from now on, or to none. When it cannot be opened the old one stays.
    pub fn set_file(&self, path: Option<PathBuf>) -> Result<(), Error> {
        // Opened before the lock is taken: a slow disk must not hold up every thread that logs.
        let opened = path.map(OpenFile::open).transpose()?;
        *self.destination.file.lock() = opened;
        Ok(())
    }

    /// Sends lines to syslog from now on, or not. When that fails nothing changes.
    pub fn set_syslog(&self, filing: Option<Filing>) -> Result<(), Error> {
        let opened = filing.map(open_syslog).transpose()?;
        *self.destination.syslog.lock() = opened;
        Ok(())
    }

    /// Opens the present file by its name again, so that a rotated one is let go (HUP, RELOAD).
    /// When that fails the old one stays in use.
    pub fn reopen(&self) -> Result<(), Error> {
        let path = self
            .destination
            .file
            .lock()
            .as_ref()
            .map(|open| open.path.clone());
        match path {
            Some(path) => self.set_file(Some(path)),
            None => Ok(()),
        }
    }
}

/// `verbose` speaks of pgferry; libraries join in only at 3, since their debug lines are many.
fn targets(verbosity: u8) -> Targets {
    let (ours, theirs) = match verbosity {
        0 => (LevelFilter::INFO, LevelFilter::WARN),
        1 => (LevelFilter::DEBUG, LevelFilter::WARN),
        2 => (LevelFilter::TRACE, LevelFilter::WARN),
        3.. => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    Targets::new()
        .with_default(theirs)
        .with_target(env!("CARGO_CRATE_NAME"), ours)
}

/// Where whole lines go: stderr, a file, both or nowhere.
#[derive(Debug)]
struct Destination {
    quiet: bool,
    file: Mutex<Option<OpenFile>>,
    syslog: Mutex<Option<Syslog>>,
}

fn open_syslog(filing: Filing) -> Result<Syslog, Error> {
    Syslog::open(filing).map_err(|source| Error::Syslog { source })
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: File,
}

impl OpenFile {
    fn open(path: PathBuf) -> Result<Self, Error> {
        match OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o644)
            .open(&path)
        {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(Error::LogFile { path, source }),
        }
    }
}

impl Destination {
    /// One write a line and place, unbuffered. A full disk or a closed terminal loses the line:
    /// there is no better place to complain, and serving clients goes on.
    fn write_line(&self, line: &[u8]) {
        if !self.quiet {
            let _ = io::stderr().write_all(line);
        }
        if let Some(open) = self.file.lock().as_mut() {
            let _ = open.file.write_all(line);
        }
    }
}

/// For the JSON formatter, which hands over a whole line at a time.
impl io::Write for &Destination {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_line(line);
        if let Some(syslog) = &*self.syslog.lock() {
            // How bad it is stands in the line.
            let text = String::from_utf8_lossy(line);
            syslog.send(Severity::Informational, text.trim_end());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `timestamp` of the JSON shape.
struct Rfc3339;

impl FormatTime for Rfc3339 {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        write!(out, "{:.3}", Timestamp::now())
    }
}

/// Prints events as `PgBouncer`'s lines.
struct TextLayer {
    destination: Arc<Destination>,
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for TextLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut words = Words::default();
            attributes.record(&mut words);
            span.extensions_mut().insert(words);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(words) = span.extensions_mut().get_mut::<Words>()
        {
            values.record(words);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut words = Words::default();
        event.record(&mut words);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<Words>() {
                words.fields.push_str(&outer.fields);
                if words.conn.is_empty() {
                    words.conn.push_str(&outer.conn);
                }
            }
        }
        self.destination
            .write_line(line(&Zoned::now(), event.metadata(), &words).as_bytes());
        if let Some(syslog) = &*self.destination.syslog.lock() {
            let severity = severity(*event.metadata().level(), words.fatal);
            syslog.send(severity, body(&words).trim_start());
        }
    }
}

/// One whole line with its line break.
fn line(now: &Zoned, metadata: &Metadata<'_>, words: &Words) -> String {
    let level = match *metadata.level() {
        Level::ERROR if words.fatal => "FATAL",
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "LOG",
        Level::DEBUG => "DEBUG",
        Level::TRACE => "NOISE",
    };
    let mut line = String::with_capacity(128 + words.message.len() + words.fields.len());
    let _ = write!(
        line,
        "{} [{}] {level}",
        now.strftime(TIME),
        std::process::id()
    );
    line.push_str(&body(words));
    line.push('\n');
    line
}

/// What is said, with a space in front.
fn body(words: &Words) -> String {
    let mut line = String::new();
    for word in [&words.conn, &words.message] {
        if !word.is_empty() {
            line.push(' ');
            push_text(&mut line, word.trim_end_matches('\n'));
        }
    }
    line.push_str(&words.fields); // each with its space in front, and clean already
    line
}

fn severity(level: Level, fatal: bool) -> Severity {
    match level {
        Level::ERROR if fatal => Severity::Critical,
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warning,
        Level::INFO => Severity::Informational,
        Level::DEBUG | Level::TRACE => Severity::Debug,
    }
}

/// Appends text that may come from a peer: it must not be able to fake a line or to steer a
/// terminal, so line breaks become newline and tab, as in `PgBouncer`, and other control
/// characters are spelled out.
fn push_text(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\n\t"),
            '\t' => out.push(c),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
}

/// What an event or a span says.
#[derive(Default)]
struct Words {
    message: String,
    conn: String,
    fatal: bool,
    /// ` key=value` for every other field.
    fields: String,
}

impl Words {
    fn push(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            "conn" => value.clone_into(&mut self.conn),
            // What the `log` crate's bridge adds about the place in the source.
            name if name.starts_with("log.") => {}
            name => {
                let _ = write!(self.fields, " {name}=");
                if value.is_empty() || value.contains([' ', '=', '\n', '\t']) {
                    let _ = write!(self.fields, "{value:?}");
                } else {
                    push_text(&mut self.fields, value);
                }
            }
        }
    }
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "fatal" {
            self.fatal = value;
        } else {
            self.push(field, if value { "true" } else { "false" });
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.push(field, &value.to_string());
    }
}

#[cfg(test)]
mod tests;
