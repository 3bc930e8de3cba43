//! Which sockets of a worker have something for us: an epoll of the worker's own, asked between two rounds of its tasks.
//!
//! A socket is registered once, edge-triggered, and has a [`Place`] here: what is known of it, and who is to be woken. Whoever
//! finds the socket empty or full clears what was known, by comparing: what became known in the meantime stays. So a
//! place may be used from any thread, though nearly always it is the worker's.
//!
//! What a place knows may be wrong in one direction only: it may say that there is something where there is nothing. (An event
//! can still be under way when its socket is closed and its place given to another.) The next attempt then finds that
//! out, and clears it.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use parking_lot::Mutex;

use super::executor;

/// There is something to read, or there was.
const READABLE: u32 = 1;
/// There is room to write, or there was.
const WRITABLE: u32 = 1 << 1;
/// Nothing more will come: what is left can be read, and then the end or an error.
const ENDED: u32 = 1 << 2;
/// Room to write is noticed. (Not before the socket was full: each time the peer of a Unix socket reads, there is more.)
const WATCHES_ROOM: u32 = 1 << 3;
/// What is counted above: events.
const EVENT: u32 = 1 << 4;

/// Places come in pieces of so many, which never move.
const PIECE: usize = 64;

/// So many events are taken at a time; the next round takes the rest.
const EVENTS: usize = 256;

/// The number of no place.
const NOBODY: u64 = u64::MAX;

/// What is known of a socket. One cache line.
#[derive(Debug, Default)]
struct Slot {
    state: AtomicU32,
    /// Tells the reader's waker from others without the lock: what [`Waker::data`] says of it. 0: it has none.
    reader: AtomicUsize,
    wakers: Mutex<Wakers>,
}

#[derive(Debug, Default)]
struct Wakers {
    reader: Option<Waker>,
    /// Most sockets are never full.
    writer: Option<Box<Waker>>,
}

#[derive(Debug)]
struct Piece {
    /// Whose it is. (Here, as it is seldom asked for, and there is a place for each client.)
    reactor: Weak<Reactor>,
    slots: [Slot; PIECE],
}

/// The sockets of a worker.
#[derive(Debug)]
pub struct Reactor {
    epoll: Epoll,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    pieces: Vec<Arc<Piece>>,
    free: Vec<u32>,
}

/// A registered socket's place. Given up when dropped; the socket should be closed by then, or be [removed](Self::remove).
#[derive(Debug)]
pub struct Place {
    piece: Arc<Piece>,
    number: u32,
}

/// What was known of a socket when it was tried.
#[derive(Debug, Clone, Copy)]
pub struct Seen(u32);

/// Where a worker's thread takes events.
#[derive(Debug)]
pub struct Events {
    buffer: Box<[EpollEvent]>,
    /// A copy, so that nothing is locked while tasks are woken.
    pieces: Vec<Arc<Piece>>,
}

impl Events {
    /// Room for as many as are taken at a time.
    pub fn new() -> Self {
        Self {
            buffer: vec![EpollEvent::empty(); EVENTS].into_boxed_slice(),
            pieces: Vec::new(),
        }
    }
}

fn interest(more: EpollFlags) -> EpollFlags {
    EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET | more
}

impl Reactor {
    /// One without sockets.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            places: Mutex::default(),
        })
    }

    /// Ends the wait whenever this is written to.
    pub(super) fn watch(&self, bell: impl AsFd) -> io::Result<()> {
        let event = EpollEvent::new(interest(EpollFlags::empty()), NOBODY);
        Ok(self.epoll.add(bell, event)?)
    }

    /// Registers a non-blocking socket. From any thread.
    pub fn register(self: &Arc<Self>, socket: impl AsFd) -> io::Result<Place> {
        let place = self.take_place();
        let event = EpollEvent::new(interest(EpollFlags::empty()), place.number.into());
        self.epoll.add(socket, event)?;
        Ok(place)
    }

    /// The epoll itself, for a test that waits for it by other means.
    #[cfg(test)]
    pub(super) fn descriptor(&self) -> io::Result<std::os::fd::OwnedFd> {
        self.epoll.0.try_clone()
    }

    fn take_place(self: &Arc<Self>) -> Place {
        let mut places = self.places.lock();
        let number = places.free.pop().unwrap_or_else(|| {
            let first = places.pieces.len() * PIECE;
            let numbers = (first + 1..first + PIECE).rev();
            places.free.extend(numbers.filter_map(narrow));
            narrow(first).unwrap_or_default()
        });
        let piece = places.pieces.get(number as usize / PIECE).cloned();
        let piece = piece.unwrap_or_else(|| {
            let piece = Arc::new(Piece {
                reactor: Arc::downgrade(self),
                slots: [const { Slot::new() }; PIECE],
            });
            places.pieces.push(piece.clone());
            piece
        });
        let place = Place { piece, number };
        place.slot().state.store(0, Ordering::Release);
        place
    }

    /// Takes the events that are there, waiting for the first if `waits`, and wakes whom they are for.
    pub fn turn(&self, events: &mut Events, waits: bool) {
        let timeout = if waits {
            EpollTimeout::NONE
        } else {
            EpollTimeout::ZERO
        };
        let count = match self.epoll.wait(&mut events.buffer, timeout) {
            Ok(count) => count,
            // A signal: as if nothing had happened.
            Err(Errno::EINTR) => 0,
            Err(error) => {
                // It cannot fail, with arguments like these; and if it does, nothing can be done without it.
                tracing::error!("epoll_wait: {error}");
                0
            }
        };
        for event in events.buffer.iter().take(count) {
            let number = event.data();
            if number == NOBODY {
                continue;
            }
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            if number / PIECE >= events.pieces.len() {
                events.pieces.clone_from(&self.places.lock().pieces);
            }
            if let Some(piece) = events.pieces.get(number / PIECE) {
                slot(piece, number).notice(event.events());
            }
        }
    }
}

/// (No process has so many sockets.)
fn narrow(number: usize) -> Option<u32> {
    u32::try_from(number).ok()
}

#[inline]
#[allow(clippy::indexing_slicing, reason = "the remainder is in range")]
fn slot(piece: &Piece, number: usize) -> &Slot {
    &piece.slots[number % PIECE]
}

impl Slot {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            reader: AtomicUsize::new(0),
            wakers: Mutex::new(Wakers {
                reader: None,
                writer: None,
            }),
        }
    }

    fn notice(&self, events: EpollFlags) {
        let failed = EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
        let mut news = 0;
        if events.intersects(EpollFlags::EPOLLIN) {
            news |= READABLE;
        }
        if events.intersects(EpollFlags::EPOLLRDHUP | failed) {
            news |= READABLE | ENDED;
        }
        if events.intersects(EpollFlags::EPOLLOUT | failed) {
            news |= WRITABLE;
        }
        let mut state = self.state.load(Ordering::Relaxed);
        while let Err(newer) = self.state.compare_exchange_weak(
            state,
            state.wrapping_add(EVENT) | news,
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            state = newer;
        }
        let wakers = self.wakers.lock();
        if news & READABLE != 0
            && let Some(reader) = &wakers.reader
        {
            reader.wake_by_ref();
        }
        if news & WRITABLE != 0
            && let Some(writer) = &wakers.writer
        {
            writer.wake_by_ref();
        }
    }

    #[inline]
    fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// Nothing that became known since then is forgotten.
    #[inline]
    fn clear(&self, seen: Seen, what: u32) {
        // A failure says that there is an event since.
        let _ = self.state.compare_exchange(
            seen.0,
            seen.0 & !what,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    #[cold]
    #[inline(never)]
    fn register_reader(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        wakers.reader = Some(waker.clone());
        self.reader.store(waker.data().addr(), Ordering::Relaxed);
    }
}

impl Place {
    #[inline]
    fn slot(&self) -> &Slot {
        slot(&self.piece, self.number as usize)
    }

    /// Is there nothing to read, as far as is known, and is this task the one that will be woken? What can be told without
    /// a lock: after it [`poll_readable`](Self::poll_readable) would say `Pending`.
    #[inline]
    pub fn waits_already(&self, cx: &Context<'_>) -> bool {
        let slot = self.slot();
        // (No waker can have the same data while this one is registered: it holds on to them.)
        let own = cx.waker().data().addr();
        slot.state() & (READABLE | ENDED) == 0
            && slot.reader.load(Ordering::Relaxed) == own
            && own != 0
    }

    /// Is there something to read, as far as is known? Then the socket should be tried, and what came of it be told by
    /// [`is_empty`](Self::is_empty) or [`was_short`](Self::was_short). A task that reads much is told `Pending` now and then,
    /// to let others have a turn; it is woken at once.
    #[inline]
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Seen> {
        let slot = self.slot();
        let mut state = slot.state();
        if state & (READABLE | ENDED) == 0 {
            slot.register_reader(cx.waker());
            // It may have become known in between, with nobody to be woken.
            state = slot.state();
            if state & (READABLE | ENDED) == 0 {
                return Poll::Pending;
            }
        }
        if executor::spend() {
            return Poll::Ready(Seen(state));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Is there something to read, as far as is known?
    pub fn is_readable(&self) -> Option<Seen> {
        let state = self.slot().state();
        (state & (READABLE | ENDED) != 0).then_some(Seen(state))
    }

    /// The socket had nothing to read.
    #[inline]
    pub fn is_empty(&self, seen: Seen) {
        self.slot().clear(seen, READABLE | ENDED);
    }

    /// The socket gave less than there was room for: it is empty now, and more will be told as an event. (What was told
    /// of its end is not told again.)
    #[inline]
    pub fn was_short(&self, seen: Seen) {
        self.slot().clear(seen, READABLE);
    }

    /// The socket was full. `Ready`: it may not be any more. Its waker is registered otherwise.
    #[cold]
    pub fn poll_room(&self, cx: &mut Context<'_>, socket: impl AsFd) -> Poll<io::Result<()>> {
        let slot = self.slot();
        let seen = Seen(slot.state());
        if seen.0 & WRITABLE != 0 {
            slot.clear(seen, WRITABLE);
            return Poll::Ready(Ok(()));
        }
        {
            let mut wakers = slot.wakers.lock();
            let known = wakers.writer.as_ref();
            if !known.is_some_and(|waker| waker.will_wake(cx.waker())) {
                wakers.writer = Some(Box::new(cx.waker().clone()));
            }
        }
        if slot.state.fetch_or(WATCHES_ROOM, Ordering::AcqRel) & WATCHES_ROOM == 0 {
            // What is so already is told as an event at once.
            let watched = interest(EpollFlags::EPOLLOUT);
            let mut event = EpollEvent::new(watched, self.number.into());
            let reactor = self.reactor()?;
            reactor.epoll.modify(socket, &mut event)?;
        }
        if slot.state() & WRITABLE != 0 {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// Takes the socket off this worker.
    pub fn remove(self, socket: impl AsFd) -> io::Result<()> {
        Ok(self.reactor()?.epoll.delete(socket)?)
    }

    /// An error: its worker has ended.
    fn reactor(&self) -> io::Result<Arc<Reactor>> {
        let reactor = self.piece.reactor.upgrade();
        reactor.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let slot = self.slot();
        slot.reader.store(0, Ordering::Relaxed);
        let wakers = std::mem::take(&mut *slot.wakers.lock());
        // Not under a lock: a waker may be the last that holds on to something.
        drop(wakers);
        if let Some(reactor) = self.piece.reactor.upgrade() {
            reactor.places.lock().free.push(self.number);
        }
    }
}

#[cfg(test)]
mod tests;
