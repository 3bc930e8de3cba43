//! The way to a server: the socket, and TLS over it as far as it is wanted (docs: protocol-flow-ssl).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Error;
use crate::net::connection::Connection;
use crate::net::tls::WithServers;
use crate::net::{Address, Stream, TcpOptions};
use crate::protocol::frontend;

/// How servers are dialled, and how far an attempt has come.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    tcp: &'a TcpOptions,
    tls: &'a WithServers,
    is_connected: AtomicBool,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(tcp: &'a TcpOptions, tls: &'a WithServers) -> Self {
        let is_connected = AtomicBool::new(false);
        Self {
            tcp,
            tls,
            is_connected,
        }
    }

    /// What it means that there is no more time: PgBouncer's words tell a host that does not answer from a server that
    /// does not let us in.
    pub(super) fn timed_out(&self) -> Error {
        if self.is_connected.load(Ordering::Relaxed) {
            Error::ConnectTimeout
        } else {
            Error::Connect(io::ErrorKind::TimedOut.into())
        }
    }

    /// The socket alone. Cancel-safe: a dropped attempt is closed.
    pub(super) async fn connect(&self, address: &Address) -> Result<Stream, Error> {
        self.is_connected.store(false, Ordering::Relaxed);
        let stream = connect(address, self.tcp).await?;
        self.is_connected.store(true, Ordering::Relaxed);
        Ok(stream)
    }

    /// Connects to a server over TCP, encrypted if the setup wants it and the server can; `host` is the name its
    /// certificate must be for. Cancel-safe: a dropped attempt is closed.
    pub(super) async fn dial(&self, address: &Address, host: &str) -> Result<Stream, Error> {
        let stream = self.connect(address).await?;
        if !self.tls.is_wanted() {
            return Ok(stream);
        }
        match encrypt(stream, host, self.tls).await {
            Err(Error::Tls(error)) if !self.tls.is_required() => {
                // As libpq's `prefer`: rather a plain connection than none.
                tracing::warn!(server = %address, "TLS handshake error: {error}; going on without TLS");
                self.connect(address).await
            }
            result => result,
        }
    }
}

/// Connects to a server that had TLS before, under the name `host`: it is not spoken to without.
pub(super) async fn dial_encrypted(
    address: &Address,
    host: &str,
    tcp: &TcpOptions,
    tls: &WithServers,
) -> Result<Stream, Error> {
    let stream = encrypt(connect(address, tcp).await?, host, tls).await?;
    if stream.tls().is_none() {
        return Err(Error::TlsRefused);
    }
    Ok(stream)
}

async fn connect(address: &Address, tcp: &TcpOptions) -> Result<Stream, Error> {
    Stream::connect(address, tcp).await.map_err(Error::Connect)
}

async fn encrypt(stream: Stream, host: &str, tls: &WithServers) -> Result<Stream, Error> {
    let mut connection = Connection::new(stream);
    let mut request = Vec::new();
    frontend::ssl_request(&mut request);
    connection.send_all(&request).await?;
    if connection.read_more().await? == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    match (connection.kept.as_slice(), connection.stream) {
        ([b'S'], Stream::Plain(socket)) => Ok(Stream::Tls(tls.connect(socket, host).await?)),
        ([b'N'], stream) if !tls.is_required() => Ok(stream),
        ([b'N'] | [], _) => Err(Error::TlsRefused),
        // It would be taken for the server's after the handshake, and anyone on the way could have put it there.
        ([b'S' | b'N', _, ..], _) => Err(Error::DataAfterTlsAnswer),
        // An error text is not believed, either, before it is known who sends it.
        ([other, ..], _) => Err(Error::Unexpected((*other).into())),
    }
}
