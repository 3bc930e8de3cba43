//! The untagged packet that begins a connection: `StartupMessage`, `SSLRequest`, `GSSENCRequest`,
//! `CancelRequest`; and the `options` parameter inside the first of these.
//!
//! Comes from anyone who can reach the port, so the length is checked before anything else is looked at.
//! A TLS connection without an `SSLRequest` (first byte 0x16) is not a packet and must be told apart before.

use super::frontend::tag;
use super::{Cursor, Error, bad_header};
use std::fmt;

/// What kind of replication a start-up message asks for (`protocol-replication`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replication {
    /// None: an ordinary session.
    #[default]
    None,
    /// `replication=database`: logical, connected to a database.
    Logical,
    /// `replication=true`: physical.
    Physical,
}

impl Replication {
    /// Reads the value of `replication`: `database`, or a boolean as PostgreSQL understands it.
    pub fn read(value: &[u8]) -> Option<Self> {
        let is = |words: &[&str]| {
            words
                .iter()
                .any(|word| value.eq_ignore_ascii_case(word.as_bytes()))
        };
        if is(&["database"]) {
            Some(Self::Logical)
        } else if is(&["true", "on", "yes", "1", "t", "y"]) {
            Some(Self::Physical)
        } else if is(&["false", "off", "no", "0", "f", "n"]) {
            Some(Self::None)
        } else {
            None
        }
    }

    /// As SHOW CLIENTS has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Logical => "logical",
            Self::Physical => "physical",
        }
    }
}

/// Longest packet after its length field, in bytes (`MAX_STARTUP_PACKET_LENGTH` of `PostgreSQL`).
pub const MAX_LENGTH: usize = 10_000;

/// Names and values in the order sent, neither with a NUL inside.
pub type Parameters = Vec<(Vec<u8>, Vec<u8>)>;

/// What stands in place of a protocol version in the packets that are not a `StartupMessage`.
pub(super) mod code {
    pub(in crate::protocol) const CANCEL: u32 = 80_877_102;
    pub(in crate::protocol) const SSL: u32 = 80_877_103;
    pub(in crate::protocol) const GSSENC: u32 = 80_877_104;
    /// Our own: "pgfe", which is no version that anybody speaks.
    pub(in crate::protocol) const SUCCESSOR: u32 = 0x7067_6665;
}

/// What a connection may begin with.
#[derive(Clone, PartialEq, Eq)]
pub enum FirstPacket {
    /// `SSLRequest`: to be answered `S` or `N`, then another packet follows.
    Ssl,
    /// `GSSENCRequest`: to be answered `N`, then another packet follows.
    GssEnc,
    /// `CancelRequest`: to be acted upon and the connection closed, without any answer.
    Cancel {
        /// Process to be cancelled, as in its `BackendKeyData`.
        pid: i32,
        /// Its secret key: 4 bytes in protocol 3.0, up to 256 since 3.2.
        key: Vec<u8>,
    },
    /// Our own: another process of ours wants to take this one's place. What follows is no PostgreSQL protocol.
    Successor,
    /// A login.
    Startup(StartupMessage),
}

/// The packet of a process that wants to take the place of the one that it connects to.
pub fn successor(out: &mut Vec<u8>) {
    out.extend_from_slice(&8_u32.to_be_bytes());
    out.extend_from_slice(&code::SUCCESSOR.to_be_bytes());
}

impl fmt::Debug for FirstPacket {
    /// Without the cancel key, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ssl => f.write_str("Ssl"),
            Self::GssEnc => f.write_str("GssEnc"),
            Self::Successor => f.write_str("Successor"),
            Self::Cancel { pid, .. } => write!(f, "Cancel {{ pid: {pid}, key: (..) }}"),
            Self::Startup(message) => f.debug_tuple("Startup").field(message).finish(),
        }
    }
}

/// `StartupMessage`: the protocol that the client wants to speak, and its parameters in the order sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartupMessage {
    /// Major version, always 3.
    pub major: u16,
    /// Minor version, any; what we do not speak is negotiated down.
    pub minor: u16,
    /// Names and values; a name may be there twice, the last one counts in `PostgreSQL`.
    pub parameters: Parameters,
}

impl StartupMessage {
    /// The value of the last parameter that has exactly this name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.parameters
            .iter()
            .rfind(|(key, _)| key == name)
            .map(|(_, value)| value.as_slice())
    }
}

/// Reads the packet at the beginning of `buf`, and how many bytes it takes there.
///
/// `None`: it is not complete yet, and will not be longer than [`MAX_LENGTH`] plus its 4 bytes of length.
pub fn read(buf: &[u8]) -> Result<Option<(FirstPacket, usize)>, Error> {
    let mut cursor = Cursor(buf);
    let Ok(length) = cursor.array().map(u32::from_be_bytes) else {
        return Ok(None);
    };
    let unknown = || match buf.first() {
        Some(&tag::PASSWORD) => Error::PasswordFirst,
        _ => bad_header(buf),
    };
    // The length counts itself; the shortest packet has a version besides.
    let body_len = usize::try_from(length)
        .ok()
        .and_then(|length| length.checked_sub(4))
        .filter(|len| (4..=MAX_LENGTH).contains(len))
        .ok_or_else(unknown)?;
    let Some(body) = cursor.0.get(..body_len) else {
        return Ok(None);
    };
    let mut cursor = Cursor(body);
    let version = cursor.array()?;
    let packet = match u32::from_be_bytes(version) {
        code::SSL => cursor.finish().map(|()| FirstPacket::Ssl)?,
        code::GSSENC => cursor.finish().map(|()| FirstPacket::GssEnc)?,
        code::SUCCESSOR => cursor.finish().map(|()| FirstPacket::Successor)?,
        code::CANCEL => cancel(cursor)?,
        version => match version >> 16 {
            3 => startup(version, cursor)?,
            2 => return Err(Error::ProtocolTwo),
            _ => return Err(unknown()),
        },
    };
    Ok(Some((packet, body_len + 4)))
}

fn cancel(mut cursor: Cursor<'_>) -> Result<FirstPacket, Error> {
    let pid = cursor.i32()?;
    let key = cursor.0;
    match key.len() {
        4..=256 => Ok(FirstPacket::Cancel {
            pid,
            key: key.to_vec(),
        }),
        length => Err(Error::BadCancelKey { length }),
    }
}

/// Any break in the list has the words for a missing terminator, as in `PostgreSQL` and `PgBouncer`.
fn startup(version: u32, mut cursor: Cursor<'_>) -> Result<FirstPacket, Error> {
    let [a, b, c, d] = version.to_be_bytes();
    let mut parameters = Vec::new();
    loop {
        let name = cursor.string().map_err(|_| Error::StartupTerminator)?;
        if name.is_empty() {
            break;
        }
        let value = cursor.string().map_err(|_| Error::StartupTerminator)?;
        parameters.push((name.to_vec(), value.to_vec()));
    }
    cursor.finish().map_err(|_| Error::StartupTerminator)?;
    Ok(FirstPacket::Startup(StartupMessage {
        major: u16::from_be_bytes([a, b]),
        minor: u16::from_be_bytes([c, d]),
        parameters,
    }))
}

/// The settings in the value of the `options` startup parameter, in their order.
///
/// `-c name=value`, `-cname=value` and `--name=value`, any blanks between them, `\` before a blank or another
/// `\` that belongs to a value. Anything else is [`Error::UnsupportedOptions`] as in `PgBouncer`. A `-` in a
/// name is read as `_`, as `PostgreSQL` does (18 §19.1.4, anchor `config-setting-shell`).
pub fn parse_options(value: &[u8]) -> Result<Parameters, Error> {
    let mut settings = Vec::new();
    let mut rest = skip_blanks(value);
    while !rest.is_empty() {
        let setting = if let Some(rest) = rest.strip_prefix(b"-c") {
            skip_blanks(rest)
        } else {
            rest.strip_prefix(b"--").ok_or(Error::UnsupportedOptions)?
        };
        let (word, after) = unescaped_word(setting);
        rest = skip_blanks(after);
        let equals = memchr::memchr(b'=', &word).ok_or(Error::UnsupportedOptions)?;
        let (name, value) = word.split_at(equals);
        if name.is_empty() {
            return Err(Error::UnsupportedOptions);
        }
        let underscored = |&byte: &u8| if byte == b'-' { b'_' } else { byte };
        settings.push((
            name.iter().map(underscored).collect(),
            value.get(1..).unwrap_or_default().to_vec(),
        ));
    }
    Ok(settings)
}

/// The bytes up to the next blank, without their backslashes, and what follows.
fn unescaped_word(text: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut word = Vec::new();
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        match (byte, after) {
            (byte, _) if is_blank(*byte) => break,
            (b'\\', [escaped, after @ ..]) => {
                word.push(*escaped);
                rest = after;
            }
            // A backslash that escapes nothing is dropped, as PostgreSQL does.
            (b'\\', []) => rest = after,
            (byte, _) => {
                word.push(*byte);
                rest = after;
            }
        }
    }
    (word, rest)
}

fn skip_blanks(text: &[u8]) -> &[u8] {
    let blanks = text.iter().take_while(|&&byte| is_blank(byte)).count();
    text.get(blanks..).unwrap_or_default()
}

/// C's `isspace`, which has the vertical tab where Rust has not.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

#[cfg(test)]
mod tests;
