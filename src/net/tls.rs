//! TLS over a TCP socket, in a form that can be taken off one worker and put on another.
//!
//! Owns the encrypted stream and its handshake. What is configured is `setup`'s, who is trusted `verify`'s. `rustls`
//! does the protocol; this file moves its bytes, so that an idle connection holds no buffer of ours (the bytes of a
//! read go through a buffer of the worker) and a session is not tied to the socket's registration.
//!
//! ```text
//!   socket ─▶ worker's buffer ─▶ session ─▶ plaintext            (poll_read)
//!   socket ◀─ session's ciphertext ◀─ plaintext                  (poll_write, poll_flush)
//! ```

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::Connection as Session;

use super::socket::{Loose, Raw, Socket};

pub mod certificate;
mod ciphers;
mod setup;
mod verify;
mod version1;
mod web;

pub use setup::{Setup, SetupError, TlsHandle, WithClients, WithDirectories, WithServers};
pub use web::{WebStream, WithWeb};

#[cfg(test)]
mod tests;

/// Bytes of ciphertext read at once: a few records.
const READ_SIZE: usize = 64 * 1024;

/// Most plaintext that is taken while the socket takes no ciphertext.
const WRITE_LIMIT: usize = 64 * 1024;

thread_local! {
    static CIPHERTEXT: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_SIZE].into_boxed_slice());
}

/// Why a connection could not be encrypted.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The socket failed, or ended in the middle.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The two sides found nothing that suits both, or one did not trust the other.
    #[error("{}", explain(.0))]
    Tls(#[from] rustls::Error),
    /// The server's name in the configuration is no host name.
    #[error("\"{0}\" is no host name that a certificate could have")]
    Name(String),
    /// Nobody has set it up.
    #[error("TLS is not set up")]
    NotSetUp,
}

/// In words that scripts look for in PgBouncer's log.
fn explain(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(why) => format!("certificate verify failed: {why}"),
        other => other.to_string(),
    }
}

/// A session and the socket it goes over: registered with a worker, or between two.
struct Pair<S> {
    socket: S,
    session: Session,
    /// Ciphertext that was read and did not fit into the reader's buffer; usually nothing.
    incoming: Vec<u8>,
    /// Bytes that are decrypted and not read yet.
    plaintext: usize,
    /// The peer sent what is no TLS; nothing can be read any more.
    is_broken: bool,
    /// The hash of our certificate, where we are the TLS server.
    own_end_point: Option<Arc<[u8]>>,
}

/// An encrypted connection, on the worker whose task uses it. It says goodbye when it is dropped.
pub struct TlsStream(Option<Box<Pair<Socket>>>);

/// An encrypted connection between two workers.
pub struct DetachedTls(Box<Pair<Loose>>);

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsStream(..)")
    }
}

impl fmt::Debug for DetachedTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DetachedTls(..)")
    }
}

impl DetachedTls {
    /// Registers the socket with the worker that calls this.
    pub fn attach(self) -> io::Result<TlsStream> {
        let pair = self
            .0
            .with_socket(|socket| Socket::new(socket).map(|socket| (socket, ())))?;
        Ok(TlsStream(Some(Box::new(pair.0))))
    }

    /// The socket below.
    pub fn socket(&self) -> &Raw {
        &self.0.socket.raw
    }
}

impl<S> Pair<S> {
    fn with_socket<T, E>(
        self,
        turn: impl FnOnce(S) -> Result<(T, E), io::Error>,
    ) -> io::Result<(Pair<T>, E)> {
        let (socket, extra) = turn(self.socket)?;
        let pair = Pair {
            socket,
            session: self.session,
            incoming: self.incoming,
            plaintext: self.plaintext,
            is_broken: self.is_broken,
            own_end_point: self.own_end_point,
        };
        Ok((pair, extra))
    }
}

/// Writes to a socket that is registered, waking the task when there is room again.
struct Sink<'a, 'b> {
    socket: &'a Socket,
    cx: &'a mut Context<'b>,
}

fn blocking<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Write for Sink<'_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        blocking(self.socket.poll_write(self.cx, buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes what fits at once.
struct Once<'a>(&'a Socket);

impl Write for Once<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write_once(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Pair<Socket> {
    fn new(socket: Socket, mut session: Session, incoming: Vec<u8>) -> Self {
        session.set_buffer_limit(Some(WRITE_LIMIT));
        Self {
            socket,
            session,
            incoming,
            plaintext: 0,
            is_broken: false,
            own_end_point: None,
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            let socket = &self.socket;
            match self.session.write_tls(&mut Sink { socket, cx }) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.socket.poll_flush(cx)
    }

    /// Sends what fits at once.
    fn flush_once(&mut self) {
        while self.session.wants_write() {
            if !matches!(self.session.write_tls(&mut Once(&self.socket)), Ok(n) if n > 0) {
                return;
            }
        }
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeError>> {
        loop {
            ready!(self.poll_flush(cx))?;
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if self.incoming.is_empty() {
                let read = CIPHERTEXT.with_borrow_mut(|buffer| {
                    let read = ready!(self.socket.poll_read(cx, buffer))?;
                    let bytes = buffer.get(..read).unwrap_or_default();
                    self.incoming.extend_from_slice(bytes);
                    Poll::Ready(Ok::<_, io::Error>(read))
                });
                if ready!(read)? == 0 {
                    let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                    return Poll::Ready(Err(error.into()));
                }
            }
            if let Err(error) = self.shake_with_incoming() {
                // The peer is told why; whether it listens does not matter.
                self.flush_once();
                return Poll::Ready(Err(error));
            }
        }
    }

    fn shake_with_incoming(&mut self) -> Result<(), HandshakeError> {
        let incoming = std::mem::take(&mut self.incoming);
        let mut rest = incoming.as_slice();
        while !rest.is_empty() && self.session.is_handshaking() {
            if self.session.read_tls(&mut rest)? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let state = self.session.process_new_packets()?;
            self.plaintext = state.plaintext_bytes_to_read();
        }
        // What follows the handshake is the application's.
        self.incoming.extend_from_slice(rest);
        Ok(())
    }

    /// Moves decrypted bytes into `buf`; true at the end of the stream.
    fn take_plaintext(&mut self, buf: &mut [u8], filled: &mut usize) -> io::Result<bool> {
        while let Some(room) = buf.get_mut(*filled..).filter(|room| !room.is_empty()) {
            match self.session.reader().read(room) {
                Ok(0) => return Ok(true),
                Ok(n) => {
                    *filled += n;
                    self.plaintext = self.plaintext.saturating_sub(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // The end without a farewell. PostgreSQL's messages have lengths: what is cut off shows by itself.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Decrypts, until `buf` is full; how many of the bytes were used.
    fn feed(&mut self, bytes: &[u8], buf: &mut [u8], filled: &mut usize) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() && *filled < buf.len() {
            let read = self.session.read_tls(&mut rest)?;
            match self.session.process_new_packets() {
                Ok(state) => self.plaintext = state.plaintext_bytes_to_read(),
                Err(error) => {
                    self.is_broken = true;
                    self.flush_once();
                    // What came before is good.
                    if self.take_plaintext(buf, filled).is_ok() && *filled > 0 {
                        return Ok(bytes.len());
                    }
                    return Err(io::Error::new(io::ErrorKind::InvalidData, explain(&error)));
                }
            }
            if self.take_plaintext(buf, filled)? || read == 0 {
                return Ok(bytes.len());
            }
        }
        Ok(bytes.len() - rest.len())
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut filled = 0;
        // (Also after the peer's farewell, which came with the last data: nothing more will come of the socket.)
        if self.take_plaintext(buf, &mut filled)? && filled == 0 {
            return Poll::Ready(Ok(0));
        }
        if !self.incoming.is_empty() && filled < buf.len() {
            let mut incoming = std::mem::take(&mut self.incoming);
            let used = self.feed(&incoming, buf, &mut filled)?;
            if used < incoming.len() {
                incoming.drain(..used);
                self.incoming = incoming;
            }
        }
        while filled == 0 {
            if self.is_broken {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            let read = CIPHERTEXT.with_borrow_mut(|buffer| {
                let read = ready!(self.socket.poll_read(cx, buffer))?;
                let bytes = buffer.get(..read).unwrap_or_default();
                if bytes.is_empty() {
                    self.session.read_tls(&mut io::empty())?;
                    return Poll::Ready(Ok::<_, io::Error>(0));
                }
                let used = self.feed(bytes, buf, &mut filled)?;
                self.incoming
                    .extend_from_slice(bytes.get(used..).unwrap_or_default());
                Poll::Ready(Ok(bytes.len()))
            });
            let read = ready!(read)?;
            if filled == 0 && (read == 0 || self.take_plaintext(buf, &mut filled)?) {
                return Poll::Ready(Ok(filled));
            }
        }
        if self.session.wants_write() {
            // An answer of the protocol itself. What the socket does not take shows as `wants_write`, an error at the
            // next write.
            let _ = self.poll_flush(cx);
        }
        Poll::Ready(Ok(filled))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(cx))?;
        let taken = self.session.writer().write(buf)?;
        match self.poll_flush(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // The rest goes with the next flush; the waker is registered.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken)),
        }
    }
}

fn parted<T>() -> io::Result<T> {
    Err(io::ErrorKind::NotConnected.into())
}

impl TlsStream {
    /// Runs the handshake to its end. `incoming` is what was read of it already.
    async fn establish(
        socket: Socket,
        session: impl Into<Session>,
        incoming: Vec<u8>,
    ) -> Result<Self, HandshakeError> {
        let mut pair = Box::new(Pair::new(socket, session.into(), incoming));
        poll_fn(|cx| pair.poll_handshake(cx)).await?;
        Ok(Self(Some(pair)))
    }

    fn with_own_end_point(mut self, hash: Option<Arc<[u8]>>) -> Self {
        if let Some(pair) = &mut self.0 {
            pair.own_end_point = hash;
        }
        self
    }

    /// Takes the socket off its worker, so that another can [`attach`](DetachedTls::attach) it.
    pub fn detach(mut self) -> io::Result<DetachedTls> {
        let Some(pair) = self.0.take() else {
            return parted();
        };
        let (pair, ()) = pair.with_socket(|socket| socket.loosen().map(|socket| (socket, ())))?;
        Ok(DetachedTls(Box::new(pair)))
    }

    /// Reads decrypted bytes into `buf`; 0 is the end of the stream. The waker is registered when it is `Pending`.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Some(pair) => pair.poll_read(cx, buf),
            None => Poll::Ready(parted()),
        }
    }

    /// Encrypts some of `buf` and sends it, as far as the socket takes it; the rest waits for
    /// [`poll_flush`](Self::poll_flush), and nothing more is taken before it is gone.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Some(pair) => pair.poll_write(cx, buf),
            None => Poll::Ready(parted()),
        }
    }

    /// Sends what was taken and is not off yet.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Some(pair) => pair.poll_flush(cx),
            None => Poll::Ready(parted()),
        }
    }

    /// Has something been taken that is not off yet?
    pub fn wants_write(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|pair| pair.session.wants_write() || pair.socket.wants_write())
    }

    /// Is nothing decrypted, or to be decrypted, that was not read?
    pub(super) fn is_read_dry(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|pair| pair.plaintext == 0 && pair.incoming.is_empty())
    }

    /// The socket below.
    pub(super) fn socket(&self) -> Option<&Socket> {
        self.0.as_ref().map(|pair| &pair.socket)
    }

    /// Writes what fits at once, without waiting.
    pub fn write_once(&mut self, buf: &[u8]) {
        if let Some(pair) = &mut self.0 {
            // Whether it arrives does not matter: the connection ends next.
            let _ = pair.session.writer().write(buf);
            pair.flush_once();
        }
    }

    /// Version, cipher and key exchange, as PgBouncer's SHOW has them.
    pub fn describe(&self) -> String {
        let Some(pair) = &self.0 else {
            return String::new();
        };
        ciphers::describe(&pair.session)
    }

    /// The data of the channel binding `tls-server-end-point` (RFC 5929 §4): the hash of the TLS server's
    /// certificate. `None` if its signature algorithm has no hash of its own.
    pub fn end_point(&self) -> Option<Vec<u8>> {
        let pair = self.0.as_ref()?;
        match &pair.session {
            Session::Server(_) => pair.own_end_point.as_deref().map(<[u8]>::to_vec),
            Session::Client(session) => {
                certificate::end_point(session.peer_certificates()?.first()?)
            }
        }
    }

    /// Does a name of the peer's certificate pass the test: its CN, or a DNS name among its alternative names?
    pub fn peer_has_name(&self, test: impl Fn(&str) -> bool) -> bool {
        self.peer_certificate()
            .and_then(certificate::Certificate::parse)
            .is_some_and(|certificate| certificate.has_name(test))
    }

    fn peer_certificate(&self) -> Option<&[u8]> {
        let chain = self.0.as_ref()?.session.peer_certificates()?;
        chain.first().map(AsRef::as_ref)
    }
}

impl Drop for TlsStream {
    /// TLS asks for a farewell (RFC 8446 §6.1); libraries take an end without one for a cut.
    fn drop(&mut self) {
        if let Some(pair) = &mut self.0 {
            pair.session.send_close_notify();
            pair.flush_once();
        }
    }
}
