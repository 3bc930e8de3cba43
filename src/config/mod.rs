//! The configuration: one immutable, validated snapshot, and the handle through which it is replaced.
//!
//! Owns both file dialects and the environment, the table of settings, and the question which of a
//! user's, a database's and the global value holds. Owns no connection and no clock: what a change means for
//! pools and sockets is [`diff`]'s answer and `daemon`'s work.
//!
//! ```text
//!   pgbouncer.ini ── ini ──┐
//!   pgferry.toml ─── toml ─┼─> Draft ── finish ──> Config ──> ConfigHandle ──> everybody
//!   environment ──── env ──┘   (all parsed before anything is applied)
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;

pub mod databases;
pub mod diff;
mod env;
mod error;
mod fields;
pub mod hba;
pub mod ident;
mod ini;
pub mod kind;
pub mod ldap;
pub mod otlp;
pub mod peers;
mod resolve;
pub mod settings;
pub mod text;
mod toml;
pub mod users;

pub use databases::{Database, Host, PoolUser};
pub use diff::{Change, DatabaseEffect};
pub use env::{Target, parse_url};
pub use error::{Error, Place, Problem};
pub use kind::{
    AuthType, ByteSize, Facility, FollowSequences, Fraction, LoadBalance, LogText, Millis,
    MillisOrNever, Mode, PeerId, PinPolicy, PoolMode, ShutdownMode, SslMode, TraceSource,
    UnnamedTexts,
};
pub use peers::Peer;
pub use settings::{Applied, Reload, Setting, Settings, Support};
pub use users::{ByUser, SecretText, UserSettings};

/// The longest a file of ours can sensibly be; a larger one is a mistake (a device, a log file).
const MAX_FILE: u64 = 64 << 20;

/// Everything that was configured, checked and complete.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The global settings.
    pub settings: Settings,
    /// The databases by the name clients ask for, without `*`.
    pub databases: BTreeMap<String, Arc<Database>>,
    /// The `*` entry, which stands for every other name.
    pub fallback: Option<Arc<Database>>,
    /// The processes that cancel requests are passed on to, by their `peer_id`.
    pub peers: BTreeMap<u16, Peer>,
    /// What `[users]` says, by user name.
    pub users: ByUser<UserSettings>,
    /// Secrets by user name: the `auth_file`, and what the environment or a TOML file adds.
    pub secrets: ByUser<SecretText>,
    /// Those of them that no `auth_file` has said. They go before the file's.
    pub own_secrets: ByUser<SecretText>,
    /// What `auth_hba_file` says; `None` unless `auth_type` is `hba`.
    pub rules: Option<Arc<hba::Rules>>,
    /// What the administrator should know, each with its place.
    pub warnings: Vec<String>,
    /// The file it was read from; `None`: the environment, or a test.
    pub path: Option<PathBuf>,
}

impl Config {
    /// Reads a file: TOML if its name ends in `.toml`, else PgBouncer's ini.
    ///
    /// An error names the file, line and key. Relative names are relative to the working directory.
    pub fn load(path: &Path) -> Result<Self, Error> {
        Draft::read(path)?.finish(Some(path))
    }

    /// Reads the same file again, for a reload of `self`.
    ///
    /// Settings that only a restart can change keep their running values; the changes name them. A snapshot
    /// from the environment keeps its settings, since a process's environment does not change; the files that they name
    /// are read again.
    pub fn reload(&self) -> Result<(Self, Vec<Change>), Error> {
        // SET may have named another file; without any it is the environment.
        let named = self.settings.conffile.as_ref();
        let Some(path) = self.path.as_ref().map(|path| named.unwrap_or(path)) else {
            let mut new = self.clone();
            new.warnings.clear();
            new.read_secrets()?;
            new.read_rules()?;
            let changes = diff::diff(self, &new);
            return Ok((new, changes));
        };
        let mut draft = Draft::read(path)?;
        let mut changes = diff::restart_changes(&self.settings, &draft.settings);
        draft.settings.keep_restart_settings(&self.settings);
        let new = draft.finish(Some(path))?;
        changes.extend(diff::diff(self, &new));
        Ok((new, changes))
    }

    /// Reads `auth_file`, if there is one.
    fn read_secrets(&mut self) -> Result<(), Error> {
        let mut secrets = ByUser::default();
        if let Some(file) = &self.settings.auth_file {
            let name = file.display().to_string();
            let text = read_file(file)
                .map_err(|problem| problem.at(Place::default().about("auth_file")))?;
            secrets = users::parse_auth_file(&text, &name, &mut self.warnings)?;
        }
        secrets.extend(self.own_secrets.clone());
        self.secrets = secrets;
        Ok(())
    }

    /// Reads `auth_hba_file` and `auth_ident_file`, if `auth_type` asks for them. On an error the rules are as before.
    pub fn read_rules(&mut self) -> Result<(), Error> {
        let settings = &self.settings;
        if settings.auth_type != AuthType::Hba {
            self.rules = None;
            return self.check_others();
        }
        let about = |key: &str| Place::default().about(key);
        // The one file that is not named by a line of its own in the place of an error.
        let named = |key: &'static str| {
            move |mut error: Error| {
                if *error.place == Place::default() {
                    *error.place = about(key);
                }
                error
            }
        };
        let Some(file) = &settings.auth_hba_file else {
            return Err(Problem::Missing {
                key: "auth_hba_file",
            }
            .at(about("auth_type = hba")));
        };
        let maps = match &settings.auth_ident_file {
            Some(file) => ident::read(file, &fields::Disk, &mut self.warnings)
                .map_err(named("auth_ident_file"))?,
            None => ident::Maps::default(),
        };
        let rules = hba::read(file, &fields::Disk, &maps, &mut self.warnings)
            .map_err(named("auth_hba_file"))?;
        self.rules = Some(Arc::new(rules));
        Ok(())
    }

    /// Can those be asked who check passwords in our place?
    fn check_others(&mut self) -> Result<(), Error> {
        let settings = &self.settings;
        let auth_type = settings.auth_type;
        if !auth_type.asks_others() {
            return Ok(());
        }
        if auth_type == AuthType::Ldap && settings.auth_ldap_options.directory().is_none() {
            let key = "auth_ldap_options";
            return Err(Problem::Missing { key }.at(Place::default().about("auth_type = ldap")));
        }
        let has_auth_user = |database: &Database| database.auth_user.is_some();
        let databases = self.databases.values().chain(&self.fallback);
        if settings.auth_user.is_some() || databases.into_iter().any(|it| has_auth_user(it)) {
            self.warnings.push(format!(
                "auth_type = {auth_type} can't be used together with auth_user: clients of such a database are refused"
            ));
        }
        Ok(())
    }

    /// The directories that check passwords.
    pub fn directories(&self) -> impl Iterator<Item = &ldap::Directory> {
        let own = self.settings.auth_ldap_options.directory();
        let own = own.filter(|_| self.settings.auth_type == AuthType::Ldap);
        let of_rules = self.rules.iter().flat_map(|rules| rules.directories());
        own.map(|directory| &**directory)
            .into_iter()
            .chain(of_rules)
    }

    /// Whether the environment names a database, and so is a configuration.
    pub fn is_in_environment() -> bool {
        std::env::vars_os().any(|(name, _)| name.to_str().is_some_and(env::names_a_database))
    }

    /// Reads the environment: `DATABASE_URL`, and every setting under its name in upper case.
    pub fn from_env() -> Result<Self, Error> {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        env::read(variables)?.finish(None)
    }
}

/// What a dialect has read, before it is complete.
#[derive(Debug, Default)]
struct Draft {
    settings: Settings,
    databases: BTreeMap<String, Database>,
    peers: BTreeMap<u16, Peer>,
    users: ByUser<UserSettings>,
    secrets: ByUser<SecretText>,
    warnings: Vec<String>,
}

impl Draft {
    fn read(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let text = read_file(path).map_err(|problem| problem.at(Place::default()))?;
        let is_toml = path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
        if is_toml {
            toml::read(&text, &name)
        } else {
            ini::read(&text, &name)
        }
    }

    /// Gives a setting its value; one without meaning here becomes a warning.
    fn assign(&mut self, key: &str, value: &str, place: &Place) -> Result<(), Error> {
        match self.settings.assign(key, value) {
            Ok(None) => Ok(()),
            Ok(Some(reason)) => {
                self.warnings
                    .push(format!("{place}{key} has no effect: {reason}"));
                Ok(())
            }
            Err(problem) => Err(problem.at(place.clone())),
        }
    }

    /// Reads what the settings point to and fills in what depends on them.
    fn finish(self, path: Option<&Path>) -> Result<Config, Error> {
        let mut config = self.complete(path)?;
        config.read_secrets()?;
        config.read_rules()?;
        Ok(config)
    }

    /// Fills in what depends on other values; reads nothing.
    fn complete(mut self, path: Option<&Path>) -> Result<Config, Error> {
        if self.settings.auth_dbname.as_deref() == Some(databases::CONSOLE) {
            return Err(Problem::ReservedName.at(Place::default().about("auth_dbname")));
        }
        if let Some(path) = path {
            self.settings.note_conffile(path);
        }
        for database in self
            .databases
            .values_mut()
            .filter(|it| it.host == Host::socket_dir())
        {
            let directory = self.settings.unix_socket_dir.clone().unwrap_or_else(|| {
                self.warnings.push(format!(
                    "database {} has no host and unix_socket_dir is empty: /tmp is used",
                    database.name
                ));
                PathBuf::from("/tmp")
            });
            database.host = Host::Unix(directory);
        }
        let mut databases: BTreeMap<_, _> = self
            .databases
            .into_iter()
            .map(|(name, database)| (name, Arc::new(database)))
            .collect();
        Ok(Config {
            settings: self.settings,
            fallback: databases.remove("*"),
            databases,
            peers: self.peers,
            users: self.users,
            secrets: ByUser::default(),
            own_secrets: self.secrets,
            rules: None,
            warnings: self.warnings,
            path: path.map(Path::to_path_buf),
        })
    }
}

fn read_file(path: &Path) -> Result<String, Problem> {
    use std::io::Read;
    let read = || {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        if file.take(MAX_FILE).read_to_string(&mut text)? as u64 == MAX_FILE {
            return Err(std::io::Error::other("file too large"));
        }
        Ok(text)
    };
    read().map_err(|reason| Problem::Unreadable {
        file: path.display().to_string(),
        reason,
    })
}

/// The current configuration; clones share it.
#[derive(Debug, Clone)]
pub struct ConfigHandle(Arc<ArcSwap<Config>>);

impl ConfigHandle {
    /// A handle whose first snapshot is `config`.
    pub fn new(config: Config) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(config)))
    }

    /// The snapshot of this moment. It is a full reference, which may be held across awaits.
    pub fn load(&self) -> Arc<Config> {
        self.0.load_full()
    }

    /// Replaces the snapshot; those who loaded the old one keep it until they load again.
    pub fn store(&self, config: Config) {
        self.0.store(Arc::new(config));
    }
}

#[cfg(test)]
mod tests;
