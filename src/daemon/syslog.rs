//! Syslog: every line of the log as a datagram to the system's logger (PgBouncer: `syslog`).
//!
//! Owns the shape of a message, which is the C library's (RFC 3164 section 4.1: priority, local time, name and process
//! id), and the socket. What is worth a line, and its text, is `log`'s.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use jiff::Zoned;

use crate::config::{Facility, Settings};

/// Where the system's logger listens.
const SOCKET: &str = "/dev/log";

/// Longest message, in bytes: what loggers take without cutting it.
const LONGEST: usize = 8 * 1024;

/// How bad it is (RFC 5424 section 6.2.1, table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// `FATAL`.
    Critical = 2,
    /// `ERROR`.
    Error = 3,
    /// `WARNING`.
    Warning = 4,
    /// `LOG`.
    Informational = 6,
    /// `DEBUG`, `NOISE`.
    Debug = 7,
}

/// How lines are filed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filing {
    /// The logger's socket.
    pub socket: PathBuf,
    /// `syslog_ident`.
    pub ident: String,
    /// `syslog_facility`.
    pub facility: Facility,
}

impl Filing {
    /// What the settings say; `None`: syslog is off.
    pub fn from_settings(settings: &Settings) -> Option<Self> {
        settings.syslog.then(|| Self {
            socket: PathBuf::from(SOCKET),
            ident: settings.syslog_ident.clone(),
            facility: settings.syslog_facility,
        })
    }
}

/// A way to the system's logger.
#[derive(Debug)]
pub struct Syslog {
    socket: UnixDatagram,
    filing: Filing,
}

impl Syslog {
    /// A socket of our own; that the logger listens is not needed yet.
    pub fn open(filing: Filing) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A logger that does not keep up must not stop us: then the line is lost.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, filing })
    }

    /// Sends a line. It is lost if nobody listens, as with the C library.
    pub fn send(&self, severity: Severity, text: &str) {
        let mut message = self.message(&Zoned::now(), severity, text);
        let end = (0..=LONGEST.min(message.len()))
            .rev()
            .find(|&at| message.is_char_boundary(at));
        message.truncate(end.unwrap_or_default());
        let socket: &Path = &self.filing.socket;
        let _ = self.socket.send_to(message.as_bytes(), socket);
    }

    fn message(&self, now: &Zoned, severity: Severity, text: &str) -> String {
        let priority = self.filing.facility.number() * 8 + severity as u8;
        let (time, pid) = (now.strftime("%b %e %H:%M:%S"), std::process::id());
        format!("<{priority}>{time} {}[{pid}]: {text}", self.filing.ident)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_arrives_with_priority_time_name_and_pid() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let logger = UnixDatagram::bind(&path).unwrap();
        let filing = Filing {
            socket: path,
            ident: "pgbouncer".into(),
            facility: Facility::Local1,
        };
        let syslog = Syslog::open(filing).unwrap();
        let now: Zoned = "2026-11-01T09:06:06[UTC]".parse().unwrap();
        let pid = std::process::id();
        assert_eq!(
            syslog.message(&now, Severity::Warning, "C-0x1: hello"),
            format!("<140>Nov  1 09:06:06 pgbouncer[{pid}]: C-0x1: hello")
        );
        syslog.send(Severity::Informational, &"é".repeat(LONGEST));
        let mut buffer = vec![0; 2 * LONGEST];
        let length = logger.recv(&mut buffer).unwrap();
        let text = std::str::from_utf8(&buffer[..length]).unwrap();
        assert!(
            text.starts_with("<142>") && (LONGEST - 1..=LONGEST).contains(&length),
            "{text}"
        );
        drop(logger);
        syslog.send(Severity::Error, "nobody listens");
    }
}
