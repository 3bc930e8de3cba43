//! What a client gets while it has no server: some messages need none.

use super::Error;
use super::relay::{Passing, Relay};
use super::session::READ_AHEAD;
use super::translate::KEEP_UNNAMED;
use crate::protocol::backend::{self, TxStatus};
use crate::protocol::frame::{Frame, cut};
use crate::protocol::frontend::tag;

/// What is left when everything is done that needs no server.
pub enum Alone {
    /// Nothing that could be dealt with now; so many bytes were used.
    Nothing(usize),
    /// A message that needs a server, after so many bytes.
    Server(usize),
    /// The client said Terminate.
    Terminated,
}

impl Relay {
    /// Do these bytes begin with a whole message that needs a server? False if that is not seen at once.
    #[inline]
    pub fn needs_server(&self, bytes: &[u8]) -> bool {
        if self.inbound.is_under_way() || self.skips_alone || self.settings.refuses_queries {
            return false;
        }
        let is_sent_on = matches!(
            bytes.first(),
            Some(&(tag::QUERY | tag::PARSE | tag::BIND | tag::DESCRIBE))
        );
        is_sent_on
            && matches!(cut(bytes, self.settings.max_packet_size), Ok(Some(frame)) if frame.is_complete())
    }

    /// Deals with messages that need no server; what the client gets is put into `out`.
    pub fn without_server(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Alone, Error> {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            if self.inbound.is_under_way() {
                // The rest of a message that is dropped, like late COPY data.
                let here = self.inbound.take(rest.len());
                used += here;
                if here == 0 {
                    return Ok(Alone::Nothing(used));
                }
                continue;
            }
            let Some(frame) = cut(rest, self.settings.max_packet_size)? else {
                return Ok(Alone::Nothing(used));
            };
            match frame.tag {
                tag::TERMINATE => return Ok(Alone::Terminated),
                tag::QUERY if self.settings.refuses_queries => {
                    return Err(Error::QueriesDisallowed);
                }
                other if self.skips_alone && other != tag::SYNC => self.drop_rest(&frame),
                tag::COPY_DATA | tag::COPY_DONE | tag::COPY_FAIL => self.drop_rest(&frame),
                tag::SYNC if frame.is_complete() => {
                    self.skips_alone = false;
                    backend::ready_for_query(out, TxStatus::Idle);
                }
                // A message that will be wanted whole gets its server when it is.
                _ if !frame.is_complete() && waits_for_all(&frame) => {
                    return Ok(Alone::Nothing(used));
                }
                tag::QUERY
                | tag::PARSE
                | tag::BIND
                | tag::DESCRIBE
                | tag::EXECUTE
                | tag::CLOSE
                | tag::SYNC
                | tag::FLUSH
                | tag::FUNCTION_CALL => return Ok(Alone::Server(used)),
                other => return Err(Error::UnknownMessage(other)),
            }
            used += frame.bytes.len();
        }
    }

    fn drop_rest(&mut self, frame: &Frame<'_>) {
        self.inbound = Passing::rest(frame, false);
    }
}

/// Is an incomplete message one that is only dealt with when it is complete?
fn waits_for_all(frame: &Frame<'_>) -> bool {
    match frame.tag {
        tag::PARSE if frame.len > KEEP_UNNAMED && frame.body().first() == Some(&0) => false,
        tag::PARSE | tag::DESCRIBE | tag::EXECUTE | tag::CLOSE | tag::SYNC | tag::FLUSH => true,
        tag::QUERY | tag::BIND | tag::FUNCTION_CALL => frame.len <= READ_AHEAD,
        _ => false,
    }
}
