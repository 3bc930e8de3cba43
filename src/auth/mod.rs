//! Proofs of identity: who a client is, and who we are to `PostgreSQL`.
//!
//! Owns the methods and their exchanges, both sides, *sans-I/O*: message bodies in, whole messages out. Does not
//! own where secrets come from (`auth_file`, `auth_query`), which method a client must use (HBA), the sockets of
//! clients and servers, or the `ErrorResponse` that ends a failed login.
//!
//! ```text
//!   client ── client_login ── Proof ──▶ Credentials ── server_login ── `PostgreSQL`
//!                  │                                        │
//!                  └────────── scram · md5 · secret ────────┘
//!                  └── ldap · pam: others, who are asked about a password in clear text
//! ```
//!
//! **Where the CPU goes.** PBKDF2 with 4096 rounds takes about a millisecond, with a hostile server's count
//! seconds. What comes out of it is worth keeping, in a [`Keyring`]. It runs in these places only:
//!
//! - [`ClientLogin::start`] with a plain secret and SCRAM. Pass `Secret::Scram` instead, with the verifier of
//!   [`MockKey::known_verifier`].
//! - [`ClientLogin::message`] with [`Method::Plain`] and a SCRAM secret.
//! - [`ServerLogin::message`] on `AuthenticationSASLContinue` with a plain secret, the first time for each
//!   [`Keyring`] that [`ServerLogin::reusing`] was given.

pub mod client_login;
pub mod keyring;
pub mod ldap;
pub mod md5;
pub mod pam;
pub mod scram;
pub mod secret;
pub mod server_login;

pub use crate::auth::client_login::{ClientLogin, Failure, Method, Proof, Step};
pub use crate::auth::keyring::Keyring;
pub use crate::auth::scram::{ScramKeys, Verifier};
pub use crate::auth::secret::{Md5Hash, PlainSecret, Secret};
pub use crate::auth::server_login::{Credentials, ServerLogin, ServerStep};

use crate::auth::secret::{Key, opaque_debug};
use crate::protocol::authentication;

opaque_debug!(MockKey);

/// Why an exchange cannot go on. Texts in `PgBouncer`'s words where it has some; none holds bytes of a peer or of
/// a secret. Towards a client only [`Failure`]'s texts may be shown: they do not tell which step failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The server asks for a method that our secret cannot serve (an md5 hash for SCRAM, say).
    #[error("wrong password type")]
    WrongPasswordType,
    /// `AuthenticationSASL` without `SCRAM-SHA-256`.
    #[error("none of the server's SASL authentication mechanisms are supported")]
    NoCommonMechanism,
    /// The server does not know our secret: somebody else answers in its place.
    #[error("invalid server signature")]
    InvalidServerSignature,
    /// The server ended the SCRAM exchange with an `e=` attribute.
    #[error("SCRAM exchange refused by the server")]
    RefusedByServer,
    /// An authentication request that nobody here knows, with its code.
    #[error("unsupported authentication method: {0}")]
    UnsupportedMethod(i32),
    /// A request that does not fit the state of the exchange, like `AuthenticationOk` before the server has
    /// proved itself.
    #[error("unexpected authentication request")]
    UnexpectedRequest,
    /// The proof of the client does not match: a wrong password, or a user that does not exist.
    #[error("wrong SCRAM proof")]
    WrongProof,
    /// A SCRAM message against the grammar of RFC 5802 §7.
    #[error("malformed SCRAM message: {0}")]
    Scram(&'static str),
    /// The iteration count in the server's first message is zero or would keep us busy for ever.
    #[error("SCRAM iteration count {0} is out of range")]
    IterationCount(u32),
    /// The client insists on channel binding of a kind that was not offered.
    #[error("channel binding is not supported")]
    ChannelBinding,
    /// The client believes that channel binding was not offered, and it was.
    #[error("SCRAM channel binding negotiation error")]
    BindingDowngraded,
    /// The message around the exchange is broken.
    #[error(transparent)]
    Message(#[from] authentication::Error),
}

/// A random key of this process, from which made-up secrets come: stable for a user name as real ones are, so
/// that nobody can find out which users exist by asking twice (docs: as `PostgreSQL`'s mock authentication nonce).
///
/// The salts of plain secrets come from it as well: by their salt the two cannot be told apart.
#[derive(Clone)]
pub struct MockKey(Key);

impl MockKey {
    /// A new key. One is enough for the life of the process.
    pub fn random() -> Self {
        Self(Key::new(rand::random()))
    }

    /// The verifier to use for a user whose secret is a plain password. It stays the same as long as password
    /// and count do, so keep it: it costs PBKDF2, and a login that takes longer tells that the user exists.
    pub fn derive_verifier(&self, user: &str, password: &PlainSecret, iterations: u32) -> Verifier {
        Verifier::derive(password, iterations, &self.salt(user))
    }

    /// The same, from keys that are known if they were derived before.
    pub fn known_verifier(
        &self,
        (user, password): (&str, &PlainSecret),
        iterations: u32,
        known: &Keyring,
    ) -> Verifier {
        let salt = self.salt(user);
        Verifier::of(known.keys(password, iterations, &salt), iterations, &salt)
    }

    /// A verifier that belongs to no password.
    fn verifier(&self, user: &str, iterations: u32) -> Verifier {
        let [stored_key, server_key] = [b"stored", b"server"].map(|part| self.make(part, user));
        Verifier::new(iterations, self.salt(user), stored_key, server_key)
    }

    /// A hash that belongs to no password.
    fn md5_hash(&self, user: &str) -> Md5Hash {
        Md5Hash::from_key(self.make(b"md5", user))
    }

    /// 16 bytes, like the salts `PostgreSQL` makes.
    fn salt(&self, user: &str) -> Vec<u8> {
        self.make(b"salt", user)
            .expose()
            .iter()
            .copied()
            .take(16)
            .collect()
    }

    fn make(&self, part: &[u8], user: &str) -> Key {
        scram::sign(self.0.expose(), &[part, b"\0", user.as_bytes()])
    }
}
