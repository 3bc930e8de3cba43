//! What follows authentication: the client is placed on its worker, told what its session looks like, and served.

use std::any::Any;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::belongings::Belongings;
use super::error::Ending;
use super::handshake::{ConsoleLogin, PoolLogin, Route, handshake, refuse};
use super::journal::Conn;
use super::parameters::Wanted;
use super::relay::Relay;
use super::replication::Replica;
use super::session::{FAREWELL, Parts, Session, State, Way};
use super::{Context, Error, cancel, reading};
use crate::net::dns::own_name;
use crate::net::executor::panics::is_unwound;
use crate::net::{Accepted, ClientCount, Connection, Workers};
use crate::pool::peers::sign;
use crate::pool::{Admission, Greeting, LoginSettings, Pool, WaitError};
use crate::prepared;
use crate::protocol::backend::{self, ErrorMessage, TxStatus};
use crate::protocol::startup::Replication;
use crate::server::session::Tracked;
use crate::stats::registry::{ClientEntry, ClientGuard, NewClient, Peer};

/// Bytes of a cancel key in protocol 3.2 (PostgreSQL's own choice), and before.
const LONG_KEY: usize = 32;
const SHORT_KEY: usize = 4;

/// A console client, ready to be served by `admin`.
#[derive(Debug)]
pub struct Operator {
    /// Its socket.
    pub connection: Connection,
    /// Its place in the live list.
    pub entry: ClientGuard,
    /// What it may do.
    pub rights: super::Rights,
    /// Its place among those that are counted.
    pub admission: Admission,
    /// How the log calls it.
    pub conn: Conn,
}

/// Who a connection turned out to be, when it is logged in.
pub enum Arrival {
    /// A client of a pool, to be served from now on.
    Client(Resident),
    /// A console client, for somebody else to serve.
    Operator(Operator),
    /// Another process that wants to take this one's place.
    Successor(Connection),
}

/// Logs an accepted socket in, on the worker that calls this. `None`: that was all, or it goes on elsewhere.
pub async fn log_in(
    context: Arc<Context>,
    accepted: Accepted,
    admission: Admission,
    worker: usize,
) -> Option<Arrival> {
    let Accepted {
        socket,
        peer,
        local,
    } = accepted;
    let connection = Connection::accepted(socket).ok()?;
    let config = context.config.load();
    let mut conn = Conn::new(admission.id(), peer, config.settings.listen_port);
    let limit = config.settings.client_login_timeout;
    let deadline = Instant::now()
        + if limit.is_zero() {
            Duration::from_secs(365 * 86_400)
        } else {
            limit
        };
    let place = (worker, deadline);
    match handshake(&context, connection, (admission, &mut conn), place).await? {
        Route::Cancel {
            connection,
            pid,
            key,
        } => {
            Box::pin(cancel::request(&context, &conn, pid, &key)).await;
            // Not before: the client's next query must not be the one that is hit.
            drop(connection);
            None
        }
        Route::Successor(connection) => Some(Arrival::Successor(connection)),
        Route::Console(login) => {
            let operator = Box::pin(greet_operator(&context, login, (worker, local), conn)).await;
            operator.map(Arrival::Operator)
        }
        Route::Pool(login) => {
            let workers = context.manager.parts().workers.clone();
            let home = home_of(&login.pool, &workers, worker);
            let count = workers.count_client(home);
            let guest = Guest {
                context,
                login,
                conn,
                local,
                deadline,
                count,
            };
            if home == worker {
                return guest.settle(home).await.map(Arrival::Client);
            }
            guest.login.connection.stream.settle();
            let arrival = Box::pin(async move { guest.arrive(home).await });
            workers.spawn_on(home, Resident::logging_in(arrival));
            None
        }
    }
}

/// The worker that a client will live on: the one it has logged in on if that has hardly more clients than others that
/// its pool lives on, else the one with the fewest.
fn home_of(pool: &Pool, workers: &Workers, worker: usize) -> usize {
    let home = workers.least_loaded(pool.homes());
    let fewest = workers.clients_of(home);
    let is_fair = workers.clients_of(worker) <= fewest + 1 + fewest / 16;
    if is_fair && pool.homes().any(|home| home == worker) {
        worker
    } else {
        home
    }
}

/// A client that has proved who it is, and has not been told about its session.
struct Guest {
    context: Arc<Context>,
    login: PoolLogin,
    conn: Conn,
    local: Option<SocketAddr>,
    deadline: Instant,
    count: ClientCount,
}

impl Guest {
    /// Takes its socket to the worker that calls this, and goes on there.
    async fn arrive(mut self, worker: usize) -> Option<Resident> {
        self.login.connection = self.login.connection.rehome().ok()?;
        self.settle(worker).await
    }

    async fn settle(self, worker: usize) -> Option<Resident> {
        let PoolLogin {
            connection,
            wanted,
            pool,
            long_key,
            admission,
        } = self.login;
        let client = Client {
            context: self.context,
            connection,
            pool,
            worker,
            key: KeyKind::new(admission.id(), long_key),
            local: self.local,
        };
        let session = client.log_in(wanted, self.deadline, &self.conn).await?;
        Some(Resident::new(session, self.count, admission))
    }
}

/// A client, and what it counts as: the task that serves it on its worker. (Written by hand, as there is one for every
/// client, and `async` would keep some things twice, and room for a login.)
pub struct Resident {
    stay: Stay,
    /// Where it is; `None` before that is known.
    count: Option<ClientCount>,
    /// Goes along when the client moves.
    admission: Option<Admission>,
}

/// A login under way, and who comes of it.
pub type LoggingIn = Pin<Box<dyn Future<Output = Option<Resident>> + Send>>;

enum Stay {
    /// It has to prove who it is.
    LoggingIn(LoggingIn),
    /// Its socket may still be on another worker.
    Arriving(Box<Session>),
    /// It is served.
    Here(Box<Session>),
    /// It is told that it has to go, and its server is seen to.
    Leaving(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// It has ended, or is on another worker.
    Gone,
}

impl Resident {
    /// Somebody who wants in.
    pub fn logging_in(login: LoggingIn) -> Self {
        Self {
            stay: Stay::LoggingIn(login),
            count: None,
            admission: None,
        }
    }

    pub(super) fn new(session: Box<Session>, count: ClientCount, admission: Admission) -> Self {
        Self {
            stay: Stay::Arriving(session),
            count: Some(count),
            admission: Some(admission),
        }
    }

    fn arrive(&mut self, cx: &TaskContext<'_>) {
        if let Stay::Arriving(session) = std::mem::replace(&mut self.stay, Stay::Gone)
            && let Some(count) = &self.count
            && let Ok(session) = session.arrive(count.worker())
        {
            session.entry().register(cx.waker());
            self.stay = Stay::Here(session);
        }
    }

    fn leave(&mut self, way: Way) {
        let Stay::Here(session) = std::mem::replace(&mut self.stay, Stay::Gone) else {
            return;
        };
        match way {
            Way::Ends(ending) if session.leaves_nothing(&ending) => {
                session.leave_queue();
                let context = session.context().clone();
                if context.config.load().settings.log_disconnections {
                    let conn = conn_of(&session);
                    drop(session);
                    conn.ends(&context, &ending);
                }
            }
            Way::Ends(ending) => self.stay = Stay::Leaving(Box::pin(farewell(session, ending))),
            Way::GoesOver => {
                let counts = Box::new((self.count.take(), self.admission.take()));
                self.stay = Stay::Leaving(Box::pin(go_over(session, counts)));
            }
            Way::Moves(worker) => {
                let workers = session.context().manager.parts().workers.clone();
                let count = workers.count_client(worker);
                if let Some(admission) = self.admission.take() {
                    workers.spawn_on(worker, Self::new(session, count, admission));
                }
            }
        }
    }
}

/// A client that is dropped where it stands: the process ends, or there was a bug of ours. What it has goes with it (its server is
/// closed); but a place in a queue has to be given up, or somebody would give it a server.
impl Drop for Resident {
    fn drop(&mut self) {
        let (Stay::Here(session) | Stay::Arriving(session)) = &self.stay else {
            return;
        };
        if is_unwound() {
            session.leave_queue();
            tracing::error!(conn = %conn_of(session), "closing because: internal error");
        }
    }
}

fn conn_of(session: &Session) -> Conn {
    let context = session.context();
    let port = context.config.load().settings.listen_port;
    let now = context.manager.parts().registry.now();
    Conn::of(session.entry(), port, now)
}

/// To the process that takes this one's place.
async fn go_over(session: Box<Session>, counts: Box<dyn Any + Send>) {
    let Some(exit) = session.context().exit() else {
        return farewell(session, super::Error::Draining.into()).await;
    };
    if let Some((session, ending)) = session.go_over(exit, counts).await {
        farewell(session, ending).await;
    }
}

async fn farewell(session: Box<Session>, ending: Ending) {
    let context = session.context().clone();
    let conn = conn_of(&session);
    session.finish(&ending).await;
    conn.ends(&context, &ending);
}

impl Future for Resident {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            match &mut this.stay {
                Stay::LoggingIn(login) => match ready!(login.as_mut().poll(cx)) {
                    Some(client) => *this = client,
                    None => this.stay = Stay::Gone,
                },
                Stay::Arriving(_) => this.arrive(cx),
                Stay::Here(session) => {
                    let way = ready!(session.poll(cx));
                    this.leave(way);
                }
                Stay::Leaving(farewell) => return farewell.as_mut().poll(cx),
                Stay::Gone => return Poll::Ready(()),
            }
        }
    }
}

impl Session {
    /// Can it simply go? It has no server to be seen to, and nothing is to be said to the client.
    fn leaves_nothing(&self, ending: &Ending) -> bool {
        matches!(self.state, State::Idle | State::Waiting) && !matches!(ending, Ending::Error(_))
    }
}

/// A client about to be told what its session looks like.
pub(super) struct Client {
    pub(super) context: Arc<Context>,
    connection: Connection,
    pub(super) pool: Arc<Pool>,
    pub(super) worker: usize,
    key: KeyKind,
    local: Option<SocketAddr>,
}

/// What a client's cancel key is made for: its id, and how long it is.
#[derive(Clone, Copy)]
struct KeyKind {
    id: u64,
    length: usize,
}

impl KeyKind {
    fn new(id: u64, is_long: bool) -> Self {
        let length = if is_long { LONG_KEY } else { SHORT_KEY };
        Self { id, length }
    }
}

impl Client {
    /// Tells the client that it is logged in. Comes back with its session, and how the log calls it.
    async fn log_in(
        mut self,
        wanted: Wanted,
        deadline: Instant,
        conn: &Conn,
    ) -> Option<Box<Session>> {
        let config = self.context.config.load();
        let entry = enter(
            &self.context,
            (&wanted, self.pool.user.clone()),
            &self.connection,
            (conn.peer(), self.local),
            (self.worker, self.key),
        );
        if wanted.replication != Replication::None {
            // (What is rare has a room of its own, or every login would be as large as that.)
            Box::pin(self.replicate(entry, wanted, conn, deadline)).await;
            return None;
        }
        // Whoever suspends says so first, and gives orders to those who are listed then.
        if self.context.manager.is_suspended() {
            entry.suspend();
        }
        let mut asked = wanted.tracked;
        if config.settings.application_name_add_host {
            add_host(&mut asked, entry.peer, config.settings.listen_port);
        }
        let is_plain = |greeting: &Arc<Greeting>| greeting.unreported.is_empty();
        let known = if wanted.settings.is_empty() {
            self.pool.greeting(&asked).filter(is_plain)
        } else {
            None
        };
        let (greeting, accepted) = match known {
            Some(greeting) => (Some(greeting), None),
            None => {
                let asking = self.ask((&entry, deadline), &mut asked, wanted.settings);
                match Box::pin(asking).await {
                    Ok(answer) => answer,
                    Err(error) => {
                        refuse((&self.context, conn), &mut self.connection, &error).await;
                        return None;
                    }
                }
            }
        };
        let statements = &self.context.manager.parts().statements;
        let read_under = |tracked: &Tracked| reading::context(statements, tracked, None);
        let (tracked, read_under, messages) = match &greeting {
            Some(greeting) => (
                greeting.tracked.clone(),
                greeting.context(read_under),
                greeting.messages.as_slice(),
            ),
            None => {
                let read_under = read_under(&asked);
                (asked, read_under, &[][..])
            }
        };
        if let Some(name) = tracked.iter().find(|(name, _)| *name == "application_name") {
            *entry.application_name.lock() = name.1.to_vec();
        }
        self.connection.queue(messages);
        let mut out = Vec::with_capacity(64);
        backend::backend_key_data(&mut out, entry.cancel_pid, &entry.cancel_key.0);
        let message = &config.settings.login_notify_message;
        if !message.is_empty() {
            let notice = ErrorMessage::new("NOTICE", "00000", message);
            backend::notice_response(&mut out, &notice);
        }
        backend::ready_for_query(&mut out, TxStatus::Idle);
        self.connection.send_all(&out).await.ok()?;
        if let Some(counters) = self.pool.counters(self.worker) {
            counters.client_logins.add(1);
        }
        Some(self.session(entry, (tracked, read_under), accepted))
    }

    /// A replication client gets a server of its own, for as long as it is connected.
    async fn replicate(
        mut self,
        entry: ClientGuard,
        wanted: Wanted,
        conn: &Conn,
        deadline: Instant,
    ) {
        let opening = self
            .pool
            .dedicate(self.worker, wanted.replication, &wanted.start_up);
        let opened = match self.in_time(&entry, deadline, opening).await {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(_)) => Err(Error::ReplicationLogin),
            Err(error) => Err(error),
        };
        let (pooled, welcome) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                return refuse((&self.context, conn), &mut self.connection, &error).await;
            }
        };
        let mut out = Vec::new();
        for (name, value) in &welcome {
            backend::parameter_status(&mut out, name, value);
        }
        backend::backend_key_data(&mut out, entry.cancel_pid, &entry.cancel_key.0);
        backend::ready_for_query(&mut out, TxStatus::Idle);
        if self.connection.send_all(&out).await.is_err() {
            return;
        }
        if let Some(counters) = self.pool.counters(self.worker) {
            counters.client_logins.add(1);
        }
        let now = self.context.manager.parts().registry.now();
        let replica = Replica {
            connection: self.connection,
            pooled,
            entry,
            counters: self.pool.counters(self.worker),
        };
        let (ending, connection) = Box::pin(replica.run(now)).await;
        conn.ends(&self.context, &ending);
        if let (Ending::Error(error), Some(mut connection)) = (&ending, connection) {
            let mut out = Vec::new();
            error.encode(&mut out);
            // It may not listen any more; then there is nothing more to say.
            let _ = timeout(FAREWELL, connection.send_all(&out)).await;
        }
    }

    /// Waits for a server, within the limits of waiting, of a query and of the login.
    pub(super) async fn in_time<T>(
        &self,
        entry: &ClientGuard,
        deadline: Instant,
        server: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let config = self.context.config.load();
        let now = Instant::now();
        let wait = config
            .database(&entry.database)
            .map(|database| config.query_wait_timeout(&database, &entry.user));
        let query = Duration::from_micros(self.pool.settings().query_timeout);
        let after = |limit: Duration| now + limit;
        let limits = [
            wait.filter(|wait| !wait.is_zero())
                .map(|wait| (after(wait), Error::from(WaitError::Timeout))),
            Some((after(query), Error::QueryTimeoutWaiting)).filter(|_| !query.is_zero()),
            Some((deadline, Error::LoginTimeoutServerDown)),
        ];
        let first = limits.into_iter().flatten().min_by_key(|(at, _)| *at);
        let (at, error) = first.unwrap_or((deadline, Error::LoginTimeoutServerDown));
        timeout_at(at, server).await.map_err(|_| error)
    }

    fn session(
        self,
        entry: ClientGuard,
        (tracked, read_under): (Tracked, prepared::Context),
        accepted: Option<Arc<LoginSettings>>,
    ) -> Box<Session> {
        let mut relay = Relay::new(
            (entry.id, tracked, read_under),
            self.pool.settings(),
            self.context.manager.parts().statements.clone(),
            self.context.names_held.clone(),
        );
        if let Some(accepted) = accepted {
            relay.belongings = Some(Box::new(Belongings::at_login(accepted)));
            relay.learn_context();
        }
        Box::new(Session::new(Parts {
            context: self.context,
            connection: self.connection,
            entry,
            pool: self.pool,
            relay,
            worker: self.worker,
        }))
    }
}

/// `application_name_add_host`: the client's address behind its name, for whoever looks at the server.
fn add_host(tracked: &mut Tracked, peer: Peer, port: u16) {
    let name = tracked.iter().find(|(name, _)| *name == "application_name");
    let name = name.map_or(&b"app"[..], |(_, value)| value);
    let address = match peer {
        Peer::Tcp(address) => address.to_string(),
        Peer::Unix(pid) => format!("unix({}@{}):{port}", pid.unwrap_or(0), own_name()),
    };
    let name = [name, b" - ", address.as_bytes()].concat();
    tracked.set(b"application_name", &name);
}

fn enter(
    context: &Context,
    (wanted, pool_user): (&Wanted, String),
    connection: &Connection,
    (peer, local): (Peer, Option<SocketAddr>),
    (worker, KeyKind { id, length }): (usize, KeyKind),
) -> ClientGuard {
    let registry = &context.manager.parts().registry;
    let own = context.config.load().settings.peer_id;
    let (cancel_pid, cancel_key) =
        registry.reserve_cancel_key(id, length, |pid, key| sign(own, pid, key));
    registry.enter_client(ClientEntry::new(NewClient {
        id,
        user: wanted.user.clone(),
        database: wanted.database.clone(),
        pool_user,
        peer,
        replication: wanted.replication,
        local,
        tls: connection.stream.describe_tls(),
        worker,
        cancel_pid,
        cancel_key,
        connected: registry.now(),
    }))
}

async fn greet_operator(
    context: &Arc<Context>,
    login: ConsoleLogin,
    (worker, local): (usize, Option<SocketAddr>),
    conn: Conn,
) -> Option<Operator> {
    let ConsoleLogin {
        mut connection,
        wanted,
        rights,
        long_key,
        admission,
    } = login;
    let entry = enter(
        context,
        (&wanted, "pgbouncer".to_owned()),
        &connection,
        (conn.peer(), local),
        (worker, KeyKind::new(admission.id(), long_key)),
    );
    *entry.application_name.lock() = wanted.application_name();
    let mut out = Vec::new();
    let version = context.console_version.as_bytes();
    for (name, value) in [
        (&b"server_version"[..], version),
        (b"client_encoding", b"UTF8"),
        (b"server_encoding", b"UTF8"),
        (b"DateStyle", b"ISO"),
        (b"TimeZone", b"GMT"),
        (b"standard_conforming_strings", b"on"),
        (b"is_superuser", b"on"),
    ] {
        backend::parameter_status(&mut out, name, value);
    }
    backend::backend_key_data(&mut out, entry.cancel_pid, &entry.cancel_key.0);
    backend::ready_for_query(&mut out, TxStatus::Idle);
    connection.send_all(&out).await.ok()?;
    Some(Operator {
        connection,
        entry,
        rights,
        admission,
        conn,
    })
}

/// What there is once for each client that is connected, idle or not: no more than what the allocator's classes of 384 and
/// 96 bytes hold.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Session>() <= 384 && size_of::<Resident>() <= 96);
