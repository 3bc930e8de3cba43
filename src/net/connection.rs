//! A stream with the bytes it could not get rid of yet: those read and not used, and those
//! to be sent that the socket did not take.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use super::scratch;
use super::socket::Raw;
use super::stream::{Detached, Stream};
use crate::protocol::frame;

/// A framed connection.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub stream: Stream,
    /// Read and not used yet: usually nothing, else the beginning of a message, or messages
    /// whose turn has not come.
    pub kept: Vec<u8>,
    /// Nearly always nothing, so it takes no more room than that.
    backlog: Option<Box<Backlog>>,
}

/// What the socket has not taken yet.
#[derive(Debug, Default)]
struct Backlog {
    bytes: Vec<u8>,
    /// So many of them it has taken.
    sent: usize,
}

/// Why no message could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The socket failed, or ended in the middle of a message.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The bytes are no message.
    #[error("{0}")]
    Protocol(#[from] crate::protocol::Error),
}

/// A whole message, for the parts of a connection's life that are not hot: login, checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its tag byte.
    pub tag: u8,
    /// What follows the length.
    pub body: Vec<u8>,
}

impl Connection {
    /// A connection over a fresh stream.
    pub fn new(stream: Stream) -> Self {
        Self {
            stream,
            kept: Vec::new(),
            backlog: None,
        }
    }

    /// A connection that was just accepted, with what its other end has said already: mostly that is there by then, and
    /// nobody has to wait for it. Fails if the other end is gone.
    pub fn accepted(socket: Detached) -> io::Result<Self> {
        let read = scratch::with(|scratch| {
            let read = socket.read_early(&mut scratch.read)?;
            let mut kept = Vec::new();
            put(&mut kept, scratch.read.get(..read).unwrap_or_default());
            Ok(kept)
        });
        let kept = match read {
            Ok(kept) if kept.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(kept) => kept,
            Err(error) if may_come(&error) => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self {
            kept,
            ..Self::new(socket.attach()?)
        })
    }

    /// Takes the socket off its worker, for another process, with what was read and not used. An error: it is encrypted, or has
    /// something left to send.
    pub fn into_descriptor(mut self) -> io::Result<(OwnedFd, Vec<u8>)> {
        self.stream.settle();
        let kept = std::mem::take(&mut self.kept);
        let busy = || io::Error::from(io::ErrorKind::ResourceBusy);
        if self.has_backlog() {
            return Err(busy());
        }
        match self.stream.detach()? {
            Detached::Plain(socket) => Ok((socket.into_descriptor()?, kept)),
            Detached::Tls(_) => Err(busy()),
        }
    }

    /// A socket that another process has passed on, with what that has read, on the worker that calls this.
    pub fn from_descriptor(socket: OwnedFd, kept: &[u8]) -> io::Result<Self> {
        let socket = Raw::try_from(socket)?;
        let mut connection = Self::new(Detached::Plain(socket.into()).attach()?);
        connection.keep(kept);
        Ok(connection)
    }

    /// Moves the socket to the worker that calls this, with what was kept and what was not sent yet.
    pub fn rehome(self) -> io::Result<Self> {
        let stream = self.stream.detach()?.attach()?;
        Ok(Self { stream, ..self })
    }

    /// Sends `data` after what is waiting to be sent; keeps what the socket does not take. The
    /// waker is registered if anything is kept.
    #[inline]
    pub fn send(&mut self, cx: &mut Context<'_>, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.send_some(cx, data)
    }

    fn send_some(&mut self, cx: &mut Context<'_>, mut data: &[u8]) -> io::Result<()> {
        // (A stream that has something of its own left to send takes nothing, and registers the waker.)
        if self.backlog.is_none() {
            loop {
                match self.stream.poll_write(cx, data) {
                    // Nearly always.
                    Poll::Ready(Ok(n)) if n == data.len() => return Ok(()),
                    Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(Ok(n)) => data = data.get(n..).unwrap_or_default(),
                    Poll::Ready(Err(error)) => return Err(error),
                    Poll::Pending => break,
                }
            }
        }
        self.queue(data);
        Ok(())
    }

    /// Adds to what is waiting to be sent; it goes with the next flush.
    pub fn queue(&mut self, data: &[u8]) {
        if !data.is_empty() {
            put(&mut self.backlog.get_or_insert_default().bytes, data);
        }
    }

    /// Is there something the socket has not taken yet? While there is, whoever produces it should
    /// not be read.
    #[inline]
    pub fn has_backlog(&self) -> bool {
        self.backlog.is_some() || self.stream.wants_write()
    }

    /// How many bytes the socket has not taken yet.
    #[inline]
    pub fn backlog(&self) -> usize {
        let backlog = self.backlog.as_ref();
        backlog.map_or(0, |backlog| backlog.bytes.len() - backlog.sent)
    }

    /// Sends what is waiting; `Ready` when nothing is left.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(backlog) = &mut self.backlog {
            let rest = backlog.bytes.get(backlog.sent..).unwrap_or_default();
            if rest.is_empty() {
                scratch::give_buffer(std::mem::take(&mut backlog.bytes));
                self.backlog = None;
                break;
            }
            match self.stream.poll_write(cx, rest) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => backlog.sent += n,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        self.stream.poll_flush(cx)
    }

    /// Keeps what was not used of the bytes just read.
    #[inline]
    pub fn keep(&mut self, rest: &[u8]) {
        if !rest.is_empty() {
            put(&mut self.kept, rest);
        }
    }

    /// Drops the first `n` kept bytes, which have been used.
    pub fn use_kept(&mut self, n: usize) {
        if n >= self.kept.len() {
            empty(&mut self.kept);
        } else {
            self.kept.drain(..n);
        }
    }

    /// Reads more into `kept`; `Ok(0)` is the end of the stream. Cancel-safe.
    pub async fn read_more(&mut self) -> io::Result<usize> {
        poll_fn(|cx| {
            scratch::with(
                |scratch| match self.stream.poll_read(cx, &mut scratch.read) {
                    Poll::Ready(Ok(n)) => {
                        put(&mut self.kept, scratch.read.get(..n).unwrap_or_default());
                        Poll::Ready(Ok(n))
                    }
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    Poll::Pending => Poll::Pending,
                },
            )
        })
        .await
    }

    /// Reads one whole message of at most `max` bytes. Cancel-safe: what was read stays in `kept`.
    pub async fn read_message(&mut self, max: usize) -> Result<Message, ReadError> {
        loop {
            if let Some(frame) = frame::cut(&self.kept, max)?
                && frame.is_complete()
            {
                let message = Message {
                    tag: frame.tag,
                    body: frame.body().to_vec(),
                };
                let len = frame.len;
                self.use_kept(len);
                return Ok(message);
            }
            if self.read_more().await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Sends all of `data`. Not cancel-safe in the sense that a dropped call may have sent part of
    /// it; the rest then goes out with the next send.
    pub async fn send_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.queue(data);
        poll_fn(|cx| self.poll_flush(cx)).await
    }
}

fn may_come(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn put(buffer: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    if buffer.capacity() == 0 {
        *buffer = scratch::take_buffer();
    }
    buffer.extend_from_slice(data);
}

/// A connection that has nothing to keep has no buffer.
fn empty(buffer: &mut Vec<u8>) {
    scratch::give_buffer(std::mem::take(buffer));
}
