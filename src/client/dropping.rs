//! Texts that take names away: DEALLOCATE and DISCARD ALL, by either protocol, and a Parse under a name that is taken.
//!
//! A name of the client's is not known to the server, and what it stands for may serve other clients there. So a
//! stand-in that does nothing is prepared, and the text drops that (or fails over it, as PostgreSQL would).

use super::relay::{Linked, Outgoing, Relay};
use crate::protocol::frontend::{self, Parse, Target};
use crate::server::pipeline::{Expect, Request};
use crate::server::{Effect, Forget, Unnamed};
use crate::sql::classify::{self, StatementChange};

impl Relay {
    /// A text with DEALLOCATE or DISCARD ALL. A name of the client's is not known to the server, and what
    /// it stands for may serve other clients there; so a stand-in that does nothing is prepared and the text
    /// drops that.
    pub(super) fn query_that_drops_names(
        &mut self,
        linked: &mut Linked<'_>,
        sql: &[u8],
        changes: &[StatementChange],
        out: &mut Outgoing<'_>,
    ) {
        let mut text = Vec::new();
        let (mut copied, mut forget, mut stand_ins) = (0, Vec::new(), 0_usize);
        for change in changes {
            let StatementChange::Deallocate { name, span } = change else {
                forget.push(Forget::All);
                continue;
            };
            let dropped_before = forget.iter().any(|earlier| match earlier {
                Forget::Name(dropped) => **dropped == **name,
                Forget::All => true,
                Forget::Settings => false,
            });
            if dropped_before || self.statements.get(name).is_none() {
                // Not a name of ours: PostgreSQL knows it, or will say that it does not.
                continue;
            }
            text.extend_from_slice(sql.get(copied..span.start).unwrap_or_default());
            text.extend_from_slice(&self.stand_in(stand_ins));
            copied = span.end;
            stand_ins += 1;
            forget.push(Forget::Name(name.as_slice().into()));
        }
        text.extend_from_slice(sql.get(copied..).unwrap_or_default());
        // In a failed transaction, too: the text may end it first, and an empty statement can be prepared there.
        if stand_ins > 0 {
            let is_in_batch = linked.server.pipeline.needs_sync();
            (0..stand_ins).for_each(|number| self.put_stand_in(linked, number, out));
            // One in the middle of the client's batch would commit what it has done.
            if !is_in_batch {
                frontend::sync(out.insert());
                linked
                    .server
                    .pipeline
                    .push_sync(Expect::Swallow(Request::Sync));
            }
        }
        if let Some(version) = self.statements.drop_unnamed() {
            self.statements.confirm_unnamed(version);
        }
        self.unnamed_becomes(linked, Unnamed::Unknown);
        linked.owes(
            Expect::Forward(Request::Query),
            Some(Effect::Forget(forget)),
        );
        frontend::query(out.insert(), &text);
        self.fenced = true;
    }

    /// The name of a stand-in, as a quoted identifier has it inside.
    pub(super) fn stand_in(&self, number: usize) -> Vec<u8> {
        format!("{}gone{number}", self.registry.prefix()).into_bytes()
    }

    /// Sees to it that there is no stand-in: one may be left where it was not dropped.
    pub(super) fn take_stand_in(
        &self,
        linked: &mut Linked<'_>,
        number: usize,
        out: &mut Outgoing<'_>,
    ) {
        frontend::close(out.insert(), Target::Statement, &self.stand_in(number));
        linked.owes(Expect::Swallow(Request::Close), None);
    }

    /// Prepares a stand-in: an empty statement, which can be prepared whatever the session looks like.
    pub(super) fn put_stand_in(
        &self,
        linked: &mut Linked<'_>,
        number: usize,
        out: &mut Outgoing<'_>,
    ) {
        self.take_stand_in(linked, number, out);
        let name = self.stand_in(number);
        frontend::parse(out.insert(), &name, &[0, 0, 0]);
        linked.owes(Expect::Swallow(Request::Parse), None);
    }

    /// If running the text takes names away or changes settings: what it takes, and its Parse with a stand-in for the name.
    pub(super) fn forgetting(&self, parse: &Parse<'_>) -> (Option<Forget>, Option<Vec<u8>>) {
        // The extended protocol allows one statement in a text.
        let changes = classify::changes(parse.sql);
        match changes.statements.into_iter().next() {
            None => (changes.settings.then_some(Forget::Settings), None),
            Some(StatementChange::DeallocateAll | StatementChange::DiscardAll) => {
                (Some(Forget::All), None)
            }
            // One that SQL's PREPARE has made, or none: PostgreSQL knows.
            Some(StatementChange::Deallocate { name, .. })
                if self.prepares_by_sql() && self.statements.get(&name).is_none() =>
            {
                (None, None)
            }
            Some(StatementChange::Deallocate { name, span }) => {
                let mut definition = parse.sql.get(..span.start).unwrap_or_default().to_vec();
                definition.extend_from_slice(&self.stand_in(0));
                definition.extend_from_slice(parse.sql.get(span.end..).unwrap_or_default());
                definition.push(0);
                definition.extend_from_slice(parse.types);
                (
                    Some(Forget::Name(name.into_boxed_slice())),
                    Some(definition),
                )
            }
        }
    }

    /// A Parse under a name that is taken. The server has to fail as PostgreSQL would, with this text under a name
    /// it has; the error gets the client's name on its way back.
    pub(super) fn parse_duplicate(
        &self,
        linked: &mut Linked<'_>,
        name: &[u8],
        definition: &[u8],
        out: &mut Outgoing<'_>,
    ) {
        self.put_stand_in(linked, 0, out);
        frontend::parse(out.insert(), &self.stand_in(0), definition);
        linked.owes(
            Expect::Forward(Request::Parse),
            Some(Effect::Duplicate(name.into())),
        );
    }
}
