//! A client that speaks the protocol by hand: any bytes, in any pieces, and every reply as it came.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Stream};

use super::frontend;
use super::message::Message;

/// How long a reply may take before the test gives up.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a login did not come through.
#[derive(Debug)]
pub enum Refusal {
    /// The server said why.
    Error(Message),
    /// The connection ended without a word.
    Closed,
}

impl Refusal {
    /// The text of the error, empty where there was none.
    pub fn text(&self) -> String {
        match self {
            Self::Error(message) => message.field('M').unwrap_or_default(),
            Self::Closed => String::new(),
        }
    }
}

/// A raw connection.
pub struct Wire {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    buffer: Vec<u8>,
    start: usize,
    /// From BackendKeyData.
    pub pid: u32,
    /// From BackendKeyData: 4 bytes in protocol 3.0.
    pub key: Vec<u8>,
    /// ParameterStatus in the order of arrival, at login and later.
    pub parameters: Vec<(String, String)>,
    /// The status of the last ReadyForQuery: `I`, `T` or `E`; 0 before the first.
    pub status: u8,
}

impl Wire {
    /// A connection on which nothing has been said yet.
    pub fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        let buffer = Vec::new();
        let (start, pid, key, parameters, status) = (0, 0, Vec::new(), Vec::new(), 0);
        Ok(Self {
            stream,
            tls: None,
            buffer,
            start,
            pid,
            key,
            parameters,
            status,
        })
    }

    /// Logs in, by whichever method the server asks for.
    pub fn login(
        address: SocketAddr,
        user: &str,
        database: &str,
        password: Option<&str>,
    ) -> Result<Self, Refusal> {
        let parameters = [("user", user), ("database", database)];
        Self::login_with(address, &parameters, password)
    }

    /// Logs in with these startup parameters, `user` among them.
    pub fn login_with(
        address: SocketAddr,
        parameters: &[(&str, &str)],
        password: Option<&str>,
    ) -> Result<Self, Refusal> {
        let mut wire = Self::connect(address).map_err(|_| Refusal::Closed)?;
        let user = parameters
            .iter()
            .find(|(key, _)| *key == "user")
            .map_or("", |(_, value)| value);
        wire.send(&frontend::startup(parameters));
        wire.authenticate(user, password.unwrap_or_default())?;
        wire.welcome()?;
        Ok(wire)
    }

    /// Asks for TLS as libpq does; an error where it is declined or comes to nothing.
    pub fn encrypt(&mut self, config: &Arc<ClientConfig>) -> std::io::Result<()> {
        self.send(&frontend::packet(80_877_103, &[]));
        if self.read_byte() != Some(b'S') {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        self.encrypt_at_once(config)
    }

    /// Begins with TLS, without asking.
    pub fn encrypt_at_once(&mut self, config: &Arc<ClientConfig>) -> std::io::Result<()> {
        let name = ServerName::try_from("localhost").unwrap();
        let mut session = ClientConnection::new(config.clone(), name).unwrap();
        while session.is_handshaking() {
            session.complete_io(&mut self.stream)?;
        }
        self.tls = Some(Box::new(session));
        Ok(())
    }

    /// The protocol that was agreed upon in the handshake.
    pub fn application_protocol(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.alpn_protocol()
    }

    /// Logs in over TLS.
    pub fn login_encrypted(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        user: &str,
        database: &str,
    ) -> Result<Self, Refusal> {
        let mut wire = Self::connect(address).map_err(|_| Refusal::Closed)?;
        wire.encrypt(config).map_err(|_| Refusal::Closed)?;
        wire.enter(user, database)?;
        Ok(wire)
    }

    /// Logs in on this connection, with the password that belongs to the role.
    pub fn enter(&mut self, user: &str, database: &str) -> Result<(), Refusal> {
        let parameters = [("user", user), ("database", database)];
        if self.try_send(&frontend::startup(&parameters)).is_err() {
            return Err(Refusal::Closed);
        }
        self.authenticate(user, &super::postgres::password(user))?;
        self.welcome()
    }

    fn next_or_refusal(&mut self) -> Result<Message, Refusal> {
        match self.read_message() {
            Some(message) if message.tag == b'E' => Err(Refusal::Error(message)),
            Some(message) => Ok(message),
            None => Err(Refusal::Closed),
        }
    }

    fn authenticate(&mut self, user: &str, password: &str) -> Result<(), Refusal> {
        let mut scram: Option<ScramSha256> = None;
        loop {
            let message = self.next_or_refusal()?;
            if message.tag == b'v' {
                continue;
            }
            assert_eq!(message.tag, b'R', "while logging in: {message:?}");
            let (kind, data) = message.body.split_at(4);
            match u32::from_be_bytes(kind.try_into().unwrap()) {
                0 => return Ok(()),
                3 => self.send(&frontend::password(password)),
                5 => {
                    let salt = data.try_into().unwrap();
                    let proof = md5_hash(user.as_bytes(), password.as_bytes(), salt);
                    self.send(&frontend::password(&proof));
                }
                10 => {
                    let start =
                        ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
                    self.send(&frontend::sasl_initial("SCRAM-SHA-256", start.message()));
                    scram = Some(start);
                }
                11 => {
                    let scram = scram.as_mut().expect("SASL began");
                    scram.update(data).expect("a good server-first-message");
                    self.send(&frontend::message(b'p', scram.message()));
                }
                12 => {
                    let scram = scram.as_mut().expect("SASL began");
                    scram.finish(data).expect("the server knows our verifier");
                }
                other => panic!("authentication method {other}"),
            }
        }
    }

    fn welcome(&mut self) -> Result<(), Refusal> {
        loop {
            let message = self.next_or_refusal()?;
            match message.tag {
                b'Z' => return Ok(()),
                b'K' => {
                    self.pid = u32::from_be_bytes(message.body[..4].try_into().unwrap());
                    self.key = message.body[4..].to_vec();
                }
                b'S' | b'N' => {}
                _ => panic!("while logging in: {message:?}"),
            }
        }
    }

    /// Writes these bytes in one call.
    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap();
    }

    /// Writes these bytes; an error where the other side has hung up.
    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.tls {
            Some(session) => Stream::new(session.as_mut(), &mut self.stream).write_all(bytes),
            None => self.stream.write_all(bytes),
        }
    }

    /// Writes several messages in one call.
    pub fn send_all(&mut self, messages: &[Vec<u8>]) {
        self.send(&messages.concat());
    }

    /// The next message; `None` when the connection has ended.
    pub fn read_message(&mut self) -> Option<Message> {
        self.try_read_message().expect("a reply in time")
    }

    /// The next message; `None` when the connection has ended, an error when nothing came in time.
    pub fn try_read_message(&mut self) -> std::io::Result<Option<Message>> {
        if !self.fill(5)? {
            return Ok(None);
        }
        let head = &self.buffer[self.start..];
        let tag = head[0];
        let length = usize::try_from(u32::from_be_bytes(head[1..5].try_into().unwrap())).unwrap();
        assert!(length >= 4, "a message of tag {tag} with length {length}");
        if !self.fill(length + 1)? {
            return Ok(None);
        }
        let body = self.buffer[self.start + 5..=self.start + length].to_vec();
        self.start += length + 1;
        let message = Message { tag, body };
        self.learn(&message);
        Ok(Some(message))
    }

    /// Reads one bare byte, as the answer to SSLRequest is.
    pub fn read_byte(&mut self) -> Option<u8> {
        if !self.fill(1).expect("a reply in time") {
            return None;
        }
        self.start += 1;
        Some(self.buffer[self.start - 1])
    }

    fn learn(&mut self, message: &Message) {
        if message.tag == b'Z' {
            self.status = message.body[0];
        }
        if message.tag == b'S' {
            let mut parts = message.body.split(|byte| *byte == 0);
            let mut text =
                || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
            let pair = (text(), text());
            self.parameters.push(pair);
        }
    }

    /// Reads until `size` bytes are there; false at the end of the connection.
    fn fill(&mut self, size: usize) -> std::io::Result<bool> {
        if self.buffer.len() - self.start >= size {
            return Ok(true);
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        while self.buffer.len() < size {
            let old = self.buffer.len();
            self.buffer.resize((old + (64 << 10)).max(size), 0);
            let room = &mut self.buffer[old..];
            let read = match &mut self.tls {
                Some(session) => Stream::new(session.as_mut(), &mut self.stream).read(room),
                None => self.stream.read(room),
            };
            let got = *read.as_ref().unwrap_or(&0);
            self.buffer.truncate(old + got);
            match read {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Ok(false);
                }
                // The process was stopped for a while.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // An alert of TLS.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Everything up to and with the next ReadyForQuery, or to the end of the connection.
    pub fn read_until_ready(&mut self) -> Vec<Message> {
        self.read_until(b'Z')
    }

    /// Everything up to and with the next message with this tag, or to the end of the connection.
    pub fn read_until(&mut self, tag: u8) -> Vec<Message> {
        let mut messages = Vec::new();
        while let Some(message) = self.read_message() {
            let last = message.tag == tag;
            messages.push(message);
            if last {
                break;
            }
        }
        messages
    }

    /// A simple query and its replies.
    pub fn query(&mut self, sql: &str) -> Vec<Message> {
        self.send(&frontend::query(sql));
        self.read_until_ready()
    }

    /// Sends messages in one write and reads up to the next ReadyForQuery.
    pub fn exchange(&mut self, messages: &[Vec<u8>]) -> Vec<Message> {
        self.send_all(messages);
        self.read_until_ready()
    }

    /// A simple query that must succeed, and its rows.
    pub fn rows(&mut self, sql: &str) -> Rows {
        let replies = self.query(sql);
        rows(&replies).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// The one value of a simple query that must succeed.
    pub fn value(&mut self, sql: &str) -> String {
        self.rows(sql).only()
    }

    /// The value of a parameter as the server last reported it.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .rev()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether the other side has ended the connection: waits for it, and skips what comes before.
    pub fn ended(&mut self) -> bool {
        while self.read_message().is_some() {}
        true
    }

    /// Half-closes: nothing more will be sent.
    pub fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Vanishes as a killed process does whose unread input turns the close into a reset.
    pub fn abort(self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Sets how long a read may take.
    pub fn patience(&mut self, limit: Duration) {
        self.stream.set_read_timeout(Some(limit)).unwrap();
    }

    /// The connection below, for what this client cannot say.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// The first ErrorResponse among `replies`, which must have one.
pub fn error(replies: &[Message]) -> &Message {
    let found = replies.iter().find(|message| message.tag == b'E');
    found.unwrap_or_else(|| panic!("an error among {replies:?}"))
}

/// The names of the replies, for tests of their kind and order.
pub fn names(replies: &[Message]) -> Vec<&'static str> {
    replies.iter().map(Message::name).collect()
}

/// Rows of a result, by column name.
#[derive(Debug, Default)]
pub struct Rows {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Option<String>>>,
}

/// The first value of the first row, which need not be described; "" for NULL.
pub fn first_value(replies: &[Message]) -> String {
    let row = replies.iter().find(|message| message.tag == b'D');
    let row = row.unwrap_or_else(|| panic!("a row among {replies:?}"));
    row.values()[0].clone().unwrap_or_default()
}

/// What a login was refused with, which it has to be.
pub fn refusal(login: Result<Wire, Refusal>) -> String {
    login.err().expect("a refusal").text()
}

/// The rows among `replies`, or the first error.
pub fn rows(replies: &[Message]) -> Result<Rows, Message> {
    let mut result = Rows::default();
    for message in replies {
        match message.tag {
            b'E' => return Err(message.clone()),
            b'T' => {
                result = Rows {
                    columns: message.columns(),
                    rows: Vec::new(),
                }
            }
            b'D' => result.rows.push(message.values()),
            _ => {}
        }
    }
    if replies.last().is_none_or(|last| last.tag != b'Z') {
        let body = b"Mthe connection ended\0".to_vec();
        return Err(Message { tag: b'E', body });
    }
    Ok(result)
}

impl Rows {
    /// The one value of a result of one row and one column; "" for NULL.
    pub fn only(&self) -> String {
        assert!(
            self.rows.len() == 1 && self.rows[0].len() == 1,
            "one value, not {self:?}"
        );
        self.rows[0][0].clone().unwrap_or_default()
    }

    /// A column of a row; "" for NULL.
    pub fn get(&self, row: usize, column: &str) -> String {
        let at = self.columns.iter().position(|name| name == column);
        let at = at.unwrap_or_else(|| panic!("column {column} among {:?}", self.columns));
        self.rows[row][at].clone().unwrap_or_default()
    }

    /// The index of the first row whose `column` has this value.
    pub fn find(&self, column: &str, value: &str) -> Option<usize> {
        (0..self.rows.len()).find(|row| self.get(*row, column) == value)
    }
}
