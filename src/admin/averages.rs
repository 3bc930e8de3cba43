//! Statistics over the last finished `stats_period`.
//!
//! The counters only grow; whoever calls [`Averages::tick`] once a period makes rates of them. The counters
//! themselves are `stats`'s, but for the console's own use, which has no pool to be counted in.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::databases::CONSOLE;
use crate::pool::Manager;
use crate::stats::Totals;

/// Counters by database.
pub type ByDatabase = BTreeMap<String, Totals>;

/// What was counted in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Period {
    /// How much was added to each counter.
    pub added: Totals,
    /// How long it was.
    pub length: Duration,
}

impl Period {
    /// `count` of these a second.
    pub fn per_second(&self, count: u64) -> u64 {
        let micros = self.length.as_micros();
        let scaled = u128::from(count) * 1_000_000;
        u64::try_from(scaled.checked_div(micros).unwrap_or(0)).unwrap_or(u64::MAX)
    }

    /// The line that is logged each period, in PgBouncer's words.
    pub fn line(&self) -> String {
        let Totals {
            transactions,
            queries,
            server_assignments,
            ..
        } = self.added;
        let rate = |count| self.per_second(count);
        format!(
            "stats: {} xacts/s, {} queries/s, {} client parses/s, {} server parses/s, {} binds/s, \
             {} client logins/s, in {} B/s, out {} B/s, xact {} us, query {} us, wait {} us",
            rate(transactions),
            rate(queries),
            rate(self.added.client_parses),
            rate(self.added.server_parses),
            rate(self.added.binds),
            rate(self.added.client_logins),
            rate(self.added.received),
            rate(self.added.sent),
            each(self.added.transaction_time, transactions),
            each(self.added.query_time, queries),
            each(self.added.wait_time, server_assignments),
        )
    }
}

/// The share of each of `count`; 0 if there is none.
pub fn each(sum: u64, count: u64) -> u64 {
    sum.checked_div(count).unwrap_or(0)
}

/// The counters at the end of the last period, what was added in it, and how much the console was used.
#[derive(Debug)]
pub struct Averages {
    state: Mutex<State>,
    queries: AtomicU64,
    logins: AtomicU64,
}

#[derive(Debug)]
struct State {
    end: Instant,
    length: Duration,
    /// All counters, as they were at the end of the last period.
    totals: ByDatabase,
    /// What the last period added to them.
    added: ByDatabase,
}

impl Averages {
    /// The first period begins now, with all counters at zero.
    pub fn new() -> Self {
        let state = State {
            end: Instant::now(),
            length: Duration::ZERO,
            totals: ByDatabase::new(),
            added: ByDatabase::new(),
        };
        Self {
            state: Mutex::new(state),
            queries: AtomicU64::new(0),
            logins: AtomicU64::new(0),
        }
    }

    /// Ends a period; to be called once in each `stats_period`. Returns the line that `log_stats` logs.
    pub fn tick(&self, manager: &Manager) -> String {
        self.end_period(self.totals(manager)).line()
    }

    /// The counters of every database that has pools, and of the console.
    pub fn totals(&self, manager: &Manager) -> ByDatabase {
        let queries = self.queries.load(Ordering::Relaxed);
        let console = Totals {
            queries,
            transactions: queries,
            client_logins: self.logins.load(Ordering::Relaxed),
            ..Totals::default()
        };
        let mut all = ByDatabase::from([(CONSOLE.to_owned(), console)]);
        for pool in manager.pools().into_iter().chain(manager.dedicated_pools()) {
            let totals = pool.totals();
            all.entry(pool.database.clone()).or_default().merge(&totals);
        }
        for (name, totals) in manager.forgotten() {
            all.entry(name).or_default().merge(&totals);
        }
        all
    }

    /// A console command begins.
    pub(super) fn count_query(&self) {
        self.queries.fetch_add(1, Ordering::Relaxed);
    }

    /// A console client has logged in.
    pub(super) fn count_login(&self) {
        self.logins.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a period at which the counters were `totals`, and says what was counted in it, all databases
    /// together.
    fn end_period(&self, totals: ByDatabase) -> Period {
        let mut state = self.state.lock();
        let now = Instant::now();
        let before = |name: &str| state.totals.get(name).copied().unwrap_or_default();
        let added: ByDatabase = totals
            .iter()
            .map(|(name, totals)| (name.clone(), totals.since(&before(name))))
            .collect();
        let mut sum = Totals::default();
        for added in added.values() {
            sum.merge(added);
        }
        let length = now.saturating_duration_since(state.end);
        *state = State {
            end: now,
            length,
            totals,
            added,
        };
        Period { added: sum, length }
    }

    /// The last finished period of a database; empty if there is none.
    pub fn of(&self, database: &str) -> Period {
        let state = self.state.lock();
        let added = state.added.get(database).copied().unwrap_or_default();
        Period {
            added,
            length: state.length,
        }
    }
}

impl Default for Averages {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(transactions: u64, transaction_time: u64) -> ByDatabase {
        let totals = Totals {
            transactions,
            transaction_time,
            ..Totals::default()
        };
        ByDatabase::from([("app".to_owned(), totals)])
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_last_period_counts() {
        let averages = Averages::new();
        assert_eq!(averages.of("app").per_second(5), 0);
        tokio::time::advance(Duration::from_secs(10)).await;
        averages.end_period(counted(100, 1_000));
        tokio::time::advance(Duration::from_secs(2)).await;
        let all = averages.end_period(counted(140, 2_000));
        let app = averages.of("app");
        assert_eq!(app, all);
        assert_eq!(app.per_second(app.added.transactions), 20);
        assert_eq!(each(app.added.transaction_time, app.added.transactions), 25);
        assert_eq!(averages.of("other").added, Totals::default());
        assert_eq!(
            all.line(),
            "stats: 20 xacts/s, 0 queries/s, 0 client parses/s, 0 server parses/s, 0 binds/s, \
             0 client logins/s, in 0 B/s, out 0 B/s, xact 25 us, query 0 us, wait 0 us"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_went_away_does_not_make_rates_negative() {
        let averages = Averages::new();
        averages.end_period(counted(100, 1_000));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(
            averages.end_period(counted(10, 10)).added,
            Totals::default()
        );
    }
}
