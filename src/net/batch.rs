//! Small sends that wait for each other, to go out with one system call.
//!
//! A worker that has several sockets ready handles them all before it looks for more; what it has to send in that
//! turn is staged here and leaves together when the thread is about to sleep, or when enough has come together. Besides
//! the system calls this saves wake-ups: a peer woken by a send may take the processor from us before the next
//! one is even made, and then gets a turn, and a wake-up, for each message by itself (PostgreSQL's servers and clients
//! do). At 100 clients a quarter of all CPU went there.
//!
//! A staged socket cannot be closed, and its number not be used for another, before its bytes are off: a share of it is
//! held here. It is staged at most once, so its bytes keep their order.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Waker;

use super::socket::Shared;
use super::sys::{Outgoing, Ring};

/// More than this goes out by itself.
pub const LIMIT: usize = 4 * 1024;

/// So many sockets at most.
const SOCKETS: usize = 32;

struct Staged {
    socket: Arc<Shared>,
    /// Of the task that has sent it, in case the socket does not take all.
    waker: Waker,
    bytes: Vec<u8>,
}

struct Batch {
    /// `None`: it failed.
    ring: Option<Ring>,
    staged: Vec<Staged>,
    buffers: Vec<Vec<u8>>,
}

thread_local! {
    static BATCH: RefCell<Option<Batch>> = const { RefCell::new(None) };
}

/// Lets the thread that calls this send in batches. From then on it must call [`flush`] before it sleeps.
pub fn start() -> io::Result<()> {
    let ring = Ring::new(u32::try_from(SOCKETS).unwrap_or(u32::MAX))?;
    BATCH.set(Some(Batch {
        ring: Some(ring),
        staged: Vec::with_capacity(SOCKETS),
        buffers: Vec::with_capacity(SOCKETS),
    }));
    Ok(())
}

/// Sends what is staged, and stages nothing from now on.
pub fn stop() {
    flush();
    BATCH.set(None);
}

/// Sends what this thread has staged.
pub fn flush() {
    BATCH.with_borrow_mut(|batch| {
        if let Some(batch) = batch {
            batch.flush();
        }
    });
}

/// Takes the bytes, if this thread batches and they fit; whoever sends them has nothing unsent at this socket that
/// is not staged.
#[inline]
pub(super) fn stage(socket: &Arc<Shared>, waker: &Waker, bytes: &[u8]) -> bool {
    if bytes.len() > LIMIT {
        return false;
    }
    BATCH.with_borrow_mut(|batch| match batch {
        Some(batch) if batch.ring.is_some() => batch.stage(socket, waker, bytes),
        _ => false,
    })
}

impl Batch {
    fn stage(&mut self, socket: &Arc<Shared>, waker: &Waker, bytes: &[u8]) -> bool {
        if socket.is_staged() {
            let mut staged = self.staged.iter_mut().rev();
            let Some(earlier) = staged.find(|staged| Arc::ptr_eq(&staged.socket, socket)) else {
                return false;
            };
            if earlier.bytes.len() + bytes.len() > LIMIT {
                return false;
            }
            earlier.bytes.extend_from_slice(bytes);
            return true;
        }
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.extend_from_slice(bytes);
        self.staged.push(Staged {
            socket: Arc::clone(socket),
            waker: waker.clone(),
            bytes: buffer,
        });
        if self.staged.len() == SOCKETS {
            self.flush();
        }
        true
    }

    fn flush(&mut self) {
        let mut is_done = [false; SOCKETS];
        if self.staged.len() > 1
            && let Some(ring) = &mut self.ring
        {
            let staged = &self.staged;
            let sends = staged.iter().map(|staged| Outgoing {
                socket: staged.socket.as_fd(),
                bytes: &staged.bytes,
            });
            let sent = ring.send_all(sends, |number, result| {
                if let (Some(is_done), Some(staged)) = (is_done.get_mut(number), staged.get(number))
                {
                    *is_done = true;
                    staged.finish(result);
                }
            });
            if let Err(error) = sent {
                tracing::error!("{error}; every send is a system call from now on");
                self.ring = None;
            }
        }
        for (staged, is_done) in self.staged.drain(..).zip(is_done) {
            if !is_done {
                staged.finish(staged.socket.send(&staged.bytes));
            }
            let mut buffer = staged.bytes;
            buffer.clear();
            self.buffers.push(buffer);
        }
    }
}

impl Staged {
    #[inline]
    fn finish(&self, result: io::Result<usize>) {
        match result {
            Ok(sent) if sent == self.bytes.len() => return,
            Ok(sent) => self.socket.hold(self.bytes.get(sent..).unwrap_or_default()),
            Err(error) if may_be_repeated(&error) => self.socket.hold(&self.bytes),
            Err(error) => self.socket.fail(error),
        }
        self.waker.wake_by_ref();
    }
}

fn may_be_repeated(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests;
