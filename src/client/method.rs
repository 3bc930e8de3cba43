//! Which way a client has to log in: what `auth_type` says, or the first line of the HBA file that is for it.
//!
//! Owns the question and the one way that needs no message of the client's: `peer`. The proofs that are asked for are
//! `auth`'s, and the order of things is `handshake`'s.

use super::Error;
use super::vouch::Voucher;
use crate::auth::client_login::Method;
use crate::config::hba::{self, Attempt, Origin, Record};
use crate::config::{AuthType, Config};
use crate::net::Stream;
use crate::protocol::startup::Replication;
use crate::stats::registry::Peer;

/// A way to log in.
#[derive(Debug)]
pub(super) enum Way<'a> {
    /// By what this method asks for.
    Proof(Method),
    /// By being a user of the system that this line lets in.
    Peer(&'a Record),
    /// By a certificate; with a line's map, if it is a line that says so.
    Certificate(Option<&'a Record>),
    /// By a password in clear text, which somebody else checks.
    Vouched(Voucher<'a>),
}

/// The way for a client that is connected by `stream`, comes from there, and asks for this database as this user, to replicate or not.
pub(super) fn choose<'a>(
    config: &'a Config,
    (stream, peer): (&Stream, Peer),
    (database, user, replication): (&str, &str, Replication),
) -> Result<Way<'a>, Error> {
    match config.settings.auth_type {
        // Nobody is looked up for `any`, so the handshake has dealt with it before.
        AuthType::Any | AuthType::Trust => return Ok(Way::Proof(Method::Trust)),
        AuthType::Plain => return Ok(Way::Proof(Method::Plain)),
        AuthType::Md5 => return Ok(Way::Proof(Method::Md5)),
        AuthType::ScramSha256 => return Ok(Way::Proof(Method::Scram)),
        AuthType::Cert => return Ok(Way::Certificate(None)),
        AuthType::Ldap => {
            // There is one: without it the configuration would not have been taken.
            let directory = config.settings.auth_ldap_options.directory();
            let directory = directory.ok_or(Error::Configuration)?;
            return Ok(Way::Vouched(Voucher::Directory(directory)));
        }
        AuthType::Pam => return Ok(Way::Vouched(Voucher::System)),
        AuthType::Hba => {}
    }
    let attempt = origin(stream, peer).map(|origin| Attempt {
        origin,
        database,
        user,
        physical_replication: replication == Replication::Physical,
    });
    let rules = config.rules.as_deref();
    let record = attempt
        .zip(rules)
        .and_then(|(attempt, rules)| rules.decide(&attempt, &hba::interfaces))
        .ok_or(Error::NoMethod)?;
    tracing::debug!(
        "HBA: {} for {database}/{user}: {}",
        record.place,
        record.method
    );
    Ok(match &record.method {
        hba::Method::Trust => Way::Proof(Method::Trust),
        hba::Method::Password => Way::Proof(Method::Plain),
        hba::Method::Md5 => Way::Proof(Method::Md5),
        hba::Method::ScramSha256 => Way::Proof(Method::Scram),
        hba::Method::Peer => Way::Peer(record),
        hba::Method::Cert => Way::Certificate(Some(record)),
        hba::Method::Ldap(directory) => Way::Vouched(Voucher::Directory(directory)),
        hba::Method::Reject => return Err(Error::Rejected),
    })
}

/// Where the client comes from; `None`: nobody knows.
fn origin(stream: &Stream, peer: Peer) -> Option<Origin> {
    match peer {
        Peer::Tcp(address) => Some(Origin::Host {
            address: address.ip(),
            tls: stream.tls().is_some(),
        }),
        // What is no Unix socket must not pass for one.
        Peer::Unix(_) => stream.peer_uid().map(|_| Origin::Local),
    }
}

/// Has the client shown a certificate whose name may log in as `login`?
pub(super) fn is_certified(stream: &Stream, record: Option<&Record>, login: &str) -> bool {
    stream.tls().is_some_and(|tls| {
        tls.peer_has_name(|name| match record {
            Some(record) => record.admits(name, login),
            None => name == login,
        })
    })
}

/// Is the client a user of the system that may log in as `login`?
pub(super) async fn is_admitted_peer(stream: &Stream, record: &Record, login: &str) -> bool {
    let Some(uid) = stream.peer_uid() else {
        return false;
    };
    // The system may have to ask a directory on the network.
    let name = tokio::task::spawn_blocking(move || {
        nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid))
    });
    let Ok(Ok(Some(system))) = name.await else {
        tracing::info!("peer: user id {uid} has no name in the system");
        return false;
    };
    let admitted = record.admits(&system.name, login);
    if !admitted {
        tracing::info!(
            "peer: {}: the system's user {} may not log in as {login}",
            record.place,
            system.name
        );
    }
    admitted
}
