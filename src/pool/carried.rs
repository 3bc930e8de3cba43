//! A pool that goes from one process of ours to the next, with what it has learned, and the servers that follow one by one.
//!
//! Meanwhile the servers that are still with the other process count for the pool's size, so that the two of them together
//! do not open more than there may be.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::functions::CarriedFunctions;
use super::manager::Learned;
use super::open::Slot;
use super::state::Pool;
use super::{Manager, Pooled};
use crate::auth::Secret;
use crate::auth::scram::ScramKeys;
use crate::auth::secret::{Key, PlainSecret};
use crate::server::carried::{Carried, Place, Value};
use crate::server::{self, Server};

/// What a pool is called by both processes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolName {
    /// The database, as clients call it.
    pub database: String,
    /// The user of its servers.
    pub user: String,
}

impl PoolName {
    /// The pool of this database and this user of its servers.
    pub fn of(database: &str, user: &str) -> Self {
        Self {
            database: database.to_owned(),
            user: user.to_owned(),
        }
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.database, self.user)
    }
}

/// What a successor is to know of a pool.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct CarriedPool {
    /// The database, as clients call it.
    #[prost(string, tag = "1")]
    pub database: String,
    /// The user of its servers.
    #[prost(string, tag = "2")]
    pub user: String,
    /// The password that servers are logged in with, if it is not the configuration's alone.
    #[prost(bytes = "vec", optional, tag = "3")]
    password: Option<Vec<u8>>,
    /// What a client's login has come down to: both keys.
    #[prost(bytes = "vec", optional, tag = "4")]
    scram_client: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "5")]
    scram_server: Option<Vec<u8>>,
    /// What its servers said at login.
    #[prost(message, repeated, tag = "6")]
    welcome: Vec<Value>,
    /// What is known of the functions of its database.
    #[prost(message, optional, tag = "7")]
    functions: Option<CarriedFunctions>,
    /// The 32 hex digits that stand for a password.
    #[prost(bytes = "vec", optional, tag = "8")]
    md5: Option<Vec<u8>>,
    /// How many servers it has.
    #[prost(uint64, tag = "9")]
    servers: u64,
}

impl fmt::Debug for CarriedPool {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CarriedPool({}/{})", self.database, self.user)
    }
}

/// How many servers a pool still has in the other process.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Elsewhere {
    /// The database, as clients call it.
    #[prost(string, tag = "1")]
    pub database: String,
    /// The user of its servers.
    #[prost(string, tag = "2")]
    pub user: String,
    /// So many.
    #[prost(uint64, tag = "3")]
    pub servers: u64,
}

/// The place of a server in the accounts of a pool, before it is there.
#[derive(Debug)]
pub struct Seat(Slot);

impl CarriedPool {
    /// Which one it is.
    pub fn name(&self) -> PoolName {
        PoolName::of(&self.database, &self.user)
    }

    fn learned(&self) -> Learned {
        let key = |bytes: &Option<Vec<u8>>| -> Option<Key> {
            Some(Key::new(bytes.as_deref()?.try_into().ok()?))
        };
        let keys = key(&self.scram_client).zip(key(&self.scram_server));
        let hash = self
            .md5
            .as_deref()
            .and_then(|it| std::str::from_utf8(it).ok());
        let secret = match &self.password {
            Some(password) => Some(Secret::Plain(PlainSecret::new(password.clone()))),
            None => hash.and_then(|hash| Secret::parse(&format!("md5{hash}"))),
        };
        Learned {
            secret,
            scram: keys.map(|(client_key, server_key)| ScramKeys {
                client_key,
                server_key,
            }),
            ..Learned::default()
        }
    }
}

impl Pool {
    /// What both processes call it.
    pub fn name(&self) -> PoolName {
        PoolName::of(&self.database, &self.user)
    }

    /// What a successor is to know.
    pub fn carry(&self) -> CarriedPool {
        let (credentials, _) = self.credentials();
        let scram = credentials.scram.as_ref();
        let (password, md5) = match &credentials.secret {
            Some(Secret::Plain(password)) => (Some(password.expose().to_vec()), None),
            Some(Secret::Md5(hash)) => (None, Some(hash.expose().to_vec())),
            Some(Secret::Scram(_)) | None => (None, None),
        };
        let welcome = self.welcome();
        let welcome = welcome.iter().flat_map(|welcome| welcome.iter());
        CarriedPool {
            database: self.database.clone(),
            user: self.user.clone(),
            password,
            scram_client: scram.map(|keys| keys.client_key.expose().to_vec()),
            scram_server: scram.map(|keys| keys.server_key.expose().to_vec()),
            welcome: Value::all(welcome.map(|(name, value)| (name, value.as_slice()))),
            functions: Some(self.settings().functions.carry()),
            md5,
            servers: (self.open_servers() + self.connecting()) as u64,
        }
    }

    /// What makes a server of this pool, so that two processes can compare: where it is, how its session begins, and what is
    /// known of it.
    pub fn fingerprint(&self) -> String {
        let target = &self.settings().target;
        let tracked: Vec<&str> = self.parts.tracked.iter().collect();
        let tls = self.parts.config.load().settings.server_tls_sslmode;
        format!(
            "{} {} {:?} {:?} {tracked:?} {tls:?}",
            target.hosts, target.database, target.parameters, target.connect_query
        )
    }

    /// From now on no servers are opened that nobody waits for: a successor will. Or else as ever.
    pub fn set_leaving(&self, leaves: bool) {
        let since = match self.leaves.load(Ordering::Relaxed) {
            _ if !leaves => 0,
            0 => self.parts.registry.now().max(1),
            since => since,
        };
        self.leaves.store(since, Ordering::Relaxed);
    }

    /// Is it so, for no longer than this?
    pub(super) fn is_leaving(&self, limit: Duration) -> bool {
        let since = self.leaves.load(Ordering::Relaxed);
        since != 0 && {
            let passed = self.parts.registry.now().saturating_sub(since);
            Duration::from_micros(passed) < limit
        }
    }

    /// Takes all idle servers out, for a successor, unless somebody waits for them.
    pub fn take_idle_servers(self: &Arc<Self>) -> Vec<Pooled> {
        if self.has_waiters() {
            return Vec::new();
        }
        let take = || (0..self.shards.len()).find_map(|shard| self.take_idle(shard, true));
        std::iter::from_fn(take).collect()
    }

    /// So many of the pool's servers are with the process whose place this one takes.
    pub fn set_elsewhere(self: &Arc<Self>, servers: usize) {
        let had = self.accounting.lock().set_elsewhere(servers);
        let limits = &self.parts.limits;
        for _ in had..servers {
            limits.count_server(&self.database, &self.user);
        }
        for _ in servers..had {
            limits.return_server(&self.database, &self.user);
        }
        if had != servers {
            self.note_growth();
            if self.has_waiters() {
                self.feed();
            }
        }
    }

    /// Room for a server that is about to come.
    pub fn seat(self: &Arc<Self>) -> Seat {
        Seat(Slot::taken_over(self))
    }

    /// A server that the process before this one had, on the worker that calls. `Ok(None)`: it is not what the pool connects to
    /// now. It is the caller's to [admit](Self::admit_taken_over), unless it comes with the client that has it (its id, or 0).
    pub fn take_over(
        self: &Arc<Self>,
        (carried, socket): (Carried, OwnedFd),
        Seat(slot): Seat,
        (worker, client): (usize, u64),
    ) -> Result<Option<Pooled>, server::Error> {
        let target = self.fingerprint();
        if carried.user != self.user || carried.database != self.database {
            return Ok(None);
        }
        let place = Place {
            target: &target,
            tracked: &self.parts.tracked,
            registry: &self.parts.registry,
            worker,
            // Whoever has said RECONNECT since means these, too.
            generation: self.expected.load(Ordering::Relaxed),
            client,
        };
        let Some(server) = carried.into_server(socket, &place)? else {
            return Ok(None);
        };
        Ok(Some(Pooled { server, slot }))
    }

    /// Gives an idle server that was taken over to whoever has waited longest.
    pub async fn admit_taken_over(self: &Arc<Self>, mut pooled: Pooled, worker: usize) {
        self.learn_functions(&mut pooled.server, worker).await;
        self.admit(self.shard_of(worker), pooled);
    }
}

impl Pooled {
    /// The server alone, and what keeps its place in the accounts of the pool.
    pub fn into_parts(self) -> (Box<Server>, impl Send + 'static) {
        (self.server, self.slot)
    }
}

impl Manager {
    /// A pool of the process before this one. `None`: there is no such database any more.
    pub fn take_over(&self, carried: &CarriedPool) -> Option<Arc<Pool>> {
        let config = self.parts().config.load();
        let database = config.database(&carried.database)?;
        let pool = self.pool(&config, &database, &carried.user, carried.learned());
        if pool.user == carried.user {
            let welcome = carried.welcome.iter().cloned();
            let welcome: Vec<_> = welcome.map(|it| (it.name, it.value)).collect();
            if !welcome.is_empty() {
                pool.greet(welcome);
            }
            pool.expected.store(pool.generation(), Ordering::Relaxed);
            pool.set_elsewhere(usize::try_from(carried.servers).unwrap_or(usize::MAX));
            if let Some(functions) = &carried.functions {
                pool.settings().functions.take_over(functions);
            }
        }
        Some(pool)
    }
}
