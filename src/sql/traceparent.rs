//! To which trace a text says that it belongs: W3C Trace Context in a comment, as sqlcommenter writes it.
//!
//! Owns the form of a `traceparent`, and where in a text one is looked for. What comes of it is not known here.

use memchr::memmem;

/// So much is looked at, at either end of a text.
const NEAR: usize = 4096;

/// What a key in a comment is called.
const KEY: &[u8] = b"traceparent";

/// How long a `traceparent` of version 00 is.
const LENGTH: usize = 55;

/// Where in which trace something was asked for (W3C Trace Context section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace (`trace-id`); never all zeros.
    pub trace: [u8; 16],
    /// The span that asks (`parent-id`); never all zeros.
    pub span: [u8; 8],
    /// Is the trace recorded (the flag `sampled`)?
    pub is_sampled: bool,
}

impl TraceParent {
    /// Reads one that `text` begins with, as it is written: `00-` trace `-` span `-` flags, in lower case.
    pub fn read(text: &[u8]) -> Option<Self> {
        let (head, rest) = text.split_at_checked(LENGTH)?;
        let version = hex::<1>(head.get(..2)?)?;
        let dashes = [2, 35, 52].iter().all(|&at| head.get(at) == Some(&b'-'));
        // What a later version has more comes behind a dash.
        let ends = match rest.first() {
            None => true,
            Some(b'-') => version != [0],
            Some(byte) => !byte.is_ascii_alphanumeric() && *byte != b'_',
        };
        if !dashes || !ends || version == [0xff] {
            return None;
        }
        let trace = hex(head.get(3..35)?)?;
        let span = hex(head.get(36..52)?)?;
        let [flags] = hex(head.get(53..)?)?;
        (trace != [0; 16] && span != [0; 8]).then_some(Self {
            trace,
            span,
            is_sampled: flags & 1 == 1,
        })
    }

    /// That of the comment with which a text begins, or of the one with which it ends.
    pub fn of_text(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        leading(text)
            .and_then(Self::of_comment)
            .or_else(|| trailing(text).and_then(Self::of_comment))
    }

    /// That of a comment: `traceparent='00-...'` among others, the quotes optional.
    fn of_comment(comment: &[u8]) -> Option<Self> {
        let mut keys = memmem::find_iter(comment, KEY);
        keys.find_map(|at| {
            let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.%".contains(byte);
            let before = comment.get(..at)?;
            if before.last().is_some_and(is_part) {
                return None;
            }
            let rest = comment.get(at + KEY.len()..)?.trim_ascii_start();
            let rest = rest
                .strip_prefix(b"=")
                .or_else(|| rest.strip_prefix(b":"))?;
            let rest = rest.trim_ascii_start();
            Self::read(rest.strip_prefix(b"'").unwrap_or(rest))
        })
    }

    /// That of a name such as `application_name`, of which it may be a part. (PostgreSQL cuts that one at 63 bytes, so
    /// there is no room for a key.)
    pub fn of_name(name: &[u8]) -> Option<Self> {
        let name = name.get(..NEAR).unwrap_or(name);
        let begins = |at: &usize| {
            let before = at.checked_sub(1).and_then(|at| name.get(at));
            before.is_none_or(|byte| !byte.is_ascii_alphanumeric())
        };
        let mut found = memmem::find_iter(name, b"00-").filter(begins);
        found.find_map(|at| Self::read(name.get(at..)?))
    }
}

/// What the comment says that a text begins with.
fn leading(text: &[u8]) -> Option<&[u8]> {
    let text = text.strip_prefix(b"/*")?;
    let text = text.get(..NEAR).unwrap_or(text);
    let end = memmem::find(text, b"*/").unwrap_or(text.len());
    text.get(..end)
}

/// What the comment says that a text ends with; a semicolon may follow.
fn trailing(text: &[u8]) -> Option<&[u8]> {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || *byte == b';';
    let begin = text.len().saturating_sub(NEAR);
    let mut text = text.get(begin..)?;
    while let Some((last, rest)) = text.split_last()
        && is_end(last)
    {
        text = rest;
    }
    let text = text.strip_suffix(b"*/")?;
    let begin = memmem::rfind(text, b"/*")?;
    text.get(begin + 2..)
}

/// Bytes that are written as so many pairs of hexadecimal digits in lower case.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, []) = text.as_chunks::<2>() else {
        return None;
    };
    if pairs.len() != N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4) | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn in_text(text: &str) -> bool {
        let found = TraceParent::of_text(text.as_bytes());
        let wanted = TraceParent::read(PARENT.as_bytes());
        assert!(wanted.is_some());
        found == wanted
    }

    #[test]
    fn its_parts_are_read() {
        let parent = TraceParent::read(PARENT.as_bytes()).unwrap();
        assert_eq!(parent.trace[..2], [0x4b, 0xf9]);
        assert_eq!(parent.span, [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 2, 0xb7]);
        assert!(parent.is_sampled);
        for (flags, is_sampled) in [("00", false), ("02", false), ("03", true), ("ff", true)] {
            let text = format!("{}{flags}", &PARENT[..53]);
            let parent = TraceParent::read(text.as_bytes()).unwrap();
            assert_eq!(parent.is_sampled, is_sampled, "{flags}");
        }
    }

    #[test]
    fn what_the_standard_forbids_is_none() {
        let zeros = |from: usize, to: usize| {
            let mut text = PARENT.to_owned();
            text.replace_range(from..to, &"0".repeat(to - from));
            text
        };
        let wrong = [
            String::new(),
            PARENT[..54].to_owned(),
            PARENT.to_uppercase(),
            format!("ff{}", &PARENT[2..]),
            format!("0g{}", &PARENT[2..]),
            format!("{PARENT}0"),
            format!("{PARENT}-more"),
            PARENT.replace('-', "_"),
            PARENT.replace("4bf9", "4bfé"),
            zeros(3, 35),
            zeros(36, 52),
        ];
        for text in wrong {
            assert_eq!(TraceParent::read(text.as_bytes()), None, "{text}");
        }
        let later = format!("cc{}-what-is-new", &PARENT[2..]);
        assert!(TraceParent::read(later.as_bytes()).is_some());
    }

    #[test]
    fn a_comment_at_either_end_has_it() {
        for text in [
            format!("/*traceparent='{PARENT}'*/ SELECT 1"),
            format!("SELECT 1 /*traceparent='{PARENT}',tracestate='a%3Db'*/"),
            format!(" /* app=x, traceparent={PARENT} */ SELECT 1;"),
            format!("SELECT 1 /*route='%2F',traceparent='{PARENT}'*/ ; \n"),
            format!("SELECT 1; /*controller:a,traceparent:{PARENT}*/"),
            format!("/*+ hint */ SELECT 1 /*traceparent='{PARENT}'*/"),
            format!("SELECT '{}' /*traceparent='{PARENT}'*/", "x".repeat(9000)),
        ] {
            assert!(in_text(&text), "{text}");
        }
    }

    #[test]
    fn elsewhere_it_is_data() {
        for text in [
            format!("SELECT '/*traceparent=''{PARENT}''*/'"),
            format!("SELECT /*traceparent='{PARENT}'*/ 1"),
            format!("SELECT 1 -- traceparent='{PARENT}'"),
            format!("SELECT 1 /*xtraceparent='{PARENT}'*/"),
            format!("SELECT 1 /*traceparent '{PARENT}'*/"),
            "/*".to_owned(),
            "*/".to_owned(),
            "/*/".to_owned(),
            ";;".to_owned(),
            "/*traceparent='00-'*/".to_owned(),
        ] {
            assert!(!in_text(&text), "{text}");
        }
    }

    #[test]
    fn a_name_may_have_it_among_other_things() {
        for name in [
            PARENT.to_owned(),
            format!("shop/{PARENT}"),
            format!("traceparent={PARENT}"),
            format!("00-x {PARENT}"),
        ] {
            let found = TraceParent::of_name(name.as_bytes());
            assert_eq!(found, TraceParent::read(PARENT.as_bytes()), "{name}");
        }
        for name in ["", "00-", "psql", &PARENT[1..], &format!("a{PARENT}")] {
            assert_eq!(TraceParent::of_name(name.as_bytes()), None, "{name}");
        }
    }
}
