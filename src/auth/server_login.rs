//! We prove ourselves to `PostgreSQL`: we play the client's part.
//!
//! Owns which answer each authentication request gets, and that no request is answered out of turn. Does not
//! own the connection, nor where the credentials come from. The caller puts `server login failed: ` before errors.
//!
//! ```text
//!   Start ─┬─ cleartext, md5 ──▶ Answered ───────────────────────────┬─ AuthenticationOk ─▶ Over (Done)
//!          ├─ SASL ──▶ Scram(ClientFirst) ──▶ Scram(ClientFinal) ──▶ Answered
//!          └─ AuthenticationOk ─▶ Over (Done)             anything else, or an error ─▶ Over
//! ```

use crate::auth::keyring::Keyring;
use crate::auth::scram::{self, Binding, ClientFinal, ClientFirst, Material, ScramKeys};
use crate::auth::secret::{Md5Hash, Secret, opaque_debug};
use crate::auth::{Error, md5};
use crate::protocol::authentication::{
    Authentication, Mechanisms, SaslInitialResponse, encode_password, encode_sasl_response,
};
use std::fmt;

#[cfg(test)]
mod tests;

opaque_debug!(ServerLogin);

/// What we may log in with.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The role, as in the `StartupMessage`.
    pub user: String,
    /// The stored secret, or the password a client gave.
    pub secret: Option<Secret>,
    /// Keys from a client's own SCRAM login. A plain secret goes before them: it fits every verifier.
    pub scram: Option<ScramKeys>,
}

/// What to do after an authentication request.
pub enum ServerStep {
    /// Send these bytes (a whole message) and wait. They may hold the password: do not log them.
    Send(Vec<u8>),
    /// Wait for the next request.
    Wait,
    /// `AuthenticationOk`: we are in.
    Done,
}

impl fmt::Debug for ServerStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send(_) => "Send(..)",
            Self::Wait => "Wait",
            Self::Done => "Done",
        })
    }
}

/// A login in progress.
pub struct ServerLogin {
    credentials: Credentials,
    known: Option<Keyring>,
    end_point: Option<Vec<u8>>,
    state: State,
}

enum State {
    Start,
    ScramFirst(ClientFirst),
    ScramFinal(ClientFinal),
    /// We have said all we have to say; only `AuthenticationOk` may follow.
    Answered,
    Over,
}

impl ServerLogin {
    /// A login that has not been asked anything yet.
    pub fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            known: None,
            end_point: None,
            state: State::Start,
        }
    }

    /// On a TLS connection: lets SCRAM bind to it, by the data of `tls-server-end-point`, if the server offers that.
    #[must_use]
    pub fn binding_to(mut self, end_point: Option<Vec<u8>>) -> Self {
        self.end_point = end_point;
        self
    }

    /// Lets the login use the keys of earlier ones, and so skip PBKDF2, if password, salt and count are the same; and
    /// leaves its own there.
    #[must_use]
    pub fn reusing(mut self, known: Keyring) -> Self {
        self.known = Some(known);
        self
    }

    /// Takes the body of an `R` message. After an error the login is over. May cost PBKDF2 (see the room's docs).
    pub fn message(&mut self, body: &[u8]) -> Result<ServerStep, Error> {
        // While a request is handled the state is `Over`, and so it stays if that fails.
        let state = std::mem::replace(&mut self.state, State::Over);
        let (state, step) = match (state, Authentication::parse(body)?) {
            // Not in the midst of SCRAM: a server that cannot sign must not get away with a plain Ok.
            (State::Start | State::Answered, Authentication::Ok) => (State::Over, ServerStep::Done),
            (State::ScramFirst(_) | State::ScramFinal(_), Authentication::Ok) => {
                return Err(Error::InvalidServerSignature);
            }
            (_, Authentication::Unsupported(code)) => return Err(Error::UnsupportedMethod(code)),
            (State::Start, request) => self.begin(request)?,
            (State::ScramFirst(scram), Authentication::SaslContinue(data)) => {
                let (scram, reply) = scram.server_first(data, self.material()?)?;
                (
                    State::ScramFinal(scram),
                    ServerStep::Send(encode_sasl_response(&reply)),
                )
            }
            (State::ScramFinal(scram), Authentication::SaslFinal(data)) => {
                scram.server_final(data)?;
                (State::Answered, ServerStep::Wait)
            }
            _ => return Err(Error::UnexpectedRequest),
        };
        self.state = state;
        Ok(step)
    }

    /// Answers the request that opens the exchange.
    fn begin(&self, request: Authentication<'_>) -> Result<(State, ServerStep), Error> {
        match request {
            Authentication::CleartextPassword => {
                let Some(Secret::Plain(password)) = &self.credentials.secret else {
                    return Err(Error::WrongPasswordType);
                };
                Ok((
                    State::Answered,
                    ServerStep::Send(encode_password(password.expose())),
                ))
            }
            Authentication::Md5Password { salt } => {
                let answer = md5::response(&self.md5_hash()?, salt);
                Ok((State::Answered, ServerStep::Send(encode_password(&answer))))
            }
            Authentication::Sasl(mechanisms) => self.begin_scram(mechanisms),
            _ => Err(Error::UnexpectedRequest),
        }
    }

    fn begin_scram(&self, mechanisms: Mechanisms<'_>) -> Result<(State, ServerStep), Error> {
        let offers = |mechanism: &str| mechanisms.contains(mechanism.as_bytes());
        let (mechanism, binding) = match &self.end_point {
            Some(data) if offers(scram::MECHANISM_PLUS) => {
                (scram::MECHANISM_PLUS, Binding::EndPoint(data))
            }
            Some(_) => (scram::MECHANISM, Binding::NotOffered),
            None => (scram::MECHANISM, Binding::Impossible),
        };
        if !offers(mechanism) {
            return Err(Error::NoCommonMechanism);
        }
        self.material()?;
        let (scram, first) = ClientFirst::start(binding);
        let answer = SaslInitialResponse {
            mechanism: mechanism.as_bytes(),
            data: Some(&first),
        };
        Ok((State::ScramFirst(scram), ServerStep::Send(answer.encode())))
    }

    fn md5_hash(&self) -> Result<Md5Hash, Error> {
        match &self.credentials.secret {
            Some(Secret::Plain(password)) => Ok(Md5Hash::derive(password, &self.credentials.user)),
            Some(Secret::Md5(hash)) => Ok(hash.clone()),
            Some(Secret::Scram(_)) | None => Err(Error::WrongPasswordType),
        }
    }

    fn material(&self) -> Result<Material<'_>, Error> {
        match (&self.credentials.secret, &self.credentials.scram) {
            (Some(Secret::Plain(password)), _) => {
                Ok(Material::Password(password, self.known.as_ref()))
            }
            (_, Some(keys)) => Ok(Material::Keys(keys)),
            (_, None) => Err(Error::WrongPasswordType),
        }
    }
}
