//! A byte stream to a client or a server: the thin boundary behind which the socket driver is.
//!
//! All reads and writes are polls that try at once (`recv`, `send`) and register for a wake-up only
//! when the socket has nothing for us, so a message costs one system call a direction.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::tls::{DetachedTls, TlsStream};
use crate::stats::registry::Peer;

/// A connected socket, registered with the worker whose task uses it.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS over TCP.
    Tls(TlsStream),
}

/// A socket between two workers: registered with neither.
#[derive(Debug)]
pub enum Detached {
    /// TCP.
    Tcp(std::net::TcpStream),
    /// A Unix socket.
    Unix(std::os::unix::net::UnixStream),
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
        if self.keepalive {
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

impl Detached {
    /// Sets the options of an accepted socket, and makes it non-blocking.
    pub fn prepare(&self, options: &TcpOptions) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                options.apply(&SockRef::from(stream))
            }
            Self::Unix(stream) => stream.set_nonblocking(true),
            Self::Tls(stream) => options.apply(&SockRef::from(stream.socket())),
        }
    }

    /// Registers the socket with the worker that calls this.
    pub fn attach(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            Self::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
            Self::Tls(stream) => stream.attach().map(Stream::Tls),
        }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Peer {
        match self {
            Self::Tcp(stream) => stream.peer_addr().map_or(Peer::Unix(None), Peer::Tcp),
            Self::Unix(stream) => {
                let credentials = nix::sys::socket::getsockopt(
                    stream,
                    nix::sys::socket::sockopt::PeerCredentials,
                );
                Peer::Unix(credentials.ok().map(|credentials| credentials.pid()))
            }
            Self::Tls(stream) => stream
                .socket()
                .peer_addr()
                .map_or(Peer::Unix(None), Peer::Tcp),
        }
    }
}

/// Is there something to read, or the end?
fn peek(socket: &SockRef<'_>) -> io::Result<()> {
    socket.peek(&mut [MaybeUninit::uninit(); 1]).map(|_| ())
}

fn has_arrived(stream: &TcpStream) -> io::Result<()> {
    stream.try_io(Interest::READABLE, || peek(&SockRef::from(stream)))
}

impl Stream {
    /// Connects to a server. A host name's addresses are tried one after the other. Cancel-safe: a
    /// dropped attempt is closed.
    pub async fn connect(address: &Address, options: &TcpOptions) -> io::Result<Self> {
        match address {
            Address::Unix(path) => UnixStream::connect(path).await.map(Self::Unix),
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                options.apply(&SockRef::from(&stream))?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    /// Takes the socket off its worker, so that another can [`attach`](Detached::attach) it.
    pub fn detach(self) -> io::Result<Detached> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(Detached::Tcp),
            Self::Unix(stream) => stream.into_std().map(Detached::Unix),
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
            Self::Tcp(stream) => {
                let mut buf = ReadBuf::new(buf);
                let polled = Pin::new(stream).poll_read(cx, &mut buf);
                polled.map_ok(|()| buf.filled().len())
            }
            Self::Unix(stream) => {
                let mut buf = ReadBuf::new(buf);
                let polled = Pin::new(stream).poll_read(cx, &mut buf);
                polled.map_ok(|()| buf.filled().len())
            }
            Self::Tls(stream) => stream.poll_read(cx, buf),
        }
    }

    /// Takes some of `buf`. A plain socket has sent what it has taken; after TLS has taken something,
    /// [`wants_write`](Self::wants_write) tells whether it is off.
    #[inline]
    pub fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => stream.poll_write(cx, buf),
        }
    }

    /// Is something taken that the socket has not got yet? Then [`poll_flush`](Self::poll_flush) is due.
    #[inline]
    pub fn wants_write(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            Self::Tls(stream) => stream.wants_write(),
        }
    }

    /// Sends what was taken and is not off yet.
    #[inline]
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => stream.poll_flush(cx),
        }
    }

    /// Has nothing happened on the socket since it was last read dry? Costs no system call: it
    /// looks at what the reactor has noticed. Anything that comes from an idle server (its end, an
    /// error, a notice) makes it false.
    pub fn is_quiet(&self) -> bool {
        // Not by `poll_read_ready`: a task that has used up its share of polls is told `Pending` by that. The
        // closure is called only if there was something; it may be known to us, the last read having filled its buffer.
        let seen = match self {
            Self::Tcp(stream) => has_arrived(stream),
            Self::Unix(stream) => {
                stream.try_io(Interest::READABLE, || peek(&SockRef::from(stream)))
            }
            Self::Tls(stream) => match stream.socket().filter(|_| stream.is_read_dry()) {
                Some(socket) => has_arrived(socket),
                None => return false,
            },
        };
        matches!(seen, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Writes what fits at once, without waiting: for a farewell on a connection that is closed
    /// next.
    pub fn write_once(&mut self, buf: &[u8]) {
        // Whether it arrives does not matter: the socket is closed right after.
        let _ = match self {
            Self::Tcp(stream) => stream.try_write(buf),
            Self::Unix(stream) => stream.try_write(buf),
            Self::Tls(stream) => {
                stream.write_once(buf);
                return;
            }
        };
    }

    /// The encrypted stream, if it is one.
    pub fn tls(&self) -> Option<&TlsStream> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => None,
            Self::Tls(stream) => Some(stream),
        }
    }

    /// Version, cipher and key exchange; empty for a plain connection.
    pub fn describe_tls(&self) -> String {
        self.tls().map(TlsStream::describe).unwrap_or_default()
    }

    /// The user id of the process at the other end of a Unix socket.
    pub fn peer_uid(&self) -> Option<u32> {
        match self {
            Self::Tcp(_) | Self::Tls(_) => None,
            Self::Unix(stream) => stream.peer_cred().ok().map(|credentials| credentials.uid()),
        }
    }

    /// Our own address, for TCP.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok(),
            Self::Unix(_) => None,
            Self::Tls(stream) => stream.socket()?.local_addr().ok(),
        }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Peer {
        match self {
            Self::Tcp(stream) => stream.peer_addr().map_or(Peer::Unix(None), Peer::Tcp),
            Self::Unix(stream) => Peer::Unix(
                stream
                    .peer_cred()
                    .ok()
                    .and_then(|credentials| credentials.pid()),
            ),
            Self::Tls(stream) => stream.peer_addr().map_or(Peer::Unix(None), Peer::Tcp),
        }
    }
}
