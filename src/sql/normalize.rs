//! The text of a statement as operators may see it: what it does, and not to which data.
//!
//! Constants become `?`, lists of them `?,...`, blanks and comments one blank. So statements that differ in nothing
//! but their data are one text, and the text tells nothing of what users keep in their database. Names stay, as do
//! parameters (`$1`). It errs to the safe side: behind a constant of which it is not certain where it ends, a text is cut.

use super::lexer::{Lexer, Token, TokenKind};

/// The longest result, bytes.
pub const LONGEST: usize = 1024;

/// So much of a text is read; what follows changes nothing.
pub const READ: usize = 8 * 1024;

/// Where a text was cut.
const CUT: &str = "...";

/// What a list of three constants and more becomes behind the first of them.
const MORE: &str = ",...";

/// The text without its data: no longer than [`LONGEST`], nor by more than three bytes than it was, without control characters. What comes
/// out stays as it is when it goes in again.
pub fn normalize(text: &[u8]) -> String {
    let read = text.get(..READ).unwrap_or(text);
    let mut short = Short {
        // Rarely does it become longer than it was.
        out: String::with_capacity(read.len().min(LONGEST) + CUT.len()),
        ..Short::default()
    };
    let mut is_whole = read.len() == text.len();
    let mut number_ends = None;
    for token in Lexer::new(read) {
        // An exponent, or what follows `0x`.
        let is_rest = token.kind == TokenKind::Word && number_ends == Some(token.span.start);
        number_ends = None;
        let fits = match token.kind {
            TokenKind::Word if is_rest => true,
            TokenKind::Blank | TokenKind::Comment => {
                short.is_apart = true;
                true
            }
            TokenKind::Number if !token.of(read).starts_with(b"$") => {
                number_ends = Some(token.span.end);
                short.constant()
            }
            TokenKind::Text | TokenKind::Unterminated => {
                let fits = short.constant();
                if fits && may_go_on(&token, read) {
                    is_whole = false;
                    break;
                }
                fits
            }
            TokenKind::Other => short.other(token.of(read)),
            TokenKind::Number
            | TokenKind::Word
            | TokenKind::QuotedName
            | TokenKind::UnicodeName
            | TokenKind::Semicolon => {
                short.list = List::None;
                short.put(token.of(read))
            }
        };
        if !fits {
            is_whole = false;
            break;
        }
    }
    short.finish(is_whole)
}

/// The beginning of a text as it is, on one line: so many bytes of it are looked at.
pub fn one_line(text: &[u8], longest: usize) -> String {
    let read = text.get(..longest).unwrap_or(text);
    let mut out = String::from_utf8_lossy(read).replace(char::is_control, " ");
    if read.len() < text.len() {
        out.push_str(CUT);
    }
    out
}

/// Could PostgreSQL see the end of this string elsewhere? With `standard_conforming_strings` off a backslash escapes the quote behind
/// it, and in some encodings of clients a backslash is half a character.
fn may_go_on(token: &Token, text: &[u8]) -> bool {
    match token.of(text) {
        [b'$', ..] => false,
        [b'e' | b'E', rest @ ..] => rest.contains(&b'\\') && str::from_utf8(rest).is_err(),
        plain => plain.windows(2).any(|pair| pair == b"\\'"),
    }
}

/// Where in a list of constants the text is.
#[derive(Debug, Clone, Copy, Default)]
enum List {
    /// Not in one.
    #[default]
    None,
    /// Behind so many constants, the first of which ends here in the result; and perhaps behind a comma.
    Behind {
        count: usize,
        first: usize,
        comma: bool,
    },
}

/// The result, as far as it is made.
#[derive(Debug, Default)]
struct Short {
    out: String,
    /// There were blanks behind what stands there.
    is_apart: bool,
    list: List,
    /// Where it can be cut.
    fits: usize,
}

impl Short {
    /// A constant; `false`: it is too long with that.
    fn constant(&mut self) -> bool {
        let (count, first) = match self.list {
            List::Behind {
                count,
                first,
                comma: true,
            } => (count + 1, Some(first)),
            List::Behind { .. } | List::None => (1, None),
        };
        let fits = match first {
            Some(first) if count > 2 => {
                self.out.truncate(first);
                self.fits = self.fits.min(first);
                self.is_apart = false;
                self.push(MORE)
            }
            _ => self.put(b"?"),
        };
        self.list = List::Behind {
            count,
            first: first.unwrap_or(self.out.len()),
            comma: false,
        };
        fits
    }

    /// Punctuation, of one byte.
    fn other(&mut self, byte: &[u8]) -> bool {
        if byte.iter().all(u8::is_ascii_control) {
            self.is_apart = true;
            return true;
        }
        self.list = match self.list {
            List::Behind {
                count,
                first,
                comma: false,
            } if byte == b"," => List::Behind {
                count,
                first,
                comma: true,
            },
            List::Behind { .. } | List::None => List::None,
        };
        self.put(byte)
    }

    /// A token as it is; `false`: there is no room for it.
    fn put(&mut self, token: &[u8]) -> bool {
        // Most are ASCII, of which nearly all may be shown.
        if let Ok(token) = str::from_utf8(token)
            && token.bytes().all(|byte| matches!(byte, 0x20..0x7f))
        {
            return self.push(token);
        }
        let mut shown = String::with_capacity(token.len());
        for chunk in token.utf8_chunks() {
            let chars = chunk.valid().chars();
            shown.extend(chars.map(|char| if char.is_control() { '_' } else { char }));
            if !chunk.invalid().is_empty() {
                shown.push('_');
            }
        }
        self.push(&shown)
    }

    fn push(&mut self, token: &str) -> bool {
        let blank = usize::from(std::mem::take(&mut self.is_apart) && !self.out.is_empty());
        if self.out.len() + blank + token.len() > LONGEST {
            return false;
        }
        if blank == 1 {
            self.out.push(' ');
        }
        self.out.push_str(token);
        if self.out.len() + CUT.len() <= LONGEST {
            self.fits = self.out.len();
        }
        true
    }

    fn finish(mut self, is_whole: bool) -> String {
        if is_whole {
            let end = self.out.trim_end_matches([';', ' ']).len();
            self.out.truncate(end);
        } else {
            self.out.truncate(self.fits);
            self.out.push_str(CUT);
        }
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn becomes(text: &str, expected: &str) {
        assert_eq!(normalize(text.as_bytes()), expected, "{text}");
    }

    #[test]
    fn constants_of_every_kind_are_left_out() {
        for text in [
            "1",
            "1.5e10",
            "0x1F",
            "1_000",
            "'it''s'",
            "E'it\\'s'",
            "X'ff'",
            "b'01'",
            "$$body$$",
            "$a$ body $a$",
            "U&'d\\0061t'",
            "'not ended",
        ] {
            becomes(&format!("SELECT {text}"), "SELECT ?");
        }
        becomes("SELECT -1 + .5", "SELECT -? + .?");
        becomes("select date'2020-01-01'", "select date?");
    }

    #[test]
    fn names_and_parameters_stay() {
        becomes(
            "SELECT \"Col 1\", t1.a2 FROM t1 WHERE b = $1 AND c LIKE $22",
            "SELECT \"Col 1\", t1.a2 FROM t1 WHERE b = $1 AND c LIKE $22",
        );
    }

    #[test]
    fn blanks_and_comments_are_one_blank_and_the_end_is_trimmed() {
        becomes("  SELECT\n\t1 -- why\n ; ", "SELECT ?");
        becomes("/* trace='secret' */SELECT/*+ hint */a ;;", "SELECT a");
        becomes("BEGIN; SELECT 2", "BEGIN; SELECT ?");
        becomes("--", "");
    }

    #[test]
    fn lists_of_constants_are_one_text_whatever_their_length() {
        becomes("a IN (1)", "a IN (?)");
        becomes("a IN (1, 2)", "a IN (?, ?)");
        becomes("a IN (1, 2, 3)", "a IN (?,...)");
        becomes("a IN (1,'b' , 3,4 )", "a IN (?,... )");
        becomes("f(1, 2, 3, x)", "f(?,..., x)");
        becomes("f(1, 2, $1, 3)", "f(?, ?, $1, ?)");
    }

    #[test]
    fn a_text_is_cut_where_a_string_may_not_have_ended() {
        becomes(r"SELECT 'it\'s secret', 1", "SELECT ?...");
        becomes(r"x LIKE 'a\' ESCAPE 'b'", "x LIKE ?...");
        becomes(r"SELECT 'C:\dir', secret", "SELECT ?, secret");
        let sjis = b"SELECT E'\x95\\', 'secret'";
        assert_eq!(normalize(sjis), "SELECT ?...");
    }

    #[test]
    fn long_texts_are_cut_between_tokens() {
        let long = format!("SELECT {}", "column_name, ".repeat(200));
        let short = normalize(long.as_bytes());
        assert!(short.len() <= LONGEST && short.len() > LONGEST - 20);
        assert!(short.ends_with("column_name,..."), "{short}");
        let list = format!("SELECT ({}1), a", "1, ".repeat(1000));
        becomes(&list, "SELECT (?,...), a");
        becomes(&"x".repeat(2 * LONGEST), CUT);
        let longer = format!("SELECT 1 /* {} */, secret", "x".repeat(READ));
        becomes(&longer, "SELECT ? ?...");
    }

    #[test]
    fn nothing_breaks_a_line() {
        let short = normalize(b"a\x01b \"c\nd\" \xff\xfe \x1b[m \xc2\x85");
        assert_eq!(short, "a b \"c_d\" __ [m _");
        assert_eq!(one_line(b"a\nb\x1b 'x'\xff", 100), "a b  'x'\u{fffd}");
        assert_eq!(one_line("ééé".as_bytes(), 4), "éé...");
        assert_eq!(one_line("éé".as_bytes(), 4), "éé");
    }

    fn holds(text: &[u8]) {
        let once = normalize(text);
        assert!(once.len() <= LONGEST && once.len() <= text.len() + 3);
        assert!(!once.chars().any(char::is_control));
        assert_eq!(normalize(once.as_bytes()), once);
    }

    proptest! {
        #[test]
        fn any_bytes_become_a_short_text_that_stays(text: Vec<u8>) {
            holds(&text);
        }

        #[test]
        fn any_mix_of_delimiters_does(text in r#"[a-eEuUxX&$'",;.*/\\?1-3 \n\x01\u{85}é-]{0,60}"#) {
            holds(text.as_bytes());
        }

        #[test]
        fn long_ones_do(words in prop::collection::vec("[a-z]{1,9}|[0-9]{1,3}|,|'[a-z]*'|;|  ", 200..500)) {
            holds(words.join(" ").as_bytes());
        }

        #[test]
        fn what_stands_in_a_constant_is_never_shown(
            before in prop::collection::vec("select|from|,|\\(|a\\.b|\\$1|\"t\"|-- c\n|/\\* c \\*/|=", 0..12),
            form in 0..8_usize,
            around in "[ a-z,.;(/*\\-\"]{0,8}",
            after in "[ a-z,;()=1]{0,20}",
        ) {
            let content = format!("{around}7SECRET7{around}");
            let constant = match form {
                0 => format!("'{content}'"),
                1 => format!("'{content}''{content}'"),
                2 => format!(r"E'{content}\'{content}'"),
                3 => format!("$${content}$$"),
                4 => format!("$tag$ '{content} $tag$"),
                5 => format!(r"'\'{content}'"),
                6 => format!("N'{content}"),
                _ => format!("U&'{content}'"),
            };
            let text = format!("{} {constant} {after}", before.join(" "));
            let short = normalize(text.as_bytes());
            prop_assert!(!short.contains("SECRET"), "{} {}", text, short);
        }
    }
}
