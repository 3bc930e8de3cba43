//! Batches of an unnamed statement that is prepared on the servers all the same (`prepare_unnamed_after`).
//!
//! For PostgreSQL each Parse of the unnamed statement is a new one: its errors come at Parse, and its result is what the tables are
//! now. A statement that is there already differs where something has changed: it fails when it is bound. So it is used only where that can be
//! taken back unnoticed: the batch is there as a whole, stands alone, outside of a transaction, and is Parse, Bind, perhaps Describe,
//! Execute and Sync, of the unnamed statement and portal. The client is told `ParseComplete` when the Bind is done, and not
//! before. If the Bind fails, for whatever reason, nothing was said and nothing done: the batch is run again as
//! the client has sent it, and it gets what PostgreSQL says to that. Behind such a batch nothing is sent until it is answered.
//!
//! Which texts are prepared is `prepared::promotion`'s; which may be, `sql::steady`'s.

use super::naming::{make_room, prepare};
use crate::client::Error;
use crate::client::relay::{Linked, Outgoing, Relay};
use crate::prepared::promotion::{Run, Verdict};
use crate::protocol::backend::{ErrorFields, TxStatus};
use crate::protocol::frame::{Frame, HEADER_LEN, cut};
use crate::protocol::frontend::{BindHead, Execute, Named, Parse, Target, tag};
use crate::protocol::{rewrite, sqlstate};
use crate::server::pipeline::{Expect, Request};
use crate::server::statements::Known;
use crate::server::{Effect, LONGEST_BATCH, Timed};
use crate::sql::steady::steadiness;

/// A batch that one unnamed statement is prepared and run by.
struct Whole<'a> {
    parse: Parse<'a>,
    bind: Frame<'a>,
    head: BindHead<'a>,
    describes: bool,
    /// Where the Bind begins.
    bind_at: usize,
}

impl<'a> Whole<'a> {
    fn read(input: &'a [u8]) -> Option<Self> {
        if input.len() > LONGEST_BATCH || !matches!(input, [tag::PARSE, _, _, _, _, 0, ..]) {
            return None;
        }
        let mut at = 0;
        let mut next = || {
            let frame = cut(input.get(at..)?, LONGEST_BATCH).ok()??;
            at += frame.len;
            frame.is_complete().then_some((frame, at))
        };
        let (parse, bind_at) = next()?;
        let (bind, _) = next().filter(|(frame, _)| frame.tag == tag::BIND)?;
        let head = BindHead::read(bind.body()).ok()??;
        let (mut execute, _) = next()?;
        let describes = execute.tag == tag::DESCRIBE;
        if describes {
            let described = Named::read(execute.body()).ok()?;
            if described.target != Target::Portal || !described.name.is_empty() {
                return None;
            }
            execute = next()?.0;
        }
        let (sync, end) = next()?;
        let is_whole = execute.tag == tag::EXECUTE
            && Execute::read(execute.body()).ok()?.portal.is_empty()
            && sync.tag == tag::SYNC
            && sync.body().is_empty()
            && end == input.len()
            && head.portal.is_empty()
            && head.statement.is_empty();
        let parse = Parse::read(parse.body()).ok()?;
        is_whole.then_some(Self {
            parse,
            bind,
            head,
            describes,
            bind_at,
        })
    }
}

impl Relay {
    /// The server owes nothing, and this comes from the client. Is it a batch whose statement is prepared? Then all of it has been
    /// dealt with.
    pub(super) fn promote(
        &mut self,
        linked: &mut Linked<'_>,
        input: &[u8],
        out: &mut Outgoing<'_>,
    ) -> Result<bool, Error> {
        if !self.may_promote(linked) {
            return Ok(false);
        }
        let Some(whole) = Whole::read(input) else {
            return Ok(false);
        };
        let (found, may_drop) = self.touches(whole.parse.sql);
        if found.is_some() || may_drop {
            return Ok(false);
        }
        let budget = self.budget();
        // Not cloned: its count of shares is everybody's.
        let promotions = &self.settings.promotions;
        let definition = whole.parse.rest;
        let hash = promotions.hash(&self.context, definition);
        let now = promotions.now();
        let mut list = promotions.list(now);
        if list.get(hash, &self.context, definition).is_none() {
            if !promotions.count(hash, self.settings.prepare_unnamed_after) {
                return Ok(false);
            }
            if steadiness(whole.parse.sql, whole.parse.types) < self.settings.steady_enough {
                promotions.refuse(hash);
                return Ok(false);
            }
            let limits = (self.settings.max_prepared_statements, budget);
            let text = (hash, &self.context, definition);
            promotions.promote(text, &self.registry, limits);
            list = promotions.list(now);
        }
        let Some(promoted) = list.get(hash, &self.context, definition) else {
            return Ok(false);
        };
        let timed = |run| Timed {
            hash,
            run,
            began: now,
        };
        let Some(statement) = promoted.statement() else {
            linked.server.batch.time(timed(Run::Plain));
            return Ok(false);
        };
        let batch = linked.server.pipeline.batch();
        let version = self.statements.replace_unnamed(definition, None, None);
        self.unnamed_changed = batch;
        let (known, _) = linked.server.statements.touch(statement, batch);
        let effect = if known == Known::Yes {
            linked.count(true);
            linked.counters.unnamed_reuses.add(1);
            linked.server.batch.begin(true);
            linked.server.batch.time(timed(Run::Reused));
            self.fenced = true;
            Some(Effect::Reused(version, statement.id()))
        } else {
            let effect = Effect::Promoted(version, statement.id());
            let parse = (Expect::Forward(Request::Parse), effect);
            prepare(linked, statement, known, parse, out);
            linked.server.batch.time(timed(Run::Fresh));
            None
        };
        make_room(linked, self.settings.max_prepared_statements, out);
        let length = u32::try_from(whole.bind.len - 1).unwrap_or(u32::MAX);
        rewrite::bind_head(out.insert(), &whole.head, statement.name(), length)?;
        out.pass(whole.bind_at + HEADER_LEN + whole.head.len..input.len());
        linked.owes(Expect::Forward(Request::Bind), effect);
        if whole.describes {
            linked.owes(Expect::Forward(Request::DescribePortal), None);
        }
        linked.owes(Expect::Forward(Request::Execute), None);
        let pipeline = &mut linked.server.pipeline;
        pipeline.push_sync(Expect::Forward(Request::Sync));
        Ok(true)
    }

    /// Could a batch that fails now be run again, and mean what it means to others?
    fn may_promote(&self, linked: &Linked<'_>) -> bool {
        let belongings = self.belongings.as_ref();
        linked.server.pipeline.is_idle()
            && linked.server.status == TxStatus::Idle
            && !self.inbound.is_under_way()
            && !self.runs_plainly
            && !self.skips_alone
            && !self.context_is_open
            && self.portals.is_empty()
            && belongings.is_none_or(|it| !it.leaves_something())
    }

    /// An error: is it of a Bind whose statement was prepared before, so that the batch is run again as the client has
    /// sent it?
    pub(in crate::client) fn reverts(
        &mut self,
        linked: &mut Linked<'_>,
        fields: Option<&ErrorFields<'_>>,
    ) -> bool {
        let Some(Effect::Reused(..)) = linked.server.pipeline.current_effect() else {
            return false;
        };
        let severity = fields.and_then(ErrorFields::severity);
        let code = fields.and_then(ErrorFields::sqlstate).unwrap_or_default();
        // The server ends, or somebody wants the query to.
        if severity != Some(b"ERROR") || code.starts_with(OPERATOR_INTERVENTION) {
            return false;
        }
        let is_alone = linked.server.pipeline.owed_up_to_sync().is_some();
        if !is_alone || linked.server.batch.kept().is_none() {
            return false;
        }
        if code == sqlstate::INVALID_SQL_STATEMENT_NAME.as_bytes() {
            // Something has dropped it, and perhaps others.
            linked.server.statements.doubt_all();
        }
        linked.server.batch.take_timed();
        linked.server.batch.run_again(0);
        self.runs_plainly = true;
        self.fenced = true;
        true
    }

    /// A batch that is timed is over.
    pub(in crate::client) fn judge(&mut self, linked: &mut Linked<'_>) {
        let Some(timed) = linked.server.batch.take_timed() else {
            return;
        };
        let promotions = &self.settings.promotions;
        let took = promotions.now().saturating_sub(timed.began);
        if promotions.ran(timed.hash, timed.run, took) == Some(Verdict::Over) {
            linked.counters.unnamed_demotions.add(1);
            tracing::info!("an unnamed statement is not prepared any more: its plans were slower");
        }
    }
}

/// The class of errors of a query that was cancelled and of a server that ends.
const OPERATOR_INTERVENTION: &[u8] = b"57";
