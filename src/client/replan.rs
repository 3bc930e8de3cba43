//! `cached plan must not change result type`: what a migration does to statements that are prepared.
//!
//! PostgreSQL plans a prepared statement again when a table has changed, but refuses to if the columns of its result are
//! others then (`RevalidateCachedQuery`, at Bind or at Describe). The one way out is to prepare it anew. With a connection of
//! its own a client can do that; behind a pooler it can't tell which of the servers have the old one, and one that has
//! just come may be told so of a statement that it has only just prepared. So:
//!
//! - the statement is outdated: every server that has it closes and prepares it anew before it is used there again;
//! - if nothing has been done of the batch that failed, it is run again from there, and nobody notices. That is so if
//!   the batch began outside of a transaction, if nothing of it was answered before but Parse, which no failure takes back,
//!   if all of it is known, its Sync included, and if nothing was sent behind it. Otherwise the client gets the error.
//! - a client that binds without asking what the columns are (Describe) goes by what it was told before, and would take the new columns
//!   for the old ones. It gets the error, as it would from PostgreSQL, until it has asked or has prepared the statement again.
//!
//! What is not seen: a server that prepares the statement for the first time after the migration, if no server has refused it yet.

use super::relay::{Linked, Outgoing, Relay};
use crate::protocol::backend::{self, ErrorFields, ErrorMessage, TxStatus};
use crate::protocol::frame::cut;
use crate::protocol::frontend::{BindHead, Named, Parse, Target, tag};
use crate::protocol::sqlstate;
use crate::server::pipeline::{Desync, Request};

/// The function of PostgreSQL's that says so. The text is translated, and the code stands for other errors, too.
const ROUTINE: &[u8] = b"RevalidateCachedQuery";

/// What PostgreSQL says then.
const TEXT: &str = "cached plan must not change result type";

/// Appends the error.
pub(super) fn put_outdated(out: &mut Vec<u8>) {
    let error = ErrorMessage {
        with_v: true,
        routine: std::str::from_utf8(ROUTINE).ok(),
        ..ErrorMessage::new("ERROR", sqlstate::FEATURE_NOT_SUPPORTED, TEXT)
    };
    backend::error_response(out, &error);
}

/// Is the next message a Describe of a portal?
pub(super) fn begins_with_describe(bytes: &[u8]) -> bool {
    matches!(bytes, [tag::DESCRIBE, _, _, _, _, b'P', ..])
}

/// Is the error that a statement's result would not be what it was?
pub(super) fn is_outdated(fields: Option<&ErrorFields<'_>>) -> bool {
    fields.is_some_and(|fields| {
        fields.sqlstate() == Some(sqlstate::FEATURE_NOT_SUPPORTED.as_bytes())
            && fields.routine() == Some(ROUTINE)
    })
}

impl Relay {
    /// The server owes nothing, and this comes from the client: may it be a batch that could be run again?
    #[inline]
    pub(super) fn begin_batch(&self, linked: &mut Linked<'_>, input: &[u8]) {
        let is_one = match input {
            [tag::BIND | tag::DESCRIBE, ..] => true,
            // Not the unnamed statement, which is not prepared ahead.
            [tag::PARSE, _, _, _, _, name, ..] => *name != 0,
            _ => false,
        };
        let keep = is_one && linked.server.pipeline.is_idle() && self.inbound.left == 0;
        linked.server.batch.begin(keep);
    }

    /// A statement's result is not what it was. Is the batch run again, so that the client need not know?
    #[cold]
    pub(super) fn replan(&mut self, linked: &mut Linked<'_>) -> bool {
        match failed_name(linked).and_then(|name| self.statements.get(name)) {
            Some(named) => named.statement.0.outdate(),
            None => {
                let batch = linked.server.pipeline.oldest_batch();
                linked.server.statements.outdate_used_since(batch);
            }
        }
        let Some(from) = self.may_run_from(linked) else {
            return false;
        };
        linked.server.batch.run_again(from);
        linked.counters.replans.add(1);
        // What the client sends meanwhile comes after it.
        self.fenced = true;
        true
    }

    /// Where the message that failed begins in what is kept of the batch, if it may be run again from there.
    fn may_run_from(&self, linked: &Linked<'_>) -> Option<usize> {
        let (bytes, pipeline) = (linked.server.batch.kept()?, &linked.server.pipeline);
        if self.inbound.left > 0 || linked.server.status != TxStatus::Idle {
            return None;
        }
        let count = answered_messages(bytes)?;
        let answered = count.checked_sub(pipeline.owed_up_to_sync()?)?;
        let mut at = 0;
        for _ in 0..answered {
            let frame = cut(bytes.get(at..)?, usize::MAX).ok()??;
            if frame.tag != tag::PARSE {
                return None;
            }
            at += frame.len;
        }
        let frame = cut(bytes.get(at..)?, usize::MAX).ok()??;
        let name = match (frame.tag, pipeline.current()?) {
            (tag::BIND, Request::Bind) => {
                let name = BindHead::read(frame.body()).ok()??.statement;
                // A client that does not ask what the columns are thinks that it knows.
                let asks = begins_with_describe(bytes.get(at + frame.len..)?);
                if !asks && parsed(bytes) != Some(name) {
                    return None;
                }
                name
            }
            (tag::DESCRIBE, Request::DescribeStatement) => {
                let described = Named::read(frame.body()).ok()?;
                (described.target == Target::Statement).then_some(described.name)?
            }
            _ => return None,
        };
        // Any other name is of SQL's PREPARE, and there is no text to it here. The batch may close it behind its use.
        let is_ours = self.statements.get(name).is_some() || self.unsettled.get(name).is_some();
        is_ours.then_some(at)
    }

    /// The failed batch is over, and it is to be run again.
    #[cold]
    pub(super) fn run_again(&mut self, linked: &mut Linked<'_>) -> Result<(), Desync> {
        let Some((from, buffer)) = linked.server.batch.take_due() else {
            return Ok(());
        };
        let bytes = buffer.get(from..).unwrap_or_default();
        if let Some(name) = parsed(&buffer) {
            // Whatever it knows of the result it knows from this batch.
            self.statements.describe(name);
        }
        // The client may be in the middle of something that is dropped.
        let inbound = std::mem::take(&mut self.inbound);
        let mut copied = Vec::new();
        let mut out = Outgoing::new(bytes, &mut copied);
        let used = self.from_client(linked, bytes, &mut out);
        self.own.extend_from_slice(out.finish());
        self.inbound = inbound;
        self.runs_plainly = false;
        let is_whole = used.is_ok_and(|used| used == bytes.len());
        linked.server.batch.give_back(buffer);
        // It went through before, so it does again; if not, its Sync would be wanting.
        if is_whole {
            Ok(())
        } else {
            Err(Desync::Reply('E'))
        }
    }

    /// Describe of a statement is answered in two messages, and the error comes after the first. If the batch may have to be run
    /// again, the client gets that one only with the second. Is it kept back?
    #[cold]
    pub(super) fn holds_description(&self, linked: &mut Linked<'_>, message: &[u8]) -> bool {
        let holds = self.may_run_from(linked).is_some();
        if holds {
            linked.server.batch.hold(message);
        }
        holds
    }
}

/// The name in the message that failed, if all is known that the client has sent since the server owed nothing.
fn failed_name<'a>(linked: &'a Linked<'_>) -> Option<&'a [u8]> {
    let mut bytes = linked.server.batch.kept()?;
    let mut asked = Vec::new();
    while let Some(frame) = cut(bytes, usize::MAX).ok()? {
        if !frame.is_complete() {
            return None;
        }
        bytes = bytes.get(frame.len..)?;
        if frame.tag != tag::FLUSH {
            asked.push(frame);
        }
    }
    let answered = asked
        .len()
        .checked_sub(linked.server.pipeline.owed_to_client())?;
    let failed = asked.get(answered)?;
    match failed.tag {
        tag::BIND => Some(BindHead::read(failed.body()).ok()??.statement),
        tag::DESCRIBE => Some(Named::read(failed.body()).ok()?.name),
        _ => None,
    }
}

/// The name that the batch begins with giving to a statement.
fn parsed(bytes: &[u8]) -> Option<&[u8]> {
    let first = cut(bytes, usize::MAX).ok()??;
    let parse = Some(first).filter(|frame| frame.tag == tag::PARSE)?;
    Some(Parse::read(parse.body()).ok()?.name)
}

/// How many messages of these have an answer, if they are one whole batch of the extended protocol, from its beginning to its
/// Sync.
fn answered_messages(mut bytes: &[u8]) -> Option<usize> {
    let mut count = 0;
    loop {
        let frame = cut(bytes, usize::MAX).ok()??;
        if !frame.is_complete() {
            return None;
        }
        bytes = bytes.get(frame.len..)?;
        match frame.tag {
            tag::PARSE | tag::BIND | tag::DESCRIBE | tag::EXECUTE | tag::CLOSE => count += 1,
            tag::FLUSH => {}
            tag::SYNC => return bytes.is_empty().then_some(count + 1),
            _ => return None,
        }
    }
}
