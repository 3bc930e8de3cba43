//! Counters of a pool: one set for each worker, added up by whoever asks.
//!
//! A set is written by its own worker's thread only, so an increment is a plain load and store:
//! no locked instruction, no cache line that travels. Readers see each value whole and may see
//! one counter ahead of another.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::histogram::{Distribution, Times};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One worker's counters. Aligned so that two workers never share a cache line.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
            /// Made when the worker first has something to count for the pool.
            times: OnceLock<Box<Times>>,
        }

        /// Counters added up.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct Totals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Totals {
            /// Adds one worker's counters.
            pub fn add(&mut self, counters: &Counters) {
                $(self.$name += counters.$name.get();)*
            }

            /// Adds other totals.
            pub fn merge(&mut self, other: &Totals) {
                $(self.$name += other.$name;)*
            }

            /// What was added since `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &Totals) -> Totals {
                Totals { $($name: self.$name.saturating_sub(earlier.$name),)* }
            }
        }
    };
}

counters! {
    /// Times a server was given to a client.
    server_assignments,
    /// Transactions started.
    transactions,
    /// Queries started; a pipeline up to its last Sync is one.
    queries,
    /// Bytes received from clients.
    received,
    /// Bytes sent to clients, that is, received from servers.
    sent,
    /// Microseconds clients were linked to a server in a transaction.
    transaction_time,
    /// Microseconds servers worked on queries.
    query_time,
    /// Microseconds clients waited for a server.
    wait_time,
    /// Microseconds that connections to PostgreSQL took to be made.
    connect_time,
    /// Named Parse messages from clients.
    client_parses,
    /// Named Parse messages sent to servers.
    server_parses,
    /// Named Bind messages from clients.
    binds,
    /// Clients that logged in.
    client_logins,
    /// A statement was asked for and the server had it.
    prepare_cache_hits,
    /// A statement was asked for and had to be prepared first.
    prepare_cache_misses,
    /// Batches run again, unnoticed, because a statement's result was not what it was when it was prepared.
    replans,
    /// Batches whose unnamed statement was prepared on the server already.
    unnamed_reuses,
    /// Texts of unnamed statements that are not prepared any more because their plans were worse.
    unnamed_demotions,
    /// Servers closed because their stream was not proved empty.
    server_desyncs,
    /// Servers that a client left dirty and that were brought back to a clean state.
    server_drains,
    /// Looks at a session whose client may have touched it.
    looks,
    /// Times a client began to keep its server.
    pins,
    /// Clients that listen and were sent away because too many notifications waited for them.
    slow_listeners,
    /// Errors the pooler itself sent to clients.
    pooler_errors,
}

impl Counters {
    /// The histograms.
    #[inline]
    pub fn times(&self) -> &Times {
        self.times.get_or_init(Box::default)
    }

    /// Adds what one of the histograms has, if there is any.
    pub fn add_times(
        &self,
        sum: &mut Distribution,
        which: fn(&Times) -> &super::histogram::Histogram,
    ) {
        if let Some(times) = self.times.get() {
            sum.add(which(times));
        }
    }
}

/// A number that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`. Only the owning worker's thread may call this: two writers lose increments.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_and_subtract() {
        let (a, b) = (Counters::default(), Counters::default());
        a.queries.add(2);
        b.queries.add(3);
        let mut totals = Totals::default();
        totals.add(&a);
        let before = totals;
        totals.add(&b);
        assert_eq!((totals.queries, totals.since(&before).queries), (5, 3));
    }
}
