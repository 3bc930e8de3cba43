//! Renaming the statement in Parse, Bind, Describe and Close: the one place that edits a client's bytes.
//!
//! Nothing is edited in place. The message is written anew with the other name, and of a Bind only its
//! beginning, so that values of any size pass by without being held.

use super::Error;
use super::frontend::{self, BindHead, Target, tag};

/// Appends the Parse with the statement's name `global`; `rest` as in [`frontend::Parse::rest`].
///
/// [`Error::TooLong`], and nothing is written, if the longer name takes the message over 2 GiB.
pub fn parse(out: &mut Vec<u8>, global: &[u8], rest: &[u8]) -> Result<(), Error> {
    let names = global.len().saturating_add(1);
    wire_length(rest.len().saturating_add(names).saturating_add(4))?;
    frontend::parse(out, global, rest);
    Ok(())
}

/// Appends the beginning of the Bind that began with `head`: tag, new length, portal, the name `global`.
///
/// `message_len` is the old length as it stood on the wire: with itself, without the tag. The caller sends the
/// rest of the body, from `head.len` on, after it as it is. On an `Err` nothing is written:
/// [`Error::BadLength`] if the names are longer than the message was said to be, [`Error::TooLong`] if it
/// would pass 2 GiB.
pub fn bind_head(
    out: &mut Vec<u8>,
    head: &BindHead<'_>,
    global: &[u8],
    message_len: impl Into<i64>,
) -> Result<(), Error> {
    let message_len = message_len.into();
    let rest = usize::try_from(message_len)
        .ok()
        .and_then(|len| len.checked_sub(4)?.checked_sub(head.len))
        .ok_or(Error::BadLength {
            length: message_len,
        })?;
    let names = head.portal.len() + global.len() + 2;
    let length = wire_length(rest.saturating_add(names).saturating_add(4))?;
    let [a, b, c, d] = length.to_be_bytes();
    out.reserve(names + 5);
    out.extend_from_slice(&[tag::BIND, a, b, c, d]);
    // (Neither has a NUL in it: one was ended by it, the other is ours.)
    if !head.portal.is_empty() {
        out.extend_from_slice(head.portal);
    }
    out.push(0);
    out.extend_from_slice(global);
    out.push(0);
    Ok(())
}

/// Appends the Describe or Close (`tag`) with the name `global`.
pub fn named(out: &mut Vec<u8>, tag: u8, target: Target, global: &[u8]) {
    frontend::named(out, tag, target, global);
}

fn wire_length(length: usize) -> Result<i32, Error> {
    i32::try_from(length).map_err(|_| Error::TooLong {
        length: i64::try_from(length).unwrap_or(i64::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_parse_keeps_its_text_and_types() {
        let mut out = Vec::new();
        parse(&mut out, b"g7", b"select $1\0\0\x01\0\0\0\x17").unwrap();
        let read = frontend::Parse::read(&out[5..]).unwrap();
        assert_eq!(read.name, b"g7");
        assert_eq!(read.sql, b"select $1");
        assert_eq!(read.types, b"\0\x01\0\0\0\x17");
        assert_eq!(out[0], tag::PARSE);
        assert_eq!(out[1..5], 23u32.to_be_bytes());
    }

    #[test]
    fn a_renamed_bind_equals_one_encoded_with_that_name() {
        let rest = b"\0\0\0\x01\0\0\0\x02hi\0\0";
        let mut original = Vec::new();
        frontend::bind(&mut original, b"portal", b"s", rest);
        let head = BindHead::read(&original[5..]).unwrap().unwrap();
        let len = i32::from_be_bytes(original[1..5].try_into().unwrap());

        let mut renamed = Vec::new();
        bind_head(&mut renamed, &head, b"PGFERRY_12", len).unwrap();
        renamed.extend_from_slice(&original[5 + head.len..]);

        let mut expected = Vec::new();
        frontend::bind(&mut expected, b"portal", b"PGFERRY_12", rest);
        assert_eq!(renamed, expected);
    }

    #[test]
    fn a_bind_that_would_pass_two_gibibytes_is_refused() {
        let head = BindHead::read(b"\0s\0").unwrap().unwrap();
        let mut out = Vec::new();
        assert_eq!(
            bind_head(&mut out, &head, b"longer", i32::MAX),
            Err(Error::TooLong {
                length: i64::from(i32::MAX) + 5
            })
        );
        assert!(bind_head(&mut out, &head, b"t", i32::MAX).is_ok());
    }

    #[test]
    fn a_bind_shorter_than_its_names_is_refused() {
        let head = BindHead::read(b"\0s\0").unwrap().unwrap();
        let mut out = Vec::new();
        for len in [-1, 0, 3, 6] {
            let refused = bind_head(&mut out, &head, b"g", len);
            assert_eq!(
                refused,
                Err(Error::BadLength {
                    length: i64::from(len)
                })
            );
        }
        assert!(out.is_empty());
        assert!(bind_head(&mut out, &head, b"g", 7u32).is_ok());
    }

    #[test]
    fn describe_and_close_take_the_name() {
        let mut out = Vec::new();
        named(&mut out, tag::CLOSE, Target::Statement, b"g1");
        assert_eq!(out, b"C\0\0\0\x08Sg1\0");
        out.clear();
        named(&mut out, tag::DESCRIBE, Target::Statement, b"g1");
        assert_eq!(out, b"D\0\0\0\x08Sg1\0");
    }
}
