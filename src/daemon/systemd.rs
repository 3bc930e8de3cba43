//! Telling systemd how we are (`sd_notify(3)`): a line to the datagram socket that `NOTIFY_SOCKET` names.
//!
//! Without that variable all of this does nothing. Sockets that systemd opened for us are not taken over.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// What systemd is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State<'a> {
    /// Clients are accepted.
    Ready,
    /// The end has begun.
    Stopping,
    /// A line for people, shown by `systemctl status`.
    Status(&'a str),
}

impl State<'_> {
    fn line(self) -> String {
        match self {
            Self::Ready => "READY=1\n".to_owned(),
            Self::Stopping => "STOPPING=1\n".to_owned(),
            // A line break would begin another assignment.
            Self::Status(text) => format!("STATUS={}\n", text.replace('\n', " ")),
        }
    }
}

/// Tells systemd, if it wants to know.
pub fn notify(state: State<'_>) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&name, state) {
        tracing::debug!("could not notify systemd: {error}");
    }
}

fn send(name: &OsStr, state: State<'_>) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.line().as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_is_one_assignment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        let said = |state| {
            send(path.as_os_str(), state).unwrap();
            let mut buffer = [0; 100];
            let length = systemd.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        assert_eq!(said(State::Ready), "READY=1\n");
        assert_eq!(said(State::Stopping), "STOPPING=1\n");
        assert_eq!(
            said(State::Status("stats: 1\nX=2")),
            "STATUS=stats: 1 X=2\n"
        );
    }

    #[test]
    fn an_abstract_name_begins_with_an_at() {
        let name = format!("pgferry-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let systemd = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), State::Ready).unwrap();
        let mut buffer = [0; 100];
        assert_eq!(systemd.recv(&mut buffer).unwrap(), 8);
        assert!(send(OsStr::new("/no/such/socket"), State::Ready).is_err());
    }
}
