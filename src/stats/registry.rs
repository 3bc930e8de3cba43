//! Who is connected: one entry for each client and each server, for SHOW, for cancel requests, for
//! timeouts and for orders from the console.
//!
//! The maps are touched when a connection comes or goes. An entry's atomics are written by its
//! owner, on a cache line of its own, and read by whoever asks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use rand::Rng;
use tokio::time::Instant;

use super::{Apart, Errors, Reloads, Spans, Statements, Throttle, clock};

mod client;
mod pins;
mod server;

pub use client::{ClientEntry, NewClient, Order, Orders, Phase};
pub use pins::{Pin, PinGuard, PinInfo};
pub use server::{CancelGuard, NewServer, ServerEntry, ServerState};

/// Turns points in time into numbers that fit an atomic.
#[derive(Debug, Clone, Copy)]
pub struct Epoch {
    instant: Instant,
    wall: SystemTime,
}

impl Epoch {
    /// Time is counted from now on.
    pub fn new() -> Self {
        Self {
            instant: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    /// That of a process which has counted for so many microseconds, and whose place this one takes.
    pub fn taken_over(micros: u64) -> Self {
        let passed = Duration::from_micros(micros);
        let now = Self::new();
        // A clock that has not run for so long says that there was no such process.
        Self {
            instant: now.instant.checked_sub(passed).unwrap_or(now.instant),
            wall: now.wall.checked_sub(passed).unwrap_or(now.wall),
        }
    }

    /// Microseconds from the epoch to `at`.
    #[inline]
    pub fn micros(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.instant);
        // Not `as_micros`, which calculates in 128 bits.
        passed.as_secs() * 1_000_000 + u64::from(passed.subsec_micros())
    }

    /// The wall-clock time of a number made by [`micros`](Self::micros).
    pub fn wall(&self, micros: u64) -> SystemTime {
        self.wall + Duration::from_micros(micros)
    }
}

impl Default for Epoch {
    fn default() -> Self {
        Self::new()
    }
}

/// A cancel key as given to a client; 4 bytes in protocol 3.0, up to 256 in 3.2.
#[derive(Clone)]
pub struct CancelKey(pub Box<[u8]>);

impl std::fmt::Debug for CancelKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(..)")
    }
}

/// Where a connection comes from or goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket; the process id of the other side, if the system tells.
    Unix(Option<i32>),
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "{addr}"),
            Self::Unix(Some(pid)) => write!(f, "unix({pid})"),
            Self::Unix(None) => f.write_str("unix"),
        }
    }
}

/// The live lists.
#[derive(Debug, Default)]
pub struct Registry {
    /// Written with every connection; what follows is read with every query.
    next_id: Apart<AtomicU64>,
    /// What numbers in entries are relative to.
    pub epoch: Epoch,
    clients: DashMap<u64, Arc<ClientEntry>, ahash::RandomState>,
    /// By the number in the key and the first bytes of its secret: peers may leave us few numbers.
    by_cancel_key: DashMap<(i32, [u8; 2]), u64, ahash::RandomState>,
    servers: DashMap<u64, Arc<ServerEntry>, ahash::RandomState>,
    pins: DashMap<u64, Pin, ahash::RandomState>,
    /// Which errors there were.
    pub errors: Arc<Errors>,
    /// What reloads have changed.
    pub reloads: Reloads,
    /// How many slow queries the log has.
    pub slow_queries: Throttle,
    /// Which statements take the time.
    pub statements: Statements,
    /// Transactions that are traced.
    pub spans: Apart<Spans>,
}

impl Registry {
    /// An empty one whose numbers are relative to this.
    pub fn since(epoch: Epoch) -> Self {
        Self {
            epoch,
            ..Self::default()
        }
    }

    /// The next id. Clients and servers share the counter (PgBouncer's `id` column).
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Microseconds after the epoch, now.
    pub fn now(&self) -> u64 {
        self.epoch.micros(Instant::now())
    }

    /// Microseconds after the epoch, as of this turn of the worker (see [`clock`]): for what is done with every query.
    #[inline]
    pub fn turn(&self) -> u64 {
        clock::in_turn(|| self.now())
    }

    /// Makes up a key for BackendKeyData that no other client has: a positive number and a secret of so many bytes.
    /// `sign` may change both.
    pub fn reserve_cancel_key(
        &self,
        id: u64,
        length: usize,
        sign: impl Fn(i32, &mut [u8]) -> i32,
    ) -> (i32, CancelKey) {
        loop {
            let mut key = vec![0; length].into_boxed_slice();
            let mut random = rand::rng();
            random.fill_bytes(&mut key);
            let pid = i32::from_ne_bytes(random.next_u32().to_ne_bytes()) & i32::MAX;
            let pid = sign(pid, &mut key);
            if pid == 0 {
                continue;
            }
            if let dashmap::Entry::Vacant(slot) = self.by_cancel_key.entry((pid, beginning(&key))) {
                slot.insert(id);
                return (pid, CancelKey(key));
            }
        }
    }

    /// A client comes from the process before this one, with the key that it was given there. False: another has it.
    pub fn take_over_cancel_key(&self, id: u64, pid: i32, key: &CancelKey) -> bool {
        match self.by_cancel_key.entry((pid, beginning(&key.0))) {
            dashmap::Entry::Vacant(slot) => {
                slot.insert(id);
                true
            }
            dashmap::Entry::Occupied(_) => false,
        }
    }

    /// Enters a client; it leaves when the guard is dropped.
    pub fn enter_client(self: &Arc<Self>, entry: ClientEntry) -> ClientGuard {
        let entry = Arc::new(entry);
        self.clients.insert(entry.id, entry.clone());
        ClientGuard {
            entry,
            registry: self.clone(),
        }
    }

    /// Enters a server; it leaves when the guard is dropped.
    pub fn enter_server(self: &Arc<Self>, mut entry: ServerEntry) -> ServerGuard {
        entry.errors = self.errors.clone();
        let entry = Arc::new(entry);
        self.servers.insert(entry.id, entry.clone());
        ServerGuard {
            entry,
            registry: self.clone(),
        }
    }

    /// The client of this id.
    pub fn client(&self, id: u64) -> Option<Arc<ClientEntry>> {
        self.clients.get(&id).map(|entry| entry.clone())
    }

    /// The client that may have been given this key in BackendKeyData; the rest of the secret is to be compared.
    pub fn client_by_cancel_key(&self, pid: i32, key: &[u8]) -> Option<Arc<ClientEntry>> {
        let id = *self.by_cancel_key.get(&(pid, beginning(key)))?;
        self.client(id)
    }

    /// The server of this id.
    pub fn server(&self, id: u64) -> Option<Arc<ServerEntry>> {
        self.servers.get(&id).map(|entry| entry.clone())
    }

    /// All clients, in no order.
    pub fn clients(&self) -> Vec<Arc<ClientEntry>> {
        self.clients.iter().map(|entry| entry.clone()).collect()
    }

    /// Calls `look` for every client. Connections can neither come nor go meanwhile.
    pub fn each_client(&self, mut look: impl FnMut(&ClientEntry)) {
        self.clients.iter().for_each(|entry| look(&entry));
    }

    /// A server of which this is so.
    pub fn find_server(&self, is_it: impl Fn(&ServerEntry) -> bool) -> Option<Arc<ServerEntry>> {
        let found = self.servers.iter().find(|entry| is_it(entry))?;
        Some(found.clone())
    }

    /// All servers, in no order.
    pub fn servers(&self) -> Vec<Arc<ServerEntry>> {
        self.servers.iter().map(|entry| entry.clone()).collect()
    }
}

fn beginning(key: &[u8]) -> [u8; 2] {
    key.first_chunk().copied().unwrap_or_default()
}

/// A client's place in the live list.
#[derive(Debug)]
pub struct ClientGuard {
    entry: Arc<ClientEntry>,
    registry: Arc<Registry>,
}

impl std::ops::Deref for ClientGuard {
    type Target = Arc<ClientEntry>;

    fn deref(&self) -> &Arc<ClientEntry> {
        &self.entry
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.registry.clients.remove(&self.entry.id);
        let key = (self.entry.cancel_pid, beginning(&self.entry.cancel_key.0));
        self.registry.by_cancel_key.remove(&key);
    }
}

/// A server's place in the live list.
#[derive(Debug)]
pub struct ServerGuard {
    entry: Arc<ServerEntry>,
    registry: Arc<Registry>,
}

impl std::ops::Deref for ServerGuard {
    type Target = Arc<ServerEntry>;

    fn deref(&self) -> &Arc<ServerEntry> {
        &self.entry
    }
}

impl Drop for ServerGuard {
    fn drop(&mut self) {
        self.registry.servers.remove(&self.entry.id);
    }
}
