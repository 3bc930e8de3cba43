//! What a text may leave behind in the session that runs it.
//!
//! Owns the first look, which tells of nearly every text that it leaves nothing; `walk` reads the others token
//! by token. What is found is a guess to the safe side: a text that is said to touch nothing does not, except by
//! what it does not show (triggers, rules, operators and functions; `is_stateful` answers for the last). Texts
//! are read as with `standard_conforming_strings` on.
//!
//! Not seen at all: the seed of `random()`, and connections that extensions such as dblink keep.

mod draws;
mod name;
mod prepared;
mod walk;

use super::lexer::{Lexer, is_blank};
use memchr::{memchr2, memchr2_iter, memmem, memrchr};
use name::goes_on_name;
use std::fmt;

pub use draws::{Draws, beginning, begins_quietly, draws, has_name};
pub use prepared::{Executed, executed, prepared_body};
pub use walk::look_closely;

/// Kinds of things that outlive a transaction in its session.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Touches(u16);

impl Touches {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Values of settings, the role among them (`SET`, `RESET`, `set_config`).
    pub const SETTINGS: Self = Self(1);
    /// Temporary objects, begun or ended; temporary replication slots and replication origins as well.
    pub const TEMPORARY: Self = Self(1 << 1);
    /// Advisory locks of the session.
    pub const LOCKS: Self = Self(1 << 2);
    /// Cursors `WITH HOLD`, begun or ended.
    pub const CURSORS: Self = Self(1 << 3);
    /// Statements of SQL's `PREPARE`.
    pub const STATEMENTS: Self = Self(1 << 4);
    /// Channels that are listened to.
    pub const CHANNELS: Self = Self(1 << 5);
    /// A library was loaded.
    pub const LIBRARY: Self = Self(1 << 6);
    /// Reads what the session's sequences gave last: `currval` and `lastval`.
    pub const SEQUENCES: Self = Self(1 << 7);
    /// A setting may have changed whose name the text does not tell.
    pub const UNKNOWN_NAME: Self = Self(1 << 8);
    /// All of them.
    pub const ALL: Self = Self((1 << 9) - 1);
    /// What the body of a function is taken to do: all but what is told by other means.
    pub const BODY: Self =
        Self(Self::ALL.0 & !(Self::UNKNOWN_NAME.0 | Self::LIBRARY.0 | Self::SEQUENCES.0));

    const NAMES: [(Self, &str); 9] = [
        (Self::SETTINGS, "SETTINGS"),
        (Self::TEMPORARY, "TEMPORARY"),
        (Self::LOCKS, "LOCKS"),
        (Self::CURSORS, "CURSORS"),
        (Self::STATEMENTS, "STATEMENTS"),
        (Self::CHANNELS, "CHANNELS"),
        (Self::LIBRARY, "LIBRARY"),
        (Self::SEQUENCES, "SEQUENCES"),
        (Self::UNKNOWN_NAME, "UNKNOWN_NAME"),
    ];

    /// As a number, one bit for each.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// From such a number; bits that stand for nothing are dropped.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Those of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are in both.
    #[must_use]
    pub const fn also_in(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` are in it.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The kinds in words, as users see them.
impl fmt::Display for Touches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = Self::NAMES.iter().filter(|(bit, _)| self.contains(*bit));
        for (at, (_, word)) in words.enumerate() {
            let gap = if at > 0 { ", " } else { "" };
            write!(f, "{gap}{}", word.to_ascii_lowercase().replace('_', " "))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Touches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (_, name) in Self::NAMES.iter().filter(|(bit, _)| self.contains(*bit)) {
            write!(f, "{separator}{name}")?;
            separator = " | ";
        }
        if self.is_empty() {
            f.write_str("NONE")?;
        }
        Ok(())
    }
}

/// What a text touches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Never empty.
    pub touches: Touches,
    /// Which settings, as far as `pg_settings` does not show them anyway; in their order, without repeats.
    pub settings: Vec<Setting>,
}

/// A setting that a text changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// By its name, in lower case (the server does not tell cases apart in them, quoted or not). Only names
    /// with a dot: the server's own have none.
    Named(Box<[u8]>),
    /// By the value of this parameter of the Bind, 1 being the first: `set_config($1, …)`.
    Parameter(u16),
}

/// What running `sql` may leave behind in its session; `None` if nothing.
///
/// `is_stateful` says of the name of a function (in lower case unless quoted, without its schema, cut as the
/// server cuts names) whether it may touch the session; [`Touches::BODY`] is assumed then.
///
/// An ordinary text costs a look at its first word and one or two searches for bytes, and allocates nothing.
pub fn touches(sql: &[u8], is_stateful: &dyn Fn(&[u8]) -> bool) -> Option<Box<Found>> {
    if touches_nothing(sql, is_stateful) {
        return None;
    }
    look_closely(sql, is_stateful)
}

/// What the first word of a text says of the rest.
#[derive(Clone, Copy)]
enum Head {
    /// It may touch something by itself, or is unknown.
    Any,
    /// It may call functions.
    Calls,
    /// SELECT, which may have an INTO besides.
    Select,
    /// WITH, which may have the others in it.
    With,
    /// UPDATE; that of `pg_settings` is a SET.
    Update,
}

/// Whether the first look is enough to say so.
fn touches_nothing(sql: &[u8], is_stateful: &dyn Fn(&[u8]) -> bool) -> bool {
    let mut text = sql;
    let mut first = head(text);
    if matches!(first, Head::Any) && !text.first().is_some_and(u8::is_ascii_alphabetic) {
        let Some(token) = Lexer::new(sql).significant().next() else {
            return true;
        };
        text = sql.get(token.span.start..).unwrap_or_default();
        first = head(text);
    }
    let quiet = match first {
        Head::Any => false,
        Head::Calls => true,
        Head::Select => !has_into(text, false),
        Head::With => !has_into(text, true) && memmem::find(text, b"&\"").is_none(),
        Head::Update => !may_update_settings(text),
    };
    quiet && calls_nothing(text, is_stateful)
}

/// By four letters: no statement that matters shares them with one that does not.
fn head(text: &[u8]) -> Head {
    match text {
        [b'e' | b'E', b'n' | b'N', b'd' | b'D', ..] => Head::Calls,
        // Only letters become letters by this bit.
        &[a, b, c, d, ..] => match &[a | 0x20, b | 0x20, c | 0x20, d | 0x20] {
            b"sele" => Head::Select,
            b"with" => Head::With,
            b"upda" => Head::Update,
            b"inse" | b"dele" | b"begi" | b"comm" | b"roll" | b"star" | b"save" | b"rele"
            | b"abor" | b"fetc" | b"move" | b"merg" | b"valu" | b"copy" | b"show" | b"noti"
            | b"lock" | b"trun" | b"vacu" | b"anal" => Head::Calls,
            _ => Head::Any,
        },
        _ => Head::Any,
    }
}

/// Whether it is one statement, and no function that matters is called in it.
fn calls_nothing(text: &[u8], is_stateful: &dyn Fn(&[u8]) -> bool) -> bool {
    for at in memchr2_iter(b'(', b';', text) {
        let (before, after) = text.split_at(at);
        if after.first() == Some(&b';') {
            return after.iter().all(|&byte| byte == b';' || is_blank(byte));
        }
        if may_matter(before, is_stateful) {
            return false;
        }
    }
    true
}

/// Whether INTO is in it in any case, or `pg_settings` if that is wanted.
fn has_into(text: &[u8], or_settings: bool) -> bool {
    memchr2_iter(b'i', b'I', text).any(|at| {
        let (before, after) = text.split_at(at);
        match after {
            [_, b'n' | b'N', b't' | b'T', b'o' | b'O', ..] => true,
            [_, b'n' | b'N', b'g' | b'G', b's' | b'S', ..] => {
                or_settings && name::ends_with(before, b"pg_sett")
            }
            _ => false,
        }
    })
}

/// Whether the table of an UPDATE may be `pg_settings`.
fn may_update_settings(text: &[u8]) -> bool {
    let after = text.get(b"update".len()..).unwrap_or_default();
    let blanks = after.iter().take_while(|&&byte| is_blank(byte)).count();
    match after.get(blanks..).unwrap_or_default() {
        [b'"', rest @ ..] => rest.starts_with(b"pg_"),
        [b'p' | b'P', b'g' | b'G', b'_', ..]
        | [b'o' | b'O', b'n' | b'N', b'l' | b'L', b'y' | b'Y', ..]
        | [b'u' | b'U', b'&', ..]
        | [b'/' | b'-' | b'(', ..] => true,
        _ => false,
    }
}

/// Whether what stands before a parenthesis may be a function that touches the session.
///
/// Looks back over what it may be, which is never what was looked at for another parenthesis.
fn may_matter(before: &[u8], is_stateful: &dyn Fn(&[u8]) -> bool) -> bool {
    let Some(last) = before.iter().rposition(|&byte| !is_blank(byte)) else {
        return false;
    };
    let (text, blanks) = before.split_at(last + 1);
    if memchr2(b'\n', b'\r', blanks).is_some() && ends_in_comment(text) {
        return true;
    }
    let mut folded = [0; name::LONGEST];
    let name: &[u8] = match text {
        [.., b'*', b'/'] | [.., b'\''] => return true,
        [rest @ .., b'"'] => {
            let Some(open) = memrchr(b'"', rest) else {
                return false;
            };
            let (head, name) = rest.split_at(open);
            if matches!(head.last(), Some(b'"' | b'&')) {
                return true;
            }
            name.get(1..).unwrap_or_default()
        }
        [.., byte] if goes_on_name(*byte) => {
            let mut start = text.len();
            let mut dollars = false;
            for &byte in text.iter().rev().take_while(|&&byte| goes_on_name(byte)) {
                dollars |= byte == b'$';
                start -= 1;
            }
            let (head, word) = text.split_at(start);
            // Where a number or a dollar quote ends and a name begins, the lexer knows.
            if dollars || word.first().is_some_and(u8::is_ascii_digit) {
                return true;
            }
            if is_keyword(word) && head.last() != Some(&b'.') {
                return false;
            }
            let Some(place) = folded.get_mut(..word.len()) else {
                return true;
            };
            place.copy_from_slice(word);
            place.make_ascii_lowercase();
            place
        }
        _ => return false,
    };
    // The long way knows what is left of a name that is too long.
    name.len() > name::LONGEST || !name::known(name).is_empty() || is_stateful(name)
}

/// Whether the last line of `text` may end in a comment.
fn ends_in_comment(text: &[u8]) -> bool {
    let start = text.iter().rposition(|byte| matches!(byte, b'\n' | b'\r'));
    let line = text.get(start.unwrap_or(0)..).unwrap_or_default();
    memmem::find(line, b"--").is_some()
}

/// Whether it is one of the words that stand before most parentheses and name no function.
fn is_keyword(word: &[u8]) -> bool {
    let is = |keyword: &[u8]| word.eq_ignore_ascii_case(keyword);
    match word.len() {
        2 => is(b"in") || is(b"as") || is(b"or") || is(b"on"),
        3 => is(b"and") || is(b"not"),
        6 => is(b"values") || is(b"exists"),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
