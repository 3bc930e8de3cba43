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
//!   for the old ones. It gets the error, as it would from PostgreSQL, until it has asked or has prepared the statement again: the
//!   pooler compares what it knows with what its server has (`translate::shapes`), for a server that prepares the statement for the first time
//!   after the migration has nothing to refuse.
//!
//! The types of the parameters are another matter: PostgreSQL keeps those that it has found when it read the text, and never looks
//! again. Is one dropped, or a column of another type now, then Bind and Describe fail for good ([`Stale::Type`], [`Stale::Reading`],
//! [`Stale::Value`]). A client with a connection of its own gets rid of that by preparing the text again; here a server may answer
//! that with what it has. So every error of Bind or Describe that could be of this kind makes the server read the text
//! anew before it uses it again, or before it is next prepared by a client; and under the conditions above at once, if
//! values are sent as text or the client has prepared it in the same batch. Binary ones mean nothing but to the type they were made for.

use super::relay::{Linked, Outgoing, Relay};
use crate::protocol::backend::{self, ErrorFields, ErrorMessage, TxStatus};
use crate::protocol::frame::cut;
use crate::protocol::frontend::{self, BindHead, Named, Parse, Target, tag};
use crate::protocol::sqlstate;
use crate::server::pipeline::{Desync, Request};

/// The function of PostgreSQL's that says so. The text is translated, and the code stands for other errors, too.
const ROUTINE: &[u8] = b"RevalidateCachedQuery";

/// What PostgreSQL says then.
const TEXT: &str = "cached plan must not change result type";

/// What it says of everything in a failed transaction.
const FAILED: &str =
    "current transaction is aborted, commands ignored until end of transaction block";

/// Appends the error, or the one that PostgreSQL has for everything in a failed transaction.
pub(super) fn put_outdated(out: &mut Vec<u8>, status: TxStatus) {
    if status == TxStatus::Failed {
        let error = ErrorMessage {
            with_v: true,
            ..ErrorMessage::new("ERROR", sqlstate::IN_FAILED_SQL_TRANSACTION, FAILED)
        };
        return backend::error_response(out, &error);
    }
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

/// How an error may be due to what a server has kept of a statement, so that preparing it anew could help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stale {
    /// Its result would not be what it was.
    Result,
    /// The server looks for something that is gone: nearly always a type. Nobody knows what the result would be.
    Type,
    /// The text can't be read with the types that its parameters had.
    Reading,
    /// A value does not fit the type that its parameter had. Most of these are the value's own fault.
    Value,
}

/// Is this error, as the answer to `request`, one of these?
pub(super) fn staleness(
    fields: Option<&ErrorFields<'_>>,
    request: Option<Request>,
) -> Option<Stale> {
    let fields = fields?;
    let code = fields.sqlstate()?;
    if code == sqlstate::FEATURE_NOT_SUPPORTED.as_bytes() {
        return (fields.routine() == Some(ROUTINE)).then_some(Stale::Result);
    }
    if !matches!(request?, Request::Bind | Request::DescribeStatement) {
        return None;
    }
    match code {
        _ if code == sqlstate::INTERNAL_ERROR.as_bytes() => Some(Stale::Type),
        // syntax_error_or_access_rule_violation, data_exception (`errcodes-appendix`).
        [b'4', b'2', ..] => Some(Stale::Reading),
        [b'2', b'2', ..] => Some(Stale::Value),
        _ => None,
    }
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
        let keep = is_one && linked.server.pipeline.is_idle() && !self.inbound.is_under_way();
        linked.server.batch.begin(keep);
    }

    /// What the server has of a statement may be out of date. Is the batch run again, so that the client need not know?
    #[cold]
    pub(super) fn replan(&mut self, linked: &mut Linked<'_>, stale: Stale) -> bool {
        let may_help = match stale {
            Stale::Result => {
                self.outdate(linked);
                true
            }
            Stale::Type | Stale::Reading | Stale::Value => self.read_again(linked, stale),
        };
        if !may_help {
            return false;
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

    /// The result of the statement is not what it was.
    fn outdate(&self, linked: &mut Linked<'_>) {
        match failed_name(linked).and_then(|name| self.statements.get(name)) {
            Some(named) => named.statement.0.outdate(),
            None => {
                let batch = linked.server.pipeline.oldest_batch();
                linked.server.statements.outdate_used_since(batch);
            }
        }
    }

    /// Sees to it that the server reads the text anew that was bound or described, unless it has just done so. Could that
    /// help the batch?
    fn read_again(&self, linked: &mut Linked<'_>, stale: Stale) -> bool {
        let batch = linked.server.pipeline.oldest_batch();
        let Some(name) = failed_name(linked) else {
            if stale != Stale::Value {
                linked.server.statements.doubt_used_since(batch);
            }
            return false;
        };
        // The unnamed statement, and those of SQL's PREPARE, are as the client has made them.
        let Some(named) = self.statements.get(name) else {
            return false;
        };
        let statement = &named.statement.0;
        if !linked.server.statements.is_older(statement.id(), batch) {
            return false;
        }
        let is_new = linked.server.batch.kept().and_then(parsed) == Some(name);
        match stale {
            // Where a type has gone, columns may have gone with it: who knows the old ones is to be told.
            Stale::Result | Stale::Type => statement.outdate(),
            Stale::Value if !is_new => {
                // Others may be content with the type that there was.
                linked.server.statements.suspect(statement.id());
                return false;
            }
            Stale::Reading | Stale::Value => linked.server.statements.doubt(statement.id()),
        }
        is_new || linked.server.batch.kept().is_some_and(sends_text)
    }

    /// Where the message that failed begins in what is kept of the batch, if it may be run again from there.
    fn may_run_from(&self, linked: &Linked<'_>) -> Option<usize> {
        let (bytes, pipeline) = (linked.server.batch.kept()?, &linked.server.pipeline);
        if !pipeline.answers_client()
            || self.inbound.is_under_way()
            || linked.server.status != TxStatus::Idle
        {
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
        let Some((from, buffer, is_asked)) = linked.server.batch.take_due() else {
            return Ok(());
        };
        let bytes = buffer.get(from..).unwrap_or_default();
        if let Some(name) = parsed(&buffer) {
            // Whatever it knows of the result it knows from this batch.
            self.statements.unlearn(name);
        }
        if !is_asked && self.inquire_for(linked, bytes) {
            linked.server.batch.inquire(from, buffer);
            return Ok(());
        }
        // The client may be in the middle of something that is dropped.
        let inbound = std::mem::take(&mut self.inbound);
        let mut copied = Vec::new();
        let mut out = Outgoing::new(bytes, &mut copied);
        self.runs_again = true;
        let used = self.from_client(linked, bytes, &mut out);
        self.runs_again = false;
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

/// Are all values in this batch text?
fn sends_text(mut bytes: &[u8]) -> bool {
    while let Ok(Some(frame)) = cut(bytes, usize::MAX) {
        if frame.tag == tag::BIND
            && !BindHead::read(frame.body()).is_ok_and(|head| {
                let values = head.and_then(|head| frame.body().get(head.len..));
                values.is_some_and(frontend::binds_text)
            })
        {
            return false;
        }
        bytes = bytes.get(frame.len..).unwrap_or_default();
    }
    true
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
