//! The shape of the runtime: one thread for each worker, and the main thread for what is not a client's: signals,
//! sweeps. Tokio runs on the main thread; timers and the like that a worker's tasks use are served from there. No other
//! file knows this.

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use nix::unistd::{Pid, gettid};
use tokio::runtime::{Builder, Runtime as Tokio};
use tokio_util::sync::CancellationToken;

use crate::net::executor::panics;
use crate::net::{Worker, Workers, batch};
use crate::stats::clock;

/// The worker threads, and tokio's runtime of the main thread.
#[derive(Debug)]
pub struct Runtime {
    /// How other rooms start tasks on workers.
    pub workers: Workers,
    /// The threads of the workers, in their order.
    pub threads: Vec<Pid>,
    control: Tokio,
    stop: CancellationToken,
    joins: Vec<JoinHandle<()>>,
}

impl Runtime {
    /// Starts `count` workers; 0 is one for each core. They send in batches if `batches` is set and the kernel lets them.
    pub fn start(count: usize, batches: bool) -> io::Result<Self> {
        let count = match count {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        panics::note_places();
        let stop = CancellationToken::new();
        let control = Builder::new_current_thread().enable_all().build()?;
        let (mut workers, mut threads, mut joins) = (Vec::new(), Vec::new(), Vec::new());
        let (tell, told) = mpsc::channel();
        for number in 0..count {
            let worker = Worker::new()?;
            workers.push(worker.clone());
            let (stop, tell) = (stop.clone(), tell.clone());
            let tokio = control.handle().clone();
            let thread = std::thread::Builder::new().name(format!("worker-{number}"));
            joins.push(thread.spawn(move || {
                // Whoever asked waits for it.
                let _ = tell.send(gettid());
                if batches && let Err(error) = batch::start() {
                    tracing::debug!("no io_uring ({error}): every send is a system call");
                }
                clock::keep_turns();
                let _entered = tokio.enter();
                worker.run(stop.cancelled());
                batch::stop();
            })?);
            threads.extend(told.recv());
        }
        Ok(Self {
            workers: Workers::new(workers),
            threads,
            control,
            stop,
            joins,
        })
    }

    /// Runs the main thread's part to its end, then stops the workers. Tasks that still run are dropped,
    /// and their connections closed.
    pub fn run<T>(self, main: impl Future<Output = T>) -> T {
        let result = self.control.block_on(main);
        self.stop.cancel();
        for thread in self.joins {
            // A worker that panicked has said so; there is nothing left to stop.
            let _ = thread.join();
        }
        result
    }
}
