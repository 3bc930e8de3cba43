//! What a client's task is told to do by others: to end, because a time is over or an operator says so; to take a cancel
//! request; to move.

use std::task::Context as TaskContext;

use super::Error;
use super::error::Ending;
use super::session::{Session, State};
use crate::protocol::backend::{self, ErrorMessage, TxStatus};
use crate::protocol::frame::cut;
use crate::protocol::frontend::tag;
use crate::protocol::sqlstate;
use crate::stats::registry::Orders;
use crate::stats::{Order, Phase};

/// An order, whether what it is for is still so, and the error it leads to.
type PossibleEnd = (Order, bool, fn() -> Error);

impl Session {
    /// Is nothing of it under way? Then it need not be read for a while.
    pub(super) fn is_at_rest(&self) -> bool {
        let mine = self.connection.kept.is_empty() && !self.connection.has_backlog();
        match &self.state {
            State::Idle => mine && !self.moves,
            State::Linked(pooled) => {
                let server = &pooled.server;
                mine && server.state.pipeline.is_idle()
                    && !server.connection.has_backlog()
                    && !self.relay.is_mid_message()
            }
            State::Waiting | State::Preparing(_) | State::Looking(_) => false,
        }
    }

    /// Does what it was told. `Some`: that is the end.
    pub(super) fn obey(&mut self, cx: &mut TaskContext<'_>, orders: Orders) -> Option<Ending> {
        let phase = self.entry.phase();
        // An order may come late: the time it was given for must not be over.
        let (ordered_for, since) = (self.entry.ordered_for(), self.entry.since());
        let in_time = since == ordered_for;
        let ends: [PossibleEnd; 11] = [
            (Order::AdminDisconnect, true, || Error::AdminDisconnect),
            (Order::DatabaseRemoved, true, || Error::DatabaseRemoved),
            (Order::SuspendTimeout, !self.entry.rests(), || {
                Error::SuspendTimeout
            }),
            (Order::ServerOutdated, phase == Phase::LinkedIdle, || {
                Error::DatabaseChanged
            }),
            (
                Order::QueryTimeout,
                in_time && phase == Phase::Active,
                || Error::QueryTimeout,
            ),
            (
                Order::QueryTimeoutWaiting,
                in_time && phase == Phase::Waiting,
                || Error::QueryTimeoutWaiting,
            ),
            (
                Order::QueryWaitTimeout,
                in_time && phase == Phase::Waiting,
                || crate::pool::WaitError::Timeout.into(),
            ),
            (
                Order::ClientIdleTimeout,
                in_time && phase == Phase::Idle,
                || Error::IdleTimeout,
            ),
            (
                Order::IdleTransactionTimeout,
                in_time && phase == Phase::IdleInTransaction,
                || Error::IdleTransactionTimeout,
            ),
            (
                Order::TransactionTimeout,
                self.transaction_began > 0 && self.transaction_began == ordered_for,
                || Error::TransactionTimeout,
            ),
            (Order::ShuttingDown, phase == Phase::Waiting, || {
                Error::ServerShuttingDown
            }),
        ];
        for (order, still_so, error) in ends {
            if orders.has(order) && still_so {
                return Some(error().into());
            }
        }
        if let Some(ending) = self.part(cx, orders) {
            return Some(ending);
        }
        if orders.has(Order::NotifyWaiting) && phase == Phase::Waiting && self.entry.notify_once() {
            let mut out = Vec::new();
            let text = "No server connection available in postgres backend, client being queued";
            backend::notice_response(&mut out, &ErrorMessage::new("NOTICE", "00000", text));
            self.connection.send(cx, &out).ok()?;
        }
        if orders.has(Order::ServerOutdated) && self.entry.server() != 0 {
            self.entry.keep_order(Order::ServerOutdated);
        }
        if orders.has(Order::Notified) {
            let ending = self.deliver(cx, orders.has(Order::Suspend));
            if ending.is_some() {
                return ending;
            }
        }
        if orders.has(Order::Move) {
            self.moves = self.entry.goal() != self.home.worker();
        }
        if orders.has(Order::CancelWaiting) && phase == Phase::Waiting {
            self.cancel_waiting(cx);
        }
        None
    }

    /// A queued query is cancelled: it is taken out of what was kept and answered here.
    fn cancel_waiting(&mut self, cx: &mut TaskContext<'_>) {
        let mut at = 0;
        loop {
            let rest = self.connection.kept.get(at..).unwrap_or_default();
            let Ok(Some(frame)) = cut(rest, self.relay.settings.max_packet_size) else {
                return;
            };
            if !frame.is_complete() {
                return;
            }
            at += frame.len;
            if matches!(frame.tag, tag::QUERY | tag::SYNC | tag::FUNCTION_CALL) {
                break;
            }
        }
        self.leave_queue();
        self.connection.use_kept(at);
        self.kept_is_due = !self.connection.kept.is_empty();
        self.state = State::Idle;
        self.entry.enter(Phase::Idle, self.context.now());
        let mut out = Vec::new();
        let text = "canceling statement due to user request";
        backend::error_response(
            &mut out,
            &ErrorMessage::new("ERROR", sqlstate::QUERY_CANCELED, text),
        );
        backend::ready_for_query(&mut out, TxStatus::Idle);
        // A failure shows at the next read.
        let _ = self.connection.send(cx, &out);
    }
}
