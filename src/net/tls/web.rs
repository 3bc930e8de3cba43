//! TLS with a web server that we ask (a collector of telemetry), over a socket of tokio's: on the main thread, away from the workers.
//!
//! Trusts the authorities of the system (or those of `SSL_CERT_FILE`), and always verifies. Nothing here is made to be fast.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::setup::{SetupError, system_authorities};
use super::{HandshakeError, blocking, explain};

/// Whom we trust.
#[derive(Debug, Clone)]
pub struct WithWeb(Arc<ClientConfig>);

impl WithWeb {
    /// Those whom the system trusts. Reads files.
    pub fn load() -> Result<Self, SetupError> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(system_authorities()?.roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    /// Encrypts a connection to the server of this name, or address.
    pub async fn connect(
        &self,
        socket: TcpStream,
        host: &str,
    ) -> Result<WebStream, HandshakeError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| HandshakeError::Name(host.to_owned()))?;
        let session = ClientConnection::new(self.0.clone(), name)?;
        let mut stream = WebStream { socket, session };
        poll_fn(|cx| stream.poll_handshake(cx)).await?;
        Ok(stream)
    }
}

/// An encrypted connection.
pub struct WebStream {
    socket: TcpStream,
    session: ClientConnection,
}

impl fmt::Debug for WebStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebStream(..)")
    }
}

/// The socket as rustls wants it.
struct Now<'a, 'b> {
    socket: &'a mut TcpStream,
    cx: &'a mut Context<'b>,
}

impl Read for Now<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        blocking(Pin::new(&mut *self.socket).poll_read(self.cx, &mut buf))?;
        Ok(buf.filled().len())
    }
}

impl Write for Now<'_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        blocking(Pin::new(&mut *self.socket).poll_write(self.cx, buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What would block has registered the waker.
fn waiting<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        result => Poll::Ready(result),
    }
}

impl WebStream {
    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeError>> {
        loop {
            ready!(self.poll_send(cx))?;
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.poll_receive(cx))? == 0 {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
            if let Err(error) = self.session.process_new_packets() {
                // The peer is told why, if it listens.
                let _ = self.poll_send(cx);
                return Poll::Ready(Err(error.into()));
            }
        }
    }

    /// Sends what is encrypted.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            let socket = &mut self.socket;
            if ready!(waiting(self.session.write_tls(&mut Now { socket, cx })))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let socket = &mut self.socket;
        waiting(self.session.read_tls(&mut Now { socket, cx }))
    }
}

impl AsyncRead for WebStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.session.reader().read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The end without a farewell: what is cut off shows by its length.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            ready!(self.poll_receive(cx))?;
            let result = self.session.process_new_packets();
            // Answers of the protocol itself; what finds no room goes with the next request.
            let _ = self.poll_send(cx)?;
            if let Err(error) = result {
                let error = io::Error::new(io::ErrorKind::InvalidData, explain(&error));
                return Poll::Ready(Err(error));
            }
        }
    }
}

impl AsyncWrite for WebStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(cx))?;
        let taken = self.session.writer().write(buf)?;
        // The rest goes with the next one, or a flush.
        let _ = self.poll_send(cx)?;
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.send_close_notify();
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
