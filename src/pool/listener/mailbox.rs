//! What a listening client has not been told yet: a queue between the listener's task and the client's.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Name;
use crate::protocol::backend::{self, ErrorMessage, tag};
use crate::stats::Order;
use crate::stats::registry::ClientEntry;

/// A client that has so many messages waiting is sent away. They are shared by all that they are for.
const MOST: usize = 100_000;

/// The same in bytes.
const MOST_BYTES: usize = 16 << 20;

/// A notification, as all who listen get it but for the process id.
#[derive(Debug)]
pub struct Notification {
    /// The client that has sent it; 0: unknown.
    sender: u64,
    /// The process id it is told with.
    pid: i32,
    /// The channel and the payload, with their zeros.
    text: Box<[u8]>,
}

impl Notification {
    /// From the body of a `NotificationResponse`.
    pub fn new((sender, pid): (u64, i32), body: &[u8]) -> Self {
        Self {
            sender,
            pid,
            text: body.get(4..).unwrap_or_default().into(),
        }
    }

    fn channel(&self) -> &[u8] {
        let end = memchr::memchr(0, &self.text).unwrap_or_default();
        self.text.get(..end).unwrap_or_default()
    }
}

/// The process id, the channel and the payload of a `NotificationResponse` (`protocol-message-formats`).
pub fn read_notification(body: &[u8]) -> Option<(i32, &[u8], &[u8])> {
    let (pid, text) = body.split_first_chunk()?;
    let mut parts = text.split(|&byte| byte == 0);
    Some((i32::from_be_bytes(*pid), parts.next()?, parts.next()?))
}

/// Appends a `NotificationResponse`; `text` is its channel and payload, with their zeros.
pub fn put_notification(out: &mut Vec<u8>, pid: i32, text: &[u8]) {
    out.push(tag::NOTIFICATION_RESPONSE);
    let length = u32::try_from(text.len() + 8).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&pid.to_be_bytes());
    out.extend_from_slice(text);
}

/// Something to be told.
#[derive(Debug, Clone)]
pub(super) enum Item {
    Notification(Arc<Notification>),
    /// The connection that listens was lost and is back.
    Lost,
}

/// What was taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// All there was.
    All,
    /// As much as was wanted; there is more.
    Some,
}

#[derive(Debug, Default)]
struct Held {
    items: VecDeque<Item>,
    bytes: usize,
    too_much: bool,
    channels: Vec<Name>,
}

/// What comes for one client, and what it listens to.
#[derive(Debug)]
pub struct Mailbox {
    client: Arc<ClientEntry>,
    held: Mutex<Held>,
}

impl Mailbox {
    pub(super) fn new(client: Arc<ClientEntry>) -> Self {
        Self {
            client,
            held: Mutex::default(),
        }
    }

    /// The client's id.
    pub fn client(&self) -> u64 {
        self.client.id
    }

    /// What the client listens to.
    pub fn channels(&self) -> Vec<Name> {
        self.held.lock().channels.clone()
    }

    /// Does the client listen to this?
    pub fn listens_to(&self, channel: &[u8]) -> bool {
        self.held.lock().channels.iter().any(|it| **it == *channel)
    }

    /// These are its channels now. Says which are not any more; what waits of those is not told.
    pub(super) fn listen(&self, channels: Vec<Name>) -> Vec<Name> {
        let mut held = self.held.lock();
        let mut gone = std::mem::take(&mut held.channels);
        gone.retain(|name| !channels.contains(name));
        held.channels = channels;
        if !gone.is_empty() {
            held.items.retain(|item| match item {
                Item::Notification(it) => !gone.iter().any(|name| **name == *it.channel()),
                Item::Lost => true,
            });
            held.bytes = held.items.iter().map(size).sum();
        }
        gone
    }

    pub(super) fn put(&self, item: Item) {
        let mut held = self.held.lock();
        if held.too_much {
            return;
        }
        held.bytes += size(&item);
        held.items.push_back(item);
        if held.items.len() > MOST || held.bytes > MOST_BYTES {
            held.too_much = true;
            held.items = VecDeque::new();
        }
        let is_news = held.items.len() < 2;
        drop(held);
        if is_news {
            self.client.order(Order::Notified);
        }
    }

    /// Did more come than is kept for one client?
    pub fn has_too_much(&self) -> bool {
        self.held.lock().too_much
    }

    /// Takes messages until there are so many bytes of them.
    pub fn take(&self, out: &mut Vec<u8>, wanted: usize) -> Taken {
        let mut held = self.held.lock();
        while let Some(item) = held.items.pop_front() {
            held.bytes -= size(&item);
            match item {
                Item::Notification(it) => {
                    let is_own = it.sender == self.client.id;
                    let pid = if is_own {
                        self.client.cancel_pid
                    } else {
                        it.pid
                    };
                    put_notification(out, pid, &it.text);
                }
                Item::Lost => {
                    let text = "the connection that listens for this client was lost, \
                                notifications may have been missed";
                    backend::notice_response(out, &ErrorMessage::new("WARNING", "01000", text));
                }
            }
            if out.len() >= wanted && !held.items.is_empty() {
                return Taken::Some;
            }
        }
        held.items = VecDeque::new();
        Taken::All
    }
}

fn size(item: &Item) -> usize {
    match item {
        Item::Notification(it) => it.text.len(),
        Item::Lost => 0,
    }
}
