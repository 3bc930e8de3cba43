//! What it costs to take a server and give it back: with nobody else about, and with more clients than servers.
//!
//! The servers are real connections to a listener that lets everybody in and then says nothing. A lease touches the
//! pool and the socket's readiness, never PostgreSQL.
#![allow(
    missing_docs,
    reason = "criterion's macro makes undocumented functions"
)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench may fail so")]

use std::future::poll_fn;
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use pgferry::config::{Config, ConfigHandle, Database, Host};
use pgferry::net::Workers;
use pgferry::pool::{Learned, Manager, Pool, Pooled, Waiter};
use tokio::task::yield_now;
use tokio::time::Instant;

mod support;

use support::{start_server, start_worker};

/// Servers of every pool here: enough for two shards, and no more than are connected at a time.
const SERVERS: usize = 8;

/// Stands for the id of a client.
const CLIENT: u64 = 1;

/// Workers and one pool whose servers are all connected and idle.
struct House {
    manager: Manager,
    pool: Arc<Pool>,
}

impl House {
    /// The threads run on to the end of the process, with nothing to do once the bench is over.
    fn new(workers: usize) -> Self {
        let workers = Workers::new((0..workers).map(|_| start_worker()).collect());
        let mut config = Config::default();
        config.settings.default_pool_size = SERVERS;
        let mut database = Database::new("bench", Host::Tcp("127.0.0.1".to_owned()));
        database.port = start_server();
        let manager = Manager::new(workers, ConfigHandle::new(config.clone()));
        let pool = manager.pool(&config, &database, "bench", Learned::default());
        let house = Self { manager, pool };
        house.connect();
        house
    }

    /// Opens all servers, each on the worker where it will be idle.
    fn connect(&self) {
        let (opened, servers) = mpsc::channel();
        let count = self.pool.homes().count();
        for number in 0..SERVERS {
            let mut client = Client::new(self, number % count);
            let opened = opened.clone();
            self.pool.workers().spawn_on(client.worker, async move {
                opened.send((client.shard, client.lease().await)).unwrap();
            });
        }
        // Ends also when a task has panicked.
        drop(opened);
        let servers: Vec<_> = servers.iter().collect();
        for (shard, pooled) in servers {
            self.pool.check_in(shard, pooled);
        }
        assert_eq!(self.pool.open_servers(), SERVERS);
    }

    fn now(&self) -> u64 {
        self.manager.parts().registry.now()
    }
}

/// The part of a client's task that has to do with the pool.
struct Client {
    pool: Arc<Pool>,
    registry: Arc<pgferry::stats::Registry>,
    waiter: Arc<Waiter>,
    worker: usize,
    shard: usize,
}

impl Client {
    /// A client on the worker where that shard lives.
    fn new(house: &House, shard: usize) -> Self {
        Self {
            pool: house.pool.clone(),
            registry: house.manager.parts().registry.clone(),
            waiter: Arc::default(),
            worker: house.pool.homes().nth(shard).unwrap(),
            shard,
        }
    }

    /// An idle server, or else what the queue brings.
    async fn lease(&mut self) -> Pooled {
        let pooled = match self.pool.try_lease(self.shard) {
            Some(pooled) => pooled,
            None => {
                let now = self.registry.now();
                self.pool.enqueue(self.shard, &self.waiter, now);
                poll_fn(|cx| self.waiter.poll(cx)).await.unwrap()
            }
        };
        let pooled = pooled.rehomed(self.worker).unwrap();
        pooled.server.entry.link(CLIENT, self.registry.now());
        pooled
    }

    /// Leases so many times. Each lease lasts until the worker has looked for events once more,
    /// as it would to read the server's reply.
    async fn work(mut self, leases: u64) {
        for _ in 0..leases {
            let pooled = self.lease().await;
            yield_now().await;
            self.pool.check_in(self.shard, pooled);
        }
    }
}

/// `leases` leases and returns on this thread, of servers that are idle there.
fn lease_idle(pool: &Arc<Pool>, shard: usize, now: u64, leases: u64) -> Duration {
    let begin = Instant::now();
    for _ in 0..leases {
        let pooled = pool.try_lease(shard).unwrap();
        pooled.server.entry.link(CLIENT, now);
        pool.check_in(shard, pooled);
    }
    begin.elapsed()
}

/// A server is idle and nobody waits: one worker, the same with a sibling to look at, two at the same time.
fn uncontended(c: &mut Criterion) {
    let mut group = c.benchmark_group("lease/uncontended");
    for shards in [1, 2] {
        let house = House::new(shards);
        let now = house.now();
        let id = BenchmarkId::new("threads=1", format!("shards={shards}"));
        group.bench_function(id, |b| {
            b.iter_custom(|leases| lease_idle(&house.pool, 0, now, leases));
        });
    }
    let house = House::new(2);
    let now = house.now();
    group.bench_function(BenchmarkId::new("threads=2", "shards=2"), |b| {
        b.iter_custom(|leases| {
            let together = Barrier::new(2);
            let run = |shard| {
                together.wait();
                lease_idle(&house.pool, shard, now, leases)
            };
            std::thread::scope(|scope| {
                let other = scope.spawn(|| run(1));
                run(0).max(other.join().unwrap())
            })
        });
    });
    group.finish();
}

/// What a return costs if somebody waits, and a lease if the server is idle elsewhere; no tasks and no wake-ups.
fn passed_on(c: &mut Criterion) {
    let mut group = c.benchmark_group("lease/passed on");
    let house = House::new(1);
    let (pool, waiter) = (&house.pool, Arc::new(Waiter::default()));
    // All are lent, or the pool would not make anybody wait.
    let mut taken: Vec<_> = std::iter::from_fn(|| pool.try_lease(0)).collect();
    assert_eq!(taken.len(), SERVERS);
    let mut lent = taken.pop();
    let mut cx = Context::from_waker(Waker::noop());
    let now = house.now();
    group.bench_function("to the head of the queue", |b| {
        b.iter(|| {
            pool.enqueue(0, &waiter, now);
            pool.check_in(0, lent.take().unwrap());
            match waiter.poll(&mut cx) {
                Poll::Ready(given) => lent = Some(given.unwrap()),
                Poll::Pending => panic!("the server went elsewhere"),
            }
        });
    });

    let house = House::new(2);
    let pool = &house.pool;
    // All servers are idle in the second shard, and wanted in the first.
    let taken: Vec<_> = std::iter::from_fn(|| pool.try_lease(0)).collect();
    for pooled in taken {
        pool.check_in(1, pooled);
    }
    group.bench_function("to the other shard", |b| {
        b.iter(|| pool.check_in(1, pool.try_lease(0).unwrap()));
    });
    group.finish();
}

/// So many leases, shared out among the tasks of `clients` clients; until the last of them is done.
fn compete(house: &House, clients: u64, leases: u64) -> Duration {
    let (done, finished) = mpsc::channel();
    let shards = house.pool.homes().count();
    let begin = Instant::now();
    for (number, shard) in (0..clients).zip((0..shards).cycle()) {
        let client = Client::new(house, shard);
        let share = leases / clients + u64::from(number < leases % clients);
        let done = done.clone();
        house.pool.workers().spawn_on(client.worker, async move {
            client.work(share).await;
            done.send(()).unwrap();
        });
    }
    drop(done);
    assert_eq!(finished.iter().count() as u64, clients);
    begin.elapsed()
}

/// The time of one lease of the many, with the wake-ups and, on two workers, the moves of sockets between
/// them: first with as many clients as servers, then with more of them, who queue.
fn contended(c: &mut Criterion) {
    let mut group = c.benchmark_group("lease/contended");
    for workers in [1, 2] {
        let house = House::new(workers);
        for clients in [SERVERS, 2 * SERVERS, 8 * SERVERS] {
            let id = BenchmarkId::new(format!("workers={workers}"), format!("clients={clients}"));
            group.bench_function(id, |b| {
                b.iter_custom(|leases| compete(&house, clients as u64, leases));
            });
        }
        assert_eq!(house.pool.open_servers(), SERVERS);
    }
    group.finish();
}

criterion_group!(benches, uncontended, passed_on, contended);
criterion_main!(benches);
