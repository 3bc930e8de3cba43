//! A server that goes from one process of ours to the next: what is known of its session, and its socket.
//!
//! What is prepared on it is closed before, so that names need not go along: a successor prepares what its clients use, as on
//! a new server. The fields are a format of their own (Protocol Buffers): a later version may add some, and knows those that
//! an earlier one did not send by their being empty.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::overlay::Overlay;
use super::overlay::prepared::Prepared;
use super::pipeline::Pipeline;
use super::session::{Tracked, TrackedNames};
use super::statements::Statements;
use super::{Batch, Drawn, Error, Server, State, Unnamed};
use crate::net::Connection;
use crate::protocol::backend::TxStatus;
use crate::protocol::frontend;
use crate::protocol::startup::Replication;
use crate::stats::Registry;
use crate::stats::registry::{CancelKey, NewServer, ServerEntry};

/// A setting and its value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct Value {
    /// Its name.
    #[prost(bytes = "vec", tag = "1")]
    pub name: Vec<u8>,
    /// Its value.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

impl fmt::Debug for Value {
    /// Without the value, which is a client's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({})", String::from_utf8_lossy(&self.name))
    }
}

impl Value {
    /// All of these.
    pub fn all<'a>(settings: impl Iterator<Item = (impl AsRef<[u8]> + 'a, &'a [u8])>) -> Vec<Self> {
        let value = |(name, value): (_, &[u8])| Self {
            name: AsRef::<[u8]>::as_ref(&name).to_vec(),
            value: value.to_vec(),
        };
        settings.map(value).collect()
    }

    /// As tracked parameters: those that are among the names.
    pub fn tracked(values: &[Self], names: &TrackedNames) -> Tracked {
        let mut tracked = Tracked::new(names.clone());
        for value in values {
            tracked.set(&value.name, &value.value);
        }
        tracked
    }

    /// As settings.
    pub fn overlay(values: &[Self]) -> Overlay {
        Self::overlay_with(values, &[])
    }

    /// As settings, with statements of SQL's PREPARE.
    pub fn overlay_with(values: &[Self], statements: &[Statement]) -> Overlay {
        let setting = |it: &Self| (it.name.as_slice().into(), it.value.as_slice().into());
        let statements = statements.iter().map(|it| Prepared {
            name: it.name.as_slice().into(),
            types: it.types.as_slice().into(),
            body: it.body.as_slice().into(),
        });
        Overlay::with_statements(values.iter().map(setting).collect(), statements.collect())
    }
}

/// A statement of SQL's PREPARE.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct Statement {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    types: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    body: Vec<u8>,
}

impl fmt::Debug for Statement {
    /// Without the text, which is a client's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Statement({})", String::from_utf8_lossy(&self.name))
    }
}

impl Statement {
    /// All of a session.
    pub fn all(overlay: &Overlay) -> Vec<Self> {
        let statement = |it: &Prepared| Self {
            name: it.name.to_vec(),
            types: it.types.to_vec(),
            body: it.body.to_vec(),
        };
        overlay.statements().iter().map(statement).collect()
    }
}

/// What a successor is to know of a server.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct Carried {
    /// The pool's database.
    #[prost(string, tag = "1")]
    pub database: String,
    /// The login name on the server, which is the pool's user.
    #[prost(string, tag = "2")]
    pub user: String,
    /// The host name it was found by.
    #[prost(string, tag = "3")]
    host: String,
    /// What it was connected to, to be compared.
    #[prost(string, tag = "4")]
    target: String,
    #[prost(int32, tag = "5")]
    cancel_pid: i32,
    #[prost(bytes = "vec", tag = "6")]
    cancel_key: Vec<u8>,
    /// Microseconds after the epoch, which goes along as well.
    #[prost(uint64, tag = "7")]
    connected: u64,
    #[prost(message, repeated, tag = "8")]
    tracked: Vec<Value>,
    #[prost(message, repeated, tag = "9")]
    overlay: Vec<Value>,
    #[prost(message, repeated, tag = "10")]
    base: Vec<Value>,
    /// The letter of ReadyForQuery.
    #[prost(uint32, tag = "11")]
    status: u32,
    /// Who may have drawn from sequences: nobody, the client that has it, or others.
    #[prost(enumeration = "Drew", tag = "12")]
    drew: i32,
    #[prost(bool, tag = "13")]
    served: bool,
    /// It goes when it is released.
    #[prost(bool, tag = "14")]
    is_outdated: bool,
    /// What it has said and nobody has dealt with.
    #[prost(bytes = "vec", tag = "15")]
    kept: Vec<u8>,
    #[prost(message, repeated, tag = "16")]
    statements: Vec<Statement>,
    #[prost(message, repeated, tag = "17")]
    base_statements: Vec<Statement>,
}

/// Who may have drawn from sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
enum Drew {
    Others = 0,
    Nobody = 1,
    ItsClient = 2,
}

impl fmt::Debug for Carried {
    /// Without the cancel key, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Carried({}/{})", self.database, self.user)
    }
}

impl Server {
    /// May it go to another process as it is? Its stream must stand still, and not be encrypted: a session of TLS can't move.
    pub fn may_be_carried(&self) -> bool {
        self.state.pipeline.is_idle()
            && !self.is_ahead()
            && !self.state.pipeline.is_unsure()
            && self.state.doom.is_none()
            && self.connection.kept.is_empty()
            && !self.connection.has_backlog()
            && !self.connection.stream.is_staged()
            && self.connection.stream.tls().is_none()
            && self.entry.replication == Replication::None
            && !self.entry.has_cancels()
    }

    /// Closes all that is prepared on it by us.
    pub async fn close_statements(&mut self) -> Result<(), Error> {
        let mut out = Vec::new();
        for statement in self.state.statements.all() {
            frontend::close(&mut out, frontend::Target::Statement, statement.name());
        }
        if out.is_empty() {
            return Ok(());
        }
        frontend::sync(&mut out);
        self.converse(&out, |_| {}).await?;
        self.state.statements.clear();
        self.hear()
    }

    /// What a successor is to know, and the socket. `target` is what makes a server of its pool, and `client` who has it, or 0.
    pub fn carry(
        self,
        (target, generation): (String, u64),
        client: u64,
    ) -> Result<(Carried, OwnedFd), Error> {
        let state = &self.state;
        let is_outdated =
            self.generation != generation || self.entry.close_needed.load(Ordering::Relaxed);
        let mut carried = Carried {
            database: self.entry.database.clone(),
            user: self.entry.user.clone(),
            host: self.entry.host.clone(),
            target,
            cancel_pid: self.entry.cancel_pid,
            cancel_key: self.entry.cancel_key.0.to_vec(),
            connected: self.entry.connected,
            tracked: Value::all(state.tracked.iter()),
            overlay: Value::all(state.overlay.iter()),
            base: Value::all(state.base.iter()),
            statements: Statement::all(&state.overlay),
            base_statements: Statement::all(&state.base),
            status: u32::from(state.status.as_byte()),
            drew: match state.drawn {
                Drawn::ByNobody => Drew::Nobody,
                Drawn::By(id) if id == client => Drew::ItsClient,
                Drawn::By(_) | Drawn::Forgetting(_) | Drawn::BySeveral => Drew::Others,
            } as i32,
            served: self.served,
            is_outdated,
            kept: Vec::new(),
        };
        let (socket, kept) = self.connection.into_descriptor()?;
        carried.kept = kept;
        Ok((carried, socket))
    }
}

/// Where a server that was passed on is to be.
#[derive(Debug)]
pub struct Place<'a> {
    /// What makes a server of the pool.
    pub target: &'a str,
    /// Which parameters are tracked.
    pub tracked: &'a TrackedNames,
    /// The live lists.
    pub registry: &'a Arc<Registry>,
    /// The worker that calls.
    pub worker: usize,
    /// The pool's.
    pub generation: u64,
    /// The id of the client that has it, or 0.
    pub client: u64,
}

impl Carried {
    /// The server, on the worker that calls this. `Ok(None)`: it is not what the pool connects to now, and is closed.
    pub fn into_server(
        self,
        socket: OwnedFd,
        place: &Place<'_>,
    ) -> Result<Option<Box<Server>>, Error> {
        let connection = Connection::from_descriptor(socket, &self.kept)?;
        let status = u8::try_from(self.status).ok();
        let status = status.and_then(|byte| TxStatus::from_byte(byte).ok());
        let (true, Some(status)) = (self.target == place.target, status) else {
            let mut connection = connection;
            let mut terminate = Vec::new();
            frontend::terminate(&mut terminate);
            connection.stream.write_once(&terminate);
            return Ok(None);
        };
        let registry = place.registry;
        let entry = ServerEntry::new(NewServer {
            id: registry.next_id(),
            user: self.user,
            database: self.database,
            host: self.host,
            peer: connection.stream.peer(),
            local: connection.stream.local_addr(),
            replication: Replication::None,
            tls: String::new(),
            connected: self.connected,
            cancel_pid: self.cancel_pid,
            cancel_key: CancelKey(self.cancel_key.into_boxed_slice()),
        });
        let drawn = match Drew::try_from(self.drew) {
            Ok(Drew::Nobody) => Drawn::ByNobody,
            Ok(Drew::ItsClient) => Drawn::By(place.client),
            Ok(Drew::Others) | Err(_) => Drawn::BySeveral,
        };
        let (now, connected) = (registry.now(), self.connected);
        let age = Duration::from_micros(now.saturating_sub(connected));
        let created = Instant::now().checked_sub(age);
        entry
            .close_needed
            .store(self.is_outdated, Ordering::Relaxed);
        Ok(Some(Box::new(Server {
            connection,
            state: State {
                pipeline: Pipeline::default(),
                statements: Statements::default(),
                unnamed: Unnamed::Unknown,
                batch: Batch::default(),
                status,
                tracked: Value::tracked(&self.tracked, place.tracked),
                heard: Vec::new(),
                overlay: Value::overlay_with(&self.overlay, &self.statements),
                base: Value::overlay_with(&self.base, &self.base_statements),
                drawn,
                doom: None,
                watched: None,
            },
            entry: registry.enter_server(entry),
            home: place.worker,
            created: created.unwrap_or_else(Instant::now),
            idle_since: now,
            jitter: rand::random(),
            served: self.served,
            ahead: 0,
            generation: place.generation,
        })))
    }
}
