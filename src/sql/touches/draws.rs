//! Does a text draw from sequences, so that `currval` and `lastval` have something to say in its session afterwards?
//!
//! Read only where somebody asks these: nearly every write draws, and nearly nobody asks.

use super::name::{self, Reading};
use crate::sql::lexer::{Lexer, TokenKind};

/// What a text may take from sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Draws {
    /// Nothing.
    Nothing,
    /// Something by what it does not show: a trigger of a table that is updated, say.
    Unshown,
    /// Something, as far as the text tells: INSERT, `nextval`, a function that does that.
    Shown,
}

/// So much of a text tells it from others, at most.
const LONGEST_BEGINNING: usize = 96;

/// What running `sql` may take from sequences. `is_drawing` says it of functions, by the name as
/// [`touches`](super::touches) has it.
pub fn draws(sql: &[u8], is_drawing: &dyn Fn(&[u8]) -> bool) -> Draws {
    let mut found = Draws::Nothing;
    let (mut begins, mut is_copy, mut depth) = (true, false, 0usize);
    for token in Lexer::new(sql).significant() {
        match (token.kind, token.of(sql)) {
            (TokenKind::Semicolon, _) => {
                (begins, is_copy, depth) = (true, false, 0);
                continue;
            }
            (_, b"(") => depth += 1,
            (_, b")") => depth = depth.saturating_sub(1),
            _ => {}
        }
        let word = match name::read(sql, &token) {
            Reading::Name(word) => word,
            Reading::Escaped => return Draws::Shown,
            Reading::Other => {
                begins &= token.of(sql) == b"(";
                continue;
            }
        };
        let word = word.as_bytes();
        let is_keyword = token.kind == TokenKind::Word;
        if begins && is_keyword {
            is_copy = word == b"copy";
            if !is_quiet(word) {
                found = found.max(Draws::Unshown);
            }
        }
        begins = false;
        let shows = match word {
            b"insert" | b"merge" | b"call" | b"do" | b"execute" | b"default" => is_keyword,
            b"from" => is_keyword && is_copy && depth == 0,
            b"nextval" | b"setval" => true,
            _ => is_drawing(word),
        };
        if shows {
            return Draws::Shown;
        }
        if is_keyword && matches!(word, b"update" | b"delete") {
            found = found.max(Draws::Unshown);
        }
    }
    found
}

/// Does the text have a name in it of which `is_meant` says so?
pub fn has_name(sql: &[u8], is_meant: &dyn Fn(&[u8]) -> bool) -> bool {
    Lexer::new(sql)
        .significant()
        .any(|token| match name::read(sql, &token) {
            Reading::Name(name) => is_meant(name.as_bytes()),
            Reading::Escaped => true,
            Reading::Other => false,
        })
}

/// Does it begin like a text that draws nothing, and is no query: BEGIN, SET, SHOW? (Others may not, too.)
#[inline]
pub fn begins_quietly(sql: &[u8]) -> bool {
    match sql {
        [b'b' | b'B', ..] => true,
        [b's' | b'S', second, third, ..] => !matches!((second | 0x20, third | 0x20), (b'e', b'l')),
        _ => false,
    }
}

/// What texts that do the same with other values begin with.
pub fn beginning(sql: &[u8]) -> &[u8] {
    let start = Lexer::new(sql)
        .significant()
        .next()
        .map_or(0, |token| token.span.start);
    let text = sql.get(start..).unwrap_or_default();
    let text = text.get(..LONGEST_BEGINNING).unwrap_or(text);
    let Some(open) = memchr::memchr(b'(', text) else {
        return text;
    };
    let (before, after) = text.split_at(open);
    // The name of the sequence is all that tells these apart.
    let end = if name::ends_with(before, b"nextval") || name::ends_with(before, b"setval") {
        memchr::memchr2(b',', b')', after).map_or(text.len(), |close| open + close)
    } else {
        open
    };
    text.get(..end).unwrap_or(text)
}

/// First words of statements that draw nothing unless something else in them does.
fn is_quiet(word: &[u8]) -> bool {
    matches!(
        word,
        b"select"
            | b"with"
            | b"values"
            | b"table"
            | b"explain"
            | b"analyze"
            | b"declare"
            | b"fetch"
            | b"move"
            | b"close"
            | b"copy"
            | b"begin"
            | b"start"
            | b"commit"
            | b"end"
            | b"rollback"
            | b"abort"
            | b"savepoint"
            | b"release"
            | b"prepare"
            | b"deallocate"
            | b"set"
            | b"reset"
            | b"show"
            | b"discard"
            | b"listen"
            | b"unlisten"
            | b"notify"
            | b"lock"
            | b"load"
            | b"vacuum"
            | b"checkpoint"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_mine(name: &[u8]) -> bool {
        name == b"mine"
    }

    #[test]
    fn what_draws_is_told_from_what_does_not() {
        for (sql, expected) in [
            ("", Draws::Nothing),
            ("select 1", Draws::Nothing),
            ("select count(*) from t where a in (1, 2)", Draws::Nothing),
            (
                "select 'insert', \"copy\" from t -- nextval",
                Draws::Nothing,
            ),
            ("begin; set x = 1; show y; commit", Draws::Nothing),
            ("copy t to stdout", Draws::Nothing),
            ("copy (select * from t) to stdout", Draws::Nothing),
            ("discard sequences", Draws::Nothing),
            ("update t set a = 1", Draws::Unshown),
            (
                "with x as (delete from t returning 1) select 1",
                Draws::Unshown,
            ),
            ("truncate t", Draws::Unshown),
            ("begin; delete from t", Draws::Unshown),
            ("insert into t values (1)", Draws::Shown),
            ("/* x */ INSERT INTO t DEFAULT VALUES", Draws::Shown),
            (
                "with x as (insert into t values (1)) select 1",
                Draws::Shown,
            ),
            ("explain analyze insert into t values (1)", Draws::Shown),
            (
                "merge into t using s on true when not matched then do nothing",
                Draws::Shown,
            ),
            ("copy t (a, b) from stdin", Draws::Shown),
            ("select NextVal('s')", Draws::Shown),
            ("select pg_catalog.\"nextval\"('s')", Draws::Shown),
            ("select setval('s', 3)", Draws::Shown),
            ("select U&\"next\\0076al\"('s')", Draws::Shown),
            ("update t set a = default", Draws::Shown),
            ("select public.Mine(1)", Draws::Shown),
            ("call p()", Draws::Shown),
            ("do $$ begin end $$", Draws::Shown),
        ] {
            assert_eq!(draws(sql.as_bytes(), &is_mine), expected, "{sql}");
        }
    }

    #[test]
    fn what_begins_quietly_is_no_query() {
        for sql in [
            "BEGIN",
            "begin read only",
            "SET x = 1",
            "show a",
            "SAVEPOINT s",
        ] {
            assert!(begins_quietly(sql.as_bytes()), "{sql}");
        }
        for sql in [
            "",
            "s",
            "SELECT 1",
            "select 1",
            "INSERT INTO t",
            " BEGIN",
            "COMMIT",
        ] {
            assert!(!begins_quietly(sql.as_bytes()), "{sql}");
        }
    }

    #[test]
    fn a_beginning_is_the_same_for_other_values() {
        for (sql, expected) in [
            ("INSERT INTO t (a) VALUES (1)", "INSERT INTO t "),
            ("/* 17 */ INSERT INTO t VALUES (1)", "INSERT INTO t VALUES "),
            ("select nextval('a')", "select nextval('a'"),
            ("select setval('a', 17)", "select setval('a'"),
            ("select f(1)", "select f"),
            ("select 1", "select 1"),
        ] {
            assert_eq!(beginning(sql.as_bytes()), expected.as_bytes(), "{sql}");
        }
        assert_eq!(beginning(&[b'x'; 1000]).len(), LONGEST_BEGINNING);
    }
}
