//! A listening socket. What it accepts is registered with no worker yet.
//!
//! Accepted sockets inherit most options from the one that listens (tcp(7), socket(7)), so those that nearly every
//! configuration wants are set there, once, instead of for every connection.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use socket2::SockRef;

use super::reactor::{Place, Reactor};
use super::socket::Raw;
use super::stream::{Detached, TcpOptions};
use super::sys;
use crate::stats::registry::Peer;

/// So many connections are accepted before others get a turn.
const AT_ONCE: usize = 32;

/// A listening socket, registered with one worker.
#[derive(Debug)]
pub struct Listener {
    /// (Closed before its place is given up.)
    socket: Listening,
    place: Place,
}

#[derive(Debug)]
enum Listening {
    Tcp {
        socket: std::net::TcpListener,
        /// Where accepted connections arrive; `None`: each has to be asked, as this is any address of ours.
        local: Option<SocketAddr>,
        /// Do accepted sockets have `tcp_keepalive`?
        keepalive: bool,
    },
    Unix(UnixListener),
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
    pub fn tcp(
        listener: std::net::TcpListener,
        options: &TcpOptions,
        reactor: &Arc<Reactor>,
    ) -> io::Result<Self> {
        let socket = SockRef::from(&listener);
        socket.set_tcp_nodelay(true)?;
        socket.set_keepalive(options.keepalive)?;
        let address = listener.local_addr().ok();
        let socket = Listening::Tcp {
            local: address.filter(|address| !address.ip().is_unspecified()),
            keepalive: options.keepalive,
            socket: listener,
        };
        Self::register(socket, reactor)
    }

    /// Registers a socket that listens and does not block.
    pub fn unix(listener: UnixListener, reactor: &Arc<Reactor>) -> io::Result<Self> {
        Self::register(Listening::Unix(listener), reactor)
    }

    fn register(socket: Listening, reactor: &Arc<Reactor>) -> io::Result<Self> {
        let place = reactor.register(&socket)?;
        Ok(Self { socket, place })
    }

    /// Listens no more. (Somebody else may have the same socket, so that closing it is not enough for the worker.)
    pub fn close(self) {
        // An error: its worker has ended.
        let _ = self.place.remove(&self.socket);
    }

    /// Waits for a connection, and passes on those that are there, each with the options that are wanted by then.
    /// True: there may be more, but others should get a turn before. Cancel-safe.
    pub async fn accept(
        &self,
        options: impl Fn() -> TcpOptions,
        mut receive: impl FnMut(Accepted),
    ) -> io::Result<bool> {
        let seen = poll_fn(|cx| self.place.poll_readable(cx)).await;
        for _ in 0..AT_ONCE {
            match sys::accept(&self.socket) {
                Ok(accepted) => {
                    let accepted = self.socket.complete(accepted, &options);
                    accepted.map(&mut receive);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.place.is_empty(seen);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl Listening {
    /// `None`: it is gone already.
    fn complete(
        &self,
        (accepted, peer): (OwnedFd, Option<SocketAddr>),
        options: impl Fn() -> TcpOptions,
    ) -> Option<Accepted> {
        match self {
            Self::Tcp {
                local, keepalive, ..
            } => tcp((accepted, peer), *local, (&options(), *keepalive)),
            Self::Unix(_) => {
                let raw = Raw::Unix(accepted.into());
                Some(Accepted {
                    peer: raw.peer(),
                    local: None,
                    socket: Detached::Plain(raw.into()),
                })
            }
        }
    }
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

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp { socket, .. } => socket.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;
    use crate::net::{Connection, executor};

    fn on(keepalive: bool) -> TcpOptions {
        TcpOptions {
            keepalive,
            ..TcpOptions::default()
        }
    }

    fn listen(address: &str, options: &TcpOptions) -> (Listener, SocketAddr) {
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let there = SocketAddr::from(([127, 0, 0, 1], port));
        (
            Listener::tcp(listener, options, &executor::reactor().unwrap()).unwrap(),
            there,
        )
    }

    async fn accept(listener: &Listener, options: &TcpOptions) -> Accepted {
        let mut all = Vec::new();
        while all.is_empty() {
            let accepted = listener.accept(|| *options, |one| all.push(one));
            assert!(!accepted.await.unwrap());
        }
        all.remove(0)
    }

    fn raw(accepted: &Accepted) -> &std::net::TcpStream {
        match &accepted.socket {
            Detached::Plain(socket) => match &socket.raw {
                Raw::Tcp(socket) => socket,
                Raw::Unix(_) => panic!("no TCP"),
            },
            Detached::Tls(_) => panic!("encrypted"),
        }
    }

    #[tokio::test]
    async fn accepted_sockets_have_the_options_of_the_moment() {
        let usual = on(true);
        let patient = TcpOptions {
            idle: Duration::from_secs(77),
            user_timeout: Duration::from_secs(7),
            ..usual
        };
        let (listener, there) = listen("127.0.0.1:0", &usual);
        for options in [usual, on(false), patient, usual] {
            let _client = TcpStream::connect(there).unwrap();
            let accepted = accept(&listener, &options).await;
            let socket = SockRef::from(raw(&accepted));
            assert!(socket.tcp_nodelay().unwrap());
            assert_eq!(socket.keepalive().unwrap(), options.keepalive);
            let is_patient = options == patient;
            let idle = socket.tcp_keepalive_time().unwrap();
            assert_eq!(idle == patient.idle, is_patient);
            let timeout = socket.tcp_user_timeout().unwrap();
            assert_eq!(timeout == Some(patient.user_timeout), is_patient);
        }
        let (listener, there) = listen("127.0.0.1:0", &on(false));
        for keepalive in [false, true] {
            let _client = TcpStream::connect(there).unwrap();
            let accepted = accept(&listener, &on(keepalive)).await;
            let socket = SockRef::from(raw(&accepted));
            assert_eq!(socket.keepalive().unwrap(), keepalive);
        }
    }

    #[tokio::test]
    async fn both_addresses_are_known_wherever_we_listen() {
        for address in ["127.0.0.1:0", "0.0.0.0:0"] {
            let (listener, there) = listen(address, &on(true));
            let client = TcpStream::connect(there).unwrap();
            let accepted = accept(&listener, &on(true)).await;
            assert_eq!(accepted.peer, Peer::Tcp(client.local_addr().unwrap()));
            assert_eq!(accepted.local, Some(there));
        }
    }

    #[tokio::test]
    async fn what_was_said_early_is_kept_and_an_end_is_an_error() {
        let (listener, there) = listen("127.0.0.1:0", &on(true));
        let mut client = TcpStream::connect(there).unwrap();
        let silent = accept(&listener, &on(true)).await;
        let mut connection = Connection::accepted(silent.socket).unwrap();
        assert!(connection.kept.is_empty());
        client.write_all(b"late").unwrap();
        assert_eq!(connection.read_more().await.unwrap(), 4);

        let mut client = TcpStream::connect(there).unwrap();
        client.write_all(b"early").unwrap();
        let accepted = accept(&listener, &on(true)).await;
        let connection = Connection::accepted(accepted.socket).unwrap();
        assert_eq!(connection.kept, b"early");

        drop(TcpStream::connect(there).unwrap());
        let gone = accept(&listener, &on(true)).await;
        let error = Connection::accepted(gone.socket).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
