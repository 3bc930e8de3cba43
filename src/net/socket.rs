//! A plain socket, registered with the worker whose task uses it.
//!
//! Reads and writes try at once and register for a wake-up only when the socket has nothing for us. What is small and sent
//! on a worker leaves with the thread's next [`batch`]; for the caller it is sent.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use socket2::SockRef;

use super::reactor::Place;
use super::{batch, executor, sys};

/// A non-blocking stream socket that no worker knows of.
#[derive(Debug)]
pub enum Raw {
    /// TCP.
    Tcp(std::net::TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
}

/// A socket and what a batch could not get rid of.
#[derive(Debug)]
pub(super) struct Shared {
    /// (Closed before its place is given up.)
    raw: Raw,
    place: Place,
    /// Is there something in `unsent`?
    is_held: AtomicBool,
    unsent: Mutex<Option<Box<Unsent>>>,
}

#[derive(Debug)]
enum Unsent {
    /// The socket had no room.
    Bytes(Vec<u8>),
    /// The socket failed.
    Failed(io::Error),
}

/// A registered socket.
#[derive(Debug)]
pub struct Socket(Arc<Shared>);

/// A socket between two workers, with what it had no room for.
#[derive(Debug)]
pub struct Loose {
    /// The socket.
    pub raw: Raw,
    unsent: Option<Box<Unsent>>,
}

impl From<Raw> for Loose {
    fn from(raw: Raw) -> Self {
        Self { raw, unsent: None }
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

impl From<Raw> for OwnedFd {
    fn from(raw: Raw) -> Self {
        match raw {
            Raw::Tcp(socket) => socket.into(),
            Raw::Unix(socket) => socket.into(),
        }
    }
}

impl TryFrom<OwnedFd> for Raw {
    type Error = io::Error;

    /// A non-blocking stream socket that another process has passed on.
    fn try_from(socket: OwnedFd) -> io::Result<Self> {
        let is_unix = SockRef::from(&socket).local_addr()?.is_unix();
        Ok(if is_unix {
            Self::Unix(socket.into())
        } else {
            Self::Tcp(socket.into())
        })
    }
}

impl Loose {
    /// The socket alone, for another process. An error: it has something left to send.
    pub(super) fn into_descriptor(self) -> io::Result<OwnedFd> {
        match self.unsent {
            None => Ok(self.raw.into()),
            Some(_) => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }
}

impl Raw {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        sys::read(self.as_fd(), buf)
    }

    fn write(&self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => (&*socket).write(buf),
            Self::Unix(socket) => (&*socket).write(buf),
        }
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

impl Shared {
    /// Is it part of the thread's batch?
    #[inline]
    pub(super) fn is_staged(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    /// Tries once.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.raw.write(bytes)
    }

    /// Keeps what a batch could not send; the socket's task sends it before anything else.
    pub(super) fn hold(&self, bytes: &[u8]) {
        self.set_unsent(Unsent::Bytes(bytes.to_vec()));
    }

    /// Tells the socket's task that its bytes could not be sent.
    pub(super) fn fail(&self, error: io::Error) {
        self.set_unsent(Unsent::Failed(error));
    }

    fn set_unsent(&self, unsent: Unsent) {
        *self.unsent.lock() = Some(Box::new(unsent));
        self.is_held.store(true, Ordering::Release);
    }

    fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.send(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // What the reactor knows may be older than this refusal: once more before waiting.
                    ready!(self.place.poll_room(cx, &self.raw))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn poll_unsent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut unsent = self.unsent.lock();
        match unsent.as_deref_mut() {
            None => {}
            Some(Unsent::Failed(error)) => {
                // It stays failed.
                return Poll::Ready(Err(error.kind().into()));
            }
            Some(Unsent::Bytes(bytes)) => {
                while !bytes.is_empty() {
                    match ready!(self.poll_send(cx, bytes))? {
                        0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                        sent => drop(bytes.drain(..sent)),
                    }
                }
                *unsent = None;
            }
        }
        self.is_held.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl Socket {
    /// Registers a non-blocking socket with the worker that calls this.
    pub fn new(socket: Loose) -> io::Result<Self> {
        Ok(Self(Arc::new(Shared {
            place: executor::reactor()?.register(&socket.raw)?,
            raw: socket.raw,
            is_held: AtomicBool::new(socket.unsent.is_some()),
            unsent: Mutex::new(socket.unsent),
        })))
    }

    /// Takes the socket off its worker. It must have been [settled](Self::settle) there: one that is still part of
    /// another thread's batch is refused, as its bytes could come out of order.
    pub fn loosen(self) -> io::Result<Loose> {
        self.settle();
        match Arc::try_unwrap(self.0) {
            Ok(shared) => {
                shared.place.remove(&shared.raw)?;
                Ok(Loose {
                    raw: shared.raw,
                    unsent: shared.unsent.into_inner(),
                })
            }
            Err(_) => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }

    /// The socket itself.
    pub fn raw(&self) -> &Raw {
        &self.0.raw
    }

    /// Reads into `buf`; 0 is the end of the stream.
    ///
    /// A short read clears the readiness but registers no waker: a caller that wants to be woken
    /// must poll until it is told `Pending`.
    #[inline]
    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.0.place.waits_already(cx) {
            return Poll::Pending;
        }
        self.try_read(cx, buf)
    }

    fn try_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let Shared { raw, place, .. } = &*self.0;
        loop {
            let seen = ready!(place.poll_readable(cx));
            match raw.read(buf) {
                Ok(read) => {
                    // A short read has emptied an edge-triggered socket.
                    if 0 < read && read < buf.len() {
                        place.was_short(seen);
                    }
                    return Poll::Ready(Ok(read));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => place.is_empty(seen),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Takes some of `buf`, as far as there is room; the waker is registered when there is none.
    #[inline]
    pub fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(cx))?;
        if batch::stage(&self.0, cx.waker(), buf) {
            return Poll::Ready(Ok(buf.len()));
        }
        // (A large send goes at once and takes the waiting ones along, so these never wait for a long stream of another.)
        batch::flush();
        ready!(self.poll_flush(cx))?;
        self.0.poll_send(cx, buf)
    }

    /// Was something taken that the socket had no room for? Then [`poll_flush`](Self::poll_flush) is due.
    #[inline]
    pub fn wants_write(&self) -> bool {
        self.0.is_held.load(Ordering::Acquire)
    }

    /// Sends what was taken and found no room.
    #[inline]
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.wants_write() {
            return self.0.poll_unsent(cx);
        }
        Poll::Ready(Ok(()))
    }

    /// Is something taken that waits for others to go along?
    #[inline]
    pub fn is_staged(&self) -> bool {
        self.0.is_staged()
    }

    /// Sends what was taken and waits for others. What finds no room then is [held](Self::wants_write).
    #[inline]
    pub fn settle(&self) {
        if self.is_staged() {
            batch::flush();
        }
    }

    /// Writes what fits at once, without waiting.
    pub fn write_once(&self, buf: &[u8]) -> io::Result<usize> {
        self.settle();
        if self.wants_write() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.0.send(buf)
    }

    /// Runs `test` if the reactor has noticed something to read; else it is `WouldBlock`. If `test` is told so by the
    /// socket, that is remembered.
    pub fn if_readable<T>(&self, test: impl FnOnce(&Raw) -> io::Result<T>) -> io::Result<T> {
        let Shared { raw, place, .. } = &*self.0;
        let Some(seen) = place.is_readable() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        test(raw).inspect_err(|error| {
            if error.kind() == io::ErrorKind::WouldBlock {
                place.is_empty(seen);
            }
        })
    }
}
