//! Opening servers: who is let to open one, what happens when it is there or fails.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, interval};

use super::accounting::Wanted;
use super::limits::Full;
use super::state::{Pool, Welcome};
use super::{PoolSettings, WaitError};
use crate::protocol::startup::Replication;
use crate::server::connect::{Connected, Target, connect};
use crate::server::{self, Server};
use crate::stats::clock::micros;

/// How often a client that wants a server of its own looks whether there is room.
const ROOM: Duration = Duration::from_millis(50);

/// How long it takes at most until those who wait have gone over to another process.
const PATIENCE: Duration = Duration::from_millis(300);

/// A server that belongs to a pool. Dropping it closes it and makes room for another.
#[derive(Debug)]
pub struct Pooled {
    /// The server itself.
    pub server: Box<Server>,
    pub(super) slot: Slot,
}

impl Pooled {
    /// Closes the server, with a goodbye and a line in the log.
    pub fn close(self, reason: &str) {
        let entry = &self.server.entry;
        if self.slot.pool.parts.logs_disconnections() {
            let age = Instant::now()
                .saturating_duration_since(self.server.created)
                .as_secs();
            tracing::info!(
                conn = %format_args!("S-{:#x}: {}/{}@{}", entry.id, entry.database, entry.user, entry.peer),
                "closing because: {reason} (age={age}s)"
            );
        }
        self.server.close();
    }

    /// Moves its socket to the worker that calls this.
    #[inline]
    pub fn rehomed(self, worker: usize) -> Result<Self, server::Error> {
        if self.server.home == worker {
            return Ok(self);
        }
        self.moved(worker)
    }

    #[cold]
    fn moved(mut self, worker: usize) -> Result<Self, server::Error> {
        self.server = self.server.rehome(worker)?;
        Ok(self)
    }

    /// The pool it belongs to.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.slot.pool
    }
}

/// The right to one server in a pool's accounts.
#[derive(Debug)]
pub(super) struct Slot {
    pool: Arc<Pool>,
    stage: Stage,
}

/// What the accounts know of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connecting,
    Open,
    Failed,
    /// Nothing: it is none of those that clients get.
    Beside,
}

impl Slot {
    /// Of a server that the process before this one had. It is there, so it counts, whatever the limits say.
    pub(super) fn taken_over(pool: &Arc<Pool>) -> Self {
        pool.parts.limits.count_server(&pool.database, &pool.user);
        pool.accounting.lock().taken_over();
        pool.note_growth();
        Self {
            pool: pool.clone(),
            stage: Stage::Open,
        }
    }

    /// The attempt led to a server.
    fn opened(&mut self) {
        self.stage = Stage::Open;
        self.pool.accounting.lock().connected();
    }

    /// The attempt failed.
    fn failed(mut self, error: &server::Error, settings: &PoolSettings) {
        self.stage = Stage::Failed;
        self.pool
            .accounting
            .lock()
            .failed(error.to_string(), &settings.sizes, Instant::now());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let pool = &self.pool;
        match self.stage {
            Stage::Connecting => pool.accounting.lock().abandoned(),
            Stage::Open => pool.accounting.lock().closed(),
            Stage::Failed | Stage::Beside => {}
        }
        pool.parts.limits.return_server(&pool.database, &pool.user);
        pool.note_growth();
        // Somebody may be waiting for the room, here or in a pool that shares a limit with this one. An attempt that came
        // to nothing is not followed by another at once: the janitor looks, in its turn.
        if self.stage == Stage::Open && pool.has_waiters() {
            pool.feed();
        }
        pool.parts.kick.notify_one();
    }
}

impl Pool {
    /// Opens connections for those who wait, as far as the limits let it.
    pub fn feed(self: &Arc<Self>) {
        if !self.is_open() {
            return;
        }
        let settings = self.settings();
        let (demand, now) = (self.demand(), Instant::now());
        // Who waits in a pool that leaves goes over and waits there, but for those who are logging in.
        if self.is_leaving(PATIENCE) {
            return;
        }
        let wanted = {
            let mut accounting = self.accounting.lock();
            let wanted = accounting.wanted(&settings.sizes, demand, now);
            (0..wanted.connections).for_each(|_| accounting.begin());
            wanted
        };
        self.open_many(wanted, &settings);
    }

    /// Opens a connection if there are fewer than `min_pool_size`.
    pub(super) fn feed_minimum(self: &Arc<Self>) {
        if !self.is_open() || self.is_leaving(Duration::MAX) {
            return;
        }
        let settings = self.settings();
        let connections = {
            let mut accounting = self.accounting.lock();
            let wanted = accounting.wanted_for_minimum(&settings.sizes, Instant::now());
            (0..wanted).for_each(|_| accounting.begin());
            wanted
        };
        for _ in 0..connections {
            // Nobody waits for these: no other pool's server is evicted for them.
            if self.take_permit(&settings).is_err() {
                self.accounting.lock().abandoned();
                continue;
            }
            self.spawn_attempt(settings.clone());
        }
        self.note_growth();
    }

    /// Opens a server for one client alone, who asks for it by these start-up parameters. It counts like the others, and
    /// an idle one goes to make room for it. Cancel-safe: the attempt of a caller that gives up is closed.
    pub async fn dedicate(
        self: &Arc<Self>,
        worker: usize,
        replication: Replication,
        parameters: &[(String, String)],
    ) -> Result<(Pooled, Welcome), server::Error> {
        let mut room = interval(ROOM);
        while !self.take_room() {
            room.tick().await;
        }
        let mut slot = Slot {
            pool: self.clone(),
            stage: Stage::Connecting,
        };
        let mut target = self.settings().target.clone();
        target.replication = replication;
        // The client's own come last, and so prevail.
        target.parameters.extend_from_slice(parameters);
        let connected = self.connect(&target, worker).await?;
        slot.opened();
        let pooled = Pooled {
            server: connected.server,
            slot,
        };
        Ok((pooled, connected.welcome))
    }

    /// Opens a server besides those that clients get: it counts for the limits of the database and of the user, but not for
    /// the size of the pool. `None`: there is no room now, or the pool is not open. Cancel-safe.
    pub(super) async fn open_beside(
        self: &Arc<Self>,
        worker: usize,
    ) -> Result<Option<Pooled>, server::Error> {
        let settings = self.settings();
        let permit = |full| self.evict_elsewhere(full) && self.take_permit(&settings).is_ok();
        if !self.is_open() || !self.take_permit(&settings).map_or_else(permit, |()| true) {
            return Ok(None);
        }
        let slot = Slot {
            pool: self.clone(),
            stage: Stage::Beside,
        };
        let server = self.connect(&settings.target, worker).await?.server;
        Ok(Some(Pooled { server, slot }))
    }

    /// Room for one more server, made by closing an idle one if need be.
    fn take_room(&self) -> bool {
        let settings = self.settings();
        let has_room = |pool: &Self| pool.accounting.lock().may_grow(&settings.sizes);
        if !self.is_open() || !(has_room(self) || self.evict() && has_room(self)) {
            return false;
        }
        self.accounting.lock().begin();
        if let Err(full) = self.take_permit(&settings)
            && !(self.evict_elsewhere(full) && self.take_permit(&settings).is_ok())
        {
            self.accounting.lock().abandoned();
            return false;
        }
        self.note_growth();
        true
    }

    fn open_many(self: &Arc<Self>, wanted: Wanted, settings: &Arc<PoolSettings>) {
        if wanted.from_reserve {
            tracing::warn!(db = %self.database, user = %self.user, "taking connection from reserve_pool");
        }
        for _ in 0..wanted.connections {
            if let Err(full) = self.take_permit(settings)
                && !(self.evict_elsewhere(full) && self.take_permit(settings).is_ok())
            {
                self.accounting.lock().abandoned();
                continue;
            }
            self.spawn_attempt(settings.clone());
        }
        self.note_growth();
    }

    fn take_permit(&self, settings: &PoolSettings) -> Result<(), Full> {
        self.parts.limits.take_server(
            (&self.database, settings.max_db_connections),
            (&self.user, settings.max_user_connections),
        )
    }

    /// Closes the longest-idle server of another pool under the same limit.
    fn evict_elsewhere(&self, full: Full) -> bool {
        let Some(pools) = self.parts.pools.upgrade() else {
            return false;
        };
        let candidates = pools.list().into_iter().filter(|pool| match full {
            Full::Database => pool.database == self.database && pool.user != self.user,
            Full::User => pool.user == self.user && pool.database != self.database,
        });
        let longest_idle = candidates
            .filter_map(|pool| Some((pool.idle_since()?, pool)))
            .min_by_key(|(since, _)| *since);
        longest_idle.is_some_and(|(_, pool)| pool.evict())
    }

    fn spawn_attempt(self: &Arc<Self>, settings: Arc<PoolSettings>) {
        let slot = Slot {
            pool: self.clone(),
            stage: Stage::Connecting,
        };
        let shard = self.neediest_shard();
        let worker = self.worker_of(shard);
        self.parts
            .workers
            .spawn_on(worker, attempt(slot, settings, shard, worker));
    }

    /// Connects a server. The log has the hosts that were passed over, and why none came about.
    async fn connect(&self, target: &Target, worker: usize) -> Result<Connected, server::Error> {
        let began = Instant::now();
        let place = (worker, self.generation());
        let tls = self.parts.tls.load();
        let (credentials, registry) = (self.credentials(), &self.parts.registry);
        let connected = connect(target, &tls.servers, credentials, registry, place).await;
        let log = |place: &dyn fmt::Display, error: &server::Error| {
            self.log_failure(place, error, (began, target.replication));
        };
        match &connected {
            Ok(Connected { passed_over, .. }) => {
                if let Some(counters) = self.counters(worker) {
                    let elapsed = micros(began.elapsed());
                    counters.connect_time.add(elapsed);
                    counters.times().connect.add(elapsed);
                }
                for (address, error) in passed_over {
                    log(address, error);
                }
            }
            Err(error) => log(&target.hosts, error),
        }
        connected
    }

    /// What the log says of a server that did not come about.
    fn log_failure(
        &self,
        place: &dyn fmt::Display,
        error: &server::Error,
        (began, replication): (Instant, Replication),
    ) {
        let id = self.parts.registry.next_id();
        let conn = format!("S-{id:#x}: {}/{}@{place}", self.database, self.user);
        match error {
            server::Error::Refused { .. } => {
                tracing::warn!(conn, "server login failed: FATAL {error}");
            }
            server::Error::Connect(source) => tracing::warn!(conn, "{error}: {source}"),
            _ => tracing::warn!(conn, "{error}"),
        }
        if self.parts.logs_disconnections() {
            let age = began.elapsed().as_secs();
            let reason = match error {
                // It says nothing about other logins, and the client is told no more either.
                server::Error::Refused { .. } if replication != Replication::None => {
                    "login failed".to_owned()
                }
                error => error.to_string(),
            };
            tracing::info!(conn, "closing because: {reason} (age={age}s)");
        }
    }

    /// A refused login will be refused again: unless there is a server that can be used, those who wait are told.
    fn attempt_failed(&self, error: &server::Error) {
        if !self.has_usable_servers()
            && let Some(verdict) = WaitError::from_connect(error)
        {
            self.fail_waiters(&verdict);
        }
    }

    /// Is there a server that others may get, and not only until the client it is with is done?
    fn has_usable_servers(&self) -> bool {
        self.accounting.lock().open() > 0
            && self.server_entries().any(|server| {
                server.replication == Replication::None
                    && !server.close_needed.load(Ordering::Relaxed)
            })
    }
}

/// Connects one server and hands it to whoever has waited longest.
async fn attempt(mut slot: Slot, settings: Arc<PoolSettings>, shard: usize, worker: usize) {
    let pool = slot.pool.clone();
    match pool.connect(&settings.target, worker).await {
        Ok(Connected {
            mut server,
            welcome,
            ..
        }) => {
            pool.learn_functions(&mut server, worker).await;
            slot.opened();
            pool.greet(welcome);
            if pool.parts.logs_connections() {
                let entry = &server.entry;
                let conn = format!(
                    "S-{:#x}: {}/{}@{}",
                    entry.id, entry.database, entry.user, entry.peer
                );
                let from = entry
                    .local
                    .map_or_else(|| "unix".to_owned(), |addr| addr.to_string());
                tracing::info!(conn, "new connection to server (from {from})");
                if !entry.tls.is_empty() {
                    tracing::info!(conn, "SSL established: {}", entry.tls);
                }
            }
            pool.admit(shard, Pooled { server, slot });
            if pool.has_waiters() {
                pool.feed();
            }
        }
        Err(error) => {
            slot.failed(&error, &settings);
            pool.attempt_failed(&error);
        }
    }
}
