//! Secrets as types: wiped on drop, compared in constant time, shown as `(..)`.
//!
//! Owns the kinds of secret an `auth_file` or `auth_query` may hold. Does not read either.

use crate::auth::md5;
use crate::auth::scram::Verifier;
use std::fmt;
use subtle::{Choice, ConstantTimeEq};
use zeroize::{Zeroize, Zeroizing};

/// Gives types a `Debug` that shows their name and nothing of what they hold.
macro_rules! opaque_debug {
    ($($name:ident),+ $(,)?) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    )+};
}
pub(in crate::auth) use opaque_debug;

opaque_debug!(Key, PlainSecret, Md5Hash);

/// What is stored about a user, by kind (`PgBouncer`: "Authentication file format").
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The password itself: good for every method, on both sides.
    Plain(PlainSecret),
    /// `md5` + 32 hex digits: good for md5 and for checking a clear-text password.
    Md5(Md5Hash),
    /// A SCRAM verifier: good for SCRAM and for checking a clear-text password.
    Scram(Verifier),
}

impl Secret {
    /// Tells the kinds apart by their form, as `PostgreSQL` and `PgBouncer` do. `None` for the empty text, which
    /// never matches; whatever is neither a hash nor a verifier is a plain password, even if it nearly is one.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let hashed = Md5Hash::parse(text).map(Self::Md5);
        let secret = hashed.or_else(|| Verifier::parse(text).map(Self::Scram));
        Some(secret.unwrap_or_else(|| Self::Plain(PlainSecret::new(text))))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain(..)",
            Self::Md5(_) => "Md5(..)",
            Self::Scram(_) => "Scram(..)",
        })
    }
}

/// A password as the user types it. Any bytes: `PostgreSQL` does not ask for UTF-8.
#[derive(Clone)]
pub struct PlainSecret(Zeroizing<Vec<u8>>);

impl PlainSecret {
    /// Takes the password over; the given bytes are wiped with it.
    pub fn new(password: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(password.into()))
    }

    /// The password, for sending or hashing; never for showing.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl ConstantTimeEq for PlainSecret {
    /// Compares digests, since a comparison of the bytes themselves would tell the length.
    fn ct_eq(&self, other: &Self) -> Choice {
        use sha2::{Digest, Sha256};
        Sha256::digest(self.expose())
            .as_slice()
            .ct_eq(&Sha256::digest(other.expose()))
    }
}

impl PartialEq for PlainSecret {
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other).into()
    }
}

impl Eq for PlainSecret {}

/// The 32 hex digits of `md5(password + user)`, without the `md5` in front.
#[derive(Clone, PartialEq, Eq)]
pub struct Md5Hash(Key);

impl Md5Hash {
    /// Reads `md5` + 32 lower-case hex digits, the form of `pg_authid.rolpassword`.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: [u8; 32] = text.strip_prefix("md5")?.as_bytes().try_into().ok()?;
        let is_hex = digits
            .iter()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then_some(Self(Key::new(digits)))
    }

    /// Hashes a password (docs: protocol-flow, the inner hash of `AuthenticationMD5Password`).
    pub fn derive(password: &PlainSecret, user: &str) -> Self {
        Self(Key::new(md5::hex_digest(&[
            password.expose(),
            user.as_bytes(),
        ])))
    }

    pub(in crate::auth) fn from_key(key: Key) -> Self {
        Self(key)
    }

    /// The hex digits: with md5 they are as good as the password.
    pub fn expose(&self) -> &[u8; 32] {
        self.0.expose()
    }
}

impl ConstantTimeEq for Md5Hash {
    fn ct_eq(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

/// 32 secret bytes: a key, or a hash worth as much.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// Takes the bytes; the caller's copy stays as it is.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for computing with; never for showing.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl ConstantTimeEq for Key {
    fn ct_eq(&self, other: &Self) -> Choice {
        // By words: each comparison is kept from being seen through, which takes as long for a byte.
        let (ours, theirs) = (self.0.as_chunks::<8>().0, other.0.as_chunks::<8>().0);
        let words = ours.iter().zip(theirs);
        words.fold(Choice::from(1), |equal, (ours, theirs)| {
            equal & u64::from_ne_bytes(*ours).ct_eq(&u64::from_ne_bytes(*theirs))
        })
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other).into()
    }
}

impl Eq for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERIFIER: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$\
        WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
    const HASH: &str = "md562af4dd09bbb41884907a838a3233294";

    #[test]
    fn kinds_are_told_apart_by_their_form() {
        assert_eq!(Secret::parse(""), None);
        assert!(matches!(Secret::parse("secret"), Some(Secret::Plain(_))));
        assert!(matches!(Secret::parse(HASH), Some(Secret::Md5(_))));
        assert!(matches!(Secret::parse(VERIFIER), Some(Secret::Scram(_))));
    }

    #[test]
    fn what_only_looks_like_a_hash_is_a_password() {
        for text in [
            HASH.to_uppercase(),
            format!("{HASH}0"),
            HASH.replace('6', "G"),
            HASH.replace('6', "A"),
            "md5".to_owned(),
            VERIFIER.replace("$4096", "$0"),
            VERIFIER.replace("$4096", "$+4096"),
            VERIFIER.replace("$4096", "$99999999999"),
            VERIFIER.replace("W22ZaJ0SNY7soEsUEjb6gQ==", ""),
            VERIFIER.replace("T4qY=", "T4qY"),
            VERIFIER.replace("SCRAM-SHA-256", "scram-sha-256"),
            format!("{VERIFIER}:"),
        ] {
            assert!(
                matches!(Secret::parse(&text), Some(Secret::Plain(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn equality_looks_at_the_content() {
        assert_eq!(Secret::parse("a"), Secret::parse("a"));
        assert_ne!(Secret::parse("a"), Secret::parse("ab"));
        assert_eq!(Secret::parse(VERIFIER), Secret::parse(VERIFIER));
        assert_ne!(
            Secret::parse(VERIFIER),
            Secret::parse(&VERIFIER.replace("4096", "4097"))
        );
        assert_ne!(Secret::parse(HASH), Secret::parse(VERIFIER));
    }

    #[test]
    fn debug_shows_no_secret() {
        assert_eq!(
            format!("{:?}", PlainSecret::new("hunter2")),
            "PlainSecret(..)"
        );
        assert_eq!(
            format!("{:?}", Secret::parse("hunter2").unwrap()),
            "Plain(..)"
        );
        assert_eq!(
            format!("{:?}", Md5Hash::parse(HASH).unwrap()),
            "Md5Hash(..)"
        );
        assert_eq!(
            format!("{:?}", Secret::parse(VERIFIER).unwrap()),
            "Scram(..)"
        );
        assert_eq!(
            format!("{:?}", Verifier::parse(VERIFIER).unwrap()),
            "Verifier(..)"
        );
        assert_eq!(format!("{:?}", Key::new([7; 32])), "Key(..)");
    }
}
