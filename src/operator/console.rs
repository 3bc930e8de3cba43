//! A small blocking client of the console: login, `SHOW`, rows. One command at a time, by the simple query protocol.
//!
//! The pooler's own connections to PostgreSQL are tasks of its workers ([`crate::server`]); a command line has no workers.
//! The messages and both sides of a login are the same, though. `Console` is not `Debug`-printed with anything it read.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;
use std::{fmt, io};

use rustls::{ClientConnection, StreamOwned};

use super::Error;
use super::target::{Address, Target};
use crate::auth::{Credentials, ServerLogin, ServerStep};
use crate::net::tls::{HandshakeError, Setup, certificate};
use crate::protocol::backend::{self, ErrorFields, tag};
use crate::protocol::{frame, frontend};

/// For each address of a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// For each read: a console answers at once, but for a login that asks a directory.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// The longest message and the longest answer, in bytes: some 100,000 clients' worth.
const LIMIT: usize = 64 << 20;

/// Bytes asked of the socket at once.
const READ_SIZE: usize = 16 << 10;

/// A column of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its heading.
    pub name: String,
    /// Are its values numbers (`int4`, `int8`, `numeric`)?
    pub is_number: bool,
}

/// An answer: values as texts; `None` is NULL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// The headings.
    pub columns: Vec<Column>,
    /// As many values as there are columns, in each.
    pub rows: Vec<Vec<Option<String>>>,
}

impl Rows {
    /// The place of the column with this name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

/// A connection to a console, logged in.
pub struct Console {
    stream: Stream,
    incoming: Vec<u8>,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Console(..)")
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// A whole message.
struct Message {
    tag: u8,
    body: Vec<u8>,
}

impl Console {
    /// Connects and logs in.
    pub fn connect(target: &Target) -> Result<Self, Error> {
        let stream = Stream::open(target)?;
        let end_point = stream.end_point();
        let mut console = Self {
            stream,
            incoming: Vec::new(),
        };
        let mut out = Vec::new();
        let parameters = [
            ("user", target.user.as_str()),
            ("database", &target.database),
            ("application_name", "pgferry"),
            ("client_encoding", "UTF8"),
        ];
        let parameters = parameters.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        frontend::startup(&mut out, 0, &parameters);
        console.send(&out)?;
        console.log_in(target, end_point)?;
        Ok(console)
    }

    fn log_in(&mut self, target: &Target, end_point: Option<Vec<u8>>) -> Result<(), Error> {
        let credentials = Credentials {
            user: target.user.clone(),
            secret: target.secret.clone(),
            scram: None,
        };
        let mut login = ServerLogin::new(credentials).binding_to(end_point);
        let mut is_in = false;
        loop {
            let message = self.receive()?;
            match message.tag {
                tag::AUTHENTICATION => match login.message(&message.body)? {
                    ServerStep::Send(answer) => self.send(&answer)?,
                    ServerStep::Wait => {}
                    ServerStep::Done => is_in = true,
                },
                tag::ERROR_RESPONSE => return Err(refused(&message.body)),
                tag::READY_FOR_QUERY if is_in => return Ok(()),
                tag::NOTICE_RESPONSE | tag::NEGOTIATE_PROTOCOL_VERSION => {}
                tag::PARAMETER_STATUS | tag::BACKEND_KEY_DATA if is_in => {}
                other => return Err(Error::Unexpected(other)),
            }
        }
    }

    /// Runs `SHOW name` and reads its rows. After [`Error::Refused`] the next one may be asked, unless it is `FATAL`.
    pub fn show(&mut self, name: &str) -> Result<Rows, Error> {
        self.run(&format!("SHOW {name}"))
    }

    /// Waits so long for each word of an answer, in place of what is enough for SHOW.
    pub(super) fn wait_for(&mut self, limit: Duration) -> Result<(), Error> {
        let limit = Some(limit);
        Ok(match &self.stream {
            Stream::Tcp(socket) => socket.set_read_timeout(limit),
            Stream::Unix(socket) => socket.set_read_timeout(limit),
            Stream::Tls(stream) => stream.sock.set_read_timeout(limit),
        }?)
    }

    /// Runs a command and reads its rows, if it has any.
    pub(super) fn run(&mut self, command: &str) -> Result<Rows, Error> {
        let mut out = Vec::new();
        frontend::query(&mut out, command.as_bytes());
        self.send(&out)?;
        let (mut rows, mut failure, mut length) = (Rows::default(), None, 0);
        loop {
            let Message { tag, body } = self.receive()?;
            length += body.len();
            if length > LIMIT {
                return Err(Error::TooLong { limit: LIMIT });
            }
            match tag {
                tag::ROW_DESCRIPTION => rows.columns = columns(&body)?,
                tag::DATA_ROW => rows.rows.push(row(&body, rows.columns.len())?),
                tag::ERROR_RESPONSE => {
                    let error = refused(&body);
                    if matches!(&error, Error::Refused { severity, .. } if severity == "FATAL") {
                        return Err(error);
                    }
                    failure = failure.or(Some(error));
                }
                tag::READY_FOR_QUERY => return failure.map_or(Ok(rows), Err),
                tag::COMMAND_COMPLETE
                | tag::EMPTY_QUERY_RESPONSE
                | tag::NOTICE_RESPONSE
                | tag::PARAMETER_STATUS => {}
                other => return Err(Error::Unexpected(other)),
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream.write_all(bytes)?;
        Ok(self.stream.flush()?)
    }

    fn receive(&mut self) -> Result<Message, Error> {
        loop {
            if let Some(frame) = frame::cut(&self.incoming, LIMIT)?
                && frame.is_complete()
            {
                let (tag, body, len) = (frame.tag, frame.body().to_vec(), frame.len);
                self.incoming.drain(..len);
                return Ok(Message { tag, body });
            }
            let mut bytes = [0; READ_SIZE];
            let count = self.stream.read(&mut bytes)?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let read = bytes.get(..count).unwrap_or_default();
            self.incoming.extend_from_slice(read);
        }
    }
}

impl Drop for Console {
    /// Says goodbye, so that the pooler does not log a client that vanished.
    fn drop(&mut self) {
        let mut out = Vec::new();
        frontend::terminate(&mut out);
        let _ = self.send(&out);
    }
}

impl Stream {
    fn open(target: &Target) -> Result<Self, Error> {
        let failed = |source| Error::Connect {
            address: target.address.to_string(),
            source,
        };
        match &target.address {
            Address::Unix(path) => {
                let socket = unix(path).map_err(failed)?;
                socket.set_read_timeout(Some(READ_TIMEOUT))?;
                socket.set_write_timeout(Some(READ_TIMEOUT))?;
                Ok(Self::Unix(socket))
            }
            Address::Tcp { host, port } => {
                let socket = tcp(host, *port).map_err(failed)?;
                socket.set_read_timeout(Some(READ_TIMEOUT))?;
                socket.set_write_timeout(Some(READ_TIMEOUT))?;
                socket.set_nodelay(true)?;
                encrypted(socket, host, target)
            }
        }
    }

    /// The data of `tls-server-end-point`, to which SCRAM binds itself.
    fn end_point(&self) -> Option<Vec<u8>> {
        let Self::Tls(stream) = self else { return None };
        certificate::end_point(stream.conn.peer_certificates()?.first()?)
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buf),
            Self::Unix(stream) => stream.read(buf),
            Self::Tls(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buf),
            Self::Unix(stream) => stream.write(buf),
            Self::Tls(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

fn unix(path: &Path) -> io::Result<UnixStream> {
    let bytes = path.as_os_str().as_encoded_bytes();
    match bytes.strip_prefix(b"@") {
        Some(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?),
        None => UnixStream::connect(path),
    }
}

/// The first of the host's addresses that answers.
pub(super) fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Asks for TLS, unless nobody wants it (docs: protocol-flow-ssl).
fn encrypted(mut socket: TcpStream, host: &str, target: &Target) -> Result<Stream, Error> {
    let servers = Setup::load(&target.tls)?.servers;
    if !servers.is_wanted() {
        return Ok(Stream::Tcp(socket));
    }
    let mut out = Vec::new();
    frontend::ssl_request(&mut out);
    socket.write_all(&out)?;
    // One byte and no more: what follows it unencrypted must not count as a part of the encrypted stream.
    let mut answer = [0];
    socket.read_exact(&mut answer)?;
    match answer {
        [b'S'] => {}
        [b'N'] if servers.is_required() => return Err(Error::NoTls),
        [b'N'] => return Ok(Stream::Tcp(socket)),
        [other] => return Err(Error::Unexpected(other)),
    }
    let address: IpAddr = socket.peer_addr()?.ip();
    let mut session = servers.session(address, host)?;
    while session.is_handshaking() {
        session.complete_io(&mut socket).map_err(|error| {
            // The library's own error, if that is what the socket's stands for.
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
            match inner {
                Some(inner) => HandshakeError::Tls(rustls::Error::clone(inner)),
                None => HandshakeError::Io(error),
            }
        })?;
    }
    Ok(Stream::Tls(Box::new(StreamOwned::new(session, socket))))
}

fn columns(body: &[u8]) -> Result<Vec<Column>, Error> {
    let read = backend::read_row_description(body)?;
    let column = |(name, oid): (Vec<u8>, u32)| Column {
        name: text(&name),
        // int8, int2, int4 and numeric, by PostgreSQL's catalog.
        is_number: matches!(oid, 20 | 21 | 23 | 1700),
    };
    Ok(read.into_iter().map(column).collect())
}

/// A row that is as long as it has to be, so that nobody else needs to check.
fn row(body: &[u8], columns: usize) -> Result<Vec<Option<String>>, Error> {
    let values = backend::read_data_row(body)?;
    if values.len() != columns {
        return Err(Error::Unexpected(tag::DATA_ROW));
    }
    let texts = values.into_iter().map(|value| Some(text(&value?)));
    Ok(texts.collect())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn refused(body: &[u8]) -> Error {
    let fields = match ErrorFields::read(body) {
        Ok(fields) => fields,
        Err(error) => return error.into(),
    };
    Error::Refused {
        severity: printable(&text(fields.severity().unwrap_or(b"ERROR"))),
        message: printable(&text(fields.message().unwrap_or_default())),
    }
}

/// The texts of a row's values, [printable](printable()); NULL is empty.
pub fn printable_row(row: &[Option<String>]) -> Vec<String> {
    let text = |value: &Option<String>| printable(value.as_deref().unwrap_or_default());
    row.iter().map(text).collect()
}

/// The text with its control characters escaped: names and queries are what clients say, and a terminal obeys.
pub fn printable(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            shown.extend(char.escape_default());
        } else {
            shown.push(char);
        }
    }
    shown
}

#[cfg(test)]
mod tests;
