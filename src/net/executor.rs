//! A worker: the thread that runs its tasks, and wakes up when one of its sockets has something.
//!
//! ```text
//!      ┌──▶ tasks that were woken, each once ──▶ notes of other threads ──▶ what was staged is sent ──┐
//!      │                                                                                              │
//!      └──────── those whose sockets have something are woken ◀── sleep, if nobody is woken ◀─────────┘
//! ```
//!
//! Timers, connecting, names and what blocks are tokio's: whoever starts a worker's thread enters a runtime that runs on
//! another one. A task is woken from there like from any other thread: by a note, and a bell if the worker sleeps.
//! Nothing on the way of a query needs any of that, which is why workers are not tokio's themselves: a quarter
//! of the instructions of a transaction went there.
//!
//! No wake is lost because a task is marked as woken before it is put down for a turn, and the mark is taken away before, not
//! after, it is polled. And none from another thread, because who leaves a note says so (`CALLED`) when it is there, and
//! the worker says that it sleeps (`ASLEEP`) only if nobody has said anything since it last read them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use super::batch;
use super::reactor::{Events, Reactor};
use crate::stats::clock;

/// So many tasks are polled before sockets and notes are looked at again.
const ROUND: usize = 128;

/// So often a task may read before others have their turn.
const SHARE: u32 = 128;

/// What a thread that runs no worker has: as much as it likes.
const UNLIMITED: u32 = u32::MAX;

/// The number of the future that [`Worker::run`] was called with.
const MAIN: u32 = u32::MAX;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A worker as other threads see it.
#[derive(Debug, Clone)]
pub struct Worker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    reactor: Arc<Reactor>,
    /// One of [`AWAKE`], [`ASLEEP`] and [`CALLED`].
    attention: AtomicU8,
    /// `None`: it has ended.
    notes: Mutex<Option<Vec<Note>>>,
    bell: EventFd,
    /// How many of its tasks have panicked.
    panics: AtomicU64,
    /// Its tasks run there.
    #[cfg(test)]
    host: Option<tokio::runtime::Handle>,
}

/// It runs tasks, and has seen all notes.
const AWAKE: u8 = 0;
/// It waits for its sockets, or is about to.
const ASLEEP: u8 = 1;
/// There are notes.
const CALLED: u8 = 2;

enum Note {
    Start(Job),
    Wake(Arc<Task>),
}

impl std::fmt::Debug for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Start(_) => "Start",
            Self::Wake(_) => "Wake",
        })
    }
}

/// What wakers know of a task.
struct Task {
    home: Arc<Shared>,
    number: u32,
    /// It was woken since it was last polled; or it has ended, and can't be woken any more.
    is_woken: AtomicBool,
}

/// A task as its worker has it.
struct Entry {
    job: Job,
    task: Arc<Task>,
    waker: Waker,
}

/// So many are kept together. `None`: free.
const PIECE: usize = 64;
type Piece = [Option<Entry>; PIECE];

/// What is to be done next.
#[derive(Default)]
struct Due {
    /// Numbers of tasks.
    woken: Vec<u32>,
    started: Vec<Job>,
}

thread_local! {
    /// Which worker this thread runs: the address of what it shares, or 0.
    static HERE: Cell<usize> = const { Cell::new(0) };
    /// What is left of the share of the task that runs.
    static LEFT: Cell<u32> = const { Cell::new(UNLIMITED) };
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
    static DUE: RefCell<Due> = const {
        RefCell::new(Due {
            woken: Vec::new(),
            started: Vec::new(),
        })
    };
}

/// Takes a bit of the share of the task that runs. `false`: it is used up, and others should have their turn.
#[inline]
pub fn spend() -> bool {
    match LEFT.get() {
        0 => false,
        UNLIMITED => true,
        left => {
            LEFT.set(left - 1);
            true
        }
    }
}

/// The sockets of the worker that this thread runs.
pub fn reactor() -> io::Result<Arc<Reactor>> {
    let here = WORKER.with_borrow(|worker| worker.as_ref().map(|it| it.0.reactor.clone()));
    #[cfg(test)]
    let here = here.or_else(guest::reactor);
    here.ok_or_else(|| io::Error::other("this thread is no worker"))
}

impl Shared {
    #[inline]
    fn is_here(self: &Arc<Self>) -> bool {
        HERE.get() == Arc::as_ptr(self).addr()
    }

    fn leave_note(&self, note: Note) {
        {
            let mut notes = self.notes.lock();
            let Some(notes) = &mut *notes else {
                // (The lock goes before the note does, which may hold something that leaves another.)
                return;
            };
            notes.push(note);
        }
        if self.attention.swap(CALLED, Ordering::AcqRel) == ASLEEP {
            // Its counter cannot be full: nobody else writes so often.
            let _ = self.bell.write(1);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    #[inline]
    fn wake_by_ref(self: &Arc<Self>) {
        // (Always written to: who polls the task next must see all that we did before.)
        if self.is_woken.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.home.is_here() {
            DUE.with_borrow_mut(|due| due.woken.push(self.number));
        } else {
            self.home.leave_note(Note::Wake(self.clone()));
        }
    }
}

impl Worker {
    /// One that no thread runs yet.
    pub fn new() -> io::Result<Self> {
        let reactor = Reactor::new()?;
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        reactor.watch(&bell)?;
        Ok(Self(Arc::new(Shared {
            reactor: Arc::new(reactor),
            attention: AtomicU8::new(AWAKE),
            notes: Mutex::new(Some(Vec::new())),
            bell,
            panics: AtomicU64::new(0),
            #[cfg(test)]
            host: None,
        })))
    }

    /// Its sockets.
    pub fn reactor(&self) -> &Arc<Reactor> {
        &self.0.reactor
    }

    /// How many of its tasks have panicked.
    pub fn panics(&self) -> u64 {
        self.0.panics.load(Ordering::Relaxed)
    }

    /// Starts a task. If it panics it ends, and nothing else does. On a worker that has ended it is dropped.
    pub fn spawn<F>(&self, job: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        #[cfg(test)]
        if let Some(host) = &self.0.host {
            host.spawn(job);
            return;
        }
        let job: Job = Box::pin(job);
        if self.0.is_here() {
            DUE.with_borrow_mut(|due| due.started.push(job));
        } else {
            self.0.leave_note(Note::Start(job));
        }
    }

    /// Runs the worker on the thread that calls this, until `main` is done. Tasks that still run then are dropped. A
    /// worker is run once.
    pub fn run<F: Future>(&self, main: F) -> F::Output {
        let mut main = pin!(main);
        let task = Arc::new(Task {
            home: self.0.clone(),
            number: MAIN,
            is_woken: AtomicBool::new(true),
        });
        let waker = Waker::from(task.clone());
        let mut tasks = Tasks::begin(self);
        let mut events = Events::new();
        let (mut due, mut notes) = (Due::default(), Vec::new());
        due.woken.push(MAIN);
        loop {
            let mut polled = 0;
            loop {
                polled += due.woken.len();
                for number in due.woken.drain(..) {
                    if number != MAIN {
                        tasks.poll(number);
                        continue;
                    }
                    task.is_woken.swap(false, Ordering::AcqRel);
                    LEFT.set(SHARE);
                    let polled = main.as_mut().poll(&mut Context::from_waker(&waker));
                    if let Poll::Ready(done) = polled {
                        return done;
                    }
                }
                DUE.with_borrow_mut(|next| std::mem::swap(&mut due, next));
                tasks.start(&mut due);
                if due.woken.is_empty() || polled >= ROUND {
                    break;
                }
            }
            self.read_notes(&mut due, &mut notes);
            tasks.start(&mut due);
            batch::flush();
            clock::end_turn();
            let is_idle = due.woken.is_empty() && DUE.with_borrow(Due::is_empty);
            let sleeps = is_idle && self.falls_asleep();
            self.0.reactor.turn(&mut events, sleeps);
            if sleeps {
                self.awakes();
            }
            DUE.with_borrow_mut(|next| due.append(next));
            tasks.start(&mut due);
        }
    }

    /// `false`: there are notes.
    fn falls_asleep(&self) -> bool {
        self.0
            .attention
            .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    fn awakes(&self) {
        // If it is called by now, it stays so.
        let _ =
            self.0
                .attention
                .compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// `read` is empty, and there so that nothing need be allocated.
    fn read_notes(&self, due: &mut Due, read: &mut Vec<Note>) {
        let attention = &self.0.attention;
        if attention.load(Ordering::Acquire) != CALLED {
            return;
        }
        attention.swap(AWAKE, Ordering::AcqRel);
        if let Some(notes) = &mut *self.0.notes.lock() {
            std::mem::swap(notes, read);
        }
        for note in read.drain(..) {
            match note {
                Note::Start(job) => due.started.push(job),
                Note::Wake(task) => due.woken.push(task.number),
            }
        }
    }
}

impl Due {
    fn is_empty(&self) -> bool {
        self.woken.is_empty() && self.started.is_empty()
    }

    fn append(&mut self, more: &mut Self) {
        self.woken.append(&mut more.woken);
        self.started.append(&mut more.started);
    }
}

/// The tasks of a worker, and the mark on its thread that says so.
struct Tasks<'a> {
    worker: &'a Worker,
    #[allow(
        clippy::vec_box,
        reason = "a vector that grows takes up to twice what it needs"
    )]
    entries: Vec<Box<Piece>>,
    free: Vec<u32>,
}

impl<'a> Tasks<'a> {
    fn begin(worker: &'a Worker) -> Self {
        HERE.set(Arc::as_ptr(&worker.0).addr());
        WORKER.set(Some(worker.clone()));
        Self {
            worker,
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Those that are to be started become such that were woken, before the others.
    fn start(&mut self, due: &mut Due) {
        if due.started.is_empty() {
            return;
        }
        let jobs = std::mem::take(&mut due.started);
        let numbers = jobs.into_iter().map(|job| self.enter(job));
        due.woken.splice(..0, numbers);
    }

    fn enter(&mut self, job: Job) -> u32 {
        if self.free.is_empty() {
            let first = self.entries.len() * PIECE;
            let numbers = (first..first + PIECE).rev();
            self.free
                .extend(numbers.filter_map(|number| u32::try_from(number).ok()));
            self.entries.push(Box::new([const { None }; PIECE]));
        }
        let number = self.free.pop().unwrap_or(MAIN);
        let task = Arc::new(Task {
            home: self.worker.0.clone(),
            number,
            is_woken: AtomicBool::new(true),
        });
        let waker = Waker::from(task.clone());
        if let Some(place) = self.place(number) {
            *place = Some(Entry { job, task, waker });
        }
        number
    }

    #[inline]
    fn place(&mut self, number: u32) -> Option<&mut Option<Entry>> {
        let number = number as usize;
        let piece = self.entries.get_mut(number / PIECE)?;
        piece.get_mut(number % PIECE)
    }

    /// Polls a task that was woken. It may have ended since; then another that has its number may be polled for nothing.
    #[inline]
    fn poll(&mut self, number: u32) {
        let Some(place) = self.place(number) else {
            return;
        };
        let Some(Entry { job, task, waker }) = place else {
            return;
        };
        task.is_woken.swap(false, Ordering::AcqRel);
        LEFT.set(SHARE);
        let mut context = Context::from_waker(waker);
        let polled = catch_unwind(AssertUnwindSafe(|| job.as_mut().poll(&mut context)));
        if let Ok(Poll::Pending) = polled {
            return;
        }
        let ended = place.take();
        match polled {
            Ok(_) => ended.into_iter().for_each(Entry::end),
            Err(panic) => self.panicked(&*panic, ended),
        }
        self.free.push(number);
    }

    /// A task has panicked: a bug, which costs nobody but the task what it has.
    #[cold]
    fn panicked(&self, panic: &(dyn Any + Send), ended: Option<Entry>) {
        self.worker.0.panics.fetch_add(1, Ordering::Relaxed);
        panics::report(panic);
        let _unwound = panics::Unwound::begin();
        ended.into_iter().for_each(Entry::end);
    }
}

impl Entry {
    /// What it has is dropped, which may wake and start others.
    fn end(self) {
        self.task.is_woken.store(true, Ordering::Release);
        let job = self.job;
        // (It was reported when it was raised.)
        let _ = catch_unwind(AssertUnwindSafe(move || drop(job)));
    }
}

/// Ends the worker, also if its future panics.
impl Drop for Tasks<'_> {
    fn drop(&mut self) {
        LEFT.set(UNLIMITED);
        std::mem::take(&mut self.entries)
            .into_iter()
            .flat_map(|piece| *piece)
            .flatten()
            .for_each(Entry::end);
        HERE.set(0);
        WORKER.set(None);
        // Nobody is started any more, neither by those who go now.
        let notes = self.worker.0.notes.lock().take();
        drop(notes);
        let due = DUE.take();
        drop(due);
    }
}

pub mod panics;

#[cfg(test)]
mod guest;
#[cfg(test)]
mod tests;
