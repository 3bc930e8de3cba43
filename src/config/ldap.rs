//! Which directory checks passwords, and how it is asked: the options of the method `ldap`.
//!
//! Owns the words of `auth_ldap_options` and of an HBA line (PostgreSQL docs: `auth-ldap`), and which of them go
//! together. Asks nobody: that is `auth`'s.

use std::fmt;
use std::sync::Arc;

use crate::config::error::Problem;
use crate::config::fields;
use crate::config::kind::{Fault, Value};
use crate::config::users::SecretText;
use crate::protocol::ldap::{Filter, Scope};

mod url;

#[cfg(test)]
mod tests;

/// A directory, and the way to a user's entry in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Its servers; the first that can be reached is asked.
    pub servers: Vec<Server>,
    /// How the connection is protected.
    pub encryption: Encryption,
    /// Whose entry is bound to with the user's password.
    pub entry: Entry,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

/// How a connection is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    /// Not at all.
    None,
    /// By StartTLS, before anything else (`ldaptls=1`).
    StartTls,
    /// From the first byte (`ldapscheme=ldaps`).
    Ldaps,
}

/// Whose entry is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// The one of this name, with the user's between its parts (`ldapprefix`, `ldapsuffix`).
    Named {
        /// What comes before the user's name.
        prefix: String,
        /// What comes behind.
        suffix: String,
    },
    /// The only one that a search finds.
    Found {
        /// Where the search begins.
        base: String,
        /// How far it goes.
        scope: Scope,
        /// What it looks for.
        filter: Filter,
        /// Who searches; `None`: nobody in particular.
        account: Option<Account>,
    },
}

/// The account that searches (`ldapbinddn`, `ldapbindpasswd`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its distinguished name.
    pub name: String,
    /// Its password.
    pub password: SecretText,
}

/// What was written, word by word.
#[derive(Debug, Default)]
struct Words {
    servers: Option<String>,
    port: Option<u16>,
    scheme: Option<Scheme>,
    tls: bool,
    prefix: Option<String>,
    suffix: Option<String>,
    base: Option<String>,
    account: Option<String>,
    password: Option<SecretText>,
    attribute: Option<String>,
    filter: Option<String>,
    scope: Option<Scope>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Ldap,
    Ldaps,
}

impl Scheme {
    fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "ldap" => Ok(Self::Ldap),
            "ldaps" => Ok(Self::Ldaps),
            _ => Err("expected ldap or ldaps".to_owned()),
        }
    }
}

/// The options, for those who wrote an unknown one.
const KNOWN: &str = "ldapserver, ldapport, ldapscheme, ldaptls, ldapprefix, ldapsuffix, ldapbasedn, ldapbinddn, \
                     ldapbindpasswd, ldapsearchattribute, ldapsearchfilter, ldapurl";

impl Directory {
    /// Reads options, each `key=value` without its quotes. The words of an error never hold a value that may be a
    /// secret, nor a part of it.
    pub fn parse<'a>(options: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut words = Words::default();
        for option in options {
            // A word without a name of its own may be what follows a blank in a password that is not quoted.
            let is_name = |key: &str| {
                key.starts_with("ldap") && key.bytes().all(|byte| byte.is_ascii_alphanumeric())
            };
            let Some((key, value)) = option.split_once('=').filter(|(key, _)| is_name(key)) else {
                return Err(format!(
                    "a word that is none of {KNOWN} (a value with a blank or a comma has to stand in double quotes)"
                ));
            };
            words
                .read(key, value)
                .map_err(|why| format!("{key}: {why}"))?;
        }
        words.directory()
    }
}

impl Words {
    fn read(&mut self, key: &str, value: &str) -> Result<(), String> {
        let text = || Some(value.to_owned());
        match key {
            "ldapserver" => self.servers = text(),
            "ldapport" => self.port = Some(port(value)?),
            "ldapscheme" => self.scheme = Some(Scheme::parse(value)?),
            "ldaptls" => {
                self.tls = match value {
                    "1" => true,
                    "0" => false,
                    _ => return Err("expected 0 or 1".to_owned()),
                }
            }
            "ldapprefix" => self.prefix = text(),
            "ldapsuffix" => self.suffix = text(),
            "ldapbasedn" => self.base = text(),
            "ldapbinddn" => self.account = text(),
            "ldapbindpasswd" => self.password = Some(SecretText::new(value)),
            "ldapsearchattribute" => self.attribute = text(),
            "ldapsearchfilter" => self.filter = text(),
            "ldapurl" => url::read(value, self)?,
            _ => return Err(format!("no such option; there are {KNOWN}")),
        }
        Ok(())
    }

    fn directory(self) -> Result<Directory, String> {
        let encryption = match (self.scheme.unwrap_or(Scheme::Ldap), self.tls) {
            (Scheme::Ldap, false) => Encryption::None,
            (Scheme::Ldap, true) => Encryption::StartTls,
            (Scheme::Ldaps, false) => Encryption::Ldaps,
            (Scheme::Ldaps, true) => {
                return Err(
                    "ldaptls=1 is for ldapscheme=ldap: with ldaps, TLS is there from the start"
                        .to_owned(),
                );
            }
        };
        let port = self.port.unwrap_or(match encryption {
            Encryption::None | Encryption::StartTls => 389,
            Encryption::Ldaps => 636,
        });
        let servers: Vec<Server> = self
            .servers
            .iter()
            .flat_map(|list| list.split([' ', ',']))
            .filter(|host| !host.is_empty())
            .map(|host| Server {
                host: host.trim_matches(['[', ']']).to_owned(),
                port,
            })
            .collect();
        if servers.is_empty() {
            return Err("ldapserver is missing".to_owned());
        }
        Ok(Directory {
            servers,
            encryption,
            entry: self.entry()?,
        })
    }

    fn entry(self) -> Result<Entry, String> {
        let searches = [
            ("ldapbasedn", self.base.is_some()),
            ("ldapbinddn", self.account.is_some()),
            ("ldapbindpasswd", self.password.is_some()),
            ("ldapsearchattribute", self.attribute.is_some()),
            ("ldapsearchfilter", self.filter.is_some()),
        ];
        if self.prefix.is_some() || self.suffix.is_some() {
            // PostgreSQL's rule, and PgBouncer's.
            if let Some((key, _)) = searches.iter().find(|(_, given)| *given) {
                return Err(format!(
                    "{key} is for a search, and can't be used together with ldapprefix or ldapsuffix, \
                     which make the name without one"
                ));
            }
            return Ok(Entry::Named {
                prefix: self.prefix.unwrap_or_default(),
                suffix: self.suffix.unwrap_or_default(),
            });
        }
        let Some(base) = self.base else {
            return Err(
                "ldapprefix or ldapsuffix is needed, or ldapbasedn for a search".to_owned(),
            );
        };
        let account = match (self.account, self.password) {
            (None, None) => None,
            (Some(name), Some(password)) if !name.is_empty() && !password.is_empty() => {
                Some(Account { name, password })
            }
            // A bind without a password succeeds and proves nothing; whoever wants that leaves both away.
            _ => return Err("ldapbinddn and ldapbindpasswd need each other".to_owned()),
        };
        let (key, filter) = match (self.attribute, self.filter) {
            (Some(_), Some(_)) => {
                return Err(
                    "ldapsearchattribute and ldapsearchfilter can't be used together".to_owned(),
                );
            }
            (Some(attribute), None) => ("ldapsearchattribute", Filter::is_user(&attribute)),
            (None, Some(filter)) => ("ldapsearchfilter", Filter::parse(&filter)),
            (None, None) => ("ldapsearchattribute", Filter::is_user("uid")),
        };
        let filter = filter.map_err(|why| format!("{key}: {why}"))?;
        if !filter.names_user() {
            return Err(format!(
                "{key}: $username is not in it, so it would find the same entry for every user"
            ));
        }
        Ok(Entry::Found {
            base,
            scope: self.scope.unwrap_or(Scope::Subtree),
            filter,
            account,
        })
    }
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err("expected a port, 1 to 65535".to_owned()),
    }
}

/// The value of `auth_ldap_options`. What it shows of itself has no password in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    directory: Option<Arc<Directory>>,
    shown: String,
}

impl Options {
    /// The directory; `None`: the setting is empty.
    pub fn directory(&self) -> Option<&Arc<Directory>> {
        self.directory.as_ref()
    }
}

impl Value for Options {
    fn parse(text: &str) -> Result<Self, Fault> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let words = fields::words(text).map_err(|problem| Fault::Hidden(problem.to_string()))?;
        let directory =
            Directory::parse(words.iter().map(|(_, word)| word.as_str())).map_err(Fault::Hidden)?;
        let shown: Vec<&str> = words
            .iter()
            .map(|(written, word)| {
                if word.starts_with("ldapbindpasswd=") {
                    "ldapbindpasswd=(..)"
                } else {
                    *written
                }
            })
            .collect();
        Ok(Self {
            directory: Some(Arc::new(directory)),
            shown: shown.join(" "),
        })
    }

    fn print(&self) -> String {
        self.shown.clone()
    }

    fn is_set(&self) -> bool {
        self.directory.is_some()
    }
}

/// Reads the options of an HBA line.
pub(crate) fn of_line<'a>(
    options: impl IntoIterator<Item = &'a str>,
) -> Result<Arc<Directory>, Problem> {
    let directory = Directory::parse(options);
    directory
        .map(Arc::new)
        .map_err(|why| Problem::Rule(format!("method ldap: {why}")))
}
