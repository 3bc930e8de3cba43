//! Which statement a query is of, and what becomes of that when it is over: SHOW STATEMENTS (`track_statements`), the text in the
//! lines of `log_min_duration` (`log_statement_text`), and the spans of [`trace`].
//!
//! All that a client sends without waiting for the answer is one query here, as it is in the pool's counters; the statement that is
//! run first stands for it. What is to be found out is found in what the client sends, before the relay changes it. Where
//! nothing is watched none of this is called.

use super::relay::Relay;
use super::{Context, journal, trace};
use crate::pool::{Pool, PoolSettings};
use crate::protocol::backend::TxStatus;
use crate::protocol::frame::cut;
use crate::protocol::frontend::{BindHead, Execute, Parse, tag};
use crate::protocol::up_to_nul;
use crate::server::{State, Watched};
use crate::stats::registry::{ClientEntry, ServerEntry};
use crate::stats::statements::Sums;

/// The server owes nothing, and this is what the client says: which text stands for it? May be asked again when there is more of it.
#[cold]
pub(super) fn begin(relay: &Relay, server: &mut State, input: &[u8]) {
    let is_first = server.status == TxStatus::Idle;
    let watched = server.watched.get_or_insert_default();
    look(relay, (watched, is_first), input);
}

/// The same, where the batch may be the first of its transaction.
pub(super) fn look(relay: &Relay, (watched, is_first): (&mut Watched, bool), input: &[u8]) {
    watched.begin();
    // What is still to come of a message that is dropped.
    if relay.inbound.is_under_way() {
        return;
    }
    if let Some(tracing) = &relay.settings.tracing {
        trace::begin(relay, tracing, (&mut watched.traced, is_first), input);
    }
    let (mut at, mut is_bound, mut is_parsed) = (0, false, false);
    while let Some(rest) = input.get(at..)
        && let Ok(Some(frame)) = cut(rest, relay.settings.max_packet_size)
    {
        let body = frame.body();
        match frame.tag {
            tag::QUERY if !is_bound => return watched.is_of(up_to_nul(body)),
            tag::FUNCTION_CALL if !is_bound => {
                watched.is_of(b"(FunctionCall)");
                return watched.runs();
            }
            tag::PARSE => {
                let (name, text) = parsed(body);
                if !is_parsed && !is_bound {
                    watched.is_of(text);
                }
                is_parsed = true;
                if !name.is_empty() && !relay.translates() {
                    watched.name(name, text);
                }
            }
            tag::BIND if !is_bound => {
                let Ok(Some(head)) = BindHead::read(body) else {
                    return;
                };
                let before = input.get(..at).filter(|_| is_parsed);
                bound(relay, watched, before.unwrap_or_default(), head.statement);
                if !head.portal.is_empty() {
                    watched.opens(head.portal);
                }
                is_bound = true;
            }
            tag::EXECUTE => {
                if let Ok(execute) = Execute::read(body) {
                    if !is_bound {
                        watched.goes_on(execute.portal);
                    }
                    watched.returns_at_most(execute.max_rows);
                }
                return;
            }
            tag::QUERY | tag::FUNCTION_CALL | tag::SYNC | tag::TERMINATE => return,
            _ => {}
        }
        if !frame.is_complete() {
            return;
        }
        at += frame.len;
    }
}

/// The name and the text of a Parse, or so much of them as is there.
pub(super) fn parsed(body: &[u8]) -> (&[u8], &[u8]) {
    let name = up_to_nul(body);
    let rest = body.get(name.len()..).unwrap_or_default();
    (name, up_to_nul(rest.get(1..).unwrap_or_default()))
}

/// A statement is bound; messages stand before that.
fn bound(relay: &Relay, watched: &mut Watched, before: &[u8], name: &[u8]) {
    let mut at = 0;
    let mut found = None;
    while let Some(rest) = before.get(at..)
        && let Ok(Some(frame)) = cut(rest, relay.settings.max_packet_size)
    {
        let (parsed, text) = parsed(frame.body());
        if frame.tag == tag::PARSE && parsed == name {
            found = Some(text);
        }
        at += frame.len;
    }
    let known = || match relay.statements.get(name) {
        Some(named) => Some(Parse::text(named.statement.0.definition())),
        None if name.is_empty() => {
            let (_, text) = relay.statements.unnamed()?;
            Some(Parse::text(&text.definition))
        }
        None => None,
    };
    match found.or_else(known) {
        Some(text) => watched.is_of(text),
        None => watched.is_of_name(name),
    }
}

/// A query that is over.
pub(super) struct Over<'a> {
    pub(super) context: &'a Context,
    pub(super) client: &'a ClientEntry,
    /// Whose server it had, on which worker.
    pub(super) pool: (&'a Pool, usize),
    pub(super) settings: &'a PoolSettings,
    /// What it has waited for a server, and what it took there, microseconds.
    pub(super) times: (u64, u64),
    /// When its transaction began, if that is over, too.
    pub(super) transaction: Option<u64>,
}

impl Over<'_> {
    /// Logs and counts what is to be.
    #[cold]
    pub(super) fn note(&self, mut watched: Option<&mut Watched>, server: &ServerEntry) {
        let (waited, took) = self.times;
        if took.saturating_add(waited) >= self.settings.slow_after {
            let text = watched
                .as_deref()
                .map(|watched| (watched, self.settings.log_text));
            journal::slow_query(self.context, self.client, self.times, text);
        }
        if let Some(watched) = watched.as_deref_mut()
            && self.settings.tracing.is_some()
        {
            trace::note(self, watched, Some(server));
        }
        let Some(watched) = watched.filter(|watched| watched.counts()) else {
            return;
        };
        let most = self.settings.track_statements;
        if most == 0 {
            return;
        }
        let (pool, worker) = self.pool;
        let registry = &self.context.manager.parts().registry;
        let sums = Sums {
            calls: 1,
            errors: u64::from(watched.has_failed()),
            time: took,
            longest: took,
            wait: waited,
            rows: watched.rows(),
            bytes: watched.bytes(),
            last: self.context.turn(),
        };
        let names = (pool.database.as_str(), pool.user.as_str());
        let statements = &registry.statements;
        statements.note((worker, most), names, watched.text(), &sums);
    }
}
