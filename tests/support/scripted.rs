//! A server that follows a script: for hangs, half messages and lies that no PostgreSQL tells.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::frontend::message;

/// A listening fake server. Each connection runs the script in a thread of its own.
pub struct Scripted {
    address: SocketAddr,
    accepted: Arc<AtomicU32>,
}

impl Scripted {
    /// Runs `script` for every connection; the number counts them from 0.
    pub fn start(script: impl Fn(u32, &mut Session) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&accepted);
        let script = Arc::new(script);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let number = count.fetch_add(1, Ordering::Relaxed);
                let script = Arc::clone(&script);
                thread::spawn(move || script(number, &mut Session { stream }));
            }
        });
        Self { address, accepted }
    }

    /// A line of `[databases]` that leads here.
    pub fn target(&self) -> String {
        format!("host=127.0.0.1 port={}", self.address.port())
    }

    /// How many connections came.
    pub fn accepted(&self) -> u32 {
        self.accepted.load(Ordering::Relaxed)
    }
}

/// One connection of a [`Scripted`] server.
pub struct Session {
    stream: TcpStream,
}

impl Session {
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The first packet, without its length; empty when the peer has gone. SSLRequest and
    /// GSSENCRequest are declined on the way.
    pub fn read_startup(&mut self) -> Vec<u8> {
        loop {
            let packet = self.read_packet();
            match packet.get(..4) {
                Some([4, 210, 22, 47 | 48]) => self.send(b"N"),
                _ => return packet,
            }
        }
    }

    /// SSLRequest, or whatever comes first.
    pub fn read_request(&mut self) {
        self.read_packet();
    }

    fn read_packet(&mut self) -> Vec<u8> {
        let Some(head) = self.read_exact(4) else {
            return Vec::new();
        };
        let length = u32::from_be_bytes(head.try_into().unwrap()) as usize;
        self.read_exact(length - 4).unwrap_or_default()
    }

    /// A tagged message; `None` when the peer has gone.
    pub fn read_message(&mut self) -> Option<(u8, Vec<u8>)> {
        let tag = self.read_exact(1)?[0];
        Some((tag, self.read_packet()))
    }

    /// Reads messages until one with this tag; false when the peer has gone first.
    pub fn read_until(&mut self, tag: u8) -> bool {
        while let Some((got, _)) = self.read_message() {
            if got == tag {
                return true;
            }
        }
        false
    }

    /// So many bytes; `None` when the peer has gone first.
    pub fn read_exact(&mut self, size: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Lets everybody in and says what PostgreSQL says at login.
    pub fn accept_login(&mut self) {
        self.read_startup();
        self.send(&message(b'R', &[0, 0, 0, 0]));
        let parameters = [
            ("server_version", "15.0"),
            ("server_encoding", "UTF8"),
            ("client_encoding", "UTF8"),
            ("DateStyle", "ISO, MDY"),
            ("TimeZone", "UTC"),
            ("IntervalStyle", "postgres"),
            ("application_name", ""),
            ("integer_datetimes", "on"),
            ("is_superuser", "off"),
            ("session_authorization", "app"),
            ("standard_conforming_strings", "on"),
        ];
        for (key, value) in parameters {
            self.send(&message(b'S', format!("{key}\0{value}\0").as_bytes()));
        }
        self.send(&message(b'K', &[0, 0, 4, 210, 0, 0, 22, 46]));
        self.ready(b'I');
    }

    /// Lets the client in and answers each of its simple queries with nothing.
    pub fn serve(&mut self) {
        self.accept_login();
        while self.read_until(b'Q') {
            self.complete("SELECT 0");
            self.ready(b'I');
        }
    }

    pub fn ready(&mut self, status: u8) {
        self.send(&message(b'Z', &[status]));
    }

    /// CommandComplete.
    pub fn complete(&mut self, tag: &str) {
        self.send(&message(b'C', format!("{tag}\0").as_bytes()));
    }

    /// ErrorResponse.
    pub fn error(&mut self, severity: &str, sqlstate: &str, text: &str) {
        let body = format!("S{severity}\0V{severity}\0C{sqlstate}\0M{text}\0\0");
        self.send(&message(b'E', body.as_bytes()));
    }

    /// Says nothing more until the peer has gone.
    pub fn hang(&mut self) {
        let mut bytes = [0; 1024];
        while matches!(self.stream.read(&mut bytes), Ok(count) if count > 0) {}
    }
}
