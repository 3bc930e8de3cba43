//! Statements whose text says that prepared statements go away (DEALLOCATE and DISCARD ALL), or that settings change.
//!
//! What is found is what the text asks for; whether the server does it, its `CommandComplete` and `ParameterStatus` tell.

use super::lexer::{Lexer, Token, TokenKind, begins_with, is_blank};
use std::ops::Range;

/// How many tokens of a statement are looked at: one more than the longest form has, to tell that it goes on.
const WORDS: usize = 4;

/// What a statement begins with that is looked for.
const OURS: [&[u8]; 4] = [b"deallocate", b"discard", b"set", b"reset"];

/// Does it only ask whether anybody is there? So pools of connections do, just before they lend one: with nothing, with a
/// comment, or with `SELECT 1`.
pub fn is_probe(sql: &[u8]) -> bool {
    let mut words = Lexer::new(sql)
        .significant()
        .filter(|token| token.kind != TokenKind::Semicolon)
        .map(|token| token.of(sql));
    match (words.next(), words.next(), words.next()) {
        (None, _, _) => true,
        (Some(word), Some(value), None) => word.eq_ignore_ascii_case(b"select") && value == b"1",
        (Some(_), _, _) => false,
    }
}

/// One statement that removes prepared statements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatementChange {
    /// `DEALLOCATE [PREPARE] name`.
    Deallocate {
        /// The statement, as the server knows it: lower case unless quoted. Not cut to 63 bytes.
        name: Vec<u8>,
        /// Where the name stands in the text, with its quotes.
        span: Range<usize>,
    },
    /// `DEALLOCATE [PREPARE] ALL`.
    DeallocateAll,
    /// `DISCARD ALL`.
    DiscardAll,
}

/// What a text says about what comes after it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Its statements that remove prepared statements, in their order.
    pub statements: Vec<StatementChange>,
    /// One of its statements is a `SET` or `RESET`, or a `DISCARD ALL`.
    pub settings: bool,
}

/// What `sql` changes for the texts after it.
///
/// An ordinary text costs a look at its first keyword and a search for a `;`, and allocates nothing. A name in
/// `U&"…"` with escapes is not found: it would take the server's encoding to know what it means.
pub fn changes(sql: &[u8]) -> Changes {
    let mut changes = Changes::default();
    if !may_change(sql) {
        return changes;
    }
    let mut statement: Vec<Token> = Vec::with_capacity(WORDS);
    for token in Lexer::new(sql).significant() {
        if token.kind == TokenKind::Semicolon {
            changes.add(sql, &statement);
            statement.clear();
        } else if statement.len() < WORDS {
            statement.push(token);
        }
    }
    changes.add(sql, &statement);
    changes
}

/// Does `sql` begin with `SET`, or with a longer word that does? For who knows already that it leaves nothing in its session.
#[inline]
pub fn begins_with_set(sql: &[u8]) -> bool {
    begins_with(sql, b"set")
}

/// May the first statement of a text end a transaction, or a failed one? True also where there is no telling.
pub fn may_end_transaction(sql: &[u8]) -> bool {
    let Some(first) = Lexer::new(sql).significant().next() else {
        return true;
    };
    let ends = [&b"commit"[..], b"end", b"rollback", b"abort", b"prepare"];
    first.kind != TokenKind::Word || ends.iter().any(|word| first.is_word(sql, word))
}

/// All statements in `sql` that remove prepared statements, in their order.
pub fn statement_changes(sql: &[u8]) -> Vec<StatementChange> {
    changes(sql).statements
}

impl Changes {
    fn add(&mut self, sql: &[u8], statement: &[Token]) {
        let change = change(sql, statement);
        let sets = statement
            .first()
            .is_some_and(|verb| verb.is_word(sql, b"set") || verb.is_word(sql, b"reset"));
        self.settings |= sets || change == Some(StatementChange::DiscardAll);
        self.statements.extend(change);
    }
}

/// Whether `sql` begins with one of our keywords, or may have several statements.
fn may_change(sql: &[u8]) -> bool {
    let mut rest = sql;
    // Nearly every text begins with the letters of another keyword.
    let is_other = match sql {
        [b's' | b'S' | b'r' | b'R', b'e' | b'E', third, ..] => {
            !matches!(third, b's' | b'S' | b't' | b'T')
        }
        [first, ..] => first.is_ascii_alphabetic() && !matches!(first, b'd' | b'D'),
        [] => false,
    };
    if !is_other {
        let Some(first) = Lexer::new(sql).significant().next() else {
            return false;
        };
        if OURS.iter().any(|word| first.is_word(sql, word)) {
            return true;
        }
        rest = sql.get(first.span.start..).unwrap_or_default();
    }
    memchr::memchr(b';', rest).is_some_and(|semicolon| {
        let after = rest.get(semicolon..).unwrap_or_default();
        !after.iter().all(|&byte| byte == b';' || is_blank(byte))
    })
}

/// What one statement, of which these are the first tokens, changes.
fn change(sql: &[u8], statement: &[Token]) -> Option<StatementChange> {
    match statement {
        [verb, all] if verb.is_word(sql, b"discard") => all
            .is_word(sql, b"all")
            .then_some(StatementChange::DiscardAll),
        // PREPARE alone is not reserved: a statement may have it as its name.
        [verb, name] if verb.is_word(sql, b"deallocate") => deallocate(sql, name),
        [verb, prepare, name]
            if verb.is_word(sql, b"deallocate") && prepare.is_word(sql, b"prepare") =>
        {
            deallocate(sql, name)
        }
        _ => None,
    }
}

fn deallocate(sql: &[u8], token: &Token) -> Option<StatementChange> {
    if token.is_word(sql, b"all") {
        return Some(StatementChange::DeallocateAll);
    }
    let name = name(token.kind, token.of(sql))?;
    Some(StatementChange::Deallocate {
        name,
        span: token.span.clone(),
    })
}

/// The name that a token stands for. Only ASCII is folded, as the server does in UTF-8.
fn name(kind: TokenKind, text: &[u8]) -> Option<Vec<u8>> {
    let name = match kind {
        TokenKind::Word => text.to_ascii_lowercase(),
        TokenKind::QuotedName => unquoted(text, 1),
        TokenKind::UnicodeName if !text.contains(&b'\\') => unquoted(text, 3),
        _ => return None,
    };
    (!name.is_empty()).then_some(name)
}

/// What is between the quotes, the first of which ends at `from`, with `""` as `"`.
fn unquoted(text: &[u8], from: usize) -> Vec<u8> {
    let inside = text.get(from..text.len() - 1).unwrap_or_default();
    let mut name = Vec::with_capacity(inside.len());
    let mut bytes = inside.iter();
    while let Some(&byte) = bytes.next() {
        name.push(byte);
        if byte == b'"' {
            bytes.next();
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pools_ask_of_a_connection_is_told_from_work() {
        for text in ["", " ", ";", "-- ping", "/* ping */ SELECT 1;", "select 1"] {
            assert!(is_probe(text.as_bytes()), "{text}");
        }
        for text in [
            "select 2",
            "select 1, 2",
            "begin",
            "select 1; commit",
            "select",
        ] {
            assert!(!is_probe(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn what_may_end_a_transaction_is_told_by_the_first_word() {
        for sql in [
            "commit",
            " /* - */ Rollback TO s",
            "END;",
            "abort",
            "prepare transaction 'x'",
            "",
            ";",
            "; rollback",
            "(select 1)",
            "-- ",
        ] {
            assert!(may_end_transaction(sql.as_bytes()), "{sql:?}");
        }
        for sql in [
            "select 1; commit",
            "begin",
            "ending",
            "\nset x = 1",
            "insert into t values (1)",
        ] {
            assert!(!may_end_transaction(sql.as_bytes()), "{sql:?}");
        }
    }
    use proptest::prelude::*;

    /// The changes in short: names, `*` for DEALLOCATE ALL, `!` for DISCARD ALL.
    fn short(sql: &str) -> String {
        let show = |change| match change {
            StatementChange::Deallocate { name, .. } => String::from_utf8(name).unwrap(),
            StatementChange::DeallocateAll => "*".to_owned(),
            StatementChange::DiscardAll => "!".to_owned(),
        };
        let changes = statement_changes(sql.as_bytes());
        changes.into_iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn statements_that_remove_prepared_statements_are_found() {
        for (sql, expected) in [
            ("deallocate a", "a"),
            ("DEALLOCATE Foo;", "foo"),
            ("deallocate \"Foo\"", "Foo"),
            ("deallocate \"a\"\"b\"\"\"", "a\"b\""),
            ("deallocate\"a\"", "a"),
            ("deallocate u&\"A\"", "A"),
            ("DEALLOCATE PREPARE a; select 1", "a"),
            ("/* driver: x /* y */ */ -- z\n\tdeallocate a", "a"),
            ("deallocate/**/prepare/**/a/**/", "a"),
            ("deallocate prepare", "prepare"),
            ("deallocate prepare prepare", "prepare"),
            ("deallocate É", "É"),
            ("deallocate all", "*"),
            ("DEALLOCATE PREPARE ALL", "*"),
            ("deallocate \"all\"", "all"),
            ("discard all", "!"),
            (" DISCARD\nALL ; ", "!"),
            ("select 1; deallocate a", "a"),
            (";deallocate a", "a"),
            (
                "deallocate a; deallocate b; discard all; deallocate all",
                "a b ! *",
            ),
            ("select ';'; deallocate a", "a"),
            ("select $$;$$; deallocate a", "a"),
            (r"select E'\''; deallocate a", "a"),
            ("begin;;deallocate a;;", "a"),
        ] {
            assert_eq!(short(sql), expected, "{sql}");
        }
    }

    #[test]
    fn other_statements_are_not() {
        for sql in [
            "",
            " ",
            ";",
            "-- deallocate a",
            "select 1",
            "select 1;",
            "select 1; ; \n",
            "select 'x; deallocate a'",
            "select $$; deallocate a; $$",
            "select $q$; deallocate a; $q$",
            "select 1 /* ; deallocate a; */",
            "select 1 -- ; deallocate a",
            "select \"; deallocate a\"",
            r"select E'\'; deallocate a;'",
            "do $$ begin deallocate a; end $$; select 1",
            "DISCARD PLANS",
            "discard temp; discard sequences",
            "discard all all",
            "discard",
            "discard \"all\"",
            "deallocate",
            "deallocate ;",
            "deallocate a b",
            "deallocate all b",
            "deallocate prepare a b",
            "deallocate prepare a b c",
            "deallocate 'a'",
            "deallocate 1",
            "deallocate $1",
            "deallocate \"\"",
            "deallocate \"a",
            r#"deallocate u&"\0061""#,
            r#"deallocate u&"a" uescape '!'"#,
            "deallocated a",
            "\"deallocate\" a",
            "delete from t",
            "drop table t; delete from t",
            "select 1; 'deallocate a",
        ] {
            assert_eq!(short(sql), "", "{sql}");
        }
    }

    #[test]
    fn texts_that_change_settings_are_found() {
        for sql in [
            "set x = 1",
            "SET LOCAL x TO 1;",
            "Reset all",
            "\n/* driver */ set role a",
            "select 1; set x = 1",
            "begin;reset x; select 1",
            "set/**/x = 1",
            "discard all",
            "SeT",
        ] {
            assert!(changes(sql.as_bytes()).settings, "{sql}");
        }
        for sql in [
            "",
            "s",
            "se",
            "select 1",
            "settle",
            "set_config()",
            "resets",
            "select 'set'; select 1",
            "update t set x = 1",
            "show x",
            "discard plans",
            "\"set\" x",
            "deallocate all",
            "rese",
            "setx; select 1",
            "-- set x",
        ] {
            assert!(!changes(sql.as_bytes()).settings, "{sql}");
        }
    }

    #[test]
    fn the_span_is_that_of_the_name_as_written() {
        let sql = "select 1; deallocate prepare \"A\"\"b\" ; deallocate Foo";
        let spans: Vec<_> = statement_changes(sql.as_bytes())
            .into_iter()
            .map(|change| match change {
                StatementChange::Deallocate { span, .. } => &sql[span],
                StatementChange::DeallocateAll | StatementChange::DiscardAll => "",
            })
            .collect();
        assert_eq!(spans, ["\"A\"\"b\"", "Foo"]);
    }

    #[test]
    fn an_ordinary_text_does_not_get_past_the_first_look() {
        for sql in [
            "select 1",
            "select 1;\n",
            "/* x */ delete from t;",
            "discards",
            "settle",
            "Reverse",
            "s",
            "",
        ] {
            assert!(!may_change(sql.as_bytes()), "{sql}");
        }
        for sql in [
            "Discard plans",
            "select 1; select 2",
            "select ';'",
            "; select",
        ] {
            assert!(may_change(sql.as_bytes()), "{sql}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_classified_without_a_panic(sql: Vec<u8>) {
            statement_changes(&sql);
            statement_changes(&[b"deallocate ", &sql[..]].concat());
        }

        #[test]
        fn a_quoted_name_reads_back(name in "[^\0]{1,20}") {
            let sql = format!("select 1;deallocate \"{}\"", name.replace('"', "\"\""));
            prop_assert_eq!(short(&sql), name);
        }

        #[test]
        fn the_first_look_never_hides_a_change(
            sql in "(;| |/\\*|\\*/|--|\n|'|deallocate|discard|all|a|select|set|RESET){0,8}"
        ) {
            if !may_change(sql.as_bytes()) {
                let lexed = format!("select 1;{sql}");
                prop_assert_eq!(changes(lexed.as_bytes()), Changes::default());
            }
        }
    }
}
