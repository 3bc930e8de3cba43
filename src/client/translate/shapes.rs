//! Nobody gets columns that are not those it knows of.
//!
//! A client that has asked what the result of its statement is binds and runs it from then on without asking again. PostgreSQL keeps to that: it
//! refuses to run a statement whose columns have changed (`client::replan`). But a server that has never had the statement
//! prepares it without a word, as the tables are now. So each server's list has, for each statement, what Describe says of it
//! there ([`Shape`]), which is asked behind every Parse of a named one; and each name of a client's has what the client knows: what the statement was
//! on the server where the client has prepared it, or what the client was told later. Where these are the same, as nearly always, the Bind goes on
//! its way. Else:
//!
//! - what the server has is not known yet: nothing goes on until it has said so (a fence: one round trip, once for a statement on a server);
//! - the columns are others: the server reads the text anew, since either of the two may be of before the change, and then the client gets the error that it would get from PostgreSQL, unless it asks for them right behind its Bind;
//! - the parameters are of other types: the same error if there are binary values, which mean something else then. PostgreSQL would have
//!   kept the old types, but there is no way to prepare a statement as it was.
//!
//! Servers and clients are compared, and no server with another: one name may well be two tables, on servers where it is a temporary one, or in two
//! databases.
//!
//! The unnamed statement follows its client as a text. Nothing is asked for its own sake where it is parsed: that would be for every query of most drivers. But what the client asks
//! for itself (Describe of the statement) is noted with the text, and if another server has to read that later, it says first what it has made of it, as above. PostgreSQL never
//! lets an unnamed statement change, so nobody gets other columns by asking for them then. A client that uses its statement on another server and has never asked is told nothing wrong: what it is there counts, and from then on
//! the pooler asks where that client parses one.

use super::Step;
use super::naming::ensure;
use crate::client::Error;
use crate::client::relay::{Linked, Outgoing, Relay};
use crate::prepared::Statement;
use crate::protocol::frame::{Frame, HEADER_LEN, cut};
use crate::protocol::frontend::{self, BindHead, Named as NamedView, Target, tag};
use crate::protocol::rewrite;
use crate::protocol::shape::Shape;
use crate::server::pipeline::{Expect, Request};
use crate::server::statements::Known;
use crate::server::{Described, DescribedUnnamed, Effect, Told, Unnamed};
use std::sync::Arc;

/// What becomes of a Bind.
pub(super) enum Bound {
    /// It goes on, with this noted.
    Goes(Option<Effect>),
    /// Not yet.
    Waits(Step),
    /// The client would take the result, or the server the values, for something else.
    Refused,
}

/// What of its knowledge a Bind depends on.
#[derive(Clone, Copy)]
struct Relies {
    /// Nobody asks for the columns behind it.
    on_columns: bool,
    /// It has binary values.
    on_parameters: bool,
}

impl Relies {
    fn on_anything(self) -> bool {
        self.on_columns || self.on_parameters
    }

    /// Is this as good as what the client knows?
    fn serves(self, before: Shape, here: Shape) -> bool {
        (!self.on_columns || here.has_columns_of(before))
            && (!self.on_parameters || here.has_parameters_of(before))
    }

    /// What the server has is not as good, or nobody knows what it is: then it may be of before the change, and the client of after it. PostgreSQL
    /// would not even describe it then. So the server has to read the text anew before the client is told anything, unless it has just done so.
    fn look(
        self,
        linked: &mut Linked<'_>,
        statement: &Statement,
        before: Shape,
        (known, shape): (Known, Shape),
    ) -> (Known, Shape) {
        let batch = linked.server.pipeline.batch();
        let statements = &mut linked.server.statements;
        let is_served = shape.is_known() && self.serves(before, shape);
        if is_served || !statements.is_older(statement.id(), batch) {
            return (known, shape);
        }
        statements.doubt(statement.id());
        (Known::InDoubt, Shape::UNKNOWN)
    }
}

impl Relay {
    /// A Bind of a statement that the server has not got, or that is there another one than the client knows, for all we know.
    #[cold]
    pub(super) fn bind_otherwise(
        &mut self,
        linked: &mut Linked<'_>,
        (frame, head): (&Frame<'_>, &BindHead<'_>),
        (known, shape): (Known, Shape),
        out: &mut Outgoing<'_>,
    ) -> Bound {
        let Some(named) = self.statements.get(head.statement) else {
            return Bound::Goes(None);
        };
        let (statement, before) = (named.statement.0.clone(), named.shape);
        if !before.is_known() {
            // What it is here will be known to the client, by what is under way or by this.
            ensure(linked, &statement, known, out);
            if shape.is_known() {
                self.statements.learn(head.statement, statement.id(), shape);
            } else if is_missing(known) {
                let told = told(head.statement, &statement, before);
                inquire(linked, &statement, Some(told), out);
            }
            return Bound::Goes(None);
        }
        let asks = asks_for_columns(frame, head, out.behind(frame.bytes));
        let relies = Relies {
            on_columns: asks != Some(true),
            on_parameters: !binds_text(frame, head),
        };
        // (What is run again was looked at before: `inquire_for`.)
        let (known, shape) = if self.runs_again {
            (known, shape)
        } else {
            relies.look(linked, &statement, before, (known, shape))
        };
        if shape.is_known() {
            if !relies.serves(before, shape) {
                return match asks {
                    // What comes next decides.
                    None => Bound::Waits(Step::Incomplete),
                    Some(_) => Bound::Refused,
                };
            }
            ensure(linked, &statement, known, out);
            if shape.has_columns_of(before) {
                return Bound::Goes(None);
            }
            let told = columns_told(head.statement, &statement, before);
            let now = before.with_columns_of(shape);
            self.statements.learn(head.statement, statement.id(), now);
            return Bound::Goes(Some(Effect::Told(told)));
        }
        if self.runs_again && relies.on_anything() {
            // Nothing can wait there. That it should come to this was ruled out, unless something else has failed.
            return Bound::Refused;
        }
        ensure(linked, &statement, known, out);
        if !relies.on_anything() {
            let told = columns_told(head.statement, &statement, before);
            inquire(linked, &statement, Some(told.clone()), out);
            self.statements.unlearn(head.statement);
            return Bound::Goes(Some(Effect::Told(told)));
        }
        inquire(linked, &statement, None, out);
        self.fence(linked, out);
        Bound::Waits(Step::Fenced)
    }

    /// A batch is about to be run again, in which nothing can wait. Is there something to be found out first? Then it was asked.
    #[cold]
    pub(in crate::client) fn inquire_for(&mut self, linked: &mut Linked<'_>, bytes: &[u8]) -> bool {
        let mut copied = Vec::new();
        let mut out = Outgoing::new(&[], &mut copied);
        let mut rest = bytes;
        let mut asked = false;
        while let Ok(Some(frame)) = cut(rest, usize::MAX) {
            rest = rest.get(frame.len..).unwrap_or_default();
            if frame.tag != tag::BIND {
                continue;
            }
            let Ok(Some(head)) = BindHead::read(frame.body()) else {
                break;
            };
            let Some(named) = self.statements.get(head.statement) else {
                continue;
            };
            if !named.shape.is_known() || *named.statement.0.context() != self.context {
                continue;
            }
            let statement = &named.statement.0;
            let batch = linked.server.pipeline.batch();
            let (known, shape) = linked.server.statements.touch(statement, batch);
            let relies = Relies {
                on_columns: !asks_for_columns(&frame, &head, rest).unwrap_or_default(),
                on_parameters: !binds_text(&frame, &head),
            };
            let found = (known, shape);
            let (known, shape) = relies.look(linked, statement, named.shape, found);
            if !shape.is_known() && relies.on_anything() {
                ensure(linked, statement, known, &mut out);
                inquire(linked, statement, None, &mut out);
                asked = true;
            }
        }
        if asked {
            frontend::sync(out.insert());
            let pipeline = &mut linked.server.pipeline;
            pipeline.push_sync(Expect::Swallow(Request::Sync));
            self.own.extend_from_slice(out.finish());
        }
        asked
    }
}

/// The unnamed statement, which follows its client from server to server as a text.
impl Relay {
    /// Is the server's unnamed statement the client's?
    #[inline]
    pub(super) fn has_unnamed(&self, linked: &Linked<'_>) -> bool {
        self.statements
            .newest_unnamed()
            .is_some_and(|version| linked.server.unnamed == Unnamed::Of(self.id, version))
    }

    /// Sees to it that the server's unnamed statement is the client's, for this Bind or for a Describe: its text may have been parsed on another
    /// server, or another client's may be there now.
    #[cold]
    pub(super) fn bring_unnamed(
        &mut self,
        linked: &mut Linked<'_>,
        bind: Option<(&Frame<'_>, &BindHead<'_>)>,
        out: &mut Outgoing<'_>,
    ) -> Bound {
        let here = linked.server.unnamed;
        let Some((version, text)) = self.statements.unnamed() else {
            if here != Unnamed::Empty {
                // So that PostgreSQL says that there is none.
                frontend::close(out.insert(), Target::Statement, b"");
                self.unnamed_becomes(linked, Unnamed::Empty);
                let replaced = Some(Effect::UnnamedReplaced);
                linked.owes(Expect::Swallow(Request::Close), replaced);
            }
            return Bound::Goes(None);
        };
        let before = text.shape;
        let relies = Relies {
            on_columns: bind.is_none() || before.has_columns(),
            on_parameters: bind.is_none_or(|(frame, head)| !binds_text(frame, head)),
        };
        if let Unnamed::ReadAgain(id, read, shape) = here
            && (id, read) == (self.id, version)
            && shape.is_known()
        {
            if shape == before {
                linked.server.unnamed = Unnamed::Of(id, version);
            }
            return if relies.serves(before, shape) {
                Bound::Goes(None)
            } else {
                Bound::Refused
            };
        }
        let waits = before.is_known() && relies.on_anything();
        if waits && self.runs_again {
            return Bound::Refused;
        }
        frontend::parse(out.insert(), b"", &text.definition);
        let replaced = Some(Effect::UnnamedReplaced);
        linked.owes(Expect::Swallow(Request::Parse), replaced);
        if before.is_known() {
            let read = Unnamed::ReadAgain(self.id, version, Shape::UNKNOWN);
            self.unnamed_becomes(linked, read);
        } else {
            let version = self.statements.renew_unnamed();
            self.moves_unasked = true;
            self.unnamed_becomes(linked, Unnamed::Of(self.id, version));
            if bind.is_some() {
                inquire_unnamed(linked, version, true, out);
            }
        }
        if !waits {
            return Bound::Goes(None);
        }
        inquire_unnamed(linked, version, false, out);
        self.fence(linked, out);
        Bound::Waits(Step::Fenced)
    }

    /// The client asks what its unnamed statement is. PostgreSQL does not tell of one that is not what it was.
    pub(super) fn describe_unnamed(
        &mut self,
        linked: &mut Linked<'_>,
        out: &mut Outgoing<'_>,
    ) -> Step {
        if !self.has_unnamed(linked) {
            match self.bring_unnamed(linked, None, out) {
                Bound::Goes(_) => {}
                Bound::Waits(step) => return step,
                Bound::Refused => {
                    rewrite::named(out.insert(), tag::DESCRIBE, Target::Statement, b"?");
                    let request = Expect::Forward(Request::DescribeStatement);
                    linked.owes(request, Some(Effect::Outdated));
                    return Step::Done;
                }
            }
        }
        let unknown = self
            .statements
            .unnamed()
            .filter(|(_, text)| !text.shape.is_known());
        let effect = unknown.map(|(version, _)| describes_unnamed(version, true));
        linked.owes(Expect::Forward(Request::DescribeStatement), effect);
        Step::Pass
    }
}

/// Asks the server what the unnamed statement is.
#[cold]
pub(super) fn inquire_unnamed(
    linked: &mut Linked<'_>,
    version: u64,
    is_parsed_here: bool,
    out: &mut Outgoing<'_>,
) {
    frontend::describe(out.insert(), Target::Statement, b"");
    let request = Expect::Swallow(Request::DescribeStatement);
    linked.owes(request, Some(describes_unnamed(version, is_parsed_here)));
}

fn describes_unnamed(version: u64, is_parsed_here: bool) -> Effect {
    Effect::DescribedUnnamed(DescribedUnnamed {
        version,
        parameters: 0,
        is_parsed_here,
    })
}

/// The client gets the error that PostgreSQL would give.
#[cold]
pub(super) fn refuse(
    linked: &mut Linked<'_>,
    (frame, head): (&Frame<'_>, &BindHead<'_>),
    out: &mut Outgoing<'_>,
) -> Result<Step, Error> {
    // To an unknown name: PostgreSQL has to fail.
    linked.owes(Expect::Forward(Request::Bind), Some(Effect::Outdated));
    let length = u32::try_from(frame.len - 1).unwrap_or(u32::MAX);
    rewrite::bind_head(out.insert(), head, b"?", length)?;
    Ok(Step::PassAfter(HEADER_LEN + head.len))
}

/// Asks the server what the statement is.
pub(super) fn inquire(
    linked: &mut Linked<'_>,
    statement: &Statement,
    told: Option<Told>,
    out: &mut Outgoing<'_>,
) {
    frontend::describe(out.insert(), Target::Statement, statement.name());
    let request = Expect::Swallow(Request::DescribeStatement);
    linked.owes(request, Some(effect(statement, told)));
}

/// What the answer to a Describe of the statement brings about.
pub(super) fn effect(statement: &Statement, told: Option<Told>) -> Effect {
    Effect::Described(Described {
        id: statement.id(),
        parameters: 0,
        told,
    })
}

/// The client is to know all of it.
pub(super) fn told(name: &[u8], statement: &Statement, before: Shape) -> Told {
    Told {
        name: name.into(),
        id: statement.id(),
        before,
        columns_only: false,
    }
}

fn columns_told(name: &[u8], statement: &Arc<Statement>, before: Shape) -> Told {
    Told {
        columns_only: true,
        ..told(name, statement, before)
    }
}

fn is_missing(known: Known) -> bool {
    matches!(known, Known::No | Known::InDoubt)
}

/// Is the next message a Describe of this statement?
pub(super) fn asks_for(bytes: &[u8], name: &[u8]) -> bool {
    next_described(bytes, Target::Statement, name).unwrap_or_default()
}

/// Is the Bind followed by a Describe of its portal, so that the client learns what the columns are? `None`: it can't be told yet.
fn asks_for_columns(frame: &Frame<'_>, head: &BindHead<'_>, behind: &[u8]) -> Option<bool> {
    if !frame.is_complete() {
        // It may be too long to be waited for.
        return Some(false);
    }
    next_described(behind, Target::Portal, head.portal)
}

fn next_described(bytes: &[u8], target: Target, name: &[u8]) -> Option<bool> {
    if *bytes.first()? != tag::DESCRIBE {
        return Some(false);
    }
    let Ok(frame) = cut(bytes, usize::MAX) else {
        return Some(false);
    };
    let frame = frame.filter(Frame::is_complete)?;
    let described = NamedView::read(frame.body());
    Some(described.is_ok_and(|it| it.target == target && it.name == name))
}

/// Are all values text, as far as can be seen?
fn binds_text(frame: &Frame<'_>, head: &BindHead<'_>) -> bool {
    let values = frame.body().get(head.len..);
    values.is_some_and(frontend::binds_text)
}
