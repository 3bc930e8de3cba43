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

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use tokio::time::timeout;

use super::alone::Alone;
use super::error::Ending;
use super::home::Home;
use super::parting::Seen;
use super::relay::Relay;
use super::release::Looked;
use super::watch::Over;
use super::{Context, Error, drain, parting, prepare, trace};
use crate::net::Connection;
use crate::net::scratch::{self, Scratch};
use crate::pool::{Pool, Pooled, Waiter};
use crate::protocol::backend;
use crate::protocol::frame::cut;
use crate::stats::registry::{ClientEntry, ClientGuard};
use crate::stats::{Order, Phase, ServerState};

/// A client that waits is still read, so that its end is noticed; but only so far.
pub(super) const READ_AHEAD: usize = 64 * 1024;

/// How long the last message to a client may take to get off.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

type Preparation = Pin<Box<dyn Future<Output = Result<Option<Pooled>, Error>> + Send>>;

type Look = Pin<Box<dyn Future<Output = Looked> + Send>>;

pub(super) enum State {
    Idle,
    Waiting,
    Preparing(Preparation),
    Looking(Look),
    Linked(Pooled),
}

/// What is done with bytes that the client has sent; the buffers are the thread's.
type DealWith = fn(&mut Session, &mut TaskContext<'_>, &[u8], (&mut Vec<u8>, &mut Vec<u8>)) -> Step;

/// What a step of the machine came to.
pub(super) enum Step {
    /// Something was done; there may be more.
    Again,
    /// Nothing can be done before somebody wakes us.
    Pending,
    /// It goes on, on this worker.
    Move(usize),
    End(Ending),
}

/// A client's session.
pub struct Session {
    pub(super) context: Arc<Context>,
    pub(super) connection: Connection,
    pub(super) entry: ClientGuard,
    pub(super) pool: Arc<Pool>,
    pub(super) home: Home,
    pub(super) relay: Relay,
    /// Made when it waits for the first time.
    pub(super) waiter: Option<Arc<Waiter>>,
    pub(super) version: u64,
    pub(super) state: State,
    /// Kept bytes may hold a message that can be dealt with now.
    pub(super) kept_is_due: bool,
    /// They can't, before there are so many of them.
    pub(super) kept_wanted: u32,
    /// The query that runs began at this time; 0: none does.
    pub(super) query_began: u64,
    pub(super) transaction_began: u64,
    /// What the query that runs has waited for a server before, in milliseconds; a minute or more is as much as that. (There is
    /// no room for more.)
    pub(super) waited: u16,
    /// It is to move to its [goal](ClientEntry::goal) as soon as it has no server.
    pub(super) moves: bool,
    /// What it did last, if it is about to be sent away.
    pub(super) seen: Seen,
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
        let home = Home::of(&parts.pool, parts.worker);
        let cancel_pid = parts.entry.cancel_pid;
        Self {
            version: parts.pool.version(),
            kept_wanted: 0,
            kept_is_due: !parts.connection.kept.is_empty(),
            context: parts.context,
            connection: parts.connection,
            entry: parts.entry,
            pool: parts.pool,
            home,
            relay: Relay {
                cancel_pid,
                ..parts.relay
            },
            waiter: None,
            state: State::Idle,
            query_began: 0,
            transaction_began: 0,
            waited: 0,
            moves: false,
            seen: Seen::default(),
        }
    }

    /// What all clients share.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its place in the live list.
    pub fn entry(&self) -> &Arc<ClientEntry> {
        &self.entry
    }

    /// Takes its socket to the worker that calls this. An error is the end of the client.
    pub fn arrive(mut self: Box<Self>, worker: usize) -> io::Result<Box<Self>> {
        if self.home.worker() != worker {
            self.connection = self.connection.rehome()?;
        }
        self.home = Home::of(&self.pool, worker);
        Ok(self)
    }

    /// Serves the client to the end, or until it is to go on elsewhere. The waker must be the one that the entry knows.
    pub fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Way> {
        let way = ready!(self.serve(cx));
        if matches!(way, Way::Moves(_)) {
            self.connection.stream.settle();
        }
        Poll::Ready(way)
    }

    fn serve(&mut self, cx: &mut TaskContext<'_>) -> Poll<Way> {
        loop {
            if self.entry.has_orders() {
                let orders = self.entry.take_orders();
                if let Some(ending) = self.obey(cx, orders) {
                    return Poll::Ready(Way::Ends(ending));
                }
                if orders.has(Order::GoOver) && self.context.exit().is_some() {
                    if self.may_go_over() {
                        return Poll::Ready(Way::GoesOver);
                    }
                    self.entry.keep_order(Order::GoOver);
                }
                if orders.has(Order::Suspend) && self.is_at_rest() {
                    self.entry.rest();
                    return Poll::Pending;
                }
            }
            let step = if matches!(self.state, State::Preparing(_) | State::Looking(_)) {
                // Not with the buffers of the thread in hand: it uses them itself.
                ready!(self.poll_future(cx))
            } else {
                scratch::with(|scratch| self.poll_steps(cx, scratch))
            };
            match step {
                Step::Again => {}
                Step::Pending => return Poll::Pending,
                Step::Move(worker) => return Poll::Ready(Way::Moves(worker)),
                Step::End(ending) => return Poll::Ready(Way::Ends(ending)),
            }
        }
    }

    #[inline(never)]
    fn poll_future(&mut self, cx: &mut TaskContext<'_>) -> Poll<Step> {
        Poll::Ready(match &mut self.state {
            State::Preparing(future) => {
                let result = ready!(future.as_mut().poll(cx));
                self.prepared(result)
            }
            State::Looking(future) => {
                let looked = ready!(future.as_mut().poll(cx));
                self.looked(looked)
            }
            State::Idle | State::Waiting | State::Linked(_) => Step::Again,
        })
    }

    /// Goes on until nothing more can be done at once, or something else is to be done first.
    #[inline(never)]
    fn poll_steps(&mut self, cx: &mut TaskContext<'_>, scratch: &mut Scratch) -> Step {
        loop {
            let step = match &mut self.state {
                State::Idle => self.poll_idle(cx, scratch),
                State::Waiting => self.poll_waiting(cx, scratch),
                State::Preparing(_) | State::Looking(_) => return Step::Again,
                State::Linked(_) => self.poll_linked(cx, scratch),
            };
            match step {
                Step::Again if !self.entry.has_orders() => {}
                step => return step,
            }
        }
    }

    // ---- idle ------------------------------------------------------------------------------

    fn poll_idle(&mut self, cx: &mut TaskContext<'_>, scratch: &mut Scratch) -> Step {
        if std::mem::take(&mut self.moves) {
            return Step::Move(self.entry.goal());
        }
        if let Some(step) = self.flush_client(cx) {
            return step;
        }
        if let Some(step) = self.use_kept(cx, scratch, Self::begin) {
            return step;
        }
        self.read_client(cx, scratch, Self::begin)
    }

    /// Sends what the client has not taken yet. `Some`: it takes no more now, or is gone.
    #[inline]
    pub(super) fn flush_client(&mut self, cx: &mut TaskContext<'_>) -> Option<Step> {
        if !self.connection.has_backlog() {
            return None;
        }
        match self.connection.poll_flush(cx) {
            Poll::Ready(Ok(())) => None,
            Poll::Ready(Err(_)) => Some(Step::End(Ending::Vanished)),
            Poll::Pending => Some(Step::Pending),
        }
    }

    /// Uses what the client sent before, if it can be dealt with now.
    #[inline]
    pub(super) fn use_kept(
        &mut self,
        cx: &mut TaskContext<'_>,
        scratch: &mut Scratch,
        deal_with: DealWith,
    ) -> Option<Step> {
        if !std::mem::take(&mut self.kept_is_due) || self.connection.kept.is_empty() {
            return None;
        }
        let kept = std::mem::take(&mut self.connection.kept);
        let step = deal_with(self, cx, &kept, (&mut scratch.forward, &mut scratch.back));
        scratch::give_buffer(kept);
        Some(step)
    }

    /// Reads what the client sends, and uses it unless something else comes first.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "what deals with the bytes is called directly then"
    )]
    pub(super) fn read_client(
        &mut self,
        cx: &mut TaskContext<'_>,
        scratch: &mut Scratch,
        deal_with: DealWith,
    ) -> Step {
        match self.connection.stream.poll_read(cx, &mut scratch.read) {
            Poll::Pending => Step::Pending,
            Poll::Ready(Ok(0) | Err(_)) => Step::End(Ending::Vanished),
            Poll::Ready(Ok(n)) => {
                let read = scratch.read.get(..n).unwrap_or_default();
                if self.connection.kept.is_empty() {
                    return deal_with(self, cx, read, (&mut scratch.forward, &mut scratch.back));
                }
                self.keep_more(read);
                Step::Again
            }
        }
    }

    /// More came of what is kept already.
    pub(super) fn keep_more(&mut self, read: &[u8]) {
        self.connection.keep(read);
        self.kept_is_due = self.connection.kept.len() >= self.kept_wanted as usize;
    }

    /// What is kept now is the beginning of a message: it is not looked at again with every piece of a long one, but
    /// when it is whole, or has doubled.
    pub(super) fn await_message(&mut self) {
        let kept = &self.connection.kept;
        let whole = match cut(kept, self.relay.settings.max_packet_size) {
            Ok(Some(frame)) => frame.len,
            Ok(None) | Err(_) => 0,
        };
        let waits_for_server = self.relay.fenced;
        self.kept_wanted = if waits_for_server {
            0
        } else {
            u32::try_from(whole.min(2 * kept.len())).unwrap_or(u32::MAX)
        };
    }

    /// Bytes came while no server is linked: they are answered here if they need none; else a
    /// server is taken and they are sent on, or kept until there is one.
    fn begin(
        &mut self,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
        (forward, back): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Step {
        let bytes = if self.relay.needs_server(bytes) {
            bytes
        } else {
            match self.deal_alone(cx, bytes) {
                Ok(used) => bytes.get(used..).unwrap_or_default(),
                Err(step) => return step,
            }
        };
        let now = self.context.turn();
        self.refresh_settings();
        let Some(pooled) = self.pool.try_lease(self.home.shard()) else {
            self.connection.keep(bytes);
            return self.enqueue(now);
        };
        self.start(cx, (pooled, now), bytes, (forward, back))
    }

    /// Answers what needs no server; what is behind so many bytes needs one.
    #[inline(never)]
    fn deal_alone(&mut self, cx: &mut TaskContext<'_>, bytes: &[u8]) -> Result<usize, Step> {
        let mut answers = Vec::new();
        let alone = self.relay.without_server(bytes, &mut answers);
        if self.connection.send(cx, &answers).is_err() {
            return Err(Step::End(Ending::Vanished));
        }
        match alone {
            Ok(Alone::Server(used)) => Ok(used),
            Ok(Alone::Nothing(used)) => {
                self.connection.keep(bytes.get(used..).unwrap_or_default());
                self.await_message();
                Err(Step::Again)
            }
            Ok(Alone::Terminated) => Err(Step::End(Ending::Terminated)),
            Err(error) => Err(Step::End(error.into())),
        }
    }

    /// Takes a server, and sends it the bytes if it is ready for them.
    #[inline]
    fn start(
        &mut self,
        cx: &mut TaskContext<'_>,
        (pooled, now): (Pooled, u64),
        bytes: &[u8],
        buffers: (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Step {
        match self.link(pooled, now, bytes) {
            Ok(ready) => {
                let (bytes, later) = bytes.split_at_checked(ready).unwrap_or((bytes, &[]));
                self.connection.keep(later);
                self.to_server(cx, bytes, buffers)
            }
            Err(step) => {
                self.connection.keep(bytes);
                step
            }
        }
    }

    fn refresh_settings(&mut self) {
        let version = self.pool.version();
        if version != self.version {
            self.version = version;
            self.relay.settings = self.pool.settings();
            self.home = Home::of(&self.pool, self.home.worker());
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
        // One that has waited in the process before goes on waiting.
        let is_new = self.entry.phase() != Phase::Waiting;
        let since = if is_new { now } else { self.entry.since() };
        if is_new {
            self.entry.clear_notified();
        }
        self.entry.request_begins(since);
        self.entry.enter(Phase::Waiting, since);
        self.state = State::Waiting;
        let waiter = self.waiter.get_or_insert_default();
        self.pool.enqueue(self.home.shard(), waiter, since);
        Step::Again
    }

    fn poll_waiting(&mut self, cx: &mut TaskContext<'_>, scratch: &mut Scratch) -> Step {
        let Some(waiter) = &self.waiter else {
            return Step::Pending;
        };
        match waiter.poll(cx) {
            Poll::Ready(Err(error)) => {
                self.state = State::Idle;
                return Step::End(error.into());
            }
            Poll::Ready(Ok(pooled)) => {
                self.state = State::Idle;
                let now = self.context.turn();
                if let Some(counters) = self.pool.counters(self.home.worker()) {
                    let queued = self.entry.request_time();
                    let waited = now.saturating_sub(queued);
                    self.waited = u16::try_from(waited / 1000).unwrap_or(u16::MAX);
                    counters.wait_time.add(waited);
                    counters.times().wait.add(waited);
                }
                let kept = std::mem::take(&mut self.connection.kept);
                let buffers = (&mut scratch.forward, &mut scratch.back);
                let step = self.start(cx, (pooled, now), &kept, buffers);
                scratch::give_buffer(kept);
                return step;
            }
            Poll::Pending => {}
        }
        if self.connection.kept.len() >= READ_AHEAD {
            return Step::Pending;
        }
        match self.connection.stream.poll_read(cx, &mut scratch.read) {
            Poll::Pending => Step::Pending,
            Poll::Ready(Ok(0) | Err(_)) => Step::End(Ending::Vanished),
            Poll::Ready(Ok(n)) => {
                self.connection
                    .keep(scratch.read.get(..n).unwrap_or_default());
                Step::Again
            }
        }
    }

    // ---- linking ---------------------------------------------------------------------------

    /// Takes a server, to which the client's bytes are to go. `Ok`: it is ready for so many of them. Else it is being made
    /// ready.
    fn link(&mut self, pooled: Pooled, now: u64, bytes: &[u8]) -> Result<usize, Step> {
        let Ok(mut pooled) = pooled.rehomed(self.home.worker()) else {
            return Err(self.enqueue(now));
        };
        pooled.server.served = true;
        let server = &pooled.server;
        self.entry.request_begins(now);
        self.entry.enter(Phase::Active, now);
        self.entry.set_transaction(now);
        (self.query_began, self.transaction_began) = (now, now);
        let idle = Duration::from_micros(now.saturating_sub(server.idle_since));
        let check = prepare::needs_check(&pooled, &self.relay.settings, idle);
        if !check
            && self.relay.tracked.same_as(&server.state.tracked)
            && self.relay.fits(&server.state)
        {
            pooled.server.entry.link(self.entry.id, now);
            self.linked(pooled);
            return Ok(bytes.len());
        }
        self.make_ready(pooled, (check, now), bytes)
    }

    /// The server is checked, or has other settings than the client.
    #[cold]
    fn make_ready(
        &mut self,
        mut pooled: Pooled,
        (check, now): (bool, u64),
        bytes: &[u8],
    ) -> Result<usize, Step> {
        let server = &mut pooled.server;
        // It is not the client's yet: a cancel request of the client's must not hit what we do.
        server.entry.set_state(ServerState::Tested);
        let overlay = self.relay.wanted(&server.state);
        if !check
            && server.may_send_ahead()
            && overlay.missing(&server.state.overlay).is_empty()
            && let Some(ready) = self.relay.may_go_along(bytes)
        {
            let texts = prepare::difference(&server.state, &self.relay.tracked, &overlay);
            server.state.overlay = overlay;
            if texts.is_empty() {
                server.entry.link(self.entry.id, now);
                self.adopt_spelling(&pooled);
            } else {
                server.send_ahead(&texts);
            }
            self.linked(pooled);
            return Ok(ready);
        }
        let (settings, wanted) = (self.relay.settings.clone(), self.relay.tracked.clone());
        self.state = State::Preparing(Box::pin(async move {
            let mut pooled = Some(pooled);
            if check && let (Some(checked), Some(query)) = (pooled.take(), &settings.check_query) {
                pooled = prepare::check(checked, query).await;
            }
            match pooled {
                Some(pooled) => prepare::adopt(pooled, &wanted, overlay).await.map(Some),
                None => Ok(None),
            }
        }));
        self.kept_is_due = true;
        Err(Step::Again)
    }

    /// The server is the client's.
    #[inline]
    fn linked(&mut self, mut pooled: Pooled) {
        let is_watched = self.relay.settings.watches_sequences();
        let drawn = &mut pooled.server.state.drawn;
        self.relay.sequences.link(is_watched, self.relay.id, drawn);
        self.entry.set_server(pooled.server.entry.id);
        if let Some(counters) = self.pool.counters(self.home.worker()) {
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
                let now = self.context.turn();
                pooled.server.entry.link(self.entry.id, now);
                self.linked(pooled);
                Step::Again
            }
            // It was dead: the next one, please.
            Ok(None) => match self.pool.try_lease(self.home.shard()) {
                Some(pooled) => match self.link(pooled, self.context.turn(), &[]) {
                    Ok(_) => Step::Again,
                    Err(step) => step,
                },
                None => self.enqueue(self.context.turn()),
            },
            Err(error) => Step::End(error.into()),
        }
    }

    /// The client's values are the server's now, to the letter; the client is told where the letters differ.
    pub(super) fn adopt_spelling(&mut self, pooled: &Pooled) {
        let mut told = Vec::new();
        let before = self.relay.tracked.clone();
        for (name, value) in pooled.server.state.tracked.iter() {
            let known = before
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value);
            if known.is_some_and(|known| known != value) {
                backend::parameter_status(&mut told, name.as_bytes(), value);
                self.relay.track(name.as_bytes(), value);
            }
        }
        self.connection.queue(&told);
    }

    // ---- the end ---------------------------------------------------------------------------

    /// It waits no more. (A server that it was given meanwhile goes to the next.)
    pub(super) fn leave_queue(&self) {
        if let (State::Waiting, Some(waiter)) = (&self.state, &self.waiter) {
            self.pool.leave(self.home.shard(), waiter);
        }
    }

    /// A query that is under way, or its transaction, is not going to be over.
    fn break_off(&mut self, ending: &Ending) {
        let State::Linked(pooled) = &mut self.state else {
            if let (Ending::Error(error), Some(_)) = (ending, &self.relay.settings.tracing) {
                trace::refused(self, error);
            }
            return;
        };
        let server = &mut pooled.server;
        let Some(watched) = &mut server.state.watched else {
            return;
        };
        if self.transaction_began == 0 {
            return;
        }
        watched.fails(match ending {
            Ending::Error(error) => error.sqlstate(),
            Ending::Terminated | Ending::Vanished | Ending::ServerEnded => "left",
        });
        let is_under_way = self.query_began > 0;
        let took = self.context.now().saturating_sub(self.query_began);
        let over = Over {
            context: &self.context,
            client: &self.entry,
            pool: (&self.pool, self.home.worker()),
            settings: &self.relay.settings,
            times: (
                u64::from(self.waited) * 1000,
                if is_under_way { took } else { 0 },
            ),
            transaction: Some(self.transaction_began),
        };
        if is_under_way {
            over.note(Some(watched), &server.entry);
        } else {
            trace::abandoned(&over, watched, &server.entry);
        }
    }

    /// Tells the client, lets it go, and sees to the server it leaves.
    pub async fn finish(mut self: Box<Self>, ending: &Ending) {
        self.leave_queue();
        self.break_off(ending);
        if let Ending::Error(error) = ending {
            self.forget_refused(error);
            if let Some(counters) = self.pool.counters(self.home.worker()) {
                counters.pooler_errors.add(1);
            }
            let mut out = Vec::new();
            error.encode(&mut out);
            // In the middle of a message it would be taken for the rest of it. And the client may not listen any more; then
            // there is nothing more to say.
            if !self.relay.owes_rest() {
                let _ = timeout(FAREWELL, self.connection.send_all(&out)).await;
                let between = matches!(self.entry.phase(), Phase::Idle | Phase::LinkedIdle);
                if between && matches!(**error, Error::Drained) {
                    let _ = timeout(FAREWELL, parting::linger(&mut self.connection)).await;
                }
            }
        }
        let mut pooled = match self.state {
            State::Linked(pooled) => pooled,
            State::Looking(look) => look.await.pooled,
            State::Idle | State::Waiting | State::Preparing(_) => return,
        };
        // The client must see its connection end before, not after, its server is clean.
        drop(self.connection);
        self.entry.enter(Phase::Draining, self.context.now());
        let whole = pooled.server.is_clean() && !self.relay.is_mid_message();
        if !whole {
            let orderly = matches!(ending, Ending::Terminated);
            drain::bring_back(&mut pooled, &mut self.relay, orderly).await;
        }
        if pooled.server.is_clean() {
            prepare::clean(&mut pooled, &self.relay).await;
        }
        self.entry.set_server(0);
        self.pool.check_in(self.home.shard(), pooled);
    }
}

/// How a session leaves its worker.
pub enum Way {
    /// For another one.
    Moves(usize),
    /// For another process.
    GoesOver,
    /// For good; [`finish`](Session::finish) is due.
    Ends(Ending),
}
