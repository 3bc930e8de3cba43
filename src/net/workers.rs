//! The worker threads, as the rooms see them that have tasks to start.
//!
//! `daemon::runtime` makes the threads, each of which runs a [`Worker`], and hands this list down. A task
//! started on a worker stays there for life.
//!
//! Not all of them have to be in use. A thread with much to do finds several sockets ready each time it
//! looks, and rarely has to be woken; the same work spread over more threads costs more (a fifth more at 16 clients on
//! two threads). So clients live on the first few threads, as many as the work needs: `pool::balance`.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::executor::Worker;

/// The worker threads.
#[derive(Debug, Clone)]
pub struct Workers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    workers: Vec<Worker>,
    in_use: AtomicUsize,
    clients: Vec<AtomicUsize>,
}

impl Workers {
    /// These. There must be at least one.
    pub fn new(workers: Vec<Worker>) -> Self {
        let clients = workers.iter().map(|_| AtomicUsize::new(0)).collect();
        Self {
            shared: Arc::new(Shared {
                in_use: AtomicUsize::new(1),
                workers,
                clients,
            }),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shared.workers.len()
    }

    /// How many tasks have panicked, on all of them.
    pub fn panics(&self) -> u64 {
        self.shared.workers.iter().map(Worker::panics).sum()
    }

    /// How many are in use: those before this number.
    #[inline]
    pub fn in_use(&self) -> usize {
        self.shared.in_use.load(Ordering::Relaxed)
    }

    /// Uses the first `count`, at least one and at most all.
    pub fn use_first(&self, count: usize) {
        let count = count.clamp(1, self.count());
        self.shared.in_use.store(count, Ordering::Relaxed);
    }

    /// A worker (numbers past the end wrap around).
    #[allow(clippy::indexing_slicing, reason = "there is at least one worker")]
    pub fn worker(&self, worker: usize) -> &Worker {
        &self.shared.workers[worker % self.count()]
    }

    /// Starts a task on a worker (numbers past the end wrap around).
    pub fn spawn_on<F>(&self, worker: usize, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.worker(worker).spawn(task);
    }

    /// The one of `candidates` that has the fewest clients.
    pub fn least_loaded(&self, candidates: impl Iterator<Item = usize>) -> usize {
        candidates
            .min_by_key(|&worker| self.clients_of(worker))
            .unwrap_or(0)
    }

    /// How many clients live on a worker.
    pub fn clients_of(&self, worker: usize) -> usize {
        self.shared
            .clients
            .get(worker)
            .map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Counts a client in; it is counted out when the guard is dropped.
    pub fn count_client(&self, worker: usize) -> ClientCount {
        if let Some(count) = self.shared.clients.get(worker) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        ClientCount {
            workers: self.clone(),
            worker,
        }
    }
}

/// A client's weight on its worker.
#[derive(Debug)]
pub struct ClientCount {
    workers: Workers,
    worker: usize,
}

impl ClientCount {
    /// The worker.
    pub fn worker(&self) -> usize {
        self.worker
    }
}

impl Drop for ClientCount {
    fn drop(&mut self) {
        if let Some(count) = self.workers.shared.clients.get(self.worker) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
