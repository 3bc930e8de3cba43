//! Which of what a client sends may go in one round trip with the settings that its server gets first.
//!
//! If these are refused the server is in a failed transaction block, and nothing must run there: so nothing that could end
//! the block goes along, and no more than one batch.

use super::relay::Relay;
use crate::protocol::frame::cut;
use crate::protocol::frontend::{self, BindHead, Parse, tag};
use crate::sql::classify::may_end_transaction;

impl Relay {
    /// How many of the bytes, which are the first that a server gets, may be sent along: one batch, or as much of it as is
    /// there. `None`: they have to wait.
    #[cold]
    pub(super) fn may_go_along(&self, bytes: &[u8]) -> Option<usize> {
        if self.inbound.is_under_way() || self.terminated {
            return None;
        }
        let (mut at, mut parsed) = (0, Vec::new());
        while let Some(frame) = cut(bytes.get(at..)?, self.settings.max_packet_size).ok()? {
            if !frame.is_complete() {
                return None;
            }
            at += frame.len;
            match frame.tag {
                tag::QUERY => {
                    let query = frontend::Query::read(frame.body()).ok()?;
                    return (!may_end_transaction(query.sql)).then_some(at);
                }
                tag::SYNC => return Some(at),
                tag::PARSE => {
                    let parse = Parse::read(frame.body()).ok()?;
                    if may_end_transaction(parse.sql) {
                        return None;
                    }
                    parsed.push(parse.name);
                }
                tag::BIND => {
                    let name = BindHead::read(frame.body()).ok()??.statement;
                    if !parsed.contains(&name) && self.may_end_by_name(name) {
                        return None;
                    }
                }
                tag::DESCRIBE | tag::EXECUTE | tag::CLOSE | tag::FLUSH => {}
                _ => return None,
            }
        }
        // The rest of the batch is to come, if only a part of a message is here: it waits for the answer.
        (at > 0).then_some(at)
    }

    /// May the statement of this name end a transaction, for all we know?
    fn may_end_by_name(&self, name: &[u8]) -> bool {
        let Some(named) = self.statements.get(name) else {
            return true;
        };
        may_end_transaction(Parse::text(named.statement.0.definition()))
    }
}
