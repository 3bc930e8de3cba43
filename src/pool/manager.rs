//! All pools, and what the console and a reload do to them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use super::auth_query::{Answer, Question};
use super::gather::Gather;
use super::limits::Limits;
use super::peers::Peers;
use super::{Admission, Pool, PoolSettings, WaitError};
use crate::auth::Secret;
use crate::auth::scram::ScramKeys;
use crate::auth::server_login::Credentials;
use crate::config::{Change, Config, ConfigHandle, Database, DatabaseEffect, SecretText};
use crate::net::{Names, TlsHandle, Workers};
use crate::prepared;
use crate::server::session::TrackedNames;
use crate::stats::registry::Epoch;
use crate::stats::{ClientEntry, Registry, Totals};

/// What every pool needs from outside. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The worker threads.
    pub workers: Workers,
    /// The live lists.
    pub registry: Arc<Registry>,
    /// The parameters that are tracked.
    pub tracked: TrackedNames,
    /// The configuration.
    pub config: ConfigHandle,
    /// How connections are encrypted; there is no TLS until somebody stores a setup.
    pub tls: TlsHandle,
    /// Statements shared by all clients.
    pub statements: prepared::Registry,
    /// The peers that cancel requests were passed on to.
    pub peers: Arc<Peers>,
    /// Host names that were looked up.
    pub names: Names,
    pub(super) limits: Arc<Limits>,
    pub(super) pools: Weak<Pools>,
    /// Wakes the janitor: there is room where somebody may wait.
    pub(super) kick: Arc<Notify>,
    next_turn: Arc<AtomicUsize>,
}

impl Parts {
    /// Spreads pools that live on few workers over all of them.
    pub(super) fn next_turn(&self) -> usize {
        self.next_turn.fetch_add(1, Ordering::Relaxed)
    }

    /// What pool settings are made with: the names of tracked parameters, and those of hosts.
    fn shared_names(&self) -> (&TrackedNames, &Names) {
        (&self.tracked, &self.names)
    }

    pub(super) fn logs_connections(&self) -> bool {
        self.config.load().settings.log_connections
    }

    pub(super) fn logs_disconnections(&self) -> bool {
        self.config.load().settings.log_disconnections
    }
}

/// Pools by their database, and by the user of their servers.
type ByName = HashMap<String, HashMap<String, Arc<Pool>, ahash::RandomState>, ahash::RandomState>;

/// The map of pools by database and server-side user.
#[derive(Debug, Default)]
pub(super) struct Pools {
    map: RwLock<ByName>,
}

impl Pools {
    pub(super) fn list(&self) -> Vec<Arc<Pool>> {
        let map = self.map.read();
        map.values().flat_map(HashMap::values).cloned().collect()
    }

    fn find(&self, database: &str, user: &str) -> Option<Arc<Pool>> {
        self.map.read().get(database)?.get(user).cloned()
    }

    /// Takes a pool off the map if `is_due`; says whether it was, and whether it was the last of its database.
    fn remove_if(&self, pool: &Pool, is_due: impl FnOnce() -> bool) -> Option<bool> {
        let mut map = self.map.write();
        // Nobody can get one meanwhile.
        if !is_due() {
            return None;
        }
        let rest = map.get_mut(&pool.database)?;
        rest.remove(&pool.user);
        let is_last = rest.is_empty();
        if is_last {
            map.remove(&pool.database);
        }
        Some(is_last)
    }
}

/// All pools.
#[derive(Debug)]
pub struct Manager {
    parts: Parts,
    pools: Arc<Pools>,
    /// Databases the console paused or disabled; `paused_all` is PAUSE without a name.
    paused: Mutex<HashSet<String>>,
    disabled: Mutex<HashSet<String>>,
    /// What was counted in pools that were forgotten, by database.
    forgotten: Mutex<HashMap<String, Totals>>,
    paused_all: AtomicBool,
    suspended: watch::Sender<bool>,
    /// `auth_query` for those who are logging in now.
    pub(super) look_ups: Gather<Question, Answer>,
    started: std::time::Instant,
}

impl Manager {
    /// No pools yet.
    pub fn new(workers: Workers, config: ConfigHandle) -> Self {
        let pools = Arc::new(Pools::default());
        let tracked = TrackedNames::new(&config.load().settings.track_extra_parameters);
        let parts = Parts {
            workers,
            registry: Arc::default(),
            tracked,
            config,
            tls: TlsHandle::default(),
            statements: prepared::Registry::new(),
            peers: Arc::default(),
            names: Names::default(),
            limits: Arc::default(),
            pools: Arc::downgrade(&pools),
            kick: Arc::default(),
            next_turn: Arc::default(),
        };
        Self {
            parts,
            pools,
            paused: Mutex::default(),
            disabled: Mutex::default(),
            forgotten: Mutex::default(),
            paused_all: AtomicBool::new(false),
            suspended: watch::Sender::new(false),
            look_ups: Gather::default(),
            started: tokio::time::Instant::now().into_std(),
        }
    }

    /// The same in a process that takes another's place: its times, and the names of its statements, go on.
    #[must_use]
    pub fn in_place_of(mut self, epoch: Epoch, prefix: &str) -> Self {
        self.parts.registry = Arc::new(Registry::since(epoch));
        self.parts.statements = prepared::Registry::with_prefix(prefix.to_owned());
        self
    }

    /// What pools share.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Counts a new connection in.
    pub fn admit(&self) -> Admission {
        Admission::new(&self.parts.limits, self.parts.registry.next_id())
    }

    /// When the process started.
    pub fn started(&self) -> std::time::Instant {
        self.started
    }

    /// The pool of a database and a login name, made if there is none. `learned` is what the client's login
    /// taught us, for servers that want more than the configuration has.
    pub fn pool(
        &self,
        config: &Config,
        database: &Database,
        client_user: &str,
        learned: Learned,
    ) -> Arc<Pool> {
        let user = config.server_user(database, client_user);
        let is_newest = learned.is_vouched_for;
        let (stored, credentials) = credentials(config, database, client_user, user, learned);
        if let Some(pool) = self.pools.find(&database.name, user) {
            pool.set_credentials(stored, credentials, is_newest);
            return pool;
        }
        let mut pools = self.pools.map.write();
        if !config.databases.contains_key(&database.name) && !pools.contains_key(&database.name) {
            tracing::info!("registered new auto-database: {}", database.name);
        }
        let of_database = pools.entry(database.name.clone()).or_default();
        let pool = of_database.entry(user.to_owned()).or_insert_with(|| {
            let settings = PoolSettings::new(config, database, user, self.parts.shared_names());
            let pool = Pool::new(
                (database.name.clone(), user.to_owned()),
                settings,
                (stored, credentials),
                self.parts.clone(),
            );
            if self.is_paused(&database.name) {
                pool.pause();
            }
            Arc::new(pool)
        });
        pool.clone()
    }

    /// The pool that `auth_query` runs in: as this user, also where clients of the database are somebody else.
    pub(super) fn pool_of_auth_user(
        &self,
        config: &Config,
        database: &Database,
        auth_user: &str,
    ) -> Arc<Pool> {
        match &database.user {
            Some(forced) if forced != auth_user => {
                let as_auth_user = Database {
                    user: Some(auth_user.to_owned()),
                    password: None,
                    ..database.clone()
                };
                self.pool(config, &as_auth_user, auth_user, Learned::default())
            }
            _ => self.pool(config, database, auth_user, Learned::default()),
        }
    }

    /// All pools, in no order.
    pub fn pools(&self) -> Vec<Arc<Pool>> {
        self.pools.list()
    }

    fn pools_of(&self, database: Option<&str>) -> Vec<Arc<Pool>> {
        let mut pools = self.pools.list();
        pools.retain(|pool| database.is_none_or(|name| pool.database == name));
        pools
    }

    /// Makes the pools that `min_pool_size` wants before any client comes: those of databases
    /// with a forced user.
    pub fn make_forced_pools(&self) {
        let config = self.parts.config.load();
        for database in config.databases.values() {
            if let Some(user) = &database.user
                && config.min_pool_size(database, user) > 0
            {
                self.pool(&config, database, user, Learned::default());
            }
        }
    }

    /// Brings the pools in line with a configuration that was just stored.
    pub fn apply(&self, config: &Config, changes: &[Change]) {
        let replaced: HashSet<&str> =
            named(changes, DatabaseEffect::ServersMustReconnect).collect();
        let removed: HashSet<&str> = named(changes, DatabaseEffect::Removed).collect();
        let added: HashSet<&str> = named(changes, DatabaseEffect::Added).collect();
        for pool in self.pools.list() {
            let name = pool.database.as_str();
            let from_fallback = !config.databases.contains_key(name);
            let concerned =
                |set: &HashSet<&str>| set.contains(name) || (from_fallback && set.contains("*"));
            match config.database(name) {
                // Also where there is a `*`: that is another place.
                _ if removed.contains(name) => self.remove(&pool),
                Some(database) => {
                    let settings =
                        PoolSettings::new(config, &database, &pool.user, self.parts.shared_names());
                    pool.set_settings(settings);
                    self.renew_credentials(config, &database, &pool);
                    // One that was made by `*` up to now may be somewhere else by its own line.
                    if concerned(&replaced) || added.contains(name) {
                        pool.reconnect();
                    }
                }
                // Made by a `*` that is no more: it goes when nobody uses it any more, as in PgBouncer.
                None => {}
            }
            pool.feed();
        }
        self.make_forced_pools();
    }

    /// A changed password in the files holds for the next server, without a new login.
    #[allow(clippy::unused_self, reason = "a step of `apply`")]
    fn renew_credentials(&self, config: &Config, database: &Database, pool: &Pool) {
        if config.settings.auth_type.asks_others() && database.user.is_none() {
            // The files have no say in it.
            return;
        }
        let stored = match &database.user {
            // The pool of `auth_query`.
            Some(forced) if *forced != pool.user => config.secrets.get(&pool.user),
            _ => config.server_secret(database, &pool.user),
        };
        if let Some(secret) = stored.and_then(|text| Secret::parse(text.expose()))
            && (database.user.is_some() || database.users.is_empty())
        {
            let credentials = Credentials {
                user: pool.user.clone(),
                secret: Some(secret.clone()),
                scram: None,
            };
            pool.set_credentials(Some(secret), credentials, false);
        }
    }

    /// What was counted in pools that are no more, of databases that are.
    pub fn forgotten(&self) -> HashMap<String, Totals> {
        self.forgotten.lock().clone()
    }

    /// Forgets pools that had neither clients nor servers for too long: with their statistics and the rest those of
    /// databases made by `*` (`autodb_idle_timeout`), others for their room only (`pool_idle_timeout`).
    pub(super) fn forget_unused(&self) {
        let config = self.parts.config.load();
        let now = self.parts.registry.now();
        let (of_database, of_pool) = (
            config.settings.autodb_idle_timeout,
            config.settings.pool_idle_timeout,
        );
        let is_over = |unused: Duration, limit: Duration| !limit.is_zero() && unused > limit;
        let mut clients: Option<HashSet<(String, String)>> = None;
        for pool in self.pools.list() {
            let is_auto = !config.databases.contains_key(&pool.database);
            if of_pool.is_zero() && (!is_auto || of_database.is_zero()) {
                continue;
            }
            let has_servers = pool.open_servers() + pool.connecting() > 0 || pool.has_waiters();
            let is_used = has_servers || {
                let clients = clients.get_or_insert_with(|| self.pools_in_use());
                clients.contains(&(pool.database.clone(), pool.user.clone()))
            };
            let unused = pool.unused_for(is_used, now);
            let is_kept = self.is_paused(&pool.database) || self.is_disabled(&pool.database);
            if is_auto && is_over(unused, of_database) && !is_kept {
                self.forget(&pool, None);
            } else if is_over(unused, of_pool) && !is_kept && !self.is_forced(&config, &pool) {
                self.forget(&pool, Some(unused));
            }
        }
    }

    /// The databases and server-side users of all clients.
    fn pools_in_use(&self) -> HashSet<(String, String)> {
        let mut found = HashSet::new();
        self.parts.registry.each_client(|client| {
            found.insert((client.database.clone(), client.pool_user.clone()));
        });
        found
    }

    /// Would it be made again at once, for `min_pool_size` without a client?
    #[allow(clippy::unused_self, reason = "a question of `forget_unused`")]
    fn is_forced(&self, config: &Config, pool: &Pool) -> bool {
        config
            .databases
            .get(&pool.database)
            .is_some_and(|database| {
                database.user.is_some() && config.min_pool_size(database, &pool.user) > 0
            })
    }

    /// Takes a pool off the list, unless somebody has just got hold of it. `age`: its counts are kept.
    fn forget(&self, pool: &Arc<Pool>, age: Option<Duration>) {
        // The list's and ours. Whoever is about to use it has its own.
        let is_unused = || Arc::strong_count(pool) <= 2;
        let Some(is_last) = self.pools.remove_if(pool, is_unused) else {
            return;
        };
        let (database, user) = (pool.database.clone(), pool.user.clone());
        let mut forgotten = self.forgotten.lock();
        if let Some(age) = age {
            let age = age.as_secs();
            tracing::info!(
                "cleaning up idle pool for user {user} on db {database} because: pool idle timeout (age= {age}s)"
            );
            forgotten.entry(database).or_default().merge(&pool.totals());
        } else if is_last {
            tracing::warn!(
                "dropping database '{database}' as it does not exist anymore or inactive auto-database"
            );
            forgotten.remove(&database);
        }
    }

    fn remove(&self, pool: &Arc<Pool>) {
        self.pools.remove_if(pool, || true);
        pool.remove();
        self.forgotten.lock().remove(&pool.database);
        tracing::warn!(
            "dropping database '{}' as it does not exist anymore or inactive auto-database",
            pool.database
        );
        self.order_clients(Some(&pool.database), crate::stats::Order::DatabaseRemoved);
    }

    /// Gives an order to all clients (of a database).
    pub fn order_clients(&self, database: Option<&str>, order: crate::stats::Order) {
        for client in self.parts.registry.clients() {
            if database.is_none_or(|name| client.database == name) {
                client.order(order);
            }
        }
    }

    // ---- console ---------------------------------------------------------------------------

    /// Is this database, or everything, paused?
    pub fn is_paused(&self, database: &str) -> bool {
        self.is_all_paused() || self.paused.lock().contains(database)
    }

    /// The databases that were paused by their names, in no order.
    pub fn paused(&self) -> Vec<String> {
        self.paused.lock().iter().cloned().collect()
    }

    /// The databases that refuse logins, in no order.
    pub fn disabled(&self) -> Vec<String> {
        self.disabled.lock().iter().cloned().collect()
    }

    /// How many databases were paused by their names?
    pub fn paused_databases(&self) -> usize {
        self.paused.lock().len()
    }

    /// Was PAUSE given without a name?
    pub fn is_all_paused(&self) -> bool {
        self.paused_all.load(Ordering::SeqCst)
    }

    /// Was this database paused by its name?
    pub fn is_paused_by_name(&self, database: &str) -> bool {
        self.paused.lock().contains(database)
    }

    /// PAUSE: servers go as they come back. Returns at once; [`active_servers`](Self::active_servers) says when
    /// it is done.
    pub fn pause(&self, database: Option<&str>) {
        match database {
            Some(name) => {
                self.paused.lock().insert(name.to_owned());
            }
            None => self.paused_all.store(true, Ordering::SeqCst),
        }
        self.pools_of(database).iter().for_each(|pool| pool.pause());
    }

    /// SUSPEND: clients are not read any more, each from the moment when nothing of it is under way, and none are
    /// accepted. [`restless_clients`](Self::restless_clients) are those for whom it has not come yet.
    pub fn suspend(&self) {
        self.suspended.send_replace(true);
        for client in self.parts.registry.clients() {
            client.suspend();
        }
    }

    /// Does SUSPEND hold?
    pub fn is_suspended(&self) -> bool {
        *self.suspended.borrow()
    }

    /// Tells when SUSPEND begins and ends.
    pub fn suspension(&self) -> watch::Receiver<bool> {
        self.suspended.subscribe()
    }

    /// Clients that SUSPEND still waits for. Those of the console are not suspended.
    pub fn restless_clients(&self) -> Vec<Arc<ClientEntry>> {
        let config = self.parts.config.load();
        let mut clients = self.parts.registry.clients();
        clients.retain(|client| !client.rests() && !config.is_console(&client.database));
        clients
    }

    /// Ends SUSPEND. False if there was none.
    pub fn end_suspension(&self) -> bool {
        let was_suspended = self.suspended.send_replace(false);
        if was_suspended {
            for client in self.parts.registry.clients() {
                client.go_on();
            }
        }
        was_suspended
    }

    /// RESUME. False if it was neither paused nor suspended.
    pub fn resume(&self, database: Option<&str>) -> bool {
        if database.is_none() && self.end_suspension() {
            return true;
        }
        let was_paused = match database {
            Some(name) => self.paused.lock().remove(name),
            None => {
                let all = self.paused_all.swap(false, Ordering::SeqCst);
                let mut paused = self.paused.lock();
                let any = all || !paused.is_empty();
                paused.clear();
                any
            }
        };
        for pool in self.pools_of(database) {
            if !self.is_paused(&pool.database) {
                pool.resume();
            }
        }
        was_paused
    }

    /// Servers that are open or being opened (of a database).
    pub fn active_servers(&self, database: Option<&str>) -> usize {
        self.pools_of(database)
            .iter()
            .map(|pool| pool.open_servers() + pool.connecting())
            .sum()
    }

    /// DISABLE and ENABLE: logins are refused.
    pub fn set_disabled(&self, database: &str, disabled: bool) {
        let mut set = self.disabled.lock();
        if disabled {
            set.insert(database.to_owned());
        } else {
            set.remove(database);
        }
    }

    /// Are logins refused?
    pub fn is_disabled(&self, database: &str) -> bool {
        self.disabled.lock().contains(database)
    }

    /// RECONNECT: every server is replaced when it is free.
    pub fn reconnect(&self, database: Option<&str>) {
        for pool in self.pools_of(database) {
            pool.reconnect();
            pool.feed();
        }
    }

    /// KILL: clients and servers go now, and the database stays paused.
    pub fn kill(&self, database: Option<&str>) {
        self.pause(database);
        for pool in self.pools_of(database) {
            pool.fail_waiters(&WaitError::DatabaseRemoved);
        }
        self.order_clients(database, crate::stats::Order::DatabaseRemoved);
    }

    /// Shutdown that waits for servers: nobody gets a new one.
    pub fn end_waiting(&self) {
        for pool in self.pools.list() {
            pool.fail_waiters(&WaitError::ShuttingDown);
        }
    }

    /// Connections of clients, those that are logging in included.
    pub fn active_clients(&self) -> usize {
        self.parts.limits.clients()
    }

    /// Servers of a database, and of a user.
    pub fn servers_of_database(&self, database: &str) -> usize {
        self.parts.limits.servers_of_database(database)
    }

    /// Servers logged in as this user.
    pub fn servers_of_user(&self, user: &str) -> usize {
        self.parts.limits.servers_of_user(user)
    }

    /// Clients of a database.
    pub fn clients_of_database(&self, database: &str) -> usize {
        self.parts.limits.clients_of_database(database)
    }

    /// Clients logged in as this user.
    pub fn clients_of_user(&self, user: &str) -> usize {
        self.parts.limits.clients_of_user(user)
    }
}

/// What a client's login taught us that a server's login may need.
#[derive(Debug, Default)]
pub struct Learned {
    /// Its secret as looked up by `auth_query`, or the password it sent in clear.
    pub secret: Option<Secret>,
    /// What the secret was read from, if it was.
    pub text: Option<SecretText>,
    /// The keys its SCRAM proof revealed.
    pub scram: Option<ScramKeys>,
    /// The secret is the client's password, and somebody who knows has found it right: it is better than what is stored.
    pub is_vouched_for: bool,
}

/// The secret that is configured, and what servers are logged in with: that, or what the client has taught us.
fn credentials(
    config: &Config,
    database: &Database,
    client_user: &str,
    user: &str,
    learned: Learned,
) -> (Option<Secret>, Credentials) {
    let text = config.server_secret(database, client_user);
    // Nearly always it is the one that the client has just proved to know, and need not be read once more.
    let configured = if text.is_some() && text == learned.text.as_ref() {
        learned.secret.clone()
    } else {
        text.and_then(|text| Secret::parse(text.expose()))
    };
    // With a forced user the client's own secret proves nothing to the server.
    let own = user == client_user && database.user.is_none();
    // What a file says expressly of the servers stays so.
    let has_own_secret = database
        .users
        .get(client_user)
        .is_some_and(|user| user.server_password.is_some());
    let secret = match configured.clone() {
        _ if own && learned.is_vouched_for && !has_own_secret => learned.secret,
        // A verifier serves nobody without the keys; a plain password the client sent serves every method.
        Some(Secret::Scram(_)) if own && matches!(learned.secret, Some(Secret::Plain(_))) => {
            learned.secret
        }
        None if own => learned.secret,
        other => other,
    };
    let credentials = Credentials {
        user: user.to_owned(),
        secret,
        scram: if own { learned.scram } else { None },
    };
    (configured, credentials)
}

fn named(changes: &[Change], wanted: DatabaseEffect) -> impl Iterator<Item = &str> {
    changes.iter().filter_map(move |change| match change {
        Change::Database { name, effect } if *effect == wanted => Some(name.as_str()),
        _ => None,
    })
}
