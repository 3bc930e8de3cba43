//! Who is connected: one entry for each client and each server, for SHOW, for cancel requests, for
//! timeouts and for orders from the console.
//!
//! The maps are touched when a connection comes or goes. An entry's atomics are written by its
//! owner, on a cache line of its own, and read by whoever asks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::protocol::startup::Replication;

/// What a client is doing. The timeouts and SHOW CLIENTS go by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Logged in and silent; it has no server.
    Idle = 0,
    /// It needs a server and there is none yet.
    Waiting = 1,
    /// Linked, and its server is working.
    Active = 2,
    /// Linked, the server is idle in a transaction (or, in session pooling, between queries).
    IdleInTransaction = 3,
    /// Linked by session pooling, outside a transaction and silent.
    LinkedIdle = 4,
    /// Gone; its server is being brought back to a clean state.
    Draining = 5,
}

impl Phase {
    fn from_u8(value: u8) -> Self {
        match value {
            1 => Self::Waiting,
            2 => Self::Active,
            3 => Self::IdleInTransaction,
            4 => Self::LinkedIdle,
            5 => Self::Draining,
            _ => Self::Idle,
        }
    }
}

/// Something a client's task is told to do. Each is a bit, so that orders add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Order {
    /// `query_timeout` while a query runs.
    QueryTimeout = 1,
    /// `query_wait_timeout`.
    QueryWaitTimeout = 1 << 1,
    /// `client_idle_timeout`.
    ClientIdleTimeout = 1 << 2,
    /// `idle_transaction_timeout`.
    IdleTransactionTimeout = 1 << 3,
    /// `transaction_timeout`.
    TransactionTimeout = 1 << 4,
    /// The console's KILL, or the database vanished at a reload.
    DatabaseRemoved = 1 << 5,
    /// The console's KILL_CLIENT.
    AdminDisconnect = 1 << 6,
    /// Shutdown that waits for servers: a client without one has to go.
    ShuttingDown = 1 << 7,
    /// `query_wait_notify`: tell it that it is queued.
    NotifyWaiting = 1 << 8,
    /// A cancel request came while it was queued.
    CancelWaiting = 1 << 9,
    /// `query_timeout` while waiting for a server.
    QueryTimeoutWaiting = 1 << 10,
    /// It is to live on another worker: [`ClientEntry::goal`].
    Move = 1 << 11,
    /// `server_fast_close`: it ends when it is next outside of a transaction.
    ServerOutdated = 1 << 12,
    /// SUSPEND: it is not read from once nothing is under way. Holds until [`ClientEntry::go_on`].
    Suspend = 1 << 13,
    /// `suspend_timeout`.
    SuspendTimeout = 1 << 14,
    /// The servers of its pool are replaced, and its own can't be, except by ending both.
    Reconnect = 1 << 15,
}

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

/// A connected client, as everybody but its own task sees it.
#[derive(Debug)]
pub struct ClientEntry {
    /// From the counter that clients and servers share; never used twice.
    pub id: u64,
    /// Who it is.
    pub user: String,
    /// The database it asked for.
    pub database: String,
    /// The user of its pool: the forced one where the database has one.
    pub pool_user: String,
    /// Its address.
    pub peer: Peer,
    /// Does it replicate?
    pub replication: Replication,
    /// Our side of the connection; `None`: a Unix socket.
    pub local: Option<SocketAddr>,
    /// Version and cipher; empty for a plain connection.
    pub tls: Box<str>,
    /// Microseconds after the epoch.
    pub connected: u64,
    goal: AtomicUsize,
    /// The `application_name` it wants, as last known.
    pub application_name: Mutex<Vec<u8>>,
    /// How many statements it has named.
    pub prepared_statements: AtomicU32,
    /// Its key for cancel requests: the number that stands for a process id, and the secret.
    pub cancel_pid: i32,
    /// Compared in constant time.
    pub cancel_key: CancelKey,
    phase: AtomicU8,
    since: AtomicU64,
    transaction_since: AtomicU64,
    request_time: AtomicU64,
    server: AtomicU64,
    orders: AtomicU32,
    notified: AtomicBool,
    rests: AtomicBool,
    /// What the orders given last were for: since when the client had been doing what it is told to end.
    ordered_for: AtomicU64,
    /// Kept for all orders of its life on a worker: one that an order took away could be missing for the next.
    waker: Mutex<Option<Waker>>,
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

/// What a new [`ClientEntry`] is made of.
#[derive(Debug)]
pub struct NewClient {
    /// See the fields of [`ClientEntry`].
    pub id: u64,
    /// Login name.
    pub user: String,
    /// Database asked for.
    pub database: String,
    /// The user of its pool.
    pub pool_user: String,
    /// Address.
    pub peer: Peer,
    /// Does it replicate?
    pub replication: Replication,
    /// Our side.
    pub local: Option<SocketAddr>,
    /// Version and cipher of TLS, or nothing.
    pub tls: String,
    /// Worker.
    pub worker: usize,
    /// The number in BackendKeyData.
    pub cancel_pid: i32,
    /// The secret in BackendKeyData.
    pub cancel_key: CancelKey,
    /// Microseconds after the epoch.
    pub connected: u64,
}

impl ClientEntry {
    /// A client that has just logged in.
    pub fn new(new: NewClient) -> Self {
        Self {
            id: new.id,
            user: new.user,
            database: new.database,
            pool_user: new.pool_user,
            peer: new.peer,
            replication: new.replication,
            local: new.local,
            tls: new.tls.into_boxed_str(),
            connected: new.connected,
            goal: AtomicUsize::new(new.worker),
            application_name: Mutex::default(),
            prepared_statements: AtomicU32::new(0),
            cancel_pid: new.cancel_pid,
            cancel_key: new.cancel_key,
            phase: AtomicU8::new(Phase::Idle as u8),
            since: AtomicU64::new(new.connected),
            transaction_since: AtomicU64::new(0),
            request_time: AtomicU64::new(new.connected),
            server: AtomicU64::new(0),
            orders: AtomicU32::new(0),
            notified: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            ordered_for: AtomicU64::new(0),
            waker: Mutex::default(),
        }
    }

    /// What it is doing.
    pub fn phase(&self) -> Phase {
        Phase::from_u8(self.phase.load(Ordering::Acquire))
    }

    /// Since when, in microseconds after the epoch.
    pub fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    /// When its last request began, in microseconds after the epoch.
    pub fn request_time(&self) -> u64 {
        self.request_time.load(Ordering::Relaxed)
    }

    /// When its transaction began; 0 outside of one.
    pub fn transaction_since(&self) -> u64 {
        self.transaction_since.load(Ordering::Relaxed)
    }

    /// The id of the server it is linked to; 0 for none.
    pub fn server(&self) -> u64 {
        self.server.load(Ordering::SeqCst)
    }

    /// Enters a phase. Called by its own task.
    #[inline]
    pub fn enter(&self, phase: Phase, now: u64) {
        // Whoever sees the phase sees its time.
        self.since.store(now, Ordering::Relaxed);
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// A request begins. Called by its own task.
    #[inline]
    pub fn request_begins(&self, now: u64) {
        self.request_time.store(now, Ordering::Relaxed);
    }

    /// A transaction begins (its time) or ends (0). Called by its own task.
    #[inline]
    pub fn set_transaction(&self, since: u64) {
        self.transaction_since.store(since, Ordering::Relaxed);
    }

    /// Links it to a server (its id), or to none (0). Called by its own task.
    #[inline]
    pub fn set_server(&self, id: u64) {
        self.server.store(id, Ordering::SeqCst);
    }

    /// The worker its task lives on, or is about to move to.
    pub fn goal(&self) -> usize {
        self.goal.load(Ordering::SeqCst)
    }

    /// Tells its task to move to this worker as soon as it has no server.
    pub fn move_to(&self, worker: usize) {
        self.goal.store(worker, Ordering::SeqCst);
        self.order(Order::Move);
    }

    /// Tells its task to do something.
    pub fn order(&self, order: Order) {
        self.orders.fetch_or(order as u32, Ordering::SeqCst);
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
    }

    /// Tells its task that a time is over that began at `since`. Void if the client is doing something else by then.
    pub fn order_end(&self, order: Order, since: u64) {
        self.ordered_for.store(since, Ordering::SeqCst);
        self.order(order);
    }

    /// The beginning of the time that the last [`order_end`](Self::order_end) was about.
    pub fn ordered_for(&self) -> u64 {
        self.ordered_for.load(Ordering::SeqCst)
    }

    /// Is this order among those not yet taken?
    #[inline]
    pub fn has_orders(&self) -> bool {
        self.orders.load(Ordering::Relaxed) != 0
    }

    /// Takes all orders but [`Order::Suspend`], which stays.
    pub fn take_orders(&self) -> Orders {
        Orders(
            self.orders
                .fetch_and(Order::Suspend as u32, Ordering::SeqCst),
        )
    }

    /// Gives back an order that can't be followed yet. Called by its own task, which goes on anyway.
    pub fn keep_order(&self, order: Order) {
        self.orders.fetch_or(order as u32, Ordering::SeqCst);
    }

    /// Begins [`Order::Suspend`]. What was said about the one before, perhaps too late, does not count.
    pub fn suspend(&self) {
        self.rests.store(false, Ordering::SeqCst);
        self.order(Order::Suspend);
    }

    /// Nothing of it is under way, and nothing will be before [`go_on`](Self::go_on). Called by its own task.
    pub fn rest(&self) {
        self.rests.store(true, Ordering::SeqCst);
    }

    /// Does it rest for SUSPEND?
    pub fn rests(&self) -> bool {
        self.rests.load(Ordering::SeqCst)
    }

    /// Ends [`Order::Suspend`].
    pub fn go_on(&self) {
        self.rests.store(false, Ordering::SeqCst);
        self.orders
            .fetch_and(!(Order::Suspend as u32), Ordering::SeqCst);
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
    }

    /// Where orders wake its task. Called by its own task before it first waits.
    pub fn register(&self, waker: &Waker) {
        *self.waker.lock() = Some(waker.clone());
    }

    /// Has it been told that it waits?
    pub fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// Marks that the client was told that it is queued; true the first time since
    /// [`clear_notified`](Self::clear_notified).
    pub fn notify_once(&self) -> bool {
        !self.notified.swap(true, Ordering::Relaxed)
    }

    /// A new wait begins.
    pub fn clear_notified(&self) {
        self.notified.store(false, Ordering::Relaxed);
    }
}

/// Orders taken from an entry.
#[derive(Debug, Clone, Copy)]
pub struct Orders(u32);

impl Orders {
    /// Is this one among them?
    pub fn has(self, order: Order) -> bool {
        self.0 & order as u32 != 0
    }
}

/// What a server is doing (SHOW SERVERS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerState {
    /// Being connected.
    New = 0,
    /// Free for use.
    Idle = 1,
    /// Lent to a client.
    Active = 2,
    /// Being reset or checked.
    Tested = 3,
    /// Free, but idle so long that it is checked before use.
    Used = 4,
    /// Not given out before a cancel request to it is through.
    BeingCanceled = 5,
}

/// A server connection, as everybody but its holder sees it.
#[derive(Debug)]
pub struct ServerEntry {
    /// From the counter that clients and servers share.
    pub id: u64,
    /// The login name on the server.
    pub user: String,
    /// The pool's database (the name clients use).
    pub database: String,
    /// The host name it was found by, or the path of its Unix socket.
    pub host: String,
    /// The server's address.
    pub peer: Peer,
    /// Our side of the connection.
    pub local: Option<SocketAddr>,
    /// Was it opened to replicate?
    pub replication: Replication,
    /// Version and cipher; empty for a plain connection.
    pub tls: Box<str>,
    /// Microseconds after the epoch.
    pub connected: u64,
    /// Process id of the PostgreSQL process, and the secret to cancel its query.
    pub cancel_pid: i32,
    /// See `cancel_pid`.
    pub cancel_key: CancelKey,
    /// How many statements are prepared on it.
    pub prepared_statements: AtomicU32,
    /// Statements asked for that it had.
    pub prepare_cache_hits: AtomicU64,
    /// Statements asked for that it had not.
    pub prepare_cache_misses: AtomicU64,
    /// It goes when it is released.
    pub close_needed: AtomicBool,
    state: AtomicU8,
    request_time: AtomicU64,
    client: AtomicU64,
    cancels: AtomicU32,
    cancels_done: tokio::sync::Notify,
}

/// What a new [`ServerEntry`] is made of.
#[derive(Debug)]
pub struct NewServer {
    /// See the fields of [`ServerEntry`].
    pub id: u64,
    /// Login name on the server.
    pub user: String,
    /// The pool's database.
    pub database: String,
    /// The host name it was found by, or the path of its Unix socket.
    pub host: String,
    /// The server's address.
    pub peer: Peer,
    /// Our side.
    pub local: Option<SocketAddr>,
    /// Was it opened to replicate?
    pub replication: Replication,
    /// Version and cipher of TLS, or nothing.
    pub tls: String,
    /// Microseconds after the epoch.
    pub connected: u64,
    /// From BackendKeyData.
    pub cancel_pid: i32,
    /// From BackendKeyData.
    pub cancel_key: CancelKey,
}

impl ServerEntry {
    /// A server that has just logged in.
    pub fn new(new: NewServer) -> Self {
        Self {
            id: new.id,
            user: new.user,
            database: new.database,
            host: new.host,
            peer: new.peer,
            tls: new.tls.into_boxed_str(),
            local: new.local,
            replication: new.replication,
            connected: new.connected,
            cancel_pid: new.cancel_pid,
            cancel_key: new.cancel_key,
            prepared_statements: AtomicU32::new(0),
            prepare_cache_hits: AtomicU64::new(0),
            prepare_cache_misses: AtomicU64::new(0),
            close_needed: AtomicBool::new(false),
            state: AtomicU8::new(ServerState::Idle as u8),
            request_time: AtomicU64::new(new.connected),
            client: AtomicU64::new(0),
            cancels: AtomicU32::new(0),
            cancels_done: tokio::sync::Notify::new(),
        }
    }

    /// What it is doing.
    pub fn state(&self) -> ServerState {
        match self.state.load(Ordering::Relaxed) {
            0 => ServerState::New,
            2 => ServerState::Active,
            3 => ServerState::Tested,
            4 => ServerState::Used,
            5 => ServerState::BeingCanceled,
            _ => ServerState::Idle,
        }
    }

    /// Sets what it is doing. Called by its holder.
    pub fn set_state(&self, state: ServerState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// When it was last given a request, in microseconds after the epoch.
    pub fn request_time(&self) -> u64 {
        self.request_time.load(Ordering::Relaxed)
    }

    /// A statement was asked for: did it have it? Called by its holder, one thread at a time.
    #[inline]
    pub fn count_statement(&self, hit: bool) {
        let counter = if hit {
            &self.prepare_cache_hits
        } else {
            &self.prepare_cache_misses
        };
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The id of the client it is lent to; 0 for none.
    pub fn client(&self) -> u64 {
        self.client.load(Ordering::SeqCst)
    }

    /// It is lent to a client.
    #[inline]
    pub fn link(&self, client: u64, now: u64) {
        self.client.store(client, Ordering::SeqCst);
        self.state
            .store(ServerState::Active as u8, Ordering::Relaxed);
        self.request_time.store(now, Ordering::Relaxed);
    }

    /// The client has no more say over it. True if it may be used again at once; false if a
    /// cancel request is still on its way to it, so that [`cancels_settled`](Self::cancels_settled) must be
    /// awaited first.
    #[inline]
    #[must_use]
    pub fn unlink(&self) -> bool {
        self.client.store(0, Ordering::SeqCst);
        self.state.store(ServerState::Idle as u8, Ordering::Relaxed);
        // The other half of this handshake is in `begin_cancel`: it counts itself in before it
        // looks who the client is, so one of the two always sees the other.
        self.cancels.load(Ordering::SeqCst) == 0
    }

    /// A cancel request of `client` is about to be sent. `None` if the server is not that client's (any
    /// more): then nothing may be sent. While the guard lives, the server is not given to
    /// anybody else.
    pub fn begin_cancel(self: &Arc<Self>, client: u64) -> Option<CancelGuard> {
        self.cancels.fetch_add(1, Ordering::SeqCst);
        let guard = CancelGuard {
            server: self.clone(),
        };
        (self.client() == client).then_some(guard)
    }

    /// Are cancel requests on their way?
    pub fn has_cancels(&self) -> bool {
        self.cancels.load(Ordering::SeqCst) != 0
    }

    /// Waits until no cancel request is on its way to the server.
    pub async fn cancels_settled(&self) {
        loop {
            let notified = self.cancels_done.notified();
            if !self.has_cancels() {
                return;
            }
            notified.await;
        }
    }
}

/// Keeps a server from being given to another client while a cancel request travels to it.
#[derive(Debug)]
pub struct CancelGuard {
    server: Arc<ServerEntry>,
}

impl CancelGuard {
    /// The server to be cancelled.
    pub fn server(&self) -> &ServerEntry {
        &self.server
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        if self.server.cancels.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.server.cancels_done.notify_waiters();
        }
    }
}

/// The live lists.
#[derive(Debug, Default)]
pub struct Registry {
    next_id: AtomicU64,
    /// What numbers in entries are relative to.
    pub epoch: Epoch,
    clients: DashMap<u64, Arc<ClientEntry>, ahash::RandomState>,
    /// By the number in the key and the first bytes of its secret: peers may leave us few numbers.
    by_cancel_key: DashMap<(i32, [u8; 2]), u64, ahash::RandomState>,
    servers: DashMap<u64, Arc<ServerEntry>, ahash::RandomState>,
}

impl Registry {
    /// The next id. Clients and servers share the counter (PgBouncer's `id` column).
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Microseconds after the epoch, now.
    pub fn now(&self) -> u64 {
        self.epoch.micros(Instant::now())
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
            let mut key: Box<[u8]> = (0..length).map(|_| rand::random()).collect();
            let pid = sign(rand::random::<i32>() & i32::MAX, &mut key);
            if pid == 0 {
                continue;
            }
            if let dashmap::Entry::Vacant(slot) = self.by_cancel_key.entry((pid, beginning(&key))) {
                slot.insert(id);
                return (pid, CancelKey(key));
            }
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
    pub fn enter_server(self: &Arc<Self>, entry: ServerEntry) -> ServerGuard {
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
