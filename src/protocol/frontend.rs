//! What a frontend sends once it is logged in: tags, borrowed views over message bodies, encoders.
//!
//! The untagged first packets are read in `startup`, only written here. Passwords and SASL are elsewhere.

use super::{Cursor, Error, message, put_string, untagged, up_to_nul};

/// First bytes of the messages that a frontend sends.
pub mod tag {
    /// `Query`: a text of one or more statements.
    pub const QUERY: u8 = b'Q';
    /// `Parse`: prepare a statement.
    pub const PARSE: u8 = b'P';
    /// `Bind`: make a portal from a statement and values.
    pub const BIND: u8 = b'B';
    /// `Describe` a statement or a portal.
    pub const DESCRIBE: u8 = b'D';
    /// `Execute` a portal.
    pub const EXECUTE: u8 = b'E';
    /// `Close` a statement or a portal.
    pub const CLOSE: u8 = b'C';
    /// `Flush`: send the replies that are ready.
    pub const FLUSH: u8 = b'H';
    /// `Sync`: end of an extended-query batch.
    pub const SYNC: u8 = b'S';
    /// `FunctionCall`: the obsolete fast path.
    pub const FUNCTION_CALL: u8 = b'F';
    /// `CopyData`, in either direction.
    pub const COPY_DATA: u8 = b'd';
    /// `CopyDone`, in either direction.
    pub const COPY_DONE: u8 = b'c';
    /// `CopyFail`: the frontend gives a COPY up.
    pub const COPY_FAIL: u8 = b'f';
    /// `PasswordMessage`, and the SASL and GSS responses, which have the same tag.
    pub const PASSWORD: u8 = b'p';
    /// `Terminate`: good-bye.
    pub const TERMINATE: u8 = b'X';
}

/// How far into a Bind its two names are looked for, in bytes.
///
/// `PostgreSQL` keeps only the first 63 bytes of either, so this is generous; without a limit a peer could make
/// the pooler hold a gigabyte while it waits for a NUL.
pub const MAX_BIND_NAMES: usize = 1 << 20;

/// What Describe and Close speak of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// `S`: a prepared statement.
    Statement,
    /// `P`: a portal.
    Portal,
}

impl Target {
    /// The target that `byte` stands for; [`Error::BadTarget`] if it is neither `S` nor `P`.
    pub fn from_byte(byte: u8) -> Result<Self, Error> {
        match byte {
            b'S' => Ok(Self::Statement),
            b'P' => Ok(Self::Portal),
            byte => Err(Error::BadTarget { byte }),
        }
    }

    /// `S` or `P`.
    pub fn as_byte(self) -> u8 {
        match self {
            Self::Statement => b'S',
            Self::Portal => b'P',
        }
    }
}

/// Body of a `Query`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query<'a> {
    /// The text, without its NUL.
    pub sql: &'a [u8],
}

impl<'a> Query<'a> {
    /// Reads a whole body.
    pub fn read(body: &'a [u8]) -> Result<Self, Error> {
        let mut cursor = Cursor(body);
        let sql = cursor.string()?;
        cursor.finish()?;
        Ok(Self { sql })
    }
}

/// Body of a `Parse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parse<'a> {
    /// Name of the statement; empty for the unnamed one.
    pub name: &'a [u8],
    /// The query, without its NUL.
    pub sql: &'a [u8],
    /// Parameter types as sent: a 16-bit count and so many 32-bit type OIDs.
    pub types: &'a [u8],
    /// Everything after the name's NUL (query, NUL, types): what makes two statements the same.
    pub rest: &'a [u8],
}

impl<'a> Parse<'a> {
    /// Reads a whole body.
    pub fn read(body: &'a [u8]) -> Result<Self, Error> {
        let mut cursor = Cursor(body);
        let name = cursor.string()?;
        let rest = cursor.0;
        let sql = cursor.string()?;
        let types = cursor.0;
        let count = cursor.u16()?;
        let bytes = cursor.0.len();
        if bytes != usize::from(count) * 4 {
            return Err(Error::BadTypeCount { count, bytes });
        }
        Ok(Self {
            name,
            sql,
            types,
            rest,
        })
    }

    /// The query in what makes two statements the same, [`rest`](Self::rest).
    pub fn text(rest: &[u8]) -> &[u8] {
        up_to_nul(rest)
    }
}

/// The two names that begin a `Bind`; the formats and values after them are of no interest to a pooler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindHead<'a> {
    /// Portal to make; empty for the unnamed one.
    pub portal: &'a [u8],
    /// Statement to make it from; empty for the unnamed one.
    pub statement: &'a [u8],
    /// Bytes of the body that both names take, with their NULs.
    pub len: usize,
}

impl<'a> BindHead<'a> {
    /// Reads the names from the beginning of a body, however much of it is there.
    ///
    /// `None`: the second NUL has not come yet. On a body that is complete this means that it is broken.
    /// [`Error::NameTooLong`]: it has not come within [`MAX_BIND_NAMES`] either.
    pub fn read(body: &'a [u8]) -> Result<Option<Self>, Error> {
        let searched = body.get(..MAX_BIND_NAMES).unwrap_or(body);
        let mut cursor = Cursor(searched);
        if let (Ok(portal), Ok(statement)) = (cursor.name(), cursor.name()) {
            return Ok(Some(Self {
                portal,
                statement,
                len: searched.len() - cursor.0.len(),
            }));
        }
        if searched.len() == MAX_BIND_NAMES {
            return Err(Error::NameTooLong {
                limit: MAX_BIND_NAMES,
            });
        }
        Ok(None)
    }
}

/// The value of the parameter of this number, from 1 on, of a Bind that is there as a whole; `values` is what follows
/// the names in its body. `None`: there is no such parameter, or it is NULL.
pub fn bound_value(values: &[u8], number: u16) -> Option<&[u8]> {
    let mut cursor = Cursor(values);
    let formats = cursor.u16().ok()?;
    cursor.bytes(2 * usize::from(formats)).ok()?;
    let count = cursor.u16().ok()?;
    if number == 0 || number > count {
        return None;
    }
    for _ in 1..number {
        let length = usize::try_from(cursor.i32().ok()?).unwrap_or(0);
        cursor.bytes(length).ok()?;
    }
    let length = usize::try_from(cursor.i32().ok()?).ok()?;
    cursor.bytes(length).ok()
}

/// Are all parameters of a Bind sent as text? `values` is what follows the names in its body, as a whole
/// (`protocol-message-formats`, Bind: the parameter format codes).
pub fn binds_text(values: &[u8]) -> bool {
    let mut cursor = Cursor(values);
    cursor.u16().is_ok_and(|count| {
        let codes = cursor.bytes(2 * usize::from(count));
        codes.is_ok_and(|codes| codes.iter().all(|byte| *byte == 0))
    })
}

/// Body of a `Describe` or a `Close`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    /// Whether a statement or a portal is meant.
    pub target: Target,
    /// Its name; empty for the unnamed one.
    pub name: &'a [u8],
}

impl<'a> Named<'a> {
    /// Reads a whole body.
    pub fn read(body: &'a [u8]) -> Result<Self, Error> {
        let mut cursor = Cursor(body);
        let target = Target::from_byte(cursor.byte()?)?;
        let name = cursor.string()?;
        cursor.finish()?;
        Ok(Self { target, name })
    }
}

/// Body of an `Execute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Execute<'a> {
    /// The portal; empty for the unnamed one.
    pub portal: &'a [u8],
    /// Rows to return at most; 0 and below for all.
    pub max_rows: i32,
}

impl<'a> Execute<'a> {
    /// Reads a whole body.
    pub fn read(body: &'a [u8]) -> Result<Self, Error> {
        let mut cursor = Cursor(body);
        let portal = cursor.string()?;
        let max_rows = cursor.i32()?;
        cursor.finish()?;
        Ok(Self { portal, max_rows })
    }
}

/// Appends a `Query`.
pub fn query(out: &mut Vec<u8>, sql: &[u8]) {
    message(out, tag::QUERY, |out| put_string(out, sql));
}

/// Appends a `Parse` of the statement `name`; `rest` as in [`Parse::rest`].
pub fn parse(out: &mut Vec<u8>, name: &[u8], rest: &[u8]) {
    message(out, tag::PARSE, |out| {
        put_string(out, name);
        out.extend_from_slice(rest);
    });
}

/// Appends a `Bind`; `rest` is everything after the two names.
pub fn bind(out: &mut Vec<u8>, portal: &[u8], statement: &[u8], rest: &[u8]) {
    message(out, tag::BIND, |out| {
        put_string(out, portal);
        put_string(out, statement);
        out.extend_from_slice(rest);
    });
}

/// Appends a `Describe`.
pub fn describe(out: &mut Vec<u8>, target: Target, name: &[u8]) {
    named(out, tag::DESCRIBE, target, name);
}

/// Appends a `Close`.
pub fn close(out: &mut Vec<u8>, target: Target, name: &[u8]) {
    named(out, tag::CLOSE, target, name);
}

/// Describe and Close have the same body.
pub(super) fn named(out: &mut Vec<u8>, tag: u8, target: Target, name: &[u8]) {
    message(out, tag, |out| {
        out.push(target.as_byte());
        put_string(out, name);
    });
}

/// Appends an `Execute`; `max_rows` 0 for all rows.
pub fn execute(out: &mut Vec<u8>, portal: &[u8], max_rows: i32) {
    message(out, tag::EXECUTE, |out| {
        put_string(out, portal);
        out.extend_from_slice(&max_rows.to_be_bytes());
    });
}

/// Appends a `Sync`.
pub fn sync(out: &mut Vec<u8>) {
    message(out, tag::SYNC, |_| {});
}

/// Appends a `Flush`.
pub fn flush(out: &mut Vec<u8>) {
    message(out, tag::FLUSH, |_| {});
}

/// Appends a `Terminate`.
pub fn terminate(out: &mut Vec<u8>) {
    message(out, tag::TERMINATE, |_| {});
}

/// Appends a `CopyFail` with the reason `text`, which the server repeats in its error.
pub fn copy_fail(out: &mut Vec<u8>, text: &[u8]) {
    message(out, tag::COPY_FAIL, |out| put_string(out, text));
}

/// Appends a `CopyDone`.
pub fn copy_done(out: &mut Vec<u8>) {
    message(out, tag::COPY_DONE, |_| {});
}

/// Appends a `StartupMessage` of protocol 3.`minor` with `params` in their order.
///
/// A parameter without a name is left out: it would read as the end of the list.
pub fn startup(out: &mut Vec<u8>, minor: u16, params: &[(&[u8], &[u8])]) {
    untagged(out, |out| {
        out.extend_from_slice(&3u16.to_be_bytes());
        out.extend_from_slice(&minor.to_be_bytes());
        for (name, value) in params.iter().filter(|(name, _)| !name.is_empty()) {
            put_string(out, name);
            put_string(out, value);
        }
        out.push(0);
    });
}

/// Appends a `CancelRequest`, whose numbers are those of the server's `BackendKeyData`.
pub fn cancel_request(out: &mut Vec<u8>, pid: i32, key: &[u8]) {
    untagged(out, |out| {
        out.extend_from_slice(&super::startup::code::CANCEL.to_be_bytes());
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(key);
    });
}

/// Appends an `SSLRequest`.
pub fn ssl_request(out: &mut Vec<u8>) {
    untagged(out, |out| {
        out.extend_from_slice(&super::startup::code::SSL.to_be_bytes());
    });
}

#[cfg(test)]
mod tests;
