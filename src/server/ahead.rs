//! Settings that go ahead of a client's first message, in one round trip with it.
//!
//! What follows must not run if they are refused. So there is a query `BEGIN`, and then the settings, in queries of their own
//! with `COMMIT` at the end of the last. Whatever goes wrong with these (even bytes that are no text in the server's
//! encoding) leaves a failed transaction block behind, in which PostgreSQL runs nothing but the end of a transaction.
//! Whoever sends something behind them sees to it that it ends none.

use super::exchange::{MAX_REPLY, error_text};
use super::{Error, Server, Unnamed};
use crate::protocol::backend::{self, TxStatus, tag};
use crate::protocol::{frame, frontend};

/// Settings under which `BEGIN` itself may be broken off, so that no block holds what follows it back.
const LIMITS: [&[u8]; 2] = [b"statement_timeout", b"transaction_timeout"];

impl Server {
    /// May settings go ahead on it? Not with a limit of time that a client before has left: it may be too short even for
    /// `BEGIN`.
    pub fn may_send_ahead(&self) -> bool {
        let mut set = self.state.overlay.iter();
        !set.any(|(name, _)| LIMITS.contains(&name))
    }

    /// Sends these texts, whose statements all end with `;`, ahead of what is sent next.
    pub fn send_ahead(&mut self, texts: &[Vec<u8>]) {
        let Some((last, first)) = texts.split_last() else {
            return;
        };
        let mut out = Vec::new();
        frontend::query(&mut out, b"BEGIN");
        for text in first {
            frontend::query(&mut out, text);
        }
        frontend::query(&mut out, &[last, &b"COMMIT"[..]].concat());
        self.connection.queue(&out);
        self.state.unnamed = Unnamed::Unknown;
        self.ahead = 1 + texts.len();
    }

    /// Is the answer to what was sent ahead still to come?
    #[inline]
    pub fn is_ahead(&self) -> bool {
        self.ahead > 0
    }

    /// Takes the answer as far as it is there; says how many bytes that were.
    pub fn hear_ahead(&mut self, input: &[u8]) -> Result<usize, Error> {
        let mut at = 0;
        while self.is_ahead()
            && let Some(frame) = frame::cut(input.get(at..).unwrap_or_default(), MAX_REPLY)?
            && frame.is_complete()
        {
            at += frame.len;
            match frame.tag {
                tag::READY_FOR_QUERY => {
                    self.state.status = backend::read_ready_for_query(frame.body())?;
                    self.ahead -= 1;
                }
                tag::ERROR_RESPONSE => return Err(Error::Query(error_text(frame.body())?)),
                tag::COPY_IN_RESPONSE | tag::COPY_OUT_RESPONSE | tag::COPY_BOTH_RESPONSE => {
                    return Err(Error::Unexpected(frame.tag.into()));
                }
                tag => self.note(tag, frame.body())?,
            }
        }
        if !self.is_ahead() && self.state.status != TxStatus::Idle {
            return Err(Error::Unexpected(tag::READY_FOR_QUERY.into()));
        }
        Ok(at)
    }

    /// Waits for the answer, for who has to bring the server back.
    pub async fn finish_ahead(&mut self) -> Result<(), Error> {
        self.connection.send_all(&[]).await?;
        loop {
            let kept = std::mem::take(&mut self.connection.kept);
            let used = self.hear_ahead(&kept)?;
            self.connection.keep(kept.get(used..).unwrap_or_default());
            if !self.is_ahead() {
                return Ok(());
            }
            if self.connection.read_more().await? == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
        }
    }
}
