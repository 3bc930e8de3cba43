//! A session that has a server: bytes go both ways, message by message, until the server is proved idle and goes back.

use std::task::{Context as TaskContext, Poll};

use super::error::Ending;
use super::relay::{Linked, Outgoing};
use super::session::{READ_AHEAD, Session, State, Step};
use super::{Error, prepare, watch};
use crate::net::scratch::Scratch;
use crate::server::Doom;
use crate::server::pipeline::Desync;
use crate::stats::Phase;

impl Session {
    /// Both directions, once each.
    pub(super) fn poll_linked(&mut self, cx: &mut TaskContext<'_>, scratch: &mut Scratch) -> Step {
        let mut again = false;
        match self.poll_from_server(cx, scratch) {
            Step::Pending => {}
            Step::Again if matches!(self.state, State::Linked(_)) => again = true,
            step => return step,
        }
        match self.poll_from_client(cx, scratch) {
            Step::Pending if again => Step::Again,
            step => step,
        }
    }

    /// Server to client.
    fn poll_from_server(&mut self, cx: &mut TaskContext<'_>, scratch: &mut Scratch) -> Step {
        // The server is not read while the client does not take what it has sent.
        if let Some(step) = self.flush_client(cx) {
            return step;
        }
        let State::Linked(pooled) = &mut self.state else {
            return Step::Again;
        };
        let connection = &mut pooled.server.connection;
        match connection.stream.poll_read(cx, &mut scratch.read) {
            Poll::Pending => Step::Pending,
            Poll::Ready(Ok(0) | Err(_)) => self.server_failed(),
            Poll::Ready(Ok(n)) => {
                let read = scratch.read.get(..n).unwrap_or_default();
                if connection.kept.is_empty() {
                    return self.to_client(cx, read, &mut scratch.forward);
                }
                let mut input = std::mem::take(&mut connection.kept);
                input.extend_from_slice(read);
                self.to_client(cx, &input, &mut scratch.forward)
            }
        }
    }

    fn to_client(&mut self, cx: &mut TaskContext<'_>, input: &[u8], buffer: &mut Vec<u8>) -> Step {
        let State::Linked(pooled) = &mut self.state else {
            return Step::Again;
        };
        let Some(counters) = self.pool.counters(self.home.worker()) else {
            return Step::Again;
        };
        let server = &mut pooled.server;
        if server.is_ahead() {
            return self.settings_answered(cx, input, buffer);
        }
        let mut linked = Linked {
            server: &mut server.state,
            entry: &server.entry,
            counters,
        };
        let mut out = Outgoing::new(input, buffer);
        let result = self.relay.from_server(&mut linked, input, &mut out);
        let used = result.as_ref().copied().unwrap_or(input.len());
        counters.sent.add(used as u64);
        if let Some(watched) = &mut server.state.watched {
            watched.answered(used);
        }
        let sent = self.connection.send(cx, out.finish());
        match result {
            Ok(used) => server
                .connection
                .keep(input.get(used..).unwrap_or_default()),
            Err(desync) => {
                tracing::error!(server = server.entry.id, "{desync}");
                server.state.doom = Some(Doom::Desync);
                let error = match desync {
                    Desync::Header => Error::ServerHeader,
                    Desync::Reply(_) => Error::ServerCrashed,
                };
                return Step::End(error.into());
            }
        }
        if sent.is_err() {
            return Step::End(Ending::Vanished);
        }
        if self.relay.is_refused {
            return Step::End(Error::TransactionBlock.into());
        }
        if !self.relay.own.is_empty() {
            let own = std::mem::take(&mut self.relay.own);
            if server.connection.send(cx, &own).is_err() {
                return self.server_failed();
            }
        }
        self.kept_is_due |= !self.connection.kept.is_empty();
        if server.state.pipeline.is_idle() {
            self.server_is_idle()
        } else {
            Step::Again
        }
    }

    /// The answer to the settings that went ahead of the client's first message.
    #[cold]
    fn settings_answered(
        &mut self,
        cx: &mut TaskContext<'_>,
        input: &[u8],
        buffer: &mut Vec<u8>,
    ) -> Step {
        let State::Linked(mut pooled) = std::mem::replace(&mut self.state, State::Idle) else {
            return Step::Again;
        };
        let used = match pooled.server.hear_ahead(input) {
            Ok(used) => used,
            Err(error) => return Step::End(prepare::refused(pooled, &error).into()),
        };
        let rest = input.get(used..).unwrap_or_default();
        if pooled.server.is_ahead() {
            pooled.server.connection.keep(rest);
            self.state = State::Linked(pooled);
            return Step::Again;
        }
        self.adopt_spelling(&pooled);
        pooled.server.entry.link(self.entry.id, self.context.turn());
        self.state = State::Linked(pooled);
        self.kept_is_due = true;
        self.to_client(cx, rest, buffer)
    }

    /// Client to server.
    fn poll_from_client(&mut self, cx: &mut TaskContext<'_>, scratch: &mut Scratch) -> Step {
        let State::Linked(pooled) = &mut self.state else {
            return Step::Again;
        };
        if pooled.server.connection.has_backlog() {
            match pooled.server.connection.poll_flush(cx) {
                Poll::Ready(Ok(())) if pooled.server.state.pipeline.is_idle() => {
                    return self.server_is_idle();
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return self.server_failed(),
                // The client is not read while the server does not take what it has sent.
                Poll::Pending => return Step::Pending,
            }
        }
        if pooled.server.is_ahead() {
            return Step::Pending;
        }
        if let Some(step) = self.use_kept(cx, scratch, Self::to_server) {
            return step;
        }
        if self.relay.fenced && self.connection.kept.len() >= READ_AHEAD {
            return Step::Pending;
        }
        if self.connection.backlog() >= READ_AHEAD {
            // It does not take its answers, and it would get more of them from us.
            return Step::Pending;
        }
        self.read_client(cx, scratch, Self::to_server)
    }

    /// Passes on what the client sent.
    pub(super) fn to_server(
        &mut self,
        cx: &mut TaskContext<'_>,
        input: &[u8],
        (forward, back): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Step {
        let State::Linked(pooled) = &mut self.state else {
            return Step::Again;
        };
        let Some(counters) = self.pool.counters(self.home.worker()) else {
            return Step::Again;
        };
        let server = &mut pooled.server;
        let was_idle = server.state.pipeline.is_idle();
        if was_idle && self.relay.settings.is_watched {
            watch::begin(&self.relay, &mut server.state, input);
        }
        let mut linked = Linked {
            server: &mut server.state,
            entry: &server.entry,
            counters,
        };
        let mut out = Outgoing::new(input, forward);
        let result = self.relay.from_client(&mut linked, input, &mut out);
        let mut answers = Outgoing::new(&[], back);
        self.relay.answer(&mut linked, &mut answers);
        let sent = server.connection.send(cx, out.finish());
        let used = match result {
            Ok(used) => used,
            Err(error) => return Step::End(error.into()),
        };
        counters.received.add(used as u64);
        let stays = input.get(used..).unwrap_or_default();
        if !stays.is_empty() {
            // Bytes that came first stay first.
            let later = std::mem::take(&mut self.connection.kept);
            self.connection.keep(stays);
            self.connection.keep(&later);
        }
        let (idle, leaves) = (server.state.pipeline.is_idle(), !stays.is_empty());
        if leaves {
            self.await_message();
        }
        if self.connection.send(cx, answers.finish()).is_err() {
            return Step::End(Ending::Vanished);
        }
        if sent.is_err() {
            return self.server_failed();
        }
        if self.relay.terminated {
            return Step::End(Ending::Terminated);
        }
        if idle {
            // All that came was answered here, or dropped, or was the rest of something that is over.
            return self.server_is_idle();
        }
        if was_idle && !idle && self.query_began == 0 {
            self.query_begins();
        }
        Step::Again
    }

    /// Another query on the same link.
    fn query_begins(&mut self) {
        let now = self.context.turn();
        self.query_began = now;
        self.entry.request_begins(now);
        self.entry.enter(Phase::Active, now);
        let Some(counters) = self.pool.counters(self.home.worker()) else {
            return;
        };
        counters.queries.add(1);
        if self.transaction_began == 0 {
            self.transaction_began = now;
            self.entry.set_transaction(now);
            counters.transactions.add(1);
        }
    }

    /// The server's connection is broken.
    fn server_failed(&mut self) -> Step {
        let State::Linked(pooled) = &mut self.state else {
            return Step::Again;
        };
        match pooled.server.state.doom.get_or_insert(Doom::Failed) {
            Doom::Ended => Step::End(Ending::ServerEnded),
            Doom::Desync | Doom::ClientLeft | Doom::Failed | Doom::CheckFailed => {
                Step::End(Error::ServerCrashed.into())
            }
        }
    }
}
