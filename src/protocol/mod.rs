//! `PostgreSQL`'s wire protocol 3.0 as bytes: views over what came, encoders for what goes out.
//!
//! Owns the shape of every message the pooler looks at or makes up. Pure: no sockets, no clock, no
//! configuration, and no opinion on which message may follow which. Views borrow from the message and
//! copy nothing; encoders append a complete message to a buffer, so a batch is written in one go.
//!
//! [`ldap`] is the one stranger here: what is said to a directory that checks a password.
//!
//! All layouts are from the `PostgreSQL` documentation, anchor `protocol-message-formats` (18 §54.7).

pub mod authentication;
pub mod backend;
pub mod frame;
pub mod frontend;
pub mod ldap;
pub mod rewrite;
pub mod shape;
pub mod sqlstate;
pub mod startup;

/// What was wrong with bytes that a peer sent, or that cannot be sent on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The message ended before one of its fixed-size fields.
    #[error("message ends in the middle of a field")]
    Truncated,
    /// A string in the message has no NUL at its end.
    #[error("string without its terminating NUL")]
    MissingNul,
    /// The message goes on after its last field.
    #[error("{count} bytes after the end of the message")]
    TrailingBytes {
        /// Bytes left over.
        count: usize,
    },
    /// A length field that no message of its kind can have, or that contradicts the bytes present.
    #[error("bad message length: {length}")]
    BadLength {
        /// The length as the peer stated it, in bytes.
        length: i64,
    },
    /// Describe or Close of something that is neither a statement (`S`) nor a portal (`P`).
    #[error("neither a statement nor a portal: byte {byte:#04x}")]
    BadTarget {
        /// The byte in place of `S` or `P`.
        byte: u8,
    },
    /// A `ReadyForQuery` with a status that is none of `I`, `T`, `E`.
    #[error("unknown transaction status: byte {byte:#04x}")]
    BadTxStatus {
        /// The status byte.
        byte: u8,
    },
    /// Parse whose list of parameter types is not as long as its count says.
    #[error("{count} parameter types announced in {bytes} bytes")]
    BadTypeCount {
        /// Types announced.
        count: u16,
        /// Bytes present after the count.
        bytes: usize,
    },
    /// The two names that begin a Bind do not end within [`frontend::MAX_BIND_NAMES`] bytes.
    #[error("names in Bind longer than {limit} bytes")]
    NameTooLong {
        /// The limit, in bytes.
        limit: usize,
    },
    /// A message whose length passes 2 GiB once its statement is renamed, so that it cannot be sent.
    #[error("renaming makes the message too long: {length} bytes")]
    TooLong {
        /// The length it would have, in bytes.
        length: i64,
    },
    /// A message whose length is out of range, or a first packet that is no known request: bad length, unknown
    /// major version or plain garbage. The words are `PgBouncer`'s.
    #[error("bad packet header: '{}'", hex(.header))]
    BadHeader {
        /// The first bytes of what came, at most 8.
        header: Vec<u8>,
    },
    /// An answer to a request for a password that nobody has sent. The words are `PgBouncer`'s.
    #[error("client password pkt before startup packet")]
    PasswordFirst,
    /// `StartupMessage` of protocol 2, which ended with `PostgreSQL` 14. The words are `PgBouncer`'s.
    #[error("old V2 protocol not supported")]
    ProtocolTwo,
    /// `StartupMessage` whose list of parameters does not end exactly with the message.
    /// The words are `PostgreSQL`'s and `PgBouncer`'s.
    #[error("invalid startup packet layout: expected terminator as last byte")]
    StartupTerminator,
    /// `CancelRequest` whose key is not 4 to 256 bytes long.
    #[error("cancel key of {length} bytes")]
    BadCancelKey {
        /// Length of the key, in bytes.
        length: usize,
    },
    /// The `options` startup parameter has something else than settings. The words are `PgBouncer`'s.
    #[error(
        "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed"
    )]
    UnsupportedOptions,
}

/// How many bytes of a bad packet go into the error text, as in `PgBouncer`.
const SHOWN: usize = 8;

/// The packet at the beginning of `buf` is none.
#[cold]
fn bad_header(buf: &[u8]) -> Error {
    Error::BadHeader {
        header: buf.get(..SHOWN).unwrap_or(buf).to_vec(),
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads the fields of one message body from front to back.
#[derive(Clone, Copy)]
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Result<u8, Error> {
        let (&byte, rest) = self.0.split_first().ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    fn i32(&mut self) -> Result<i32, Error> {
        self.array().map(i32::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, Error> {
        self.array().map(u16::from_be_bytes)
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// The string up to the next NUL, which is passed over.
    fn string(&mut self) -> Result<&'a [u8], Error> {
        // The unnamed portal and the unnamed statement, most of the time.
        if let Some((0, rest)) = self.0.split_first() {
            self.0 = rest;
            return Ok(&[]);
        }
        let nul = memchr::memchr(0, self.0).ok_or(Error::MissingNul)?;
        let (string, rest) = self.0.split_at_checked(nul).ok_or(Error::MissingNul)?;
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(string)
    }

    /// The same where a short one is expected: there it is quicker.
    #[inline]
    fn name(&mut self) -> Result<&'a [u8], Error> {
        const SHORT: usize = 24;
        let near = self.0.get(..SHORT).unwrap_or(self.0);
        match near.iter().position(|byte| *byte == 0) {
            Some(nul) => {
                let (name, rest) = self.0.split_at_checked(nul).ok_or(Error::MissingNul)?;
                self.0 = rest.get(1..).unwrap_or_default();
                Ok(name)
            }
            None => self.string(),
        }
    }

    /// The message must end here.
    fn finish(self) -> Result<(), Error> {
        match self.0.len() {
            0 => Ok(()),
            count => Err(Error::TrailingBytes { count }),
        }
    }
}

/// Appends a message: tag, length, and the body that `body` appends.
fn message(out: &mut Vec<u8>, tag: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    untagged(out, body);
}

/// Appends a message without a tag, as only the first ones of a connection are.
///
/// A body of 2 GiB and more gets the greatest length there is instead of one that wrapped around:
/// `PostgreSQL` refuses it at sight and closes, where a wrapped one would let the rest of the body pass for
/// messages of its own.
fn untagged(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = i32::try_from(out.len() - start).unwrap_or(i32::MAX);
    if let Some(field) = out.get_mut(start..).and_then(<[u8]>::first_chunk_mut::<4>) {
        *field = length.to_be_bytes();
    }
}

/// Appends a NUL-terminated string. One that has a NUL inside is cut there, where every reader would end it
/// too, so that a string can never grow into the fields after it.
fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    out.extend_from_slice(up_to_nul(string));
    out.push(0);
}

/// What stands before the first NUL; all of it if there is none.
pub fn up_to_nul(bytes: &[u8]) -> &[u8] {
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or(bytes)
}

/// Appends the 16-bit count of a list and returns how many items may follow it.
fn put_count(out: &mut Vec<u8>, count: usize) -> usize {
    let count = u16::try_from(count).unwrap_or(u16::MAX);
    out.extend_from_slice(&count.to_be_bytes());
    usize::from(count)
}
