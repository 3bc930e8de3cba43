//! From the client to the server: every message is passed on, renamed, held back or answered here.
//!
//! A named statement goes by its global name on the server, and is prepared there just in time: messages that name one are
//! [`naming`]'s, and [`shapes`] sees to it that they mean what they did; batches of an unnamed statement that is prepared all the same are [`promoting`]'s. What is noted down ahead of the server's answer goes along with the request through the pipeline, and is
//! taken back if the server does not do it.

use super::Error;
use super::channels::By;
use super::relay::{Linked, Outgoing, Passing, Relay};
use crate::protocol::frame::{Frame, HEADER_LEN, cut, whole};
use crate::protocol::frontend::{self, Execute, tag};
use crate::server::pipeline::{Expect, Request};
use crate::server::{Effect, Forget, Unnamed};
use crate::sql::classify::{self, Changes};

mod naming;
mod promoting;
mod shapes;

/// A text up to this length is looked at before it is sent on; a longer one streams through.
const LOOK_AT: usize = 64 * 1024;

/// An unnamed Parse up to this length is kept, so that a later message can use the statement on another server.
pub(super) const KEEP_UNNAMED: usize = 1 << 20;

/// What is to be done with a message.
enum Step {
    /// It goes on as it is.
    Pass,
    /// So many of its bytes have been dealt with; the rest goes on as it is.
    PassAfter(usize),
    /// All of it has been dealt with.
    Done,
    /// It is not sent on.
    Drop,
    /// It can't be dealt with before more of it is there.
    Incomplete,
    /// It can't be dealt with before the server has answered what it owes.
    Fenced,
}

impl Relay {
    /// Takes what the client sent; says how many bytes were used. What goes to the server is put
    /// into `out`.
    pub fn from_client(
        &mut self,
        linked: &mut Linked<'_>,
        input: &[u8],
        out: &mut Outgoing<'_>,
    ) -> Result<usize, Error> {
        let mut at = 0;
        if linked.server.pipeline.owes_nothing() {
            self.settle();
            if self.context_is_open && linked.server.pipeline.is_idle() {
                self.learn_context();
            }
            self.begin_batch(linked, input);
            if self.settings.prepare_unnamed_after > 0 && self.promote(linked, input, out)? {
                at = input.len();
            }
        }
        while at < input.len() && !self.terminated {
            if self.inbound.is_under_way() {
                at += pass_body(&mut self.inbound, input, at, out);
                if self.sync_is_due && !self.inbound.is_under_way() {
                    self.sync_for_client(linked, out.insert());
                }
                continue;
            }
            let rest = input.get(at..).unwrap_or_default();
            let Some(frame) = cut(rest, self.settings.max_packet_size)? else {
                break;
            };
            let held = frame.bytes.len();
            match self.message(linked, &frame, out)? {
                Step::Pass => {
                    out.pass(at..at + held);
                    self.inbound = Passing::rest(&frame, true);
                }
                Step::PassAfter(done) => {
                    out.pass(at + done..at + held);
                    self.inbound = Passing::rest(&frame, true);
                }
                Step::Done => {}
                Step::Drop => self.inbound = Passing::rest(&frame, false),
                Step::Incomplete | Step::Fenced => break,
            }
            at += held;
            let noted = self.only_note(linked, input.get(at..).unwrap_or_default());
            if noted > 0 {
                out.pass(at..at + noted);
                at += noted;
            }
        }
        linked.server.batch.add(input.get(..at).unwrap_or_default());
        Ok(at)
    }

    /// What follows a Bind mostly goes on as it is: how many of the next bytes are such messages? They have been noted.
    #[inline]
    fn only_note(&mut self, linked: &mut Linked<'_>, input: &[u8]) -> usize {
        let pipeline = &mut linked.server.pipeline;
        if self.fenced
            || self.terminated
            || self.skips_alone
            || self.inbound.is_under_way()
            || pipeline.is_skipping()
            || !self.portals.is_empty()
        {
            return 0;
        }
        let longest = self.settings.max_packet_size;
        let mut at = 0;
        while let Some((tag, body)) = whole(input.get(at..).unwrap_or_default(), longest) {
            match tag {
                tag::EXECUTE => pipeline.push(Expect::Forward(Request::Execute), None),
                // Of the unnamed portal.
                tag::DESCRIBE if body == b"P\0" => {
                    pipeline.push(Expect::Forward(Request::DescribePortal), None);
                }
                tag::SYNC => pipeline.push_sync(Expect::Forward(Request::Sync)),
                _ => break,
            }
            at += HEADER_LEN + body.len();
        }
        at
    }

    fn message(
        &mut self,
        linked: &mut Linked<'_>,
        frame: &Frame<'_>,
        out: &mut Outgoing<'_>,
    ) -> Result<Step, Error> {
        if self.fenced {
            if linked.server.pipeline.owes_nothing() {
                self.fenced = false;
            } else if !matches!(frame.tag, tag::COPY_DATA | tag::COPY_DONE | tag::COPY_FAIL) {
                return Ok(Step::Fenced);
            }
        }
        if self.skips_alone && frame.tag != tag::TERMINATE {
            if frame.tag == tag::SYNC {
                self.skips_alone = false;
                linked.owes(Expect::Synthesize(Request::Sync), None);
                return Ok(Step::Done);
            }
            return Ok(Step::Drop);
        }
        if linked.server.pipeline.is_skipping() && !matches!(frame.tag, tag::SYNC | tag::TERMINATE)
        {
            // The server would ignore it, and PostgreSQL ignores even a Query here.
            return Ok(Step::Drop);
        }
        match frame.tag {
            tag::QUERY if self.settings.refuses_queries => Err(Error::QueriesDisallowed),
            tag::QUERY => Ok(self.query(linked, frame, out)),
            tag::PARSE => self.parse(linked, frame, out),
            tag::BIND => self.bind(linked, frame, out),
            tag::DESCRIBE => self.describe(linked, frame, out),
            tag::EXECUTE => self.execute(linked, frame, out),
            tag::CLOSE => self.close(linked, frame, out),
            tag::SYNC => Ok(Self::sync(linked)),
            tag::FLUSH => Ok(Step::Pass),
            tag::FUNCTION_CALL => {
                self.touch_anything(b"(FunctionCall)");
                self.sequences.run(b"(FunctionCall)");
                linked.server.drawn.add(self.id);
                linked.owes(Expect::Forward(Request::FunctionCall), None);
                Ok(Step::Pass)
            }
            tag::COPY_DATA => Ok(if linked.server.pipeline.wants_copy_data() {
                Step::Pass
            } else {
                Step::Drop
            }),
            tag::COPY_DONE | tag::COPY_FAIL => Ok(if linked.server.pipeline.end_copy() {
                Step::Pass
            } else {
                Step::Drop
            }),
            tag::TERMINATE => {
                self.terminated = true;
                Ok(Step::Drop)
            }
            other => Err(Error::UnknownMessage(other)),
        }
    }

    fn query(
        &mut self,
        linked: &mut Linked<'_>,
        frame: &Frame<'_>,
        out: &mut Outgoing<'_>,
    ) -> Step {
        if frame.is_complete() {
            // One that makes no sense is PostgreSQL's to refuse, for it goes on after that.
            let sql = frontend::Query::read(frame.body()).map_or(&b""[..], |query| query.sql);
            let (mut found, may_drop) = self.touches(sql);
            if let Some(it) = &found {
                if self.runs_quietly(sql) {
                    found = None;
                } else {
                    self.touch(it, sql);
                }
            }
            if self.run_with_sequences(linked, (sql, found.as_deref()), By::Query, out) {
                return Step::Fenced;
            }
            // SET LOCAL leaves nothing behind, and yet the next text is read under it.
            let changes = if may_drop || classify::begins_with_set(sql) {
                classify::changes(sql)
            } else {
                Changes::default()
            };
            if !changes.statements.is_empty() {
                if linked.server.pipeline.awaits_server() {
                    // What is under way may fail, and so decide which of the names there are.
                    self.fence(linked, out);
                    return Step::Fenced;
                }
                if self.may_unlisten(found.as_deref(), sql) {
                    self.listen_again(linked, By::Query, out);
                }
                self.query_that_drops_names(linked, sql, &changes.statements, out);
                return Step::Done;
            }
            if self.may_unlisten(found.as_deref(), sql) {
                if linked.server.pipeline.awaits_server() {
                    // The transaction may have failed by then.
                    self.fence(linked, out);
                    return Step::Fenced;
                }
                self.listen_again(linked, By::Query, out);
            }
            if changes.settings {
                self.settings_may_change();
            }
        } else if frame.len <= LOOK_AT {
            return Step::Incomplete;
        } else {
            self.touch_anything(frame.body());
            if self.run_with_sequences(linked, (frame.body(), None), By::Query, out) {
                return Step::Fenced;
            }
        }
        let effect = self.statements.drop_unnamed().map(Effect::Unnamed);
        self.unnamed_becomes(linked, Unnamed::Unknown);
        linked.owes(Expect::Forward(Request::Query), effect);
        Step::Pass
    }

    /// Must a message that uses this name wait until it is known what it means? Then nothing is taken from the client
    /// until the server has answered.
    #[inline]
    fn wait_for(&mut self, linked: &mut Linked<'_>, name: &[u8], out: &mut Outgoing<'_>) -> bool {
        let wait = self.is_unsettled(name, linked.server.pipeline.batch());
        if wait {
            self.fence(linked, out);
        }
        wait
    }

    /// Nothing more is taken from the client until the server has answered all that was sent.
    pub(super) fn fence(&mut self, linked: &mut Linked<'_>, out: &mut Outgoing<'_>) {
        self.fenced = true;
        if linked.server.pipeline.needs_sync() {
            // The client's Sync stands behind the fence: without it the server may hold its answers back.
            frontend::flush(out.insert());
        }
    }

    /// Notes what the server's unnamed statement is once it has done what is being sent. A later batch can't rest on it
    /// before this one is answered: if it fails, whatever was there before stays, which may be another client's.
    #[inline]
    pub(super) fn unnamed_becomes(&mut self, linked: &mut Linked<'_>, unnamed: Unnamed) {
        linked.server.unnamed = unnamed;
        self.unnamed_changed = linked.server.pipeline.batch();
    }

    fn execute(
        &mut self,
        linked: &mut Linked<'_>,
        frame: &Frame<'_>,
        out: &mut Outgoing<'_>,
    ) -> Result<Step, Error> {
        if !frame.is_complete() {
            return Ok(Step::Incomplete);
        }
        if !self.portals.is_empty()
            && let Some(forget) = self.portals.get(Execute::read(frame.body())?.portal)
        {
            if linked.server.pipeline.awaits_server() {
                // What is under way may fail, and so decide whether there is such a name.
                self.fence(linked, out);
                return Ok(Step::Fenced);
            }
            let forget = forget.clone();
            if let Forget::Name(name) = &forget {
                if self.statements.get(name).is_some() {
                    self.put_stand_in(linked, 0, out);
                } else {
                    self.take_stand_in(linked, 0, out);
                }
            }
            let effect = Effect::Forget(vec![forget]);
            linked.owes(Expect::Forward(Request::Execute), Some(effect));
            out.insert().extend_from_slice(frame.bytes);
            // The answer is needed before the next message can be understood.
            frontend::flush(out.insert());
            self.fenced = true;
            return Ok(Step::Done);
        }
        linked.owes(Expect::Forward(Request::Execute), None);
        Ok(Step::Pass)
    }

    fn sync(linked: &mut Linked<'_>) -> Step {
        linked
            .server
            .pipeline
            .push_sync(Expect::Forward(Request::Sync));
        Step::Pass
    }
}

/// Passes on, or drops, the next piece of a message's body.
pub(super) fn pass_body(
    passing: &mut Passing,
    input: &[u8],
    at: usize,
    out: &mut Outgoing<'_>,
) -> usize {
    let here = passing.take(input.len() - at);
    if passing.forward() {
        out.pass(at..at + here);
    }
    here
}
