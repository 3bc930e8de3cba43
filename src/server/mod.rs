//! One connection to PostgreSQL and all we know of it.
//!
//! A [`Server`] is owned by whoever does its I/O: the task of the client it is lent to, or the
//! pool while it is idle. It knows what it owes ([`pipeline`]), which statements are
//! prepared on it ([`statements`]), what it was asked last ([`Batch`]) and what its session looks like ([`session`]). Who may have it, and when, is
//! `pool`'s.

mod ahead;
mod batch;
pub mod cancel;
pub mod carried;
pub mod connect;
mod dial;
mod error;
mod exchange;
mod hosts;
pub mod look;
pub mod overlay;
pub mod pipeline;
pub mod session;
pub mod statements;
pub mod trial;
mod watched;

use std::sync::Arc;

use tokio::time::Instant;

pub use batch::{Batch, LONGEST as LONGEST_BATCH, Timed};
pub use error::Error;
pub use hosts::Hosts;
use overlay::Overlay;
use pipeline::Pipeline;
use session::Tracked;
use statements::Statements;
pub use watched::{Traced, Watched};

use crate::net::Connection;
use crate::prepared::Statement;
use crate::protocol::backend::TxStatus;
use crate::protocol::frontend;
use crate::protocol::shape::Shape;
use crate::sql::touches::Found;
use crate::stats::registry::ServerGuard;

/// What was noted down when a message was sent, ahead of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A client's name was given to a statement; it goes if the Parse is not done.
    Named {
        /// The client's name.
        name: Box<[u8]>,
        /// Was the Parse sent to the server? Then the statement is not prepared there, either.
        sent: Option<u64>,
    },
    /// A statement was prepared for the pooler's own reasons.
    Prepared(u64),
    /// A statement is described, for the client or for the pooler's own reasons.
    Described(Described),
    /// The client's unnamed statement is described, for it or for the pooler's own reasons.
    DescribedUnnamed(DescribedUnnamed),
    /// A Bind whose columns the client asks for, and they are others than those that it knows: what it knew, if it does not
    /// come to that.
    Told(Told),
    /// A client's name was taken away; it comes back if the Close is not done.
    Closed(Box<[u8]>, Named),
    /// A statement was closed to make room.
    Evicted(StatementRef),
    /// The client's unnamed statement is another one now, by this version number.
    Unnamed(u64),
    /// The server's unnamed statement was replaced for the pooler's own reasons.
    UnnamedReplaced,
    /// The client's unnamed statement is one that the server has prepared already (its id), and was not sent: the client is
    /// told that it is parsed when it is bound. By this version number.
    Reused(u64, u64),
    /// The client's unnamed statement is prepared under a name (its id), by this version number.
    Promoted(u64, u64),
    /// A Parse under a name that this client has given before: it will fail, and the error should name it.
    Duplicate(Box<[u8]>),
    /// The text drops names when it is run, in this order.
    Forget(Vec<Forget>),
    /// A Bind that is to fail: the result is not what the client has been told that it is.
    Outdated,
}

/// A statement shared by all, compared by its identity.
#[derive(Debug, Clone)]
pub struct StatementRef(pub Arc<Statement>);

impl PartialEq for StatementRef {
    fn eq(&self, other: &Self) -> bool {
        self.0.id() == other.0.id()
    }
}

impl Eq for StatementRef {}

/// What follows from the answer to a Describe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// The statement.
    pub id: u64,
    /// What the first message of the answer says, once it is there (`protocol::shape`).
    pub parameters: u32,
    /// Whom it is to be known to; `None`: to the server's list only.
    pub told: Option<Told>,
}

/// What follows from the answer to a Describe of the unnamed statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedUnnamed {
    /// Its version number.
    pub version: u64,
    /// What the first message of the answer says, once it is there (`protocol::shape`).
    pub parameters: u32,
    /// It was parsed here, so that the client knows it as what it is here. Otherwise the two have to be compared.
    pub is_parsed_here: bool,
}

/// Something is being found out about a statement that a client has a name for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The client's name.
    pub name: Box<[u8]>,
    /// The statement that it stood for.
    pub id: u64,
    /// What the client knew of it.
    pub before: Shape,
    /// It learns the columns only, not the parameters.
    pub columns_only: bool,
}

/// What a client's name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The shared statement.
    pub statement: StatementRef,
    /// What the client knows of it, or could: what it was on the server that it was first prepared on for this client, or what
    /// the client was told later. Unknown: what its server is about to say.
    pub shape: Shape,
    /// What running it does to the client's names and settings.
    pub forget: Option<Forget>,
    /// What running it may do to the session.
    pub found: Option<Arc<Found>>,
}

/// What running a text takes away: names (`DEALLOCATE`, `DISCARD ALL`), or what we know of the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forget {
    /// One name of the client's.
    Name(Box<[u8]>),
    /// All of the client's names and all that is prepared on the server.
    All,
    /// No names, but how a text is read from then on (`SET`, `RESET`).
    Settings,
}

/// What the unnamed statement of a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unnamed {
    /// There is none.
    Empty,
    /// A client's (its id), in this version.
    Of(u64, u64),
    /// The same, but the text was read here when the client knew already what it is; and what it is here.
    ReadAgain(u64, u64, Shape),
    /// It may be anything.
    Unknown,
}

/// Whose draws from sequences a session may remember: what `currval` and `lastval` say in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawn {
    /// None: it is new, or was cleaned.
    ByNobody,
    /// At most those of this client (its id).
    By(u64),
    /// At most those of its client, if what was sent in this batch is done.
    Forgetting(u64),
    /// Anybody's.
    BySeveral,
}

impl Drawn {
    /// This client, which has the server, may have drawn.
    #[inline]
    pub fn add(&mut self, id: u64) {
        *self = match *self {
            Self::ByNobody => Self::By(id),
            Self::By(known) if known != id => Self::BySeveral,
            same => same,
        };
    }
}

/// Why a server is not to be used any more once it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doom {
    /// Its stream could not be followed.
    Desync,
    /// A client left it in a state that could not be cleaned up.
    ClientLeft,
    /// The connection broke.
    Failed,
    /// It said itself, with a FATAL error, that it ends.
    Ended,
    /// A reset or check query failed.
    CheckFailed,
}

/// The state of a server that the relay of messages works on, apart from the socket.
#[derive(Debug)]
pub struct State {
    /// Replies owed.
    pub pipeline: Pipeline<Effect>,
    /// What is prepared on it.
    pub statements: Statements,
    /// Its unnamed statement.
    pub unnamed: Unnamed,
    /// What its client has sent of the batch under way.
    pub batch: Batch,
    /// As in the last ReadyForQuery.
    pub status: TxStatus,
    /// Its tracked parameters.
    pub tracked: Tracked,
    /// Notifications that came while it was looked at, as messages.
    pub heard: Vec<u8>,
    /// What else is set in it.
    pub overlay: Overlay,
    /// What was set when it had served nobody yet, by `connect_query`.
    pub base: Overlay,
    /// Whose draws from sequences it may remember.
    pub drawn: Drawn,
    /// Set when it must not go back to the pool.
    pub doom: Option<Doom>,
    /// What is seen of the batch under way; `None`: nothing is watched.
    pub watched: Option<Box<Watched>>,
}

/// A connection to PostgreSQL that is logged in.
#[derive(Debug)]
pub struct Server {
    /// The socket.
    pub connection: Connection,
    /// What we know of the session.
    pub state: State,
    /// Its place in the live list.
    pub entry: ServerGuard,
    /// The worker its socket is registered with.
    pub home: usize,
    /// When it was connected.
    pub created: Instant,
    /// When it was last given back, in microseconds after the registry's epoch.
    pub idle_since: u64,
    /// Fraction (0 to 1) by which its life is shortened, so that servers made together do not all
    /// go together.
    pub jitter: f64,
    /// A client has had it since it was connected, or since [`forget_clients`](Self::forget_clients).
    pub served: bool,
    /// So many ReadyForQuery are to come for what was sent ahead of its client's first message.
    ahead: usize,
    /// The pool's generation it belongs to; an outdated one is closed.
    pub generation: u64,
}

impl Server {
    /// Is it proved idle and empty, so that somebody else may have it?
    pub fn is_clean(&self) -> bool {
        self.state.pipeline.is_idle()
            && !self.is_ahead()
            && !self.state.pipeline.is_unsure()
            && self.state.status == TxStatus::Idle
            && self.state.doom.is_none()
            && self.connection.kept.is_empty()
            && !self.connection.has_backlog()
            && !self.connection.stream.is_staged()
    }

    /// Has it said nothing since it was given back? An idle server that speaks is about to end,
    /// or out of step.
    pub fn is_quiet(&self) -> bool {
        self.connection.stream.is_quiet()
    }

    /// Says goodbye and closes. (Dropping a server closes it without a word, which PostgreSQL logs.)
    pub fn close(mut self) {
        let mut terminate = Vec::new();
        frontend::terminate(&mut terminate);
        self.connection.stream.write_once(&terminate);
    }

    /// Moves the socket to the worker that calls this.
    pub fn rehome(mut self: Box<Self>, worker: usize) -> Result<Box<Self>, Error> {
        if self.home == worker {
            return Ok(self);
        }
        self.connection = self.connection.rehome()?;
        self.home = worker;
        Ok(self)
    }
}
