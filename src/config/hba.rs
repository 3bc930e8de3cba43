//! HBA: which way to log in holds for which connection.
//!
//! Owns `auth_hba_file` (PostgreSQL docs: `auth-pg-hba-conf`; PgBouncer: "HBA file format"): its records, and which one
//! is the first to match. Carries nothing out: proofs are `auth`'s, and asking for them is `client`'s.
//!
//! A file that can't be understood is refused as a whole. A record that PostgreSQL would understand and no pooler can
//! (who is a member of a role, GSSAPI) is skipped with a warning, as PgBouncer does, unless its method is `reject`: to skip
//! that would let in whom it keeps out.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use crate::config::error::{Error, Problem};
use crate::config::fields::{self, Files, Line, Name, Pattern};
use crate::config::ident::{Map, Maps};
use crate::config::ldap::Directory;

mod address;
mod record;

pub use address::{Interface, interfaces};

use address::Address;

/// The records of a file, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    records: Vec<Record>,
}

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// File and line, for the log.
    pub place: String,
    /// How the client has to prove who it is.
    pub method: Method,
    /// Whose names may differ from the login name; `None`: nobody's.
    pub map: Option<Arc<Map>>,
    connection: Connection,
    databases: Vec<Database>,
    users: Vec<User>,
    address: Address,
}

/// How a client has to prove who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// Not at all.
    Trust,
    /// In no way.
    Reject,
    /// By an MD5 challenge, or SCRAM where the stored secret is a SCRAM one.
    Md5,
    /// By SCRAM-SHA-256.
    ScramSha256,
    /// By the password in clear text.
    Password,
    /// By being the system's user of that name, on a Unix socket.
    Peer,
    /// By a certificate.
    Cert,
    /// By the password in clear text, which this directory checks.
    Ldap(Arc<Directory>),
}

/// Which kind of connection a record is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connection {
    Local,
    Host,
    HostSsl,
    HostNoSsl,
    /// GSSAPI encryption, which no connection of ours has.
    HostGssEnc,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Database {
    All,
    SameUser,
    Replication,
    Is(String),
    Matches(Pattern),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum User {
    All,
    Is(String),
    Matches(Pattern),
}

/// Where a client comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A Unix socket.
    Local,
    /// TCP.
    Host {
        /// The client's address.
        address: IpAddr,
        /// Is the connection encrypted?
        tls: bool,
    },
}

/// A client that wants in.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// Where from.
    pub origin: Origin,
    /// The database by the name that it asked for.
    pub database: &'a str,
    /// The login name.
    pub user: &'a str,
    /// Does it want physical replication? (For logical replication the database's name counts.)
    pub physical_replication: bool,
}

impl Rules {
    /// The first record that is for this client; `None`: there is none, so it may not log in. `interfaces` tells our
    /// own addresses, for `samehost` and `samenet`.
    pub fn decide(
        &self,
        attempt: &Attempt<'_>,
        interfaces: &dyn Fn() -> Vec<Interface>,
    ) -> Option<&Record> {
        self.records
            .iter()
            .find(|record| record.is_for(attempt, interfaces))
    }

    /// The directories that some record's method asks.
    pub fn directories(&self) -> impl Iterator<Item = &Directory> {
        self.records.iter().filter_map(|record| {
            let Method::Ldap(directory) = &record.method else {
                return None;
            };
            Some(&**directory)
        })
    }

    /// Are there none, so that nobody may log in?
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

impl Record {
    /// May the system's user, or the owner of the certificate, of this name log in as `login`?
    pub fn admits(&self, system: &str, login: &str) -> bool {
        match &self.map {
            Some(map) => map.admits(system, login),
            None => system == login,
        }
    }

    fn is_for(&self, attempt: &Attempt<'_>, interfaces: &dyn Fn() -> Vec<Interface>) -> bool {
        self.connection.is_for(attempt.origin)
            && self.databases.iter().any(|it| it.is_for(attempt))
            && self.users.iter().any(|it| it.is_for(attempt.user))
            && match attempt.origin {
                Origin::Local => true,
                // Last, for it may have to ask the system.
                Origin::Host { address, .. } => self.address.matches(address, interfaces),
            }
    }
}

impl Connection {
    fn is_for(self, origin: Origin) -> bool {
        match (self, origin) {
            (Self::Local, Origin::Local) | (Self::Host, Origin::Host { .. }) => true,
            (Self::HostSsl, Origin::Host { tls, .. }) => tls,
            (Self::HostNoSsl, Origin::Host { tls, .. }) => !tls,
            (Self::Local, Origin::Host { .. })
            | (Self::Host | Self::HostSsl | Self::HostNoSsl, Origin::Local)
            | (Self::HostGssEnc, _) => false,
        }
    }
}

impl Database {
    fn is_for(&self, attempt: &Attempt<'_>) -> bool {
        if attempt.physical_replication {
            return *self == Self::Replication;
        }
        match self {
            Self::All => true,
            Self::SameUser => attempt.database == attempt.user,
            Self::Replication => false,
            Self::Is(name) => name == attempt.database,
            Self::Matches(pattern) => pattern.matches(attempt.database),
        }
    }
}

impl User {
    fn is_for(&self, user: &str) -> bool {
        match self {
            Self::All => true,
            Self::Is(name) => name == user,
            Self::Matches(pattern) => pattern.matches(user),
        }
    }
}

impl Method {
    /// The word a file uses.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Trust => "trust",
            Self::Reject => "reject",
            Self::Md5 => "md5",
            Self::ScramSha256 => "scram-sha-256",
            Self::Password => "password",
            Self::Peer => "peer",
            Self::Cert => "cert",
            Self::Ldap(_) => "ldap",
        }
    }

    /// Those that are complete without options.
    const PLAIN: [Self; 7] = [
        Self::Trust,
        Self::Reject,
        Self::Md5,
        Self::ScramSha256,
        Self::Password,
        Self::Peer,
        Self::Cert,
    ];
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Reads a file; the maps are those that `map=` may name.
pub(crate) fn read(
    path: &Path,
    files: &dyn Files,
    maps: &Maps,
    warnings: &mut Vec<String>,
) -> Result<Rules, Error> {
    let mut records = Vec::new();
    for line in fields::read(path, files)? {
        let parsed =
            record::parse(&line, maps).map_err(|problem| problem.at(line.place.clone()))?;
        warnings.extend(parsed.warning.map(|text| format!("{}{text}", line.place)));
        records.extend(parsed.record);
    }
    if records.is_empty() {
        warnings.push(format!(
            "{}: there are no rules in it, so nobody can log in",
            path.display()
        ));
    }
    Ok(Rules { records })
}

#[cfg(test)]
mod tests;
