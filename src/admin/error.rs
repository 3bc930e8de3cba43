//! Why the console refuses something. The texts are PgBouncer's where it has one.

use crate::protocol::sqlstate;

/// Why a command or a message was refused. The session goes on unless [`Error::is_fatal`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not in the grammar.
    #[error("invalid command '{text}', use SHOW HELP;")]
    InvalidCommand {
        /// What was sent.
        text: String,
    },
    /// A word is longer than any that means something.
    #[error("bad arguments")]
    BadArguments,
    /// A command that changes something, from one who may only look.
    #[error("admin access needed")]
    AdminNeeded,
    /// SET of an unknown setting, or to a value it cannot have.
    #[error("SET failed")]
    SetFailed {
        /// What the setting says.
        reason: String,
    },
    /// The configuration could not be read again; nothing has changed.
    #[error("RELOAD failed, see logs for additional details")]
    ReloadFailed {
        /// File, line and what is wrong there.
        reason: String,
    },
    /// No successor has taken over; this process goes on.
    #[error("UPGRADE failed: {reason}")]
    UpgradeFailed {
        /// What the successor says, or the system.
        reason: String,
    },
    /// PAUSE or KILL while everything is paused.
    #[error("already suspended/paused")]
    AlreadyPaused,
    /// RESUME without PAUSE.
    #[error("pooler is not paused/suspended")]
    NotPaused,
    /// RESUME of a database that was not paused.
    #[error("database {name} is not paused")]
    DatabaseNotPaused {
        /// The database.
        name: String,
    },
    /// RESUME during a shutdown.
    #[error("pooler is shutting down")]
    ShuttingDown,
    /// A name that is not configured.
    #[error("no such database: {name}")]
    NoSuchDatabase {
        /// The name.
        name: String,
    },
    /// The command makes no sense for the console itself.
    #[error("cannot {verb} admin db: {name}")]
    ConsoleDatabase {
        /// What cannot be done.
        verb: &'static str,
        /// The console's name that was used.
        name: String,
    },
    /// DISABLE or ENABLE of nothing.
    #[error("a database is required")]
    DatabaseRequired,
    /// `KILL_CLIENT` of something that is no number.
    #[error("invalid client pointer supplied")]
    InvalidClient,
    /// `KILL_CLIENT` of somebody who is not there.
    #[error("client not found")]
    ClientNotFound,
    /// SUSPEND while a database is paused by its name.
    #[error("cannot suspend with paused databases")]
    PausedDatabases,
    /// A cancel request ended a command that waited. PostgreSQL's words.
    #[error("canceling statement due to user request")]
    Canceled,
    /// PAUSE waited, and somebody else ended the pause.
    #[error("RESUME was issued while PAUSE was waiting")]
    Resumed,
    /// Bind or Describe of a statement that was not prepared. PostgreSQL's words.
    #[error("prepared statement \"{name}\" does not exist")]
    NoSuchStatement {
        /// Its name.
        name: String,
    },
    /// Parse under a name that is in use. PostgreSQL's words.
    #[error("prepared statement \"{name}\" already exists")]
    StatementExists {
        /// Its name.
        name: String,
    },
    /// Execute, Describe or Close of a portal that is not open. PostgreSQL's words.
    #[error("portal \"{name}\" does not exist")]
    NoSuchPortal {
        /// Its name.
        name: String,
    },
    /// Bind under a name that is in use. PostgreSQL's words.
    #[error("portal \"{name}\" already exists")]
    PortalExists {
        /// Its name.
        name: String,
    },
    /// A command that returns no rows was executed twice. PostgreSQL's words.
    #[error("portal \"{name}\" cannot be run")]
    PortalUsed {
        /// Its name.
        name: String,
    },
    /// Bind with values, where no command has parameters.
    #[error("bind message supplies {count} parameters, but console commands have none")]
    Parameters {
        /// How many came.
        count: u16,
    },
    /// Bind with a list of formats that fits neither all columns nor each. PostgreSQL's words.
    #[error("bind message has {formats} result formats but query has {columns} columns")]
    FormatCount {
        /// How many formats came.
        formats: usize,
        /// How many columns there are.
        columns: usize,
    },
    /// A format that is neither text nor binary. PostgreSQL's words.
    #[error("unsupported format code: {code}")]
    FormatCode {
        /// The code.
        code: u16,
    },
    /// More names than any tool needs, or longer ones.
    #[error("too many or too long names of prepared statements and portals")]
    TooManyNames,
    /// A message that no console expects.
    #[error("unsupported packet type for admin console: {code}")]
    UnexpectedMessage {
        /// Its tag byte.
        code: u8,
    },
    /// A message whose fields are broken.
    #[error("bad packet")]
    BadPacket,
}

impl Error {
    /// The SQLSTATE: PgBouncer's for everything it can refuse, PostgreSQL's for what only we can.
    pub fn sqlstate(&self) -> &'static str {
        match self {
            Self::ReloadFailed { .. } => sqlstate::CONFIG_FILE_ERROR,
            Self::Canceled => sqlstate::QUERY_CANCELED,
            Self::NoSuchStatement { .. } => sqlstate::INVALID_SQL_STATEMENT_NAME,
            Self::StatementExists { .. } => sqlstate::DUPLICATE_PSTATEMENT,
            _ => sqlstate::PROTOCOL_VIOLATION,
        }
    }

    /// The second part of the story.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::SetFailed { reason } | Self::ReloadFailed { reason } => Some(reason),
            _ => None,
        }
    }

    /// Does the connection end with it?
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::UnexpectedMessage { .. } | Self::BadPacket)
    }
}
