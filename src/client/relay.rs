//! The state of the conversation between a client and whichever server serves it, and how bytes are
//! put together on their way through.

use std::ops::Range;
use std::sync::Arc;

use super::belongings::Belongings;
use super::channels::Channels;
use super::names::Names;
use super::sequences::Sequences;
use super::statements::{NamesHeld, Statements};
use crate::pool::PoolSettings;
use crate::prepared::{self, Registry};
use crate::protocol::frame::Frame;
use crate::server::pipeline::Expect;
use crate::server::session::Tracked;
use crate::server::{Doom, Effect, Forget, State};
use crate::stats::{Counters, ServerEntry};

/// The server's side of a link, as the relay works on it.
#[derive(Debug)]
pub struct Linked<'a> {
    /// What we know of the session.
    pub server: &'a mut State,
    /// Its place in the live list.
    pub entry: &'a ServerEntry,
    /// The pool's counters of this worker.
    pub counters: &'a Counters,
}

/// A message whose body is passing through in pieces: twice the bytes still to come, and one more if they are sent on. (The
/// length of a message has 31 bits, and there are two of these for each client.)
#[derive(Debug, Clone, Copy, Default)]
pub struct Passing(u32);

impl Passing {
    /// What is not here yet of a message.
    #[inline]
    pub fn rest(frame: &Frame<'_>, forward: bool) -> Self {
        let left = u32::try_from(frame.missing()).unwrap_or(u32::MAX);
        Self((left << 1) | u32::from(forward))
    }

    /// Is something still to come?
    #[inline]
    pub fn is_under_way(self) -> bool {
        self.0 > 1
    }

    /// Is what is still to come sent on, or dropped?
    #[inline]
    pub fn forward(self) -> bool {
        self.0 & 1 == 1
    }

    /// How many of the next `held` bytes belong to it. They are no longer to come.
    #[inline]
    pub fn take(&mut self, held: usize) -> usize {
        let left = self.0 >> 1;
        let here = u32::try_from(held).map_or(left, |held| held.min(left));
        self.0 -= here << 1;
        here as usize
    }
}

/// What a client's conversation is made of, apart from sockets.
#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent conditions, each with its own life"
)]
pub struct Relay {
    /// The client's id.
    pub id: u64,
    /// Its statements.
    pub statements: Statements,
    /// The values it wants for the tracked parameters.
    pub tracked: Tracked,
    /// What it has made of its session besides; `None`: nothing.
    pub belongings: Option<Box<Belongings>>,
    /// The settings under which its texts are read.
    pub context: prepared::Context,
    /// They may have changed, and the server has not said yet to what: `context` is like no other for so long.
    pub context_is_open: bool,
    /// What concerns `currval` and `lastval`.
    pub sequences: Sequences,
    /// What it listens to by the pool's listener; `None`: nothing.
    pub channels: Option<Box<Channels>>,
    /// The number it was given for its process id.
    pub cancel_pid: i32,
    /// What these were when it had logged in: RESET goes back to that.
    pub at_login: Tracked,
    /// Portals whose run takes names away.
    pub portals: Names<Forget>,
    /// Names that were given or taken away by messages the server has not answered yet, with their batch. If an
    /// earlier batch fails these changes may be undone, so a later one waits before it uses such a name.
    pub unsettled: Names<u64>,
    /// The same for the unnamed statement: the batch in which it was last made or dropped, or [`NO_BATCH`].
    pub unnamed_changed: u64,
    /// Its unnamed statement was used on another server than that where it was parsed, and nobody had asked what it was there: the next ones
    /// are asked for.
    pub moves_unasked: bool,
    /// Nothing more is taken from the client until the server owes nothing: the last message may have
    /// changed what names mean.
    pub fenced: bool,
    /// A batch is run again, and its unnamed statement is not to be one that is prepared.
    pub runs_plainly: bool,
    /// The bytes are those of a batch that is run again: nothing of it can wait.
    pub runs_again: bool,
    /// The client's batch has failed and the server is out of it already: what the client still sends is dropped up to
    /// its Sync, which is answered here.
    pub skips_alone: bool,
    /// The server waits for a Sync that we send between two messages of the client's.
    pub sync_is_due: bool,
    /// Messages of our own for the server.
    pub own: Vec<u8>,
    /// A message from the client in pieces.
    pub inbound: Passing,
    /// A message from the server in pieces.
    pub outbound: Passing,
    /// The client said Terminate.
    pub terminated: bool,
    /// It has begun a transaction block in statement pooling, and so it has to go.
    pub is_refused: bool,
    /// The latest settings of the pool.
    pub settings: Arc<PoolSettings>,
    /// The shared statements.
    pub registry: Registry,
}

/// Later than any batch.
const NO_BATCH: u64 = u64::MAX;

/// Bytes being sent on: most often a run of what was read, untouched; once something is
/// changed, taken out or put in, a copy.
#[derive(Debug)]
pub struct Outgoing<'a> {
    input: &'a [u8],
    run: Range<usize>,
    copied: &'a mut Vec<u8>,
}

impl<'a> Outgoing<'a> {
    /// Sends on parts of `input`; `buffer` is for what is not as it came.
    #[inline]
    pub fn new(input: &'a [u8], buffer: &'a mut Vec<u8>) -> Self {
        buffer.clear();
        Self {
            input,
            run: 0..0,
            copied: buffer,
        }
    }

    /// These bytes of the input go on as they are.
    #[inline]
    pub fn pass(&mut self, range: Range<usize>) {
        if self.run.end == range.start {
            self.run.end = range.end;
        } else {
            self.settle();
            self.run = range;
        }
    }

    /// What stands behind a part of the input.
    pub fn behind(&self, part: &[u8]) -> &'a [u8] {
        let begin = part
            .as_ptr()
            .addr()
            .wrapping_sub(self.input.as_ptr().addr());
        self.input.get(begin + part.len()..).unwrap_or_default()
    }

    /// Something else goes in here.
    pub fn insert(&mut self) -> &mut Vec<u8> {
        self.settle();
        self.copied
    }

    fn settle(&mut self) {
        self.copied
            .extend_from_slice(self.input.get(self.run.clone()).unwrap_or_default());
        self.run = self.run.end..self.run.end;
    }

    /// All that goes out.
    #[inline]
    pub fn finish(&mut self) -> &[u8] {
        if self.copied.is_empty() {
            return self.input.get(self.run.clone()).unwrap_or_default();
        }
        self.settle();
        self.copied
    }
}

impl Relay {
    /// A client that has said nothing yet: its id, the values it wants for the tracked parameters, and what its texts are
    /// read under then.
    pub fn new(
        (id, tracked, context): (u64, Tracked, prepared::Context),
        settings: Arc<PoolSettings>,
        registry: Registry,
        names_held: NamesHeld,
    ) -> Self {
        Self {
            id,
            statements: Statements::new(names_held),
            context,
            context_is_open: false,
            at_login: tracked.clone(),
            tracked,
            belongings: None,
            sequences: Sequences::default(),
            channels: None,
            cancel_pid: 0,
            portals: Names::default(),
            unsettled: Names::default(),
            unnamed_changed: NO_BATCH,
            moves_unasked: false,
            fenced: false,
            runs_plainly: false,
            runs_again: false,
            skips_alone: false,
            sync_is_due: false,
            own: Vec::new(),
            inbound: Passing::default(),
            outbound: Passing::default(),
            terminated: false,
            is_refused: false,
            settings,
            registry,
        }
    }

    /// Is a message only half through to where it goes?
    pub fn is_mid_message(&self) -> bool {
        (self.inbound.is_under_way() && self.inbound.forward()) || self.outbound.is_under_way()
    }

    /// Has the client got only a part of a message?
    pub fn owes_rest(&self) -> bool {
        self.outbound.is_under_way() && self.outbound.forward()
    }

    /// May names be given to statements (`max_prepared_statements` is not 0)?
    pub fn translates(&self) -> bool {
        self.settings.max_prepared_statements > 0
    }

    /// Does what this name means depend on an earlier batch that is not answered yet?
    #[inline]
    pub fn is_unsettled(&self, name: &[u8], batch: u64) -> bool {
        if name.is_empty() {
            return self.unnamed_changed < batch;
        }
        !self.unsettled.is_empty()
            && self
                .unsettled
                .get(name)
                .is_some_and(|&changed| changed < batch)
    }

    /// All is answered: it is known what every name means.
    pub fn settle(&mut self) {
        self.unsettled.clear();
        self.unnamed_changed = NO_BATCH;
    }

    /// The link ends: what lived with it is gone.
    pub fn unlink(&mut self) {
        self.fenced = false;
        self.settle();
        if self.context_is_open {
            self.learn_context();
        }
        if !self.portals.is_empty() {
            self.portals.clear();
        }
    }
}

impl Linked<'_> {
    /// A statement was asked for: did the server have it?
    #[inline]
    pub fn count(&mut self, hit: bool) {
        if hit {
            self.counters.prepare_cache_hits.add(1);
        } else {
            self.counters.prepare_cache_misses.add(1);
        }
        self.entry.count_statement(hit);
    }

    /// What was sent, or is answered by us in its turn, will have this reply.
    #[inline]
    pub fn owes(&mut self, expect: Expect, effect: Option<Effect>) {
        self.server.pipeline.push(expect, effect);
    }

    /// The server's stream can't be followed any more.
    pub fn doom(&mut self, doom: Doom) {
        self.server.doom.get_or_insert(doom);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::frame::cut;

    #[test]
    fn an_untouched_run_is_not_copied() {
        let (input, mut buffer) = (b"abcdef", Vec::new());
        let mut out = Outgoing::new(input, &mut buffer);
        out.pass(0..2);
        out.pass(2..6);
        assert_eq!(out.finish().as_ptr(), input.as_ptr());
    }

    #[test]
    fn insertions_stand_where_they_were_made() {
        let mut buffer = Vec::new();
        let mut out = Outgoing::new(b"abcdef", &mut buffer);
        out.pass(0..2);
        out.insert().extend_from_slice(b"XY");
        out.pass(2..3);
        out.pass(4..6);
        assert_eq!(out.finish(), b"abXYcef");
    }

    #[test]
    fn the_longest_message_passes_in_pieces() {
        let mut header = vec![b'd'];
        header.extend_from_slice(&i32::MAX.to_be_bytes());
        for forward in [false, true] {
            let frame = cut(&header, usize::MAX).unwrap().unwrap();
            let mut passing = Passing::rest(&frame, forward);
            let mut left = frame.missing();
            while left > 0 {
                assert!(passing.is_under_way());
                let here = passing.take(1 << 30);
                assert_eq!(here, left.min(1 << 30));
                left -= here;
            }
            assert!(!passing.is_under_way());
            assert_eq!((passing.forward(), passing.take(9)), (forward, 0));
        }
    }
}
