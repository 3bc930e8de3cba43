//! Where one process of ours stops to tell notifications, and its successor begins: both listen, and a token that the
//! successor sends stands at the same place in what either of them hears.
//!
//! ```text
//!   the one that runs  ─ x1 ── x2 ── token ── x3 ...    before the token: told here, and then the clients go over
//!   the successor      ─────── x2 ── token ── x3 ...    behind it: kept for them until they come
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::mailbox::{Item, Notification};
use super::{Hold, Listener, Mailbox, Name, State, Subscription, Unavailable, read_notification};
use crate::pool::Pool;
use crate::sql::quote::{put_identifier, put_literal};

/// So many notifications are kept for clients that are still to come. With more of them these are told of a gap.
const MOST: usize = 100_000;

/// What a successor is to know of a pool's listener.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CarriedListener {
    /// The pool's database.
    #[prost(string, tag = "1")]
    pub database: String,
    /// The user of its servers.
    #[prost(string, tag = "2")]
    pub user: String,
    /// What its clients listen to; nothing: the token is not waited for any more.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub channels: Vec<Vec<u8>>,
    /// The channel for the token, and the token.
    #[prost(string, tag = "4")]
    marker: String,
    #[prost(string, tag = "5")]
    token: String,
}

/// A listener on its way to a successor.
#[derive(Debug, Default)]
pub(super) enum Cut {
    /// It is not.
    #[default]
    None,
    /// Its last token is to come.
    Leaving(u64, Option<oneshot::Sender<()>>),
    /// It tells nothing any more.
    Left,
    /// Of a successor.
    Coming(Coming),
}

/// What a successor keeps.
pub(super) struct Coming {
    marker: String,
    token: String,
    covers: Vec<Name>,
    /// What came behind the token; `None`: that is still to come, or it was too much.
    behind: Option<Vec<Arc<Notification>>>,
    /// Those who came before the token.
    early: Vec<(Arc<Mailbox>, Vec<Name>)>,
}

impl fmt::Debug for Coming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Coming(..)")
    }
}

impl State {
    /// A notification came by the channel for tokens. Was it the last one?
    pub(super) fn leave_at(&mut self, number: u64) -> bool {
        let Cut::Leaving(last, done) = &mut self.cut else {
            return false;
        };
        if *last != number {
            return false;
        }
        // Nobody waits any more: then it was given up.
        let is_awaited = done.take().is_some_and(|done| done.send(()).is_ok());
        self.cut = if is_awaited { Cut::Left } else { Cut::None };
        true
    }

    /// Is nothing told any more?
    pub(super) fn has_left(&self) -> bool {
        matches!(self.cut, Cut::Left)
    }

    /// A notification came, which clients may want that are still to come. True: it was the token that these are
    /// separated by.
    pub(super) fn keep(&mut self, notification: &Arc<Notification>, body: &[u8]) -> bool {
        let Cut::Coming(coming) = &mut self.cut else {
            return false;
        };
        let is_token = read_notification(body).is_some_and(|(_, channel, payload)| {
            channel == coming.marker.as_bytes() && payload == coming.token.as_bytes()
        });
        if is_token {
            coming.behind = Some(Vec::new());
            for (mailbox, channels) in std::mem::take(&mut coming.early) {
                self.set(&mailbox, channels);
            }
            return true;
        }
        if let Some(behind) = &mut coming.behind {
            behind.push(notification.clone());
            if behind.len() > MOST {
                coming.behind = None;
                coming.covers.clear();
            }
        }
        false
    }
}

impl Listener {
    /// Begins to go over: what a successor is to know, and the token to wait for. `None`: nobody listens.
    pub fn carry(&self, pool: &Pool) -> Option<(CarriedListener, Last)> {
        let mut state = self.state.lock();
        let listened = state.channels.iter();
        let listened = listened.filter(|(_, channel)| !channel.subscribers.is_empty());
        let channels: Vec<_> = listened.map(|(name, _)| name.to_vec()).collect();
        if channels.is_empty() || state.server == 0 {
            return None;
        }
        state.next_token += 1;
        let (done, came) = oneshot::channel();
        let number = state.next_token;
        state.cut = Cut::Leaving(number, Some(done));
        let carried = CarriedListener {
            database: pool.database.clone(),
            user: pool.user.clone(),
            channels,
            marker: self.marker.clone(),
            token: number.to_string(),
        };
        Some((carried, Last(came)))
    }

    /// It goes on after all. Its clients may have missed something.
    pub fn stay(&self) {
        let mut state = self.state.lock();
        if !matches!(std::mem::take(&mut state.cut), Cut::Left) {
            return;
        }
        let subscribers = state
            .channels
            .values()
            .flat_map(|it| it.subscribers.values());
        let mut told: Vec<&Arc<Mailbox>> = subscribers.collect();
        told.sort_by_key(|mailbox| mailbox.client());
        told.dedup_by_key(|mailbox| mailbox.client());
        for mailbox in told {
            mailbox.put(Item::Lost);
        }
    }

    /// A client has come that listened to these in the process before. False: it may miss something.
    pub fn take_over(&self, subscription: &Subscription, channels: &[Name]) -> bool {
        let mut state = self.state.lock();
        let Cut::Coming(coming) = &mut state.cut else {
            return false;
        };
        if !channels.iter().all(|name| coming.covers.contains(name)) {
            return false;
        }
        let mailbox = subscription.mailbox.clone();
        let Some(behind) = &coming.behind else {
            coming.early.push((mailbox, channels.to_vec()));
            return true;
        };
        let missed: Vec<_> = behind.clone();
        state.set(&mailbox, channels.to_vec());
        for notification in missed {
            if mailbox.listens_to(notification.channel()) {
                mailbox.put(Item::Notification(notification));
            }
        }
        true
    }

    /// All have come. Those whose token did not are to be listened for by other means.
    pub fn end_coming(&self) -> Vec<(Arc<Mailbox>, Vec<Name>)> {
        let mut state = self.state.lock();
        match std::mem::take(&mut state.cut) {
            Cut::Coming(coming) => coming.early,
            other @ (Cut::None | Cut::Leaving(..) | Cut::Left) => {
                state.cut = other;
                Vec::new()
            }
        }
    }
}

/// The last token of a listener.
#[derive(Debug)]
pub struct Last(oneshot::Receiver<()>);

impl Last {
    /// Waits for it. False: it did not come, and does not count any more.
    pub async fn comes(self, limit: Duration) -> bool {
        timeout(limit, self.0).await.is_ok_and(|came| came.is_ok())
    }
}

impl CarriedListener {
    /// The same, not to be waited for any more.
    #[must_use]
    pub fn given_up(self) -> Self {
        Self {
            channels: Vec::new(),
            ..self
        }
    }
}

impl Pool {
    /// Listens to what the clients listen to that are about to come, and sends the token from which on it is kept for them. As long
    /// as the guard lives, it is listened to.
    pub async fn await_listeners(
        self: &Arc<Self>,
        carried: &CarriedListener,
    ) -> Result<Hold, Unavailable> {
        let names = carried.channels.iter().map(|name| name.as_slice().into());
        let mut channels: Vec<Name> = names.collect();
        let covers = channels.clone();
        channels.push(carried.marker.as_bytes().into());
        let hold = self.hold(&channels).await?;
        let mut state = self.listener.state.lock();
        state.say.extend_from_slice(b"NOTIFY ");
        put_identifier(&mut state.say, carried.marker.as_bytes());
        state.say.extend_from_slice(b", ");
        put_literal(&mut state.say, carried.token.as_bytes());
        state.say.push(b';');
        state.cut = Cut::Coming(Coming {
            marker: carried.marker.clone(),
            token: carried.token.clone(),
            covers,
            behind: None,
            early: Vec::new(),
        });
        drop(state);
        self.listener.nudge();
        Ok(hold)
    }

    /// All clients have come that were to.
    pub fn end_coming(self: &Arc<Self>) {
        for (mailbox, channels) in self.listener.end_coming() {
            self.listen_later_to(&mailbox, channels);
        }
    }
}
