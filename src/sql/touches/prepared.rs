//! SQL's own prepared statements: what a text prepares under a name, and which name it runs.
//!
//! PostgreSQL keeps the whole text in which a PREPARE came. What is not surely the one statement in question is not found.

use super::name::{self, Reading};
use crate::sql::lexer::{Lexer, Token, TokenKind};

/// What `text` prepares under this name (as the server has it): all that comes behind `AS`. `None`: it does so never or more than
/// once, or can't be cut with certainty.
pub fn prepared_body<'a>(text: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let mut found = None;
    let mut statements = 0;
    for statement in split(text)? {
        statements += 1;
        if let Some(begin) = body_of(text, &statement, wanted) {
            let end = statement.last()?.span.end;
            if found.replace(text.get(begin..end)?).is_some() {
                return None;
            }
        }
    }
    // Without `standard_conforming_strings` a backslash decides where a string ends, and so what is a statement.
    if statements > 1 && memchr::memchr(b'\\', text).is_some() {
        return None;
    }
    found.filter(|body| !body.is_empty())
}

/// What a text runs that is one EXECUTE and nothing else.
pub fn executed(text: &[u8]) -> Option<Executed<'_>> {
    let mut tokens = Lexer::new(text).significant();
    if !tokens.next()?.is_word(text, b"execute") {
        return None;
    }
    let token = tokens.next()?;
    let mut rest = tokens.skip_while(|token| token.kind != TokenKind::Semicolon);
    rest.next();
    rest.next().is_none().then_some(Executed { text, token })
}

/// A name behind EXECUTE, and what comes after it.
#[derive(Debug)]
pub struct Executed<'a> {
    text: &'a [u8],
    token: Token,
}

impl Executed<'_> {
    /// The values for its parameters, in their parentheses.
    pub fn values(&self) -> &[u8] {
        self.text.get(self.token.span.end..).unwrap_or_default()
    }

    /// Does it stand for this name, as the server has it?
    pub fn is(&self, name: &[u8]) -> bool {
        names(self.text, &self.token, name)
    }
}

/// The tokens of each statement; `None` if something in the text does not end.
fn split(text: &[u8]) -> Option<Vec<Vec<Token>>> {
    let mut statements = vec![Vec::new()];
    for token in Lexer::new(text).significant() {
        match token.kind {
            TokenKind::Unterminated => return None,
            TokenKind::Semicolon => statements.push(Vec::new()),
            _ => statements.last_mut()?.push(token),
        }
    }
    statements.retain(|statement| !statement.is_empty());
    Some(statements)
}

/// Where the body begins, if the statement is `PREPARE wanted [(types)] AS body`.
fn body_of(text: &[u8], statement: &[Token], wanted: &[u8]) -> Option<usize> {
    let [prepare, name, rest @ ..] = statement else {
        return None;
    };
    if !prepare.is_word(text, b"prepare") || !names(text, name, wanted) {
        return None;
    }
    let mut depth = 0_usize;
    let mut rest = rest.iter();
    let is_as = |token: &Token| token.is_word(text, b"as");
    rest.find(|token| {
        match token.of(text) {
            b"(" => depth += 1,
            b")" => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && is_as(token)
    })?;
    rest.next().map(|first| first.span.start)
}

fn names(text: &[u8], token: &Token, wanted: &[u8]) -> bool {
    matches!(name::read(text, token), Reading::Name(name) if name.as_bytes() == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str, name: &str) -> Option<String> {
        let body = prepared_body(text.as_bytes(), name.as_bytes());
        body.map(|body| String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn a_body_is_what_comes_behind_as() {
        for (text, name, expected) in [
            ("PREPARE p AS SELECT 1", "p", "SELECT 1"),
            ("prepare P as select 1;", "p", "select 1"),
            (
                "/* x */ PREPARE \"P q\"(int, numeric(10, 2)) AS SELECT $1 AS a -- end",
                "P q",
                "SELECT $1 AS a",
            ),
            (
                "SET a = 'b;c'; PREPARE p (text) AS INSERT INTO t VALUES ($1, ';') ; SELECT 1",
                "p",
                "INSERT INTO t VALUES ($1, ';')",
            ),
            (
                r"PREPARE p AS SELECT '\d;' AS a;",
                "p",
                r"SELECT '\d;' AS a",
            ),
            ("PREPARE prepare AS VALUES (1)", "prepare", "VALUES (1)"),
        ] {
            assert_eq!(body(text, name).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_certain_is_not_found() {
        for (text, name) in [
            ("", "p"),
            ("SELECT 1", "p"),
            ("PREPARE p", "p"),
            ("PREPARE p AS", "p"),
            ("PREPARE p AS SELECT 'a", "p"),
            ("PREPARE p AS SELECT 1", "q"),
            ("PREPARE \"P\" AS SELECT 1", "p"),
            (
                "PREPARE p AS SELECT 1; DEALLOCATE p; PREPARE p AS SELECT 2",
                "p",
            ),
            (r"PREPARE p AS SELECT 'a\'; SELECT 2", "p"),
            (r#"PREPARE U&"\0070" AS SELECT 1"#, "p"),
        ] {
            assert_eq!(body(text, name), None, "{text}");
        }
    }

    #[test]
    fn one_execute_alone_runs_a_name() {
        let runs = |text: &str, name: &str| {
            executed(text.as_bytes()).is_some_and(|it| it.is(name.as_bytes()))
        };
        let values = executed(b"EXECUTE p (1, f(2))").map(|it| it.values().to_vec());
        assert_eq!(values.unwrap(), b" (1, f(2))");
        assert!(runs("EXECUTE p", "p"));
        assert!(runs(" execute \"Q\"(1, 'a;b') ; ", "Q"));
        assert!(!runs("EXECUTE p; SELECT 1", "p"));
        assert!(!runs("EXECUTE p", "q"));
        assert!(!runs("EXPLAIN EXECUTE p", "p"));
        assert!(!runs("EXECUTE", "execute"));
    }
}
