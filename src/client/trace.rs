//! Transactions as spans of a distributed trace (`otlp_endpoint`; OpenTelemetry's semantic conventions for databases).
//!
//! Hangs on to [`watch`]: what is seen of a transaction's queries is added up beside what is seen of the query under way, and makes a
//! span at its end if it is sampled. Where nothing is traced none of this is called. How spans get to a collector is `admin`'s.

use rand::Rng;

use super::relay::Relay;
use super::session::Session;
use super::watch::Over;
use super::{Error, journal, watch};
use crate::config::TraceSource;
use crate::pool::Tracing;
use crate::protocol::frame::cut;
use crate::protocol::frontend::tag;
use crate::protocol::up_to_nul;
use crate::server::{Traced, Watched};
use crate::sql::lexer::Lexer;
use crate::sql::traceparent::TraceParent;
use crate::stats::Phase;
use crate::stats::registry::{Peer, ServerEntry};
use crate::stats::spans::Place;

/// What a span may be called by: the first keywords of PostgreSQL's commands, those that only open a transaction first.
const OPERATIONS: [&str; 44] = [
    "BEGIN",
    "START",
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "WITH",
    "MERGE",
    "VALUES",
    "TABLE",
    "CALL",
    "DO",
    "COPY",
    "FETCH",
    "MOVE",
    "DECLARE",
    "CLOSE",
    "EXECUTE",
    "PREPARE",
    "DEALLOCATE",
    "SET",
    "RESET",
    "SHOW",
    "DISCARD",
    "EXPLAIN",
    "LOCK",
    "LISTEN",
    "NOTIFY",
    "UNLISTEN",
    "COMMIT",
    "END",
    "ROLLBACK",
    "ABORT",
    "SAVEPOINT",
    "CREATE",
    "ALTER",
    "DROP",
    "TRUNCATE",
    "GRANT",
    "REVOKE",
    "ANALYZE",
    "VACUUM",
    "REINDEX",
    "REFRESH",
];

/// The server owes nothing, and this is what the client says, perhaps as the first of a transaction: to which trace does it belong?
/// May be asked again when there is more of it.
pub(super) fn begin(
    relay: &Relay,
    tracing: &Tracing,
    (traced, is_first): (&mut Traced, bool),
    input: &[u8],
) {
    if is_first {
        *traced = Traced {
            is_drawn: tracing.drawn > 0 && u64::from(rand::rng().next_u32()) < tracing.drawn,
            ..Traced::default()
        };
    }
    // Many a driver says BEGIN on its own, so a later query may be the first to tell.
    if traced.parent.is_none() {
        traced.parent = match tracing.source {
            TraceSource::Off => None,
            TraceSource::Comment => in_texts(relay, input),
            TraceSource::ApplicationName => in_name(relay),
            TraceSource::Both => in_texts(relay, input).or_else(|| in_name(relay)),
        };
    }
}

/// What texts say that are sent now. (What a statement said that was prepared before belongs to the trace of then.)
fn in_texts(relay: &Relay, input: &[u8]) -> Option<TraceParent> {
    let mut rest = input;
    while let Ok(Some(frame)) = cut(rest, relay.settings.max_packet_size) {
        let text = match frame.tag {
            tag::QUERY => up_to_nul(frame.body()),
            tag::PARSE => watch::parsed(frame.body()).1,
            _ => &[],
        };
        let found = TraceParent::of_text(text);
        if found.is_some() || !frame.is_complete() {
            return found;
        }
        rest = rest.get(frame.len..).unwrap_or_default();
    }
    None
}

fn in_name(relay: &Relay) -> Option<TraceParent> {
    let position = relay.tracked.names().application_name()?;
    TraceParent::of_name(relay.tracked.get(position)?)
}

/// The first keyword of a text, if it is one.
fn operation(text: &[u8]) -> &'static str {
    let first = Lexer::new(text).significant().next();
    let word = first.map(|token| token.of(text)).unwrap_or_default();
    let known = OPERATIONS.iter();
    let mut found = known.filter(|known| word.eq_ignore_ascii_case(known.as_bytes()));
    found.next().copied().unwrap_or_default()
}

/// A query is over, and perhaps its transaction.
pub(super) fn note(over: &Over<'_>, watched: &mut Watched, server: Option<&ServerEntry>) {
    let (waited, took) = over.times;
    let (rows, bytes) = (watched.rows(), watched.bytes());
    let is_opened = !matches!(watched.traced.span.operation, "" | "BEGIN" | "START");
    if !is_opened {
        let text = watched.text();
        let operation = operation(text);
        let is_told = watched.traced.is_sampled() && !text.is_empty();
        let shown = is_told.then(|| journal::shown(text, over.settings.log_text));
        let span = &mut watched.traced.span;
        if !operation.is_empty() {
            span.operation = operation;
        }
        span.text = shown.flatten().or_else(|| span.text.take());
    }
    let span = &mut watched.traced.span;
    span.queries += 1;
    span.wait += waited;
    span.work += took;
    span.rows += rows;
    span.bytes += bytes;
    if let Some(began) = over.transaction {
        end(over, std::mem::take(&mut watched.traced), began, server);
    }
}

/// A transaction is over that nothing was asked of any more.
#[cold]
pub(super) fn abandoned(over: &Over<'_>, watched: &mut Watched, server: &ServerEntry) {
    if let (Some(began), Some(_)) = (over.transaction, over.settings.tracing) {
        end(
            over,
            std::mem::take(&mut watched.traced),
            began,
            Some(server),
        );
    }
}

/// A transaction is over.
fn end(over: &Over<'_>, traced: Traced, began: u64, server: Option<&ServerEntry>) {
    if !traced.is_sampled() {
        return;
    }
    let (pool, _) = over.pool;
    let registry = &over.context.manager.parts().registry;
    let mut span = traced.span;
    let mut random = rand::rng();
    match traced.parent {
        Some(parent) => {
            span.trace = parent.trace;
            span.parent = Some(parent.span);
        }
        None => random.fill_bytes(&mut span.trace),
    }
    random.fill_bytes(&mut span.id);
    span.began = began.saturating_sub(span.wait);
    span.ended = over.context.turn().max(began);
    span.database.clone_from(&pool.database);
    span.user.clone_from(&pool.user);
    span.server = server.map(|server| Place {
        host: server.host.clone(),
        port: match server.peer {
            Peer::Tcp(address) => Some(address.port()),
            Peer::Unix(_) => None,
        },
        pid: server.cancel_pid,
    });
    registry.spans.put(span);
}

/// A client is sent away before it had a server for what it asks.
#[cold]
pub(super) fn refused(session: &Session, error: &Error) {
    let asked = &session.connection.kept;
    if asked.is_empty() {
        return;
    }
    let mut watched = Watched::default();
    watch::look(&session.relay, (&mut watched, true), asked);
    watched.fails(error.sqlstate());
    let now = session.context.now();
    let waited = match session.entry.phase() {
        Phase::Waiting => now.saturating_sub(session.entry.request_time()),
        _ => u64::from(session.waited) * 1000,
    };
    let over = Over {
        context: &session.context,
        client: &session.entry,
        pool: (&session.pool, session.home.worker()),
        settings: &session.relay.settings,
        times: (waited, 0),
        transaction: Some(now),
    };
    note(&over, &mut watched, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_called_by_a_keyword_and_nothing_else() {
        for (text, name) in [
            ("select 1", "SELECT"),
            ("/* traceparent='x' */ -- y\n Insert into t", "INSERT"),
            ("with a as (select 1) delete from t", "WITH"),
            ("(select 1)", ""),
            ("hunter2", ""),
            ("\"select\"", ""),
            ("'select'", ""),
            ("", ""),
        ] {
            assert_eq!(operation(text.as_bytes()), name, "{text}");
        }
    }
}
