//! The worker threads, as the rooms see them that have tasks to start.
//!
//! `daemon::runtime` makes the threads, each with a runtime of its own, and hands this list down. A task
//! started on a worker stays there for life.
//!
//! Not all of them have to be in use. A thread with much to do finds several sockets ready each time it
//! looks, and rarely has to be woken; the same work spread over more threads costs more (a fifth more at 16 clients on
//! two threads). So clients live on the first few threads, as many as the work needs: `pool::balance`.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// The worker threads.
#[derive(Debug, Clone)]
pub struct Workers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    handles: Vec<Handle>,
    in_use: AtomicUsize,
    clients: Vec<AtomicUsize>,
    tasks: TaskTracker,
}

impl Workers {
    /// The workers whose runtimes these are. There must be at least one.
    pub fn new(handles: Vec<Handle>) -> Self {
        let clients = handles.iter().map(|_| AtomicUsize::new(0)).collect();
        Self {
            shared: Arc::new(Shared {
                in_use: AtomicUsize::new(1),
                handles,
                clients,
                tasks: TaskTracker::new(),
            }),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shared.handles.len()
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

    /// A worker's runtime (numbers past the end wrap around).
    #[allow(clippy::indexing_slicing, reason = "there is at least one worker")]
    pub fn handle(&self, worker: usize) -> &Handle {
        &self.shared.handles[worker % self.count()]
    }

    /// Starts a task on a worker (numbers past the end wrap around).
    pub fn spawn_on<F>(&self, worker: usize, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = self.shared.tasks.track_future(task);
        self.handle(worker).spawn(task);
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

    /// The tasks that run, so that shutdown can wait for them.
    pub fn tasks(&self) -> &TaskTracker {
        &self.shared.tasks
    }
}

/// A client's weight on its worker.
#[derive(Debug)]
pub struct ClientCount {
    workers: Workers,
    worker: usize,
}

impl Drop for ClientCount {
    fn drop(&mut self) {
        if let Some(count) = self.workers.shared.clients.get(self.worker) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
