//! Where a console is and who asks it, out of options, the pooler's file, a URL and the environment.
//!
//! Pure but for reading the file: the environment comes as a function. Connects to nothing.

use std::fmt;
use std::path::{Path, PathBuf};

use super::Error;
use super::options::Options;
use crate::auth::{PlainSecret, Secret};
use crate::config::{self, Config, Problem};

/// The console's name where nothing else is said: both poolers know it.
const CONSOLE: &str = "pgbouncer";

/// PgBouncer's `listen_port`.
const PORT: u16 = 6432;

/// Where to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// By TCP.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket; an abstract one begins with `@`.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// All that a login needs. Its secret shows nothing of itself.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where.
    pub address: Address,
    /// Who.
    pub user: String,
    /// With what; perhaps nothing is asked for.
    pub secret: Option<Secret>,
    /// The console's name.
    pub database: String,
    /// Its `server_tls_*` say whether and how the connection is encrypted.
    pub tls: Config,
}

/// Said so far; what comes later goes before what is there.
#[derive(Default)]
struct Said {
    host: Option<String>,
    port: Option<u16>,
    user: Option<String>,
    secret: Option<Secret>,
    database: Option<String>,
}

impl Target {
    /// As [`resolve`](Self::resolve), with the environment of this process.
    pub fn of_process(options: &Options) -> Result<Self, Error> {
        Self::resolve(options, |name| std::env::var(name).ok())
    }

    /// Options go before the URL, the URL before the file, the file before the environment.
    pub fn resolve(
        options: &Options,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
        let mut tls = Config::default();
        let mut said = Said {
            host: variable("PGHOST"),
            port: variable("PGPORT").map(|text| port(&text)).transpose()?,
            user: variable("PGUSER"),
            ..Said::default()
        };
        let tls_variables = [
            ("server_tls_sslmode", "PGSSLMODE"),
            ("server_tls_ca_file", "PGSSLROOTCERT"),
        ];
        let mut tls_settings: Vec<(&str, String)> = tls_variables
            .into_iter()
            .filter_map(|(setting, name)| Some((setting, variable(name)?)))
            .collect();
        let config = options.config.as_deref().map(Config::load).transpose()?;
        if let Some(config) = &config {
            said.listener(config)?;
        }
        if let Some(url) = &options.url {
            let url = config::parse_url(url, &mut Vec::new()).map_err(Error::Url)?;
            tls_settings.extend(url.tls.iter().cloned());
            said.url(url)?;
        }
        for (setting, value) in tls_settings {
            let assigned = tls.settings.assign(setting, &value);
            assigned.map_err(Error::TlsSetting)?;
        }
        let address = said.address(options);
        let os_user = || variable("USER").or_else(|| variable("LOGNAME"));
        let user = options.user.clone().or(said.user);
        let user = user.or_else(|| match (&config, &address) {
            (Some(config), Address::Tcp { .. }) => asker(config),
            // Whoever runs the pooler is let in by this name.
            (_, Address::Unix(_)) => Some(CONSOLE.to_owned()),
            (None, Address::Tcp { .. }) => os_user(),
        });
        let user = user.unwrap_or_else(|| CONSOLE.to_owned());
        let from_file = || config.as_ref()?.secrets.get(&user);
        let secret = said.secret.or_else(|| {
            let text = variable("PGPASSWORD");
            text.map(plain)
                .or_else(|| Secret::parse(from_file()?.expose()))
        });
        let database = options.dbname.clone().or(said.database);
        Ok(Self {
            address,
            user,
            secret,
            database: database.unwrap_or_else(|| CONSOLE.to_owned()),
            tls,
        })
    }
}

impl Said {
    /// Where a pooler with this file listens.
    fn listener(&mut self, config: &Config) -> Result<(), Error> {
        let settings = &config.settings;
        // What the environment says of hosts and users is about another one.
        (self.host, self.user) = (None, None);
        self.port = Some(settings.listen_port);
        let socket = settings.unix_socket_dir.as_deref();
        let socket = socket.filter(|folder| is_there(&socket_in(folder, settings.listen_port)));
        let tcp = settings.listen_addr.iter().find(|item| !item.is_empty());
        self.host = match (socket, tcp) {
            (Some(folder), _) => Some(folder.display().to_string()),
            (None, Some(item)) => Some(reachable(item).to_owned()),
            (None, None) => {
                let what =
                    "the file names no listen_addr, and there is no socket in its unix_socket_dir";
                return Err(Error::Usage(what.to_owned()));
            }
        };
        Ok(())
    }

    fn url(&mut self, url: config::Target) -> Result<(), Error> {
        if let Some(text) = &url.port {
            // Not `port`'s words: what looks like a port may be a part of the password.
            let bad = || Problem::Syntax("expected a port, 1 to 65535".to_owned());
            self.port = Some(text.parse().map_err(|_| Error::Url(bad()))?);
        }
        self.host = url.host.or_else(|| self.host.take());
        self.user = url.user.or_else(|| self.user.take());
        self.secret = url.password.map(plain);
        self.database = url.dbname;
        Ok(())
    }

    fn address(&self, options: &Options) -> Address {
        let host = options.host.clone().or_else(|| self.host.clone());
        let port = options.port.or(self.port).unwrap_or(PORT);
        let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
        if host.starts_with(['/', '@', '.']) {
            Address::Unix(socket_in(Path::new(&host), port))
        } else {
            Address::Tcp { host, port }
        }
    }
}

/// Who may look, by this file: an administrator with a secret that serves, or else any that there is.
fn asker(config: &Config) -> Option<String> {
    let settings = &config.settings;
    let names = || settings.admin_users.iter().chain(&settings.stats_users);
    let has_secret = |name: &&String| config.secrets.contains_key(*name);
    let found = names().find(has_secret).or_else(|| names().next());
    found.cloned()
}

/// The name of PostgreSQL's sockets (docs: `unix_socket_directories`).
fn socket_in(folder: &Path, port: u16) -> PathBuf {
    folder.join(format!(".s.PGSQL.{port}"))
}

fn is_there(socket: &Path) -> bool {
    // An abstract socket is in no folder.
    socket.as_os_str().as_encoded_bytes().starts_with(b"@") || socket.exists()
}

/// An address by which what listens on `item` is reached from this machine.
pub(super) fn reachable(item: &str) -> &str {
    match item {
        "*" | "0.0.0.0" | "" => "127.0.0.1",
        "::" | "[::]" => "::1",
        item => item,
    }
}

fn plain(text: String) -> Secret {
    Secret::Plain(PlainSecret::new(text))
}

fn port(text: &str) -> Result<u16, Error> {
    let bad = || Error::Usage(format!("PGPORT = {text}: expected a port, 1 to 65535"));
    text.parse().map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(options: &Options, variables: &[(&str, &str)]) -> Result<Target, Error> {
        Target::resolve(options, |name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn shown(target: &Target) -> String {
        let secret = match &target.secret {
            Some(Secret::Plain(text)) => String::from_utf8_lossy(text.expose()).into_owned(),
            other => format!("{other:?}"),
        };
        let mode = target.tls.settings.server_tls_sslmode;
        format!(
            "{} {} {secret} {} {mode}",
            target.address, target.user, target.database
        )
    }

    #[test]
    fn with_nothing_said_it_is_the_pooler_of_this_machine() {
        let target = resolve(&Options::default(), &[("USER", "me"), ("PGHOST", "")]).unwrap();
        assert_eq!(shown(&target), "127.0.0.1:6432 me None pgbouncer prefer");
    }

    #[test]
    fn options_go_before_the_url_and_that_before_the_environment() {
        let environment = [
            ("PGHOST", "one"),
            ("PGPORT", "1"),
            ("PGUSER", "eve"),
            ("PGPASSWORD", "env"),
            ("PGSSLMODE", "require"),
        ];
        let mut options = Options::default();
        let target = resolve(&options, &environment).unwrap();
        assert_eq!(shown(&target), "one:1 eve env pgbouncer require");
        options.url = Some("postgres://bob:p%40w@[::1]:2/pgferry?sslmode=disable".to_owned());
        let target = resolve(&options, &environment).unwrap();
        assert_eq!(shown(&target), "[::1]:2 bob p@w pgferry disable");
        options.port = Some(3);
        options.host = Some("/run/x".to_owned());
        options.user = Some("alice".to_owned());
        let target = resolve(&options, &environment).unwrap();
        assert_eq!(
            shown(&target),
            "/run/x/.s.PGSQL.3 alice p@w pgferry disable"
        );
    }

    #[test]
    fn the_poolers_file_says_where_it_listens_and_who_may_look() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.ini");
        let users = folder.path().join("users");
        std::fs::write(&users, "\"watch\" \"seen\"\n").unwrap();
        let ini = format!(
            "[pgbouncer]\nlisten_addr = *\nlisten_port = 7000\nunix_socket_dir = {}\nauth_file = {}\n\
             admin_users = root\nstats_users = watch\n",
            folder.path().display(),
            users.display()
        );
        std::fs::write(&file, ini).unwrap();
        let options = Options {
            config: Some(file),
            ..Options::default()
        };
        let environment = [("PGHOST", "elsewhere"), ("PGUSER", "app")];
        let target = resolve(&options, &environment).unwrap();
        assert_eq!(shown(&target), "127.0.0.1:7000 watch seen pgbouncer prefer");
        let socket = folder.path().join(".s.PGSQL.7000");
        std::fs::write(&socket, "").unwrap();
        let target = resolve(&options, &environment).unwrap();
        assert_eq!(target.address, Address::Unix(socket));
        assert_eq!(target.user, "pgbouncer");
    }

    #[test]
    fn a_refusal_does_not_show_the_password() {
        for url in [
            "postgres://u:s3cret/x@h/d",
            "http://u:s3cret@h",
            "postgres://u:s3cret@h:x",
        ] {
            let options = Options {
                url: Some(url.to_owned()),
                ..Options::default()
            };
            let text = resolve(&options, &[]).unwrap_err().to_string();
            assert!(!text.contains("s3cret"), "{text}");
        }
        let wrong = resolve(&Options::default(), &[("PGSSLMODE", "always")]).unwrap_err();
        assert!(wrong.to_string().contains("always"), "{wrong}");
        let wrong = resolve(&Options::default(), &[("PGPORT", "x")]).unwrap_err();
        assert!(wrong.to_string().starts_with("PGPORT = x"), "{wrong}");
    }
}
