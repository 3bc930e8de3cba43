//! A pool: what it is called, how its servers log in, the settings that hold for it, and whether it lends at all.
//!
//! Which client gets which server is the business of its [`shards`](super::shards), how many servers there may be that of
//! its [`accounting`](super::accounting).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::accepted::Acceptances;
use super::accounting::Accounting;
use super::greeting::{Greeting, Greetings};
use super::listener::Listener;
use super::manager::Parts;
use super::shards::Shard;
use super::{PoolSettings, WaitError};
use crate::auth::server_login::Credentials;
use crate::auth::{Keyring, Secret};
use crate::protocol::startup::Replication;
use crate::server::overlay::Setting;
use crate::server::session::Tracked;
use crate::stats::clock::micros;
use crate::stats::histogram::{Distribution, Histogram, Times};
use crate::stats::registry::ServerEntry;
use crate::stats::{Apart, Counters, Order, Totals};

/// What servers said at login: ParameterStatus names and values, in their order.
pub type Welcome = Vec<(Vec<u8>, Vec<u8>)>;

/// What servers are logged in with, and the configured secret that goes for it.
#[derive(Debug)]
struct Known {
    stored: Option<Secret>,
    credentials: Credentials,
    /// What the secret came down to at earlier logins.
    keyring: Keyring,
}

/// The servers of one database and server-side user, and the clients that want one.
///
/// What is written when connections come and go is [`Apart`]: the rest is read by all workers with every query.
#[derive(Debug)]
pub struct Pool {
    /// The database, as clients call it.
    pub database: String,
    /// The user the servers are logged in as.
    pub user: String,
    pub(super) accounting: Apart<Mutex<Accounting>>,
    pub(super) parts: Parts,
    pub(super) shards: Box<[Shard]>,
    /// Its turn among the pools, which decides where its first shard is.
    pub(super) turn: usize,
    settings: ArcSwap<PoolSettings>,
    pub(super) version: AtomicU64,
    /// `server_round_robin`.
    pub(super) lends_oldest: AtomicBool,
    /// `server_lifetime` in microseconds.
    pub(super) lifetime: AtomicU64,
    generation: AtomicU64,
    pub(super) may_grow: AtomicBool,
    /// There may be a [`cached_error`](Self::cached_error).
    may_be_down: AtomicBool,
    /// Since when it has had neither clients nor servers, in microseconds after the epoch; 0: it has.
    unused_since: Apart<AtomicU64>,
    paused: AtomicBool,
    pub(super) removed: AtomicBool,
    /// Since when its servers go to a successor of this process, in microseconds after the epoch; 0: they don't.
    pub(super) leaves: AtomicU64,
    /// The generation of servers that come from the process whose place this one takes.
    pub(super) expected: AtomicU64,
    pub(super) pinned: Arc<AtomicUsize>,
    credentials: Apart<Mutex<Known>>,
    /// Who listens to what, and the connection that does.
    pub(super) listener: Arc<Listener>,
    /// What a server said at login, and what clients are told.
    greetings: Apart<Mutex<Greetings>>,
    /// What settings clients may ask for at login.
    pub(super) accepted: Apart<Acceptances>,
    counters: Box<[Counters]>,
}

impl Pool {
    pub(super) fn new(
        (database, user): (String, String),
        settings: PoolSettings,
        (stored, credentials): (Option<Secret>, Credentials),
        parts: Parts,
    ) -> Self {
        let count = parts.workers.count();
        // A pool of 20 can't keep more than about five workers busy, and fewer shards mean fewer
        // servers that idle on one side while clients wait on another.
        let wanted = if settings.sizes.size == 0 {
            count
        } else {
            settings.sizes.size.div_ceil(4)
        };
        let (turn, in_use) = (parts.next_turn(), parts.workers.in_use());
        let shards = (0..wanted.clamp(1, count))
            .map(|at| Shard::new((turn + at) % in_use))
            .collect();
        Self {
            database,
            user,
            accounting: Apart::default(),
            shards,
            turn,
            generation: AtomicU64::new(1),
            lends_oldest: AtomicBool::new(settings.round_robin),
            lifetime: AtomicU64::new(micros(settings.lifetime)),
            settings: ArcSwap::from_pointee(settings),
            version: AtomicU64::new(1),
            may_grow: AtomicBool::new(true),
            may_be_down: AtomicBool::new(false),
            unused_since: Apart::default(),
            paused: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            leaves: AtomicU64::new(0),
            expected: AtomicU64::new(1),
            pinned: Arc::default(),
            credentials: Apart::new(Mutex::new(Known {
                stored,
                credentials,
                keyring: Keyring::default(),
            })),
            listener: Arc::default(),
            greetings: Apart::default(),
            accepted: Apart::default(),
            counters: (0..count).map(|_| Counters::default()).collect(),
            parts,
        }
    }

    /// The current settings.
    pub fn settings(&self) -> Arc<PoolSettings> {
        self.settings.load_full()
    }

    /// Changes whenever the settings or the homes do, so that a client knows when to ask for them again.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn set_settings(&self, settings: PoolSettings) {
        let settings = PoolSettings {
            functions: self.settings.load().functions.clone(),
            ..settings
        };
        self.lends_oldest
            .store(settings.round_robin, Ordering::Relaxed);
        self.lifetime
            .store(micros(settings.lifetime), Ordering::Relaxed);
        if settings.track_statements == 0 {
            self.parts.registry.statements.clear();
        }
        self.settings.store(Arc::new(settings));
        self.version.fetch_add(1, Ordering::AcqRel);
        self.note_growth();
    }

    /// A worker's counters. Only tasks on that worker may write to them.
    pub fn counters(&self, worker: usize) -> Option<&Counters> {
        self.counters.get(worker)
    }

    /// All workers' counters added up.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.counters
            .iter()
            .for_each(|counters| totals.add(counters));
        totals
    }

    /// One of all workers' histograms, added up, without the sum, which is one of the [totals](Self::totals).
    pub fn times(&self, which: fn(&Times) -> &Histogram) -> Distribution {
        let mut times = Distribution::default();
        let workers = self.counters.iter();
        workers.for_each(|counters| counters.add_times(&mut times, which));
        times
    }

    /// How connections are encrypted at this moment.
    pub fn tls(&self) -> Arc<crate::net::tls::Setup> {
        self.parts.tls.load()
    }

    /// All worker threads.
    pub fn workers(&self) -> &crate::net::Workers {
        &self.parts.workers
    }

    /// Logs in with these from now on. What a client's login has taught us is kept as long as the configured secret,
    /// `stored`, is the same and nothing newer is learned. (A password `is_newest` if the client has just proved it to
    /// somebody who knows, though it may be the stored one.)
    pub fn set_credentials(
        &self,
        stored: Option<Secret>,
        credentials: Credentials,
        is_newest: bool,
    ) {
        let mut known = self.credentials.lock();
        let learned_nothing =
            !is_newest && credentials.secret == stored && credentials.scram.is_none();
        if known.stored == stored && learned_nothing {
            return;
        }
        if known.credentials.secret != credentials.secret {
            known.keyring = Keyring::default();
        }
        known.stored = stored;
        known.credentials = credentials;
    }

    /// What new servers log in with, and the keys that this came down to before.
    pub(super) fn credentials(&self) -> (Credentials, Keyring) {
        let known = self.credentials.lock();
        (known.credentials.clone(), known.keyring.clone())
    }

    /// What the servers said at login, if there has been one.
    pub fn welcome(&self) -> Option<Arc<Welcome>> {
        self.greetings.lock().said()
    }

    pub(super) fn greet(&self, welcome: Welcome) {
        let mut fresh = Tracked::new(self.parts.tracked.clone());
        for (name, value) in &welcome {
            fresh.set(name, value);
        }
        self.greetings.lock().learn(welcome, fresh);
    }

    /// What a client is told that asks for these values; `None`: there has been no server yet.
    pub fn greeting(&self, asked: &Tracked) -> Option<Arc<Greeting>> {
        self.greetings.lock().of(asked)
    }

    /// The same, of a client for whom these hold besides, of the parameters that PostgreSQL reports.
    pub fn greeting_with(&self, asked: &Tracked, reported: &[Setting]) -> Option<Arc<Greeting>> {
        self.greetings.lock().with(asked, reported)
    }

    /// For how long it has had neither clients nor servers, which is looked at from time to time.
    pub(super) fn unused_for(&self, is_used: bool, now: u64) -> Duration {
        let since = match self.unused_since.load(Ordering::Relaxed) {
            _ if is_used => 0,
            0 => now.max(1),
            since => since,
        };
        self.unused_since.store(since, Ordering::Relaxed);
        if since == 0 {
            return Duration::ZERO;
        }
        Duration::from_micros(now.saturating_sub(since))
    }

    /// Servers that are being connected.
    pub fn connecting(&self) -> usize {
        self.accounting.lock().connecting()
    }

    /// Servers that are logged in.
    pub fn open_servers(&self) -> usize {
        self.accounting.lock().open()
    }

    /// Servers that are logged in and free.
    pub fn idle_servers(&self) -> usize {
        self.shards
            .iter()
            .map(super::shards::Shard::idle_count)
            .sum()
    }

    /// Why waiting is pointless, if it is. Everyone who has to wait asks, so the accounts are locked only when there is
    /// something to be found in them.
    pub fn cached_error(&self) -> Option<WaitError> {
        if !self.may_be_down.load(Ordering::Relaxed) {
            return None;
        }
        self.accounting
            .lock()
            .cached_error()
            .map(|text| WaitError::LoginFailing(text.to_owned()))
    }

    /// Makes known what the accounts come to; called after every change but those after which all is well.
    pub(super) fn note_growth(&self) {
        let settings = self.settings.load();
        // Stored with the lock held, or an older result might come last.
        let accounting = self.accounting.lock();
        self.may_grow
            .store(accounting.may_grow(&settings.sizes), Ordering::Relaxed);
        self.may_be_down
            .store(accounting.cached_error().is_some(), Ordering::Relaxed);
    }

    /// The generation servers must have.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Its servers' places in the live list.
    pub(super) fn server_entries(&self) -> impl Iterator<Item = Arc<ServerEntry>> {
        let servers = self.parts.registry.servers().into_iter();
        servers.filter(|server| server.database == self.database && server.user == self.user)
    }

    /// Replaces all servers: idle ones now, others when they are given back.
    pub fn reconnect(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.accounting.lock().forgive();
        *self.greetings.lock() = Greetings::default();
        for server in self.server_entries() {
            server.close_needed.store(true, Ordering::Relaxed);
            if server.replication != Replication::None
                && let Some(client) = self.parts.registry.client(server.client())
            {
                client.order(Order::Reconnect);
            }
        }
        self.close_all_idle("database configuration changed");
        self.listener.nudge();
    }

    /// Is it paused?
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// How many of its clients keep their servers though it is not for session pooling.
    pub fn pinned(&self) -> &Arc<AtomicUsize> {
        &self.pinned
    }

    /// Is its database gone from the configuration?
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.is_paused() && !self.removed.load(Ordering::Relaxed)
    }

    /// No new leases; servers are closed as they come back.
    pub fn pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
        self.close_all_idle("pause mode");
        self.listener.nudge();
    }

    /// Leases again.
    pub fn resume(self: &Arc<Self>) {
        self.paused.store(false, Ordering::SeqCst);
        self.listener.nudge();
        self.feed();
    }

    /// The database is gone: nobody will get a server any more.
    pub(super) fn remove(&self) {
        self.removed.store(true, Ordering::SeqCst);
        self.fail_waiters(&WaitError::DatabaseRemoved);
        self.close_all_idle("database removed");
        self.listener.nudge();
    }
}
