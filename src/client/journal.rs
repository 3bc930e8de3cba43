//! What the log says of clients that come and go: PgBouncer's lines, which tools look for.
//!
//! Owns the words before a client's messages and the lines of `log_connections`, `log_disconnections` and
//! `log_pooler_errors`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use super::error::Ending;
use super::{Context, Error};
use crate::config::LogText;
use crate::protocol::startup::Replication;
use crate::server::Watched;
use crate::sql::normalize::{normalize, one_line};
use crate::stats::errors::{OTHERS, Seen};
use crate::stats::registry::{ClientEntry, Peer};

/// How the log calls a connection.
#[derive(Debug, Clone)]
pub struct Conn {
    id: u64,
    database: Cow<'static, str>,
    user: Cow<'static, str>,
    peer: Peer,
    /// Ours, which stands for a Unix socket's.
    port: u16,
    since: tokio::time::Instant,
    /// It has proved who it is.
    is_known: bool,
}

impl Conn {
    /// A connection that has just come.
    pub fn new(id: u64, peer: Peer, port: u16) -> Self {
        Self {
            id,
            database: Cow::Borrowed("(nodb)"),
            user: Cow::Borrowed("(nouser)"),
            peer,
            port,
            since: tokio::time::Instant::now(),
            is_known: false,
        }
    }

    /// A client that is logged in; `now` is the registry's.
    pub fn of(client: &ClientEntry, port: u16, now: u64) -> Self {
        let age = Duration::from_micros(now.saturating_sub(client.connected));
        let now = tokio::time::Instant::now();
        Self {
            id: client.id,
            database: client.database.clone().into(),
            user: client.user.clone().into(),
            peer: client.peer,
            port,
            since: now.checked_sub(age).unwrap_or(now),
            is_known: true,
        }
    }

    /// It has said who it is.
    pub fn name(&mut self, database: &str, user: &str) {
        self.database = database.to_owned().into();
        self.user = user.to_owned().into();
    }

    /// Where it comes from.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// It wants in (`log_connections`).
    pub fn attempts(&self, replication: Replication, tls: &str) {
        let Self { database, user, .. } = self;
        let tls = if tls.is_empty() { "no" } else { tls };
        let replication = match replication {
            Replication::None => "no",
            Replication::Logical => "database",
            Replication::Physical => "yes",
        };
        tracing::info!(conn = %self, "login attempt: db={database} user={user} tls={tls} replication={replication}");
    }

    /// It is not let in.
    pub fn refused(&self, context: &Context, error: &Error) {
        let config = context.config.load();
        let Self { database, user, .. } = self;
        match error {
            Error::NoSuchDatabase(_) | Error::DatabaseDisabled(_)
                if config.settings.log_connections =>
            {
                tracing::info!(conn = %self, "login failed: db={database} user={user}");
            }
            Error::Login(_) | Error::TrustFailed | Error::NoSuchUser
                if !config.secrets.contains_key(user.as_ref()) =>
            {
                tracing::info!(conn = %self, "no such user: {user}");
            }
            _ => {}
        }
        self.closes(context, &error);
        self.error(context, error);
    }

    /// It ends.
    pub fn ends(&self, context: &Context, ending: &Ending) {
        self.closes(context, &ending.reason());
        if let Ending::Error(error) = ending {
            self.error(context, error);
        }
    }

    /// It is closed, for this reason.
    pub fn closes(&self, context: &Context, reason: &dyn fmt::Display) {
        if context.config.load().settings.log_disconnections {
            let age = self.since.elapsed().as_secs();
            tracing::info!(conn = %self, "closing because: {reason} (age={age}s)");
        }
    }

    /// An error that it is sent away with.
    fn error(&self, context: &Context, error: &Error) {
        self.count(context, error);
        if !context.config.load().settings.log_pooler_errors {
            return;
        }
        let fault = error.fault().word();
        tracing::warn!(conn = %self, fault, "pooler error: {error}");
        if let Error::Protocol(detail) | Error::BrokenParse(detail) = error {
            tracing::debug!(conn = %self, "{detail}");
        }
    }
}

/// Most lines about slow queries in a second.
const SLOW_QUERIES: u32 = 10;

/// How much of a text the log has as it came, bytes.
const FULL_TEXT: usize = 4096;

/// A query took longer than `log_min_duration`: what it has waited for a server, and what it took there, in microseconds; and
/// what was seen of it, and how its text is to be told.
#[cold]
pub(super) fn slow_query(
    context: &Context,
    client: &ClientEntry,
    (waited, took): (u64, u64),
    seen: Option<(&Watched, LogText)>,
) {
    let registry = &context.manager.parts().registry;
    let now = registry.now();
    let Some(left_out) = registry.slow_queries.admit(now, SLOW_QUERIES) else {
        return;
    };
    if left_out > 0 {
        tracing::info!("{left_out} more slow queries are not in the log");
    }
    let conn = Conn::of(client, context.config.load().settings.listen_port, now);
    let millis = |micros: u64| format!("{}.{:03} ms", micros / 1000, micros % 1000);
    let (whole, waited, ran) = (
        millis(waited.saturating_add(took)),
        millis(waited),
        millis(took),
    );
    let told = format!("slow query: {whole} (waited for a server {waited}, ran {ran}");
    let text = seen.and_then(|(seen, how)| Some((seen, shown(seen.text(), how)?)));
    match text {
        None => tracing::info!(conn = %conn, "{told})"),
        Some((seen, text)) => {
            let (rows, bytes) = (seen.rows(), seen.bytes());
            tracing::info!(conn = %conn, "{told}, {rows} rows, {bytes} bytes): {text}");
        }
    }
}

/// A text as the log has it, if it has it.
pub(super) fn shown(text: &[u8], how: LogText) -> Option<String> {
    let text = match how {
        LogText::Off => return None,
        LogText::Normalized => normalize(text),
        LogText::Full => one_line(text, FULL_TEXT),
    };
    Some(if text.is_empty() {
        "(unknown)".to_owned()
    } else {
        text
    })
}

impl Conn {
    /// For SHOW ERRORS. Whoever is not let in may have made up its names, so they have to be known.
    fn count(&self, context: &Context, error: &Error) {
        let (mut database, mut user) = (self.database.as_ref(), self.user.as_ref());
        if !self.is_known {
            let config = context.config.load();
            if !config.databases.contains_key(database) {
                database = OTHERS;
            }
            if !config.secrets.contains_key(user) && !config.users.contains_key(user) {
                user = OTHERS;
            }
        }
        context.manager.parts().registry.errors.note(Seen {
            sqlstate: error.sqlstate().as_bytes(),
            fault: Some(error.fault()),
            database,
            user,
            message: error.to_string().as_bytes(),
        });
    }
}

impl fmt::Display for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "C-{:#x}: {}/{}@{}",
            self.id, self.database, self.user, self.peer
        )?;
        match self.peer {
            Peer::Unix(_) => write!(f, ":{}", self.port),
            Peer::Tcp(_) => Ok(()),
        }
    }
}
