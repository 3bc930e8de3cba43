//! SCRAM-SHA-256, both sides (RFC 5802, RFC 7677; docs: sasl-authentication), with and without channel binding.
//!
//! Owns the keys, the verifier and the four messages, as typestates: a step can neither be skipped nor repeated.
//! Does not own the `R` and `p` messages around them (`protocol::authentication`), nor who may try.
//!
//! ```text
//!   as a server                                 as a client
//!   AwaitFirst ──client_first──▶ AwaitFinal     ClientFirst ──server_first──▶ ClientFinal
//!                                    │                                            │
//!                               client_final                                 server_final
//!                                    ▼                                            ▼
//!                                ScramKeys                          the server knows us
//! ```
//!
//! The client's key can be computed from its proof by whoever holds the verifier, and it is all that is needed
//! to log in elsewhere under the same verifier (same salt, same count): this is the pass-through.

use crate::auth::Error;
use crate::auth::keyring::Keyring;
use crate::auth::secret::{Key, PlainSecret, opaque_debug};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

#[cfg(test)]
mod tests;

/// The mechanism that any connection can use.
pub const MECHANISM: &str = "SCRAM-SHA-256";

/// The mechanism that ties the proof to the TLS connection it is made on.
pub const MECHANISM_PLUS: &str = "SCRAM-SHA-256-PLUS";

/// The gs2 header of the one binding that PostgreSQL knows (RFC 5929 §4).
const BOUND: &str = "p=tls-server-end-point,,";

/// The highest iteration count we compute with; a peer's number must not keep a worker busy for ever.
pub const MAX_ITERATIONS: u32 = 10_000_000;

/// The longest message taken from a client; `PostgreSQL`'s own limit (`PG_MAX_SASL_MESSAGE_LENGTH`).
const MAX_CLIENT_MESSAGE: usize = 1024;

/// The longest message taken from a server; libpq's own limit for authentication requests.
const MAX_SERVER_MESSAGE: usize = 2000;

opaque_debug!(
    Verifier,
    ScramKeys,
    AwaitFirst,
    AwaitFinal,
    ClientFirst,
    ClientFinal
);

/// What a server stores instead of a password (RFC 5802 §3; docs: catalog-pg-authid).
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Key,
    server_key: Key,
}

impl Verifier {
    /// Puts a verifier together from its parts.
    pub fn new(iterations: u32, salt: Vec<u8>, stored_key: Key, server_key: Key) -> Self {
        Self {
            iterations,
            salt,
            stored_key,
            server_key,
        }
    }

    /// Reads `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`, the form of `pg_authid.rolpassword`.
    pub fn parse(text: &str) -> Option<Self> {
        let (head, keys) = text.strip_prefix("SCRAM-SHA-256$")?.split_once('$')?;
        let (iterations, salt) = head.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        Some(Self {
            iterations: parse_count(iterations)
                .filter(|count| (1..=i32::MAX.unsigned_abs()).contains(count))?,
            salt: STANDARD.decode(salt).ok().filter(|salt| !salt.is_empty())?,
            stored_key: parse_key(stored_key)?,
            server_key: parse_key(server_key)?,
        })
    }

    /// Makes a verifier from a password. Slow on purpose (PBKDF2, a millisecond for 4096 iterations): cache it.
    pub fn derive(password: &PlainSecret, iterations: u32, salt: &[u8]) -> Self {
        Self::of(
            ScramKeys::derive(password, iterations, salt),
            iterations,
            salt,
        )
    }

    /// The verifier for these keys, which were derived with this count and salt.
    pub(in crate::auth) fn of(keys: ScramKeys, iterations: u32, salt: &[u8]) -> Self {
        let stored_key = hash(&keys.client_key);
        Self::new(iterations, salt.to_vec(), stored_key, keys.server_key)
    }

    /// Whether a clear-text password belongs to this verifier. As slow as [`Verifier::derive`]; a count beyond
    /// [`MAX_ITERATIONS`] never matches, since any role may set its own verifier in `PostgreSQL`.
    pub fn matches(&self, password: &PlainSecret) -> bool {
        self.iterations <= MAX_ITERATIONS
            && hash(&ScramKeys::derive(password, self.iterations, &self.salt).client_key)
                .ct_eq(&self.stored_key)
                .into()
    }
}

/// The two keys a password comes down to under one salt and count: with them one can log in as a client.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramKeys {
    /// Proves the client to the server.
    pub client_key: Key,
    /// Proves the server to the client.
    pub server_key: Key,
}

impl ScramKeys {
    /// RFC 5802 §3, `SaltedPassword` and what follows. Slow on purpose.
    pub(in crate::auth) fn derive(password: &PlainSecret, iterations: u32, salt: &[u8]) -> Self {
        let salted = salted_password(&prepared(password), salt, iterations);
        Self {
            client_key: sign(salted.expose(), &[b"Client Key"]),
            server_key: sign(salted.expose(), &[b"Server Key"]),
        }
    }
}

/// A server that waits for the client's first message.
pub struct AwaitFirst {
    verifier: Verifier,
    genuine: bool,
    nonce: String,
    /// What the client may bind its proof to.
    end_point: Option<Vec<u8>>,
    is_bound: bool,
}

impl AwaitFirst {
    /// Will let in who knows the password of this verifier.
    pub fn new(verifier: Verifier) -> Self {
        Self {
            verifier,
            genuine: true,
            nonce: random_nonce(),
            end_point: None,
            is_bound: false,
        }
    }

    /// Offers `SCRAM-SHA-256-PLUS` as well, if there is something to bind to: the data of `tls-server-end-point`.
    #[must_use]
    pub fn offering(self, end_point: Option<Vec<u8>>) -> Self {
        Self { end_point, ..self }
    }

    /// The client's choice of mechanism; false if it was not offered. (Without a choice it is the one without `-PLUS`.)
    #[must_use]
    pub fn choose(&mut self, mechanism: &[u8]) -> bool {
        self.is_bound = mechanism == MECHANISM_PLUS.as_bytes();
        if self.is_bound {
            self.end_point.is_some()
        } else {
            mechanism == MECHANISM.as_bytes()
        }
    }

    /// Goes through the same motions and lets nobody in.
    pub fn mock(verifier: Verifier) -> Self {
        Self {
            genuine: false,
            ..Self::new(verifier)
        }
    }

    /// Takes the client-first-message, gives the server-first-message.
    pub fn client_first(self, message: &[u8]) -> Result<(AwaitFinal, Vec<u8>), Error> {
        let message = text(message, MAX_CLIENT_MESSAGE)?;
        let (header, bare, data) = self.gs2_header(message)?;
        let binding = encoded_binding(header, data);
        let mut attributes = bare.split(',');
        // The name is ignored, as PostgreSQL does: it is the one of the StartupMessage that counts.
        attribute(attributes.next(), "n=").ok_or(Error::Scram("user name"))?;
        let client_nonce =
            attribute(attributes.next(), "r=").ok_or(Error::Scram("client nonce"))?;
        if client_nonce.is_empty() || !is_printable(client_nonce) {
            return Err(Error::Scram("client nonce"));
        }
        if !attributes.all(is_extension) {
            return Err(Error::Scram("extension"));
        }

        let nonce = [client_nonce, &self.nonce].concat();
        let salt = STANDARD.encode(&self.verifier.salt);
        let iterations = self.verifier.iterations.to_string();
        let reply = ["r=", &nonce, ",s=", &salt, ",i=", &iterations].concat();
        let said = [bare, ",", &reply, ","].concat();
        let next = AwaitFinal {
            verifier: self.verifier,
            genuine: self.genuine,
            binding,
            nonce,
            said,
        };
        Ok((next, reply.into_bytes()))
    }

    /// What the client says about channel binding (RFC 5802 §6), what follows that, and the data it must know.
    fn gs2_header<'m>(&self, message: &'m str) -> Result<(&'static str, &'m str, &[u8]), Error> {
        if let Some(bare) = message.strip_prefix(BOUND) {
            return match &self.end_point {
                Some(data) if self.is_bound => Ok((BOUND, bare, data)),
                _ => Err(Error::ChannelBinding),
            };
        }
        if message.starts_with("p=") {
            return Err(Error::ChannelBinding);
        }
        let header = ["n,,", "y,,"]
            .into_iter()
            .find_map(|header| Some((header, message.strip_prefix(header)?)));
        match header {
            // `y`: the client could bind and believes that we cannot. Then somebody has changed the list we sent.
            Some(("y,,", _)) if self.end_point.is_some() => Err(Error::BindingDowngraded),
            Some((header, bare)) if !self.is_bound => Ok((header, bare, &[])),
            Some(_) | None => Err(Error::Scram("gs2 header")),
        }
    }
}

/// A server that waits for the client's proof.
pub struct AwaitFinal {
    verifier: Verifier,
    genuine: bool,
    /// The `c=` that repeats the gs2 header, and has the data of the binding.
    binding: String,
    nonce: String,
    /// `AuthMessage` so far, its last comma included.
    said: String,
}

impl AwaitFinal {
    /// Takes the client-final-message, gives the keys recovered from the proof and the server-final-message.
    pub fn client_final(self, message: &[u8]) -> Result<(ScramKeys, Vec<u8>), Error> {
        let message = text(message, MAX_CLIENT_MESSAGE)?;
        let (without_proof, proof) = message.rsplit_once(',').ok_or(Error::Scram("proof"))?;
        let proof = attribute(Some(proof), "p=")
            .and_then(parse_key)
            .ok_or(Error::Scram("proof"))?;
        let mut attributes = without_proof.split(',');
        if attribute(attributes.next(), "c=") != Some(&self.binding) {
            return Err(Error::Scram("channel binding"));
        }
        if attribute(attributes.next(), "r=") != Some(&self.nonce) {
            return Err(Error::Scram("nonce"));
        }
        if !attributes.all(is_extension) {
            return Err(Error::Scram("extension"));
        }

        let said = [self.said.as_bytes(), without_proof.as_bytes()];
        let client_key = xor(&proof, &sign(self.verifier.stored_key.expose(), &said));
        let matches = hash(&client_key).ct_eq(&self.verifier.stored_key)
            & Choice::from(u8::from(self.genuine));
        if !bool::from(matches) {
            return Err(Error::WrongProof);
        }
        let signature = sign(self.verifier.server_key.expose(), &said);
        let reply = ["v=", &STANDARD.encode(signature.expose())].concat();
        Ok((
            ScramKeys {
                client_key,
                server_key: self.verifier.server_key,
            },
            reply.into_bytes(),
        ))
    }
}

/// What a client has to prove itself with.
#[derive(Clone, Copy)]
pub enum Material<'a> {
    /// The password, and the keys it came down to before: taken instead of PBKDF2 if they fit what the server asks.
    Password(&'a PlainSecret, Option<&'a Keyring>),
    /// Keys seen when somebody logged in to us. They are good only if the server has the verifier that we have;
    /// nothing in the exchange tells so before the server's answer.
    Keys(&'a ScramKeys),
}

/// What a client says about channel binding (RFC 5802 §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding<'a> {
    /// `n`: it has nothing to bind to.
    Impossible,
    /// `y`: it could, and the server has not offered it. A server that has knows then that it was interfered with.
    NotOffered,
    /// `p`: it binds to this data of `tls-server-end-point`.
    EndPoint(&'a [u8]),
}

/// A client that waits for the server's first message.
pub struct ClientFirst {
    nonce: String,
    /// The client-first-message without its gs2 header.
    bare: String,
    /// The `c=` of the final message.
    binding: String,
}

impl ClientFirst {
    /// Starts an exchange: the client-first-message comes with it. It names no user, like libpq's: `PostgreSQL`
    /// takes the name from the `StartupMessage`.
    pub fn start(binding: Binding<'_>) -> (Self, Vec<u8>) {
        Self::with_nonce(random_nonce(), binding)
    }

    fn with_nonce(nonce: String, binding: Binding<'_>) -> (Self, Vec<u8>) {
        let (header, data) = match binding {
            Binding::Impossible => ("n,,", &[][..]),
            Binding::NotOffered => ("y,,", &[][..]),
            Binding::EndPoint(data) => (BOUND, data),
        };
        let bare = format!("n=,r={nonce}");
        let message = format!("{header}{bare}").into_bytes();
        let binding = encoded_binding(header, data);
        let next = Self {
            nonce,
            bare,
            binding,
        };
        (next, message)
    }

    /// Takes the server-first-message, gives the client-final-message. Slow with a password (PBKDF2 with the
    /// server's count) unless keys that fit are known.
    pub fn server_first(
        self,
        message: &[u8],
        material: Material<'_>,
    ) -> Result<(ClientFinal, Vec<u8>), Error> {
        let message = text(message, MAX_SERVER_MESSAGE)?;
        let mut attributes = message.split(',');
        let nonce = attribute(attributes.next(), "r=").ok_or(Error::Scram("nonce"))?;
        // A server that adds nothing of its own could replay an old exchange.
        let addition = nonce.strip_prefix(self.nonce.as_str()).unwrap_or_default();
        if addition.is_empty() || !is_printable(addition) {
            return Err(Error::Scram("nonce"));
        }
        let salt = attribute(attributes.next(), "s=").and_then(|salt| STANDARD.decode(salt).ok());
        let salt = salt
            .filter(|salt| !salt.is_empty())
            .ok_or(Error::Scram("salt"))?;
        let iterations = attribute(attributes.next(), "i=").and_then(parse_count);
        let iterations = iterations.ok_or(Error::Scram("iteration count"))?;
        if !(1..=MAX_ITERATIONS).contains(&iterations) {
            return Err(Error::IterationCount(iterations));
        }
        if attributes.next().is_some() {
            return Err(Error::Scram("extension"));
        }

        let keys = match material {
            Material::Keys(keys) => keys.clone(),
            Material::Password(password, Some(known)) => known.keys(password, iterations, &salt),
            Material::Password(password, None) => ScramKeys::derive(password, iterations, &salt),
        };
        let without_proof = format!("c={},r={nonce}", self.binding);
        let said = format!("{},{message},{without_proof}", self.bare);
        let said = [said.as_bytes()];
        let proof = xor(
            &keys.client_key,
            &sign(hash(&keys.client_key).expose(), &said),
        );
        let expected = sign(keys.server_key.expose(), &said);
        let reply = format!("{without_proof},p={}", STANDARD.encode(proof.expose()));
        Ok((ClientFinal { expected }, reply.into_bytes()))
    }
}

/// A client that waits for the server's signature.
pub struct ClientFinal {
    expected: Key,
}

impl ClientFinal {
    /// Takes the server-final-message. `Ok` means: the server knows our verifier.
    pub fn server_final(self, message: &[u8]) -> Result<(), Error> {
        let message = text(message, MAX_SERVER_MESSAGE)?;
        if message.starts_with("e=") {
            return Err(Error::RefusedByServer);
        }
        let signature = attribute(Some(message), "v=").and_then(parse_key);
        let signature = signature.ok_or(Error::Scram("server signature"))?;
        if signature == self.expected {
            Ok(())
        } else {
            Err(Error::InvalidServerSignature)
        }
    }
}

/// The `c=` of a client's final message: the gs2 header and the data that the proof is bound to. Mostly there are none.
fn encoded_binding(header: &str, data: &[u8]) -> String {
    match (header, data) {
        ("n,,", []) => "biws".to_owned(),
        _ => STANDARD.encode([header.as_bytes(), data].concat()),
    }
}

/// SCRAM messages are text without NUL (RFC 5802 §7); the limit comes before any work.
fn text(message: &[u8], limit: usize) -> Result<&str, Error> {
    if message.len() > limit {
        return Err(Error::Scram("too long"));
    }
    if message.contains(&0) {
        return Err(Error::Scram("NUL byte"));
    }
    str::from_utf8(message).map_err(|_| Error::Scram("not UTF-8"))
}

fn attribute<'a>(attribute: Option<&'a str>, name: &str) -> Option<&'a str> {
    attribute?.strip_prefix(name)
}

/// `attr-val` of RFC 5802 §7; `m` is reserved for extensions that must be understood, and we understand none.
fn is_extension(attribute: &str) -> bool {
    match attribute.as_bytes() {
        [name, b'=', _, ..] => name.is_ascii_alphabetic() && *name != b'm',
        _ => false,
    }
}

/// `printable` of RFC 5802 §7: ASCII without blanks, controls and the comma.
fn is_printable(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b',')
}

/// Digits only: `u32::from_str` alone would take a plus sign.
fn parse_count(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn parse_key(text: &str) -> Option<Key> {
    // 32 bytes are 44 digits: nothing longer is worth decoding.
    let bytes = Zeroizing::new(
        (text.len() == 44)
            .then(|| STANDARD.decode(text).ok())
            .flatten()?,
    );
    bytes.as_slice().try_into().ok().map(Key::new)
}

/// 18 random bytes make 24 characters, as in `PostgreSQL`; base64 has no comma.
fn random_nonce() -> String {
    STANDARD.encode(rand::random::<[u8; 18]>())
}

/// `SASLprep` as `PostgreSQL` does it: a password that cannot be prepared, not being UTF-8 or holding a prohibited
/// character, or that would become empty, counts as it is.
fn prepared(password: &PlainSecret) -> Zeroizing<Vec<u8>> {
    let raw = password.expose();
    let prepared = str::from_utf8(raw)
        .ok()
        .and_then(|text| stringprep::saslprep(text).ok());
    match prepared {
        Some(Cow::Owned(text)) if !text.is_empty() => Zeroizing::new(text.into_bytes()),
        Some(_) | None => Zeroizing::new(raw.to_vec()),
    }
}

#[cfg(test)]
thread_local! {
    static DERIVATIONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How many times this thread has paid PBKDF2.
#[cfg(test)]
pub(in crate::auth) fn derivations() -> u64 {
    DERIVATIONS.get()
}

/// `Hi` of RFC 5802 §2.2: PBKDF2 with one block of output.
fn salted_password(password: &[u8], salt: &[u8], iterations: u32) -> Key {
    #[cfg(test)]
    DERIVATIONS.set(DERIVATIONS.get() + 1);
    // The padded key is hashed once; each round starts from a copy of that state.
    let keyed = hmac(password);
    let mut round = finish(keyed.clone(), &[salt, &[0, 0, 0, 1]]);
    let mut result = round.clone();
    for _ in 1..iterations {
        round = finish(keyed.clone(), &[round.expose()]);
        result = xor(&result, &round);
    }
    result
}

/// HMAC-SHA-256 of the parts one after the other.
pub(in crate::auth) fn sign(key: &[u8], parts: &[&[u8]]) -> Key {
    finish(hmac(key), parts)
}

/// RFC 2104 §2: a long key is hashed, a short one padded with zeros. Done here because `new_from_slice`, which
/// would do it, has an error that never happens.
fn hmac(key: &[u8]) -> Hmac<Sha256> {
    let mut block = Zeroizing::new([0; 64]);
    let digest;
    let key = if key.len() > block.len() {
        digest = Zeroizing::new(<[u8; 32]>::from(Sha256::digest(key)));
        digest.as_slice()
    } else {
        key
    };
    for (place, byte) in block.iter_mut().zip(key) {
        *place = *byte;
    }
    Hmac::new((&*block).into())
}

fn finish(mut mac: Hmac<Sha256>, parts: &[&[u8]]) -> Key {
    for part in parts {
        mac.update(part);
    }
    Key::new(mac.finalize().into_bytes().into())
}

fn hash(key: &Key) -> Key {
    Key::new(Sha256::digest(key.expose()).into())
}

fn xor(left: &Key, right: &Key) -> Key {
    let mut bytes = Zeroizing::new(*left.expose());
    for (byte, other) in bytes.iter_mut().zip(right.expose()) {
        *byte ^= other;
    }
    Key::new(*bytes)
}
