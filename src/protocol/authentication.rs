//! The `R` family (authentication requests, sent by a backend) and the `p` family (its answers, sent by a frontend).
//!
//! Owns the shape of these messages in both directions: parsers take the BODY of a message (without tag and
//! length) and borrow from it; encoders return whole messages. What the SASL data mean is not known here: that
//! is `auth`'s business.
//!
//! All `p` messages share one tag, so only the reader, who knows what was asked, can tell them apart: there are
//! three parsers instead of one enum (docs: protocol-message-formats, "the exact message type can be deduced
//! from the context").

use std::fmt;

/// The tag of every authentication request.
pub const AUTHENTICATION: u8 = b'R';
/// The tag of `PasswordMessage`, `SASLInitialResponse` and `SASLResponse`.
pub const PASSWORD_FAMILY: u8 = b'p';

const OK: i32 = 0;
const CLEARTEXT_PASSWORD: i32 = 3;
const MD5_PASSWORD: i32 = 5;
const SASL: i32 = 10;
const SASL_CONTINUE: i32 = 11;
const SASL_FINAL: i32 = 12;

/// What is wrong with the body of an authentication message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The body ends before the field.
    #[error("authentication message ends before its {0}")]
    Truncated(&'static str),
    /// Bytes remain after the last field.
    #[error("authentication message has {0} bytes too many")]
    TrailingBytes(usize),
    /// The length field of the initial response disagrees with the message's length.
    #[error("initial response of {announced} bytes announced, {found} found")]
    ResponseLength {
        /// The Int32 in the message; -1 would mean "no initial response".
        announced: i32,
        /// The number of bytes that follow it.
        found: usize,
    },
}

/// An `R` message (docs: protocol-message-formats, `Authentication…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authentication<'a> {
    /// 0: the frontend is in.
    Ok,
    /// 3: send the password as it is.
    CleartextPassword,
    /// 5: send `md5(md5(password + user) + salt)`.
    Md5Password {
        /// Random bytes, new in each request.
        salt: [u8; 4],
    },
    /// 10: choose a mechanism.
    Sasl(Mechanisms<'a>),
    /// 11: the next challenge, in the mechanism's own format.
    SaslContinue(&'a [u8]),
    /// 12: the mechanism's last words; `AuthenticationOk` follows.
    SaslFinal(&'a [u8]),
    /// Any other code (Kerberos 2, GSS 7 and 8, SSPI 9 …): known to nobody here.
    Unsupported(i32),
}

impl<'a> Authentication<'a> {
    /// Reads the body of an `R` message.
    pub fn parse(body: &'a [u8]) -> Result<Self, Error> {
        let (code, rest) = take_i32(body, "code")?;
        match code {
            OK => nothing_after(rest).map(|()| Self::Ok),
            CLEARTEXT_PASSWORD => nothing_after(rest).map(|()| Self::CleartextPassword),
            MD5_PASSWORD => {
                let (salt, rest) = rest.split_first_chunk().ok_or(Error::Truncated("salt"))?;
                nothing_after(rest).map(|()| Self::Md5Password { salt: *salt })
            }
            SASL => Mechanisms::parse(rest).map(Self::Sasl),
            SASL_CONTINUE => Ok(Self::SaslContinue(rest)),
            SASL_FINAL => Ok(Self::SaslFinal(rest)),
            other => Ok(Self::Unsupported(other)),
        }
    }

    /// The whole message, tag and length included. (`Unsupported` keeps its code only.)
    pub fn encode(&self) -> Vec<u8> {
        let (code, data): (i32, &[u8]) = match self {
            Self::Ok => (OK, &[]),
            Self::CleartextPassword => (CLEARTEXT_PASSWORD, &[]),
            Self::Md5Password { salt } => (MD5_PASSWORD, salt),
            Self::Sasl(mechanisms) => (SASL, mechanisms.0),
            Self::SaslContinue(data) => (SASL_CONTINUE, data),
            Self::SaslFinal(data) => (SASL_FINAL, data),
            Self::Unsupported(code) => (*code, &[]),
        };
        message(AUTHENTICATION, &[&code.to_be_bytes(), data])
    }
}

/// The mechanism names of `AuthenticationSASL`, best first. Checked once: each ends with a NUL, and an empty one
/// ends the list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mechanisms<'a>(&'a [u8]);

impl Mechanisms<'static> {
    /// The list that offers `SCRAM-SHA-256` and nothing else.
    pub const SCRAM_SHA_256: Self = Self(b"SCRAM-SHA-256\0\0");

    /// The list that offers channel binding as well, and first.
    pub const SCRAM_SHA_256_PLUS: Self = Self(b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0");
}

impl<'a> Mechanisms<'a> {
    fn parse(list: &'a [u8]) -> Result<Self, Error> {
        let mut rest = list;
        loop {
            let (name, after) = take_text(rest, "mechanism")?;
            if name.is_empty() {
                return nothing_after(after).map(|()| Self(list));
            }
            rest = after;
        }
    }

    /// The names, in the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.0
            .split(|&byte| byte == 0)
            .take_while(|name| !name.is_empty())
    }

    /// Whether this mechanism is offered. Names are case-sensitive.
    pub fn contains(&self, mechanism: &[u8]) -> bool {
        self.iter().any(|name| name == mechanism)
    }
}

impl fmt::Debug for Mechanisms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(String::from_utf8_lossy))
            .finish()
    }
}

/// Reads the body of a `PasswordMessage`: the password (or its md5 answer) without its NUL.
pub fn parse_password(body: &[u8]) -> Result<&[u8], Error> {
    let (password, rest) = take_text(body, "password")?;
    nothing_after(rest).map(|()| password)
}

/// A whole `PasswordMessage`. `password` must hold no NUL.
pub fn encode_password(password: &[u8]) -> Vec<u8> {
    message(PASSWORD_FAMILY, &[password, &[0]])
}

/// The frontend's choice of mechanism, often with the mechanism's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaslInitialResponse<'a> {
    /// The chosen name, without its NUL.
    pub mechanism: &'a [u8],
    /// `None` when the frontend waits for a challenge first (length -1).
    pub data: Option<&'a [u8]>,
}

impl<'a> SaslInitialResponse<'a> {
    /// Reads the body of a `SASLInitialResponse`.
    pub fn parse(body: &'a [u8]) -> Result<Self, Error> {
        let (mechanism, rest) = take_text(body, "mechanism")?;
        let (announced, rest) = take_i32(rest, "response length")?;
        if announced == -1 {
            return nothing_after(rest).map(|()| Self {
                mechanism,
                data: None,
            });
        }
        if usize::try_from(announced) != Ok(rest.len()) {
            return Err(Error::ResponseLength {
                announced,
                found: rest.len(),
            });
        }
        Ok(Self {
            mechanism,
            data: Some(rest),
        })
    }

    /// The whole message, tag and length included.
    pub fn encode(&self) -> Vec<u8> {
        let length = self.data.map_or(-1, |data| int32(data.len()));
        let data = self.data.unwrap_or_default();
        message(
            PASSWORD_FAMILY,
            &[self.mechanism, &[0], &length.to_be_bytes(), data],
        )
    }
}

/// Reads the body of a `SASLResponse`: all of it is the mechanism's data.
pub fn parse_sasl_response(body: &[u8]) -> &[u8] {
    body
}

/// A whole `SASLResponse`.
pub fn encode_sasl_response(data: &[u8]) -> Vec<u8> {
    message(PASSWORD_FAMILY, &[data])
}

fn message(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length = 4 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut message = Vec::with_capacity(1 + length);
    message.push(tag);
    message.extend_from_slice(&int32(length).to_be_bytes());
    for part in parts {
        message.extend_from_slice(part);
    }
    message
}

/// Nothing that is sent here comes near 2 GB: secrets and SASL messages are a few hundred bytes.
fn int32(length: usize) -> i32 {
    debug_assert!(i32::try_from(length).is_ok());
    i32::try_from(length).unwrap_or(i32::MAX)
}

fn take_i32<'a>(bytes: &'a [u8], field: &'static str) -> Result<(i32, &'a [u8]), Error> {
    let (number, rest) = bytes.split_first_chunk().ok_or(Error::Truncated(field))?;
    Ok((i32::from_be_bytes(*number), rest))
}

fn take_text<'a>(bytes: &'a [u8], field: &'static str) -> Result<(&'a [u8], &'a [u8]), Error> {
    let end = memchr::memchr(0, bytes).ok_or(Error::Truncated(field))?;
    let (text, rest) = bytes.split_at_checked(end).ok_or(Error::Truncated(field))?;
    Ok((text, rest.get(1..).unwrap_or_default()))
}

fn nothing_after(rest: &[u8]) -> Result<(), Error> {
    match rest.len() {
        0 => Ok(()),
        extra => Err(Error::TrailingBytes(extra)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_request_survives_the_round_trip() {
        for request in [
            Authentication::Ok,
            Authentication::CleartextPassword,
            Authentication::Md5Password { salt: [1, 2, 0, 4] },
            Authentication::Sasl(Mechanisms::SCRAM_SHA_256),
            Authentication::SaslContinue(b"r=x,s=y,i=1"),
            Authentication::SaslFinal(b"v=z"),
            Authentication::Unsupported(7),
        ] {
            let message = request.encode();
            assert_eq!(message[0], b'R');
            assert_eq!(
                message[1..5],
                u32::try_from(message.len() - 1).unwrap().to_be_bytes()
            );
            assert_eq!(Authentication::parse(&message[5..]), Ok(request));
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_documentation() {
        assert_eq!(Authentication::Ok.encode(), b"R\0\0\0\x08\0\0\0\0");
        assert_eq!(
            Authentication::Sasl(Mechanisms::SCRAM_SHA_256).encode(),
            b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0"
        );
        assert_eq!(encode_password(b"pw"), b"p\0\0\0\x07pw\0");
    }

    #[test]
    fn wrong_lengths_are_refused() {
        assert_eq!(
            Authentication::parse(b"\0\0\0"),
            Err(Error::Truncated("code"))
        );
        assert_eq!(
            Authentication::parse(b"\0\0\0\0x"),
            Err(Error::TrailingBytes(1))
        );
        assert_eq!(
            Authentication::parse(b"\0\0\0\x05abc"),
            Err(Error::Truncated("salt"))
        );
        assert_eq!(
            Authentication::parse(b"\0\0\0\x05abcde"),
            Err(Error::TrailingBytes(1))
        );
        assert_eq!(
            Authentication::parse(b"\0\0\0\x0aSCRAM\0"),
            Err(Error::Truncated("mechanism"))
        );
        assert_eq!(
            Authentication::parse(b"\0\0\0\x0aSCRAM\0\0\0"),
            Err(Error::TrailingBytes(1))
        );
        assert_eq!(parse_password(b"secret"), Err(Error::Truncated("password")));
        assert_eq!(
            parse_password(b"secret\0more"),
            Err(Error::TrailingBytes(4))
        );
    }

    #[test]
    fn the_mechanisms_are_listed_in_order() {
        let Ok(Authentication::Sasl(list)) = Authentication::parse(b"\0\0\0\x0aA-PLUS\0A\0\0")
        else {
            panic!("not a SASL request");
        };
        assert_eq!(
            list.iter().collect::<Vec<_>>(),
            [b"A-PLUS".as_slice(), b"A"]
        );
        assert!(list.contains(b"A") && !list.contains(b"a") && !list.contains(b""));
    }

    #[test]
    fn an_initial_response_announces_its_exact_length() {
        let absent = SaslInitialResponse {
            mechanism: b"M",
            data: None,
        };
        let empty = SaslInitialResponse {
            mechanism: b"M",
            data: Some(b""),
        };
        for response in [
            absent,
            empty,
            SaslInitialResponse {
                mechanism: b"M",
                data: Some(b"n,,"),
            },
        ] {
            assert_eq!(
                SaslInitialResponse::parse(&response.encode()[5..]),
                Ok(response)
            );
        }
        let lengths = [(2, 3), (4, 3), (-2, 3), (i32::MAX, 3), (i32::MIN, 3)];
        for (announced, found) in lengths {
            let mut body = b"M\0".to_vec();
            body.extend_from_slice(&announced.to_be_bytes());
            body.extend_from_slice(b"n,,");
            assert_eq!(
                SaslInitialResponse::parse(&body),
                Err(Error::ResponseLength { announced, found })
            );
        }
        assert_eq!(
            SaslInitialResponse::parse(b"M\0\xff\xff\xff\xffx"),
            Err(Error::TrailingBytes(1))
        );
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..64), code in 0u8..14) {
            let _ = Authentication::parse(&body);
            let _ = parse_password(&body);
            let _ = SaslInitialResponse::parse(&body);
            let coded = [&[0, 0, 0, code], body.as_slice()].concat();
            if let Ok(Authentication::Sasl(list)) = Authentication::parse(&coded) {
                let _ = list.iter().count();
            }
        }
    }
}
