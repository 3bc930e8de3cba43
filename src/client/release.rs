//! The end of a transaction: the server goes back to its pool, at once if nothing speaks against it.
//!
//! ```text
//!              nothing touched the session
//!      Linked ──────────────────────────────▶ Idle
//!        ▲  │ something may have                ▲
//!        │  ▼                                   │ nothing that can't move
//!        │ Looking ─────────────────────────────┘
//!        │  │ temporary tables, locks, ...
//!        └──┘ (pinned)
//! ```

use std::sync::Arc;

use super::channels::{self, Settled};
use super::session::{Session, State, Step};
use super::watch::Over;
use super::{Error, prepare};
use crate::config::{PinPolicy, PoolMode};
use crate::pool::Pooled;
use crate::protocol::backend::TxStatus;
use crate::server;
use crate::server::look::Seen;
use crate::sql::touches::Touches;
use crate::stats::Phase;
use crate::stats::histogram::Bucket;
use crate::stats::registry::PinInfo;

/// A server that was looked at, and what was found.
pub struct Looked {
    /// The server.
    pub pooled: Pooled,
    /// What there is on it.
    pub seen: Result<Seen, server::Error>,
    /// The client's channels, and what it is told.
    pub settled: Settled,
}

impl Session {
    /// The server owes nothing: the query is over, and perhaps the link.
    pub(super) fn server_is_idle(&mut self) -> Step {
        let State::Linked(pooled) = &mut self.state else {
            return Step::Again;
        };
        let status = pooled.server.state.status;
        let mode = self.relay.settings.mode;
        let now = self.context.turn();
        if let Some(counters) = self.pool.counters(self.home.worker()) {
            let mut took = None;
            if self.query_began > 0 {
                let elapsed = now.saturating_sub(self.query_began);
                let bucket = Bucket::of(elapsed);
                counters.query_time.add(elapsed);
                counters.times().query.count(bucket);
                took = Some((self.query_began, bucket));
                let waited = u64::from(std::mem::take(&mut self.waited)) * 1000;
                if elapsed.saturating_add(waited) >= self.relay.settings.judge_after {
                    let over = Over {
                        context: &self.context,
                        client: &self.entry,
                        pool: (&self.pool, self.home.worker()),
                        settings: &self.relay.settings,
                        times: (waited, elapsed),
                        transaction: (status == TxStatus::Idle).then_some(self.transaction_began),
                    };
                    let server = &mut pooled.server;
                    over.note(server.state.watched.as_deref_mut(), &server.entry);
                }
            }
            if status == TxStatus::Idle && self.transaction_began > 0 {
                let elapsed = now.saturating_sub(self.transaction_began);
                // Mostly it was that query.
                let same = took.filter(|(began, _)| *began == self.transaction_began);
                let bucket = same.map_or_else(|| Bucket::of(elapsed), |(_, bucket)| bucket);
                counters.transaction_time.add(elapsed);
                counters.times().transaction.count(bucket);
            }
        }
        self.query_began = 0;
        if status == TxStatus::Idle {
            self.transaction_began = 0;
            self.entry.set_transaction(0);
        } else if mode == PoolMode::Statement {
            return Step::End(Error::TransactionBlock.into());
        }
        let clean =
            pooled.server.is_clean() && !self.relay.is_mid_message() && !self.relay.terminated;
        if clean && mode != PoolMode::Session {
            return if self.relay.belongings.is_none() {
                self.let_go(now);
                Step::Again
            } else {
                self.end_transaction(now)
            };
        }
        let phase = if status == TxStatus::Idle {
            Phase::LinkedIdle
        } else {
            Phase::IdleInTransaction
        };
        self.entry.enter(phase, now);
        Step::Again
    }

    /// The end of a transaction of a client that has made something of its session.
    #[cold]
    fn end_transaction(&mut self, now: u64) -> Step {
        let Some(belongings) = &self.relay.belongings else {
            return Step::Again;
        };
        if !belongings.must_look() {
            let holds = belongings.holds();
            if holds.is_empty() {
                self.let_go(now);
            } else if belongings.pin.is_none() {
                // Nothing was to be looked for: it has drawn from sequences.
                return self.keep(holds, now);
            } else {
                self.entry.enter(Phase::LinkedIdle, now);
            }
            return Step::Again;
        }
        let State::Linked(pooled) = std::mem::replace(&mut self.state, State::Idle) else {
            return Step::Again;
        };
        self.entry.enter(Phase::LinkedIdle, now);
        let (login, mut names) = (self.pool.user.clone(), belongings.names().to_vec());
        names.extend(self.relay.mark());
        let (client, channels) = (Arc::clone(&self.entry), self.relay.channels.take());
        let (at_login, goes_back) = (self.relay.at_login.clone(), belongings.goes_back());
        self.state = State::Looking(Box::pin(async move {
            let mut pooled = pooled;
            let mut seen = prepare::look(&mut pooled, &login, &names).await;
            if let Ok(found) = &seen
                && let Err(error) = prepare::go_back(&mut pooled, &at_login, found).await
            {
                seen = Err(error);
            }
            let mut told = Vec::new();
            if let (Ok(found), Some(goes_back)) = (&mut seen, goes_back) {
                match goes_back.run(&mut pooled, found).await {
                    Ok(now) => told = now,
                    Err(error) => seen = Err(error),
                }
            }
            let mut settled = Settled::default();
            match &mut seen {
                Ok(found) => match channels::settle(&mut pooled, found, channels, &client).await {
                    Ok(now) => settled = now,
                    Err(error) => seen = Err(error),
                },
                Err(_) => settled.channels = channels,
            }
            settled.told.extend_from_slice(&told);
            Looked {
                pooled,
                seen,
                settled,
            }
        }));
        self.kept_is_due = true;
        Step::Again
    }

    /// The server was looked at.
    pub(super) fn looked(&mut self, looked: Looked) -> Step {
        let (mut pooled, seen) = (looked.pooled, looked.seen);
        let now = self.context.turn();
        self.relay.channels = looked.settled.channels;
        self.connection.queue(&looked.settled.told);
        self.state = State::Idle;
        let heard = std::mem::take(&mut pooled.server.state.heard);
        self.connection.queue(&heard);
        let Some(belongings) = &mut self.relay.belongings else {
            return Step::End(Error::ServerCrashed.into());
        };
        match seen {
            Ok(seen) => {
                belongings.saw(&seen);
                pooled.server.state.overlay = seen.overlay;
            }
            Err(server::Error::Query(text)) => {
                tracing::debug!(server = pooled.server.entry.id, "a look is refused: {text}");
                belongings.saw_nothing();
            }
            Err(_) => {
                pooled.close("server conn crashed?");
                return Step::End(Error::ServerCrashed.into());
            }
        }
        let holds = belongings.holds();
        if belongings.is_gone(&pooled.server.state.base) {
            self.relay.belongings = None;
        }
        self.adopt_spelling(&pooled);
        self.relay.learn_context();
        self.state = State::Linked(pooled);
        if holds.is_empty() {
            if let Some(belongings) = &mut self.relay.belongings {
                belongings.pin = None;
            }
            self.let_go(now);
            return Step::Again;
        }
        self.keep(holds, now)
    }

    /// The client keeps its server, if it may.
    fn keep(&mut self, holds: Touches, now: u64) -> Step {
        let (State::Linked(pooled), Some(belongings)) = (&self.state, &mut self.relay.belongings)
        else {
            return Step::Again;
        };
        let settings = &self.relay.settings;
        if settings.pin_policy == PinPolicy::Refuse {
            return Step::End(Error::PinRefused(holds).into());
        }
        pooled.server.entry.link(self.entry.id, now);
        self.entry.enter(Phase::LinkedIdle, now);
        let info = PinInfo {
            holds,
            since: now,
            server: pooled.server.entry.id,
            text: belongings.text(),
        };
        if let Some(pin) = &belongings.pin {
            pin.change(info);
            return Step::Again;
        }
        let limit = settings.max_pinned;
        let pinned = self.pool.pinned();
        let pin = self.context.manager.parts().registry.pin(
            Arc::clone(&self.entry),
            Arc::clone(pinned),
            info,
        );
        if limit > 0 && pin.count() > limit {
            drop(pin);
            if belongings.give_up_sequences() {
                // PostgreSQL will say so if the client asks.
                if belongings.is_gone(&pooled.server.state.base) {
                    self.relay.belongings = None;
                }
                self.let_go(now);
                return Step::Again;
            }
            return Step::End(Error::TooManyPinned(holds).into());
        }
        if let Some(counters) = self.pool.counters(self.home.worker()) {
            counters.pins.add(1);
        }
        tracing::info!(
            client = self.entry.id,
            server = pooled.server.entry.id,
            "keeps its server: {holds}"
        );
        belongings.pin = Some(pin);
        Step::Again
    }

    /// The server goes back to the pool.
    #[inline]
    fn let_go(&mut self, now: u64) {
        if self.relay.settings.resets_on_release().is_none() {
            self.release(now);
        } else {
            self.release_after_reset(now);
        }
    }

    fn release(&mut self, now: u64) {
        let State::Linked(pooled) = std::mem::replace(&mut self.state, State::Idle) else {
            return;
        };
        self.note_statements(&pooled);
        self.entry.set_server(0);
        self.entry.enter(Phase::Idle, now);
        self.relay.unlink();
        self.pool.check_in_at(self.home.shard(), pooled, now);
    }

    /// `server_reset_query_always`: the server is given back by a task of its own.
    #[cold]
    #[inline(never)]
    fn release_after_reset(&mut self, now: u64) {
        let State::Linked(mut pooled) = std::mem::replace(&mut self.state, State::Idle) else {
            return;
        };
        self.entry.set_server(0);
        self.entry.enter(Phase::Idle, now);
        self.relay.unlink();
        let (pool, shard, settings) = (
            self.pool.clone(),
            self.home.shard(),
            self.relay.settings.clone(),
        );
        self.pool
            .workers()
            .spawn_on(self.home.worker(), async move {
                if let Some(query) = settings.resets_on_release() {
                    prepare::reset(&mut pooled, query).await;
                }
                pool.check_in(shard, pooled);
            });
    }

    fn note_statements(&self, pooled: &Pooled) {
        let count = u32::try_from(self.relay.statements.count()).unwrap_or(u32::MAX);
        self.entry
            .prepared_statements
            .store(count, std::sync::atomic::Ordering::Relaxed);
        let count = u32::try_from(pooled.server.state.statements.len()).unwrap_or(u32::MAX);
        pooled
            .server
            .entry
            .prepared_statements
            .store(count, std::sync::atomic::Ordering::Relaxed);
    }
}
