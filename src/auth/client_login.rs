//! A client proves itself to us: we play `PostgreSQL`'s part.
//!
//! Owns the order of the messages of each method, and that an unknown user sees and costs what a wrong password
//! does. Does not own which method applies, nor `AuthenticationOk` and the `ErrorResponse`, which the caller sends.
//!
//! ```text
//!              ┌── Trust ─────────────────────────────▶ Done
//!   start ─────┼── Plain, Md5: request ── message ────▶ Done
//!              └── Scram: request ── message ┬─ again ─▶ Done      (a message may also end in Failure)
//!                                            └── (an empty initial response costs one more round)
//! ```

use crate::auth::scram::{AwaitFinal, AwaitFirst, ScramKeys};
use crate::auth::secret::{Md5Hash, PlainSecret, Secret, opaque_debug};
use crate::auth::{Error, MockKey, md5};
use crate::protocol::authentication::{
    self, Authentication, Mechanisms, SaslInitialResponse, parse_sasl_response,
};
use subtle::{Choice, ConstantTimeEq};

#[cfg(test)]
mod tests;

opaque_debug!(ClientLogin);

/// How a client must prove itself (`PgBouncer`: `auth_type`, or the method of an HBA line).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Not at all.
    Trust,
    /// By its password in clear text.
    Plain,
    /// By a salted md5 hash; by SCRAM if that is what the stored secret is good for.
    Md5,
    /// By SCRAM-SHA-256.
    Scram,
}

/// Why a client is not let in: the texts are `PgBouncer`'s, for the `ErrorResponse`. The sources are for our log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Wrong password or hash, or no such user.
    #[error("password authentication failed")]
    Password,
    /// The message is no `PasswordMessage`. `PgBouncer` would close without a word.
    #[error("password authentication failed")]
    Malformed(#[source] authentication::Error),
    /// An empty password: drivers send it when they have none.
    #[error("empty password returned by client")]
    EmptyPassword,
    /// A mechanism that was not offered.
    #[error("client selected an invalid SASL authentication mechanism")]
    InvalidMechanism,
    /// A wrong proof, no such user, or a message that is not SCRAM.
    #[error("SASL authentication failed")]
    Sasl(#[source] Error),
}

/// What a login leaves for logging in to the server in the client's name.
#[derive(Debug, Default)]
pub struct Proof {
    /// The password, after [`Method::Plain`].
    pub password: Option<PlainSecret>,
    /// The keys of the stored verifier, after SCRAM with a `Secret::Scram`. They fit a server that has the very
    /// same verifier; if the caller made the verifier from a plain secret, that secret is the better credential.
    pub scram: Option<ScramKeys>,
}

/// Where a login stands.
#[derive(Debug)]
pub enum Step {
    /// Send these bytes (a whole message), then feed the client's next `p` message to the login.
    Continue(ClientLogin, Vec<u8>),
    /// The client is who it says.
    Done {
        /// A whole message to send before `AuthenticationOk`, or nothing.
        reply: Vec<u8>,
        /// For the server's side.
        proof: Proof,
    },
}

impl Step {
    /// Offers SCRAM with channel binding as well, on a TLS connection that has something to bind to. Changes nothing
    /// with other methods. To be called on what [`ClientLogin::start`] gives.
    #[must_use]
    pub fn offering(self, end_point: Option<Vec<u8>>) -> Self {
        match self {
            Self::Continue(
                ClientLogin {
                    state: State::ScramInitial { scram, passes_keys },
                },
                _,
            ) if end_point.is_some() => {
                let scram = scram.offering(end_point);
                let state = State::ScramInitial { scram, passes_keys };
                let request = Authentication::Sasl(Mechanisms::SCRAM_SHA_256_PLUS);
                Self::Continue(ClientLogin { state }, request.encode())
            }
            other => other,
        }
    }
}

/// A login in progress.
pub struct ClientLogin {
    state: State,
}

enum State {
    Plain {
        user: String,
        secret: Option<Secret>,
    },
    Md5 {
        hash: Md5Hash,
        genuine: bool,
        salt: [u8; 4],
    },
    ScramInitial {
        scram: AwaitFirst,
        passes_keys: bool,
    },
    /// The mechanism is chosen, the client's first message not yet there.
    ScramFirst {
        scram: AwaitFirst,
        passes_keys: bool,
    },
    ScramFinal {
        scram: AwaitFinal,
        passes_keys: bool,
    },
}

impl ClientLogin {
    /// Asks for the proof. `secret` is `None` for a user who is unknown or has no password: the exchange then
    /// runs to its end all the same, and fails there. With [`Method::Trust`] it is `Done` at once: whether the
    /// user exists is for the caller to say.
    ///
    /// `scram_iterations` (`PgBouncer`: `scram_iterations`) is for verifiers made here, mocks and plain secrets.
    /// The latter cost PBKDF2: see [`MockKey::derive_verifier`].
    pub fn start(
        method: Method,
        user: &str,
        secret: Option<Secret>,
        mock: &MockKey,
        scram_iterations: u32,
    ) -> Step {
        let state = match (method, secret) {
            (Method::Trust, _) => {
                return Step::Done {
                    reply: Vec::new(),
                    proof: Proof::default(),
                };
            }
            (Method::Plain, secret) => State::Plain {
                user: user.to_owned(),
                secret,
            },
            (Method::Md5 | Method::Scram, Some(Secret::Scram(verifier))) => State::ScramInitial {
                scram: AwaitFirst::new(verifier),
                passes_keys: true,
            },
            (Method::Md5, Some(Secret::Md5(hash))) => State::md5(hash, true),
            (Method::Md5, Some(Secret::Plain(password))) => {
                State::md5(Md5Hash::derive(&password, user), true)
            }
            (Method::Md5, None) => State::md5(mock.md5_hash(user), false),
            (Method::Scram, Some(Secret::Plain(password))) => {
                let verifier = mock.derive_verifier(user, &password, scram_iterations);
                State::ScramInitial {
                    scram: AwaitFirst::new(verifier),
                    passes_keys: false,
                }
            }
            // An md5 hash cannot verify a SCRAM proof, and the client must not learn that this is the reason.
            (Method::Scram, Some(Secret::Md5(_)) | None) => {
                let scram = AwaitFirst::mock(mock.verifier(user, scram_iterations));
                State::ScramInitial {
                    scram,
                    passes_keys: false,
                }
            }
        };
        let request = match &state {
            State::Plain { .. } => Authentication::CleartextPassword,
            State::Md5 { salt, .. } => Authentication::Md5Password { salt: *salt },
            State::ScramInitial { .. } | State::ScramFirst { .. } | State::ScramFinal { .. } => {
                Authentication::Sasl(Mechanisms::SCRAM_SHA_256)
            }
        };
        let request = request.encode();
        Step::Continue(Self { state }, request)
    }

    /// Takes the body of a `p` message. [`Method::Plain`] with a SCRAM secret costs PBKDF2 here.
    pub fn message(self, body: &[u8]) -> Result<Step, Failure> {
        match self.state {
            State::Plain { user, secret } => plain(&user, secret.as_ref(), body),
            State::Md5 {
                hash,
                genuine,
                salt,
            } => {
                let answer = password(body)?;
                let matches = md5::response(&hash, salt).as_slice().ct_eq(answer);
                admit(matches & choice(genuine), Proof::default())
            }
            State::ScramInitial { scram, passes_keys } => scram_initial(scram, passes_keys, body),
            State::ScramFirst { scram, passes_keys } => {
                scram_first(scram, passes_keys, parse_sasl_response(body))
            }
            State::ScramFinal { scram, passes_keys } => {
                let (keys, reply) = scram
                    .client_final(parse_sasl_response(body))
                    .map_err(Failure::Sasl)?;
                let reply = Authentication::SaslFinal(&reply).encode();
                let proof = Proof {
                    password: None,
                    scram: passes_keys.then_some(keys),
                };
                Ok(Step::Done { reply, proof })
            }
        }
    }
}

impl State {
    fn md5(hash: Md5Hash, genuine: bool) -> Self {
        Self::Md5 {
            hash,
            genuine,
            salt: rand::random(),
        }
    }
}

fn choice(condition: bool) -> Choice {
    Choice::from(u8::from(condition))
}

fn admit(matches: Choice, proof: Proof) -> Result<Step, Failure> {
    if matches.into() {
        Ok(Step::Done {
            reply: Vec::new(),
            proof,
        })
    } else {
        Err(Failure::Password)
    }
}

/// The password of a `PasswordMessage`, for somebody else to check. An empty one is refused: to a directory it would
/// mean that nothing has to be proved.
pub fn password_sent(body: &[u8]) -> Result<PlainSecret, Failure> {
    password(body).map(PlainSecret::new)
}

fn password(body: &[u8]) -> Result<&[u8], Failure> {
    let password = authentication::parse_password(body).map_err(Failure::Malformed)?;
    if password.is_empty() {
        return Err(Failure::EmptyPassword);
    }
    Ok(password)
}

fn plain(user: &str, secret: Option<&Secret>, body: &[u8]) -> Result<Step, Failure> {
    let password = PlainSecret::new(password(body)?);
    let matches = match secret {
        Some(Secret::Plain(secret)) => secret.ct_eq(&password),
        Some(Secret::Md5(hash)) => hash.ct_eq(&Md5Hash::derive(&password, user)),
        Some(Secret::Scram(verifier)) => choice(verifier.matches(&password)),
        // The cost of a comparison, not of PBKDF2: which kind the user would have is unknown anyway.
        None => password.ct_eq(&PlainSecret::new(user)) & choice(false),
    };
    admit(
        matches,
        Proof {
            password: Some(password),
            scram: None,
        },
    )
}

fn scram_initial(mut scram: AwaitFirst, passes_keys: bool, body: &[u8]) -> Result<Step, Failure> {
    let initial = SaslInitialResponse::parse(body).map_err(|error| Failure::Sasl(error.into()))?;
    if !scram.choose(initial.mechanism) {
        return Err(Failure::InvalidMechanism);
    }
    let Some(data) = initial.data else {
        // PostgreSQL answers with an empty challenge, too (RFC 4422 §3.3).
        let login = ClientLogin {
            state: State::ScramFirst { scram, passes_keys },
        };
        return Ok(Step::Continue(
            login,
            Authentication::SaslContinue(b"").encode(),
        ));
    };
    scram_first(scram, passes_keys, data)
}

fn scram_first(scram: AwaitFirst, passes_keys: bool, data: &[u8]) -> Result<Step, Failure> {
    let (scram, reply) = scram.client_first(data).map_err(Failure::Sasl)?;
    let login = ClientLogin {
        state: State::ScramFinal { scram, passes_keys },
    };
    Ok(Step::Continue(
        login,
        Authentication::SaslContinue(&reply).encode(),
    ))
}
