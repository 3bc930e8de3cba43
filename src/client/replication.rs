//! Replication clients: each has a server of its own, opened for it and closed with it, and what they say to
//! each other passes through untouched (`protocol-replication`).

use std::future::poll_fn;
use std::task::{Context as TaskContext, Poll};

use super::Error;
use super::error::Ending;
use crate::net::Connection;
use crate::net::scratch::{self, Scratch};
use crate::pool::Pooled;
use crate::protocol::frame::HEADER_LEN;
use crate::protocol::frontend::tag;
use crate::stats::registry::ClientGuard;
use crate::stats::{Counters, Order, Phase};

/// More than this is not taken from one side before the other has taken what came.
const BACKLOG: usize = 64 * 1024;

/// A client that replicates, and its server.
pub struct Replica<'a> {
    /// The client's socket.
    pub connection: Connection,
    /// The server.
    pub pooled: Pooled,
    /// The client's place in the live list.
    pub entry: ClientGuard,
    /// The pool's counters on this worker.
    pub counters: Option<&'a Counters>,
}

impl Replica<'_> {
    /// Passes bytes both ways until one side ends. Says why, and gives the connection back if the client is to be told.
    pub async fn run(mut self, now: u64) -> (Ending, Option<Connection>) {
        let server = &self.pooled.server;
        server.entry.link(self.entry.id, now);
        self.entry.set_server(server.entry.id);
        // No time limit is for it.
        self.entry.enter(Phase::LinkedIdle, now);
        let entry = self.entry.clone();
        let mut to_client = Watch::default();
        let mut to_server = Watch::default();
        let first = std::mem::take(&mut self.connection.kept);
        to_server.see(&first);
        self.pooled.server.connection.queue(&first);
        poll_fn(|cx| {
            entry.register(cx.waker());
            Poll::Ready(())
        })
        .await;
        let ending = poll_fn(|cx| {
            scratch::with(|scratch| self.poll(cx, scratch, (&mut to_client, &mut to_server)))
        })
        .await;
        self.pooled.close("client close request");
        // An error of ours in the middle of a message would be taken for the rest of it.
        let whole = to_client.is_between();
        (ending, whole.then_some(self.connection))
    }

    fn poll(
        &mut self,
        cx: &mut TaskContext<'_>,
        scratch: &mut Scratch,
        (to_client, to_server): (&mut Watch, &mut Watch),
    ) -> Poll<Ending> {
        if let Some(error) = self.told_to_go() {
            return Poll::Ready(error.into());
        }
        loop {
            let mut moved = false;
            let server = &mut self.pooled.server.connection;
            if server.has_backlog() && matches!(server.poll_flush(cx), Poll::Ready(Err(_))) {
                return Poll::Ready(Error::ServerCrashed.into());
            }
            if self.connection.has_backlog()
                && matches!(self.connection.poll_flush(cx), Poll::Ready(Err(_)))
            {
                return Poll::Ready(Ending::Vanished);
            }
            if self.connection.backlog() < BACKLOG
                && let Poll::Ready(read) = server.stream.poll_read(cx, &mut scratch.read)
            {
                let bytes = match read {
                    Ok(n) if n > 0 => scratch.read.get(..n).unwrap_or_default(),
                    _ => return Poll::Ready(Error::ServerCrashed.into()),
                };
                to_client.see(bytes);
                if let Some(counters) = self.counters {
                    counters.sent.add(bytes.len() as u64);
                }
                if self.connection.send(cx, bytes).is_err() {
                    return Poll::Ready(Ending::Vanished);
                }
                moved = true;
            }
            if server.backlog() < BACKLOG
                && let Poll::Ready(read) = self.connection.stream.poll_read(cx, &mut scratch.read)
            {
                let bytes = match read {
                    Ok(n) if n > 0 => scratch.read.get(..n).unwrap_or_default(),
                    _ => return Poll::Ready(Ending::Vanished),
                };
                to_server.see(bytes);
                if to_server.saw_terminate {
                    return Poll::Ready(Ending::Terminated);
                }
                if let Some(counters) = self.counters {
                    counters.received.add(bytes.len() as u64);
                }
                if server.send(cx, bytes).is_err() {
                    return Poll::Ready(Error::ServerCrashed.into());
                }
                moved = true;
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    fn told_to_go(&self) -> Option<Error> {
        if !self.entry.has_orders() {
            return None;
        }
        let orders = self.entry.take_orders();
        let reasons: [(Order, fn() -> Error); 4] = [
            (Order::SuspendTimeout, || Error::SuspendTimeout),
            (Order::AdminDisconnect, || Error::AdminDisconnect),
            (Order::DatabaseRemoved, || Error::DatabaseRemoved),
            (Order::Reconnect, || Error::DatabaseChanged),
        ];
        let given = reasons.into_iter().find(|(order, _)| orders.has(*order));
        given.map(|(_, error)| error())
    }
}

/// Follows the messages of a stream that passes by.
#[derive(Debug, Default)]
struct Watch {
    header: [u8; HEADER_LEN],
    /// How much of the header of the next message has been seen.
    have: usize,
    /// How much of the body of this message is still to come.
    left: usize,
    saw_terminate: bool,
}

impl Watch {
    fn see(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let here = self.left.min(bytes.len());
                self.left -= here;
                bytes = bytes.get(here..).unwrap_or_default();
                continue;
            }
            let wanted = self.header.get_mut(self.have..).unwrap_or_default();
            let here = wanted.len().min(bytes.len());
            let (now, later) = bytes.split_at(here);
            if let Some(place) = wanted.get_mut(..here) {
                place.copy_from_slice(now);
            }
            bytes = later;
            self.have += here;
            if self.have == HEADER_LEN {
                let [tag, a, b, c, d] = self.header;
                let length = u32::from_be_bytes([a, b, c, d]) as usize;
                self.left = length.saturating_sub(HEADER_LEN - 1);
                self.have = 0;
                self.saw_terminate |= tag == tag::TERMINATE;
            }
        }
    }

    /// Is the last message complete?
    fn is_between(&self) -> bool {
        self.left == 0 && self.have == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_followed_at_any_split() {
        let stream = [&b"d\0\0\0\x06XX"[..], b"c\0\0\0\x04", b"X\0\0\0\x04"].concat();
        for size in 1..=stream.len() {
            let mut watch = Watch::default();
            let mut seen = 0;
            for piece in stream.chunks(size) {
                watch.see(piece);
                seen += piece.len();
                assert_eq!(watch.is_between(), [7, 12, 17].contains(&seen), "{size}");
            }
            assert!(watch.saw_terminate);
        }
    }

    #[test]
    fn an_x_inside_of_a_message_is_no_terminate() {
        let mut watch = Watch::default();
        watch.see(b"d\0\0\0\x09X\0\0\0\x04");
        assert!(watch.is_between() && !watch.saw_terminate);
    }
}
