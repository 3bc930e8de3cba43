//! Dial, TLS, start-up, login: how a server comes to be. Each step hands over to the next; what comes
//! out is ready for its first query.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::dial::Attempt;
use super::exchange::error_text;
use super::overlay::Overlay;
use super::pipeline::Pipeline;
use super::session::{Tracked, TrackedNames};
use super::statements::Statements;
use super::{Batch, Drawn, Error, Hosts, Server, State, Unnamed};
use crate::auth::Keyring;
use crate::auth::server_login::{Credentials, ServerLogin, ServerStep};
use crate::net::connection::Message;
use crate::net::tls::{TlsStream, WithServers};
use crate::net::{Address, Connection, Stream, TcpOptions};
use crate::protocol::backend::{self, ErrorFields, TxStatus, tag};
use crate::protocol::frontend;
use crate::protocol::startup::Replication;
use crate::stats::Registry;
use crate::stats::registry::{CancelKey, NewServer, ServerEntry};

/// Longest message accepted before the login is done.
const MAX_LOGIN_MESSAGE: usize = 64 * 1024;

/// Where and as whom to connect.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where the server listens.
    pub hosts: Hosts,
    /// Options of the socket.
    pub tcp: TcpOptions,
    /// The database's name on the server.
    pub database: String,
    /// The pool's database, as clients call it; for SHOW.
    pub pool_database: String,
    /// Start-up parameters besides `user` and `database`.
    pub parameters: Vec<(String, String)>,
    /// Is it to replicate (the parameters say so, too)?
    pub replication: Replication,
    /// Run after the login, before the first use; an error is logged and ignored.
    pub connect_query: Option<String>,
    /// `server_connect_timeout`; zero is no limit.
    pub limit: Duration,
    /// Is what clients make of their sessions followed? Then it matters what `connect_query` has made of this one.
    pub follows_sessions: bool,
    /// Which parameters are tracked.
    pub tracked: TrackedNames,
}

/// A fresh server and what it said of itself at login, in its order: name and value.
#[derive(Debug)]
pub struct Connected {
    /// Ready for its first query.
    pub server: Box<Server>,
    /// Its ParameterStatus messages.
    pub welcome: Vec<(Vec<u8>, Vec<u8>)>,
    /// Hosts that could not be reached before this one could.
    pub passed_over: Vec<(Arc<Address>, Error)>,
}

/// Connects and logs in, and leaves what the password came down to on the keyring, on the worker that calls this. Cancel-safe: a dropped attempt is closed.
pub async fn connect(
    target: &Target,
    tls: &WithServers,
    (credentials, keyring): (Credentials, Keyring),
    registry: &Arc<Registry>,
    (worker, generation): (usize, u64),
) -> Result<Connected, Error> {
    let dialling = Attempt::new(&target.tcp, tls);
    let attempt = async {
        let dialled = target.hosts.dial(&dialling, registry).await?;
        let (stream, host) = (dialled.stream, dialled.address.host());
        let user = credentials.user.clone();
        let login = ServerLogin::new(credentials).reusing(keyring);
        let greeted = Greeted::login(stream, target, (&user, login)).await?;
        let login = user.clone();
        let place = (worker, generation);
        let mut connected = greeted.into_server(target, (user, host), registry, place)?;
        connected.passed_over = dialled.passed_over;
        if let Some(query) = &target.connect_query {
            connected.server.run_connect_query(query).await?;
            if target.follows_sessions {
                connected.server.look_at_base(&login, query).await?;
            }
        }
        dialled.choice.keep();
        Ok(connected)
    };
    if target.limit.is_zero() {
        return attempt.await;
    }
    timeout(target.limit, attempt)
        .await
        .unwrap_or_else(|_| Err(dialling.timed_out()))
}

/// A connection on which the server has said all it says before the first ReadyForQuery.
struct Greeted {
    connection: Connection,
    parameters: Vec<(Vec<u8>, Vec<u8>)>,
    cancel_pid: i32,
    cancel_key: Vec<u8>,
    status: TxStatus,
}

impl Greeted {
    async fn login(
        stream: Stream,
        target: &Target,
        (user, login): (&str, ServerLogin),
    ) -> Result<Self, Error> {
        let mut connection = Connection::new(stream);
        let mut parameters: Vec<(&[u8], &[u8])> = vec![
            (b"user", user.as_bytes()),
            (b"database", target.database.as_bytes()),
        ];
        parameters.extend(
            target
                .parameters
                .iter()
                .map(|(name, value)| (name.as_bytes(), value.as_bytes())),
        );
        let mut out = Vec::new();
        // 3.0 on purpose: a longer cancel key (3.2) would bring nothing, since it is never shown to a client.
        frontend::startup(&mut out, 0, &parameters);
        connection.send_all(&out).await?;

        let mut greeted = Self {
            connection,
            parameters: Vec::new(),
            cancel_pid: 0,
            cancel_key: Vec::new(),
            status: TxStatus::Idle,
        };
        let end_point = greeted.connection.stream.tls();
        let end_point = end_point.and_then(TlsStream::end_point);
        let mut login = login.binding_to(end_point);
        loop {
            let message = greeted.connection.read_message(MAX_LOGIN_MESSAGE).await?;
            match message.tag {
                tag::AUTHENTICATION => match login.message(&message.body)? {
                    ServerStep::Send(reply) => greeted.connection.send_all(&reply).await?,
                    ServerStep::Wait => {}
                    ServerStep::Done => break,
                },
                _ => greeted.aside(&message)?,
            }
        }
        greeted.finish().await
    }

    /// From AuthenticationOk to ReadyForQuery.
    async fn finish(mut self) -> Result<Self, Error> {
        loop {
            let message = self.connection.read_message(MAX_LOGIN_MESSAGE).await?;
            match message.tag {
                tag::READY_FOR_QUERY => {
                    self.status = backend::read_ready_for_query(&message.body)?;
                    return Ok(self);
                }
                tag::BACKEND_KEY_DATA => {
                    let (pid, key) = backend::read_backend_key_data(&message.body)?;
                    (self.cancel_pid, self.cancel_key) = (pid, key.to_vec());
                }
                tag::PARAMETER_STATUS => {
                    let (name, value) = backend::read_parameter_status(&message.body)?;
                    self.parameters.push((name.to_vec(), value.to_vec()));
                }
                _ => self.aside(&message)?,
            }
        }
    }

    /// What may come at any time during the login.
    #[allow(clippy::unused_self, reason = "reads as a step of the login")]
    fn aside(&self, message: &Message) -> Result<(), Error> {
        match message.tag {
            tag::NOTICE_RESPONSE => {
                tracing::debug!("notice at server login: {}", error_text(&message.body)?);
                Ok(())
            }
            tag::ERROR_RESPONSE => {
                let fields = ErrorFields::read(&message.body)?;
                let text = |field: Option<&[u8]>| {
                    String::from_utf8_lossy(field.unwrap_or_default()).into_owned()
                };
                Err(Error::Refused {
                    sqlstate: text(fields.sqlstate()),
                    message: text(fields.message()),
                })
            }
            // A server that does not know a minor version or an option says so; we asked for none.
            tag::NEGOTIATE_PROTOCOL_VERSION => Ok(()),
            other => Err(Error::Unexpected(other.into())),
        }
    }

    fn into_server(
        self,
        target: &Target,
        (user, host): (String, String),
        registry: &Arc<Registry>,
        (worker, generation): (usize, u64),
    ) -> Result<Connected, Error> {
        if self.status != TxStatus::Idle {
            return Err(Error::Unexpected(tag::READY_FOR_QUERY.into()));
        }
        let mut tracked = Tracked::new(target.tracked.clone());
        for (name, value) in &self.parameters {
            tracked.set(name, value);
        }
        let now = Instant::now();
        let entry = ServerEntry::new(NewServer {
            id: registry.next_id(),
            user,
            database: target.pool_database.clone(),
            host,
            peer: self.connection.stream.peer(),
            local: self.connection.stream.local_addr(),
            replication: target.replication,
            tls: self.connection.stream.describe_tls(),
            connected: registry.epoch.micros(now),
            cancel_pid: self.cancel_pid,
            cancel_key: CancelKey(self.cancel_key.into_boxed_slice()),
        });
        let server = Box::new(Server {
            connection: self.connection,
            state: State {
                pipeline: Pipeline::default(),
                statements: Statements::default(),
                unnamed: Unnamed::Empty,
                batch: Batch::default(),
                status: TxStatus::Idle,
                tracked,
                heard: Vec::new(),
                overlay: Overlay::default(),
                base: Overlay::default(),
                drawn: Drawn::ByNobody,
                doom: None,
                watched: None,
            },
            entry: registry.enter_server(entry),
            home: worker,
            created: now,
            idle_since: registry.epoch.micros(now),
            jitter: rand::random(),
            served: false,
            ahead: 0,
            generation,
        });
        Ok(Connected {
            server,
            welcome: self.parameters,
            passed_over: Vec::new(),
        })
    }
}
