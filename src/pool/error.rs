//! Why a client that waits for a server gets none.

use crate::server;

/// Sent to the client; the words are PgBouncer's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The server refused our login; its own words and SQLSTATE.
    #[error("{message}")]
    ServerRefused {
        /// The server's SQLSTATE.
        sqlstate: String,
        /// The server's message.
        message: String,
    },
    /// We could not log in to the server.
    #[error("{0}")]
    LoginFailed(String),
    /// Servers have failed to come up, and the next try is not due yet.
    #[error("server login has been failing, cached error: {0} (server_login_retry)")]
    LoginFailing(String),
    /// The database is gone from the configuration, or was killed at the console.
    #[error("database removed")]
    DatabaseRemoved,
    /// Shutdown: no server will come any more.
    #[error("server shutting down")]
    ShuttingDown,
    /// `query_wait_timeout`.
    #[error("query_wait_timeout")]
    Timeout,
}

impl WaitError {
    /// What a failed connection means for those who wait, if it means anything: a server that
    /// can't be reached may come back, but a login that was refused will be refused again.
    pub(super) fn from_connect(error: &server::Error) -> Option<Self> {
        match error {
            // cannot_connect_now: the server is starting up.
            server::Error::Refused { sqlstate, .. } if sqlstate == "57P03" => None,
            server::Error::Refused { sqlstate, message } => Some(Self::ServerRefused {
                sqlstate: sqlstate.clone(),
                message: message.clone(),
            }),
            server::Error::Login(_) => Some(Self::LoginFailed(error.to_string())),
            _ => None,
        }
    }
}
