//! From the first byte to a route: start-up, authentication, and the decision what the connection is for.
//!
//! ```text
//!   first packet ─┬─ SSLRequest ──────▶ 'S', TLS handshake, and again; or 'N', and again
//!                 ├─ TLS ClientHello ─▶ TLS handshake, and again
//!                 ├─ GSSENCRequest ───▶ 'N', and again
//!                 ├─ CancelRequest ───▶ Route::Cancel
//!                 ├─ our own packet ──▶ Route::Successor
//!                 └─ StartupMessage ──▶ authentication ─┬─▶ Route::Console
//!                                                       └─▶ Route::Pool
//! ```
//!
//! Where passwords are asked for, an unknown user fails as a wrong password does, after a whole exchange, and that there is
//! no such database is told only to those who gave the right one. Two refusals come earlier: `trust` asks for nothing, and
//! a user whom `auth_query` does not find is told so at once, as by PgBouncer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::journal::Conn;
use super::parameters::Wanted;
use super::{Context, Error};
use crate::config::databases::CONSOLE;
use crate::config::{AuthType, Config, Database};
use crate::net::tls::WithClients;
use crate::net::{Connection, Stream};
use crate::pool::{Admission, Pool};
use crate::protocol;
use crate::protocol::authentication::Authentication;
use crate::protocol::backend;
use crate::protocol::startup::{self, FirstPacket, StartupMessage};
use crate::stats::registry::Peer;

mod proof;

/// Longest message accepted before the login is done (PgBouncer: passwords up to 64 KiB).
const MAX_LOGIN_MESSAGE: usize = 72 * 1024;

/// The newest protocol version we speak, as it goes over the wire.
const NEWEST: u32 = 0x0003_0002;

/// The first byte of a TLS connection: a record of the handshake (RFC 8446 §5.1).
const CLIENT_HELLO: u8 = 0x16;

/// How long a refusal may take to get off.
const REFUSAL: Duration = Duration::from_secs(1);

/// What a connection turned out to be for.
#[derive(Debug)]
pub enum Route {
    /// A client of a pool; AuthenticationOk is queued, to go with what follows.
    Pool(PoolLogin),
    /// A client of the console; AuthenticationOk is queued, to go with what follows.
    Console(ConsoleLogin),
    /// A cancel request.
    Cancel {
        /// Its socket. Whoever sent it takes its end for the end of the request.
        connection: Connection,
        /// The number from BackendKeyData.
        pid: i32,
        /// The secret from BackendKeyData.
        key: Vec<u8>,
    },
    /// Another process of our own user that wants to take this one's place.
    Successor(Connection),
}

/// What a console client may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Everything (`admin_users`).
    Admin,
    /// SHOW (`stats_users`).
    Stats,
}

/// A client that has proved who it is, and its pool.
#[derive(Debug)]
pub struct PoolLogin {
    /// Its socket.
    pub connection: Connection,
    /// What it wants.
    pub wanted: Wanted,
    /// Its pool.
    pub pool: Arc<Pool>,
    /// Does it speak 3.2, with its longer cancel keys?
    pub long_key: bool,
    /// Its place among those that are counted.
    pub admission: Admission,
}

/// A client that has proved who it is and wants the console.
#[derive(Debug)]
pub struct ConsoleLogin {
    /// Its socket.
    pub connection: Connection,
    /// What it asked for: its name, and the one it called the console by.
    pub wanted: Wanted,
    /// What it may do.
    pub rights: Rights,
    /// Does it speak 3.2?
    pub long_key: bool,
    /// Its place among those that are counted.
    pub admission: Admission,
}

/// Runs the handshake, until `deadline` at the latest. `None`: the client went away, which is not worth a word, or it was
/// refused, which it and the log have been told.
pub async fn handshake(
    context: &Arc<Context>,
    connection: Connection,
    (admission, conn): (Admission, &mut Conn),
    (worker, deadline): (usize, Instant),
) -> Option<Route> {
    let tls = context.manager.parts().tls.load();
    let first = first_packet(&tls.clients, (connection, conn.peer()), deadline);
    let (mut connection, message) = match first.await {
        First::Startup(connection, message) => (connection, message),
        First::Cancel(connection, pid, key) => {
            return Some(Route::Cancel {
                connection,
                pid,
                key,
            });
        }
        First::Successor(connection) => return Some(Route::Successor(connection)),
        First::Nothing => return None,
        First::Refused(mut connection, error) => {
            refuse((context, conn), &mut connection, &error).await;
            return None;
        }
    };
    let config = context.config.load();
    let wanted = match Wanted::read(&message, &config.settings, &context.manager.parts().tracked) {
        Ok(wanted) => wanted,
        Err(error) => {
            refuse((context, conn), &mut connection, &error).await;
            return None;
        }
    };
    conn.name(&wanted.database, &wanted.user);
    if config.settings.log_connections {
        conn.attempts(wanted.replication, &connection.stream.describe_tls());
    }
    let mut login = Login {
        context,
        config,
        peer: conn.peer(),
        connection,
        message,
        wanted,
        admission,
        worker,
        deadline,
    };
    let outcome = timeout_at(deadline, login.run()).await;
    match outcome.unwrap_or(Err(Error::LoginTimeout)) {
        Ok(granted) => granted.map(|granted| login.route(granted)),
        Err(error) => {
            refuse((context, conn), &mut login.connection, &error).await;
            None
        }
    }
}

/// Says so in the log, and then to the client: whoever was refused finds the reason there.
pub(super) async fn refuse(
    (context, conn): (&Context, &Conn),
    connection: &mut Connection,
    error: &Error,
) {
    conn.refused(context, error);
    let mut out = Vec::new();
    error.encode(&mut out);
    // A client that does not read its refusal has gone already, or is of no interest any more.
    let _ = timeout(REFUSAL, connection.send_all(&out)).await;
}

/// What a connection begins with. The connection may have become an encrypted one on the way.
enum First {
    Startup(Connection, StartupMessage),
    Cancel(Connection, i32, Vec<u8>),
    Successor(Connection),
    /// The client is gone.
    Nothing,
    Refused(Connection, Error),
}

async fn first_packet(
    tls: &WithClients,
    (mut connection, peer): (Connection, Peer),
    deadline: Instant,
) -> First {
    loop {
        let can_encrypt = tls.is_offered() && connection.stream.is_plain_tcp();
        if can_encrypt && connection.kept.first() == Some(&CLIENT_HELLO) {
            let encrypted = Box::pin(encrypt(tls, connection, peer));
            match timeout_at(deadline, encrypted).await {
                Ok(Some(encrypted)) => connection = encrypted,
                Ok(None) | Err(_) => return First::Nothing,
            }
            continue;
        }
        let (packet, used) = match startup::read(&connection.kept) {
            Ok(Some(read)) => read,
            Ok(None) => match timeout_at(deadline, connection.read_more()).await {
                Ok(Ok(n)) if n > 0 => continue,
                Ok(_) => return First::Nothing,
                Err(_) => return First::Refused(connection, Error::LoginTimeout),
            },
            // Who asks for a cancellation is never told anything.
            Err(protocol::Error::BadCancelKey { .. }) => return First::Nothing,
            Err(error) => return First::Refused(connection, error.into()),
        };
        connection.use_kept(used);
        let (refusal, encrypts) = match packet {
            FirstPacket::Startup(_) if tls.is_required() && connection.stream.is_plain_tcp() => {
                return First::Refused(connection, Error::TlsRequired);
            }
            FirstPacket::Startup(message) => return First::Startup(connection, message),
            FirstPacket::Cancel { pid, key } => return First::Cancel(connection, pid, key),
            FirstPacket::Successor if is_of_our_user(&connection) => {
                return First::Successor(connection);
            }
            FirstPacket::Successor => {
                tracing::warn!("{peer} wants to take this process's place, but is not of its user");
                return First::Nothing;
            }
            // Once is enough.
            FirstPacket::Ssl | FirstPacket::GssEnc if connection.stream.tls().is_some() => {
                return First::Nothing;
            }
            FirstPacket::Ssl => (Error::DataAfterSslRequest, can_encrypt),
            FirstPacket::GssEnc => (Error::DataAfterGssRequest, false),
        };
        // Whoever sends on without the answer either does not speak the protocol or was tampered with on the way.
        if !connection.kept.is_empty() {
            return First::Refused(connection, refusal);
        }
        let answer = if encrypts { b"S" } else { b"N" };
        if connection.send_all(answer).await.is_err() {
            return First::Nothing;
        }
        if encrypts {
            let encrypted = Box::pin(encrypt(tls, connection, peer));
            match timeout_at(deadline, encrypted).await {
                Ok(Some(encrypted)) => connection = encrypted,
                Ok(None) | Err(_) => return First::Nothing,
            }
        }
    }
}

/// The handshake of TLS; what was read already belongs to it. `None`: it failed, and the log has why.
async fn encrypt(tls: &WithClients, connection: Connection, peer: Peer) -> Option<Connection> {
    let Stream::Plain(socket) = connection.stream else {
        return None;
    };
    match tls.accept(socket, connection.kept).await {
        Ok(stream) => Some(Connection::new(Stream::Tls(stream))),
        Err(error) => {
            tracing::warn!(conn = %format_args!("C: (nodb)/(nouser)@{peer}"), "TLS handshake error: {error}");
            None
        }
    }
}

/// Is there a process of our own user at the other end of this Unix socket?
fn is_of_our_user(connection: &Connection) -> bool {
    connection.stream.peer_uid() == Some(nix::unistd::geteuid().as_raw())
}

/// What the client may go on to.
enum Granted {
    Pool(Arc<Pool>),
    Console(Rights),
}

struct Login<'a> {
    context: &'a Arc<Context>,
    config: Arc<Config>,
    peer: Peer,
    connection: Connection,
    message: StartupMessage,
    wanted: Wanted,
    admission: Admission,
    worker: usize,
    deadline: Instant,
}

impl Login<'_> {
    async fn run(&mut self) -> Result<Option<Granted>, Error> {
        if !self.negotiate().await {
            return Ok(None);
        }
        let console = self.config.is_console(&self.wanted.database);
        if console {
            self.wanted.refuse_settings()?;
        } else {
            self.admission
                .check_clients(self.config.settings.max_client_conn)?;
        }
        if console && self.is_owner() {
            self.count_operator(Rights::Admin)?;
            self.welcome();
            return Ok(Some(Granted::Console(Rights::Admin)));
        }
        let database = if console {
            None
        } else {
            self.config.database(&self.wanted.database)
        };
        let Some(learned) = self.authenticate(database.as_ref()).await? else {
            return Ok(None);
        };
        if console {
            let rights = self.console_rights()?;
            self.count_operator(rights)?;
            self.welcome();
            return Ok(Some(Granted::Console(rights)));
        }
        // A login may take as long as the client likes, and the files may have changed since it began.
        self.config = self.context.config.load();
        let Some(database) = self.config.database(&self.wanted.database) else {
            return Err(Error::NoSuchDatabase(self.wanted.database.clone()));
        };
        if self.context.manager.is_disabled(&database.name) {
            return Err(Error::DatabaseDisabled(database.name.clone()));
        }
        if let Some(refusal) = self.context.refusal(self.peer) {
            return Err(refusal);
        }
        self.count_in(&database)?;
        let pool = self
            .context
            .manager
            .pool(&self.config, &database, &self.wanted.user, learned);
        if !pool.settings().follows_sessions() {
            self.wanted.refuse_settings()?;
        }
        self.welcome();
        Ok(Some(Granted::Pool(pool)))
    }

    fn route(self, granted: Granted) -> Route {
        let long_key = self.message.minor >= 2;
        match granted {
            Granted::Pool(pool) => Route::Pool(PoolLogin {
                connection: self.connection,
                wanted: self.wanted,
                pool,
                long_key,
                admission: self.admission,
            }),
            Granted::Console(rights) => Route::Console(ConsoleLogin {
                connection: self.connection,
                wanted: self.wanted,
                rights,
                long_key,
                admission: self.admission,
            }),
        }
    }

    /// A newer minor version, or options of the protocol, are answered with what we know. False: the client is gone.
    async fn negotiate(&mut self) -> bool {
        let options = self
            .message
            .parameters
            .iter()
            .map(|(name, _)| name.as_slice());
        let unknown: Vec<&[u8]> = options.filter(|name| name.starts_with(b"_pq_.")).collect();
        // 3.1 was never used: a client that asks for it gets 3.0.
        let newest = if self.message.minor >= 2 {
            NEWEST
        } else {
            0x0003_0000
        };
        if matches!(self.message.minor, 0 | 2) && unknown.is_empty() {
            return true;
        }
        let mut out = Vec::new();
        backend::negotiate_protocol_version(&mut out, newest, &unknown);
        self.connection.send_all(&out).await.is_ok()
    }

    /// Over a Unix socket, whoever runs us may use the console without a password, as the user `pgbouncer`.
    fn is_owner(&self) -> bool {
        let known = matches!(self.wanted.user.as_str(), "pgbouncer" | "pgferry");
        known && matches!(self.peer, Peer::Unix(_)) && is_of_our_user(&self.connection)
    }

    fn console_rights(&self) -> Result<Rights, Error> {
        let settings = &self.config.settings;
        let prefix = settings.stats_users_prefix.as_str();
        if settings.admin_users.contains(&self.wanted.user) {
            Ok(Rights::Admin)
        } else if settings.stats_users.contains(&self.wanted.user)
            || (!prefix.is_empty() && self.wanted.user.starts_with(prefix))
            || settings.auth_type == AuthType::Any
        {
            Ok(Rights::Stats)
        } else {
            Err(Error::NotAllowed)
        }
    }

    fn count_in(&mut self, database: &Database) -> Result<(), Error> {
        let per_database = self.config.max_db_client_connections(database);
        let per_user = self.config.max_user_client_connections(&self.wanted.user);
        self.admission.name(
            (&database.name, per_database),
            (&self.wanted.user, per_user),
        )?;
        Ok(())
    }

    /// The console counts as a database of its own. Administrators are counted, but always let in.
    fn count_operator(&mut self, rights: Rights) -> Result<(), Error> {
        let (per_database, per_user) = match rights {
            Rights::Admin => (0, 0),
            Rights::Stats => (
                self.config.settings.max_db_client_connections,
                self.config.max_user_client_connections(&self.wanted.user),
            ),
        };
        self.admission
            .name((CONSOLE, per_database), (&self.wanted.user, per_user))?;
        Ok(())
    }

    /// Goes out with what the client is told next: that its login has failed after all, or all about its session.
    fn welcome(&mut self) {
        self.connection.queue(&Authentication::Ok.encode());
    }
}
