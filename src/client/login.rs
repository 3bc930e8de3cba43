//! What follows authentication: the client is placed on its worker, told what its session looks like, and served.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::error::Ending;
use super::handshake::{ConsoleLogin, PoolLogin, Route, handshake, refuse};
use super::journal::Conn;
use super::parameters::Wanted;
use super::relay::Relay;
use super::replication::Replica;
use super::session::{FAREWELL, Parts, Session, Way};
use super::{Context, Error, cancel};
use crate::net::{ClientCount, Connection, Detached};
use crate::pool::peers::sign;
use crate::pool::{Admission, Pool, WaitError, auth_query};
use crate::protocol::backend::{self, ErrorMessage, TxStatus};
use crate::protocol::startup::Replication;
use crate::server::session::Tracked;
use crate::stats::Phase;
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

/// Takes an accepted socket through its whole life, on the worker that calls this first and on its home later. A
/// console client comes back, for somebody else to serve.
pub async fn serve(
    context: Arc<Context>,
    socket: Detached,
    admission: Admission,
    worker: usize,
) -> Option<Operator> {
    let connection = Connection::new(socket.attach().ok()?);
    let config = context.config.load();
    let port = config.settings.listen_port;
    let conn = Conn::new(admission.id(), connection.stream.peer(), port);
    let limit = config.settings.client_login_timeout;
    let deadline = Instant::now()
        + if limit.is_zero() {
            Duration::from_secs(365 * 86_400)
        } else {
            limit
        };
    let place = (worker, deadline);
    match handshake(&context, connection, (admission, &conn), place).await? {
        Route::Cancel {
            connection,
            pid,
            key,
        } => {
            cancel::request(&context, &conn, pid, &key).await;
            // Not before: the client's next query must not be the one that is hit.
            drop(connection);
            None
        }
        Route::Console(login) => greet_operator(&context, login, worker, conn).await,
        Route::Pool(login) => {
            send_home(&context, login, (worker, deadline), conn);
            None
        }
    }
}

/// Moves the client to the worker it will live on: the one with fewest clients of those that its pool lives on.
fn send_home(
    context: &Arc<Context>,
    login: PoolLogin,
    (worker, deadline): (usize, Instant),
    conn: Conn,
) {
    let workers = &context.manager.parts().workers;
    let home = workers.least_loaded(login.pool.homes());
    let count = workers.count_client(home);
    let PoolLogin {
        connection,
        wanted,
        pool,
        long_key,
        admission,
    } = login;
    connection.stream.settle();
    let context = context.clone();
    workers.clone().spawn_on(home, async move {
        let connection = if home == worker {
            Ok(connection)
        } else {
            connection.rehome()
        };
        let Ok(connection) = connection else {
            return;
        };
        let conn = conn.named(&wanted.database, &wanted.user);
        let client = Client {
            context,
            connection,
            pool,
            worker: home,
            key: KeyKind::new(admission.id(), long_key),
        };
        let workers = client.pool.workers().clone();
        if let Some(session) = client.log_in(wanted, deadline, &conn).await {
            workers.spawn_on(home, Resident::new(session, home, count, admission));
        }
    });
}

/// A client that is logged in, and what it counts as: the task that serves it on its worker. (The task of a login is
/// larger. And this one is written by hand, as there is one for every client, and `async` would keep some things twice.)
struct Resident {
    stay: Stay,
    worker: usize,
    _count: ClientCount,
    /// Goes along when the client moves.
    admission: Option<Admission>,
}

enum Stay {
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
    fn new(session: Box<Session>, worker: usize, count: ClientCount, admission: Admission) -> Self {
        Self {
            stay: Stay::Arriving(session),
            worker,
            _count: count,
            admission: Some(admission),
        }
    }

    fn arrive(&mut self, cx: &TaskContext<'_>) {
        if let Stay::Arriving(session) = std::mem::replace(&mut self.stay, Stay::Gone)
            && let Ok(session) = session.arrive(self.worker)
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
            Way::Ends(ending) => self.stay = Stay::Leaving(Box::pin(farewell(session, ending))),
            Way::Moves(worker) => {
                let workers = session.context().manager.parts().workers.clone();
                let count = workers.count_client(worker);
                if let Some(admission) = self.admission.take() {
                    workers.spawn_on(worker, Self::new(session, worker, count, admission));
                }
            }
        }
    }
}

async fn farewell(session: Box<Session>, ending: Ending) {
    let context = session.context().clone();
    let port = context.config.load().settings.listen_port;
    let now = context.manager.parts().registry.now();
    let conn = Conn::of(session.entry(), port, now);
    session.finish(&ending).await;
    conn.ends(&context, &ending);
}

impl Future for Resident {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            match &mut this.stay {
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

struct Client {
    context: Arc<Context>,
    connection: Connection,
    pool: Arc<Pool>,
    worker: usize,
    key: KeyKind,
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
            (conn.peer(), self.worker, self.key),
        );
        if wanted.replication != Replication::None {
            self.replicate(entry, wanted, conn, deadline).await;
            return None;
        }
        // Whoever suspends says so first, and gives orders to those who are listed then.
        if self.context.manager.is_suspended() {
            entry.suspend();
        }
        if let Err(error) = self.warm(&entry, deadline).await {
            refuse((&self.context, conn), &mut self.connection, &error).await;
            return None;
        }
        let mut tracked = wanted.tracked;
        if config.settings.application_name_add_host {
            add_host(&mut tracked, entry.peer, config.settings.listen_port);
        }
        if let Some(fresh) = self.pool.fresh_parameters() {
            tracked.fill_from(&fresh);
        }
        self.pool.share(&mut tracked);
        if let Some(name) = tracked.iter().find(|(name, _)| *name == "application_name") {
            *entry.application_name.lock() = name.1.to_vec();
        }
        let mut out = Vec::new();
        put_welcome(&mut out, &self.pool, &tracked);
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
        Some(self.session(entry, tracked))
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

    /// Sees to it that the pool has had a server, so that it is known what a session looks like there. Waiting for
    /// it counts as waiting for a server and as part of the login, so both limits apply.
    async fn warm(&self, entry: &ClientGuard, deadline: Instant) -> Result<(), Error> {
        if self.pool.welcome().is_some() {
            return Ok(());
        }
        let now = || self.context.manager.parts().registry.now();
        entry.enter(Phase::Waiting, now());
        let leased = self
            .in_time(entry, deadline, auth_query::lease(&self.pool, self.worker))
            .await?;
        let (shard, pooled) = (self.pool.shard_of(self.worker), leased?);
        if pooled.server.served {
            self.pool.check_in(shard, pooled);
        } else {
            // Its greeting was all that was wanted: with a `server_lifetime` of 0 it has its one use before it.
            self.pool.admit(shard, pooled);
        }
        entry.enter(Phase::Idle, now());
        Ok(())
    }

    /// Waits for a server, within the limits of waiting, of a query and of the login.
    async fn in_time<T>(
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

    fn session(self, entry: ClientGuard, tracked: Tracked) -> Box<Session> {
        let relay = Relay::new(
            (entry.id, tracked),
            self.pool.settings(),
            self.context.manager.parts().statements.clone(),
            self.context.names_held.clone(),
        );
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
        Peer::Unix(pid) => {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            format!("unix({}@{}):{port}", pid.unwrap_or(0), host.trim_end())
        }
    };
    let name = [name, b" - ", address.as_bytes()].concat();
    tracked.set(b"application_name", &name);
}

/// What the server says of itself, with the client's own values for the tracked parameters, which come last.
fn put_welcome(out: &mut Vec<u8>, pool: &Pool, tracked: &Tracked) {
    for (name, value) in pool.welcome().iter().flat_map(|welcome| welcome.iter()) {
        if !tracked
            .iter()
            .any(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name))
        {
            backend::parameter_status(out, name, value);
        }
    }
    for (name, value) in tracked.iter() {
        backend::parameter_status(out, name.as_bytes(), value);
    }
}

fn enter(
    context: &Context,
    (wanted, pool_user): (&Wanted, String),
    connection: &Connection,
    (peer, worker, KeyKind { id, length }): (Peer, usize, KeyKind),
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
        local: connection.stream.local_addr(),
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
    worker: usize,
    conn: Conn,
) -> Option<Operator> {
    let ConsoleLogin {
        mut connection,
        wanted,
        rights,
        long_key,
        admission,
    } = login;
    let conn = conn.named(&wanted.database, &wanted.user);
    let entry = enter(
        context,
        (&wanted, "pgbouncer".to_owned()),
        &connection,
        (conn.peer(), worker, KeyKind::new(admission.id(), long_key)),
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
