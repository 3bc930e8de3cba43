//! One server connection of a pool that listens for all of its clients (`sql-listen`, `protocol-async`).
//!
//! A client runs its LISTEN on whichever server it has, and so PostgreSQL decides what is in force. What it listens to is
//! then handed over to this connection, and the server is free again. Nothing may be lost or told twice meanwhile:
//!
//! ```text
//!   the client's server   x1  x2 ──────── token ─ x3 ─▶ UNLISTEN *     before the token: told by the server
//!   the listener          ─── LISTEN x ── token ─ x3 ─▶ ...            behind it: told by the listener
//! ```
//!
//! PostgreSQL has one queue of notifications, in the order of the commits, and whoever listens gets what is for it in this
//! order. So a token, which the client's server sends to a channel of the pool's own when the listener listens already,
//! stands at the same place in both streams.
//!
//! The connection is opened on the first need, and closed a minute after nobody listens any more. It is none of the pool's
//! servers: it counts for `max_db_connections` and `max_user_connections`, but not for `default_pool_size`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::Pool;
use crate::sql::quote::put_identifier;
use crate::stats::registry::ClientEntry;

mod connection;
mod cut;
mod mailbox;

use cut::Cut;
pub use cut::{CarriedListener, Last};
use mailbox::{Item, Notification};
pub use mailbox::{Mailbox, Taken, put_notification, read_notification};

/// The name of a channel, as PostgreSQL has it: without quotes.
pub type Name = Box<[u8]>;

/// The listener of a pool: who listens to what, and the task that holds the connection.
#[derive(Debug)]
pub struct Listener {
    state: Mutex<State>,
    /// For the task: there is something to do.
    work: Notify,
    /// For those who wait: it was done, or has failed.
    progress: Notify,
    /// The channel that tokens come by.
    marker: String,
}

#[derive(Debug, Default)]
struct State {
    channels: HashMap<Name, Channel, ahash::RandomState>,
    tokens: HashMap<u64, Handover>,
    next_token: u64,
    /// There is a task.
    runs: bool,
    /// Somebody was entered who may have missed something.
    missed: bool,
    /// How often a connection could not be made or was lost, and whether the last try was such.
    failures: u64,
    is_down: bool,
    /// The connection's place in the live list of servers; 0: there is none.
    server: u64,
    /// Does it go over to another process, or come from one?
    cut: Cut,
    /// To be said once, with what is due next.
    say: Vec<u8>,
}

#[derive(Debug, Default)]
struct Channel {
    subscribers: HashMap<u64, Arc<Mailbox>, ahash::RandomState>,
    /// So many hand-overs rely on it.
    holds: usize,
    /// PostgreSQL has confirmed it.
    listening: bool,
    received: u64,
    delivered: u64,
    lost: u64,
}

impl Channel {
    fn is_wanted(&self) -> bool {
        self.holds > 0 || !self.subscribers.is_empty()
    }
}

/// A client's set of channels that will be another one where its token stands.
#[derive(Debug)]
struct Handover {
    mailbox: Arc<Mailbox>,
    channels: Vec<Name>,
    done: oneshot::Sender<()>,
}

/// The listener can't be had now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no connection that listens")]
pub struct Unavailable;

/// A row of SHOW LISTENERS.
#[derive(Debug, Clone)]
pub struct ChannelInfo {
    /// The channel.
    pub channel: Name,
    /// How many clients listen.
    pub clients: usize,
    /// Notifications that came from PostgreSQL.
    pub received: u64,
    /// The same, times the clients that each was for.
    pub delivered: u64,
    /// How often the connection was lost with this channel.
    pub lost: u64,
    /// The id of the listening server; 0: it is not connected.
    pub server: u64,
}

impl Default for Listener {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            work: Notify::new(),
            progress: Notify::new(),
            marker: format!("pgferry_{:016x}", rand::rng().next_u64()),
        }
    }
}

/// Keeps channels listened to, whoever leaves.
#[derive(Debug)]
pub struct Hold {
    listener: Arc<Listener>,
    channels: Vec<Name>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.listener.state.lock();
        for name in &self.channels {
            if let Some(channel) = state.channels.get_mut(name) {
                channel.holds = channel.holds.saturating_sub(1);
            }
        }
        drop(state);
        self.listener.work.notify_one();
    }
}

/// A token that is to come.
#[derive(Debug)]
pub struct Token {
    number: u64,
    came: oneshot::Receiver<()>,
}

impl Token {
    /// The payload of its notification.
    pub fn payload(&self) -> String {
        self.number.to_string()
    }
}

/// A client's place at a listener; dropping it ends all that it listens to.
#[derive(Debug)]
pub struct Subscription {
    listener: Arc<Listener>,
    mailbox: Arc<Mailbox>,
}

impl Subscription {
    /// What comes for the client.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// From the token on it listens to these.
    pub fn expect(&self, channels: Vec<Name>) -> Token {
        let (done, came) = oneshot::channel();
        let mut state = self.listener.state.lock();
        state.next_token += 1;
        let number = state.next_token;
        let mailbox = self.mailbox.clone();
        state.tokens.insert(
            number,
            Handover {
                mailbox,
                channels,
                done,
            },
        );
        Token { number, came }
    }

    /// Waits until the token has come to the listener. An error: it won't count any more.
    pub async fn changed(&self, mut token: Token, limit: Duration) -> Result<(), Unavailable> {
        if let Ok(came) = timeout(limit, &mut token.came).await {
            return came.map_err(|_| Unavailable);
        }
        self.listener.state.lock().tokens.remove(&token.number);
        // It may have come this very moment.
        token.came.try_recv().map_err(|_| Unavailable)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.listener.state.lock();
        state
            .tokens
            .retain(|_, handover| !Arc::ptr_eq(&handover.mailbox, &self.mailbox));
        state.set(&self.mailbox, Vec::new());
        drop(state);
        self.listener.work.notify_one();
    }
}

impl State {
    /// From now on the mailbox gets what comes on these channels.
    fn set(&mut self, mailbox: &Arc<Mailbox>, channels: Vec<Name>) {
        let id = mailbox.client();
        for name in &channels {
            let channel = self.channels.entry(name.clone()).or_default();
            channel.subscribers.insert(id, mailbox.clone());
        }
        for gone in mailbox.listen(channels) {
            if let Some(channel) = self.channels.get_mut(&gone) {
                channel.subscribers.remove(&id);
            }
        }
    }

    /// The LISTEN and UNLISTEN that are due, as one text; empty: none.
    fn due(&mut self) -> Vec<u8> {
        let mut sql = Vec::new();
        self.channels.retain(|name, channel| {
            let wanted = channel.is_wanted();
            if wanted != channel.listening {
                sql.extend_from_slice(if wanted { b"LISTEN " } else { b"UNLISTEN " });
                put_identifier(&mut sql, name);
                sql.push(b';');
            }
            wanted
        });
        sql.append(&mut self.say);
        sql
    }

    /// What is listened to.
    fn listening(&self) -> Vec<Name> {
        let those = self.channels.iter().filter(|(_, it)| it.listening);
        those.map(|(name, _)| name.clone()).collect()
    }

    /// The connection is gone.
    fn lose(&mut self) {
        self.failures += 1;
        self.is_down = true;
        self.server = 0;
        self.tokens.clear();
        for channel in self.channels.values_mut() {
            channel.listening = false;
        }
    }
}

impl Listener {
    /// The channel of the tokens.
    pub fn marker(&self) -> &str {
        &self.marker
    }

    /// A client that listens to nothing yet.
    pub fn subscribe(self: &Arc<Self>, client: Arc<ClientEntry>) -> Subscription {
        Subscription {
            listener: self.clone(),
            mailbox: Arc::new(Mailbox::new(client)),
        }
    }

    /// The pool is not what it was: the task is to look.
    pub(super) fn nudge(&self) {
        self.work.notify_one();
    }

    /// The channels, in no order.
    pub fn channels(&self) -> Vec<ChannelInfo> {
        let state = self.state.lock();
        let info = |(name, channel): (&Name, &Channel)| ChannelInfo {
            channel: name.clone(),
            clients: channel.subscribers.len(),
            received: channel.received,
            delivered: channel.delivered,
            lost: channel.lost,
            server: state.server,
        };
        state.channels.iter().map(info).collect()
    }

    /// A notification came from PostgreSQL.
    fn tell(&self, pool: &Pool, body: &[u8]) {
        let Some((pid, channel, payload)) = read_notification(body) else {
            return;
        };
        let mut state = self.state.lock();
        if channel == self.marker.as_bytes() {
            let number = std::str::from_utf8(payload)
                .ok()
                .and_then(|it| it.parse().ok());
            if number.is_some_and(|number| state.leave_at(number)) {
                return;
            }
            let handover = number.and_then(|number: u64| state.tokens.remove(&number));
            if let Some(handover) = handover {
                state.set(&handover.mailbox, handover.channels);
                let _ = handover.done.send(());
            }
            return;
        }
        if state.has_left() {
            return;
        }
        let notification = Arc::new(Notification::new(pool.sender(pid), body));
        if state.keep(&notification, body) {
            return;
        }
        let Some(channel) = state.channels.get_mut(channel) else {
            return;
        };
        channel.received += 1;
        channel.delivered += channel.subscribers.len() as u64;
        for mailbox in channel.subscribers.values() {
            mailbox.put(Item::Notification(notification.clone()));
        }
    }

    /// What was asked for in the last text is done.
    fn confirm(&self, is_new: bool) {
        let mut state = self.state.lock();
        let mut told: HashMap<u64, Arc<Mailbox>> = HashMap::new();
        for channel in state.channels.values_mut() {
            if is_new && !channel.subscribers.is_empty() {
                channel.lost += 1;
                told.extend(channel.subscribers.iter().map(|(id, it)| (*id, it.clone())));
            }
        }
        for mailbox in told.values() {
            mailbox.put(Item::Lost);
        }
    }
}

impl Pool {
    /// The connection that listens for its clients.
    pub fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    /// Has these channels listened to, and waits until they are: what is committed from then on will come.
    pub async fn hold(self: &Arc<Self>, channels: &[Name]) -> Result<Hold, Unavailable> {
        let listener = &self.listener;
        let (hold, failures, begins) = {
            let mut state = listener.state.lock();
            for name in channels {
                state.channels.entry(name.clone()).or_default().holds += 1;
            }
            let hold = Hold {
                listener: listener.clone(),
                channels: channels.to_vec(),
            };
            (
                hold,
                state.failures,
                !std::mem::replace(&mut state.runs, true),
            )
        };
        // While it is being repaired nobody waits for it.
        if begins {
            self.begin_to_listen();
        }
        listener.work.notify_one();
        loop {
            let progress = listener.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            {
                let state = listener.state.lock();
                let is_there =
                    |name: &Name| state.channels.get(name).is_some_and(|it| it.listening);
                if state.server != 0 && channels.iter().all(is_there) {
                    drop(state);
                    return Ok(hold);
                }
                if state.failures != failures || (state.is_down && !begins) {
                    drop(state);
                    return Err(Unavailable);
                }
            }
            progress.await;
        }
    }

    fn begin_to_listen(self: &Arc<Self>) {
        let worker = self.worker_of(0);
        self.parts
            .workers
            .spawn_on(worker, connection::run(self.clone(), worker));
    }

    /// From now on the client listens to these, by a connection that is still to come: it may miss something, and is told so
    /// then.
    pub fn listen_later(self: &Arc<Self>, subscription: &Subscription, channels: Vec<Name>) {
        self.listen_later_to(&subscription.mailbox, channels);
    }

    fn listen_later_to(self: &Arc<Self>, mailbox: &Arc<Mailbox>, channels: Vec<Name>) {
        let begins = {
            let mut state = self.listener.state.lock();
            state.set(mailbox, channels);
            state.missed = true;
            !std::mem::replace(&mut state.runs, true)
        };
        if begins {
            self.begin_to_listen();
        }
        self.listener.work.notify_one();
    }

    /// Whose notification it is that the server process `pid` has sent: the id of the client that the server is or was
    /// last lent to, as far as can be told now, and the number this client has been given for its process id.
    pub fn sender(&self, pid: i32) -> (u64, i32) {
        let registry = &self.parts.registry;
        let server =
            registry.find_server(|it| it.cancel_pid == pid && it.database == self.database);
        let client = server.map_or(0, |server| server.last_client());
        let known = registry.client(client).map(|client| client.cancel_pid);
        (client, known.unwrap_or(pid))
    }
}
