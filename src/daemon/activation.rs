//! Sockets that systemd has opened for us and hands over at the start (`sd_listen_fds(3)`, socket activation).
//!
//! Owns what is taken over and what is then ignored. Opening sockets of our own is [`listen`](super::listen)'s.
//! The file of a Unix socket that was handed over is not ours: it stays when we go, and so does the queue of those who
//! want in, for the next one of us.

use std::env::VarError;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;
use socket2::SockRef;

use super::Error;
use super::listen::{Listeners, UnixSocket};
use crate::config::Settings;

/// The first of the descriptors that are handed over (`SD_LISTEN_FDS_START`).
const FIRST: usize = 3;

/// The sockets that were handed over, at least one.
#[derive(Debug)]
pub struct Passed {
    tcp: Vec<Named<TcpListener>>,
    unix: Vec<Named<UnixListener>>,
}

/// A socket and what its unit calls it (`FileDescriptorName=`), or nothing.
type Named<T> = (T, String);

/// Takes over what systemd has opened for this process. `None`: nothing, so that we open our own.
///
/// To be called once, before the process id changes and before the first thread: the variables are taken out of the
/// environment. `Err`: one of them is not a listening TCP or Unix socket.
pub fn take() -> Result<Option<Passed>, Error> {
    let variable = |name| std::env::var(name);
    if !is_for_us(variable("LISTEN_PID"), variable("LISTEN_FDS")) {
        return Ok(None);
    }
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    let mut given = ListenFd::from_env();
    let (mut tcp, mut unix) = (Vec::new(), Vec::new());
    for at in 0..given.len() {
        let name = names.next().unwrap_or_default();
        let failed = |source| Error::PassedSocket {
            descriptor: FIRST + at,
            source,
        };
        // Each refuses what the other takes; the second one's reason would name only its own kind.
        if let Ok(Some(listener)) = given.take_tcp_listener(at) {
            prepare(&SockRef::from(&listener)).map_err(failed)?;
            tcp.push((listener, name));
        } else if let Ok(Some(listener)) = given.take_unix_listener(at) {
            prepare(&SockRef::from(&listener)).map_err(failed)?;
            unix.push((listener, name));
        } else {
            return Err(failed(std::io::Error::other("not a TCP or Unix socket")));
        }
    }
    Ok(Some(Passed { tcp, unix }))
}

/// Are there descriptors, and for this process and not the one that has started it?
fn is_for_us(pid: Result<String, VarError>, count: Result<String, VarError>) -> bool {
    let is_ours = pid.is_ok_and(|pid| pid.parse() == Ok(std::process::id()));
    // As many as a process may have by default; systemd passes one for each line of a unit.
    is_ours && count.is_ok_and(|count| count.parse().is_ok_and(|count| (1..1024).contains(&count)))
}

fn prepare(socket: &SockRef<'_>) -> std::io::Result<()> {
    if !socket.is_listener()? {
        return Err(std::io::Error::other("it does not listen (Accept=yes?)"));
    }
    socket.set_nonblocking(true)
}

impl Passed {
    /// Listens on these, whatever the settings say, and logs `listening on …` for each.
    pub fn listen(self, settings: &Settings) -> Listeners {
        if !settings.listen_addr.is_empty() {
            tracing::warn!("systemd has passed sockets: listen_addr is ignored");
        }
        let dir = &settings.unix_socket_dir;
        if dir.is_some() && *dir != Settings::default().unix_socket_dir {
            tracing::warn!("systemd has passed sockets: there is none of ours in unix_socket_dir");
        }
        for (listener, name) in &self.tcp {
            match listener.local_addr() {
                Ok(address) => announce(&address.to_string(), name),
                Err(error) => announce(&format!("a socket without an address ({error})"), name),
            }
        }
        for (listener, name) in &self.unix {
            announce(&format!("unix:{}", place(listener)), name);
        }
        let unix = self.unix.into_iter().map(|(listener, _)| UnixSocket {
            listener,
            file: None,
        });
        Listeners {
            owns_tcp: false,
            tcp: self.tcp.into_iter().map(|(listener, _)| listener).collect(),
            unix: unix.collect(),
        }
    }
}

fn announce(address: &str, name: &str) {
    // What systemd says where the unit has no name for it.
    if name.is_empty() || name == "unknown" {
        tracing::info!("listening on {address}");
    } else {
        tracing::info!("listening on {address} ({name})");
    }
}

/// Where a Unix socket is, in the way of the setting: abstract names begin with `@`.
fn place(listener: &UnixListener) -> String {
    use std::os::linux::net::SocketAddrExt;
    let Ok(address) = listener.local_addr() else {
        return "?".to_owned();
    };
    let is_abstract = address.as_abstract_name();
    match (address.as_pathname(), is_abstract) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(name)) => format!("@{}", String::from_utf8_lossy(name)),
        (None, None) => "?".to_owned(),
    }
}
