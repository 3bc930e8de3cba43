//! What ends a client's session, or refuses a login: the one place where our errors become
//! ErrorResponse messages.
//!
//! Texts are PgBouncer's, and so is the SQLSTATE `08P01` for all that is the pooler's own: users' scripts
//! and drivers match on them. An error of PostgreSQL passes through byte for byte and never gets here, save
//! one that a server's login met with, which goes out with PostgreSQL's own SQLSTATE.

use crate::auth::client_login::Failure;
use crate::pool::{AdmissionError, WaitError};
use crate::prepared;
use crate::protocol;
use crate::protocol::backend::{self, ErrorMessage};
use crate::protocol::sqlstate;
use crate::server::trial::Refusal;
use crate::sql::touches::Touches;
use crate::stats::Fault;

/// Why a client is sent away.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bytes that are no message, or not the one that belongs there.
    #[error("{}", words(.0))]
    Protocol(#[from] protocol::Error),
    /// A Parse that has a name and does not make sense behind it.
    #[error("broken Parse packet")]
    BrokenParse(#[source] protocol::Error),
    /// A message that a client may not send, by its tag.
    #[error("unknown pkt")]
    UnknownMessage(u8),
    /// A first packet in the middle of the login.
    #[error("client re-sent startup pkt")]
    StartupAgain,
    /// Plain bytes behind SSLRequest.
    #[error("received unencrypted data after SSL request")]
    DataAfterSslRequest,
    /// Plain bytes behind GSSENCRequest.
    #[error("received unencrypted data after GSSAPI encryption request")]
    DataAfterGssRequest,
    /// `client_tls_sslmode` is `require` or above, and this is a plain connection.
    #[error("SSL required")]
    TlsRequired,
    /// A start-up message without `user`.
    #[error("no username supplied")]
    NoUser,
    /// A start-up parameter that is neither tracked nor ignored.
    #[error("unsupported startup parameter: {0}")]
    StartupParameter(String),
    /// The same, inside of `options`.
    #[error("unsupported startup parameter in options: {0}")]
    OptionsParameter(String),
    /// `replication` in the start-up message is neither a boolean nor `database`.
    #[error("invalid value for parameter \"replication\": \"{0}\"")]
    ReplicationValue(String),
    /// The server refused a replication client's login.
    #[error("login failed")]
    ReplicationLogin,
    /// The login failed.
    #[error("{0}")]
    Login(#[from] Failure),
    /// `auth_type = trust` and nobody of that name.
    #[error("\"trust\" authentication failed")]
    TrustFailed,
    /// No line of the HBA file is for this client.
    #[error("no authentication method is found")]
    NoMethod,
    /// The HBA file's method for this client is `reject`.
    #[error("login rejected")]
    Rejected,
    /// The method is `peer`, and the system's user may not log in under this name.
    #[error("unix socket login rejected")]
    PeerFailed,
    /// The method is `cert`: no certificate, one in another name, or nobody of that name.
    #[error("certificate authentication failed")]
    CertificateFailed,
    /// The directory does not know the password, or could not be asked.
    #[error("LDAP authentication failed")]
    LdapFailed,
    /// PAM does not know the password, or could not be asked.
    #[error("PAM authentication failed")]
    PamFailed,
    /// `auth_query` knows no such user.
    #[error("no such user")]
    NoSuchUser,
    /// Not configured.
    #[error("no such database: {0}")]
    NoSuchDatabase(String),
    /// The console said DISABLE.
    #[error("database \"{0}\" is disabled")]
    DatabaseDisabled(String),
    /// The console said DISABLE to the database that `auth_query` runs in.
    #[error("authentication database \"{0}\" is disabled")]
    AuthDatabaseDisabled(String),
    /// Something in the configuration that the administrator has to mend; details are in the log.
    #[error("bouncer config error")]
    Configuration,
    /// The console is for `admin_users` and `stats_users`.
    #[error("not allowed")]
    NotAllowed,
    /// Too many clients.
    #[error("{0}")]
    Admission(#[from] AdmissionError),
    /// `client_login_timeout`.
    #[error("client_login_timeout")]
    LoginTimeout,
    /// The same, while there was no server to tell what a session looks like.
    #[error("client_login_timeout (server down)")]
    LoginTimeoutServerDown,
    /// A name longer than any that is stored.
    #[error("username too long")]
    UserTooLong,
    /// No server was to be had.
    #[error("{0}")]
    Wait(#[from] WaitError),
    /// Shutdown.
    #[error("pooler is shutting down")]
    ShuttingDown,
    /// Shutdown that waits for servers, and this client has none.
    #[error("server shutting down")]
    ServerShuttingDown,
    /// A login while the process drains.
    #[error("the pooler is shutting down")]
    Draining,
    /// Drain: the client has to go. PostgreSQL's words and code, so that whoever knows these knows that it may come again.
    #[error("terminating connection due to administrator command")]
    Drained,
    /// The server died, or what it sent made no sense.
    #[error("server conn crashed?")]
    ServerCrashed,
    /// What the server sent is no message.
    #[error("bad pkt header")]
    ServerHeader,
    /// A value the client wants for a tracked parameter is not accepted by the server.
    #[error("invalid server parameter")]
    InvalidParameter,
    /// PostgreSQL does not take a setting of the start-up message; in its own words.
    #[error("{0}")]
    Setting(Box<Refusal>),
    /// `query_timeout` while the query ran.
    #[error("query timeout")]
    QueryTimeout,
    /// `query_timeout` while it waited for a server.
    #[error("query_timeout")]
    QueryTimeoutWaiting,
    /// `client_idle_timeout`.
    #[error("client_idle_timeout")]
    IdleTimeout,
    /// `idle_transaction_timeout`.
    #[error("idle transaction timeout")]
    IdleTransactionTimeout,
    /// `transaction_timeout`.
    #[error("transaction timeout")]
    TransactionTimeout,
    /// A transaction block in statement pooling.
    #[error("transaction blocks not allowed in statement pooling mode")]
    TransactionBlock,
    /// KILL, or the database is gone from the configuration.
    #[error("database removed")]
    DatabaseRemoved,
    /// `pin_policy = refuse`: it would have to keep its server.
    #[error("session state is refused by pin_policy: {0}")]
    PinRefused(Touches),
    /// `max_pinned_servers`.
    #[error("no more servers can be pinned (max_pinned_servers): {0}")]
    TooManyPinned(Touches),
    /// It does not take its notifications, or does not leave its transaction, for too long.
    #[error("too many notifications are waiting for this client")]
    TooManyNotifications,
    /// `disable_pqexec`.
    #[error("PQexec disallowed")]
    QueriesDisallowed,
    /// `server_fast_close`: its server is outdated.
    #[error("database configuration changed")]
    DatabaseChanged,
    /// It did not fall silent for SUSPEND within `suspend_timeout`.
    #[error("suspend_timeout")]
    SuspendTimeout,
    /// KILL_CLIENT.
    #[error("admin forced disconnect")]
    AdminDisconnect,
    /// The statements of all clients together need too much memory.
    #[error("{0}")]
    Statements(#[from] prepared::Error),
}

impl Error {
    /// The SQLSTATE that the client sees.
    pub fn sqlstate(&self) -> &str {
        match self {
            Self::Wait(WaitError::ServerRefused { sqlstate, .. }) => sqlstate,
            Self::Setting(refusal) => &refusal.sqlstate,
            Self::Statements(_) | Self::TooManyNotifications => sqlstate::OUT_OF_MEMORY,
            Self::PinRefused(_) => sqlstate::FEATURE_NOT_SUPPORTED,
            Self::TooManyPinned(_) => sqlstate::TOO_MANY_CONNECTIONS,
            Self::Draining => sqlstate::CANNOT_CONNECT_NOW,
            Self::Drained => sqlstate::ADMIN_SHUTDOWN,
            _ => sqlstate::PROTOCOL_VIOLATION,
        }
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Protocol(_)
            | Self::BrokenParse(_)
            | Self::UnknownMessage(_)
            | Self::StartupAgain
            | Self::DataAfterSslRequest
            | Self::DataAfterGssRequest
            | Self::TlsRequired
            | Self::NoUser
            | Self::UserTooLong
            | Self::StartupParameter(_)
            | Self::OptionsParameter(_)
            | Self::ReplicationValue(_)
            | Self::Login(_)
            | Self::TrustFailed
            | Self::NoMethod
            | Self::Rejected
            | Self::PeerFailed
            | Self::CertificateFailed
            | Self::LdapFailed
            | Self::PamFailed
            | Self::NoSuchUser
            | Self::NoSuchDatabase(_)
            | Self::NotAllowed
            | Self::InvalidParameter
            | Self::Setting(_)
            | Self::QueriesDisallowed
            | Self::PinRefused(_)
            | Self::TooManyNotifications
            | Self::TransactionBlock => Fault::Client,
            Self::ServerCrashed
            | Self::ServerHeader
            | Self::ReplicationLogin
            | Self::Wait(
                WaitError::ServerRefused { .. }
                | WaitError::LoginFailed(_)
                | WaitError::LoginFailing(_),
            ) => Fault::Server,
            Self::DatabaseDisabled(_)
            | Self::AuthDatabaseDisabled(_)
            | Self::Configuration
            | Self::Admission(_)
            | Self::LoginTimeout
            | Self::LoginTimeoutServerDown
            | Self::Wait(
                WaitError::DatabaseRemoved | WaitError::ShuttingDown | WaitError::Timeout,
            )
            | Self::ShuttingDown
            | Self::ServerShuttingDown
            | Self::Draining
            | Self::Drained
            | Self::QueryTimeout
            | Self::QueryTimeoutWaiting
            | Self::IdleTimeout
            | Self::IdleTransactionTimeout
            | Self::TransactionTimeout
            | Self::DatabaseRemoved
            | Self::DatabaseChanged
            | Self::SuspendTimeout
            | Self::AdminDisconnect
            | Self::TooManyPinned(_)
            | Self::Statements(_) => Fault::Pooler,
        }
    }

    /// Appends the ErrorResponse: always FATAL, for the connection ends with it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let text = self.to_string();
        let shown = match self {
            // PgBouncer cuts these, too. They are a server's, and say more at their end than at their beginning.
            Self::Wait(_) | Self::Setting(_) => &text,
            _ => cut(&text, LONGEST),
        };
        let mut message = ErrorMessage::new("FATAL", self.sqlstate(), shown);
        if let Self::Setting(refusal) = self {
            message.with_v = true;
            message.detail = refusal.detail.as_deref();
            message.hint = refusal.hint.as_deref();
        }
        backend::error_response(out, &message);
    }
}

/// Most bytes of a text, PgBouncer's.
const LONGEST: usize = 127;

/// The beginning of a text: so many bytes at most.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let mut ends = (0..=most.min(text.len())).rev();
    ends.find_map(|end| text.get(..end)).unwrap_or_default()
}

/// PgBouncer's words for bytes that make no sense: it has few.
fn words(error: &protocol::Error) -> String {
    use protocol::Error as Wrong;
    match error {
        Wrong::BadHeader { .. }
        | Wrong::PasswordFirst
        | Wrong::ProtocolTwo
        | Wrong::StartupTerminator
        | Wrong::UnsupportedOptions => error.to_string(),
        Wrong::Truncated
        | Wrong::MissingNul
        | Wrong::TrailingBytes { .. }
        | Wrong::BadLength { .. }
        | Wrong::BadTarget { .. }
        | Wrong::BadTxStatus { .. }
        | Wrong::BadTypeCount { .. }
        | Wrong::NameTooLong { .. }
        | Wrong::TooLong { .. }
        | Wrong::BadCancelKey { .. } => "failed to parse packet".to_owned(),
    }
}

/// How a session ended.
#[derive(Debug)]
pub enum Ending {
    /// The client said Terminate.
    Terminated,
    /// The client's connection is gone, without a word.
    Vanished,
    /// Its server ended, and the client has the server's own last word.
    ServerEnded,
    /// The client is sent away with this error. (Boxed: what may be the end is handed on at every step.)
    Error(Box<Error>),
}

impl Ending {
    /// What the log says.
    pub fn reason(&self) -> String {
        match self {
            Self::Terminated => "client close request".to_owned(),
            Self::Vanished => "client unexpected eof".to_owned(),
            Self::ServerEnded => "server conn crashed?".to_owned(),
            Self::Error(error) => error.to_string(),
        }
    }
}

impl<E: Into<Error>> From<E> for Ending {
    fn from(error: E) -> Self {
        Self::Error(Box::new(error.into()))
    }
}
