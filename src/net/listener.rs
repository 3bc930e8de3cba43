//! A listening socket. What it accepts is registered with no worker yet.
//!
//! Accepted sockets inherit most options from the one that listens (tcp(7), socket(7)), so those that nearly every
//! configuration wants are set there, once, instead of for every connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::socket::Raw;
use super::stream::{Detached, TcpOptions};
use super::sys;
use crate::stats::registry::Peer;

/// So many connections are accepted before others get a turn.
const AT_ONCE: usize = 32;

/// A listening socket, registered with the runtime that it was made on.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp {
        /// The socket.
        socket: AsyncFd<std::net::TcpListener>,
        /// Where accepted connections arrive; `None`: each has to be asked, as this is any address of ours.
        local: Option<SocketAddr>,
        /// Do accepted sockets have `tcp_keepalive`?
        keepalive: bool,
    },
    /// A Unix socket.
    Unix(AsyncFd<UnixListener>),
}

/// A connection that somebody has just made to us.
#[derive(Debug)]
pub struct Accepted {
    /// Its socket: non-blocking, with the options it should have.
    pub socket: Detached,
    /// Who is at the other end.
    pub peer: Peer,
    /// Our own address, for TCP.
    pub local: Option<SocketAddr>,
}

impl Listener {
    /// Registers a socket that listens and does not block. What it accepts will have the usual ones of these options.
    pub fn tcp(listener: std::net::TcpListener, options: &TcpOptions) -> io::Result<Self> {
        let socket = SockRef::from(&listener);
        socket.set_tcp_nodelay(true)?;
        socket.set_keepalive(options.keepalive)?;
        let address = listener.local_addr().ok();
        Ok(Self::Tcp {
            local: address.filter(|address| !address.ip().is_unspecified()),
            keepalive: options.keepalive,
            socket: sys::register(listener)?,
        })
    }

    /// Registers a socket that listens and does not block.
    pub fn unix(listener: UnixListener) -> io::Result<Self> {
        sys::register(listener).map(Self::Unix)
    }

    /// Waits for a connection, and passes on all that are there, each with the options that are wanted by then.
    /// Cancel-safe.
    pub async fn accept(
        &self,
        options: impl Fn() -> TcpOptions,
        mut receive: impl FnMut(Accepted),
    ) -> io::Result<()> {
        match self {
            Self::Tcp {
                socket,
                local,
                keepalive,
            } => {
                let accept = |accepted, peer| {
                    tcp((accepted, peer), *local, (&options(), *keepalive)).map(&mut receive);
                };
                accept_some(socket, accept).await
            }
            Self::Unix(socket) => {
                let accept = |accepted: OwnedFd, _| {
                    let raw = Raw::Unix(accepted.into());
                    receive(Accepted {
                        peer: raw.peer(),
                        local: None,
                        socket: Detached::Plain(raw.into()),
                    });
                };
                accept_some(socket, accept).await
            }
        }
    }
}

async fn accept_some<L: AsRawFd + AsFd>(
    listener: &AsyncFd<L>,
    mut receive: impl FnMut(OwnedFd, Option<SocketAddr>),
) -> io::Result<()> {
    let mut ready = listener.ready(Interest::READABLE).await?;
    for _ in 0..AT_ONCE {
        match ready.try_io(|listener| sys::accept(listener)) {
            Ok(accepted) => {
                let (accepted, peer) = accepted?;
                receive(accepted, peer);
            }
            Err(_nobody) => return Ok(()),
        }
    }
    Ok(())
}

fn tcp(
    (accepted, peer): (OwnedFd, Option<SocketAddr>),
    local: Option<SocketAddr>,
    (options, inherits_keepalive): (&TcpOptions, bool),
) -> Option<Accepted> {
    let socket = std::net::TcpStream::from(accepted);
    if let Err(error) = options.complete(&SockRef::from(&socket), inherits_keepalive) {
        tracing::debug!("accepted connection is gone already: {error}");
        return None;
    }
    Some(Accepted {
        peer: Peer::Tcp(peer?),
        local: local.or_else(|| socket.local_addr().ok()),
        socket: Detached::Plain(Raw::Tcp(socket).into()),
    })
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp { socket, .. } => socket.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}
