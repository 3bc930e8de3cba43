//! Idle servers that go: over their time, dirty, too many, or in the way of another pool.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::state::Pool;
use super::{PoolSettings, Pooled};
use crate::stats::ServerState;

impl Pool {
    /// Since when the longest-idle server is idle.
    pub(super) fn idle_since(&self) -> Option<u64> {
        self.shards
            .iter()
            .filter_map(|shard| {
                shard
                    .inner
                    .lock()
                    .idle
                    .iter()
                    .map(|pooled| pooled.server.idle_since)
                    .min()
            })
            .min()
    }

    /// Closes the longest-idle server.
    pub(super) fn evict(&self) -> bool {
        let mut longest: Option<(u64, usize)> = None;
        for (at, shard) in self.shards.iter().enumerate() {
            let since = shard
                .inner
                .lock()
                .idle
                .iter()
                .map(|pooled| pooled.server.idle_since)
                .min();
            if let Some(since) = since
                && longest.is_none_or(|(best, _)| since < best)
            {
                longest = Some((since, at));
            }
        }
        let Some((since, at)) = longest else {
            return false;
        };
        self.close_idle(
            at,
            |server| (server.server.idle_since <= since).then_some("evicted"),
            1,
        ) > 0
    }

    /// Closes up to `most` idle servers of a shard for which there is a reason; says how many.
    fn close_idle(
        &self,
        shard: usize,
        reason: impl Fn(&Pooled) -> Option<&'static str>,
        most: usize,
    ) -> usize {
        let Some(own) = self.shards.get(shard) else {
            return 0;
        };
        let mut gone = Vec::new();
        {
            let mut inner = own.inner.lock();
            let mut kept = VecDeque::with_capacity(inner.idle.len());
            for pooled in std::mem::take(&mut inner.idle) {
                match reason(&pooled) {
                    Some(reason) if gone.len() < most => gone.push((pooled, reason)),
                    _ => kept.push_back(pooled),
                }
            }
            inner.idle = kept;
            own.publish(&inner);
        }
        // Not under the lock: closing accounts for the room, which may open another connection.
        let count = gone.len();
        for (pooled, reason) in gone {
            pooled.close(reason);
        }
        count
    }

    /// Closes idle servers that are over their time, dirty or too many; marks those that must be
    /// checked before use.
    pub(super) fn sweep(&self) {
        let (settings, now) = (self.settings(), self.parts.registry.now());
        if !self.is_open() {
            self.close_all_idle("pause mode");
        }
        let open = self.open_servers();
        let mut surplus = self.accounting.lock().surplus(&settings.sizes);
        let spare = std::cell::Cell::new(open.saturating_sub(settings.sizes.min));
        for shard in 0..self.shards.len() {
            surplus -= self.close_idle(shard, |_| Some("too many servers in the pool"), surplus);
            self.close_idle(
                shard,
                |pooled| self.overdue(pooled, &settings, now, &spare),
                usize::MAX,
            );
        }
    }

    fn overdue(
        &self,
        pooled: &Pooled,
        settings: &PoolSettings,
        now: u64,
        spare: &std::cell::Cell<usize>,
    ) -> Option<&'static str> {
        let server = &pooled.server;
        let idle = Duration::from_micros(now.saturating_sub(server.idle_since));
        if !server.is_quiet() {
            return Some("idle server got dirty");
        }
        if server.generation != self.generation()
            || server.entry.close_needed.load(Ordering::Relaxed)
        {
            return Some("database configuration changed");
        }
        // A lifetime of 0 is one use.
        if self.is_expired(server, now) && !settings.lifetime.is_zero() {
            return Some("server lifetime over");
        }
        if !settings.idle_timeout.is_zero() && idle > settings.idle_timeout && spare.get() > 0 {
            spare.set(spare.get() - 1);
            return Some("server idle timeout");
        }
        if settings.check_query.is_some() && idle > settings.check_delay {
            server.entry.set_state(ServerState::Used);
        }
        None
    }

    /// Closes all idle servers.
    pub(super) fn close_all_idle(&self, reason: &'static str) {
        for shard in 0..self.shards.len() {
            self.close_idle(shard, |_| Some(reason), usize::MAX);
        }
    }
}
