//! LISTEN in transaction pooling: what a client listens to is handed over to the one connection of its pool that listens
//! for all ([`listener`](crate::pool::listener)), and so it does not have to keep a server.
//!
//! PostgreSQL is the judge of what is in force. At the end of a transaction a look finds what the server listens to, and
//! that is added. Before a text with UNLISTEN the server of a client that listens already is made to listen to all of its
//! channels, in the client's own transaction; what is left of them at its end is the set from then on. Whether this was
//! committed, or undone by a savepoint, is told by a setting that stands or falls with it ([`MARK`]).
//!
//! An UNLISTEN goes unnoticed in a function that is called, in a text of more than 64 kB, and behind a ROLLBACK in the same
//! text. DISCARD ALL is known by its command tag.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use super::error::Ending;
use super::relay::{Linked, Outgoing, Relay};
use super::session::{Session, State};
use super::{Error, prepare};
use crate::config::PoolMode;
use crate::pool::listener::{
    Name, Subscription, Taken, Unavailable, put_notification, read_notification,
};
use crate::pool::{Pool, Pooled};
use crate::protocol::backend::{self, ErrorMessage, TxStatus};
use crate::protocol::frame::{Frame, cut};
use crate::protocol::frontend::{self, Parse, Target};
use crate::server::look::{MARK, Seen};
use crate::server::pipeline::{Expect, Request};
use crate::server::{self, Server};
use crate::sql::lexer::begins_with;
use crate::sql::quote::{put_identifier, put_literal};
use crate::sql::touches::{Found, Touches};
use crate::stats::registry::ClientEntry;

/// How long a client's end of a transaction may wait for the listener; then it keeps its server.
const LIMIT: Duration = Duration::from_secs(5);

/// So many bytes of notifications are sent at once.
const PIECE: usize = 64 * 1024;

/// What a client has whose channels are at the listener.
#[derive(Debug)]
pub struct Channels {
    subscription: Subscription,
    /// The client said DISCARD ALL since the last look.
    was_discarded: bool,
    /// The value of [`MARK`]; another one after each look.
    mark: Vec<u8>,
    looks: u64,
}

/// What a successor of this process is to know of a client that listens.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Carried {
    #[prost(bytes = "vec", repeated, tag = "1")]
    names: Vec<Vec<u8>>,
    #[prost(bool, tag = "2")]
    was_discarded: bool,
    #[prost(bytes = "vec", tag = "3")]
    mark: Vec<u8>,
}

impl Channels {
    fn new(subscription: Subscription) -> Self {
        let mut channels = Self {
            subscription,
            was_discarded: false,
            mark: Vec::new(),
            looks: 0,
        };
        channels.looked();
        channels
    }

    /// Of a client that comes from the process before this one. If it may miss something, it is told so.
    pub fn taken_over(pool: &Arc<Pool>, client: &Arc<ClientEntry>, carried: Carried) -> Self {
        let names = carried.names.into_iter().map(Vec::into_boxed_slice);
        let names: Vec<Name> = names.collect();
        let mut channels = Self::new(pool.listener().subscribe(client.clone()));
        channels.was_discarded = carried.was_discarded;
        channels.mark = carried.mark;
        if !pool.listener().take_over(&channels.subscription, &names) {
            pool.listen_later(&channels.subscription, names);
        }
        channels
    }

    /// What a successor of this process is to know.
    pub fn carry(&self) -> Carried {
        let names = self.subscription.mailbox().channels().into_iter();
        Carried {
            names: names.map(<[u8]>::into_vec).collect(),
            was_discarded: self.was_discarded,
            mark: self.mark.clone(),
        }
    }

    /// Adds what the client has not been told yet.
    pub fn put_untold(&self, out: &mut Vec<u8>) {
        while self.subscription.mailbox().take(out, PIECE) == Taken::Some {}
    }

    /// DISCARD ALL was done.
    pub fn discarded(&mut self) {
        self.was_discarded = true;
    }

    /// What was done up to now is known.
    fn looked(&mut self) {
        self.looks += 1;
        self.was_discarded = false;
        let client = self.subscription.mailbox().client();
        self.mark = format!("{client}.{}", self.looks).into_bytes();
    }

    /// Has a server listen to all of the client's channels, if it has not done that yet.
    fn again(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let setting = String::from_utf8_lossy(MARK).into_owned();
        let mark = String::from_utf8_lossy(&self.mark).into_owned();
        body.extend_from_slice(
            format!(
                "BEGIN IF NOT coalesce(pg_catalog.current_setting('{setting}', true) \
                 OPERATOR(pg_catalog.=) '{mark}', false) \
                 THEN PERFORM pg_catalog.set_config('{setting}', '{mark}', false);"
            )
            .as_bytes(),
        );
        for name in self.subscription.mailbox().channels() {
            body.extend_from_slice(b" LISTEN ");
            put_identifier(&mut body, &name);
            body.push(b';');
        }
        body.extend_from_slice(b" END IF; END");
        let mut sql = b"DO ".to_vec();
        put_literal(&mut sql, &body);
        sql
    }
}

/// How a text is sent that may change what the client listens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Query.
    Query,
    /// Bind.
    Bind,
}

impl Relay {
    /// The settings that a look has to ask for besides the client's own.
    pub(super) fn mark(&self) -> Option<Box<[u8]>> {
        self.channels.as_ref().map(|_| MARK.into())
    }

    /// May this text end what the client listens to? Then its server must listen to that first. (What it begins to listen
    /// to is simply added.)
    #[inline]
    pub(super) fn may_unlisten(&self, found: Option<&Found>, sql: &[u8]) -> bool {
        self.channels.is_some() && found.is_some_and(|found| ends_listening(found, sql))
    }

    /// Has the server listen to the client's channels before it gets a text that may end that.
    #[cold]
    pub(super) fn listen_again(&mut self, linked: &mut Linked<'_>, by: By, out: &mut Outgoing<'_>) {
        let Some(channels) = &self.channels else {
            return;
        };
        if linked.server.status == TxStatus::Failed {
            // It would be refused, and so will be what follows.
            return;
        }
        let text = channels.again();
        self.run_ahead(linked, by, &text, out);
    }

    /// Has the server run a statement of ours ahead of the client's, whose answer the client does not get.
    #[cold]
    pub(super) fn run_ahead(
        &self,
        linked: &mut Linked<'_>,
        by: By,
        sql: &[u8],
        out: &mut Outgoing<'_>,
    ) {
        let ends_alone = by == By::Query && !linked.server.pipeline.needs_sync();
        let definition = [sql, &[0, 0, 0]].concat();
        let name = format!("{}ahead", self.registry.prefix()).into_bytes();
        let messages = out.insert();
        // One may be left of a text that failed.
        frontend::close(messages, Target::Statement, &name);
        frontend::parse(messages, &name, &definition);
        frontend::bind(messages, &name, &name, &[0, 0, 0, 0, 0, 0]);
        frontend::execute(messages, &name, 0);
        frontend::close(messages, Target::Portal, &name);
        frontend::close(messages, Target::Statement, &name);
        for request in [
            Request::Close,
            Request::Parse,
            Request::Bind,
            Request::Execute,
            Request::Close,
            Request::Close,
        ] {
            linked.owes(Expect::Swallow(request), None);
        }
        if ends_alone {
            frontend::sync(out.insert());
            linked
                .server
                .pipeline
                .push_sync(Expect::Swallow(Request::Sync));
        }
    }

    /// The same, of a statement that is being bound.
    #[cold]
    pub(super) fn listen_again_for(
        &mut self,
        linked: &mut Linked<'_>,
        name: &[u8],
        out: &mut Outgoing<'_>,
    ) {
        let (found, definition) = if name.is_empty() {
            let text = self.statements.unnamed().map(|(_, text)| text);
            text.map_or((None, &b""[..]), |it| (it.found.as_deref(), &it.definition))
        } else {
            let named = self.statements.get(name);
            named.map_or((None, &b""[..]), |it| {
                (it.found.as_deref(), it.statement.0.definition())
            })
        };
        if self.may_unlisten(found, Parse::text(definition)) {
            self.listen_again(linked, By::Bind, out);
        }
    }

    /// The client's server has a notification. Does it go on as it is?
    #[cold]
    pub(super) fn hear(
        &self,
        linked: &Linked<'_>,
        frame: &Frame<'_>,
        out: &mut Outgoing<'_>,
    ) -> bool {
        let Some((pid, channel, _)) = read_notification(frame.body()) else {
            return true;
        };
        if let Some(channels) = &self.channels
            && channels.subscription.mailbox().listens_to(channel)
        {
            // The listener tells it.
            return false;
        }
        let is_followed =
            self.settings.mode != PoolMode::Session && self.settings.follows_sessions();
        if pid != linked.entry.cancel_pid || !is_followed {
            return true;
        }
        // Its own. It knows itself by another number.
        let text = frame.body().get(4..).unwrap_or_default();
        put_notification(out.insert(), self.cancel_pid, text);
        false
    }
}

/// Does the text have an UNLISTEN in it?
fn ends_listening(found: &Found, sql: &[u8]) -> bool {
    const WORD: &[u8] = b"unlisten";
    found.touches.contains(Touches::CHANNELS)
        && memchr::memchr2_iter(b'u', b'U', sql)
            .any(|at| sql.get(at..).is_some_and(|rest| begins_with(rest, WORD)))
}

impl Session {
    /// There are notifications for the client: they are told when it is outside of a transaction, as PostgreSQL does.
    pub(super) fn deliver(
        &mut self,
        cx: &mut TaskContext<'_>,
        is_suspended: bool,
    ) -> Option<Ending> {
        let may_be_told = !is_suspended
            && match &self.state {
                State::Idle => true,
                State::Linked(pooled) => {
                    pooled.server.state.status == TxStatus::Idle
                        && pooled.server.state.pipeline.is_idle()
                        && !self.relay.is_mid_message()
                }
                State::Waiting | State::Preparing(_) | State::Looking(_) => false,
            };
        let later = |entry: &ClientEntry| entry.keep_order(crate::stats::Order::Notified);
        let Some(channels) = &self.relay.channels else {
            // A look has them.
            if matches!(self.state, State::Looking(_)) {
                later(&self.entry);
            }
            return None;
        };
        let mailbox = channels.subscription.mailbox();
        let mut out = Vec::new();
        loop {
            if mailbox.has_too_much() {
                if let Some(counters) = self.pool.counters(self.home.worker()) {
                    counters.slow_listeners.add(1);
                }
                return Some(Error::TooManyNotifications.into());
            }
            if !may_be_told {
                later(&self.entry);
                return None;
            }
            if self.connection.has_backlog() {
                match self.connection.poll_flush(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => return Some(Ending::Vanished),
                    Poll::Pending => {
                        later(&self.entry);
                        return None;
                    }
                }
            }
            out.clear();
            let taken = mailbox.take(&mut out, PIECE);
            if self.connection.send(cx, &out).is_err() {
                return Some(Ending::Vanished);
            }
            if let Some(counters) = self.pool.counters(self.home.worker()) {
                counters.sent.add(out.len() as u64);
            }
            if taken == Taken::All {
                return None;
            }
        }
    }
}

/// What has become of a client's channels at the end of a transaction.
#[derive(Debug, Default)]
pub struct Settled {
    /// What it has at the listener.
    pub channels: Option<Box<Channels>>,
    /// Messages for it that came meanwhile.
    pub told: Vec<u8>,
}

/// The end of a transaction, and a look at the server: what the client listens to is handed over to the listener. If that
/// can't be, `seen` goes on to say that the client needs its server.
pub async fn settle(
    pooled: &mut Pooled,
    seen: &mut Seen,
    mut channels: Option<Box<Channels>>,
    client: &Arc<ClientEntry>,
) -> Result<Settled, server::Error> {
    let had = channels
        .as_ref()
        .map_or(Vec::new(), |it| it.subscription.mailbox().channels());
    let listens = std::mem::take(&mut seen.channels);
    let (is_marked, was_discarded) = channels.as_ref().map_or((false, false), |it| {
        (seen.mark.as_deref() == Some(&*it.mark), it.was_discarded)
    });
    let mut wanted = listens.clone();
    if !is_marked && !was_discarded {
        wanted.extend(had.iter().filter(|name| !listens.contains(name)).cloned());
    }
    if let Some(channels) = &mut channels {
        channels.looked();
    }
    let is_same = wanted.len() == had.len() && wanted.iter().all(|name| had.contains(name));
    let mut settled = Settled::default();
    let mut result = Ok(());
    if wanted.is_empty() {
        channels = None;
    } else if !is_same {
        result = hand_over(pooled, wanted.clone(), &mut channels, client).await;
    }
    if matches!(result, Err(Failure::Unavailable)) && pooled.pool().is_paused() {
        // PAUSE waits for this server.
        let pool = pooled.pool().clone();
        let subscribe = || Box::new(Channels::new(pool.listener().subscribe(client.clone())));
        let channels = channels.get_or_insert_with(subscribe);
        pool.listen_later(&channels.subscription, wanted);
        result = Ok(());
    }
    match result {
        Ok(()) => {
            put_heard(&mut settled.told, &had, (pooled, client));
            if !listens.is_empty() || is_marked {
                let mut sql = b"UNLISTEN *".to_vec();
                if is_marked {
                    sql.extend_from_slice(b"; RESET ");
                    sql.extend_from_slice(MARK);
                }
                prepare::run(pooled, &sql).await?;
            }
            // The listener tells what came since.
            pooled.server.state.heard.clear();
        }
        Err(Failure::Unavailable) => {
            tracing::warn!(client = client.id, "what it listens to can't be shared");
            let sql = format!("UNLISTEN {}", pooled.pool().listener().marker());
            prepare::run(pooled, sql.as_bytes()).await?;
            pooled.server.hear()?;
            put_heard(&mut settled.told, &had, (pooled, client));
            if !had.is_empty() && (is_marked || was_discarded) {
                // The server has all of its channels, and the listener may have lost something.
                channels = None;
                let text = "the connection that listens for this client was lost, \
                            notifications may have been missed";
                let warning = ErrorMessage::new("WARNING", "01000", text);
                backend::notice_response(&mut settled.told, &warning);
            }
            settled.channels = channels;
            return Ok(settled);
        }
        Err(Failure::Server(error)) => return Err(error),
    }
    seen.holds = seen.holds.without(Touches::CHANNELS);
    settled.channels = channels;
    Ok(settled)
}

/// Why channels were not handed over.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("there is no listener")]
    Unavailable,
    #[error("{0}")]
    Server(server::Error),
}

impl From<Unavailable> for Failure {
    fn from(_: Unavailable) -> Self {
        Self::Unavailable
    }
}

impl From<server::Error> for Failure {
    fn from(error: server::Error) -> Self {
        match error {
            server::Error::Query(_) => Self::Unavailable,
            error => Self::Server(error),
        }
    }
}

/// Has the listener listen, and tell the client from the token on. What the server heard ends with the token then.
async fn hand_over(
    pooled: &mut Pooled,
    wanted: Vec<Name>,
    channels: &mut Option<Box<Channels>>,
    client: &Arc<ClientEntry>,
) -> Result<(), Failure> {
    let pool = pooled.pool().clone();
    // Held until the client is entered.
    let _hold = tokio::time::timeout(LIMIT, pool.hold(&wanted))
        .await
        .map_err(|_| Unavailable)??;
    let listener = pool.listener();
    let mut fresh = None;
    let subscription = match channels {
        Some(channels) => &channels.subscription,
        None => {
            &fresh
                .insert(Channels::new(listener.subscribe(client.clone())))
                .subscription
        }
    };
    let token = subscription.expect(wanted);
    let (marker, payload) = (listener.marker(), token.payload());
    prepare::run(
        pooled,
        format!("LISTEN {marker}; NOTIFY {marker}, '{payload}'").as_bytes(),
    )
    .await?;
    let hears = await_token(&mut pooled.server, (marker, &payload));
    match tokio::time::timeout(LIMIT, hears).await {
        Ok(result) => result?,
        Err(_) => return Err(Failure::Unavailable),
    }
    subscription.changed(token, LIMIT).await?;
    if let Some(fresh) = fresh {
        *channels = Some(Box::new(fresh));
    }
    Ok(())
}

/// Reads until the token is there, and drops what stands behind it.
async fn await_token(server: &mut Server, token: (&str, &str)) -> Result<(), server::Error> {
    let is_token = |body: &[u8]| {
        read_notification(body).is_some_and(|(_, channel, payload)| {
            channel == token.0.as_bytes() && payload == token.1.as_bytes()
        })
    };
    loop {
        let heard = &mut server.state.heard;
        let place = bodies(heard).find(|(_, body)| is_token(body));
        if let Some((at, _)) = place {
            heard.truncate(at);
            return Ok(());
        }
        server.hear_next().await?;
    }
}

/// The bodies of messages that stand one behind the other, and where each message begins.
fn bodies(mut messages: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let length = messages.len();
    std::iter::from_fn(move || {
        let at = length - messages.len();
        let frame = cut(messages, usize::MAX).ok()??;
        messages = messages.get(frame.len..)?;
        Some((at, frame.body()))
    })
}

/// Takes what the server has heard and appends it, but for that of channels the client `had` at the listener, which tells it.
fn put_heard(out: &mut Vec<u8>, had: &[Name], (pooled, client): (&mut Pooled, &ClientEntry)) {
    let heard = std::mem::take(&mut pooled.server.state.heard);
    let marker = pooled.pool().listener().marker().as_bytes();
    for (_, body) in bodies(&heard) {
        let Some((pid, channel, _)) = read_notification(body) else {
            continue;
        };
        if channel == marker || had.iter().any(|name| **name == *channel) {
            continue;
        }
        let pid = if pid == pooled.server.entry.cancel_pid {
            client.cancel_pid
        } else {
            pooled.pool().sender(pid).1
        };
        put_notification(out, pid, body.get(4..).unwrap_or_default());
    }
}
