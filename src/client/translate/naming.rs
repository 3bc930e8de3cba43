//! Messages that name a statement: Parse, Bind, Describe and Close.
//!
//! They get the global name and, where the server does not have the statement yet, its Parse ahead of them; what need not
//! be sent is answered in its turn by the pipeline. Whether a message may be looked at yet is the parent's.

use std::sync::Arc;

use super::shapes::{self, Bound};
use super::{KEEP_UNNAMED, Step};
use crate::client::Error;
use crate::client::channels::By;
use crate::client::relay::{Linked, Outgoing, Relay};
use crate::client::statements::plain;
use crate::prepared::Statement;
use crate::protocol::frame::{Frame, HEADER_LEN};
use crate::protocol::frontend::{self, BindHead, Named as NamedView, Parse, Target, tag};
use crate::protocol::shape::Shape;
use crate::protocol::{self, backend::TxStatus, rewrite};
use crate::server::pipeline::{Expect, Request};
use crate::server::statements::Known;
use crate::server::{Effect, Forget, Named, StatementRef, Unnamed};
use crate::sql::classify;
use crate::sql::touches::Found;

impl Relay {
    pub(super) fn parse(
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
            self.touch_anything(frame.body().get(1..).unwrap_or_default());
            let version = self.statements.pass_unnamed();
            self.unnamed_becomes(linked, Unnamed::Of(self.id, version));
            linked.owes(
                Expect::Forward(Request::Parse),
                Some(Effect::Unnamed(version)),
            );
            return Ok(Step::Pass);
        }
        let parse = Parse::read(frame.body()).map_err(|error| broken(frame.body(), error))?;
        let (found, may_drop) = self.touches(parse.sql);
        if let Some(found) = &found {
            self.prepares_to_ask(found, parse.sql);
        }
        let found = found.map(Arc::from);
        let (forget, rewritten) = if may_drop || classify::begins_with_set(parse.sql) {
            self.forgetting(&parse)
        } else {
            (None, None)
        };
        let definition = rewritten.as_deref().unwrap_or(parse.rest);
        if unnamed {
            let version = self.statements.replace_unnamed(definition, forget, found);
            self.unnamed_becomes(linked, Unnamed::Of(self.id, version));
            linked.owes(
                Expect::Forward(Request::Parse),
                Some(Effect::Unnamed(version)),
            );
            let asks = self.moves_unasked;
            if rewritten.is_none() && !asks {
                return Ok(Step::Pass);
            }
            let behind = out.behind(frame.bytes);
            frontend::parse(out.insert(), b"", definition);
            if asks && !shapes::asks_for(behind, b"") {
                shapes::inquire_unnamed(linked, version, true, out);
            }
            return Ok(Step::Done);
        }
        if !self.translates() && self.statements.get(parse.name).is_none() {
            if let Some(found) = &found {
                self.touch(found, parse.sql);
            }
            if self.run_with_sequences(linked, (parse.sql, found.as_deref()), By::Bind, out) {
                return Ok(Step::Fenced);
            }
            if self.may_unlisten(found.as_deref(), parse.sql) {
                self.listen_again(linked, By::Bind, out);
            }
            linked.owes(Expect::Forward(Request::Parse), None);
            return Ok(Step::Pass);
        }
        if self.wait_for(linked, parse.name, out) {
            return Ok(Step::Fenced);
        }
        linked.counters.client_parses.add(1);
        let behind = out.behind(frame.bytes);
        let noted = (forget, found, behind);
        self.parse_named(linked, parse.name, definition, noted, out)
    }

    #[allow(clippy::too_many_arguments, reason = "what one Parse is made of")]
    fn parse_named(
        &mut self,
        linked: &mut Linked<'_>,
        name: &[u8],
        definition: &[u8],
        (forget, found, behind): (Option<Forget>, Option<Arc<Found>>, &[u8]),
        out: &mut Outgoing<'_>,
    ) -> Result<Step, Error> {
        if self.statements.get(name).is_some() {
            self.parse_duplicate(linked, name, definition, out);
            return Ok(Step::Done);
        }
        let budget = self.budget();
        let statement = self.registry.intern(definition, &self.context, budget)?;
        let (mut known, mut shape) = linked
            .server
            .statements
            .touch(&statement, linked.server.pipeline.batch());
        if known == Known::Suspect || known == Known::Yes && transaction_may_have_failed(linked) {
            // PostgreSQL refuses nearly every text in a failed transaction, so it has to be asked.
            (known, shape) = (Known::InDoubt, Shape::UNKNOWN);
        }
        self.statements.insert(
            name.into(),
            Named {
                shape,
                forget,
                found,
                ..plain(statement.clone())
            },
        );
        self.unsettled
            .insert(name.into(), linked.server.pipeline.batch());
        if known == Known::Yes {
            linked.count(true);
            let effect = Effect::Named {
                name: name.into(),
                sent: None,
            };
            linked.owes(Expect::Synthesize(Request::Parse), Some(effect));
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
        if !shape.is_known() && !shapes::asks_for(behind, name) {
            let told = shapes::told(name, &statement, Shape::UNKNOWN);
            shapes::inquire(linked, &statement, Some(told), out);
        }
        make_room(linked, self.settings.max_prepared_statements, out);
        Ok(Step::Done)
    }

    pub(super) fn bind(
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
        if self.bind_with_sequences(linked, head.statement, out) {
            return Ok(Step::Fenced);
        }
        if !self.portals.is_empty() {
            self.portals.remove(head.portal);
        }
        if self.channels.is_some() {
            self.listen_again_for(linked, head.statement, out);
        }
        if head.statement.is_empty() {
            return self.bind_unnamed(linked, (frame, &head), out);
        }
        // A call of itself would keep it from being inlined.
        let mut named = loop {
            let Some(named) = self.statements.get(head.statement) else {
                linked.owes(Expect::Forward(Request::Bind), None);
                self.sequences.run(head.statement);
                return self.foreign(frame, &head, out);
            };
            if *named.statement.0.context() == self.context {
                break named;
            }
            self.read_anew(head.statement)?;
        };
        let batch = linked.server.pipeline.batch();
        let statement = &named.statement.0;
        let (known, shape) = linked.server.statements.touch(statement, batch);
        let mut effect = None;
        if shape.is_known() && shape == named.shape {
            linked.count(true);
        } else {
            match self.bind_otherwise(linked, (frame, &head), (known, shape), out) {
                Bound::Goes(noted) => effect = noted,
                Bound::Waits(step) => return Ok(step),
                Bound::Refused => return shapes::refuse(linked, (frame, &head), out),
            }
            let Some(found) = self.statements.get(head.statement) else {
                return Ok(Step::Incomplete);
            };
            named = found;
        }
        let statement = &named.statement.0;
        linked.counters.binds.add(1);
        self.sequences.run(statement.definition());
        make_room(linked, self.settings.max_prepared_statements, out);
        let length = u32::try_from(frame.len - 1).unwrap_or(u32::MAX);
        rewrite::bind_head(out.insert(), &head, statement.name(), length)?;
        let forget = named.forget.clone();
        if let Some(found) = named.found.clone() {
            let statement = statement.clone();
            let text = Parse::text(statement.definition());
            self.touch_bound(&found, text, (frame, &head));
        }
        self.note_portal(head.portal, forget);
        linked.owes(Expect::Forward(Request::Bind), effect);
        Ok(Step::PassAfter(HEADER_LEN + head.len))
    }

    /// A Bind of the unnamed statement.
    #[inline]
    fn bind_unnamed(
        &mut self,
        linked: &mut Linked<'_>,
        (frame, head): (&Frame<'_>, &BindHead<'_>),
        out: &mut Outgoing<'_>,
    ) -> Result<Step, Error> {
        if !self.has_unnamed(linked) {
            match self.bring_unnamed(linked, Some((frame, head)), out) {
                Bound::Goes(_) => {}
                Bound::Waits(step) => return Ok(step),
                Bound::Refused => return shapes::refuse(linked, (frame, head), out),
            }
        }
        let kept = self.statements.unnamed().map(|(_, text)| text);
        self.sequences
            .run(kept.map_or(&b""[..], |text| &text.definition));
        let forget = kept.and_then(|text| text.forget.clone());
        if let Some(text) = kept
            && let Some(found) = text.found.clone()
        {
            let sql = Parse::text(&text.definition).to_vec();
            self.touch_bound(&found, &sql, (frame, head));
        }
        self.note_portal(head.portal, forget);
        linked.owes(Expect::Forward(Request::Bind), None);
        Ok(Step::Pass)
    }

    /// A name the client has not given to a statement by Parse. PostgreSQL may know it all the same (SQL's PREPARE),
    /// and if not, its own error is the right answer. Only our own names are not for clients.
    fn foreign(
        &mut self,
        frame: &Frame<'_>,
        head: &BindHead<'_>,
        out: &mut Outgoing<'_>,
    ) -> Result<Step, Error> {
        if !head
            .statement
            .starts_with(self.registry.prefix().as_bytes())
        {
            if self.prepares_by_sql() {
                self.touch_anything(head.statement);
            }
            return Ok(Step::Pass);
        }
        let length = u32::try_from(frame.len - 1).unwrap_or(u32::MAX);
        rewrite::bind_head(out.insert(), head, b"?", length)?;
        Ok(Step::PassAfter(HEADER_LEN + head.len))
    }

    #[inline]
    fn note_portal(&mut self, portal: &[u8], forget: Option<Forget>) {
        if let Some(forget) = forget {
            self.note_forgetting(portal, forget);
        }
    }

    #[cold]
    fn note_forgetting(&mut self, portal: &[u8], forget: Forget) {
        if matches!(forget, Forget::All | Forget::Settings) {
            self.settings_may_change();
        }
        if forget != Forget::Settings {
            self.portals.insert(portal.into(), forget);
        }
    }

    pub(super) fn describe(
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
            linked.owes(Expect::Forward(request), None);
            return Ok(Step::Pass);
        }
        if self.wait_for(linked, described.name, out) {
            return Ok(Step::Fenced);
        }
        if let Some(named) = self.statements.get(described.name)
            && *named.statement.0.context() != self.context
        {
            self.read_anew(described.name)?;
        }
        if described.name.is_empty() {
            return Ok(self.describe_unnamed(linked, out));
        }
        if let Some(named) = self.statements.get(described.name) {
            let limit = self.settings.max_prepared_statements;
            let (statement, before) = (&named.statement.0, named.shape);
            let batch = linked.server.pipeline.batch();
            let (known, shape) = linked.server.statements.touch(statement, batch);
            ensure(linked, statement, known, out);
            make_room(linked, limit, out);
            rewrite::named(
                out.insert(),
                tag::DESCRIBE,
                Target::Statement,
                statement.name(),
            );
            let effect = if shape.is_known() && shape == before {
                None
            } else {
                let told = shapes::told(described.name, statement, before);
                let effect = shapes::effect(statement, Some(told));
                self.statements.unlearn(described.name);
                Some(effect)
            };
            linked.owes(Expect::Forward(request), effect);
            return Ok(Step::Done);
        } else if described
            .name
            .starts_with(self.registry.prefix().as_bytes())
        {
            rewrite::named(out.insert(), tag::DESCRIBE, Target::Statement, b"?");
            linked.owes(Expect::Forward(request), None);
            return Ok(Step::Done);
        }
        linked.owes(Expect::Forward(request), None);
        Ok(Step::Pass)
    }

    pub(super) fn close(
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
                linked.owes(Expect::Forward(Request::Close), effect);
                return Ok(Step::Pass);
            }
            if self.wait_for(linked, closed.name, out) {
                return Ok(Step::Fenced);
            }
            if let Some(named) = self.statements.remove(closed.name) {
                self.unsettled
                    .insert(closed.name.into(), linked.server.pipeline.batch());
                let effect = Effect::Closed(closed.name.into(), named);
                linked.owes(Expect::Synthesize(Request::Close), Some(effect));
                return Ok(Step::Done);
            }
            if closed.name.starts_with(self.registry.prefix().as_bytes()) {
                linked.owes(Expect::Synthesize(Request::Close), None);
                return Ok(Step::Done);
            }
        }
        linked.owes(Expect::Forward(Request::Close), None);
        Ok(Step::Pass)
    }
}

/// What PgBouncer calls a Parse that can't be read depends on whether it has a name.
#[cold]
fn broken(body: &[u8], error: protocol::Error) -> Error {
    if body.contains(&0) {
        Error::BrokenParse(error)
    } else {
        error.into()
    }
}

/// Is the transaction failed, or could it be by the time the server gets there?
fn transaction_may_have_failed(linked: &Linked<'_>) -> bool {
    linked.server.status == TxStatus::Failed || linked.server.pipeline.owes_ready()
}

/// Sees to it that the server has the statement by the time it gets what is sent next.
#[inline]
pub(super) fn ensure(
    linked: &mut Linked<'_>,
    statement: &Arc<Statement>,
    known: Known,
    out: &mut Outgoing<'_>,
) {
    if matches!(known, Known::Yes | Known::Suspect) {
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
pub(super) fn make_room(linked: &mut Linked<'_>, limit: usize, out: &mut Outgoing<'_>) {
    if linked.server.statements.len() > limit {
        close_surplus(linked, limit, out);
    }
}

#[cold]
fn close_surplus(linked: &mut Linked<'_>, limit: usize, out: &mut Outgoing<'_>) {
    let pipeline = &mut linked.server.pipeline;
    let batch = pipeline.batch();
    while let Some(surplus) = linked.server.statements.evict_over(limit, batch) {
        frontend::close(out.insert(), Target::Statement, surplus.name());
        let effect = Effect::Evicted(StatementRef(surplus));
        pipeline.push(Expect::Swallow(Request::Close), Some(effect));
    }
}

/// Sends the statement's Parse; if it may be there already, that one goes first.
pub(super) fn prepare(
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
        linked.owes(Expect::Swallow(Request::Close), None);
    }
    frontend::parse(out.insert(), statement.name(), statement.definition());
    linked.owes(expect, Some(effect));
    linked
        .server
        .statements
        .sent(statement, linked.server.pipeline.batch());
}
