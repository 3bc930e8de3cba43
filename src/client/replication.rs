//! Replication clients: each has a server of its own, opened for it and closed with it, and what they say to
//! each other passes through untouched (`protocol-replication`).

use std::future::poll_fn;
use std::task::{Context as TaskContext, Poll};

use super::Error;
use super::error::Ending;
use crate::net::Connection;
use crate::net::scratch::{self, Scratch};
use crate::pool::Pooled;
use crate::protocol;
use crate::protocol::frame::{HEADER_LEN, cut};
use crate::protocol::frontend::tag;
use crate::stats::registry::ClientGuard;
use crate::stats::{Counters, Order, Phase};

/// More than this is not taken from one side before the other has taken what came. Little, since the system has buffers
/// of its own: where `tcp_socket_buffer` makes these small, one large piece waits for its acknowledgement, which takes
/// longer than many small ones take.
const BACKLOG: usize = 4 * 1024;

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
        let longest = self.pooled.pool().settings().max_packet_size;
        let (mut to_client, mut to_server) = (Watch::new(longest), Watch::new(longest));
        let first = std::mem::take(&mut self.connection.kept);
        let fine = to_server.see(&first);
        self.pooled.server.connection.queue(fine);
        poll_fn(|cx| {
            entry.register(cx.waker());
            Poll::Ready(())
        })
        .await;
        let ending = poll_fn(|cx| {
            scratch::with(|scratch| self.poll(cx, scratch, (&mut to_client, &mut to_server)))
        })
        .await;
        self.pooled.close(if to_client.bad_header.is_some() {
            "bad pkt header"
        } else {
            "client close request"
        });
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
            if let Some(error) = &to_client.bad_header {
                tracing::error!(server = self.pooled.server.entry.id, "{error}");
                return Poll::Ready(Error::ServerHeader.into());
            }
            if let Some(error) = to_server.bad_header.take() {
                return Poll::Ready(Error::from(error).into());
            }
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
                let bytes = to_client.see(bytes);
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
                let bytes = to_server.see(bytes);
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
        let reasons: [(Order, fn() -> Error); 6] = [
            (Order::LeaveSoon, || Error::Drained),
            (Order::LeaveNow, || Error::Drained),
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
    /// `max_packet_size`.
    longest: usize,
    /// What is wrong with the message that comes now: neither it nor what follows goes on.
    bad_header: Option<protocol::Error>,
    header: [u8; HEADER_LEN],
    /// How much of the header of the next message has been seen.
    have: usize,
    /// How much of the body of this message is still to come.
    left: usize,
    saw_terminate: bool,
}

impl Watch {
    fn new(longest: usize) -> Self {
        Self {
            longest,
            ..Self::default()
        }
    }

    /// Sees the next bytes; says which of them may go on: all, or those in front of a bad header.
    fn see<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            if self.bad_header.is_some() {
                return &[];
            }
            if self.left > 0 {
                let here = self.left.min(rest.len());
                self.left -= here;
                at += here;
                continue;
            }
            let wanted = self.header.get_mut(self.have..).unwrap_or_default();
            let begin = at;
            for (place, byte) in wanted.iter_mut().zip(rest) {
                *place = *byte;
                at += 1;
            }
            self.have += at - begin;
            if self.have == HEADER_LEN {
                match cut(&self.header, self.longest) {
                    Ok(Some(frame)) => self.left = frame.missing(),
                    Ok(None) => {}
                    Err(error) => {
                        self.bad_header = Some(error);
                        // What of the header went on with earlier bytes is the beginning of a message: no other can follow.
                        self.have -= at - begin;
                        return bytes.get(..begin).unwrap_or_default();
                    }
                }
                self.have = 0;
                self.saw_terminate |= self.header.first() == Some(&tag::TERMINATE);
            }
        }
        bytes
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
            let mut watch = Watch::new(100);
            let mut seen = 0;
            for piece in stream.chunks(size) {
                assert_eq!(watch.see(piece), piece);
                seen += piece.len();
                assert_eq!(watch.is_between(), [7, 12, 17].contains(&seen), "{size}");
            }
            assert!(watch.saw_terminate);
        }
    }

    #[test]
    fn an_x_inside_of_a_message_is_no_terminate() {
        let mut watch = Watch::new(100);
        watch.see(b"d\0\0\0\x09X\0\0\0\x04");
        assert!(watch.is_between() && !watch.saw_terminate);
    }

    #[test]
    fn a_message_over_the_limit_does_not_go_on_nor_does_what_follows() {
        let stream = [&b"d\0\0\0\x06XX"[..], b"d\0\0\0\x09YYYYY", b"X\0\0\0\x04"].concat();
        for size in 1..=stream.len() {
            let mut watch = Watch::new(9);
            let mut passed = Vec::new();
            for piece in stream.chunks(size) {
                passed.extend_from_slice(watch.see(piece));
            }
            // A part of its header may have gone on already, and then it is not between two messages.
            assert!(passed.len() < 12 && stream.starts_with(&passed), "{size}");
            assert_eq!(watch.is_between(), passed.len() == 7, "{size}");
            assert_eq!(
                watch.bad_header.unwrap().to_string(),
                "bad packet header: '6400000009'"
            );
            assert!(!watch.saw_terminate);
        }
    }
}
