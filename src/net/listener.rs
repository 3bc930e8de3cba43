//! A listening socket. What it accepts is registered with no worker yet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::socket::Raw;
use super::stream::Detached;
use super::sys;

/// A listening socket, registered with the runtime that it was made on.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(AsyncFd<std::net::TcpListener>),
    /// A Unix socket.
    Unix(AsyncFd<UnixListener>),
}

impl Listener {
    /// Registers a socket that listens and does not block.
    pub fn tcp(listener: std::net::TcpListener) -> io::Result<Self> {
        sys::register(listener).map(Self::Tcp)
    }

    /// Registers a socket that listens and does not block.
    pub fn unix(listener: UnixListener) -> io::Result<Self> {
        sys::register(listener).map(Self::Unix)
    }

    /// The next connection. Cancel-safe.
    pub async fn accept(&self) -> io::Result<Detached> {
        let accepted = match self {
            Self::Tcp(listener) => {
                let accept = |listener: &std::net::TcpListener| listener.accept();
                let (socket, _) = listener.async_io(Interest::READABLE, accept).await?;
                Raw::Tcp(socket)
            }
            Self::Unix(listener) => {
                let accept = |listener: &UnixListener| listener.accept();
                let (socket, _) = listener.async_io(Interest::READABLE, accept).await?;
                Raw::Unix(socket)
            }
        };
        Ok(Detached::Plain(accepted.into()))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}
