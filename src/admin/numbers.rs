//! The numbers of a pool, or of several together, as `/metrics` and the status page have them.
//!
//! Each is read once: a pool's counters are one set for each worker, and its histograms are long.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::pool::Pool;
use crate::stats::Totals;
use crate::stats::histogram::{Distribution, Histogram, Times};

/// One pool's numbers, or those of several together.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Clients that wait for a server.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub longest_wait: Duration,
    /// Servers that there are, lent or free.
    pub servers: usize,
    /// Those of them that are free.
    pub idle: usize,
    /// Connections to PostgreSQL that are being made.
    pub connecting: usize,
    /// The most servers that there may be, without the reserve; 0: no limit.
    pub size: usize,
    /// Servers that clients keep because of what they have left there.
    pub pinned: usize,
    /// How many of the pools are paused.
    pub paused: usize,
    /// What is counted.
    pub totals: Totals,
    /// What clients waited for a server, if they had to.
    pub wait: Distribution,
    /// Transactions.
    pub transaction: Distribution,
    /// Queries.
    pub query: Distribution,
    /// Connections to PostgreSQL.
    pub connect: Distribution,
}

impl Numbers {
    /// Those of a pool at this moment.
    pub fn of(pool: &Pool) -> Self {
        let (waiting, longest_wait) = pool.queue();
        let totals = pool.totals();
        let times = |which: fn(&Times) -> &Histogram, sum| Distribution {
            sum,
            ..pool.times(which)
        };
        Self {
            waiting,
            longest_wait,
            servers: pool.open_servers(),
            idle: pool.idle_servers(),
            connecting: pool.connecting(),
            size: pool.settings().sizes.size,
            pinned: pool.pinned().load(Ordering::Relaxed),
            paused: usize::from(pool.is_paused()),
            wait: times(|times| &times.wait, totals.wait_time),
            transaction: times(|times| &times.transaction, totals.transaction_time),
            query: times(|times| &times.query, totals.query_time),
            connect: times(|times| &times.connect, totals.connect_time),
            totals,
        }
    }

    /// Adds those of others; of the longest waits, the longer one stays.
    pub fn merge(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.servers += other.servers;
        self.idle += other.idle;
        self.connecting += other.connecting;
        self.size += other.size;
        self.pinned += other.pinned;
        self.paused += other.paused;
        self.totals.merge(&other.totals);
        self.wait.merge(&other.wait);
        self.transaction.merge(&other.transaction);
        self.query.merge(&other.query);
        self.connect.merge(&other.connect);
    }

    /// Servers that are not free: lent to clients, checked or reset.
    pub fn busy(&self) -> usize {
        // The two are read one after the other.
        self.servers.saturating_sub(self.idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_there_are_as_many_and_the_longest_wait_is_that_of_one() {
        let numbers = |waiting, seconds, queries| Numbers {
            waiting,
            longest_wait: Duration::from_secs(seconds),
            totals: Totals {
                queries,
                ..Totals::default()
            },
            ..Numbers::default()
        };
        let mut all = Numbers::default();
        for one in [numbers(1, 2, 3), numbers(4, 1, 5)] {
            all.merge(&one);
        }
        assert_eq!((all.waiting, all.longest_wait.as_secs()), (5, 2));
        assert_eq!(all.totals.queries, 8);
    }

    #[test]
    fn a_server_that_has_come_back_meanwhile_is_not_busy() {
        let numbers = Numbers {
            servers: 1,
            idle: 2,
            ..Numbers::default()
        };
        assert_eq!(numbers.busy(), 0);
    }
}
