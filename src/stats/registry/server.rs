//! A server's entry in the live list: where it is, what it is doing and for whom, and the cancel requests that are on
//! their way to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::{CancelKey, Peer};
use crate::protocol::startup::Replication;
use crate::stats::Errors;
use crate::stats::errors::Seen;

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

/// Beside the id of a client: it has the server no more.
const WAS: u64 = 1 << 63;

/// A server connection, as everybody but its holder sees it. On cache lines of its own: its holder may be on another worker
/// than those of its neighbours.
#[derive(Debug)]
#[repr(align(64))]
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
    /// Where errors that it sends are counted; in the live list, with everybody's.
    pub(super) errors: Arc<Errors>,
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
            errors: Arc::default(),
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

    /// It has sent an error that its client gets: SQLSTATE and primary message.
    pub fn count_error(&self, sqlstate: &[u8], message: &[u8]) {
        self.errors.note(Seen {
            sqlstate,
            fault: None,
            database: &self.database,
            user: &self.user,
            message,
        });
    }

    /// The id of the client it is lent to; 0 for none.
    pub fn client(&self) -> u64 {
        let client = self.client.load(Ordering::SeqCst);
        if client & WAS == 0 { client } else { 0 }
    }

    /// The id of the client it is lent to, or was last; 0: it has served nobody.
    pub fn last_client(&self) -> u64 {
        self.client.load(Ordering::SeqCst) & !WAS
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
        self.client.fetch_or(WAS, Ordering::SeqCst);
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
