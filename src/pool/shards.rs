//! What a pool lends: idle servers and waiting clients, in one shard for each worker the pool lives on.
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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::accounting::Demand;
use super::state::Pool;
use super::{Pooled, WaitError, Waiter};
use crate::server::{Doom, Server};
use crate::stats::{Apart, ServerState};

/// By how many milliseconds somebody on another worker must be ahead to be served first: crossing over costs more than
/// the wait of a few.
const CROSSING: u64 = 5;

/// Nobody waits.
const NOBODY: u64 = u64::MAX;

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) idle: VecDeque<Pooled>,
    waiters: VecDeque<Ticket>,
}

/// A place in the queue.
#[derive(Debug)]
struct Ticket {
    /// Microseconds after the epoch.
    since: u64,
    waiter: Arc<Waiter>,
}

/// One worker's part of a pool.
///
/// What siblings look at is apart from what its own worker writes with every query, and each by itself: while there are
/// idle servers nobody waits, and looks at `oldest` go on; while somebody waits none is idle, and looks at `idle` go on. So what
/// they look at is most often what they have seen before, in their own caches.
#[derive(Debug)]
pub(super) struct Shard {
    /// Where the clients live that come here.
    worker: AtomicUsize,
    pub(super) inner: Mutex<Inner>,
    /// How many servers are idle. Siblings look at it when somebody begins to wait there.
    idle: Apart<AtomicUsize>,
    /// When the first in the queue came, in milliseconds after the epoch. Siblings look at it when they get a server back.
    oldest: Apart<AtomicU64>,
}

impl Shard {
    /// Servers here that are free.
    pub(super) fn idle_count(&self) -> usize {
        self.idle.load(Ordering::Relaxed)
    }

    pub(super) fn new(worker: usize) -> Self {
        Self {
            worker: AtomicUsize::new(worker),
            inner: Mutex::default(),
            idle: Apart::new(AtomicUsize::new(0)),
            oldest: Apart::new(AtomicU64::new(NOBODY)),
        }
    }

    /// Makes known what is in the shard; called with its lock held. Written only on a change: while nobody waits `oldest`
    /// stays as it is, and while somebody does it changes no more than once in a millisecond, as the queue moves on.
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

impl Pool {
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
        let has_idle = {
            let mut inner = own.inner.lock();
            inner.waiters.push_back(Ticket {
                since: now,
                waiter: waiter.clone(),
            });
            own.publish(&inner);
            !inner.idle.is_empty()
        };
        // One may have become idle on either side since we looked. (Here, whoever has a server after us finds us waiting.)
        let here = has_idle.then(|| self.take_idle(shard, false)).flatten();
        if let Some(found) = here.or_else(|| self.take_elsewhere(shard)) {
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

    /// Takes in a server that has served nobody yet. However short its life is to be, it serves once.
    pub fn admit(self: &Arc<Self>, shard: usize, mut pooled: Pooled) {
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
        let age = now.saturating_sub(server.entry.connected);
        let lifetime = self.lifetime.load(Ordering::Relaxed);
        // (Nearly always: far from it.)
        age >= lifetime - lifetime / 8
            && age as f64 >= lifetime as f64 * (1.0 - server.jitter / 10.0)
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
        let mut back = self.place(shard, pooled);
        while let Some(pooled) = back {
            back = self.place(shard, pooled);
        }
    }

    /// Gives a clean server to somebody or makes it idle; it comes back if it is to be done once more.
    #[inline]
    fn place(self: &Arc<Self>, shard: usize, server: Pooled) -> Option<Pooled> {
        let own = self.shards.get(shard)?;
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
                return None;
            }
            inner.idle.push_back(server);
            own.publish(&inner);
            drop(inner);
            // Somebody may have begun to wait elsewhere before this one was known to be idle.
            if self.oldest_elsewhere(shard).0 == NOBODY {
                return None;
            }
            return self.take_idle(shard, false);
        }
        if mine <= theirs.saturating_add(CROSSING) {
            return self.give_to_first(own, inner, server);
        }
        let other = self.shards.get(sibling)?;
        drop(inner);
        let inner = other.inner.lock();
        self.give_to_first(other, inner, server)
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
    pub(super) fn take_idle(&self, shard: usize, in_turn: bool) -> Option<Pooled> {
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
                taken.close("obsolete connection");
            } else if self.is_paused() {
                taken.close("pause mode");
            } else {
                return Some(taken);
            }
        }
    }

    /// Looks at the next shard first: if all began with the same one, its clients would be the first to find nothing.
    fn take_elsewhere(&self, shard: usize) -> Option<Pooled> {
        let count = self.shards.len();
        let others = (1..count).map(|step| (shard + step) % count);
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
}
