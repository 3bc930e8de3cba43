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

    /// The channel.
    pub fn channel(&self) -> &[u8] {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::startup::Replication;
    use crate::stats::registry::{CancelKey, NewClient, Peer};

    const OWN: i32 = 77;

    fn mailbox() -> Mailbox {
        let client = ClientEntry::new(NewClient {
            id: 5,
            user: String::new(),
            database: String::new(),
            pool_user: String::new(),
            peer: Peer::Unix(None),
            replication: Replication::None,
            local: None,
            tls: String::new(),
            worker: 0,
            cancel_pid: OWN,
            cancel_key: CancelKey(Box::default()),
            connected: 0,
        });
        Mailbox::new(Arc::new(client))
    }

    fn put(mailbox: &Mailbox, sender: (u64, i32), text: &str) {
        let body = [&[0; 4], text.as_bytes()].concat();
        mailbox.put(Item::Notification(Arc::new(Notification::new(
            sender, &body,
        ))));
    }

    #[test]
    fn a_client_gets_its_own_number_for_what_it_has_sent() {
        let mailbox = mailbox();
        put(&mailbox, (5, 1), "a\0x\0");
        put(&mailbox, (6, 2), "a\0\0");
        let mut out = Vec::new();
        assert_eq!(mailbox.take(&mut out, 1000), Taken::All);
        assert_eq!(
            out,
            b"A\0\0\0\x0c\0\0\0\x4da\0x\0A\0\0\0\x0b\0\0\0\x02a\0\0"
        );
        assert_eq!(
            read_notification(&out[5..13]),
            Some((OWN, &b"a"[..], &b"x"[..]))
        );
    }

    #[test]
    fn an_order_is_given_for_the_first_that_waits() {
        let mailbox = mailbox();
        put(&mailbox, (0, 1), "a\0x\0");
        assert!(mailbox.client.take_orders().has(Order::Notified));
        put(&mailbox, (0, 1), "a\0y\0");
        assert!(!mailbox.client.has_orders());
        let mut out = Vec::new();
        assert_eq!(mailbox.take(&mut out, 1), Taken::Some);
        out.clear();
        assert_eq!(mailbox.take(&mut out, 1), Taken::All);
        put(&mailbox, (0, 1), "a\0z\0");
        assert!(mailbox.client.has_orders());
    }

    #[test]
    fn what_waits_of_a_channel_that_is_left_is_not_told() {
        let mailbox = mailbox();
        let name = |text: &str| Name::from(text.as_bytes());
        assert_eq!(mailbox.listen(vec![name("a"), name("b")]), []);
        put(&mailbox, (0, 1), "a\0x\0");
        put(&mailbox, (0, 2), "b\0x\0");
        assert_eq!(mailbox.listen(vec![name("b"), name("c")]), [name("a")]);
        let mut out = Vec::new();
        mailbox.take(&mut out, 1000);
        assert_eq!(out, b"A\0\0\0\x0c\0\0\0\x02b\0x\0");
        assert!(mailbox.listens_to(b"c") && !mailbox.listens_to(b"a"));
    }

    #[test]
    fn there_is_a_limit_to_what_waits() {
        let mailbox = mailbox();
        let long = format!("a\0{}\0", "x".repeat(7999));
        for _ in 0..MOST_BYTES / long.len() {
            put(&mailbox, (0, 1), &long);
        }
        assert!(!mailbox.has_too_much());
        mailbox.client.take_orders();
        (0..3).for_each(|_| put(&mailbox, (0, 1), &long));
        assert!(mailbox.has_too_much() && mailbox.client.has_orders());
        assert!(mailbox.held.lock().items.is_empty());
    }
}
