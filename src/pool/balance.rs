//! How many workers are in use, and which client lives where.
//!
//! Threads that have little to do are dear: each looks at few sockets at a time and sleeps in between, and a wake-up
//! costs more than a query. So the clients live on as few workers as can bear the work, with room to spare, and
//! are spread over more as soon as those are busy. A pool that can't feed all workers lives on some of them only.

use std::sync::Arc;

use super::{Manager, Pool};
use crate::stats::ClientEntry;

/// The part of a worker's time that should be used: a busier one makes its clients wait for each other.
const BUSY_ENOUGH: f64 = 0.65;

/// Fewer workers must be busy no more than so much, or there would soon be more again.
const QUIET_ENOUGH: f64 = 0.45;

/// For how many rounds that must have been so.
const PATIENCE: u32 = 25;

/// Decides how many workers are in use. Pure: it is told how busy they are.
#[derive(Debug, Default)]
pub struct Balance {
    quiet_rounds: u32,
}

impl Balance {
    /// How many workers to use after a round in which `in_use` of them did `work` (1.0 is one thread's whole time).
    pub fn wanted(&mut self, work: f64, in_use: usize, (least, most): (usize, usize)) -> usize {
        let enough = workers_for(work, BUSY_ENOUGH).max(least).min(most);
        let quiet = workers_for(work, QUIET_ENOUGH).max(least).min(most);
        if enough >= in_use {
            self.quiet_rounds = 0;
            return enough;
        }
        if quiet >= in_use {
            self.quiet_rounds = 0;
            return in_use;
        }
        self.quiet_rounds += 1;
        if self.quiet_rounds < PATIENCE {
            return in_use;
        }
        self.quiet_rounds = 0;
        quiet
    }
}

/// The least number of workers that are busy no more than `share` of their time with this work.
fn workers_for(work: f64, share: f64) -> usize {
    let mut count = 1_u32;
    while work > f64::from(count) * share && count < 4096 {
        count += 1;
    }
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Uses the first `in_use` workers, and sends every client to one that its pool lives on. To be called again while
/// clients may still log in by the old arrangement.
pub fn spread(manager: &Manager, in_use: usize) {
    manager.parts().workers.use_first(in_use);
    let clients = manager.parts().registry.clients();
    for pool in manager.pools() {
        pool.settle(in_use);
        let of_pool = |client: &Arc<ClientEntry>| {
            client.database == pool.database && client.pool_user == pool.user
        };
        let clients: Vec<_> = clients.iter().filter(|client| of_pool(client)).collect();
        spread_pool(&pool, &clients);
    }
}

fn spread_pool(pool: &Pool, clients: &[&Arc<ClientEntry>]) {
    let mut homes: Vec<(usize, usize)> = pool.homes().map(|home| (home, 0)).collect();
    homes.sort_unstable();
    homes.dedup();
    let share = clients.len().div_ceil(homes.len().max(1));
    let mut movers = Vec::new();
    for client in clients {
        let goal = client.goal();
        match homes.iter_mut().find(|(home, _)| *home == goal) {
            Some((_, count)) if *count < share => *count += 1,
            _ => movers.push(client),
        }
    }
    for client in movers {
        if let Some((home, count)) = homes.iter_mut().min_by_key(|(_, count)| *count) {
            *count += 1;
            client.move_to(*home);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_for_one_thread_stays_on_one() {
        let mut balance = Balance::default();
        assert_eq!(balance.wanted(0.6, 1, (1, 8)), 1);
    }

    #[test]
    fn a_full_thread_gets_help_at_once() {
        let mut balance = Balance::default();
        assert_eq!(balance.wanted(0.99, 1, (1, 8)), 2);
        assert_eq!(balance.wanted(2.0, 2, (1, 8)), 4);
        assert_eq!(balance.wanted(8.0, 8, (1, 8)), 8);
    }

    #[test]
    fn workers_are_given_up_only_after_a_long_quiet_time() {
        let mut balance = Balance::default();
        for _ in 1..PATIENCE {
            assert_eq!(balance.wanted(0.2, 4, (1, 8)), 4);
        }
        assert_eq!(balance.wanted(0.2, 4, (1, 8)), 1);
    }

    #[test]
    fn work_between_the_limits_changes_nothing() {
        let mut balance = Balance::default();
        for _ in 0..2 * PATIENCE {
            assert_eq!(balance.wanted(0.6, 2, (1, 8)), 2);
        }
    }

    #[test]
    fn the_least_number_is_kept_however_quiet_it_is() {
        let mut balance = Balance::default();
        for _ in 0..2 * PATIENCE {
            assert_eq!(balance.wanted(0.0, 3, (3, 8)), 3);
        }
        assert_eq!(balance.wanted(0.0, 1, (3, 8)), 3);
    }
}
