//! Names in a text as the server knows them, and the functions of the server that touch the session.

use super::Touches;
use crate::sql::lexer::{Token, TokenKind};
use memchr::memchr_iter;

/// Longest name that the server keeps (`NAMEDATALEN` without its zero), in bytes.
pub(super) const LONGEST: usize = 63;

/// A name in lower case unless it was quoted, cut to what the server keeps.
pub(super) struct Name {
    bytes: [u8; LONGEST],
    length: usize,
}

/// What a token says as a name.
pub(super) enum Reading {
    /// This one.
    Name(Name),
    /// One with escapes, which takes the server's encoding to know.
    Escaped,
    /// It is none.
    Other,
}

impl Name {
    /// Of a name without quotes. Only ASCII is folded, as the server does in UTF-8.
    pub(super) fn folded(word: &[u8]) -> Self {
        Self::new(word.iter().map(u8::to_ascii_lowercase))
    }

    /// Of what is between the quotes of a quoted name, where two quotes are one.
    pub(super) fn quoted(inside: &[u8]) -> Self {
        let mut bytes = inside.iter().copied();
        Self::new(std::iter::from_fn(move || {
            let byte = bytes.next()?;
            if byte == b'"' {
                bytes.next();
            }
            Some(byte)
        }))
    }

    fn new(mut from: impl Iterator<Item = u8>) -> Self {
        let mut bytes = [0; LONGEST];
        let mut length = 0;
        for (place, byte) in bytes.iter_mut().zip(&mut from) {
            *place = byte;
            length += 1;
        }
        let mut name = Self { bytes, length };
        if length == LONGEST && from.next().is_some_and(continues_character) {
            name.end_before_character();
        }
        name
    }

    /// Forgets the last character, of which a part would be missing.
    fn end_before_character(&mut self) {
        while let Some((&last, _)) = self.as_bytes().split_last() {
            self.length -= 1;
            if !continues_character(last) {
                break;
            }
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// The name that a token of `text` stands for.
pub(super) fn read(text: &[u8], token: &Token) -> Reading {
    let written = token.of(text);
    let inside = |from: usize| {
        let end = written.len().saturating_sub(1);
        written.get(from..end).unwrap_or_default()
    };
    match token.kind {
        TokenKind::Word => Reading::Name(Name::folded(written)),
        TokenKind::QuotedName => Reading::Name(Name::quoted(inside(1))),
        TokenKind::UnicodeName if written.contains(&b'\\') => Reading::Escaped,
        TokenKind::UnicodeName => Reading::Name(Name::quoted(inside(3))),
        TokenKind::Blank
        | TokenKind::Comment
        | TokenKind::Text
        | TokenKind::Number
        | TokenKind::Semicolon
        | TokenKind::Other
        | TokenKind::Unterminated => Reading::Other,
    }
}

fn continues_character(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// Whether a name without quotes may have this byte in it.
pub(super) fn goes_on_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || byte >= 0x80
}

/// Whether `text` ends with `end`, which is in lower case, in any case.
pub(super) fn ends_with(text: &[u8], end: &[u8]) -> bool {
    let from = text.len().checked_sub(end.len());
    let last = from.and_then(|from| text.get(from..));
    last.is_some_and(|last| last.eq_ignore_ascii_case(end))
}

/// What a function of the server's own with this name touches; `set_config` by its arguments, perhaps nothing.
pub(super) fn known(name: &[u8]) -> Touches {
    // Most names are not worth comparing.
    let letter = name.first().is_some_and(|first| b"clpqst".contains(first));
    if name.len() < b"currval".len() || !letter && !name.contains(&b'v') {
        return Touches::NONE;
    }
    match name {
        b"set_config" => Touches::SETTINGS,
        b"currval" | b"lastval" => Touches::SEQUENCES,
        // They run SQL that is their argument; the last are of tablefunc.
        b"query_to_xml"
        | b"query_to_xmlschema"
        | b"query_to_xml_and_xmlschema"
        | b"ts_stat"
        | b"ts_rewrite"
        | b"crosstab"
        | b"crosstab2"
        | b"crosstab3"
        | b"crosstab4"
        | b"crosstabn" => Touches::BODY.union(Touches::UNKNOWN_NAME),
        b"pg_create_logical_replication_slot"
        | b"pg_create_physical_replication_slot"
        | b"pg_copy_logical_replication_slot"
        | b"pg_copy_physical_replication_slot"
        | b"pg_drop_replication_slot"
        | b"pg_replication_origin_session_setup"
        | b"pg_replication_origin_session_reset" => Touches::TEMPORARY,
        _ if locks(name) => Touches::LOCKS,
        _ => Touches::NONE,
    }
}

/// Whether it takes or gives back advisory locks that do not end with the transaction.
fn locks(name: &[u8]) -> bool {
    let advisory = memchr_iter(b'v', name).any(|at| {
        let around = at.checked_sub(2).and_then(|from| name.get(from..at + 6));
        around == Some(b"advisory")
    });
    advisory
        && !name.starts_with(b"pg_advisory_xact_")
        && !name.starts_with(b"pg_try_advisory_xact_")
}
