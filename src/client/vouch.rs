//! Passwords that are not ours to know: a directory or the system says whether one is right.
//!
//! Owns who is asked, and what the client is told: that it failed, and nothing of why. How they are asked is `auth`'s.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Context, Error};
use crate::auth::secret::PlainSecret;
use crate::auth::{ldap, pam};
use crate::config::Config;
use crate::config::ldap::Directory;
use crate::pool::{tcp_options, ttl};
use crate::stats::registry::Peer;

/// Who says whether a password is right.
#[derive(Debug, Clone, Copy)]
pub(super) enum Voucher<'a> {
    /// A directory (LDAP).
    Directory(&'a Arc<Directory>),
    /// The system (PAM).
    System,
}

/// A client, and the password that it gave.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    /// The login name.
    pub user: &'a str,
    /// What it gave.
    pub password: &'a PlainSecret,
    /// Where it is.
    pub peer: Peer,
}

impl Voucher<'_> {
    /// What a client is told who has not the right password, or not the right to come in.
    pub(super) fn refusal(self) -> Error {
        match self {
            Self::Directory(_) => Error::LdapFailed,
            Self::System => Error::PamFailed,
        }
    }

    /// Is the password right? Waits for those who know, until `deadline` at the longest.
    pub(super) async fn vouches_for(
        self,
        claim: &Claim<'_>,
        (context, config): (&Context, &Config),
        deadline: Instant,
    ) -> Result<(), Error> {
        match self {
            Self::Directory(directory) => {
                let parts = context.manager.parts();
                let tls = parts.tls.load();
                let reach = ldap::Reach {
                    names: &parts.names,
                    ttl: ttl(config),
                    tcp: tcp_options(config),
                    tls: &tls.directories,
                };
                let question = ldap::Question {
                    directory,
                    user: claim.user,
                    password: claim.password,
                };
                let checked = ldap::check(question, &reach, deadline).await;
                checked.map_err(|error| {
                    tracing::info!(user = claim.user, "LDAP: {error}");
                    self.refusal()
                })
            }
            Self::System => {
                let question = pam::Question {
                    user: claim.user.to_owned(),
                    password: claim.password.clone(),
                    address: match claim.peer {
                        Peer::Tcp(address) => Some(address),
                        Peer::Unix(_) => None,
                    },
                };
                context.pam.check(question).await.map_err(|error| {
                    tracing::info!(user = claim.user, "PAM: {error}");
                    self.refusal()
                })
            }
        }
    }
}
