//! A client's entry in the live list: who it is, what it is doing, and what it has been told to do.
//!
//! Its atomics are written by the client's own task, but for the orders, which are given by everybody.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use super::{CancelKey, Peer};
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
    /// There are notifications for it.
    Notified = 1 << 16,
    /// Drain: it has been silent for so long that it may be told to go. Void if something has come from it.
    LeaveSilent = 1 << 17,
    /// Drain: it is told to go when its next transaction ends, unless that was only to see whether the connection lives.
    LeaveNext = 1 << 18,
    /// Drain: it is told to go as soon as it is outside of a transaction.
    LeaveSoon = 1 << 19,
    /// Drain: its time is over, whatever it does.
    LeaveNow = 1 << 20,
    /// It goes to the process that takes this one's place, as soon as nothing of it is under way.
    GoOver = 1 << 21,
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
