//! What follows authentication: the client is placed on its worker, told what its session looks like, and served.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::error::{Ending, Fault};
use super::handshake::{ConsoleLogin, PoolLogin, Refused, Route, handshake};
use super::relay::{Passing, Relay};
use super::session::{Left, Parts, Session};
use super::statements::Statements;
use super::{Context, Error, cancel};
use crate::net::{ClientCount, Connection, Detached};
use crate::pool::{Admission, Pool, WaitError, auth_query};
use crate::protocol::backend::{self, TxStatus};
use crate::server::session::Tracked;
use crate::stats::registry::{CancelKey, ClientEntry, ClientGuard, NewClient};

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
    let peer = connection.stream.peer();
    let limit = context.config.load().settings.client_login_timeout;
    let deadline = Instant::now()
        + if limit.is_zero() {
            Duration::from_secs(365 * 86_400)
        } else {
            limit
        };
    let route = match timeout_at(deadline, handshake(&context, connection, admission, worker)).await
    {
        Ok(Ok(Some(route))) => route,
        Ok(Ok(None)) => return None,
        Ok(Err(Refused { error, who })) => {
            let (database, user) =
                who.unwrap_or_else(|| ("(nodb)".to_owned(), "(nouser)".to_owned()));
            log_error(&context, &format!("C: {database}/{user}@{peer}"), &error);
            return None;
        }
        Err(_) => {
            log_error(
                &context,
                &format!("C: (nodb)/(nouser)@{peer}"),
                &Error::LoginTimeout,
            );
            return None;
        }
    };
    match route {
        Route::Cancel { pid, key } => {
            cancel::request(&context, pid, &key).await;
            None
        }
        Route::Console(login) => greet_operator(&context, login, worker).await,
        Route::Pool(login) => {
            send_home(&context, login, deadline);
            None
        }
    }
}

/// Moves the client to the worker it will live on: the one with fewest clients of those that its pool lives on.
fn send_home(context: &Arc<Context>, login: PoolLogin, deadline: Instant) {
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
    let context = context.clone();
    workers.clone().spawn_on(home, async move {
        let Ok(connection) = connection.rehome() else {
            return;
        };
        let client = Client {
            context,
            connection,
            pool,
            worker: home,
            long_key,
        };
        let workers = client.pool.workers().clone();
        if let Some((session, conn)) = client.log_in(wanted, deadline).await {
            let resident = Resident {
                session,
                worker: home,
                conn,
                since: Instant::now(),
                _count: count,
                _admission: admission,
            };
            workers.spawn_on(home, live(resident));
        }
    });
}

/// A client that is logged in, and what it counts as.
struct Resident {
    session: Box<Session>,
    worker: usize,
    conn: String,
    since: Instant,
    _count: ClientCount,
    _admission: Admission,
}

/// Serves a client on its worker, and on the next one if it is moved. The task of a login is larger, so it is not the
/// one that serves.
fn live(resident: Resident) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let Ok(session) = resident.session.arrive(resident.worker) else {
            return;
        };
        let context = session.context().clone();
        match session.run().await {
            Left::Moved(session, worker) => {
                let workers = &context.manager.parts().workers;
                let resident = Resident {
                    session,
                    worker,
                    _count: workers.count_client(worker),
                    ..resident
                };
                workers.spawn_on(worker, live(resident));
            }
            Left::Ended(ending) => {
                log_end(&context, &resident.conn, resident.since, &ending);
            }
        }
    })
}

fn log_end(context: &Context, conn: &str, since: Instant, ending: &Ending) {
    if let Ending::Error(error) = ending {
        log_error(context, conn, error);
    }
    if context.config.load().settings.log_disconnections {
        let age = since.elapsed().as_secs();
        tracing::info!(conn, "closing because: {} (age={age}s)", ending.reason());
    }
}

struct Client {
    context: Arc<Context>,
    connection: Connection,
    pool: Arc<Pool>,
    worker: usize,
    long_key: bool,
}

impl Client {
    /// Tells the client that it is logged in. Comes back with its session, and how the log calls it.
    async fn log_in(
        mut self,
        wanted: super::parameters::Wanted,
        deadline: Instant,
    ) -> Option<(Box<Session>, String)> {
        let peer = self.connection.stream.peer();
        let entry = enter(
            &self.context,
            (wanted.user, wanted.database, self.pool.user.clone()),
            &self.connection,
            (self.worker, self.long_key),
        );
        let conn = format!(
            "C-{:#x}: {}/{}@{peer}",
            entry.id, entry.database, entry.user
        );
        if let Err(error) = self.warm(&entry, deadline).await {
            self.refuse(&conn, error).await;
            return None;
        }
        let mut tracked = wanted.tracked;
        tracked.fill_from(&self.pool.fresh_parameters());
        if let Some(name) = tracked.iter().find(|(name, _)| *name == "application_name") {
            *entry.application_name.lock() = name.1.to_vec();
        }
        let mut out = Vec::new();
        put_welcome(&mut out, &self.pool, &tracked);
        backend::backend_key_data(&mut out, entry.cancel_pid, &entry.cancel_key.0);
        backend::ready_for_query(&mut out, TxStatus::Idle);
        self.connection.send_all(&out).await.ok()?;
        if self.context.config.load().settings.log_connections {
            tracing::info!(
                conn,
                "login attempt: db={} user={} tls={} replication=no",
                entry.database,
                entry.user,
                if entry.tls.is_empty() {
                    "no"
                } else {
                    &*entry.tls
                }
            );
        }
        if let Some(counters) = self.pool.counters(self.worker) {
            counters.client_logins.add(1);
        }
        Some((self.session(entry, tracked), conn))
    }

    /// Sees to it that the pool has had a server, so that it is known what a session looks like there. Waiting for
    /// it counts as waiting for a server and as part of the login, so both limits apply.
    async fn warm(&self, entry: &ClientGuard, deadline: Instant) -> Result<(), Error> {
        if self.pool.welcome().is_some() {
            return Ok(());
        }
        let config = self.context.config.load();
        let wait = config
            .database(&entry.database)
            .map(|database| config.query_wait_timeout(&database, &entry.user))
            .filter(|wait| !wait.is_zero())
            .map(|wait| Instant::now() + wait);
        let first = wait.unwrap_or(deadline).min(deadline);
        match timeout_at(first, auth_query::lease(&self.pool, self.worker)).await {
            Ok(Ok(pooled)) => {
                self.pool.check_in(self.pool.shard_of(self.worker), pooled);
                Ok(())
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) if first < deadline => Err(WaitError::Timeout.into()),
            Err(_) => Err(Error::LoginTimeout),
        }
    }

    fn session(self, entry: ClientGuard, tracked: Tracked) -> Box<Session> {
        let relay = Relay {
            id: entry.id,
            statements: Statements::new(self.context.names_held.clone()),
            tracked,
            portals: std::collections::HashMap::default(),
            unsettled: std::collections::HashMap::default(),
            unnamed_changed: None,
            fenced: false,
            skips_alone: false,
            sync_is_due: false,
            own: Vec::new(),
            inbound: Passing::default(),
            outbound: Passing::default(),
            terminated: false,
            is_refused: false,
            settings: self.pool.settings(),
            registry: self.context.manager.parts().statements.clone(),
            names_held: self.context.names_held.clone(),
        };
        Box::new(Session::new(Parts {
            context: self.context,
            connection: self.connection,
            entry,
            pool: self.pool,
            relay,
            worker: self.worker,
        }))
    }

    async fn refuse(&mut self, conn: &str, error: Error) {
        let mut out = Vec::new();
        error.encode(&mut out);
        // Whether it arrives does not matter any more.
        let _ = self.connection.send_all(&out).await;
        log_error(&self.context, conn, &error);
    }
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
    (user, database, pool_user): (String, String, String),
    connection: &Connection,
    (worker, long_key): (usize, bool),
) -> ClientGuard {
    let registry = &context.manager.parts().registry;
    let id = registry.next_id();
    let key: Vec<u8> = (0..if long_key { LONG_KEY } else { SHORT_KEY })
        .map(|_| rand::random())
        .collect();
    registry.enter_client(ClientEntry::new(NewClient {
        id,
        user,
        database,
        pool_user,
        peer: connection.stream.peer(),
        tls: connection.stream.describe_tls(),
        worker,
        cancel_pid: registry.reserve_cancel_pid(id),
        cancel_key: CancelKey(key.into_boxed_slice()),
        connected: registry.now(),
    }))
}

async fn greet_operator(
    context: &Arc<Context>,
    login: ConsoleLogin,
    worker: usize,
) -> Option<Operator> {
    let ConsoleLogin {
        mut connection,
        user,
        database,
        rights,
        long_key,
        admission,
    } = login;
    let entry = enter(
        context,
        (user, database, "pgbouncer".to_owned()),
        &connection,
        (worker, long_key),
    );
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
    })
}

/// Logs an error that a client was sent away with.
fn log_error(context: &Context, conn: &str, error: &Error) {
    if !context.config.load().settings.log_pooler_errors {
        return;
    }
    match error.fault() {
        Fault::Client => tracing::warn!(conn, fault = "client", "pooler error: {error}"),
        Fault::Server => tracing::warn!(conn, fault = "server", "pooler error: {error}"),
        Fault::Pooler => tracing::warn!(conn, fault = "pooler", "pooler error: {error}"),
    }
}
