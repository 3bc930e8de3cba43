//! The proof of identity: who a client has to be known to, what it is asked for, and what that teaches us for the
//! server's login.
//!
//! Where passwords are asked for, an unknown user fails as a wrong password does, after a whole exchange.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::{Error, Login, MAX_LOGIN_MESSAGE};
use crate::auth::Secret;
use crate::auth::client_login::{ClientLogin, Failure, Method, Proof, Step, password_sent};
use crate::auth::secret::PlainSecret;
use crate::client::method::{self, Way};
use crate::client::vouch::{Claim, Voucher};
use crate::config::databases::CONSOLE;
use crate::config::{AuthType, Config, Database, SecretText};
use crate::net::tls::TlsStream;
use crate::pool::{Learned, auth_query};
use crate::protocol::authentication::Authentication;
use crate::protocol::frontend::tag;

impl Login<'_> {
    /// `None`: the client is gone.
    pub(super) async fn authenticate(
        &mut self,
        database: Option<&Arc<Database>>,
    ) -> Result<Option<Learned>, Error> {
        if self.config.settings.auth_type == AuthType::Any {
            // Everybody is the forced user; without one there is no name to log in with.
            let forced = database.is_none_or(|database| database.user.is_some());
            return if forced {
                Ok(Some(Learned::default()))
            } else {
                Err(Error::Configuration)
            };
        }
        let user = self.wanted.user.clone();
        let config = self.config.clone();
        let (known, text) = if config.settings.auth_type.asks_others() {
            refuse_auth_user(&config, database.map(Arc::as_ref))?;
            (self.admits(database.map(Arc::as_ref), &user), None)
        } else {
            // The client hashes its password with the name it has sent, whatever `auth_query` makes of that.
            self.secret(database, &user).await?
        };
        let name = database.map_or(CONSOLE, |_| self.wanted.database.as_str());
        let way = method::choose(
            &config,
            (&self.connection.stream, self.peer),
            (name, &self.wanted.user, self.wanted.replication),
        )?;
        let (admitted, refusal) = match way {
            Way::Proof(Method::Trust) => (true, Error::TrustFailed),
            Way::Proof(method) => return self.prove(method, &user, text).await,
            // (What is rare has a room of its own, or every login would be as large as that.)
            Way::Vouched(voucher) => return Box::pin(self.vouch(voucher, database)).await,
            Way::Peer(record) => {
                let stream = &self.connection.stream;
                let asked = method::is_admitted_peer(stream, record, &self.wanted.user);
                let admitted = Box::pin(asked).await;
                (admitted, Error::PeerFailed)
            }
            Way::Certificate(record) => {
                let stream = &self.connection.stream;
                let admitted = method::is_certified(stream, record, &self.wanted.user);
                (admitted, Error::CertificateFailed)
            }
        };
        if known && admitted {
            let secret = text.as_ref().and_then(|text| Secret::parse(text.expose()));
            Ok(Some(learned((text, secret), Proof::default())))
        } else {
            Err(refusal)
        }
    }

    /// Asks the client to prove that it knows the secret, or that of a user who does not exist.
    async fn prove(
        &mut self,
        method: Method,
        user: &str,
        text: Option<SecretText>,
    ) -> Result<Option<Learned>, Error> {
        let iterations = u32::try_from(self.config.settings.scram_iterations).unwrap_or(4096);
        let secret = text.as_ref().and_then(|text| Secret::parse(text.expose()));
        let proved_with = match (method, secret.clone()) {
            (Method::Scram, Some(secret)) => {
                Some(self.context.scram_secret(user, secret, iterations))
            }
            (_, secret) => secret,
        };
        let step = ClientLogin::start(method, user, proved_with, &self.context.mock, iterations);
        let step = step.offering(self.connection.stream.tls().and_then(TlsStream::end_point));
        let proof = self.converse(step).await?;
        Ok(proof.map(|proof| learned((text, secret), proof)))
    }

    /// Asks the client for its password, and somebody else whether that is right. A user who may not use the database is
    /// treated as others are, and then refused as for a wrong password.
    async fn vouch(
        &mut self,
        voucher: Voucher<'_>,
        database: Option<&Arc<Database>>,
    ) -> Result<Option<Learned>, Error> {
        let request = Authentication::CleartextPassword.encode();
        let Some(answer) = self.answer(&request).await? else {
            return Ok(None);
        };
        let password = password_sent(&answer).map_err(log_failure)?;
        let claim = Claim {
            user: &self.wanted.user,
            password: &password,
            peer: self.peer,
        };
        let parts = (&**self.context, &*self.config);
        let admitted = self.admits(database.map(Arc::as_ref), &self.wanted.user);
        voucher.vouches_for(&claim, parts, self.deadline).await?;
        if !admitted {
            return Err(voucher.refusal());
        }
        let secret = Some(Secret::Plain(password));
        Ok(Some(Learned {
            secret,
            scram: None,
            text: None,
            is_vouched_for: true,
        }))
    }

    /// Is the user known, and its secret if it has one. The name that `auth_query` returns is the login name from here on.
    async fn secret(
        &mut self,
        database: Option<&Arc<Database>>,
        user: &str,
    ) -> Result<(bool, Option<SecretText>), Error> {
        if !self.admits(database.map(Arc::as_ref), user) {
            return Ok((false, None));
        }
        let stored = match database {
            Some(database) => self.config.secret(database, user),
            None => self.config.secrets.get(user),
        };
        if let Some(text) = stored.filter(|text| !text.is_empty()) {
            return Ok((true, Some(text.clone())));
        }
        let is_stored = stored.is_some();
        // The console is no database that can be asked; `auth_dbname` may name one that can.
        let asked = match (database, &self.config.settings.auth_dbname) {
            (Some(database), _) => Some(database.clone()),
            (None, Some(name)) => self.config.database(name),
            (None, None) => None,
        };
        let Some(asked) = asked.filter(|asked| self.config.auth_user(asked).is_some()) else {
            return Ok((is_stored, None));
        };
        let manager = &self.context.manager;
        let asked = auth_query::look_up(manager, &self.config, &asked, user, self.worker);
        let found = match Box::pin(asked).await {
            Ok(found) => found.ok_or(Error::NoSuchUser)?,
            Err(error) => match &*error {
                auth_query::Error::Disabled(name) => {
                    return Err(Error::AuthDatabaseDisabled(name.clone()));
                }
                // Why there is no server is told to everybody who waits for one.
                auth_query::Error::Wait(error) => return Err(error.clone().into()),
                _ => {
                    tracing::error!("S: {error}");
                    return Err(Error::Configuration);
                }
            },
        };
        if found.user != user {
            tracing::debug!("auth_query: {user} is {}", found.user);
            if !self.admits(database.map(Arc::as_ref), &found.user) {
                return Err(Error::NoSuchUser);
            }
            self.wanted.user = found.user;
        }
        Ok((true, found.secret))
    }

    fn admits(&self, database: Option<&Database>, user: &str) -> bool {
        database.is_none_or(|database| self.config.admits(database, user))
    }

    async fn converse(&mut self, mut step: Step) -> Result<Option<Proof>, Error> {
        loop {
            match step {
                Step::Done { reply, proof } => {
                    self.connection.queue(&reply);
                    return Ok(Some(proof));
                }
                Step::Continue(login, request) => match self.answer(&request).await? {
                    Some(answer) => step = login.message(&answer).map_err(log_failure)?,
                    None => return Ok(None),
                },
            }
        }
    }

    /// What the client answers to a request for a proof. `None`: it is gone.
    async fn answer(&mut self, request: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        if self.connection.send_all(request).await.is_err() {
            return Ok(None);
        }
        while self.connection.kept.is_empty() {
            if !matches!(self.connection.read_more().await, Ok(1..)) {
                return Ok(None);
            }
        }
        // Only packets that begin a connection have no tag.
        if self.connection.kept.first() == Some(&0) {
            return Err(Error::StartupAgain);
        }
        match self.connection.read_message(MAX_LOGIN_MESSAGE).await {
            Ok(message) if message.tag == tag::PASSWORD => Ok(Some(Zeroizing::new(message.body))),
            // Terminate: psql asks for the password in a second connection and leaves the first. Whatever else it is
            // is not worth a word, as by PgBouncer.
            Ok(_) | Err(_) => Ok(None),
        }
    }
}

/// The answer of `auth_query` would be in vain, and PgBouncer refuses it as well.
fn refuse_auth_user(config: &Config, database: Option<&Database>) -> Result<(), Error> {
    if database.is_some_and(|database| config.auth_user(database).is_some()) {
        let auth_type = config.settings.auth_type;
        tracing::error!("auth_type = {auth_type} can't be used together with auth_user");
        return Err(Error::Configuration);
    }
    Ok(())
}

fn log_failure(failure: Failure) -> Failure {
    if let Some(detail) = std::error::Error::source(&failure) {
        tracing::debug!("{failure}: {detail}");
    }
    failure
}

/// What the login taught us for the server's: the secret that is stored, with its text, or the password that was sent.
fn learned((text, stored): (Option<SecretText>, Option<Secret>), proof: Proof) -> Learned {
    let sent = proof
        .password
        .map(|password: PlainSecret| Secret::Plain(password));
    Learned {
        is_vouched_for: false,
        text: text.filter(|_| sent.is_none()),
        secret: sent.or(stored),
        scram: proof.scram,
    }
}
