//! A client's own bytes of the batch that its server works on, for as long as it may have to be run again.
//!
//! What is run again, and when, is `client::replan`'s. The buffer belongs to the server, so there are as many as servers and
//! none is made for a query.

use crate::prepared::promotion::Run;

/// A longer batch is not kept.
pub const LONGEST: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Standing {
    /// Nothing is kept.
    #[default]
    Dropped,
    /// All that the client has sent since the batch began is here.
    Kept,
    /// It is to be run again from this byte on, once the server is through with the failure.
    Due(usize),
    /// The same, once the server has said what had to be known first.
    Inquiring(usize),
}

/// When a batch of an unnamed statement was sent, and how.
#[derive(Debug, Clone, Copy)]
pub struct Timed {
    /// The number of its text (`prepared::promotion`).
    pub hash: u64,
    /// How it is run.
    pub run: Run,
    /// Microseconds, by the clock of the pool's list of these texts.
    pub began: u64,
}

/// The bytes of one batch.
#[derive(Default)]
pub struct Batch {
    standing: Standing,
    bytes: Vec<u8>,
    /// A reply to the batch's first request that the client gets only if the rest of that reply follows.
    held: Vec<u8>,
    /// It is seen how long it takes.
    timed: Option<Timed>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the bytes: they are a client's, and not for logs.
        write!(f, "Batch({:?})", self.standing)
    }
}

impl Batch {
    /// The server gets the first message of a batch: is the batch worth keeping?
    #[inline]
    pub fn begin(&mut self, keep: bool) {
        self.bytes.clear();
        self.standing = if keep {
            Standing::Kept
        } else {
            Standing::Dropped
        };
    }

    /// More of what the client sends.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        if self.standing == Standing::Kept {
            if self.bytes.len() + bytes.len() > LONGEST {
                self.standing = Standing::Dropped;
            } else {
                self.bytes.extend_from_slice(bytes);
            }
        }
    }

    /// All that the client has sent since the batch began, perhaps even more than the batch.
    pub fn kept(&self) -> Option<&[u8]> {
        (self.standing == Standing::Kept).then_some(self.bytes.as_slice())
    }

    /// The batch is not run again, nor is it seen how long it takes.
    pub fn forget(&mut self) {
        self.standing = Standing::Dropped;
        self.timed = None;
    }

    /// The batch is to be run again from this byte on.
    pub fn run_again(&mut self, from: usize) {
        self.standing = Standing::Due(from);
        self.held.clear();
    }

    /// Is it to be run again? Then where to begin, the bytes, and whether what had to be known first was asked;
    /// [`give_back`](Self::give_back) or [`inquire`](Self::inquire) must follow.
    pub fn take_due(&mut self) -> Option<(usize, Vec<u8>, bool)> {
        let (from, is_asked) = match self.standing {
            Standing::Due(from) => (from, false),
            Standing::Inquiring(from) => (from, true),
            Standing::Dropped | Standing::Kept => return None,
        };
        self.standing = Standing::Dropped;
        Some((from, std::mem::take(&mut self.bytes), is_asked))
    }

    /// It is run again only after the answer to what the server is being asked.
    pub fn inquire(&mut self, from: usize, bytes: Vec<u8>) {
        self.bytes = bytes;
        self.standing = Standing::Inquiring(from);
    }

    /// The answer is an error: the batch is not run again. Was there such a question?
    pub fn drop_inquiry(&mut self) -> bool {
        let is_dropped = matches!(self.standing, Standing::Inquiring(_));
        if is_dropped {
            self.standing = Standing::Dropped;
        }
        is_dropped
    }

    /// The buffer, to be used again. What it holds is not run a third time.
    pub fn give_back(&mut self, buffer: Vec<u8>) {
        self.bytes = buffer;
        self.standing = Standing::Dropped;
    }

    /// It is to be seen how long it takes.
    pub fn time(&mut self, timed: Timed) {
        self.timed = Some(timed);
    }

    /// Is it seen how long it takes?
    #[inline]
    pub fn is_timed(&self) -> bool {
        self.timed.is_some()
    }

    /// It is over: when it was sent, if that is of interest.
    pub fn take_timed(&mut self) -> Option<Timed> {
        self.timed.take()
    }

    /// Keeps a reply back.
    pub fn hold(&mut self, reply: &[u8]) {
        self.held.clear();
        self.held.extend_from_slice(reply);
    }

    /// Is a reply kept back?
    #[inline]
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Is a reply kept back, or seen how long the batch takes?
    #[inline]
    pub fn is_looked_at(&self) -> bool {
        self.is_timed() || self.holds()
    }

    /// The client gets what was kept back.
    #[cold]
    pub fn release(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_kept_from_its_beginning_and_run_again_once() {
        let mut batch = Batch::default();
        batch.add(b"not kept");
        batch.begin(true);
        batch.add(b"one");
        batch.add(b"two");
        assert_eq!(batch.kept(), Some(&b"onetwo"[..]));
        assert!(batch.take_due().is_none());
        batch.run_again(3);
        assert_eq!(batch.kept(), None);
        let (from, bytes, is_asked) = batch.take_due().unwrap();
        assert_eq!((from, bytes.as_slice()), (3, &b"onetwo"[..]));
        assert!(!is_asked);
        batch.inquire(from, bytes);
        let (from, bytes, is_asked) = batch.take_due().unwrap();
        assert!(from == 3 && is_asked && !batch.drop_inquiry());
        batch.inquire(from, bytes.clone());
        assert!(batch.drop_inquiry() && batch.take_due().is_none());
        batch.give_back(bytes);
        assert!(batch.kept().is_none() && batch.take_due().is_none());
    }

    #[test]
    fn a_long_batch_is_not_kept_and_costs_no_memory() {
        let mut batch = Batch::default();
        batch.begin(true);
        batch.add(b"short");
        batch.add(&[0; LONGEST]);
        batch.add(b"more");
        assert_eq!(batch.kept(), None);
        assert!(batch.bytes.capacity() < LONGEST);
    }
}
