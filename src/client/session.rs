//! A logged-in client, polled as one state machine: no channel, no allocation and no timer per query.
//!
//! ```text
//!              bytes          a server is free
//!      Idle ──────────┬─────────────────────────▶ Linked ──┐
//!        ▲            │ none is                      ▲     │ both ways,
//!        │            ▼          given one           │     │ message by message
//!        │         Waiting ──────────────▶ Preparing─┘     │
//!        │                   (check, parameters; skipped   │
//!        │                    when there is nothing to do) │
//!        └─────────────────────────────────────────────────┘
//!          the server is proved idle, and outside a transaction
//! ```
//!
//! Any state can end. What a client leaves behind on its server is `drain`'s.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use tokio::time::timeout;

use super::alone::Alone;
use super::error::Ending;
use super::relay::{Linked, Outgoing, Relay};
use super::{Context, Error, drain, prepare};
use crate::config::PoolMode;
use crate::net::{Connection, scratch};
use crate::pool::{Pool, Pooled, Waiter};
use crate::protocol::backend::{self, ErrorMessage, TxStatus};
use crate::protocol::frame::cut;
use crate::protocol::frontend::tag;
use crate::protocol::sqlstate;
use crate::server::Doom;
use crate::stats::registry::{ClientGuard, Orders};
use crate::stats::{Order, Phase, Registry, ServerState};

/// A client that waits is still read, so that its end is noticed; but only so far.
pub(super) const READ_AHEAD: usize = 64 * 1024;

/// How long the last message to a client may take to get off.
const FAREWELL: Duration = Duration::from_secs(1);

type Preparation = Pin<Box<dyn Future<Output = Result<Option<Pooled>, Error>> + Send>>;

enum State {
    Idle,
    Waiting,
    Preparing(Preparation),
    Linked(Pooled),
}

/// What a step of the machine came to.
enum Step {
    /// Something was done; there may be more.
    Again,
    /// Nothing can be done before somebody wakes us.
    Pending,
    /// It goes on, on this worker.
    Move(usize),
    End(Ending),
}

/// How a session leaves its worker.
pub enum Left {
    /// For another one.
    Moved(Box<Session>, usize),
    /// For good.
    Ended(Ending),
}

/// A client's session.
pub struct Session {
    context: Arc<Context>,
    registry: Arc<Registry>,
    connection: Connection,
    entry: ClientGuard,
    pool: Arc<Pool>,
    worker: usize,
    shard: usize,
    relay: Relay,
    waiter: Arc<Waiter>,
    version: u64,
    state: State,
    /// Kept bytes may hold a message that can be dealt with now.
    kept_is_due: bool,
    /// They can't, before there are so many of them.
    kept_wanted: usize,
    /// The queue was entered at this time.
    queued: u64,
    /// The query that runs began at this time; 0: none does.
    query_began: u64,
    transaction_began: u64,
    /// It is to move to this worker as soon as it has no server.
    moves_to: Option<usize>,
}

/// What a session is made of.
pub struct Parts {
    /// Shared by all clients.
    pub context: Arc<Context>,
    /// The client's socket, on this worker.
    pub connection: Connection,
    /// Its place in the live list.
    pub entry: ClientGuard,
    /// Its pool.
    pub pool: Arc<Pool>,
    /// Its statements, parameters and so on.
    pub relay: Relay,
    /// The worker it lives on.
    pub worker: usize,
}

impl Session {
    /// A client that has been told that it is logged in.
    pub fn new(parts: Parts) -> Self {
        Self {
            registry: parts.context.manager.parts().registry.clone(),
            shard: parts.pool.shard_of(parts.worker),
            version: parts.pool.version(),
            kept_wanted: 0,
            kept_is_due: !parts.connection.kept.is_empty(),
            context: parts.context,
            connection: parts.connection,
            entry: parts.entry,
            pool: parts.pool,
            worker: parts.worker,
            relay: parts.relay,
            waiter: Arc::default(),
            state: State::Idle,
            queued: 0,
            query_began: 0,
            transaction_began: 0,
            moves_to: None,
        }
    }

    /// What all clients share.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Serves the client to the end, or until it is to go on elsewhere.
    pub async fn run(mut self: Box<Self>) -> Left {
        let entry = self.entry.clone();
        poll_fn(|cx| {
            entry.register(cx.waker());
            Poll::Ready(())
        })
        .await;
        match poll_fn(|cx| self.poll(cx)).await {
            Way::Moves(worker) => Left::Moved(self, worker),
            Way::Ends(ending) => {
                self.finish(&ending).await;
                Left::Ended(ending)
            }
        }
    }

    /// Takes its socket to the worker that calls this. An error is the end of the client.
    pub fn arrive(mut self: Box<Self>, worker: usize) -> io::Result<Box<Self>> {
        if self.worker != worker {
            self.connection = self.connection.rehome()?;
            self.worker = worker;
        }
        self.shard = self.pool.shard_of(worker);
        Ok(self)
    }

    fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Way> {
        loop {
            if self.entry.has_orders() {
                let orders = self.entry.take_orders();
                if let Some(ending) = self.obey(cx, orders) {
                    return Poll::Ready(Way::Ends(ending));
                }
            }
            let step = match &mut self.state {
                State::Idle => self.poll_idle(cx),
                State::Waiting => self.poll_waiting(cx),
                State::Preparing(future) => match future.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(result) => self.prepared(result),
                },
                State::Linked(_) => self.poll_linked(cx),
            };
            match step {
                Step::Again => {}
                Step::Pending => return Poll::Pending,
                Step::Move(worker) => return Poll::Ready(Way::Moves(worker)),
                Step::End(ending) => return Poll::Ready(Way::Ends(ending)),
            }
        }
    }

    // ---- idle ------------------------------------------------------------------------------

    fn poll_idle(&mut self, cx: &mut TaskContext<'_>) -> Step {
        if let Some(worker) = self.moves_to.take() {
            return Step::Move(worker);
        }
        if self.connection.has_backlog() {
            match self.connection.poll_flush(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Step::End(Ending::Vanished),
                Poll::Pending => return Step::Pending,
            }
        }
        if std::mem::take(&mut self.kept_is_due) {
            let kept = std::mem::take(&mut self.connection.kept);
            let step = self.begin(cx, &kept);
            scratch::give_buffer(kept);
            return step;
        }
        scratch::with(
            |scratch| match self.connection.stream.poll_read(cx, &mut scratch.read) {
                Poll::Pending => Step::Pending,
                Poll::Ready(Ok(0) | Err(_)) => Step::End(Ending::Vanished),
                Poll::Ready(Ok(n)) => {
                    let read = scratch.read.get(..n).unwrap_or_default();
                    if self.connection.kept.is_empty() {
                        return self.begin_with(cx, read, &mut scratch.forward, &mut scratch.back);
                    }
                    self.keep_more(read);
                    Step::Again
                }
            },
        )
    }

    /// More came of what is kept already.
    fn keep_more(&mut self, read: &[u8]) {
        self.connection.keep(read);
        self.kept_is_due = self.connection.kept.len() >= self.kept_wanted;
    }

    /// What is kept now is the beginning of a message: it is not looked at again with every piece of a long one, but
    /// when it is whole, or has doubled.
    fn await_message(&mut self) {
        let kept = &self.connection.kept;
        let whole = match cut(kept, self.relay.settings.max_packet_size) {
            Ok(Some(frame)) => frame.len,
            Ok(None) | Err(_) => 0,
        };
        let waits_for_server = self.relay.fenced;
        self.kept_wanted = if waits_for_server {
            0
        } else {
            whole.min(2 * kept.len())
        };
    }

    fn begin(&mut self, cx: &mut TaskContext<'_>, bytes: &[u8]) -> Step {
        self.begin_with(cx, bytes, &mut Vec::new(), &mut Vec::new())
    }

    /// Bytes came while no server is linked: they are answered here if they need none; else a
    /// server is taken and they are sent on, or kept until there is one.
    fn begin_with(
        &mut self,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
        forward: &mut Vec<u8>,
        back: &mut Vec<u8>,
    ) -> Step {
        let mut answers = Vec::new();
        let alone = self.relay.without_server(bytes, &mut answers);
        if self.connection.send(cx, &answers).is_err() {
            return Step::End(Ending::Vanished);
        }
        let used = match alone {
            Ok(Alone::Server(used)) => used,
            Ok(Alone::Nothing(used)) => {
                self.connection.keep(bytes.get(used..).unwrap_or_default());
                self.await_message();
                return Step::Again;
            }
            Ok(Alone::Terminated) => return Step::End(Ending::Terminated),
            Err(error) => return Step::End(error.into()),
        };
        let bytes = bytes.get(used..).unwrap_or_default();
        let now = self.registry.now();
        self.refresh_settings();
        let Some(pooled) = self.pool.try_lease(self.shard) else {
            self.connection.keep(bytes);
            return self.enqueue(now);
        };
        if let Some(step) = self.link(pooled, now) {
            self.connection.keep(bytes);
            return step;
        }
        self.to_server(cx, bytes, forward, back)
    }

    fn refresh_settings(&mut self) {
        let version = self.pool.version();
        if version != self.version {
            self.version = version;
            self.relay.settings = self.pool.settings();
            self.shard = self.pool.shard_of(self.worker);
        }
    }

    // ---- waiting ---------------------------------------------------------------------------

    fn enqueue(&mut self, now: u64) -> Step {
        if self.context.has_ended_waiting() {
            return Step::End(Error::ServerShuttingDown.into());
        }
        if self.pool.is_removed() {
            return Step::End(Error::DatabaseRemoved.into());
        }
        if let Some(error) = self.pool.cached_error() {
            return Step::End(error.into());
        }
        self.queued = now;
        self.entry.clear_notified();
        self.entry.request_begins(self.queued);
        self.entry.enter(Phase::Waiting, self.queued);
        self.state = State::Waiting;
        self.pool.enqueue(self.shard, &self.waiter, self.queued);
        Step::Again
    }

    fn poll_waiting(&mut self, cx: &mut TaskContext<'_>) -> Step {
        match self.waiter.poll(cx) {
            Poll::Ready(Err(error)) => {
                self.state = State::Idle;
                return Step::End(error.into());
            }
            Poll::Ready(Ok(pooled)) => {
                self.state = State::Idle;
                let Ok(pooled) = pooled.rehomed(self.worker) else {
                    return self.enqueue(self.registry.now());
                };
                let now = self.registry.now();
                if let Some(counters) = self.pool.counters(self.worker) {
                    counters.wait_time.add(now.saturating_sub(self.queued));
                }
                self.kept_is_due = true;
                return self.link(pooled, now).unwrap_or(Step::Again);
            }
            Poll::Pending => {}
        }
        if self.connection.kept.len() >= READ_AHEAD {
            return Step::Pending;
        }
        scratch::with(
            |scratch| match self.connection.stream.poll_read(cx, &mut scratch.read) {
                Poll::Pending => Step::Pending,
                Poll::Ready(Ok(0) | Err(_)) => Step::End(Ending::Vanished),
                Poll::Ready(Ok(n)) => {
                    self.connection
                        .keep(scratch.read.get(..n).unwrap_or_default());
                    Step::Again
                }
            },
        )
    }

    // ---- linking ---------------------------------------------------------------------------

    /// Takes a server. `None`: it is ready for the client's bytes. Else it is being made ready.
    fn link(&mut self, pooled: Pooled, now: u64) -> Option<Step> {
        let Ok(mut pooled) = pooled.rehomed(self.worker) else {
            return Some(self.enqueue(now));
        };
        pooled.server.served = true;
        let server = &pooled.server;
        self.entry.request_begins(now);
        self.entry.enter(Phase::Active, now);
        self.entry.set_transaction(now);
        (self.query_began, self.transaction_began) = (now, now);
        let idle = Duration::from_micros(now.saturating_sub(server.idle_since));
        let check = prepare::needs_check(&pooled, &self.relay.settings, idle);
        if !check && self.relay.tracked.same_as(&server.state.tracked) {
            self.linked(pooled, now);
            return None;
        }
        // It is not the client's yet: a cancel request of the client's must not hit what we do.
        server.entry.set_state(ServerState::Tested);
        let (settings, wanted) = (self.relay.settings.clone(), self.relay.tracked.clone());
        self.state = State::Preparing(Box::pin(async move {
            let mut pooled = Some(pooled);
            if check && let (Some(checked), Some(query)) = (pooled.take(), &settings.check_query) {
                pooled = prepare::check(checked, query).await;
            }
            match pooled {
                Some(pooled) => prepare::adopt(pooled, &wanted).await.map(Some),
                None => Ok(None),
            }
        }));
        self.kept_is_due = true;
        Some(Step::Again)
    }

    /// The server is the client's.
    #[inline]
    fn linked(&mut self, pooled: Pooled, now: u64) {
        pooled.server.entry.link(self.entry.id, now);
        self.entry.set_server(pooled.server.entry.id);
        if let Some(counters) = self.pool.counters(self.worker) {
            counters.server_assignments.add(1);
            counters.transactions.add(1);
            counters.queries.add(1);
        }
        self.state = State::Linked(pooled);
    }

    fn prepared(&mut self, result: Result<Option<Pooled>, Error>) -> Step {
        self.state = State::Idle;
        match result {
            Ok(Some(pooled)) => {
                self.adopt_spelling(&pooled);
                self.linked(pooled, self.registry.now());
                Step::Again
            }
            // It was dead: the next one, please.
            Ok(None) => match self.pool.try_lease(self.shard) {
                Some(pooled) => self
                    .link(pooled, self.registry.now())
                    .unwrap_or(Step::Again),
                None => self.enqueue(self.registry.now()),
            },
            Err(error) => Step::End(error.into()),
        }
    }

    /// The client's values are the server's now, to the letter; the client is told where the letters differ.
    fn adopt_spelling(&mut self, pooled: &Pooled) {
        let mut told = Vec::new();
        let before = self.relay.tracked.clone();
        for (name, value) in pooled.server.state.tracked.iter() {
            let known = before
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value);
            if known.is_some_and(|known| known != value) {
                backend::parameter_status(&mut told, name.as_bytes(), value);
                self.relay.tracked.set(name.as_bytes(), value);
            }
        }
        self.connection.queue(&told);
    }

    // ---- linked ----------------------------------------------------------------------------

    fn poll_linked(&mut self, cx: &mut TaskContext<'_>) -> Step {
        let mut again = false;
        match self.poll_from_server(cx) {
            Step::Pending => {}
            Step::Again if matches!(self.state, State::Linked(_)) => again = true,
            step => return step,
        }
        match self.poll_from_client(cx) {
            Step::Pending if again => Step::Again,
            step => step,
        }
    }

    /// Server to client.
    fn poll_from_server(&mut self, cx: &mut TaskContext<'_>) -> Step {
        if self.connection.has_backlog() {
            match self.connection.poll_flush(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Step::End(Ending::Vanished),
                // The server is not read while the client does not take what it has sent.
                Poll::Pending => return Step::Pending,
            }
        }
        scratch::with(|scratch| {
            let State::Linked(pooled) = &mut self.state else {
                return Step::Again;
            };
            let connection = &mut pooled.server.connection;
            match connection.stream.poll_read(cx, &mut scratch.read) {
                Poll::Pending => Step::Pending,
                Poll::Ready(Ok(0) | Err(_)) => self.server_failed(),
                Poll::Ready(Ok(n)) => {
                    let read = scratch.read.get(..n).unwrap_or_default();
                    if connection.kept.is_empty() {
                        return self.to_client(cx, read, &mut scratch.forward);
                    }
                    let mut input = std::mem::take(&mut connection.kept);
                    input.extend_from_slice(read);
                    self.to_client(cx, &input, &mut scratch.forward)
                }
            }
        })
    }

    fn to_client(&mut self, cx: &mut TaskContext<'_>, input: &[u8], buffer: &mut Vec<u8>) -> Step {
        let State::Linked(pooled) = &mut self.state else {
            return Step::Again;
        };
        let Some(counters) = self.pool.counters(self.worker) else {
            return Step::Again;
        };
        let server = &mut pooled.server;
        let mut linked = Linked {
            server: &mut server.state,
            entry: &server.entry,
            counters,
        };
        let mut out = Outgoing::new(input, buffer);
        let result = self.relay.from_server(&mut linked, input, &mut out);
        let used = result.as_ref().copied().unwrap_or(input.len());
        counters.sent.add(used as u64);
        let sent = self.connection.send(cx, out.finish());
        match result {
            Ok(used) => server
                .connection
                .keep(input.get(used..).unwrap_or_default()),
            Err(desync) => {
                tracing::error!(server = server.entry.id, "{desync}");
                server.state.doom = Some(Doom::Desync);
                return Step::End(Error::ServerCrashed.into());
            }
        }
        if sent.is_err() {
            return Step::End(Ending::Vanished);
        }
        if self.relay.is_refused {
            return Step::End(Error::TransactionBlock.into());
        }
        if !self.relay.own.is_empty() {
            let own = std::mem::take(&mut self.relay.own);
            if server.connection.send(cx, &own).is_err() {
                return self.server_failed();
            }
        }
        self.kept_is_due |= !self.connection.kept.is_empty();
        if server.state.pipeline.is_idle() {
            self.server_is_idle()
        } else {
            Step::Again
        }
    }

    /// The server owes nothing: the query is over, and perhaps the link.
    fn server_is_idle(&mut self) -> Step {
        let State::Linked(pooled) = &mut self.state else {
            return Step::Again;
        };
        let status = pooled.server.state.status;
        let mode = self.relay.settings.mode;
        let now = self.registry.now();
        if let Some(counters) = self.pool.counters(self.worker) {
            if self.query_began > 0 {
                counters
                    .query_time
                    .add(now.saturating_sub(self.query_began));
            }
            if status == TxStatus::Idle && self.transaction_began > 0 {
                counters
                    .transaction_time
                    .add(now.saturating_sub(self.transaction_began));
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
        if clean && mode != PoolMode::Session && self.relay.settings.resets_on_release().is_none() {
            self.release(now);
        } else if clean && mode != PoolMode::Session {
            self.release_after_reset(now);
        } else {
            let phase = if status == TxStatus::Idle {
                Phase::LinkedIdle
            } else {
                Phase::IdleInTransaction
            };
            self.entry.enter(phase, now);
        }
        Step::Again
    }

    fn release(&mut self, now: u64) {
        let State::Linked(pooled) = std::mem::replace(&mut self.state, State::Idle) else {
            return;
        };
        self.note_statements(&pooled);
        self.entry.set_server(0);
        self.entry.enter(Phase::Idle, now);
        self.relay.unlink();
        self.pool.check_in_at(self.shard, pooled, now);
    }

    /// `server_reset_query_always`: the server is given back by a task of its own.
    fn release_after_reset(&mut self, now: u64) {
        let State::Linked(mut pooled) = std::mem::replace(&mut self.state, State::Idle) else {
            return;
        };
        self.entry.set_server(0);
        self.entry.enter(Phase::Idle, now);
        self.relay.unlink();
        let (pool, shard, settings) = (self.pool.clone(), self.shard, self.relay.settings.clone());
        self.pool.workers().spawn_on(self.worker, async move {
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

    /// Client to server.
    fn poll_from_client(&mut self, cx: &mut TaskContext<'_>) -> Step {
        let State::Linked(pooled) = &mut self.state else {
            return Step::Again;
        };
        if pooled.server.connection.has_backlog() {
            match pooled.server.connection.poll_flush(cx) {
                Poll::Ready(Ok(())) if pooled.server.state.pipeline.is_idle() => {
                    return self.server_is_idle();
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return self.server_failed(),
                // The client is not read while the server does not take what it has sent.
                Poll::Pending => return Step::Pending,
            }
        }
        if std::mem::take(&mut self.kept_is_due) && !self.connection.kept.is_empty() {
            let kept = std::mem::take(&mut self.connection.kept);
            let step = scratch::with(|scratch| {
                self.to_server(cx, &kept, &mut scratch.forward, &mut scratch.back)
            });
            scratch::give_buffer(kept);
            return step;
        }
        if self.relay.fenced && self.connection.kept.len() >= READ_AHEAD {
            return Step::Pending;
        }
        if self.connection.backlog() >= READ_AHEAD {
            // It does not take its answers, and it would get more of them from us.
            return Step::Pending;
        }
        scratch::with(
            |scratch| match self.connection.stream.poll_read(cx, &mut scratch.read) {
                Poll::Pending => Step::Pending,
                Poll::Ready(Ok(0) | Err(_)) => Step::End(Ending::Vanished),
                Poll::Ready(Ok(n)) => {
                    let read = scratch.read.get(..n).unwrap_or_default();
                    if self.connection.kept.is_empty() {
                        return self.to_server(cx, read, &mut scratch.forward, &mut scratch.back);
                    }
                    self.keep_more(read);
                    Step::Again
                }
            },
        )
    }

    fn to_server(
        &mut self,
        cx: &mut TaskContext<'_>,
        input: &[u8],
        forward: &mut Vec<u8>,
        back: &mut Vec<u8>,
    ) -> Step {
        let State::Linked(pooled) = &mut self.state else {
            return Step::Again;
        };
        let Some(counters) = self.pool.counters(self.worker) else {
            return Step::Again;
        };
        let server = &mut pooled.server;
        let was_idle = server.state.pipeline.is_idle();
        let mut linked = Linked {
            server: &mut server.state,
            entry: &server.entry,
            counters,
        };
        let mut out = Outgoing::new(input, forward);
        let result = self.relay.from_client(&mut linked, input, &mut out);
        let mut answers = Outgoing::new(&[], back);
        self.relay.answer(&mut linked, &mut answers);
        let sent = server.connection.send(cx, out.finish());
        let used = match result {
            Ok(used) => used,
            Err(error) => return Step::End(error.into()),
        };
        counters.received.add(used as u64);
        let stays = input.get(used..).unwrap_or_default();
        if !stays.is_empty() {
            // Bytes that came first stay first.
            let later = std::mem::take(&mut self.connection.kept);
            self.connection.keep(stays);
            self.connection.keep(&later);
        }
        let (idle, leaves) = (server.state.pipeline.is_idle(), !stays.is_empty());
        if leaves {
            self.await_message();
        }
        if self.connection.send(cx, answers.finish()).is_err() {
            return Step::End(Ending::Vanished);
        }
        if sent.is_err() {
            return self.server_failed();
        }
        if self.relay.terminated {
            return Step::End(Ending::Terminated);
        }
        if idle {
            // All that came was answered here, or dropped, or was the rest of something that is over.
            return self.server_is_idle();
        }
        if was_idle && !idle && self.query_began == 0 {
            self.query_begins();
        }
        Step::Again
    }

    /// Another query on the same link.
    fn query_begins(&mut self) {
        let now = self.registry.now();
        self.query_began = now;
        self.entry.request_begins(now);
        self.entry.enter(Phase::Active, now);
        let Some(counters) = self.pool.counters(self.worker) else {
            return;
        };
        counters.queries.add(1);
        if self.transaction_began == 0 {
            self.transaction_began = now;
            self.entry.set_transaction(now);
            counters.transactions.add(1);
        }
    }

    /// The server's connection is broken.
    fn server_failed(&mut self) -> Step {
        let State::Linked(pooled) = &mut self.state else {
            return Step::Again;
        };
        match pooled.server.state.doom.get_or_insert(Doom::Failed) {
            Doom::Ended => Step::End(Ending::ServerEnded),
            Doom::Desync | Doom::ClientLeft | Doom::Failed | Doom::CheckFailed => {
                Step::End(Error::ServerCrashed.into())
            }
        }
    }

    // ---- orders ----------------------------------------------------------------------------

    fn obey(&mut self, cx: &mut TaskContext<'_>, orders: Orders) -> Option<Ending> {
        let phase = self.entry.phase();
        // An order may come late: the time it was given for must not be over.
        let (ordered_for, since) = (self.entry.ordered_for(), self.entry.since());
        let in_time = since == ordered_for;
        let ends: [PossibleEnd; 9] = [
            (Order::AdminDisconnect, true, || Error::AdminDisconnect),
            (Order::DatabaseRemoved, true, || Error::DatabaseRemoved),
            (
                Order::QueryTimeout,
                in_time && phase == Phase::Active,
                || Error::QueryTimeout,
            ),
            (
                Order::QueryTimeoutWaiting,
                in_time && phase == Phase::Waiting,
                || Error::QueryTimeoutWaiting,
            ),
            (
                Order::QueryWaitTimeout,
                in_time && phase == Phase::Waiting,
                || crate::pool::WaitError::Timeout.into(),
            ),
            (
                Order::ClientIdleTimeout,
                in_time && phase == Phase::Idle,
                || Error::IdleTimeout,
            ),
            (
                Order::IdleTransactionTimeout,
                in_time && phase == Phase::IdleInTransaction,
                || Error::IdleTransactionTimeout,
            ),
            (
                Order::TransactionTimeout,
                self.transaction_began > 0 && self.transaction_began == ordered_for,
                || Error::TransactionTimeout,
            ),
            (Order::ShuttingDown, phase == Phase::Waiting, || {
                Error::ServerShuttingDown
            }),
        ];
        for (order, still_so, error) in ends {
            if orders.has(order) && still_so {
                return Some(error().into());
            }
        }
        if orders.has(Order::NotifyWaiting) && phase == Phase::Waiting && self.entry.notify_once() {
            let mut out = Vec::new();
            let text = "No server connection available in postgres backend, client being queued";
            backend::notice_response(&mut out, &ErrorMessage::new("NOTICE", "00000", text));
            self.connection.send(cx, &out).ok()?;
        }
        if orders.has(Order::Move) {
            self.moves_to = Some(self.entry.goal()).filter(|&goal| goal != self.worker);
        }
        if orders.has(Order::CancelWaiting) && phase == Phase::Waiting {
            self.cancel_waiting(cx);
        }
        None
    }

    /// A queued query is cancelled: it is taken out of what was kept and answered here.
    fn cancel_waiting(&mut self, cx: &mut TaskContext<'_>) {
        let mut at = 0;
        loop {
            let rest = self.connection.kept.get(at..).unwrap_or_default();
            let Ok(Some(frame)) = cut(rest, self.relay.settings.max_packet_size) else {
                return;
            };
            if !frame.is_complete() {
                return;
            }
            at += frame.len;
            if matches!(frame.tag, tag::QUERY | tag::SYNC | tag::FUNCTION_CALL) {
                break;
            }
        }
        self.pool.leave(self.shard, &self.waiter);
        self.connection.use_kept(at);
        self.kept_is_due = !self.connection.kept.is_empty();
        self.state = State::Idle;
        self.entry.enter(Phase::Idle, self.registry.now());
        let mut out = Vec::new();
        let text = "canceling statement due to user request";
        backend::error_response(
            &mut out,
            &ErrorMessage::new("ERROR", sqlstate::QUERY_CANCELED, text),
        );
        backend::ready_for_query(&mut out, TxStatus::Idle);
        // A failure shows at the next read.
        let _ = self.connection.send(cx, &out);
    }

    // ---- the end ---------------------------------------------------------------------------

    /// Tells the client, lets it go, and sees to the server it leaves.
    async fn finish(mut self: Box<Self>, ending: &Ending) {
        if matches!(self.state, State::Waiting) {
            self.pool.leave(self.shard, &self.waiter);
        }
        if let Ending::Error(error) = ending {
            if let Some(counters) = self.pool.counters(self.worker) {
                counters.pooler_errors.add(1);
            }
            let mut out = Vec::new();
            error.encode(&mut out);
            // In the middle of a message it would be taken for the rest of it. And the client may not listen any more; then
            // there is nothing more to say.
            if !self.relay.owes_rest() {
                let _ = timeout(FAREWELL, self.connection.send_all(&out)).await;
            }
        }
        let State::Linked(mut pooled) = self.state else {
            return;
        };
        // The client must see its connection end before, not after, its server is clean.
        drop(self.connection);
        self.entry.enter(Phase::Draining, self.registry.now());
        let whole = pooled.server.is_clean() && !self.relay.is_mid_message();
        if !whole {
            let orderly = matches!(ending, Ending::Terminated);
            drain::bring_back(&mut pooled, &mut self.relay, orderly).await;
        }
        if pooled.server.is_clean()
            && let Some(query) = self.relay.settings.resets_on_release()
        {
            prepare::reset(&mut pooled, query).await;
        }
        self.entry.set_server(0);
        self.pool.check_in(self.shard, pooled);
    }
}

/// How the machine stops.
enum Way {
    Moves(usize),
    Ends(Ending),
}

/// An order, whether what it is for is still so, and the error it leads to.
type PossibleEnd = (Order, bool, fn() -> Error);
