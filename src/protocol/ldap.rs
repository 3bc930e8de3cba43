//! LDAP (RFC 4511), as much of it as a login needs: bind, search, StartTLS and unbind out, their answers in.
//!
//! Owns the shape of these messages, the search filter and how a name is put into a distinguished name. Pure, as the
//! whole room: who is asked and when is `auth`'s. A server's messages are read with every length checked, and by no
//! recursion, for whoever sits between us and a server without TLS can send anything.
//!
//! ```text
//!   LDAPMessage ::= SEQUENCE { messageID, protocolOp, controls OPTIONAL }      (BER, definite lengths; section 5.1)
//! ```

use std::fmt;

use zeroize::Zeroizing;

mod ber;
mod filter;

pub use filter::Filter;

use ber::{Elements, Writer};

#[cfg(test)]
mod tests;

/// Longest message that is taken from a server. An entry comes without attributes, so it is a name and little else.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// Longest part of a server's own words that is kept for the log.
const MAX_WORDS: usize = 200;

/// What StartTLS is called (RFC 4511 section 4.14.1).
const START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";

/// Asks a search for no attributes (RFC 4511 section 4.5.1.8).
const NO_ATTRIBUTES: &[u8] = b"1.1";

/// What is wrong with a server's message, or with a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An element ends before its last byte.
    #[error("element of a message ends too early")]
    Truncated,
    /// A length that BER, as LDAP uses it, does not have.
    #[error("element of a message without a proper length")]
    BadLength,
    /// A message longer than [`MAX_MESSAGE`].
    #[error("message of {length} bytes")]
    TooLong {
        /// Its length, in bytes.
        length: usize,
    },
    /// An element of another kind than belongs there.
    #[error("byte {tag:#04x} where {expected} should begin")]
    Unexpected {
        /// The byte that tells the kind.
        tag: u8,
        /// What belongs there.
        expected: &'static str,
    },
    /// A number that is out of its range.
    #[error("number out of range")]
    BadNumber,
    /// The name of an entry is no UTF-8.
    #[error("name of an entry that is no UTF-8")]
    BadName,
    /// A filter against the grammar of RFC 4515.
    #[error("bad filter: {0}")]
    Filter(&'static str),
}

/// How far below its base a search looks (RFC 4511 section 4.5.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// At the base itself only.
    Base,
    /// At what is right below the base.
    OneLevel,
    /// At the base and everything below.
    Subtree,
}

/// A search for the entry of a user.
#[derive(Debug, Clone, Copy)]
pub struct Search<'a> {
    /// The name of the entry to begin at.
    pub base: &'a str,
    /// How far below it.
    pub scope: Scope,
    /// Which entries.
    pub filter: &'a Filter,
    /// What stands for `$username` in the filter.
    pub user: &'a str,
}

/// How an operation went (RFC 4511 section 4.1.9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// `resultCode`.
    pub code: u32,
    /// `diagnosticMessage`, cut: the server's own words.
    pub words: String,
}

impl Outcome {
    /// Done as asked.
    pub const SUCCESS: u32 = 0;
    /// A search that has found more than was asked for.
    pub const SIZE_LIMIT_EXCEEDED: u32 = 4;
    /// The server has too much to do.
    pub const BUSY: u32 = 51;
    /// The server is going down, or a part of it is not there.
    pub const UNAVAILABLE: u32 = 52;

    fn name(&self) -> &'static str {
        match self.code {
            Self::SUCCESS => "success",
            1 => "operations error",
            2 => "protocol error",
            3 => "time limit exceeded",
            Self::SIZE_LIMIT_EXCEEDED => "size limit exceeded",
            7 => "authentication method not supported",
            8 => "stronger authentication required",
            10 => "referral",
            13 => "confidentiality required",
            32 => "no such object",
            34 => "invalid DN syntax",
            48 => "inappropriate authentication",
            49 => "invalid credentials",
            50 => "insufficient access rights",
            Self::BUSY => "busy",
            Self::UNAVAILABLE => "unavailable",
            53 => "unwilling to perform",
            _ => "failed",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.code)?;
        if !self.words.is_empty() {
            write!(f, ": {}", self.words.escape_debug())?;
        }
        Ok(())
    }
}

/// What a server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The number of the request that it answers; 0: of none.
    pub id: i32,
    /// The answer.
    pub reply: Reply,
}

/// An answer, by its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Of a bind.
    Bind(Outcome),
    /// An entry that was found, by its name.
    Entry(String),
    /// The end of a search.
    Done(Outcome),
    /// Of StartTLS; with the number 0, the server is about to hang up (RFC 4511 section 4.4.1).
    Extended(Outcome),
    /// A reference to another server, or what else does not end an operation.
    Other,
}

/// A simple bind as `name`. Neither may be empty: a bind without a password succeeds for anybody (RFC 4513 section
/// 5.1.2), so that is the caller's to refuse. The bytes hold the password, and are wiped.
pub fn bind(id: i32, name: &str, password: &[u8]) -> Zeroizing<Vec<u8>> {
    request(id, name.len() + password.len(), |out| {
        out.within(0x60, |out| {
            out.integer(ber::INTEGER, 3);
            out.octets(ber::OCTET_STRING, name.as_bytes());
            out.octets(0x80, password);
        });
    })
}

/// A search for at most two entries, for a second one is one too many.
pub fn search(id: i32, search: &Search<'_>) -> Zeroizing<Vec<u8>> {
    request(id, 0, |out| {
        out.within(0x63, |out| {
            out.octets(ber::OCTET_STRING, search.base.as_bytes());
            out.integer(ber::ENUMERATED, search.scope as i32);
            // Aliases are not followed, as by libldap.
            out.integer(ber::ENUMERATED, 0);
            out.integer(ber::INTEGER, 2);
            out.integer(ber::INTEGER, 0);
            out.boolean(ber::BOOLEAN, true);
            search.filter.encode(search.user, out);
            out.within(ber::SEQUENCE, |out| {
                out.octets(ber::OCTET_STRING, NO_ATTRIBUTES);
            });
        });
    })
}

/// StartTLS.
pub fn start_tls(id: i32) -> Zeroizing<Vec<u8>> {
    request(id, 0, |out| {
        out.within(0x77, |out| out.octets(0x80, START_TLS));
    })
}

/// The farewell.
pub fn unbind(id: i32) -> Zeroizing<Vec<u8>> {
    request(id, 0, |out| out.octets(0x42, b""))
}

fn request(id: i32, reserve: usize, body: impl FnOnce(&mut Writer)) -> Zeroizing<Vec<u8>> {
    let mut out = Writer::with_capacity(reserve + 64);
    out.within(ber::SEQUENCE, |out| {
        out.integer(ber::INTEGER, id);
        body(out);
    });
    out.finish()
}

/// Reads the message that `bytes` begin with, and how many of them it is; `None`: there are not enough yet.
pub fn read(bytes: &[u8]) -> Result<Option<(Message, usize)>, Error> {
    let Some((tag, head, length)) = ber::head(bytes)? else {
        return Ok(None);
    };
    expect(tag, ber::SEQUENCE, "a message")?;
    let end = head.saturating_add(length);
    if end > MAX_MESSAGE {
        return Err(Error::TooLong { length: end });
    }
    match bytes.get(head..end) {
        Some(content) => Ok(Some((message(content)?, end))),
        None => Ok(None),
    }
}

fn message(content: &[u8]) -> Result<Message, Error> {
    let mut elements = Elements(content);
    let id = ber::number(elements.expect(ber::INTEGER, "the number of a message")?)?;
    let (tag, body) = elements.next()?;
    // Controls may follow; none was asked for.
    let mut body = Elements(body);
    let reply = match tag {
        0x61 => Reply::Bind(outcome(&mut body)?),
        0x64 => {
            let name = body.expect(ber::OCTET_STRING, "the name of an entry")?;
            let name = std::str::from_utf8(name).map_err(|_| Error::BadName)?;
            Reply::Entry(name.to_owned())
        }
        0x65 => Reply::Done(outcome(&mut body)?),
        0x78 => Reply::Extended(outcome(&mut body)?),
        // A reference, or an intermediate response.
        0x73 | 0x79 => Reply::Other,
        tag => {
            let expected = "the answer to a bind, a search or StartTLS";
            return Err(Error::Unexpected { tag, expected });
        }
    };
    Ok(Message { id, reply })
}

fn outcome(body: &mut Elements<'_>) -> Result<Outcome, Error> {
    let code = ber::number(body.expect(ber::ENUMERATED, "a result code")?)?;
    let code = u32::try_from(code).map_err(|_| Error::BadNumber)?;
    body.expect(ber::OCTET_STRING, "a name")?;
    let words = body.expect(ber::OCTET_STRING, "a diagnostic message")?;
    let words = String::from_utf8_lossy(words);
    // Active Directory ends its words with a NUL.
    let words = words.trim_end_matches('\0').chars().take(MAX_WORDS);
    Ok(Outcome {
        code,
        words: words.collect(),
    })
}

fn expect(tag: u8, wanted: u8, expected: &'static str) -> Result<(), Error> {
    if tag == wanted {
        Ok(())
    } else {
        Err(Error::Unexpected { tag, expected })
    }
}

/// The value of an attribute as it has to be written in a distinguished name (RFC 4514 section 2.4). Whatever has a
/// meaning there, and `=` as well, is written by its number, so that a value never becomes more than one.
pub fn escape_dn(value: &str) -> String {
    use std::fmt::Write as _;

    let last = value.chars().count().saturating_sub(1);
    let mut escaped = String::with_capacity(value.len());
    for (at, character) in value.chars().enumerate() {
        let special = match character {
            '"' | '+' | ',' | ';' | '<' | '=' | '>' | '\\' => true,
            ' ' => at == 0 || at == last,
            '#' => at == 0,
            other => other.is_ascii_control(),
        };
        if special {
            // Writing to a `String` cannot fail.
            let _ = write!(escaped, "\\{:02X}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}
