//! From the server to the client: replies to what the client asked go on, replies to what the pooler asked stop
//! here, and what the pooler answers itself is put in at its place in the order.

use super::relay::{Linked, Outgoing, Passing, Relay};
use super::replan;
use super::translate::pass_body;
use crate::config::PoolMode;
use crate::protocol::backend::{self, ErrorFields, TxStatus, tag};
use crate::protocol::frame::{Frame, HEADER_LEN, cut, whole};
use crate::protocol::shape::{self, Shape};
use crate::protocol::{frontend, sqlstate};
use crate::server::pipeline::{Desync, Expect, Failure, Request};
use crate::server::{Described, DescribedUnnamed, Doom, Effect, Forget, Unnamed};

/// SQLSTATE of a statement name the server does not know.
const NO_SUCH_STATEMENT: &[u8] = sqlstate::INVALID_SQL_STATEMENT_NAME.as_bytes();

/// SQLSTATE of a query that was cancelled, by a request or by `statement_timeout`.
const INTERRUPTED: &[u8] = sqlstate::QUERY_CANCELED.as_bytes();

impl Relay {
    /// Takes what the server sent; says how many bytes were used. What goes to the client is put into `out`.
    /// On an error the server's stream makes no sense any more.
    pub fn from_server(
        &mut self,
        linked: &mut Linked<'_>,
        input: &[u8],
        out: &mut Outgoing<'_>,
    ) -> Result<usize, Desync> {
        let usual = self.pass_usual(linked, input);
        if usual > 0 {
            out.pass(0..usual);
            if usual == input.len() {
                return Ok(usual);
            }
        }
        self.look_through(linked, (input, usual), out)
    }

    /// The same from the message on that is to be looked at.
    #[inline(never)]
    fn look_through(
        &mut self,
        linked: &mut Linked<'_>,
        (input, mut at): (&[u8], usize),
        out: &mut Outgoing<'_>,
    ) -> Result<usize, Desync> {
        let was_refused = self.is_refused;
        let longest = self.settings.max_packet_size;
        while at < input.len() && self.is_refused == was_refused {
            if self.outbound.is_under_way() {
                at += pass_body(&mut self.outbound, input, at, out);
                self.answer(linked, out);
                continue;
            }
            let rest = input.get(at..).unwrap_or_default();
            let Some(frame) = cut(rest, longest).map_err(|_| Desync::Header)? else {
                break;
            };
            if !frame.is_complete() && (is_read(frame.tag) || is_awaited(linked, frame.tag)) {
                break;
            }
            let held = frame.bytes.len();
            let forward = self.reply(linked, &frame, out)?;
            if forward {
                out.pass(at..at + held);
            }
            self.outbound = Passing::rest(&frame, forward);
            at += held;
            self.answer(linked, out);
            let usual = self.pass_usual(linked, input.get(at..).unwrap_or_default());
            out.pass(at..at + usual);
            at += usual;
        }
        Ok(at)
    }

    /// How many of the next bytes are whole messages that go to the client as they are, with nothing else to be thought of?
    /// They have been noted.
    fn pass_usual(&mut self, linked: &mut Linked<'_>, input: &[u8]) -> usize {
        let server = &mut *linked.server;
        if self.outbound.is_under_way()
            || self.is_refused
            || !server.pipeline.is_usual()
            || server.batch.is_looked_at()
            || self.settings.mode == PoolMode::Statement
        {
            return 0;
        }
        let longest = self.settings.max_packet_size;
        let mut at = 0;
        while let Some((tag, body)) = whole(input.get(at..).unwrap_or_default(), longest) {
            let status = match tag {
                // It may take names away.
                tag::COMMAND_COMPLETE if body.first() == Some(&b'D') => break,
                tag::READY_FOR_QUERY => match backend::read_ready_for_query(body) {
                    Ok(status) => status,
                    Err(_) => break,
                },
                _ => server.status,
            };
            if !server.pipeline.passes(tag) {
                break;
            }
            server.status = status;
            at += HEADER_LEN + body.len();
        }
        if let Some(watched) = &mut server.watched {
            watched.pass(input.get(..at).unwrap_or_default());
        }
        at
    }

    /// Puts in what it is our turn to say: not in the middle of a message that is only half through.
    #[inline]
    pub fn answer(&mut self, linked: &mut Linked<'_>, out: &mut Outgoing<'_>) {
        if linked.server.pipeline.has_synthesized() {
            self.answer_in_turn(linked, out);
        }
    }

    #[cold]
    fn answer_in_turn(&mut self, linked: &mut Linked<'_>, out: &mut Outgoing<'_>) {
        while !self.outbound.is_under_way()
            && let Some(request) = linked.server.pipeline.take_synthesized()
        {
            match request {
                Request::Parse => backend::parse_complete(out.insert()),
                // Outside of a transaction block, by what `skips_alone` means.
                Request::Sync => backend::ready_for_query(out.insert(), TxStatus::Idle),
                _ => backend::close_complete(out.insert()),
            }
        }
    }

    /// Does this message go on to the client?
    fn reply(
        &mut self,
        linked: &mut Linked<'_>,
        frame: &Frame<'_>,
        out: &mut Outgoing<'_>,
    ) -> Result<bool, Desync> {
        match frame.tag {
            tag::ERROR_RESPONSE => {
                self.error(linked, frame, out);
                return Ok(false);
            }
            tag::NOTICE_RESPONSE => return Ok(true),
            tag::NOTIFICATION_RESPONSE => return Ok(self.hear(linked, frame, out)),
            tag::PARAMETER_STATUS => {
                let (name, value) = backend::read_parameter_status(frame.body())
                    .map_err(|_| desync(frame.bytes))?;
                if linked.server.tracked.set(name, value) {
                    self.setting_changed(linked, name, value);
                }
                return Ok(true);
            }
            tag::DATA_ROW => {
                if let Some(forward) = linked.server.pipeline.row() {
                    return Ok(forward);
                }
            }
            tag::PARAMETER_DESCRIPTION => {
                note_parameters(linked, frame.body());
                // It is but a part of the reply, so that the pipeline has nothing to note.
                if self.holds_description(linked, frame.bytes) {
                    return Ok(false);
                }
            }
            tag::ROW_DESCRIPTION | tag::NO_DATA if linked.server.batch.holds() => {
                linked.server.batch.release(out.insert());
            }
            tag::COMMAND_COMPLETE => {
                // DEALLOCATE and DISCARD are all that matter.
                if frame.body().first() == Some(&b'D') {
                    self.command_complete(linked, frame);
                }
                if let Some(watched) = &mut linked.server.watched {
                    watched.pass(frame.bytes);
                }
            }
            tag::PORTAL_SUSPENDED => {
                if let Some(watched) = &mut linked.server.watched {
                    watched.pass(frame.bytes);
                }
            }
            tag::READY_FOR_QUERY => {
                linked.server.status =
                    backend::read_ready_for_query(frame.body()).map_err(|_| desync(frame.bytes))?;
                if linked.server.batch.is_timed() {
                    self.judge(linked);
                }
            }
            _ => {}
        }
        let reply = linked.server.pipeline.reply(frame.tag)?;
        if reply.has_effect
            && let Some(effect) = linked.server.pipeline.take_effect()
        {
            if let Effect::Reused(..) = effect {
                backend::parse_complete(out.insert());
            }
            if let Effect::Described(_) | Effect::DescribedUnnamed(_) = &effect {
                let columns = shape::columns(frame.body()).map_err(|_| desync(frame.bytes))?;
                self.described(linked, &effect, columns);
            }
            self.done(linked, &effect);
        }
        if reply.completes.is_some_and(Request::ends_with_ready) && self.refuses_block(linked) {
            self.is_refused = true;
            return Ok(false);
        }
        if !reply.forward && reply.completes == Some(Request::Sync) {
            self.run_again(linked)?;
        }
        Ok(reply.forward)
    }

    /// In statement pooling a transaction block is an error, which the client gets instead of ReadyForQuery.
    fn refuses_block(&self, linked: &Linked<'_>) -> bool {
        self.settings.mode == PoolMode::Statement
            && linked.server.status != TxStatus::Idle
            && !self.is_refused
    }

    /// A statement was described.
    #[cold]
    fn described(&mut self, linked: &mut Linked<'_>, effect: &Effect, columns: u32) {
        if let Effect::Described(described) = effect {
            self.named_described(linked, described, columns);
        } else if let Effect::DescribedUnnamed(described) = effect {
            self.unnamed_described(linked, described, columns);
        }
    }

    fn named_described(&mut self, linked: &mut Linked<'_>, described: &Described, columns: u32) {
        let shape = Shape::new(described.parameters, columns);
        linked.server.statements.described(described.id, shape);
        if let Some(told) = &described.told {
            let known = if told.columns_only {
                told.before.with_columns_of(shape)
            } else {
                shape
            };
            self.statements.learn(&told.name, told.id, known);
        }
    }

    /// The unnamed statement was described.
    fn unnamed_described(
        &mut self,
        linked: &mut Linked<'_>,
        described: &DescribedUnnamed,
        columns: u32,
    ) {
        let shape = Shape::new(described.parameters, columns);
        let version = described.version;
        if described.is_parsed_here {
            self.statements.learn_unnamed(version, shape);
        } else if let Unnamed::ReadAgain(id, here, known) = &mut linked.server.unnamed
            && (*id, *here) == (self.id, version)
        {
            *known = shape;
        }
    }

    /// What was noted when a request was sent is true now.
    fn done(&mut self, linked: &mut Linked<'_>, effect: &Effect) {
        match effect {
            Effect::Named { sent: Some(id), .. } | Effect::Prepared(id) => {
                linked.server.statements.confirm(*id);
            }
            Effect::Promoted(version, id) => {
                linked.server.statements.confirm(*id);
                self.statements.confirm_unnamed(*version);
            }
            Effect::Unnamed(version) | Effect::Reused(version, _) => {
                self.statements.confirm_unnamed(*version);
            }
            Effect::Evicted(statement) => linked.server.statements.closed(statement.0.id()),
            Effect::Named { sent: None, .. }
            | Effect::Closed(..)
            | Effect::UnnamedReplaced
            | Effect::Duplicate(_)
            | Effect::Outdated
            | Effect::Described(_)
            | Effect::DescribedUnnamed(_)
            | Effect::Told(_)
            | Effect::Forget(_) => {}
        }
    }

    /// A command is complete: did it take names away?
    fn command_complete(&mut self, linked: &mut Linked<'_>, frame: &Frame<'_>) {
        let Ok(command) = backend::command_tag(frame.body()) else {
            return;
        };
        let dropped = match command {
            b"DEALLOCATE" => match linked.server.pipeline.current_effect() {
                // One by one: a text with several of these completes each on its own.
                Some(Effect::Forget(list)) => {
                    let next = list
                        .iter()
                        .position(|forget| matches!(forget, Forget::Name(_)));
                    next.map(|at| list.remove(at))
                }
                _ => None,
            },
            b"DISCARD SEQUENCES" => {
                self.sequences_discarded(linked);
                None
            }
            b"DEALLOCATE ALL" | b"DISCARD ALL" => Some(Forget::All),
            _ => None,
        };
        match dropped {
            Some(Forget::Name(name)) => {
                self.statements.remove(&name);
            }
            Some(Forget::All) => {
                if !self.fenced && !linked.server.pipeline.owes_nothing_more() {
                    // The text did not look like it: what was sent since may rest on what is gone now.
                    linked.doom(Doom::Desync);
                }
                if command == b"DISCARD ALL" {
                    self.sequences_discarded(linked);
                    if let Some(belongings) = &mut self.belongings {
                        belongings.discarded();
                    }
                    if let Some(channels) = &mut self.channels {
                        channels.discarded();
                    }
                }
                linked.server.statements.clear();
                if self.translates() {
                    self.statements.clear();
                }
            }
            Some(Forget::Settings) | None => {}
        }
    }

    /// An error: it goes on to the client unless what failed can be run again, and what the server will skip is undone.
    fn error(&mut self, linked: &mut Linked<'_>, frame: &Frame<'_>, out: &mut Outgoing<'_>) {
        let fields = ErrorFields::read(frame.body()).ok();
        let asked = linked.server.pipeline.current();
        let asked = asked.filter(|_| linked.server.pipeline.answers_client());
        let stale = replan::staleness(fields.as_ref(), asked);
        let runs_again = self.reverts(linked, fields.as_ref())
            || stale.is_some_and(|stale| self.replan(linked, stale));
        if !runs_again {
            self.pass_error(linked, frame, fields.as_ref(), out);
        }
        let interrupted = fields.as_ref().and_then(ErrorFields::sqlstate) == Some(INTERRUPTED);
        let severity = fields.and_then(|fields| fields.severity());
        if matches!(severity, Some(b"FATAL" | b"PANIC")) {
            // The last word of a server: nothing of ours needs to follow.
            linked.doom(Doom::Ended);
        }
        let Failure::Failed {
            skipped,
            failed,
            in_copy,
        } = linked.server.pipeline.error(interrupted)
        else {
            return;
        };
        if in_copy && linked.server.status == TxStatus::Idle {
            self.end_failed_copy(linked);
        }
        for effect in skipped {
            self.undo(linked, effect);
        }
        match failed {
            Some(Effect::Unnamed(version)) => {
                self.statements.fail_unnamed(version);
                linked.server.unnamed = Unnamed::Unknown;
            }
            Some(Effect::Promoted(version, id)) => {
                linked.server.statements.doubt(id);
                self.statements.fail_unnamed(version);
            }
            Some(Effect::Reused(version, id)) if !runs_again => {
                linked.server.statements.doubt(id);
                self.statements.fail_unnamed(version);
            }
            Some(effect) => {
                if let Effect::Described(described) = &effect {
                    linked.server.statements.doubt(described.id);
                }
                self.undo(linked, effect);
            }
            None => {}
        }
        if runs_again {
            linked.server.pipeline.swallow_next();
        } else if linked.server.batch.drop_inquiry() {
            linked.server.pipeline.forward_next();
        }
    }

    /// The client gets the error, with its own names in it.
    #[cold]
    fn pass_error(
        &self,
        linked: &mut Linked<'_>,
        frame: &Frame<'_>,
        fields: Option<&ErrorFields<'_>>,
        out: &mut Outgoing<'_>,
    ) {
        linked.server.batch.release(out.insert());
        let sqlstate = fields.and_then(ErrorFields::sqlstate);
        if let Some(watched) = &mut linked.server.watched {
            watched.fails(&String::from_utf8_lossy(sqlstate.unwrap_or_default()));
        }
        let message = fields.and_then(ErrorFields::message);
        #[cfg(debug_assertions)]
        panic_for_test(message);
        linked
            .entry
            .count_error(sqlstate.unwrap_or_default(), message.unwrap_or_default());
        let effect = linked.server.pipeline.current_effect();
        if effect == Some(&mut Effect::Outdated) && sqlstate == Some(NO_SUCH_STATEMENT) {
            return replan::put_outdated(out.insert(), linked.server.status);
        }
        match self.name_in(linked, frame.body()) {
            Some((ours, theirs)) => {
                if sqlstate == Some(NO_SUCH_STATEMENT) {
                    // A function has dropped them: nothing else says so, and nothing tells which are left.
                    linked.server.statements.doubt_all();
                }
                backend::rename_in_error(out.insert(), frame.body(), &ours, &theirs);
            }
            None => out.insert().extend_from_slice(frame.bytes),
        }
    }

    /// A COPY failed outside of a transaction block, and the client may go on sending data for long before it sends
    /// its Sync. The server does not have to wait for that: it gets a Sync of ours as soon as the message that is
    /// half through is over, and the client's is answered here.
    fn end_failed_copy(&mut self, linked: &mut Linked<'_>) {
        if self.is_mid_message() {
            self.sync_is_due = true;
        } else {
            let mut own = std::mem::take(&mut self.own);
            self.sync_for_client(linked, &mut own);
            self.own = own;
        }
    }

    /// Ends a failed batch in the client's place.
    pub(super) fn sync_for_client(&mut self, linked: &mut Linked<'_>, out: &mut Vec<u8>) {
        self.sync_is_due = false;
        // The client may have been quicker.
        if linked.server.pipeline.is_skipping() {
            frontend::sync(out);
            linked
                .server
                .pipeline
                .push_sync(Expect::Swallow(Request::Sync));
            self.skips_alone = true;
        }
    }

    /// Takes back what was noted for a request that was not done.
    pub(super) fn undo(&mut self, linked: &mut Linked<'_>, effect: Effect) {
        match effect {
            Effect::Named { name, sent } => {
                self.statements.remove(&name);
                if let Some(id) = sent {
                    linked.server.statements.doubt(id);
                }
            }
            Effect::Prepared(id) => linked.server.statements.doubt(id),
            Effect::Closed(name, mut named) => {
                if !named.shape.is_known() {
                    // What it was about to be told, it may have been told since.
                    named.shape = linked.server.statements.shape(named.statement.0.id());
                }
                self.statements.insert(name, named);
            }
            Effect::Described(Described {
                told: Some(told), ..
            })
            | Effect::Told(told) => {
                // Else it was being told already, and may have been.
                if told.before.is_known() {
                    self.statements.learn(&told.name, told.id, told.before);
                }
            }
            Effect::Evicted(statement) => linked.server.statements.restore(statement.0),
            Effect::Unnamed(version) => {
                self.statements.skip_unnamed(version);
                linked.server.unnamed = Unnamed::Unknown;
            }
            Effect::Reused(version, id) | Effect::Promoted(version, id) => {
                self.statements.skip_unnamed(version);
                linked.server.statements.doubt(id);
            }
            Effect::UnnamedReplaced => linked.server.unnamed = Unnamed::Unknown,
            Effect::DescribedUnnamed(described) => {
                if !described.is_parsed_here {
                    linked.server.unnamed = Unnamed::Unknown;
                }
            }
            Effect::Described(_) | Effect::Duplicate(_) | Effect::Forget(_) | Effect::Outdated => {}
        }
    }

    /// One of our names in the text of an error, and the client's name for the same thing.
    fn name_in(&self, linked: &mut Linked<'_>, body: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let prefix = self.registry.prefix().as_bytes();
        let from = memchr::memmem::find(body, prefix)?;
        let ours = body.get(from..)?;
        let end = ours
            .iter()
            .position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')?;
        let ours = ours.get(..end)?;
        if let Some(name) = self.statements.name_of(ours) {
            return Some((ours.to_vec(), name.to_vec()));
        }
        if linked.server.batch.is_timed() {
            // One that the client knows as the unnamed one.
            return Some((ours.to_vec(), Vec::new()));
        }
        let theirs = match linked.server.pipeline.current_effect()? {
            Effect::Duplicate(name) => name.to_vec(),
            Effect::Forget(list) => list.iter().find_map(|forget| match forget {
                Forget::Name(name) => Some(name.to_vec()),
                Forget::All | Forget::Settings => None,
            })?,
            _ => return None,
        };
        Some((ours.to_vec(), theirs))
    }
}

/// Tests have to see what a bug costs others. (Only in builds for them.)
#[cfg(debug_assertions)]
#[allow(clippy::panic, reason = "it is what is asked for")]
fn panic_for_test(message: Option<&[u8]>) {
    assert!(
        message != Some(b"pgferry shall panic"),
        "a test has asked for it"
    );
}

/// Messages that are looked into, and so must be there as a whole.
#[inline]
fn is_read(tag: u8) -> bool {
    matches!(
        tag,
        tag::READY_FOR_QUERY
            | tag::ERROR_RESPONSE
            | tag::PARAMETER_STATUS
            | tag::COMMAND_COMPLETE
            | tag::PARAMETER_DESCRIPTION
            | tag::NOTIFICATION_RESPONSE
    )
}

/// The first message of the answer to a Describe of a statement.
#[cold]
fn note_parameters(linked: &mut Linked<'_>, body: &[u8]) {
    if let Some(
        Effect::Described(Described { parameters, .. })
        | Effect::DescribedUnnamed(DescribedUnnamed { parameters, .. }),
    ) = linked.server.pipeline.current_effect()
    {
        *parameters = shape::parameters(body);
    }
}

/// Is it the rest of an answer that is looked into? Others of its kind pass through in pieces.
#[cold]
fn is_awaited(linked: &mut Linked<'_>, tag: u8) -> bool {
    let effect = linked.server.pipeline.current_effect();
    tag == tag::ROW_DESCRIPTION
        && matches!(
            effect,
            Some(Effect::Described(_) | Effect::DescribedUnnamed(_))
        )
}

fn desync(bytes: &[u8]) -> Desync {
    Desync::Reply(bytes.first().copied().unwrap_or_default().into())
}
