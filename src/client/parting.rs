//! How a client is sent away while the process drains: between transactions, and so that pools of connections notice before
//! they lend the connection to somebody.
//!
//! Nobody can know whether a query is on its way. But whoever has a pool of connections looks whether one lives before
//! lending it, at the latest when it has not been used for about a second. So a client that has been silent for longer can be
//! told at any time: the look finds it. One that never is silent is told right behind the end of a transaction,
//! which is when a pool gets its connection back; and never behind a look, which is when the work begins. When it is time
//! for which of these, `daemon` decides, by its orders.

use std::io;
use std::task::{Context as TaskContext, Poll};

use super::Error;
use super::error::Ending;
use super::relay::Relay;
use super::session::Session;
use crate::net::{Connection, scratch};
use crate::protocol::frame::cut;
use crate::protocol::frontend::{BindHead, Parse, tag};
use crate::sql::classify;
use crate::stats::registry::Orders;
use crate::stats::{Order, Phase};

/// What a client did last, as far as somebody looked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nobody has looked at it from its beginning.
    #[default]
    Nothing,
    /// It asked whether the connection lives; so it wants to use it.
    Probe,
    /// Something else.
    Work,
}

impl Session {
    /// Is it time to go? Looks whether something has come from the client, which then comes first.
    #[inline]
    pub(super) fn part(&mut self, cx: &mut TaskContext<'_>, orders: Orders) -> Option<Ending> {
        let given = [
            Order::LeaveSilent,
            Order::LeaveNext,
            Order::LeaveSoon,
            Order::LeaveNow,
        ];
        if given.iter().any(|order| orders.has(*order)) {
            self.part_as_told(cx, orders)
        } else {
            None
        }
    }

    #[cold]
    fn part_as_told(&mut self, cx: &mut TaskContext<'_>, orders: Orders) -> Option<Ending> {
        if orders.has(Order::LeaveNow) {
            return Some(Error::Drained.into());
        }
        if orders.has(Order::GoOver) && self.connection.stream.tls().is_none() {
            // It need not go away: it goes over, with the next step.
            return None;
        }
        for order in [Order::LeaveNext, Order::LeaveSoon] {
            if orders.has(order) {
                self.entry.keep_order(order);
            }
        }
        let between = matches!(self.entry.phase(), Phase::Idle | Phase::LinkedIdle);
        if !between || !self.is_at_rest() {
            return None;
        }
        match self.look(cx) {
            Poll::Ready(Ok(())) => return None,
            Poll::Ready(Err(_)) => return Some(Ending::Vanished),
            Poll::Pending => {}
        }
        let is_silent = self.entry.since() == self.entry.ordered_for();
        let goes = orders.has(Order::LeaveSoon)
            || orders.has(Order::LeaveNext) && self.seen == Seen::Work
            || orders.has(Order::LeaveSilent) && is_silent;
        goes.then(|| Error::Drained.into())
    }

    /// Reads what has come, and keeps it for its turn.
    fn look(&mut self, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        let connection = &mut self.connection;
        let read = scratch::with(|scratch| {
            let read = connection.stream.poll_read(cx, &mut scratch.read);
            read.map_ok(|n| {
                connection.keep(scratch.read.get(..n).unwrap_or_default());
                n
            })
        });
        read.map(|read| {
            if read? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.kept_is_due = true;
            self.seen = if is_probe(&self.relay, &self.connection.kept) {
                Seen::Probe
            } else {
                Seen::Work
            };
            Ok(())
        })
    }
}

/// Does the first of these messages only ask whether the connection lives?
fn is_probe(relay: &Relay, bytes: &[u8]) -> bool {
    let Ok(Some(frame)) = cut(bytes, relay.settings.max_packet_size) else {
        return false;
    };
    if !frame.is_complete() {
        return false;
    }
    let asks = |text: &[u8]| classify::is_probe(Parse::text(text));
    match frame.tag {
        tag::QUERY => asks(frame.body()),
        tag::PARSE => Parse::read(frame.body()).is_ok_and(|it| classify::is_probe(it.sql)),
        tag::BIND => BindHead::read(frame.body())
            .ok()
            .flatten()
            .is_some_and(|it| {
                let known = relay.statements.get(it.statement);
                known.is_some_and(|named| asks(named.statement.0.definition()))
            }),
        _ => false,
    }
}

/// Waits for the client to hang up. If it sent something while we said farewell, closing at once would be a reset, which
/// may cost it the message that it has not read yet; and it would not know that nothing was done.
pub(super) async fn linger(connection: &mut Connection) {
    connection.stream.end_sending();
    while let Ok(1..) = connection.read_more().await {
        let unread = connection.kept.len();
        connection.use_kept(unread);
    }
}
