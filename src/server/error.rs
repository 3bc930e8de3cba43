//! What can go wrong between us and a server.

use std::io;

use crate::auth;
use crate::net::connection::ReadError;
use crate::net::tls::HandshakeError;
use crate::protocol;

/// Why a connection to a server failed, or could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection to the address.
    #[error("connect failed")]
    Connect(#[source] io::Error),
    /// The host's name has no address, or nobody tells.
    #[error("server DNS lookup failed")]
    Lookup,
    /// `server_connect_timeout` is over.
    #[error("connect timeout")]
    ConnectTimeout,
    /// `server_tls_sslmode` is `require` or above, and the server has no TLS.
    #[error("server refused SSL")]
    TlsRefused,
    /// The handshake of TLS failed.
    #[error("TLS handshake error: {0}")]
    Tls(#[from] HandshakeError),
    /// Plain bytes behind the answer to SSLRequest.
    #[error("received unencrypted data after SSL response")]
    DataAfterTlsAnswer,
    /// The server refused the login; its own words.
    #[error("{message}")]
    Refused {
        /// SQLSTATE.
        sqlstate: String,
        /// The message field.
        message: String,
    },
    /// The login can't be done with the secret we have, or the server did not prove itself.
    #[error("server login failed: {0}")]
    Login(#[from] auth::Error),
    /// The socket failed.
    #[error("server conn crashed?")]
    Io(#[from] io::Error),
    /// The bytes are no message.
    #[error("bad pkt header")]
    Protocol(#[from] protocol::Error),
    /// A message that does not belong there.
    #[error("unexpected message {0:?} from server during login")]
    Unexpected(char),
    /// `connect_query` leaves a transaction open.
    #[error("connect_query leaves a transaction open")]
    ConnectQuery,
    /// A query of the pooler's own failed.
    #[error("{0}")]
    Query(String),
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => Self::Io(error),
            ReadError::Protocol(error) => Self::Protocol(error),
        }
    }
}
