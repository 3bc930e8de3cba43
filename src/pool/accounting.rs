//! How many servers a pool may have: plain numbers, no sockets, no clock of its own.

use std::time::Duration;

use tokio::time::Instant;

/// Connections opened at the same time for one pool: enough to warm it quickly, few enough that a
/// PostgreSQL that has just come back is not stormed.
const MAX_PARALLEL: usize = 8;

/// The pause after the first failed attempt; it doubles up to `server_login_retry`.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The limits that apply to a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// `pool_size`; 0 is no limit.
    pub size: usize,
    /// `reserve_pool_size`.
    pub reserve: usize,
    /// `reserve_pool_timeout`; zero switches the reserve off.
    pub reserve_after: Duration,
    /// `min_pool_size`.
    pub min: usize,
    /// `server_login_retry`: the longest pause after failures.
    pub longest_pause: Duration,
}

impl Sizes {
    fn limit(&self) -> usize {
        if self.size == 0 {
            usize::MAX
        } else {
            self.size
        }
    }

    fn limit_with_reserve(&self) -> usize {
        self.limit().saturating_add(self.reserve)
    }
}

/// Who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// Clients in the queue.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub longest_wait: Duration,
}

/// How many connections to open, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// So many.
    pub connections: usize,
    /// They come out of the reserve.
    pub from_reserve: bool,
}

/// What a pool has.
#[derive(Debug, Default)]
pub struct Accounting {
    open: usize,
    connecting: usize,
    /// Servers that are still with the process whose place this one takes.
    elsewhere: usize,
    failures: u32,
    retry_at: Option<Instant>,
    last_error: Option<String>,
    was_up: bool,
}

impl Accounting {
    /// Servers that are logged in.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Servers that are being connected.
    pub fn connecting(&self) -> usize {
        self.connecting
    }

    /// All that count for the limits: both, and those that are still with the process whose place this one takes.
    pub fn total(&self) -> usize {
        self.open + self.connecting + self.elsewhere
    }

    /// So many are with the process whose place this one takes. Says how many there were.
    pub fn set_elsewhere(&mut self, servers: usize) -> usize {
        std::mem::replace(&mut self.elsewhere, servers)
    }

    /// A server was taken over.
    pub fn taken_over(&mut self) {
        self.open += 1;
        self.was_up = true;
    }

    /// How many connections to open now for those who wait.
    pub fn wanted(&self, sizes: &Sizes, demand: Demand, now: Instant) -> Wanted {
        if self.retry_at.is_some_and(|at| now < at) {
            return Wanted::default();
        }
        // After a failure one attempt finds out whether the server is back.
        let parallel = if self.failures > 0 { 1 } else { MAX_PARALLEL };
        // Each attempt under way will serve one of those who wait.
        let needed = demand.waiting.min(parallel).saturating_sub(self.connecting);
        let room = sizes.limit().saturating_sub(self.total());
        if room > 0 {
            return Wanted {
                connections: needed.min(room),
                from_reserve: false,
            };
        }
        let reserve_due =
            !sizes.reserve_after.is_zero() && demand.longest_wait >= sizes.reserve_after;
        let reserve = sizes.limit_with_reserve().saturating_sub(self.total());
        let connections = if reserve_due {
            needed.min(reserve).min(1)
        } else {
            0
        };
        Wanted {
            connections,
            from_reserve: connections > 0,
        }
    }

    /// How many to open to have `min_pool_size`, though nobody waits.
    pub fn wanted_for_minimum(&self, sizes: &Sizes, now: Instant) -> usize {
        if self.retry_at.is_some_and(|at| now < at) {
            return 0;
        }
        // One at a time, as in PgBouncer: nobody is waiting for them.
        sizes
            .min
            .min(sizes.limit())
            .saturating_sub(self.total())
            .min(1)
    }

    /// Could a waiting client bring about a new connection without having waited long?
    pub fn may_grow(&self, sizes: &Sizes) -> bool {
        self.total() < sizes.limit()
    }

    /// How many idle servers are too many, the limit having been lowered.
    pub fn surplus(&self, sizes: &Sizes) -> usize {
        self.open.saturating_sub(sizes.limit_with_reserve())
    }

    /// An attempt begins.
    pub fn begin(&mut self) {
        self.connecting += 1;
    }

    /// An attempt led to a server.
    pub fn connected(&mut self) {
        self.connecting = self.connecting.saturating_sub(1);
        self.open += 1;
        self.failures = 0;
        self.retry_at = None;
        self.last_error = None;
        self.was_up = true;
    }

    /// An attempt was given up for no fault of the server's.
    pub fn abandoned(&mut self) {
        self.connecting = self.connecting.saturating_sub(1);
    }

    /// An attempt failed.
    pub fn failed(&mut self, error: String, sizes: &Sizes, now: Instant) {
        self.connecting = self.connecting.saturating_sub(1);
        let pause = FIRST_PAUSE
            .saturating_mul(1 << self.failures.min(16))
            .min(sizes.longest_pause);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + pause);
        self.last_error = Some(error);
    }

    /// A server was closed.
    pub fn closed(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// Forgets earlier failures: the configuration changed, or the console said RECONNECT.
    pub fn forgive(&mut self) {
        self.failures = 0;
        self.retry_at = None;
        self.last_error = None;
        self.was_up = false;
    }

    /// Why a client should not even begin to wait: there is no server and the last attempt failed, in a
    /// pool that was up before.
    pub fn cached_error(&self) -> Option<&str> {
        if self.open == 0 && self.was_up {
            self.last_error.as_deref()
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes(size: usize, reserve: usize) -> Sizes {
        Sizes {
            size,
            reserve,
            reserve_after: Duration::from_secs(5),
            min: 0,
            longest_pause: Duration::from_secs(15),
        }
    }

    fn waiting(waiting: usize) -> Demand {
        Demand {
            waiting,
            longest_wait: Duration::ZERO,
        }
    }

    #[test]
    fn attempts_under_way_count_for_those_who_wait() {
        let mut pool = Accounting::default();
        let now = Instant::now();
        assert_eq!(pool.wanted(&sizes(20, 0), waiting(3), now).connections, 3);
        pool.begin();
        pool.begin();
        assert_eq!(pool.wanted(&sizes(20, 0), waiting(3), now).connections, 1);
    }

    #[test]
    fn servers_of_the_process_before_leave_no_room_until_they_come_or_go() {
        let mut pool = Accounting::default();
        let now = Instant::now();
        assert_eq!(pool.set_elsewhere(3), 0);
        assert_eq!(pool.wanted(&sizes(4, 0), waiting(9), now).connections, 1);
        pool.taken_over();
        assert_eq!(pool.wanted(&sizes(4, 0), waiting(9), now).connections, 0);
        assert_eq!(pool.set_elsewhere(2), 3);
        assert_eq!(pool.wanted(&sizes(4, 0), waiting(9), now).connections, 1);
        pool.set_elsewhere(0);
        assert_eq!((pool.open(), pool.total()), (1, 1));
    }

    #[test]
    fn the_reserve_is_for_those_who_waited_long() {
        let mut pool = Accounting::default();
        let now = Instant::now();
        pool.begin();
        pool.connected();
        assert_eq!(pool.wanted(&sizes(1, 2), waiting(5), now).connections, 0);
        let demand = Demand {
            waiting: 5,
            longest_wait: Duration::from_secs(5),
        };
        assert_eq!(
            pool.wanted(&sizes(1, 2), demand, now),
            Wanted {
                connections: 1,
                from_reserve: true
            }
        );
    }

    #[test]
    fn failures_are_followed_by_growing_pauses_and_single_attempts() {
        let mut pool = Accounting::default();
        let (sizes, now) = (sizes(20, 0), Instant::now());
        pool.begin();
        pool.failed("connect failed".into(), &sizes, now);
        assert_eq!(pool.wanted(&sizes, waiting(9), now).connections, 0);
        assert_eq!(
            pool.wanted(&sizes, waiting(9), now + FIRST_PAUSE)
                .connections,
            1
        );
        pool.begin();
        pool.failed("connect failed".into(), &sizes, now);
        assert_eq!(
            pool.wanted(&sizes, waiting(9), now + FIRST_PAUSE)
                .connections,
            0
        );
        assert_eq!(
            pool.wanted(&sizes, waiting(9), now + FIRST_PAUSE * 2)
                .connections,
            1
        );
    }

    #[test]
    fn a_cold_pool_has_no_cached_error() {
        let mut pool = Accounting::default();
        let (sizes, now) = (sizes(20, 0), Instant::now());
        pool.begin();
        pool.failed("connect failed".into(), &sizes, now);
        assert_eq!(pool.cached_error(), None);
        pool.begin();
        pool.connected();
        pool.closed();
        pool.begin();
        pool.failed("connect failed".into(), &sizes, now);
        assert_eq!(pool.cached_error(), Some("connect failed"));
    }

    #[derive(Debug, Clone, Copy)]
    enum Event {
        Wait(usize, u64),
        Connected,
        Failed,
        Closed,
        Later(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0usize..30, 0u64..10).prop_map(|(n, wait)| Event::Wait(n, wait)),
            Just(Event::Connected),
            Just(Event::Failed),
            Just(Event::Closed),
            (0u64..5000).prop_map(Event::Later),
        ]
    }

    proptest! {
        #[test]
        fn limits_are_never_exceeded(
            size in 1usize..10,
            reserve in 0usize..4,
            events in prop::collection::vec(event(), 0..200),
        ) {
            let sizes = sizes(size, reserve);
            let (mut pool, mut now) = (Accounting::default(), Instant::now());
            for event in events {
                match event {
                    Event::Wait(waiting, seconds) => {
                        let demand = Demand { waiting, longest_wait: Duration::from_secs(seconds) };
                        for _ in 0..pool.wanted(&sizes, demand, now).connections {
                            pool.begin();
                        }
                    }
                    Event::Connected if pool.connecting() > 0 => pool.connected(),
                    Event::Failed if pool.connecting() > 0 => pool.failed(String::new(), &sizes, now),
                    Event::Closed if pool.open() > 0 => pool.closed(),
                    Event::Later(ms) => now += Duration::from_millis(ms),
                    _ => {}
                }
                prop_assert!(pool.total() <= size + reserve);
                prop_assert!(pool.connecting() <= MAX_PARALLEL);
            }
        }

        #[test]
        fn who_waits_with_room_left_is_served_in_the_end(size in 1usize..10, waiting_clients in 1usize..30) {
            let sizes = sizes(size, 0);
            let (mut pool, mut now) = (Accounting::default(), Instant::now());
            for _ in 0..4 {
                pool.begin();
                pool.failed(String::new(), &sizes, now);
            }
            now += sizes.longest_pause;
            while pool.open() < size.min(waiting_clients) {
                let wanted = pool.wanted(&sizes, waiting(waiting_clients - pool.open()), now).connections;
                prop_assert!(wanted > 0);
                for _ in 0..wanted {
                    pool.begin();
                    pool.connected();
                }
            }
        }
    }
}
