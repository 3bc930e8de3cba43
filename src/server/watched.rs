//! What is seen of a batch while its server works on it, where statements are counted (`track_statements`), slow ones logged with
//! their texts (`log_statement_text`), or transactions traced (`otlp_endpoint`).
//!
//! The first statement that is run stands for the batch. Which that is, is found by `client::watch`. It belongs to the server, so
//! there are as many buffers as servers, and where nothing is watched there are none.

use std::collections::HashMap;

use crate::protocol::backend::tag;
use crate::protocol::frame::cut;
use crate::sql::normalize::READ;
use crate::sql::traceparent::TraceParent;
use crate::stats::spans::Span;

/// So much of a text is kept: a byte more than is read, which says that there is more.
const LONGEST: usize = READ + 1;

/// The longest reason for a failure. (An SQLSTATE has five letters, but it is the server who says it.)
const LONGEST_REASON: usize = 16;

/// So many texts of names are kept, where names are passed through.
const MOST_NAMES: usize = 256;

/// A batch, as far as it is of interest.
#[derive(Default)]
pub struct Watched {
    text: Vec<u8>,
    has_run: bool,
    failed: bool,
    rows: u64,
    bytes: u64,
    /// So many rows are returned at a time; 0: all.
    at_most: u32,
    /// The named portal that was bound last, and its text.
    portal: (Vec<u8>, Vec<u8>),
    /// Texts of named statements, where nobody else keeps them.
    names: HashMap<Box<[u8]>, Box<[u8]>, ahash::RandomState>,
    /// What is known of the transaction, if it is traced.
    pub traced: Traced,
}

/// A transaction, as far as a trace wants to know.
#[derive(Debug, Default)]
pub struct Traced {
    /// What the client said of its trace first.
    pub parent: Option<TraceParent>,
    /// It was drawn.
    pub is_drawn: bool,
    /// What is known so far: what it took, and the first text but BEGIN. Names come at the end.
    pub span: Span,
}

impl Traced {
    /// Does it make a span? What the client says goes before what was drawn.
    pub fn is_sampled(&self) -> bool {
        self.parent
            .map_or(self.is_drawn, |parent| parent.is_sampled)
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the texts: they are clients', and not for logs.
        write!(f, "Watched({} rows, {} bytes)", self.rows, self.bytes)
    }
}

impl Watched {
    /// A new batch, of which nothing is known.
    pub fn begin(&mut self) {
        self.text.clear();
        (self.has_run, self.failed) = (false, false);
        (self.rows, self.bytes, self.at_most) = (0, 0, 0);
    }

    /// This text stands for the batch.
    pub fn is_of(&mut self, text: &[u8]) {
        self.text.clear();
        self.text
            .extend_from_slice(text.get(..LONGEST).unwrap_or(text));
    }

    /// The text that stands for it; empty: none is known.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// A name is given to a text.
    pub fn name(&mut self, name: &[u8], text: &[u8]) {
        if self.names.len() < MOST_NAMES || self.names.contains_key(name) {
            let text = text.get(..LONGEST).unwrap_or(text);
            self.names.insert(name.into(), text.into());
        }
    }

    /// What was named like this stands for it.
    pub fn is_of_name(&mut self, name: &[u8]) {
        self.text.clear();
        if let Some(text) = self.names.get(name) {
            self.text.extend_from_slice(text);
        }
    }

    /// A named portal is bound to the text that stands for it: it may be run in later batches.
    pub fn opens(&mut self, portal: &[u8]) {
        let (name, text) = &mut self.portal;
        name.clear();
        name.extend_from_slice(portal);
        text.clone_from(&self.text);
    }

    /// A portal is run that was bound in an earlier batch.
    pub fn goes_on(&mut self, portal: &[u8]) {
        if self.portal.0 == portal && !portal.is_empty() {
            self.text.clone_from(&self.portal.1);
        }
    }

    /// It returns at most so many rows at a time (Execute, `protocol-message-formats`).
    pub fn returns_at_most(&mut self, rows: i32) {
        self.at_most = u32::try_from(rows).unwrap_or_default();
    }

    /// These messages of the server's are on their way to the client.
    #[cold]
    pub fn pass(&mut self, messages: &[u8]) {
        let mut rest = messages;
        while let Ok(Some(frame)) = cut(rest, usize::MAX) {
            match frame.tag {
                tag::COMMAND_COMPLETE => self.completes(frame.body()),
                tag::PORTAL_SUSPENDED => self.is_suspended(),
                _ => {}
            }
            rest = rest.get(frame.len..).unwrap_or_default();
        }
    }

    /// CommandComplete, with this tag: the number at its end, if there is one, is of rows.
    fn completes(&mut self, tag: &[u8]) {
        self.has_run = true;
        let tag = tag.strip_suffix(b"\0").unwrap_or(tag);
        let digits = tag.iter().rev().take_while(|byte| byte.is_ascii_digit());
        let mut unit = 1_u64;
        for digit in digits {
            let value = u64::from(digit - b'0').wrapping_mul(unit);
            self.rows = self.rows.wrapping_add(value);
            unit = unit.wrapping_mul(10);
        }
    }

    /// PortalSuspended: it has returned as many rows as it was to.
    fn is_suspended(&mut self) {
        self.has_run = true;
        self.rows += u64::from(self.at_most);
    }

    /// It is run, and nothing will say so (FunctionCall).
    pub fn runs(&mut self) {
        self.has_run = true;
    }

    /// The server has answered so much.
    #[inline]
    pub fn answered(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// It failed, or was broken off: with this SQLSTATE, or for this reason.
    pub fn fails(&mut self, why: &str) {
        self.failed = true;
        let error = &mut self.traced.span.error;
        error.get_or_insert_with(|| why.chars().take(LONGEST_REASON).collect());
    }

    /// Did it do anything but prepare?
    pub fn counts(&self) -> bool {
        self.has_run || self.failed
    }

    /// Did it fail?
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Rows that were returned, inserted, changed or deleted.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes that the server has answered.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_what_the_tags_say() {
        for (tag, rows) in [
            (&b"SELECT 12\0"[..], 12),
            (b"INSERT 0 100\0", 100),
            (b"BEGIN\0", 0),
            (b"COPY 3", 3),
            (b"\0", 0),
            (b"", 0),
        ] {
            let mut watched = Watched::default();
            watched.completes(tag);
            assert_eq!(watched.rows(), rows, "{tag:?}");
        }
        let mut watched = Watched::default();
        watched.completes(&[b'9'; 40]);
        assert!(watched.counts());
    }

    #[test]
    fn a_portal_is_known_in_later_batches() {
        let mut watched = Watched::default();
        watched.is_of(b"SELECT 1");
        watched.opens(b"c1");
        watched.returns_at_most(50);
        watched.is_suspended();
        assert_eq!(watched.rows(), 50);
        watched.begin();
        watched.goes_on(b"c2");
        assert_eq!((watched.text(), watched.rows()), (&b""[..], 0));
        watched.goes_on(b"c1");
        assert_eq!(watched.text(), b"SELECT 1");
    }

    #[test]
    fn names_and_texts_are_bounded() {
        let mut watched = Watched::default();
        let text = vec![b'x'; 2 * LONGEST];
        for number in 0..1000_u32 {
            watched.name(&number.to_be_bytes(), &text);
        }
        assert_eq!(watched.names.len(), MOST_NAMES);
        watched.is_of_name(&1_u32.to_be_bytes());
        assert_eq!(watched.text().len(), LONGEST);
        watched.is_of_name(&999_u32.to_be_bytes());
        assert!(watched.text().is_empty());
    }
}
