//! A client that goes from one process of ours to the next, with its server if it has one, and without noticing.
//!
//! It goes as soon as nothing of it is under way ([`Order::GoOver`](crate::stats::Order)): the same moment in which it could
//! move to another worker, or, with a server, in which the server owes nothing. What was read and not used goes along. A
//! client whose connection is encrypted can't go, as its keys are in this process.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::time::timeout;

use super::belongings::{self, Belongings};
use super::channels::{self, Channels};
use super::error::Ending;
use super::login::Resident;
use super::relay::Relay;
use super::sequences::{self, Sequences};
use super::session::{Parts, Session, State};
use super::{Context, Error, reading};
use crate::net::{ClientCount, Connection};
use crate::pool::listener::CarriedListener;
use crate::pool::{CarriedPool, Elsewhere, Learned, Pool, PoolName, PoolSettings, Pooled, Seat};
use crate::protocol::backend::TxStatus;
use crate::protocol::frontend::Parse;
use crate::protocol::shape::Shape;
use crate::protocol::startup::Replication;
use crate::server::carried::{self, Value};
use crate::server::{Doom, Forget, Named, StatementRef};
use crate::stats::Phase;
use crate::stats::registry::{CancelKey, ClientEntry, ClientGuard, NewClient, PinInfo};

/// Something on its way to the next process.
pub struct Departure {
    /// What a successor is to know.
    pub what: Moved,
    /// The client's, and then the server's if it has one.
    pub sockets: Vec<OwnedFd>,
    /// What it counts as here; to be dropped when it is sent.
    pub counts: Box<dyn Any + Send>,
}

/// What it is.
pub enum Moved {
    /// A client, perhaps with its server.
    Client(Box<Carried>),
    /// A server that is free.
    Server(carried::Carried),
    /// A pool, before what is of it.
    Pool(CarriedPool),
    /// The cancel request of this number is through.
    Canceled(u64),
    /// What is listened to, before those who do.
    Listener(CarriedListener),
    /// How many servers are left.
    Elsewhere(Elsewhere),
    /// That was all.
    Nothing,
}

/// By where they leave.
pub type Exit = Sender<Departure>;

/// What a successor is to know of a client.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct Carried {
    #[prost(string, tag = "1")]
    user: String,
    #[prost(string, tag = "2")]
    database: String,
    /// The user of its pool.
    #[prost(string, tag = "3")]
    pool_user: String,
    /// Microseconds after the epoch, which goes along; as all times here.
    #[prost(uint64, tag = "4")]
    connected: u64,
    #[prost(uint64, tag = "5")]
    request_time: u64,
    #[prost(uint64, tag = "6")]
    transaction_began: u64,
    #[prost(int32, tag = "7")]
    cancel_pid: i32,
    #[prost(bytes = "vec", tag = "8")]
    cancel_key: Vec<u8>,
    /// What it has sent and nobody has dealt with.
    #[prost(bytes = "vec", tag = "9")]
    kept: Vec<u8>,
    /// What it is to be sent first.
    #[prost(bytes = "vec", tag = "10")]
    told: Vec<u8>,
    #[prost(message, repeated, tag = "11")]
    tracked: Vec<Value>,
    #[prost(message, repeated, tag = "12")]
    at_login: Vec<Value>,
    /// Under which settings its texts are read is not known now.
    #[prost(bool, tag = "13")]
    context_is_open: bool,
    #[prost(bool, tag = "14")]
    skips_alone: bool,
    #[prost(message, repeated, tag = "15")]
    statements: Vec<CarriedStatement>,
    #[prost(message, optional, tag = "16")]
    unnamed: Option<CarriedStatement>,
    #[prost(message, optional, tag = "17")]
    belongings: Option<belongings::carried::Carried>,
    #[prost(message, optional, tag = "18")]
    sequences: Option<sequences::Carried>,
    #[prost(message, optional, tag = "19")]
    channels: Option<channels::Carried>,
    /// How its pool is used: a client with a server can only go where that is the same.
    #[prost(string, tag = "20")]
    usage: String,
    #[prost(message, optional, tag = "21")]
    server: Option<carried::Carried>,
    /// It was on the list of those who keep their servers.
    #[prost(bool, tag = "22")]
    is_pinned: bool,
    /// Set if it waits for a server.
    #[prost(message, optional, tag = "23")]
    waits: Option<CarriedWait>,
}

/// How a client waits for a server.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct CarriedWait {
    #[prost(uint64, tag = "1")]
    since: u64,
    /// It has been told that it waits (`query_wait_notify`).
    #[prost(bool, tag = "2")]
    is_notified: bool,
}

/// A client's statement.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
struct CarriedStatement {
    /// The client's name for it.
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    /// What follows the name in its Parse.
    #[prost(bytes = "vec", tag = "2")]
    definition: Vec<u8>,
    /// What the client knows of its parameters and columns (`protocol::shape`).
    #[prost(fixed64, tag = "3")]
    shape: u64,
    #[prost(oneof = "CarriedForget", tags = "4, 5, 6")]
    forget: Option<CarriedForget>,
}

/// What running a statement takes away.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
enum CarriedForget {
    #[prost(bytes, tag = "4")]
    Name(Vec<u8>),
    #[prost(bool, tag = "5")]
    All(bool),
    #[prost(bool, tag = "6")]
    Settings(bool),
}

impl fmt::Debug for CarriedStatement {
    /// Without the text, which is a client's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CarriedStatement(..)")
    }
}

impl fmt::Debug for Carried {
    /// Without texts and keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Carried({}/{})", self.database, self.user)
    }
}

/// How long its server may take to be ready to go.
const LIMIT: Duration = Duration::from_secs(5);

/// Why a client that comes from the process before this one is not served.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The socket.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The configuration of this process has no place for it.
    #[error("{0}")]
    Refused(Error),
}

fn without_socket() -> std::io::Error {
    std::io::ErrorKind::InvalidData.into()
}

// ---- leaving ---------------------------------------------------------------------------------

impl Session {
    /// Is nothing of it under way, so that it can go to another process?
    pub(super) fn may_go_over(&mut self) -> bool {
        self.connection.stream.settle();
        let relay = &self.relay;
        let is_still = !self.connection.has_backlog()
            && self.connection.stream.tls().is_none()
            && !relay.inbound.is_under_way()
            && !relay.outbound.is_under_way()
            && relay.own.is_empty()
            && !(relay.sync_is_due || relay.terminated || relay.is_refused);
        is_still
            && match &self.state {
                State::Idle | State::Waiting => true,
                State::Linked(pooled) => {
                    let server = &pooled.server;
                    server.connection.stream.settle();
                    self.connection.kept.is_empty()
                        && server.may_be_carried()
                        && relay.portals.is_empty()
                        && !relay.statements.has_unknown()
                }
                State::Preparing(_) | State::Looking(_) => false,
            }
    }

    /// Goes over. Comes back if it could not, with the reason for it to end.
    pub(super) async fn go_over(
        mut self: Box<Self>,
        exit: Exit,
        counts: Box<dyn Any + Send>,
    ) -> Option<(Box<Self>, Ending)> {
        self.leave_queue();
        let mut told = Vec::new();
        if let State::Linked(pooled) = &mut self.state {
            let server = &mut pooled.server;
            let making_ready = async {
                // From now on no cancel request finds it here; one that is on its way comes first.
                if !server.entry.unlink() {
                    server.entry.cancels_settled().await;
                }
                server.close_statements().await
            };
            let is_ready = matches!(timeout(LIMIT, making_ready).await, Ok(Ok(())));
            if !is_ready || server.state.doom.is_some() {
                server.state.doom.get_or_insert(Doom::Failed);
                return Some((self, Error::ServerCrashed.into()));
            }
            told = std::mem::take(&mut server.state.heard);
        }
        if let Some(channels) = &self.relay.channels {
            channels.put_untold(&mut told);
        }
        let mut client = self.carry(told);
        let Self {
            connection,
            entry,
            pool,
            state,
            relay,
            ..
        } = *self;
        let mut sockets = Vec::new();
        let Ok((socket, kept)) = connection.into_descriptor() else {
            // It has just failed, or it would have stood still.
            return None;
        };
        client.kept = kept;
        sockets.push(socket);
        let mut slot = None;
        if let State::Linked(pooled) = state {
            let target = (pool.fingerprint(), pool.generation());
            let (server, counted) = pooled.into_parts();
            let Ok((server, socket)) = server.carry(target, entry.id) else {
                return None;
            };
            client.server = Some(server);
            sockets.push(socket);
            slot = Some(counted);
        }
        let departure = Departure {
            what: Moved::Client(Box::new(client)),
            sockets,
            counts: Box::new((counts, entry, relay, slot)),
        };
        // An error: there is no successor any more, and nobody has the sockets.
        let _ = exit.send(departure);
        None
    }

    fn carry(&self, told: Vec<u8>) -> Carried {
        let (entry, relay) = (&self.entry, &self.relay);
        let names = relay.statements.iter();
        let unnamed = relay.statements.unnamed();
        Carried {
            user: entry.user.clone(),
            database: entry.database.clone(),
            pool_user: entry.pool_user.clone(),
            connected: entry.connected,
            request_time: entry.request_time(),
            transaction_began: self.transaction_began,
            cancel_pid: entry.cancel_pid,
            cancel_key: entry.cancel_key.0.to_vec(),
            kept: Vec::new(),
            told,
            tracked: Value::all(relay.tracked.iter()),
            at_login: Value::all(relay.at_login.iter()),
            context_is_open: relay.context_is_open,
            skips_alone: relay.skips_alone,
            statements: names
                .map(|(name, named)| CarriedStatement {
                    name: name.to_vec(),
                    definition: named.statement.0.definition().to_vec(),
                    shape: named.shape.to_bits(),
                    forget: named.forget.clone().map(CarriedForget::from),
                })
                .collect(),
            unnamed: unnamed.map(|(_, text)| CarriedStatement {
                definition: text.definition.clone(),
                shape: text.shape.to_bits(),
                forget: text.forget.clone().map(CarriedForget::from),
                ..CarriedStatement::default()
            }),
            belongings: relay.belongings.as_ref().map(|it| it.carry()),
            sequences: relay.sequences.carry(),
            channels: relay.channels.as_ref().map(|it| it.carry()),
            usage: usage(&relay.settings),
            server: None,
            waits: (entry.phase() == Phase::Waiting).then(|| CarriedWait {
                since: entry.since(),
                is_notified: entry.is_notified(),
            }),
            is_pinned: relay.belongings.as_ref().is_some_and(|it| it.pin.is_some()),
        }
    }
}

/// How a pool is used, as far as it matters for a client that keeps its server.
fn usage(settings: &PoolSettings) -> String {
    let translates = settings.max_prepared_statements > 0;
    format!(
        "{:?} {translates} {}",
        settings.mode,
        settings.follows_sessions()
    )
}

impl From<Forget> for CarriedForget {
    fn from(forget: Forget) -> Self {
        match forget {
            Forget::Name(name) => Self::Name(name.into_vec()),
            Forget::All => Self::All(true),
            Forget::Settings => Self::Settings(true),
        }
    }
}

impl From<CarriedForget> for Forget {
    fn from(forget: CarriedForget) -> Self {
        match forget {
            CarriedForget::Name(name) => Self::Name(name.into_boxed_slice()),
            CarriedForget::All(_) => Self::All,
            CarriedForget::Settings(_) => Self::Settings,
        }
    }
}

// ---- arriving --------------------------------------------------------------------------------

impl Carried {
    /// Its pool in the process before.
    pub fn pool(&self) -> PoolName {
        PoolName::of(&self.database, &self.pool_user)
    }

    /// Does it come with its server?
    pub fn has_server(&self) -> bool {
        self.server.is_some()
    }

    /// Serves it from now on, on the worker that calls this. The client is told if it can't be.
    pub fn arrive(
        mut self,
        context: &Arc<Context>,
        (sockets, seat): (Vec<OwnedFd>, Option<Seat>),
        count: ClientCount,
    ) -> Result<Resident, Lost> {
        let mut sockets = sockets.into_iter();
        let socket = sockets.next().ok_or_else(without_socket)?;
        let kept = std::mem::take(&mut self.kept);
        let mut connection = Connection::from_descriptor(socket, &kept)?;
        connection.queue(&self.told);
        let refused = |mut connection: Connection, error: Error| {
            let mut out = Vec::new();
            error.encode(&mut out);
            connection.stream.write_once(&out);
            Err(Lost::Refused(error))
        };
        let config = context.config.load();
        let Some(database) = config.database(&self.database) else {
            return refused(connection, Error::DatabaseRemoved);
        };
        let manager = &context.manager;
        let pool = manager.pool(&config, &database, &self.user, Learned::default());
        let mut admission = manager.admit();
        // It is here already, so it counts, whatever the limits say.
        let unlimited = 0;
        let _ = admission.name((&database.name, unlimited), (&self.user, unlimited));
        let entry = self.enter(
            context,
            &connection,
            (admission.id(), &pool.user, count.worker()),
        );
        let mut server = None;
        if let Some(carried) = self.server.take() {
            let socket = sockets.next().ok_or_else(without_socket)?;
            let place = (count.worker(), entry.id);
            let seat = seat.unwrap_or_else(|| pool.seat());
            server = match pool.take_over((carried, socket), seat, place) {
                Ok(Some(pooled)) if self.usage == usage(&pool.settings()) => Some(pooled),
                Ok(Some(pooled)) => {
                    pooled.close("database configuration changed");
                    None
                }
                Ok(None) | Err(_) => None,
            };
            if server.is_none() {
                return refused(connection, Error::DatabaseChanged);
            }
        }
        let relay = self.relay(context, &pool, &entry);
        let mut session = Box::new(Session::new(Parts {
            context: context.clone(),
            connection,
            entry,
            pool,
            relay,
            worker: count.worker(),
        }));
        if let Some(channels) = self.channels.take() {
            let channels = Channels::taken_over(&session.pool, &session.entry, channels);
            session.relay.channels = Some(Box::new(channels));
        }
        if let Some(pooled) = server {
            session.go_on_with(pooled, &self);
        }
        Ok(Resident::new(session, count, admission))
    }

    fn enter(
        &self,
        context: &Context,
        connection: &Connection,
        (id, pool_user, worker): (u64, &str, usize),
    ) -> ClientGuard {
        let registry = &context.manager.parts().registry;
        let cancel_key = CancelKey(self.cancel_key.clone().into_boxed_slice());
        registry.take_over_cancel_key(id, self.cancel_pid, &cancel_key);
        let entry = registry.enter_client(ClientEntry::new(NewClient {
            id,
            user: self.user.clone(),
            database: self.database.clone(),
            pool_user: pool_user.to_owned(),
            peer: connection.stream.peer(),
            replication: Replication::None,
            local: connection.stream.local_addr(),
            tls: String::new(),
            worker,
            cancel_pid: self.cancel_pid,
            cancel_key,
            connected: self.connected,
        }));
        entry.request_begins(self.request_time);
        if let Some(waits) = &self.waits {
            // What it has sent puts it into the queue, unless there is a server for it.
            entry.enter(Phase::Waiting, waits.since);
            if waits.is_notified {
                entry.notify_once();
            }
        } else {
            entry.enter(Phase::Idle, registry.now());
        }
        if context.manager.is_suspended() {
            entry.suspend();
        }
        let is_name = |it: &&Value| it.name.eq_ignore_ascii_case(b"application_name");
        if let Some(name) = self.tracked.iter().find(is_name) {
            entry.application_name.lock().clone_from(&name.value);
        }
        entry
    }

    fn relay(&mut self, context: &Context, pool: &Pool, entry: &ClientEntry) -> Relay {
        let parts = context.manager.parts();
        let tracked = Value::tracked(&self.tracked, &parts.tracked);
        let belongings = self.belongings.take();
        let mut belongings = belongings.map(|it| Box::new(it.into_belongings()));
        let is_tracked = |it: &&Value| parts.tracked.position(&it.name).is_some();
        for value in self.tracked.iter().filter(|it| !is_tracked(it)) {
            // It was in the process before: here it is one of those that a look finds.
            belongings.get_or_insert_default().keep(value);
        }
        let overlay = belongings.as_ref().and_then(|it| it.overlay());
        let read_under = reading::context(&parts.statements, &tracked, overlay);
        let mut relay = Relay::new(
            (entry.id, tracked, read_under),
            pool.settings(),
            parts.statements.clone(),
            context.names_held.clone(),
        );
        relay.at_login = Value::tracked(&self.at_login, &parts.tracked);
        relay.belongings = belongings;
        relay.sequences = Sequences::taken_over(self.sequences.take());
        relay.skips_alone = self.skips_alone;
        if self.context_is_open {
            relay.settings_may_change();
        }
        for statement in std::mem::take(&mut self.statements) {
            relay.name_again(statement);
        }
        if let Some(unnamed) = self.unnamed.take() {
            let (found, _) = relay.touches(Parse::text(&unnamed.definition));
            let (forget, found) = (unnamed.forget.map(Forget::from), found.map(Arc::from));
            let version = relay
                .statements
                .replace_unnamed(&unnamed.definition, forget, found);
            relay.statements.confirm_unnamed(version);
            let shape = Shape::from_bits(unnamed.shape);
            relay.statements.learn_unnamed(version, shape);
        }
        let count = u32::try_from(relay.statements.count()).unwrap_or(u32::MAX);
        entry
            .prepared_statements
            .store(count, std::sync::atomic::Ordering::Relaxed);
        relay
    }
}

impl Relay {
    /// Gives a name that the client has given before.
    fn name_again(&mut self, statement: CarriedStatement) {
        let (found, _) = self.touches(Parse::text(&statement.definition));
        // Whatever the budget says: the client has it already.
        let interned = self
            .registry
            .intern(&statement.definition, &self.context, usize::MAX);
        let Ok(interned) = interned else { return };
        let named = Named {
            shape: Shape::from_bits(statement.shape),
            statement: StatementRef(interned),
            forget: statement.forget.map(Forget::from),
            found: found.map(Arc::from),
        };
        self.statements
            .insert(statement.name.into_boxed_slice(), named);
    }
}

impl Session {
    /// It comes with its server, and goes on with it.
    fn go_on_with(&mut self, pooled: Pooled, carried: &Carried) {
        let now = self.context.now();
        let server = &pooled.server;
        server.entry.link(self.entry.id, now);
        self.entry.set_server(server.entry.id);
        let is_watched = self.relay.settings.watches_sequences();
        self.relay.sequences.go_on(is_watched);
        let phase = if server.state.status == TxStatus::Idle {
            Phase::LinkedIdle
        } else {
            self.transaction_began = carried.transaction_began;
            self.entry.set_transaction(carried.transaction_began);
            Phase::IdleInTransaction
        };
        self.entry.enter(phase, now);
        if let Some(belongings) = &mut self.relay.belongings
            && carried.is_pinned
        {
            pin(
                belongings,
                (&self.context, &self.pool, &self.entry),
                server.entry.id,
                now,
            );
        }
        self.state = State::Linked(pooled);
    }
}

fn pin(
    belongings: &mut Belongings,
    (context, pool, entry): (&Context, &Pool, &ClientGuard),
    server: u64,
    now: u64,
) {
    let info = PinInfo {
        holds: belongings.holds(),
        since: now,
        server,
        text: belongings.text(),
    };
    let registry = &context.manager.parts().registry;
    let pin = registry.pin(Arc::clone(entry), Arc::clone(pool.pinned()), info);
    belongings.pin = Some(pin);
}
