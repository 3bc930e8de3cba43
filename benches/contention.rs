//! Do workers get in each other's way? What a query does to things that more than one thread knows, from 1, 2, 4 and 8
//! threads at once: each with a pool of its own, all with one pool as the pooler has it, and all in one place, as it
//! should not be.
//!
//! The figures are nanoseconds of CPU per operation. Where threads share nothing that is written, these stay the same however
//! many there are: waiting for a cache line is CPU time, being preempted is not. So it says something on few cores, too.
//!
//! `cargo bench --bench contention -- 1,2,4,8` (the numbers of threads; `--quick` for a look).
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench may fail, and say what it finds"
)]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::{available_parallelism, yield_now};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use pgferry::config::{Config, ConfigHandle, Database, Host};
use pgferry::net::Workers;
use pgferry::pool::{Learned, Manager, Pool, Pooled, Waiter};
use pgferry::prepared::{self, Statement};
use pgferry::protocol::startup::Replication;
use pgferry::server::statements::Statements;
use pgferry::stats::registry::{CancelKey, NewClient, Peer};
use pgferry::stats::{ClientEntry, Phase, Registry};

mod support;

use support::{start_server, start_worker};

// Statements are made and let go, so the allocator is the one of the command.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Servers for each thread: the pool has a shard for every four.
const SERVERS: usize = 4;

/// Operations between two looks at whether time is up.
const TURN: u64 = 256;

/// What one thread does, so many times.
type Work = Box<dyn FnMut(u64) + Send>;

/// A line of the table: the work of each of so many threads.
type Case = (&'static str, fn(usize) -> Vec<Work>);

const CASES: [Case; 9] = [
    ("lease and return, a pool each", lease_of_own_pools),
    ("lease and return, one pool", lease_of_one_pool),
    ("lease and return, one shard", lease_of_one_shard),
    ("queue of one at a time, one pool", short_queues),
    ("queue of eight, one pool", long_queues),
    ("counters and live list", count),
    ("Bind of one statement", bind),
    ("Parse of a statement each", parse_own),
    ("Parse of one statement", parse_common),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads: Vec<usize> = arguments
        .iter()
        .find_map(|text| text.split(',').map(|word| word.parse().ok()).collect())
        .unwrap_or_else(|| vec![1, 2, 4, 8]);
    let quick = arguments.iter().any(|text| text == "--quick");
    let (rounds, time) = if quick { (1, 50) } else { (5, 200) };
    println!(
        "ns of CPU per operation, and divided by the first; `?`: the machine was too busy for it to say much"
    );
    print!("{:<32}", "");
    for count in &threads {
        print!("{:>18}", format!("{count} threads"));
    }
    println!();
    for (name, works) in CASES {
        print!("{name:<32}");
        let mut first = None;
        for &count in &threads {
            let mut works = works(count);
            let found = (0..rounds)
                .map(|_| on_threads(&mut works, Duration::from_millis(time)))
                .max_by(|one, other| one.cores.total_cmp(&other.cores))
                .unwrap();
            let ratio = found.cost / *first.get_or_insert(found.cost);
            let doubt = if found.cores < 0.9 * f64::from(u32::try_from(count.min(cores())).unwrap())
            {
                "?"
            } else {
                ""
            };
            print!("{:>18}", format!("{:.1} ({ratio:.2}){doubt}", found.cost));
        }
        println!();
    }
}

/// Of the rounds the one counts in which the threads had most cores at a time: only then can they disturb each other.
struct Found {
    /// Nanoseconds of CPU per operation.
    cost: f64,
    cores: f64,
}

fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// All threads work for so long.
fn on_threads(works: &mut [Work], time: Duration) -> Found {
    let (together, over) = (Barrier::new(works.len() + 1), AtomicBool::new(false));
    let run = |work: &mut Work| {
        together.wait();
        let (begin, mut count) = (cpu_time(), 0);
        while !over.load(Ordering::Relaxed) {
            work(TURN);
            count += TURN;
        }
        (cpu_time().saturating_sub(begin), count)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = works
            .iter_mut()
            .map(|work| scope.spawn(|| run(work)))
            .collect();
        together.wait();
        std::thread::sleep(time);
        over.store(true, Ordering::Relaxed);
        let (mut used, mut done) = (Duration::ZERO, 0);
        for thread in threads {
            let (time, count) = thread.join().unwrap();
            used += time;
            done += count;
        }
        Found {
            cost: used.as_secs_f64() * 1e9 / f64::from(u32::try_from(done).unwrap()),
            cores: used.as_secs_f64() / time.as_secs_f64(),
        }
    })
}

/// Of the thread that asks.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .unwrap()
        .into()
}

// ---- the pool ------------------------------------------------------------------------------

/// Workers and one pool whose servers are all connected, four in each shard.
struct House {
    manager: Manager,
    pool: Arc<Pool>,
}

impl House {
    /// The threads run on to the end of the process, with nothing to do.
    fn new(workers: usize) -> Self {
        let servers = workers * SERVERS;
        let handles = (0..workers).map(|_| start_worker()).collect();
        let mut config = Config::default();
        config.settings.default_pool_size = servers;
        let mut database = Database::new("bench", Host::Tcp("127.0.0.1".to_owned()));
        database.port = start_server();
        let manager = Manager::new(Workers::new(handles), ConfigHandle::new(config.clone()));
        let pool = manager.pool(&config, &database, "bench", Learned::default());
        let house = Self { manager, pool };
        for (number, pooled) in house.open(servers).into_iter().enumerate() {
            house.pool.check_in(number / SERVERS, pooled);
        }
        assert_eq!(
            (house.pool.homes().count(), house.pool.open_servers()),
            (workers, servers)
        );
        house
    }

    /// So many servers, leased at the same time.
    fn open(&self, count: usize) -> Vec<Pooled> {
        let (opened, servers) = mpsc::channel();
        for _ in 0..count {
            let (pool, opened, now) = (self.pool.clone(), opened.clone(), self.registry().now());
            self.pool.workers().spawn_on(0, async move {
                let waiter = Arc::new(Waiter::default());
                pool.enqueue(0, &waiter, now);
                opened
                    .send(poll_fn(|cx| waiter.poll(cx)).await.unwrap())
                    .unwrap();
            });
        }
        // Ends also when a task has panicked.
        drop(opened);
        servers.iter().collect()
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.manager.parts().registry
    }
}

/// Leases and returns in a shard of this house, again and again.
fn lease(house: &Arc<House>, shard: usize) -> Work {
    let house = house.clone();
    Box::new(move |times: u64| {
        for _ in 0..times {
            let now = house.registry().now();
            let Some(pooled) = house.pool.try_lease(shard) else {
                // Threads that were stopped with a server in their hands may have left nothing here.
                continue;
            };
            pooled.server.entry.link(1, now);
            house.pool.check_in_at(shard, pooled, now);
        }
    })
}

fn lease_of_own_pools(threads: usize) -> Vec<Work> {
    (0..threads)
        .map(|_| lease(&Arc::new(House::new(1)), 0))
        .collect()
}

fn lease_of_one_pool(threads: usize) -> Vec<Work> {
    let house = Arc::new(House::new(threads));
    (0..threads).map(|shard| lease(&house, shard)).collect()
}

fn lease_of_one_shard(threads: usize) -> Vec<Work> {
    let house = Arc::new(House::new(threads));
    (0..threads).map(|_| lease(&house, 0)).collect()
}

/// As many clients as servers and one more: with every query a queue begins, and ends. The dearest there is.
fn short_queues(threads: usize) -> Vec<Work> {
    queue(threads, 1)
}

/// Many more clients than servers, as under load.
fn long_queues(threads: usize) -> Vec<Work> {
    queue(threads, 8)
}

/// Each thread has a server, and so many clients that want it: each time the last one comes back, the first is served.
fn queue(threads: usize, clients: usize) -> Vec<Work> {
    let house = Arc::new(House::new(threads));
    let mut taken: Vec<_> = std::iter::from_fn(|| house.pool.try_lease(0)).collect();
    let work = |shard| {
        let (house, mut lent) = (house.clone(), taken.pop());
        let mut waiters: VecDeque<Arc<Waiter>> = (0..clients).map(|_| Arc::default()).collect();
        for waiter in waiters.iter().skip(1) {
            house.pool.enqueue(shard, waiter, house.registry().now());
        }
        Box::new(move |times: u64| {
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..times {
                if lent.is_none() {
                    // It went to a thread that was stopped while its clients waited: that one will give one back.
                    lent = given(waiters.front().unwrap(), &mut cx);
                }
                let Some(server) = lent.take() else {
                    yield_now();
                    continue;
                };
                let now = house.registry().now();
                assert!(house.pool.cached_error().is_none());
                waiters.rotate_left(1);
                house.pool.enqueue(shard, waiters.back().unwrap(), now);
                house.pool.check_in_at(shard, server, now);
                lent = given(waiters.front().unwrap(), &mut cx);
            }
        }) as Work
    };
    let works = (0..threads).map(work).collect();
    // The others stay lent, or nobody would have to wait.
    std::mem::forget(taken);
    works
}

fn given(waiter: &Waiter, cx: &mut Context<'_>) -> Option<Pooled> {
    match waiter.poll(cx) {
        Poll::Ready(given) => Some(given.unwrap()),
        Poll::Pending => None,
    }
}

// ---- what is counted, and who is known ---------------------------------------------------------

/// What a query of one statement writes for others to read.
fn count(threads: usize) -> Vec<Work> {
    let house = Arc::new(House::new(threads));
    let work = |worker| {
        let house = house.clone();
        let entry = house
            .registry()
            .enter_client(client(worker as u64 + 1, worker));
        Box::new(move |times: u64| {
            let counters = house.pool.counters(worker).unwrap();
            for now in 0..times {
                entry.request_begins(now);
                entry.enter(Phase::Active, now);
                entry.set_transaction(now);
                entry.set_server(1);
                counters.server_assignments.add(1);
                counters.transactions.add(1);
                counters.queries.add(1);
                counters.received.add(40);
                counters.sent.add(80);
                counters.query_time.add(now);
                counters.transaction_time.add(now);
                entry.set_transaction(0);
                entry.set_server(0);
                entry.enter(Phase::Idle, now);
            }
        }) as Work
    };
    (0..threads).map(work).collect()
}

fn client(id: u64, worker: usize) -> ClientEntry {
    ClientEntry::new(NewClient {
        id,
        user: "bench".to_owned(),
        database: "bench".to_owned(),
        pool_user: "bench".to_owned(),
        peer: Peer::Unix(None),
        replication: Replication::None,
        local: None,
        tls: String::new(),
        worker,
        cancel_pid: i32::try_from(id).unwrap(),
        cancel_key: CancelKey(Box::new([1; 4])),
        connected: 0,
    })
}

// ---- statements --------------------------------------------------------------------------------

/// What follows the name in a Parse.
fn definition(number: usize) -> Vec<u8> {
    format!("select abalance from pgbench_accounts where aid = {number}\0\0\0").into_bytes()
}

/// As a client does whose settings are those of all others.
fn intern(registry: &prepared::Registry, definition: &[u8]) -> Arc<Statement> {
    registry
        .intern(definition, &registry.context(b"ISO"), usize::MAX)
        .unwrap()
}

/// A Bind of a statement that all clients use, on a server that has it: it is found, and its name copied.
fn bind(threads: usize) -> Vec<Work> {
    let registry = prepared::Registry::new();
    let work = |_| {
        let statement: Arc<Statement> = intern(&registry, &definition(0));
        let (mut servers, mut out) = (Statements::default(), Vec::new());
        servers.sent(&statement, 0);
        servers.confirm(statement.id());
        Box::new(move |times: u64| {
            for batch in 0..times {
                black_box(servers.touch(&statement, batch));
                out.clear();
                out.extend_from_slice(black_box(statement.name()));
            }
        }) as Work
    };
    (0..threads).map(work).collect()
}

/// A Parse of a statement that somebody holds, so that it is found.
fn parse(registry: &prepared::Registry, number: usize) -> Work {
    let (registry, definition) = (registry.clone(), definition(number));
    let context = registry.context(b"ISO");
    let held = intern(&registry, &definition);
    Box::new(move |times: u64| {
        for _ in 0..times {
            let found = registry
                .intern(black_box(&definition), &context, usize::MAX)
                .unwrap();
            assert_eq!(found.id(), held.id());
        }
    })
}

fn parse_own(threads: usize) -> Vec<Work> {
    let registry = prepared::Registry::new();
    (0..threads)
        .map(|number| parse(&registry, number))
        .collect()
}

fn parse_common(threads: usize) -> Vec<Work> {
    let registry = prepared::Registry::new();
    (0..threads).map(|_| parse(&registry, 0)).collect()
}
