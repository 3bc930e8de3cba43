//! The tokens of SQL as `PostgreSQL` cuts them (18 §4.1, anchor `sql-syntax-lexical`).
//!
//! Made to find where statements, names and strings end, so it is coarser than the server's: an operator is as
//! many tokens as it has bytes. Every byte is in exactly one token; hostile text costs linear time and no
//! stack. Text is bytes: all server encodings have ASCII as it is, and no token ends inside a longer character.
//!
//! Reads `'…'` as with `standard_conforming_strings` on, its value since 9.1.

use memchr::{memchr, memchr2, memmem};
use std::ops::Range;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Spaces, tabs and line ends.
    Blank,
    /// `-- …` up to its line's end, or `/* … */` with others nested in it.
    Comment,
    /// Keyword or name without quotes.
    Word,
    /// `"name"`.
    QuotedName,
    /// `U&"name"`, where backslashes escape.
    UnicodeName,
    /// A string constant of any kind, with its prefix and quotes.
    Text,
    /// Parameter such as `$1`, or digits with points in them; an exponent or `0x` reads as a word after these.
    Number,
    /// `;`, which ends a statement.
    Semicolon,
    /// One byte of operators or punctuation.
    Other,
    /// String, quoted name or comment that does not end: the rest of the text.
    Unterminated,
}

/// A token and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Its bytes in the text; never empty.
    pub span: Range<usize>,
}

impl Token {
    /// Its bytes in `text`, which must be the text it was cut from.
    pub fn of<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.span.clone()).unwrap_or_default()
    }

    /// Is it this keyword, which is in lower case, and not a name in quotes? `text` is the one it was cut from.
    #[inline]
    pub fn is_word(&self, text: &[u8], word: &[u8]) -> bool {
        self.kind == TokenKind::Word && self.of(text).eq_ignore_ascii_case(word)
    }

    /// Whether it means nothing: blanks and comments.
    pub fn is_trivia(&self) -> bool {
        matches!(self.kind, TokenKind::Blank | TokenKind::Comment)
    }
}

/// The tokens of a text from front to back.
#[derive(Debug, Clone)]
pub struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Lexer<'a> {
    /// Begins at the first byte of `text`.
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// The tokens from here on that mean something: no blanks and no comments.
    #[inline]
    pub fn significant(self) -> impl Iterator<Item = Token> + Clone + use<'a> {
        self.filter(|token| !token.is_trivia())
    }
}

impl Iterator for Lexer<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        let rest = self.text.get(self.at..).filter(|rest| !rest.is_empty())?;
        let (kind, len) = token(rest);
        let start = self.at;
        self.at += len;
        Some(Token {
            kind,
            span: start..self.at,
        })
    }
}

/// Kind and length of the token that begins `rest`, which is not empty.
fn token(rest: &[u8]) -> (TokenKind, usize) {
    use TokenKind::{
        Blank, Comment, Number, Other, QuotedName, Semicolon, Text, UnicodeName, Unterminated, Word,
    };

    let (kind, len) = match rest {
        [b';', ..] => (Semicolon, Some(1)),
        [b'-', b'-', ..] => (Comment, Some(line_comment(rest))),
        [b'/', b'*', ..] => (Comment, block_comment(rest)),
        [b'\'', ..] => (Text, quoted(rest, 1, b'\'')),
        [b'"', ..] => (QuotedName, quoted(rest, 1, b'"')),
        [b'e' | b'E', b'\'', ..] => (Text, escape_string(rest)),
        [b'b' | b'B' | b'n' | b'N' | b'x' | b'X', b'\'', ..] => (Text, quoted(rest, 2, b'\'')),
        [b'u' | b'U', b'&', b'\'', ..] => (Text, quoted(rest, 3, b'\'')),
        [b'u' | b'U', b'&', b'"', ..] => (UnicodeName, quoted(rest, 3, b'"')),
        [b'$', b'0'..=b'9', ..] => (Number, Some(1 + run(rest, 1, |b| b.is_ascii_digit()))),
        [b'$', ..] => match dollar_delimiter(rest) {
            Some(delimiter) => (Text, dollar_quoted(rest, delimiter)),
            None => (Other, Some(1)),
        },
        // Without letters: up to PostgreSQL 14 `1a$$` is a number and a name, with no string after it.
        [b'0'..=b'9', ..] => (
            Number,
            Some(run(rest, 0, |b| b.is_ascii_digit() || b == b'.')),
        ),
        [first, ..] if is_blank(*first) => (Blank, Some(run(rest, 0, is_blank))),
        [first, ..] if begins_word(*first) => {
            let in_word = |b| begins_word(b) || b.is_ascii_digit() || b == b'$';
            (Word, Some(run(rest, 0, in_word)))
        }
        _ => (Other, Some(1)),
    };
    len.map_or((Unterminated, rest.len()), |len| (kind, len))
}

/// The blanks of the server's scanner, which has the vertical tab where Rust has not.
pub(super) fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Does the text begin with these letters, be they upper or lower case? What comes after them is not looked at.
#[inline]
pub fn begins_with(text: &[u8], letters: &[u8]) -> bool {
    text.get(..letters.len())
        .is_some_and(|first| first.eq_ignore_ascii_case(letters))
}

fn begins_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

/// How many bytes from `from` on are wanted ones.
fn run(rest: &[u8], from: usize, wanted: impl Fn(u8) -> bool) -> usize {
    let rest = rest.get(from..).unwrap_or_default();
    rest.iter().take_while(|&&byte| wanted(byte)).count()
}

/// Length up to, and without, the line's end.
fn line_comment(rest: &[u8]) -> usize {
    memchr2(b'\n', b'\r', rest).unwrap_or(rest.len())
}

fn block_comment(rest: &[u8]) -> Option<usize> {
    let mut depth = 0usize;
    let mut at = 0;
    loop {
        let tail = rest.get(at..)?;
        at += memchr2(b'/', b'*', tail)?;
        match rest.get(at..at + 2)? {
            b"/*" => {
                depth += 1;
                at += 2;
            }
            b"*/" => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => at += 1,
        }
    }
}

/// Length up to the closing `quote`, where two in a row stand for one inside.
fn quoted(rest: &[u8], from: usize, quote: u8) -> Option<usize> {
    let mut at = from;
    loop {
        at += memchr(quote, rest.get(at..)?)? + 1;
        if rest.get(at) != Some(&quote) {
            return Some(at);
        }
        at += 1;
    }
}

fn escape_string(rest: &[u8]) -> Option<usize> {
    let mut at = 2;
    loop {
        at += memchr2(b'\'', b'\\', rest.get(at..)?)?;
        match rest.get(at..)? {
            [b'\\', ..] | [b'\'', b'\'', ..] => at += 2,
            _ => match continuation(rest.get(at + 1..)?) {
                Some(gap) => at += 1 + gap,
                None => return Some(at + 1),
            },
        }
    }
}

/// Length up to and with the quote that carries on a string on another line: that part has escapes as well.
fn continuation(rest: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut new_line = false;
    loop {
        match rest.get(at..)? {
            [b'\'', ..] if new_line => return Some(at + 1),
            [b'-', b'-', tail @ ..] => at += 2 + line_comment(tail),
            [byte, ..] if is_blank(*byte) => {
                new_line |= matches!(byte, b'\n' | b'\r');
                at += 1;
            }
            _ => return None,
        }
    }
}

/// The `$$` or `$tag$` that begins `rest`, if one does.
fn dollar_delimiter(rest: &[u8]) -> Option<&[u8]> {
    let tag = run(rest, 1, |b| begins_word(b) || b.is_ascii_digit());
    let delimiter = rest.get(..tag + 2)?;
    delimiter.ends_with(b"$").then_some(delimiter)
}

fn dollar_quoted(rest: &[u8], delimiter: &[u8]) -> Option<usize> {
    let inside = rest.get(delimiter.len()..)?;
    Some(memmem::find(inside, delimiter)? + 2 * delimiter.len())
}

#[cfg(test)]
mod tests {
    use super::TokenKind::*;
    use super::*;
    use proptest::prelude::*;

    /// Kinds and texts of everything but blanks.
    fn tokens(text: &str) -> Vec<(TokenKind, &str)> {
        Lexer::new(text.as_bytes())
            .filter(|token| token.kind != Blank)
            .map(|token| (token.kind, &text[token.span]))
            .collect()
    }

    fn is_one(kind: TokenKind, text: &str) {
        assert_eq!(tokens(text), [(kind, text)]);
    }

    #[test]
    fn a_statement_is_cut_into_its_parts() {
        assert_eq!(
            tokens("SELECT a$1,$2 +1.5 FROM \"T\";"),
            [
                (Word, "SELECT"),
                (Word, "a$1"),
                (Other, ","),
                (Number, "$2"),
                (Other, "+"),
                (Number, "1.5"),
                (Word, "FROM"),
                (QuotedName, "\"T\""),
                (Semicolon, ";"),
            ]
        );
    }

    #[test]
    fn strings_of_every_kind_are_one_token() {
        for text in [
            "''",
            "'it''s; fine'",
            r"'\'",
            r"e'it\'s; fine'",
            r"E'\\'",
            "E'a'' b'",
            "b'01'",
            "X'ff'",
            "n'x'",
            r"U&'d\0061t'",
            "$$;'$$",
            "$a_1$ ; $$ $a$ $a_1$",
            "$é$;$é$",
            "$a$ $b$a$",
            "$$$$",
        ] {
            is_one(Text, text);
        }
    }

    #[test]
    fn an_escape_string_goes_on_with_escapes_on_the_next_line() {
        is_one(Text, "E'a' -- so it is\n  'b\\'; c'");
        is_one(Text, "E'a'\r'\\''");
        assert_eq!(
            tokens(r"E'a' 'b\'"),
            [(Text, "E'a'"), (Text, r"'b\'")],
            "on the same line it is another string"
        );
    }

    #[test]
    fn a_word_before_a_string_is_no_prefix_of_it() {
        assert_eq!(tokens(r"type'\'"), [(Word, "type"), (Text, r"'\'")]);
        assert_eq!(tokens("a$$b"), [(Word, "a$$b")]);
        assert_eq!(
            tokens("1a$$;"),
            [(Number, "1"), (Word, "a$$"), (Semicolon, ";")]
        );
    }

    #[test]
    fn names_keep_their_quotes() {
        is_one(QuotedName, r#""a""b;""#);
        is_one(UnicodeName, r#"u&"d\0061ta""#);
        assert_eq!(tokens("u &"), [(Word, "u"), (Other, "&")]);
    }

    #[test]
    fn comments_nest_and_lines_end_them() {
        is_one(Comment, "/* a /* ; */ ' */");
        is_one(Comment, "/***/");
        is_one(Comment, "/*/**/*/");
        assert_eq!(tokens("--x;\ny"), [(Comment, "--x;"), (Word, "y")]);
        assert_eq!(tokens("--x\ry"), [(Comment, "--x"), (Word, "y")]);
        assert_eq!(tokens("1--"), [(Number, "1"), (Comment, "--")]);
        assert_eq!(
            tokens("- - / *"),
            [(Other, "-"), (Other, "-"), (Other, "/"), (Other, "*")]
        );
    }

    #[test]
    fn what_does_not_end_is_the_rest_of_the_text() {
        for text in [
            "'a;",
            "\"a;",
            r"E'\'",
            r"E'\",
            "E'",
            "$$a",
            "$a$ $b$",
            "/*",
            "/*/",
            "/* /* */ ;",
            "U&'",
            "x'",
            "E'a'\n'",
        ] {
            is_one(Unterminated, text);
        }
    }

    #[test]
    fn a_dollar_alone_is_punctuation() {
        assert_eq!(tokens("$a b$"), [(Other, "$"), (Word, "a"), (Word, "b$")]);
        assert_eq!(tokens("$"), [(Other, "$")]);
    }

    #[test]
    fn a_million_nested_comments_need_no_stack() {
        let text = "/*".repeat(1_000_000);
        assert_eq!(Lexer::new(text.as_bytes()).count(), 1);
        let text = text + &"*/".repeat(1_000_000);
        is_one(Comment, &text);
    }

    fn covers(text: &[u8]) {
        let mut at = 0;
        for token in Lexer::new(text) {
            assert_eq!(token.span.start, at);
            assert!(token.span.end > at);
            at = token.span.end;
        }
        assert_eq!(at, text.len());
    }

    proptest! {
        #[test]
        fn spans_cover_any_bytes_in_order(text: Vec<u8>) {
            covers(&text);
        }

        #[test]
        fn spans_cover_any_mix_of_delimiters_in_order(text in r#"[a-eEuU&$'"*/\\; \n1.-]{0,60}"#) {
            covers(text.as_bytes());
        }
    }
}
