//! Asks a directory whether a password is right (LDAP; PostgreSQL docs: `auth-ldap`).
//!
//! Owns the conversation with a server, and which server is asked: the first of the list that can be. Its bytes are
//! `protocol`'s, its options `config`'s, and that the client is told one thing only is the caller's.
//!
//! ```text
//!   connect ─ (TLS) ─┬─ bind as prefix, name and suffix say ───────────────────────▶ verdict
//!                    └─ (bind as the account) ─ search ─ bind as the entry found ──▶ verdict
//! ```
//!
//! A server that cannot be reached, hangs up or has no time makes room for the next; one that has given its verdict
//! does not.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::auth::secret::PlainSecret;
use crate::config::ldap::{Account, Directory, Encryption, Entry, Server};
use crate::net::dns::Ttl;
use crate::net::tls::{HandshakeError, WithDirectories};
use crate::net::{Address, Connection, Names, Stream, TcpOptions};
use crate::protocol::ldap::{self, Filter, Message, Outcome, Reply, Scope, Search};

#[cfg(test)]
mod tests;

/// How long a server may take if there is another one to ask.
const PATIENCE: Duration = Duration::from_secs(10);

/// A password to be checked.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Who is asked.
    pub directory: &'a Directory,
    /// The login name, as the client gave it.
    pub user: &'a str,
    /// What the client gave as the password.
    pub password: &'a PlainSecret,
}

/// What it takes to get to a server.
#[derive(Debug)]
pub struct Reach<'a> {
    /// Host names that were looked up.
    pub names: &'a Names,
    /// How long they hold.
    pub ttl: Ttl,
    /// Options of the socket.
    pub tcp: TcpOptions,
    /// TLS.
    pub tls: &'a WithDirectories,
}

/// Why a password was not found to be right. For the log: a client is told nothing of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A bind without a password succeeds for anybody (RFC 4513 section 5.1.2), so it is not tried.
    #[error("the password is empty")]
    EmptyPassword,
    /// The name is not bound to with this password.
    #[error("bind as \"{}\": {outcome}", .name.escape_debug())]
    Bind {
        /// The distinguished name.
        name: String,
        /// What the server said.
        outcome: Outcome,
    },
    /// The account that is to search is not let in.
    #[error("bind of the account that searches: {0}")]
    Account(Outcome),
    /// The search failed.
    #[error("search: {0}")]
    Search(Outcome),
    /// The search has found nobody.
    #[error("no such user in the directory")]
    NoUser,
    /// The search has found more than one.
    #[error("more than one entry is found for the user")]
    Ambiguous,
    /// What was found has no name, and a bind without one succeeds for anybody.
    #[error("the entry that is found has no name")]
    NoName,
    /// The host is not known.
    #[error("no address: {0}")]
    Lookup(io::Error),
    /// No connection.
    #[error("connect failed: {0}")]
    Connect(io::Error),
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// No TLS.
    #[error("TLS handshake error: {0}")]
    Tls(#[from] HandshakeError),
    /// The server has no TLS to offer.
    #[error("StartTLS: {0}")]
    NoTls(Outcome),
    /// Plain bytes behind the answer to StartTLS, which somebody else may have sent.
    #[error("received unencrypted data after StartTLS")]
    DataAfterStartTls,
    /// What came is no LDAP.
    #[error("{0}")]
    Protocol(#[from] ldap::Error),
    /// An answer to something that was not asked.
    #[error("unexpected answer")]
    Unexpected,
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server said that it is going to.
    #[error("the server hangs up: {0}")]
    HangsUp(Outcome),
    /// The server cannot answer now.
    #[error("{0}")]
    Unavailable(Outcome),
    /// It took longer than a server may that is not the last one.
    #[error("no answer in time")]
    TimedOut,
}

impl Error {
    /// Is something wrong with the server, so that another one may do better? If not, it is its verdict.
    fn is_of_server(&self) -> bool {
        match self {
            Self::EmptyPassword
            | Self::Bind { .. }
            | Self::Account(_)
            | Self::Search(_)
            | Self::NoUser
            | Self::Ambiguous
            | Self::NoName => false,
            Self::Lookup(_)
            | Self::Connect(_)
            | Self::Io(_)
            | Self::Tls(_)
            | Self::NoTls(_)
            | Self::DataAfterStartTls
            | Self::Protocol(_)
            | Self::Unexpected
            | Self::Closed
            | Self::HangsUp(_)
            | Self::Unavailable(_)
            | Self::TimedOut => true,
        }
    }
}

/// Is it the user's password? `Ok` if the directory says so. The caller gives up at `deadline`; it is told here so that
/// no server takes all of the time from those behind it. Cancel-safe: what is dropped hangs up.
pub async fn check(
    question: Question<'_>,
    reach: &Reach<'_>,
    deadline: Instant,
) -> Result<(), Error> {
    if question.password.expose().is_empty() {
        return Err(Error::EmptyPassword);
    }
    let mut trouble = Error::TimedOut;
    let mut servers = question.directory.servers.iter().peekable();
    while let Some(server) = servers.next() {
        let is_last_server = servers.peek().is_none();
        let Server { host, port } = server;
        let found = in_time(share(deadline, is_last_server), async {
            let found = reach.names.resolve(host, *port, reach.ttl).await;
            found.map_err(Error::Lookup)
        });
        let addresses = match found.await {
            Ok(found) => found.addresses,
            Err(error) => {
                trouble = complain(server, error);
                continue;
            }
        };
        let mut addresses = addresses.into_iter().peekable();
        while let Some(address) = addresses.next() {
            let is_last = is_last_server && addresses.peek().is_none();
            let address = Address::Tcp(address.ip().to_string(), *port);
            let asked = ask(question, reach, (&address, host));
            match in_time(share(deadline, is_last), asked).await {
                Err(error) if error.is_of_server() => trouble = complain(server, error),
                verdict => return verdict,
            }
        }
    }
    Err(trouble)
}

fn complain(server: &Server, error: Error) -> Error {
    tracing::warn!("LDAP: {server}: {error}");
    error
}

/// When to go on to the next server; `None`: there is none, and the caller has its own clock.
fn share(deadline: Instant, is_last: bool) -> Option<Instant> {
    let now = Instant::now();
    let left = deadline.saturating_duration_since(now);
    (!is_last).then(|| now + PATIENCE.min(left / 2))
}

async fn in_time<T>(
    until: Option<Instant>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match until {
        Some(until) => timeout_at(until, work)
            .await
            .unwrap_or(Err(Error::TimedOut)),
        None => work.await,
    }
}

async fn ask(
    question: Question<'_>,
    reach: &Reach<'_>,
    (address, host): (&Address, &str),
) -> Result<(), Error> {
    let mut talk = Talk::open(question.directory.encryption, reach, (address, host)).await?;
    let name = match &question.directory.entry {
        Entry::Named { prefix, suffix } => {
            format!("{prefix}{}{suffix}", ldap::escape_dn(question.user))
        }
        Entry::Found {
            base,
            scope,
            filter,
            account,
        } => {
            if let Some(Account { name, password }) = account {
                let outcome = talk.bind(name, password.expose().as_bytes()).await?;
                succeeded(outcome).map_err(Error::Account)?;
            }
            let user = question.user;
            talk.find((base, *scope), filter, user).await?
        }
    };
    if name.is_empty() {
        return Err(Error::NoName);
    }
    let outcome = talk.bind(&name, question.password.expose()).await?;
    succeeded(outcome).map_err(|outcome| Error::Bind { name, outcome })?;
    talk.close();
    Ok(())
}

fn succeeded(outcome: Outcome) -> Result<(), Outcome> {
    if outcome.code == Outcome::SUCCESS {
        Ok(())
    } else {
        Err(outcome)
    }
}

/// A conversation with a server: one question at a time.
struct Talk {
    connection: Connection,
    last_id: i32,
}

impl Talk {
    async fn open(
        encryption: Encryption,
        reach: &Reach<'_>,
        (address, host): (&Address, &str),
    ) -> Result<Self, Error> {
        let stream = Stream::connect(address, &reach.tcp)
            .await
            .map_err(Error::Connect)?;
        let mut talk = Self {
            connection: Connection::new(stream),
            last_id: 0,
        };
        if encryption == Encryption::StartTls {
            let id = talk.next_id();
            talk.say(&ldap::start_tls(id)).await?;
            let Reply::Extended(outcome) = talk.hear().await? else {
                return Err(Error::Unexpected);
            };
            succeeded(outcome).map_err(Error::NoTls)?;
            if !talk.connection.kept.is_empty() {
                return Err(Error::DataAfterStartTls);
            }
        }
        match (encryption, talk.connection.stream) {
            (Encryption::None, stream) => talk.connection.stream = stream,
            (Encryption::StartTls | Encryption::Ldaps, Stream::Plain(socket)) => {
                let stream = Stream::Tls(reach.tls.connect(socket, host).await?);
                talk.connection = Connection::new(stream);
            }
            (Encryption::StartTls | Encryption::Ldaps, _) => return Err(Error::Unexpected),
        }
        Ok(talk)
    }

    fn next_id(&mut self) -> i32 {
        self.last_id += 1;
        self.last_id
    }

    /// Sends a request. It goes to the socket from where it is, for it may hold a password.
    async fn say(&mut self, request: &[u8]) -> Result<(), Error> {
        let mut unsent = Some(request);
        let connection = &mut self.connection;
        poll_fn(|cx| {
            if let Some(request) = unsent.take() {
                connection.send(cx, request)?;
            }
            connection.poll_flush(cx)
        })
        .await?;
        Ok(())
    }

    /// The next message, which must be for the last request.
    async fn hear(&mut self) -> Result<Reply, Error> {
        loop {
            if let Some((Message { id, reply }, used)) = ldap::read(&self.connection.kept)? {
                self.connection.use_kept(used);
                return match reply {
                    Reply::Extended(outcome) if id == 0 => Err(Error::HangsUp(outcome)),
                    reply if id == self.last_id => Ok(reply),
                    _ => Err(Error::Unexpected),
                };
            }
            if self.connection.read_more().await? == 0 {
                return Err(Error::Closed);
            }
        }
    }

    async fn bind(&mut self, name: &str, password: &[u8]) -> Result<Outcome, Error> {
        let id = self.next_id();
        self.say(&ldap::bind(id, name, password)).await?;
        match self.hear().await? {
            Reply::Bind(outcome) => available(outcome),
            Reply::Entry(_) | Reply::Done(_) | Reply::Extended(_) | Reply::Other => {
                Err(Error::Unexpected)
            }
        }
    }

    /// The name of the only entry there is.
    async fn find(
        &mut self,
        (base, scope): (&str, Scope),
        filter: &Filter,
        user: &str,
    ) -> Result<String, Error> {
        let id = self.next_id();
        let search = Search {
            base,
            scope,
            filter,
            user,
        };
        self.say(&ldap::search(id, &search)).await?;
        let mut found = None;
        loop {
            match self.hear().await? {
                Reply::Entry(name) => {
                    if found.replace(name).is_some() {
                        return Err(Error::Ambiguous);
                    }
                }
                Reply::Other => {}
                Reply::Done(outcome) => {
                    let outcome = available(outcome)?;
                    if outcome.code == Outcome::SIZE_LIMIT_EXCEEDED {
                        return Err(Error::Ambiguous);
                    }
                    succeeded(outcome).map_err(Error::Search)?;
                    return found.ok_or(Error::NoUser);
                }
                Reply::Bind(_) | Reply::Extended(_) => return Err(Error::Unexpected),
            }
        }
    }

    /// Says farewell; whether it arrives does not matter.
    fn close(mut self) {
        let id = self.next_id();
        self.connection.stream.write_once(&ldap::unbind(id));
    }
}

fn available(outcome: Outcome) -> Result<Outcome, Error> {
    match outcome.code {
        Outcome::BUSY | Outcome::UNAVAILABLE => Err(Error::Unavailable(outcome)),
        _ => Ok(outcome),
    }
}
