//! The Basic Encoding Rules as LDAP uses them (RFC 4511 section 5.1, X.690): definite lengths and tags of one byte.

use zeroize::Zeroizing;

use super::Error;

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const ENUMERATED: u8 = 0x0a;
pub(super) const SEQUENCE: u8 = 0x30;

/// Appends elements. What it has written may hold a password, so it is wiped.
pub(super) struct Writer(Zeroizing<Vec<u8>>);

impl Writer {
    /// With room for so many bytes: what is moved to a larger place leaves a copy behind that nobody wipes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(Zeroizing::new(Vec::with_capacity(bytes)))
    }

    pub(super) fn finish(self) -> Zeroizing<Vec<u8>> {
        self.0
    }

    /// An element that `body` fills. Its length is written in four bytes, as libldap does: it need not be known before.
    pub(super) fn within(&mut self, tag: u8, body: impl FnOnce(&mut Self)) {
        self.0.extend_from_slice(&[tag, 0x84, 0, 0, 0, 0]);
        let start = self.0.len();
        body(self);
        let length = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        if let Some(field) = self.0.get_mut(start - 4..start) {
            field.copy_from_slice(&length.to_be_bytes());
        }
    }

    pub(super) fn octets(&mut self, tag: u8, bytes: &[u8]) {
        self.within(tag, |out| out.0.extend_from_slice(bytes));
    }

    /// In as few bytes as it takes (X.690 section 8.3.2).
    pub(super) fn integer(&mut self, tag: u8, value: i32) {
        let bytes = value.to_be_bytes();
        let mut rest = bytes.as_slice();
        while let [first, second, ..] = rest
            && matches!((first, second & 0x80), (0, 0) | (0xff, 0x80))
        {
            rest = rest.get(1..).unwrap_or_default();
        }
        self.octets(tag, rest);
    }

    pub(super) fn boolean(&mut self, tag: u8, value: bool) {
        self.octets(tag, if value { &[0xff] } else { &[0] });
    }
}

/// The tag of the element that `bytes` begin with, the length of its head, and that of its content; `None`: the head is
/// not complete.
pub(super) fn head(bytes: &[u8]) -> Result<Option<(u8, usize, usize)>, Error> {
    let [tag, length, rest @ ..] = bytes else {
        return Ok(None);
    };
    let count = match *length {
        short @ 0..=0x7f => return Ok(Some((*tag, 2, usize::from(short)))),
        long @ 0x81..=0x84 => usize::from(long & 0x7f),
        // Without an end of its own, or longer than anything we take.
        _ => return Err(Error::BadLength),
    };
    let Some(digits) = rest.get(..count) else {
        return Ok(None);
    };
    let length = digits
        .iter()
        .fold(0, |length, digit| length << 8 | usize::from(*digit));
    Ok(Some((*tag, 2 + count, length)))
}

/// Takes elements off, one after the other.
#[derive(Clone, Copy)]
pub(super) struct Elements<'a>(pub(super) &'a [u8]);

impl<'a> Elements<'a> {
    /// The tag and the content of the next one.
    pub(super) fn next(&mut self) -> Result<(u8, &'a [u8]), Error> {
        let (tag, head, length) = head(self.0)?.ok_or(Error::Truncated)?;
        let (_, rest) = self.0.split_at_checked(head).ok_or(Error::Truncated)?;
        let (content, rest) = rest.split_at_checked(length).ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok((tag, content))
    }

    /// The content of the next one, which must have this tag.
    pub(super) fn expect(&mut self, wanted: u8, expected: &'static str) -> Result<&'a [u8], Error> {
        let (tag, content) = self.next()?;
        super::expect(tag, wanted, expected)?;
        Ok(content)
    }
}

/// The value of an INTEGER or ENUMERATED.
pub(super) fn number(content: &[u8]) -> Result<i32, Error> {
    let (first, rest) = match content {
        [first, rest @ ..] if rest.len() < 4 => (*first, rest),
        _ => return Err(Error::BadNumber),
    };
    let first = i32::from(first.cast_signed());
    Ok(rest
        .iter()
        .fold(first, |value, byte| value << 8 | i32::from(*byte)))
}
