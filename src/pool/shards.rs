//! A pool: idle servers and waiting clients in one shard for each worker the pool lives on.
//!
//! Normally a client takes a server from its own worker's shard and gives it back there: one lock that no
//! other thread wants. A server crosses over in two cases: a client finds none here and a sibling has one idle; or
//! one is given back and the head of a sibling's queue has waited longer than our own. So clients are served in the order
//! in which they came, on all workers together; the moment of coming is known to the millisecond, which is what
//! a shard tells its siblings.
//!
//! That nobody is forgotten rests on one order of steps. Who comes enters the queue and makes it
//! known (`oldest`), then looks for idle servers elsewhere. Who gives back makes the server known (`idle`), then looks
//! for those who wait elsewhere. Whichever is second sees the first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::accounting::{Accounting, Demand};
use super::manager::Parts;
use super::settings::micros;
use super::{PoolSettings, Pooled, WaitError, Waiter};
use crate::auth::server_login::Credentials;
use crate::auth::{Keyring, Secret};
use crate::protocol::startup::Replication;
use crate::server::session::Tracked;
use crate::server::{Doom, Server};
use crate::stats::{Counters, Order, ServerState};

/// By how many milliseconds somebody on another worker must be ahead to be served first: crossing over costs more than
/// the wait of a few.
const CROSSING: u64 = 5;

/// Nobody waits.
const NOBODY: u64 = u64::MAX;

/// What servers said at login: ParameterStatus names and values, in their order.
pub type Welcome = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) idle: VecDeque<Pooled>,
    waiters: VecDeque<Ticket>,
}

/// What servers are logged in with, and the configured secret that goes for it.
#[derive(Debug)]
struct Known {
    stored: Option<Secret>,
    credentials: Credentials,
    /// What the secret came down to at earlier logins.
    keyring: Keyring,
}

/// A place in the queue.
#[derive(Debug)]
struct Ticket {
    /// Microseconds after the epoch.
    since: u64,
    waiter: Arc<Waiter>,
}

/// One worker's part of a pool.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    /// Where the clients live that come here.
    worker: AtomicUsize,
    pub(super) inner: Mutex<Inner>,
    /// When the first in the queue came, in milliseconds after the epoch.
    oldest: AtomicU64,
    /// How many servers are idle.
    idle: AtomicUsize,
}

impl Shard {
    fn new(worker: usize) -> Self {
        Self {
            worker: AtomicUsize::new(worker),
            inner: Mutex::default(),
            oldest: AtomicU64::new(NOBODY),
            idle: AtomicUsize::new(0),
        }
    }

    /// Makes known what is in the shard; called with its lock held. Written only on a change,
    /// so that under load siblings do not lose the cache line with every query.
    pub(super) fn publish(&self, inner: &Inner) {
        let oldest = inner
            .waiters
            .front()
            .map_or(NOBODY, |ticket| ticket.since / 1000);
        if self.oldest.load(Ordering::Relaxed) != oldest {
            self.oldest.store(oldest, Ordering::SeqCst);
        }
        let idle = inner.idle.len();
        if self.idle.load(Ordering::Relaxed) != idle {
            self.idle.store(idle, Ordering::SeqCst);
        }
    }
}

/// The servers of one database and server-side user, and the clients that want one.
#[derive(Debug)]
pub struct Pool {
    /// The database, as clients call it.
    pub database: String,
    /// The user the servers are logged in as.
    pub user: String,
    pub(super) accounting: Mutex<Accounting>,
    pub(super) parts: Parts,
    pub(super) shards: Box<[Shard]>,
    /// Its turn among the pools, which decides where its first shard is.
    turn: usize,
    settings: ArcSwap<PoolSettings>,
    version: AtomicU64,
    /// `server_round_robin`.
    lends_oldest: AtomicBool,
    /// `server_lifetime` in microseconds.
    lifetime: AtomicU64,
    generation: AtomicU64,
    may_grow: AtomicBool,
    /// Since when it has had neither clients nor servers, in microseconds after the epoch; 0: it has.
    unused_since: AtomicU64,
    paused: AtomicBool,
    removed: AtomicBool,
    credentials: Mutex<Known>,
    welcome: Mutex<Option<Arc<Welcome>>>,
    counters: Box<[Counters]>,
}

impl Pool {
    pub(super) fn new(
        (database, user): (String, String),
        settings: PoolSettings,
        (stored, credentials): (Option<Secret>, Credentials),
        parts: Parts,
    ) -> Self {
        let count = parts.workers.count();
        // A pool of 20 can't keep more than about five workers busy, and fewer shards mean fewer
        // servers that idle on one side while clients wait on another.
        let wanted = if settings.sizes.size == 0 {
            count
        } else {
            settings.sizes.size.div_ceil(4)
        };
        let (turn, in_use) = (parts.next_turn(), parts.workers.in_use());
        let shards = (0..wanted.clamp(1, count))
            .map(|at| Shard::new((turn + at) % in_use))
            .collect();
        Self {
            database,
            user,
            accounting: Mutex::default(),
            shards,
            turn,
            generation: AtomicU64::new(1),
            lends_oldest: AtomicBool::new(settings.round_robin),
            lifetime: AtomicU64::new(micros(settings.lifetime)),
            settings: ArcSwap::from_pointee(settings),
            version: AtomicU64::new(1),
            may_grow: AtomicBool::new(true),
            unused_since: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            credentials: Mutex::new(Known {
                stored,
                credentials,
                keyring: Keyring::default(),
            }),
            welcome: Mutex::default(),
            counters: (0..count).map(|_| Counters::default()).collect(),
            parts,
        }
    }

    /// The current settings.
    pub fn settings(&self) -> Arc<PoolSettings> {
        self.settings.load_full()
    }

    /// Changes whenever the settings or the homes do, so that a client knows when to ask for them again.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn set_settings(&self, settings: PoolSettings) {
        self.lends_oldest
            .store(settings.round_robin, Ordering::Relaxed);
        self.lifetime
            .store(micros(settings.lifetime), Ordering::Relaxed);
        self.settings.store(Arc::new(settings));
        self.version.fetch_add(1, Ordering::AcqRel);
        self.note_growth();
    }

    /// A worker's counters. Only tasks on that worker may write to them.
    pub fn counters(&self, worker: usize) -> Option<&Counters> {
        self.counters.get(worker)
    }

    /// All workers' counters added up.
    pub fn totals(&self) -> crate::stats::Totals {
        let mut totals = crate::stats::Totals::default();
        self.counters
            .iter()
            .for_each(|counters| totals.add(counters));
        totals
    }

    /// How connections are encrypted at this moment.
    pub fn tls(&self) -> Arc<crate::net::tls::Setup> {
        self.parts.tls.load()
    }

    /// All worker threads.
    pub fn workers(&self) -> &crate::net::Workers {
        &self.parts.workers
    }

    /// The workers the pool lives on, in the order of its shards; some more than once, if there are fewer workers in use
    /// than shards.
    pub fn homes(&self) -> impl Iterator<Item = usize> {
        self.shards
            .iter()
            .map(|shard| shard.worker.load(Ordering::Relaxed))
    }

    /// Lives on the first `in_use` workers from now on. Clients that are elsewhere go on there until they are moved.
    pub(super) fn settle(&self, in_use: usize) {
        for (at, shard) in self.shards.iter().enumerate() {
            let worker = (self.turn + at) % in_use.max(1);
            shard.worker.store(worker, Ordering::Relaxed);
        }
        // For those who stay where they are: their shard may be another one.
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// The shard of a worker; the first one if the pool does not live there.
    pub fn shard_of(&self, worker: usize) -> usize {
        self.homes().position(|home| home == worker).unwrap_or(0)
    }

    pub(super) fn worker_of(&self, shard: usize) -> usize {
        self.shards
            .get(shard)
            .map_or(0, |shard| shard.worker.load(Ordering::Relaxed))
    }

    /// Logs in with these from now on. What a client's login has taught us is kept as long as the configured secret,
    /// `stored`, is the same and nothing newer is learned. (A password `is_newest` if the client has just proved it to
    /// somebody who knows, though it may be the stored one.)
    pub fn set_credentials(
        &self,
        stored: Option<Secret>,
        mut credentials: Credentials,
        is_newest: bool,
    ) {
        let mut known = self.credentials.lock();
        let learned_nothing =
            !is_newest && credentials.secret == stored && credentials.scram.is_none();
        if known.stored == stored && learned_nothing {
            credentials = known.credentials.clone();
        }
        if known.credentials.secret != credentials.secret {
            known.keyring = Keyring::default();
        }
        known.stored = stored;
        known.credentials = credentials;
    }

    /// What new servers log in with, and the keys that this came down to before.
    pub(super) fn credentials(&self) -> (Credentials, Keyring) {
        let known = self.credentials.lock();
        (known.credentials.clone(), known.keyring.clone())
    }

    /// What the servers said at login, if there has been one.
    pub fn welcome(&self) -> Option<Arc<Welcome>> {
        self.welcome.lock().clone()
    }

    pub(super) fn greet(&self, welcome: Welcome) {
        *self.welcome.lock() = Some(Arc::new(welcome));
    }

    /// The tracked parameters as a fresh server has them.
    pub fn fresh_parameters(&self) -> Tracked {
        let mut tracked = Tracked::new(self.parts.tracked.clone());
        for (name, value) in self.welcome().iter().flat_map(|welcome| welcome.iter()) {
            tracked.set(name, value);
        }
        tracked
    }

    // ---- lending -------------------------------------------------------------------------

    /// Takes an idle server if there is one here or elsewhere and nobody waits here.
    #[inline]
    pub fn try_lease(self: &Arc<Self>, shard: usize) -> Option<Pooled> {
        if let Some(found) = self.take_idle(shard, true) {
            return Some(found);
        }
        let waited_for = self.shards.get(shard)?.oldest.load(Ordering::Relaxed) != NOBODY;
        if waited_for {
            None
        } else {
            self.take_elsewhere(shard)
        }
    }

    /// Enters the queue. The waiter may be given a server before this returns.
    pub fn enqueue(self: &Arc<Self>, shard: usize, waiter: &Arc<Waiter>, now: u64) {
        let Some(own) = self.shards.get(shard) else {
            return;
        };
        waiter.queue();
        {
            let mut inner = own.inner.lock();
            inner.waiters.push_back(Ticket {
                since: now,
                waiter: waiter.clone(),
            });
            own.publish(&inner);
        }
        // One may have become idle on either side since we looked.
        if let Some(found) = self
            .take_idle(shard, false)
            .or_else(|| self.take_elsewhere(shard))
        {
            self.hand_over(shard, found);
        }
        if self.may_grow.load(Ordering::Relaxed) {
            self.feed();
        }
    }

    /// Leaves the queue; a server that was given meanwhile goes to the next.
    pub fn leave(self: &Arc<Self>, shard: usize, waiter: &Arc<Waiter>) {
        if let Some(own) = self.shards.get(shard) {
            let mut inner = own.inner.lock();
            inner
                .waiters
                .retain(|ticket| !Arc::ptr_eq(&ticket.waiter, waiter));
            own.publish(&inner);
        }
        if let Some(given) = waiter.leave() {
            self.hand_over(shard, given);
        }
    }

    /// Gives a server back. It goes to whoever has waited longest, or becomes idle; if it is not
    /// proved clean, or not wanted any more, it is closed.
    pub fn check_in(self: &Arc<Self>, shard: usize, pooled: Pooled) {
        self.check_in_at(shard, pooled, self.parts.registry.now());
    }

    /// The same for a caller that knows the time, in microseconds after the epoch.
    #[inline]
    pub fn check_in_at(self: &Arc<Self>, shard: usize, mut pooled: Pooled, now: u64) {
        if let Some(reason) = self.reason_to_close(&pooled, now) {
            if let Some(counters) = self.counters(pooled.server.home)
                && pooled.server.state.doom == Some(Doom::Desync)
            {
                counters.server_desyncs.add(1);
            }
            pooled.close(reason);
            return;
        }
        if !pooled.server.entry.unlink() {
            self.wait_for_cancels(shard, pooled);
            return;
        }
        pooled.server.idle_since = now;
        self.hand_over(shard, pooled);
    }

    /// Takes in a fresh server. However short its life is to be, it serves once.
    pub(super) fn admit(self: &Arc<Self>, shard: usize, mut pooled: Pooled) {
        pooled.server.idle_since = self.parts.registry.now();
        match self.reason_to_refuse(&pooled) {
            Some(reason) => pooled.close(reason),
            None => self.hand_over(shard, pooled),
        }
    }

    /// A cancel request is on its way to the server: nobody gets it before that is through.
    fn wait_for_cancels(self: &Arc<Self>, shard: usize, pooled: Pooled) {
        pooled.server.entry.set_state(ServerState::BeingCanceled);
        let pool = self.clone();
        self.parts.workers.spawn_on(pooled.server.home, async move {
            pooled.server.entry.cancels_settled().await;
            pool.check_in(shard, pooled);
        });
    }

    fn reason_to_close(&self, pooled: &Pooled, now: u64) -> Option<&'static str> {
        self.reason_to_refuse(pooled).or_else(|| {
            self.is_expired(&pooled.server, now)
                .then_some("server lifetime over")
        })
    }

    /// Is it older than `server_lifetime`, shortened by up to a tenth?
    #[inline]
    #[allow(clippy::cast_precision_loss, reason = "a lifetime need not be exact")]
    pub(super) fn is_expired(&self, server: &Server, now: u64) -> bool {
        let age = now.saturating_sub(server.entry.connected) as f64;
        let lifetime = self.lifetime.load(Ordering::Relaxed) as f64;
        age >= lifetime * (1.0 - server.jitter / 10.0)
    }

    fn reason_to_refuse(&self, pooled: &Pooled) -> Option<&'static str> {
        let server = &pooled.server;
        if !server.is_clean() {
            return Some(match server.state.doom {
                Some(Doom::Desync) => "server_desync",
                Some(Doom::ClientLeft) => "client disconnect while server was not ready",
                Some(Doom::CheckFailed) => "server check or reset failed",
                Some(Doom::Failed | Doom::Ended) | None => "server conn crashed?",
            });
        }
        if self.is_paused() {
            return Some("pause mode");
        }
        if self.removed.load(Ordering::Relaxed) {
            return Some("database removed");
        }
        if server.generation != self.generation()
            || server.entry.close_needed.load(Ordering::Relaxed)
        {
            return Some("close_needed");
        }
        None
    }

    /// Gives a clean server to the one who has waited longest, or makes it idle.
    fn hand_over(self: &Arc<Self>, shard: usize, pooled: Pooled) {
        let mut pooled = Some(pooled);
        while let Some(server) = pooled.take() {
            let Some(own) = self.shards.get(shard) else {
                return;
            };
            let mut inner = own.inner.lock();
            let mine = inner
                .waiters
                .front()
                .map_or(NOBODY, |ticket| ticket.since / 1000);
            let (theirs, sibling) = self.oldest_elsewhere(shard);
            if mine == NOBODY && theirs == NOBODY {
                if !self.is_open() {
                    // Whoever closes the pool, or pauses it, has been here already, or comes after us.
                    drop(inner);
                    server.close("pause mode");
                    return;
                }
                inner.idle.push_back(server);
                own.publish(&inner);
                drop(inner);
                // Somebody may have begun to wait elsewhere before this one was known to be idle.
                if self.oldest_elsewhere(shard).0 == NOBODY {
                    return;
                }
                pooled = self.take_idle(shard, false);
            } else if mine <= theirs.saturating_add(CROSSING) {
                pooled = self.give_to_first(own, inner, server);
            } else if let Some(other) = self.shards.get(sibling) {
                drop(inner);
                let inner = other.inner.lock();
                pooled = self.give_to_first(other, inner, server);
            }
        }
    }

    /// Gives to the head of a queue; comes back if there is none after all, or it left.
    #[allow(clippy::unused_self, reason = "belongs to the hand-over")]
    fn give_to_first(
        &self,
        shard: &Shard,
        mut inner: parking_lot::MutexGuard<'_, Inner>,
        server: Pooled,
    ) -> Option<Pooled> {
        let ticket = inner.waiters.pop_front();
        shard.publish(&inner);
        drop(inner);
        match ticket {
            Some(ticket) => ticket.waiter.give(Ok(server)),
            None => Some(server),
        }
    }

    fn oldest_elsewhere(&self, shard: usize) -> (u64, usize) {
        let others = self
            .shards
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != shard);
        others
            .map(|(at, other)| (other.oldest.load(Ordering::SeqCst), at))
            .min()
            .unwrap_or((NOBODY, shard))
    }

    /// Takes an idle server of this shard; with `in_turn`, only if nobody waits for one here.
    fn take_idle(&self, shard: usize, in_turn: bool) -> Option<Pooled> {
        let own = self.shards.get(shard)?;
        loop {
            let taken = {
                let mut inner = own.inner.lock();
                if (in_turn && !inner.waiters.is_empty()) || inner.idle.is_empty() {
                    return None;
                }
                let taken = if self.lends_oldest.load(Ordering::Relaxed) {
                    inner.idle.pop_front()
                } else {
                    inner.idle.pop_back()
                };
                own.publish(&inner);
                taken?
            };
            // It may have ended, or been outdated, while it was idle.
            if !taken.server.is_quiet() {
                taken.close("idle server got dirty");
            } else if taken.server.generation != self.generation() {
                taken.close("close_needed");
            } else if self.is_paused() {
                taken.close("pause mode");
            } else {
                return Some(taken);
            }
        }
    }

    fn take_elsewhere(&self, shard: usize) -> Option<Pooled> {
        let others = (0..self.shards.len()).filter(|&at| at != shard);
        others
            .filter(|&at| {
                self.shards
                    .get(at)
                    .is_some_and(|other| other.idle.load(Ordering::SeqCst) > 0)
            })
            .find_map(|at| self.take_idle(at, true))
    }

    /// Tells all who wait that there will be no server.
    pub fn fail_waiters(&self, error: &WaitError) {
        for shard in &self.shards {
            let tickets = {
                let mut inner = shard.inner.lock();
                let tickets = std::mem::take(&mut inner.waiters);
                shard.publish(&inner);
                tickets
            };
            for ticket in tickets {
                if let Some(given) = ticket.waiter.give(Err(error.clone())) {
                    given.close("client gone");
                }
            }
        }
    }

    // ---- what the janitor, the accounts and the console ask ---------------------------------

    /// For how long it has had neither clients nor servers, which is looked at from time to time.
    pub(super) fn unused_for(&self, is_used: bool, now: u64) -> Duration {
        let since = match self.unused_since.load(Ordering::Relaxed) {
            _ if is_used => 0,
            0 => now.max(1),
            since => since,
        };
        self.unused_since.store(since, Ordering::Relaxed);
        if since == 0 {
            return Duration::ZERO;
        }
        Duration::from_micros(now.saturating_sub(since))
    }

    /// Does anybody wait?
    pub fn has_waiters(&self) -> bool {
        self.shards
            .iter()
            .any(|shard| shard.oldest.load(Ordering::SeqCst) != NOBODY)
    }

    pub(super) fn demand(&self) -> Demand {
        let now = self.parts.registry.now();
        let mut demand = Demand::default();
        for shard in &self.shards {
            let inner = shard.inner.lock();
            demand.waiting += inner.waiters.len();
            if let Some(first) = inner.waiters.front() {
                let wait = Duration::from_micros(now.saturating_sub(first.since));
                demand.longest_wait = demand.longest_wait.max(wait);
            }
        }
        demand
    }

    /// Clients in the queue and how long the first has waited.
    pub fn queue(&self) -> (usize, Duration) {
        let demand = self.demand();
        (demand.waiting, demand.longest_wait)
    }

    /// Servers that are being connected.
    pub fn connecting(&self) -> usize {
        self.accounting.lock().connecting()
    }

    /// Servers that are logged in.
    pub fn open_servers(&self) -> usize {
        self.accounting.lock().open()
    }

    /// Why waiting is pointless, if it is.
    pub fn cached_error(&self) -> Option<WaitError> {
        self.accounting
            .lock()
            .cached_error()
            .map(|text| WaitError::LoginFailing(text.to_owned()))
    }

    /// The shard whose queue is oldest: where a new server is most welcome.
    pub(super) fn neediest_shard(&self) -> usize {
        let by_need = |shard: &Shard| {
            (
                shard.oldest.load(Ordering::Relaxed),
                shard.idle.load(Ordering::Relaxed),
            )
        };
        self.shards
            .iter()
            .enumerate()
            .min_by_key(|(_, shard)| by_need(shard))
            .map_or(0, |(at, _)| at)
    }

    pub(super) fn note_growth(&self) {
        let may_grow = self.accounting.lock().may_grow(&self.settings.load().sizes);
        self.may_grow.store(may_grow, Ordering::Relaxed);
    }

    /// The generation servers must have.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Replaces all servers: idle ones now, others when they are given back.
    pub fn reconnect(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.accounting.lock().forgive();
        *self.welcome.lock() = None;
        for server in self.parts.registry.servers() {
            if server.database == self.database && server.user == self.user {
                server.close_needed.store(true, Ordering::Relaxed);
                if server.replication != Replication::None
                    && let Some(client) = self.parts.registry.client(server.client())
                {
                    client.order(Order::Reconnect);
                }
            }
        }
        self.close_all_idle("close_needed");
    }

    /// Is it paused?
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Is its database gone from the configuration?
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.is_paused() && !self.removed.load(Ordering::Relaxed)
    }

    /// No new leases; servers are closed as they come back.
    pub fn pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
        self.close_all_idle("pause mode");
    }

    /// Leases again.
    pub fn resume(self: &Arc<Self>) {
        self.paused.store(false, Ordering::SeqCst);
        self.feed();
    }

    /// The database is gone: nobody will get a server any more.
    pub(super) fn remove(&self) {
        self.removed.store(true, Ordering::SeqCst);
        self.fail_waiters(&WaitError::DatabaseRemoved);
        self.close_all_idle("database removed");
    }
}
