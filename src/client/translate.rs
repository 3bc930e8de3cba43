//! From the client to the server: every message is passed on, renamed, held back or answered here.
//!
//! A named statement goes by its global name on the server, and is prepared there just in time. What is noted down
//! ahead of the server's answer goes along with the request through the pipeline, and is taken
//! back if the server does not do it.

use std::sync::Arc;

use super::Error;
use super::relay::{Linked, Outgoing, Passing, Relay};
use super::statements::plain;
use crate::prepared::Statement;
use crate::protocol::frame::{Frame, HEADER_LEN, cut};
use crate::protocol::frontend::{self, BindHead, Execute, Named as NamedView, Parse, Target, tag};
use crate::protocol::{backend::TxStatus, rewrite};
use crate::server::pipeline::{Expect, Request};
use crate::server::statements::Known;
use crate::server::{Effect, Forget, Named, StatementRef, Unnamed};
use crate::sql::classify::statement_changes;

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
        }
        while at < input.len() && !self.terminated {
            if self.inbound.left > 0 {
                at += pass_body(&mut self.inbound, input, at, out);
                if self.sync_is_due && self.inbound.left == 0 {
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
                    self.inbound = Passing {
                        left: frame.missing(),
                        forward: true,
                    };
                }
                Step::PassAfter(done) => {
                    out.pass(at + done..at + held);
                    self.inbound = Passing {
                        left: frame.missing(),
                        forward: true,
                    };
                }
                Step::Done => {}
                Step::Drop => {
                    self.inbound = Passing {
                        left: frame.missing(),
                        forward: false,
                    }
                }
                Step::Incomplete | Step::Fenced => break,
            }
            at += held;
        }
        Ok(at)
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
                linked
                    .server
                    .pipeline
                    .push(Expect::Synthesize(Request::Sync), None);
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
            tag::QUERY => self.query(linked, frame, out),
            tag::PARSE => self.parse(linked, frame, out),
            tag::BIND => self.bind(linked, frame, out),
            tag::DESCRIBE => self.describe(linked, frame, out),
            tag::EXECUTE => self.execute(linked, frame, out),
            tag::CLOSE => self.close(linked, frame, out),
            tag::SYNC => Ok(Self::sync(linked)),
            tag::FLUSH => Ok(Step::Pass),
            tag::FUNCTION_CALL => {
                linked
                    .server
                    .pipeline
                    .push(Expect::Forward(Request::FunctionCall), None);
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
    ) -> Result<Step, Error> {
        if frame.is_complete() {
            let sql = frontend::Query::read(frame.body())?.sql;
            let changes = statement_changes(sql);
            if !changes.is_empty() {
                if linked.server.pipeline.awaits_server() {
                    // What is under way may fail, and so decide which of the names there are.
                    self.fence(linked, out);
                    return Ok(Step::Fenced);
                }
                self.query_that_drops_names(linked, sql, &changes, out);
                return Ok(Step::Done);
            }
        } else if frame.len <= LOOK_AT {
            return Ok(Step::Incomplete);
        }
        let effect = self.statements.drop_unnamed().map(Effect::Unnamed);
        self.unnamed_becomes(linked, Unnamed::Unknown);
        linked
            .server
            .pipeline
            .push(Expect::Forward(Request::Query), effect);
        Ok(Step::Pass)
    }

    fn parse(
        &mut self,
        linked: &mut Linked<'_>,
        frame: &Frame<'_>,
        out: &mut Outgoing<'_>,
    ) -> Result<Step, Error> {
        let unnamed = frame.body().first() == Some(&0);
        if !frame.is_complete() {
            if !unnamed || frame.len <= KEEP_UNNAMED {
                return Ok(Step::Incomplete);
            }
            // Too long to be kept: it serves this server only.
            let version = self.statements.pass_unnamed();
            self.unnamed_becomes(linked, Unnamed::Of(self.id, version));
            linked.server.pipeline.push(
                Expect::Forward(Request::Parse),
                Some(Effect::Unnamed(version)),
            );
            return Ok(Step::Pass);
        }
        let parse = Parse::read(frame.body())?;
        let (forget, rewritten) = self.forgetting(&parse);
        let definition = rewritten.as_deref().unwrap_or(parse.rest);
        if unnamed {
            let version = self.statements.replace_unnamed(definition, forget);
            self.unnamed_becomes(linked, Unnamed::Of(self.id, version));
            linked.server.pipeline.push(
                Expect::Forward(Request::Parse),
                Some(Effect::Unnamed(version)),
            );
            if rewritten.is_none() {
                return Ok(Step::Pass);
            }
            frontend::parse(out.insert(), b"", definition);
            return Ok(Step::Done);
        }
        if !self.translates() && self.statements.get(parse.name).is_none() {
            linked
                .server
                .pipeline
                .push(Expect::Forward(Request::Parse), None);
            return Ok(Step::Pass);
        }
        if self.wait_for(linked, parse.name, out) {
            return Ok(Step::Fenced);
        }
        linked.counters.client_parses.add(1);
        self.parse_named(linked, parse.name, definition, forget, out)
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
    fn fence(&mut self, linked: &mut Linked<'_>, out: &mut Outgoing<'_>) {
        self.fenced = true;
        if linked.server.pipeline.needs_sync() {
            // The client's Sync stands behind the fence: without it the server may hold its answers back.
            frontend::flush(out.insert());
        }
    }

    #[allow(clippy::too_many_arguments, reason = "what one Parse is made of")]
    fn parse_named(
        &mut self,
        linked: &mut Linked<'_>,
        name: &[u8],
        definition: &[u8],
        forget: Option<Forget>,
        out: &mut Outgoing<'_>,
    ) -> Result<Step, Error> {
        if self.statements.get(name).is_some() {
            self.parse_duplicate(linked, name, definition, out);
            return Ok(Step::Done);
        }
        let budget = self
            .settings
            .prepared_memory
            .saturating_sub(self.names_held.get());
        let statement = self.registry.intern(definition, budget)?;
        self.statements.insert(
            name.into(),
            Named {
                forget,
                ..plain(statement.clone())
            },
        );
        self.unsettled
            .insert(name.into(), linked.server.pipeline.batch());
        let mut known = linked
            .server
            .statements
            .touch(&statement, linked.server.pipeline.batch());
        if known == Known::Yes && transaction_may_have_failed(linked) {
            // PostgreSQL refuses nearly every text in a failed transaction, so it has to be asked.
            known = Known::InDoubt;
        }
        if known == Known::Yes {
            linked.count(true);
            let effect = Effect::Named {
                name: name.into(),
                sent: None,
            };
            linked
                .server
                .pipeline
                .push(Expect::Synthesize(Request::Parse), Some(effect));
        } else {
            let effect = Effect::Named {
                name: name.into(),
                sent: Some(statement.id()),
            };
            prepare(
                linked,
                &statement,
                known,
                (Expect::Forward(Request::Parse), effect),
                out,
            );
        }
        make_room(linked, self.settings.max_prepared_statements, out);
        Ok(Step::Done)
    }

    /// Notes what the server's unnamed statement is once it has done what is being sent. A later batch can't rest on it
    /// before this one is answered: if it fails, whatever was there before stays, which may be another client's.
    #[inline]
    pub(super) fn unnamed_becomes(&mut self, linked: &mut Linked<'_>, unnamed: Unnamed) {
        linked.server.unnamed = unnamed;
        self.unnamed_changed = Some(linked.server.pipeline.batch());
    }

    /// Sees to it that the server's unnamed statement is the client's: its text may have been prepared on another
    /// server, or another client's may be there now.
    fn ensure_unnamed(&mut self, linked: &mut Linked<'_>, out: &mut Outgoing<'_>) {
        let here = linked.server.unnamed;
        if let Some(version) = self.statements.newest_unnamed()
            && here == Unnamed::Of(self.id, version)
        {
            return;
        }
        let request = match self.statements.unnamed() {
            Some((version, text)) => {
                frontend::parse(out.insert(), b"", &text.definition);
                self.unnamed_becomes(linked, Unnamed::Of(self.id, version));
                Request::Parse
            }
            None => {
                if here == Unnamed::Empty {
                    return;
                }
                // So that PostgreSQL says that there is none.
                frontend::close(out.insert(), Target::Statement, b"");
                self.unnamed_becomes(linked, Unnamed::Empty);
                Request::Close
            }
        };
        linked
            .server
            .pipeline
            .push(Expect::Swallow(request), Some(Effect::UnnamedReplaced));
    }

    fn bind(
        &mut self,
        linked: &mut Linked<'_>,
        frame: &Frame<'_>,
        out: &mut Outgoing<'_>,
    ) -> Result<Step, Error> {
        let Some(head) = BindHead::read(frame.body())? else {
            return if frame.is_complete() {
                Err(crate::protocol::Error::MissingNul.into())
            } else {
                Ok(Step::Incomplete)
            };
        };
        if self.wait_for(linked, head.statement, out) {
            return Ok(Step::Fenced);
        }
        if !self.portals.is_empty() {
            self.portals.remove(head.portal);
        }
        if head.statement.is_empty() {
            self.ensure_unnamed(linked, out);
            let forget = self
                .statements
                .unnamed()
                .and_then(|(_, text)| text.forget.clone());
            self.note_portal(head.portal, forget);
            linked
                .server
                .pipeline
                .push(Expect::Forward(Request::Bind), None);
            return Ok(Step::Pass);
        }
        let Some(named) = self.statements.get(head.statement) else {
            linked
                .server
                .pipeline
                .push(Expect::Forward(Request::Bind), None);
            return self.foreign(frame, &head, out);
        };
        linked.counters.binds.add(1);
        let statement = &named.statement.0;
        ensure(linked, statement, out);
        make_room(linked, self.settings.max_prepared_statements, out);
        let length = u32::try_from(frame.len - 1).unwrap_or(u32::MAX);
        rewrite::bind_head(out.insert(), &head, statement.name(), length)?;
        let forget = named.forget.clone();
        self.note_portal(head.portal, forget);
        linked
            .server
            .pipeline
            .push(Expect::Forward(Request::Bind), None);
        Ok(Step::PassAfter(HEADER_LEN + head.len))
    }

    /// A name the client has not given to a statement by Parse. PostgreSQL may know it all the same (SQL's PREPARE),
    /// and if not, its own error is the right answer. Only our own names are not for clients.
    fn foreign(
        &self,
        frame: &Frame<'_>,
        head: &BindHead<'_>,
        out: &mut Outgoing<'_>,
    ) -> Result<Step, Error> {
        if !head
            .statement
            .starts_with(self.registry.prefix().as_bytes())
        {
            return Ok(Step::Pass);
        }
        let length = u32::try_from(frame.len - 1).unwrap_or(u32::MAX);
        rewrite::bind_head(out.insert(), head, b"?", length)?;
        Ok(Step::PassAfter(HEADER_LEN + head.len))
    }

    fn note_portal(&mut self, portal: &[u8], forget: Option<Forget>) {
        if let Some(forget) = forget {
            self.portals.insert(portal.into(), forget);
        }
    }

    fn describe(
        &mut self,
        linked: &mut Linked<'_>,
        frame: &Frame<'_>,
        out: &mut Outgoing<'_>,
    ) -> Result<Step, Error> {
        if !frame.is_complete() {
            return Ok(Step::Incomplete);
        }
        let described = NamedView::read(frame.body())?;
        let request = match described.target {
            Target::Portal => Request::DescribePortal,
            Target::Statement => Request::DescribeStatement,
        };
        if described.target == Target::Portal {
            linked.server.pipeline.push(Expect::Forward(request), None);
            return Ok(Step::Pass);
        }
        if self.wait_for(linked, described.name, out) {
            return Ok(Step::Fenced);
        }
        if described.name.is_empty() {
            self.ensure_unnamed(linked, out);
        } else if let Some(named) = self.statements.get(described.name) {
            let limit = self.settings.max_prepared_statements;
            ensure(linked, &named.statement.0, out);
            make_room(linked, limit, out);
            rewrite::named(
                out.insert(),
                tag::DESCRIBE,
                Target::Statement,
                named.statement.0.name(),
            );
            linked.server.pipeline.push(Expect::Forward(request), None);
            return Ok(Step::Done);
        } else if described
            .name
            .starts_with(self.registry.prefix().as_bytes())
        {
            rewrite::named(out.insert(), tag::DESCRIBE, Target::Statement, b"?");
            linked.server.pipeline.push(Expect::Forward(request), None);
            return Ok(Step::Done);
        }
        linked.server.pipeline.push(Expect::Forward(request), None);
        Ok(Step::Pass)
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
            linked
                .server
                .pipeline
                .push(Expect::Forward(Request::Execute), Some(effect));
            out.insert().extend_from_slice(frame.bytes);
            // The answer is needed before the next message can be understood.
            frontend::flush(out.insert());
            self.fenced = true;
            return Ok(Step::Done);
        }
        linked
            .server
            .pipeline
            .push(Expect::Forward(Request::Execute), None);
        Ok(Step::Pass)
    }

    fn close(
        &mut self,
        linked: &mut Linked<'_>,
        frame: &Frame<'_>,
        out: &mut Outgoing<'_>,
    ) -> Result<Step, Error> {
        if !frame.is_complete() {
            return Ok(Step::Incomplete);
        }
        let closed = NamedView::read(frame.body())?;
        if closed.target == Target::Statement {
            if closed.name.is_empty() {
                let effect = self.statements.drop_unnamed().map(Effect::Unnamed);
                self.unnamed_becomes(linked, Unnamed::Unknown);
                linked
                    .server
                    .pipeline
                    .push(Expect::Forward(Request::Close), effect);
                return Ok(Step::Pass);
            }
            if self.wait_for(linked, closed.name, out) {
                return Ok(Step::Fenced);
            }
            if let Some(named) = self.statements.remove(closed.name) {
                self.unsettled
                    .insert(closed.name.into(), linked.server.pipeline.batch());
                let effect = Effect::Closed(closed.name.into(), named);
                linked
                    .server
                    .pipeline
                    .push(Expect::Synthesize(Request::Close), Some(effect));
                return Ok(Step::Done);
            }
            if closed.name.starts_with(self.registry.prefix().as_bytes()) {
                linked
                    .server
                    .pipeline
                    .push(Expect::Synthesize(Request::Close), None);
                return Ok(Step::Done);
            }
        }
        linked
            .server
            .pipeline
            .push(Expect::Forward(Request::Close), None);
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

/// Is the transaction failed, or could it be by the time the server gets there?
fn transaction_may_have_failed(linked: &Linked<'_>) -> bool {
    linked.server.status == TxStatus::Failed || linked.server.pipeline.owes_ready()
}

/// Sees to it that the server has the statement by the time it gets what is sent next.
#[inline]
fn ensure(linked: &mut Linked<'_>, statement: &Arc<Statement>, out: &mut Outgoing<'_>) {
    let known = linked
        .server
        .statements
        .touch(statement, linked.server.pipeline.batch());
    if known == Known::Yes {
        linked.count(true);
    } else {
        let effect = Effect::Prepared(statement.id());
        prepare(
            linked,
            statement,
            known,
            (Expect::Swallow(Request::Parse), effect),
            out,
        );
    }
}

/// Closes statements over the limit. Only where the client itself says something of the extended protocol: a Close before
/// its Sync would stand inside of COPY data if its Execute is of a COPY, which ends the connection. Those that the
/// batch has used stay, since it may use them again.
#[inline]
fn make_room(linked: &mut Linked<'_>, limit: usize, out: &mut Outgoing<'_>) {
    let pipeline = &mut linked.server.pipeline;
    let batch = pipeline.batch();
    while let Some(surplus) = linked.server.statements.evict_over(limit, batch) {
        frontend::close(out.insert(), Target::Statement, surplus.name());
        let effect = Effect::Evicted(StatementRef(surplus));
        pipeline.push(Expect::Swallow(Request::Close), Some(effect));
    }
}

/// Sends the statement's Parse; if it may be there already, that one goes first.
fn prepare(
    linked: &mut Linked<'_>,
    statement: &Arc<Statement>,
    known: Known,
    (expect, effect): (Expect, Effect),
    out: &mut Outgoing<'_>,
) {
    linked.count(false);
    linked.counters.server_parses.add(1);
    if known == Known::InDoubt {
        frontend::close(out.insert(), Target::Statement, statement.name());
        linked
            .server
            .pipeline
            .push(Expect::Swallow(Request::Close), None);
    }
    frontend::parse(out.insert(), statement.name(), statement.definition());
    linked.server.pipeline.push(expect, Some(effect));
    linked
        .server
        .statements
        .sent(statement, linked.server.pipeline.batch());
}

/// Passes on, or drops, the next piece of a message's body.
pub(super) fn pass_body(
    passing: &mut Passing,
    input: &[u8],
    at: usize,
    out: &mut Outgoing<'_>,
) -> usize {
    let here = passing.left.min(input.len() - at);
    if passing.forward {
        out.pass(at..at + here);
    }
    passing.left -= here;
    here
}
