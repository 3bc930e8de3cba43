//! A byte stream to a client or a server: the thin boundary behind which the socket driver is.
//!
//! All reads and writes are polls that try at once and register for a wake-up only when the socket has nothing for us
//! (`socket`).

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::socket::UnixCredentials;
use nix::sys::socket::sockopt::PeerCredentials;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream, UnixStream, lookup_host};

use super::socket::{Loose, Raw, Socket};
use super::tls::{DetachedTls, TlsStream};
use crate::stats::registry::Peer;

/// A connected socket, registered with the worker whose task uses it.
#[derive(Debug)]
pub enum Stream {
    /// TCP, or a Unix socket.
    Plain(Socket),
    /// TLS over TCP.
    Tls(TlsStream),
}

/// A socket between two workers: registered with neither.
#[derive(Debug)]
pub enum Detached {
    /// TCP, or a Unix socket.
    Plain(Loose),
    /// TLS over TCP.
    Tls(DetachedTls),
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// Host name or address, and port.
    Tcp(String, u16),
    /// Path of the socket itself.
    Unix(PathBuf),
}

impl Address {
    /// The host name, or the path of the socket.
    pub fn host(&self) -> String {
        match self {
            Self::Tcp(host, _) => host.clone(),
            Self::Unix(path) => path.display().to_string(),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The `tcp_*` settings; zero durations and counts leave the system's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// `tcp_keepalive`.
    pub keepalive: bool,
    /// `tcp_keepidle`.
    pub idle: Duration,
    /// `tcp_keepintvl`.
    pub interval: Duration,
    /// `tcp_keepcnt`.
    pub count: u32,
    /// `tcp_user_timeout`.
    pub user_timeout: Duration,
    /// `tcp_socket_buffer`, bytes.
    pub buffer: usize,
}

impl TcpOptions {
    fn apply(&self, socket: &SockRef<'_>) -> io::Result<()> {
        socket.set_tcp_nodelay(true)?;
        self.complete(socket, false)
    }

    /// Sets what an accepted socket has not from the one that listened: that is not to delay, and to keep alive if
    /// `inherits_keepalive`.
    pub(super) fn complete(
        &self,
        socket: &SockRef<'_>,
        inherits_keepalive: bool,
    ) -> io::Result<()> {
        let is_usual = self.idle.is_zero() && self.interval.is_zero() && self.count == 0;
        if self.keepalive && !(inherits_keepalive && is_usual) {
            let mut keepalive = TcpKeepalive::new();
            if !self.idle.is_zero() {
                keepalive = keepalive.with_time(self.idle);
            }
            if !self.interval.is_zero() {
                keepalive = keepalive.with_interval(self.interval);
            }
            if self.count > 0 {
                keepalive = keepalive.with_retries(self.count);
            }
            socket.set_tcp_keepalive(&keepalive)?;
        } else if inherits_keepalive && !self.keepalive {
            socket.set_keepalive(false)?;
        }
        if !self.user_timeout.is_zero() {
            socket.set_tcp_user_timeout(Some(self.user_timeout))?;
        }
        if self.buffer > 0 {
            socket.set_send_buffer_size(self.buffer)?;
            socket.set_recv_buffer_size(self.buffer)?;
        }
        Ok(())
    }
}

impl Raw {
    pub(super) fn peer(&self) -> Peer {
        match self {
            Self::Tcp(socket) => socket.peer_addr().map_or(Peer::Unix(None), Peer::Tcp),
            Self::Unix(socket) => Peer::Unix(credentials(socket).map(|peer| peer.pid())),
        }
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Is there something to read, or the end?
    fn peek(&self) -> io::Result<()> {
        let mut byte = [MaybeUninit::uninit(); 1];
        let peeked = match self {
            Self::Tcp(socket) => SockRef::from(socket).peek(&mut byte),
            Self::Unix(socket) => SockRef::from(socket).peek(&mut byte),
        };
        peeked.map(|_| ())
    }
}

/// The user id of the process at the other end of a Unix socket.
pub fn peer_uid(socket: &std::os::unix::net::UnixStream) -> Option<u32> {
    credentials(socket).map(|peer| peer.uid())
}

fn credentials(socket: &std::os::unix::net::UnixStream) -> Option<UnixCredentials> {
    nix::sys::socket::getsockopt(socket, PeerCredentials).ok()
}

impl Detached {
    /// Reads what has come already, before any worker knows of the socket: 0 is the end of the stream, and
    /// `WouldBlock` means nothing yet. For connections that have just been accepted: nothing is read from a TLS stream.
    pub(super) fn read_early(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => match &socket.raw {
                Raw::Tcp(socket) => (&*socket).read(buf),
                Raw::Unix(socket) => (&*socket).read(buf),
            },
            Self::Tls(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Registers the socket with the worker that calls this.
    pub fn attach(self) -> io::Result<Stream> {
        match self {
            Self::Plain(socket) => Socket::new(socket).map(Stream::Plain),
            Self::Tls(stream) => stream.attach().map(Stream::Tls),
        }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Peer {
        match self {
            Self::Plain(socket) => socket.raw.peer(),
            Self::Tls(stream) => stream.socket().peer(),
        }
    }
}

/// The options are set before: what the two sides agree on while they connect depends on the size of the buffers, and
/// how long a host may be silent holds for its first answer, too.
async fn connect_tcp(address: SocketAddr, options: &TcpOptions) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    options.apply(&SockRef::from(&socket))?;
    socket.connect(address).await
}

async fn connect_any(host: &str, port: u16, options: &TcpOptions) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::NotFound.into();
    for address in lookup_host((host, port)).await? {
        match connect_tcp(address, options).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Stream {
    /// Connects to a server. A host name's addresses are tried one after the other. Cancel-safe: a
    /// dropped attempt is closed.
    pub async fn connect(address: &Address, options: &TcpOptions) -> io::Result<Self> {
        let socket = match address {
            Address::Unix(path) => Raw::Unix(UnixStream::connect(path).await?.into_std()?),
            Address::Tcp(host, port) => {
                Raw::Tcp(connect_any(host, *port, options).await?.into_std()?)
            }
        };
        Socket::new(socket.into()).map(Self::Plain)
    }

    /// Takes the socket off its worker, so that another can [`attach`](Detached::attach) it. It must have been
    /// [settled](Self::settle) on that worker.
    pub fn detach(self) -> io::Result<Detached> {
        match self {
            Self::Plain(socket) => socket.loosen().map(Detached::Plain),
            Self::Tls(stream) => stream.detach().map(Detached::Tls),
        }
    }

    /// Reads into `buf`; 0 is the end of the stream.
    ///
    /// A short read clears the readiness but registers no waker: a caller that wants to be woken
    /// must poll until it is told `Pending`.
    #[inline]
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_read(cx, buf),
            Self::Tls(stream) => stream.poll_read(cx, buf),
        }
    }

    /// Takes some of `buf`. When something was taken, [`wants_write`](Self::wants_write) tells whether it found room.
    #[inline]
    pub fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_write(cx, buf),
            Self::Tls(stream) => stream.poll_write(cx, buf),
        }
    }

    /// Is something taken that the socket has no room for? Then [`poll_flush`](Self::poll_flush) is due.
    #[inline]
    pub fn wants_write(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.wants_write(),
            Self::Tls(stream) => stream.wants_write(),
        }
    }

    /// Sends what was taken and found no room.
    #[inline]
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_flush(cx),
            Self::Tls(stream) => stream.poll_flush(cx),
        }
    }

    /// Sends what was taken, if it still waits for others to go along. After it,
    /// [`wants_write`](Self::wants_write) tells whether everything is off.
    #[inline]
    pub fn settle(&self) {
        if let Some(socket) = self.socket() {
            socket.settle();
        }
    }

    /// Is something taken that waits for others to go along?
    pub fn is_staged(&self) -> bool {
        self.socket().is_some_and(Socket::is_staged)
    }

    fn socket(&self) -> Option<&Socket> {
        match self {
            Self::Plain(socket) => Some(socket),
            Self::Tls(stream) => stream.socket(),
        }
    }

    fn raw(&self) -> Option<&Raw> {
        self.socket().map(Socket::raw)
    }

    /// Has nothing happened on the socket since it was last read dry? Costs no system call: it
    /// looks at what the reactor has noticed. Anything that comes from an idle server (its end, an
    /// error, a notice) makes it false.
    pub fn is_quiet(&self) -> bool {
        // Not by `poll_read_ready`: a task that has used up its share of polls is told `Pending` by that. The
        // closure is called only if there was something; it may be known to us, the last read having filled its buffer.
        let seen = match self {
            Self::Plain(socket) => socket.if_readable(Raw::peek),
            Self::Tls(stream) => match stream.socket().filter(|_| stream.is_read_dry()) {
                Some(socket) => socket.if_readable(Raw::peek),
                None => return false,
            },
        };
        matches!(seen, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Says that nothing more will be sent: the other end reads to here and finds the end. It may go on sending, and be read.
    pub fn end_sending(&self) {
        self.settle();
        if let Some(raw) = self.raw() {
            // It may be gone already.
            let _ = SockRef::from(raw).shutdown(std::net::Shutdown::Write);
        }
    }

    /// Writes what fits at once, without waiting: for a farewell on a connection that is closed
    /// next.
    pub fn write_once(&mut self, buf: &[u8]) {
        match self {
            Self::Plain(socket) => {
                // Whether it arrives does not matter: the socket is closed right after.
                let _ = socket.write_once(buf);
            }
            Self::Tls(stream) => stream.write_once(buf),
        }
    }

    /// The encrypted stream, if it is one.
    pub fn tls(&self) -> Option<&TlsStream> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Some(stream),
        }
    }

    /// Is it TCP, and not encrypted?
    pub fn is_plain_tcp(&self) -> bool {
        matches!(self, Self::Plain(socket) if matches!(socket.raw(), Raw::Tcp(_)))
    }

    /// Version, cipher and key exchange; empty for a plain connection.
    pub fn describe_tls(&self) -> String {
        self.tls().map(TlsStream::describe).unwrap_or_default()
    }

    /// The user id of the process at the other end of a Unix socket.
    pub fn peer_uid(&self) -> Option<u32> {
        match self.raw()? {
            Raw::Tcp(_) => None,
            Raw::Unix(socket) => peer_uid(socket),
        }
    }

    /// Our own address, for TCP.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.raw()?.local_addr()
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Peer {
        self.raw().map_or(Peer::Unix(None), Raw::peer)
    }
}
