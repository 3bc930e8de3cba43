//! What differs between two configurations, and what that asks of present pools and sockets.
//!
//! Owns the judgement only. A pool whose database is not named by a change keeps every server.

use std::fmt;

use crate::config::settings::TABLE;
use crate::config::{Config, Database, Reload, Settings, Support};

/// One difference between the running configuration and a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A setting has another value.
    Setting {
        /// Its name.
        name: &'static str,
        /// When the new value takes effect.
        reload: Reload,
    },
    /// A database was added, taken away or changed.
    Database {
        /// Its name; `*` for the fallback, which concerns every database made from it.
        name: String,
        /// What has to happen.
        effect: DatabaseEffect,
    },
    /// The `[users]` entry of this user was added, taken away or changed: limits and sizes to look up again.
    User {
        /// The user's name.
        name: String,
    },
    /// Stored secrets changed: they hold for the next login.
    Secrets,
    /// The rules of `auth_hba_file`, or the maps they name, changed: they hold for the next login.
    Rules,
}

/// What a changed database asks of its pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseEffect {
    /// It is new: nothing has to happen.
    Added,
    /// It is gone: its clients get `database removed` and its pools go away.
    Removed,
    /// Its servers are connected to the wrong place or in the wrong way, and must be replaced when free.
    ServersMustReconnect,
    /// Sizes, limits, times or secrets are to be looked up again; servers stay.
    SizesChanged,
}

impl Change {
    /// Does the new value have to wait for a restart?
    pub fn needs_restart(&self) -> bool {
        match self {
            Self::Setting { reload, .. } => *reload == Reload::Restart,
            Self::Database { .. } | Self::User { .. } | Self::Secrets | Self::Rules => false,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting {
                name,
                reload: Reload::Live,
            } => write!(f, "{name}"),
            Self::Setting {
                name,
                reload: Reload::NewConnections,
            } => write!(f, "{name} (for new connections)"),
            Self::Setting {
                name,
                reload: Reload::Restart,
            } => write!(f, "{name} (needs a restart)"),
            Self::Database { name, effect } => {
                let effect = match effect {
                    DatabaseEffect::Added => "added",
                    DatabaseEffect::Removed => "removed",
                    DatabaseEffect::ServersMustReconnect => "servers reconnect",
                    DatabaseEffect::SizesChanged => "sizes or limits",
                };
                write!(f, "database {name} ({effect})")
            }
            Self::User { name } => write!(f, "user {name}"),
            Self::Secrets => write!(f, "secrets"),
            Self::Rules => write!(f, "HBA rules"),
        }
    }
}

/// Everything that differs, in the order of the settings table, then databases and users by name.
pub fn diff(old: &Config, new: &Config) -> Vec<Change> {
    let mut changes: Vec<Change> = settings(&old.settings, &new.settings).collect();
    databases(old, new, &mut changes);
    let mut users: Vec<&String> = old
        .users
        .keys()
        .chain(
            new.users
                .keys()
                .filter(|name| !old.users.contains_key(*name)),
        )
        .collect();
    users.retain(|name| old.users.get(*name) != new.users.get(*name));
    users.sort();
    changes.extend(
        users
            .into_iter()
            .map(|name| Change::User { name: name.clone() }),
    );
    if old.secrets != new.secrets {
        changes.push(Change::Secrets);
    }
    if old.rules != new.rules {
        changes.push(Change::Rules);
    }
    changes
}

/// The settings whose new value has to wait for a restart.
pub(crate) fn restart_changes(old: &Settings, new: &Settings) -> Vec<Change> {
    settings(old, new)
        .filter(|change| {
            matches!(
                change,
                Change::Setting {
                    reload: Reload::Restart,
                    ..
                }
            )
        })
        .collect()
}

fn settings(old: &Settings, new: &Settings) -> impl Iterator<Item = Change> {
    TABLE
        .iter()
        .filter(|row| row.support == Support::Full && old.differs(row.name, new))
        .map(|row| Change::Setting {
            name: row.name,
            reload: row.reload,
        })
}

fn databases(old: &Config, new: &Config, changes: &mut Vec<Change>) {
    let entries = |config: &Config| {
        let fallback = config
            .fallback
            .iter()
            .map(|it| ("*".to_owned(), it.clone()));
        let named = config
            .databases
            .iter()
            .map(|(name, it)| (name.clone(), it.clone()));
        fallback
            .chain(named)
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let (old, mut new) = (entries(old), entries(new));
    for (name, before) in old {
        let effect = match new.remove(&name) {
            None => DatabaseEffect::Removed,
            Some(after) if before == after => continue,
            Some(after) if must_reconnect(&before, &after) => DatabaseEffect::ServersMustReconnect,
            Some(_) => DatabaseEffect::SizesChanged,
        };
        changes.push(Change::Database { name, effect });
    }
    let added = new.into_keys().map(|name| Change::Database {
        name,
        effect: DatabaseEffect::Added,
    });
    changes.extend(added);
}

/// Whether servers made for the old entry would differ from those made for the new one.
///
/// PgBouncer's list, and the startup parameters, which it forgets. Not the password: present servers have
/// logged in already, and after a rotation they are as good as new ones.
fn must_reconnect(old: &Database, new: &Database) -> bool {
    let key = |it: &Database| {
        let place = (
            it.server_dbname().to_owned(),
            it.hosts().cloned().collect::<Vec<_>>(),
            it.load_balance_hosts,
            it.port,
            it.user.clone(),
        );
        let auth = (it.auth_query.clone(), it.auth_dbname.clone());
        let session = [
            &it.connect_query,
            &it.client_encoding,
            &it.datestyle,
            &it.timezone,
            &it.application_name,
        ]
        .map(Clone::clone);
        let mut names: Vec<(String, Option<String>)> = it
            .users
            .iter()
            .map(|(name, user)| (name.clone(), user.server_username.clone()))
            .collect();
        names.retain(|(_, renamed)| renamed.is_some());
        names.sort();
        (place, auth, session, names)
    };
    key(old) != key(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Host, PoolMode, SecretText, UserSettings};
    use std::sync::Arc;

    fn config(edit: impl FnOnce(&mut Database)) -> Config {
        let mut database = Database::new("app", Host::Tcp("db".into()));
        edit(&mut database);
        let mut config = Config::default();
        config.databases.insert("app".into(), Arc::new(database));
        config
    }

    fn effect(edit: impl FnOnce(&mut Database)) -> Option<DatabaseEffect> {
        let changes = diff(&config(|_| ()), &config(edit));
        assert!(changes.len() <= 1, "{changes:?}");
        changes.into_iter().next().map(|change| match change {
            Change::Database { name, effect } if name == "app" => effect,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn equal_configurations_have_no_changes() {
        assert_eq!(effect(|_| ()), None);
    }

    #[test]
    fn another_place_or_session_makes_servers_reconnect() {
        use DatabaseEffect::ServersMustReconnect as Reconnect;
        assert_eq!(
            effect(|it| it.host = Host::Tcp("other".into())),
            Some(Reconnect)
        );
        assert_eq!(effect(|it| it.port = 1), Some(Reconnect));
        assert_eq!(effect(|it| it.dbname = Some("x".into())), Some(Reconnect));
        assert_eq!(effect(|it| it.user = Some("x".into())), Some(Reconnect));
        assert_eq!(
            effect(|it| it.connect_query = Some("SELECT 1".into())),
            Some(Reconnect)
        );
        assert_eq!(
            effect(|it| it.auth_query = Some("SELECT 1".into())),
            Some(Reconnect)
        );
        assert_eq!(
            effect(|it| it.timezone = Some("UTC".into())),
            Some(Reconnect)
        );
    }

    #[test]
    fn sizes_limits_and_a_new_password_keep_the_servers() {
        use DatabaseEffect::SizesChanged;
        assert_eq!(effect(|it| it.pool_size = Some(1)), Some(SizesChanged));
        assert_eq!(
            effect(|it| it.pool_mode = Some(PoolMode::Statement)),
            Some(SizesChanged)
        );
        assert_eq!(
            effect(|it| it.password = Some(SecretText::new("x"))),
            Some(SizesChanged)
        );
        assert_eq!(
            effect(|it| it.dbname = Some("app".into())),
            Some(SizesChanged)
        );
    }

    #[test]
    fn settings_databases_and_users_are_listed_with_their_effect() {
        let old = config(|_| ());
        let mut new = Config::default();
        new.settings.assign("query_timeout", "5").unwrap();
        new.settings.assign("tcp_keepalive", "0").unwrap();
        new.settings.assign("listen_port", "7000").unwrap();
        new.settings.assign("resolv_conf", "/x").unwrap();
        new.fallback = Some(Arc::new(Database::new("*", Host::Tcp("db".into()))));
        new.users.insert("u".into(), UserSettings::default());
        new.secrets.insert("u".into(), SecretText::new("x"));
        let listed: Vec<String> = diff(&old, &new).iter().map(ToString::to_string).collect();
        assert_eq!(
            listed,
            [
                "listen_port (needs a restart)",
                "tcp_keepalive (for new connections)",
                "query_timeout",
                "database app (removed)",
                "database * (added)",
                "user u",
                "secrets",
            ]
        );
    }
}
