//! One real PostgreSQL for the whole test run: its own directory, a free port, never as root.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::Signal;

use super::ports::free_port;
use super::process::{self, Process};
use super::tls::authority;
use super::wire::{Rows, Wire};
use super::within;

/// Roles made at start. The password of each is its name with `-secret` behind it.
pub const ROLES: [&str; 5] = ["app", "other", "plain_user", "md5_user", "scram_user"];

/// Who may come in how. Everybody else is trusted: most tests are not about passwords. Tests may put
/// roles of their own into `with_password`.
const HBA: &str = "\
local all all                       trust
host  all +with_password 127.0.0.1/32  md5
host  replication all 127.0.0.1/32  trust
host  all plain_user  127.0.0.1/32  password
host  all md5_user    127.0.0.1/32  md5
host  all scram_user  127.0.0.1/32  scram-sha-256
host  all all         127.0.0.1/32  trust
";

/// The same for the server with TLS; `other` and the members of `with_certificate` come in by a certificate.
const TLS_HBA: &str = "\
local   all all                       trust
hostssl all +with_certificate 127.0.0.1/32  cert
host    all +with_password 127.0.0.1/32  md5
hostssl all scram_user  127.0.0.1/32  scram-sha-256
hostssl all other       127.0.0.1/32  cert
host    all all         127.0.0.1/32  trust
";

const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
max_connections = 300
fsync = off
synchronous_commit = off
full_page_writes = off
log_statement = none
log_min_messages = warning
shared_buffers = 64MB
wal_level = logical
";

/// A running PostgreSQL.
pub struct Postgres {
    port: u16,
    directory: PathBuf,
    _process: Process,
}

/// The server of this test run, started by the first test that asks.
pub fn postgres() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::start("", HBA, |_| ()))
}

/// A second server, with TLS: its certificate is of [`authority`](super::tls::authority), for `localhost`.
pub fn tls_postgres() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        let settings = "ssl = on\nssl_ca_file = 'root.crt'\n";
        Postgres::start(settings, TLS_HBA, |data| {
            let identity = authority().issue("a server", &["localhost"]);
            identity.write(data, "server");
            authority().write(&data.join("root.crt"));
        })
    })
}

impl Postgres {
    fn start(settings: &str, hba: &str, prepare: impl FnOnce(&Path)) -> Self {
        let binaries = binaries();
        let directory = process::directory();
        let data = directory.join("data");
        let made = process::command(binaries.join("initdb"), &directory)
            .args([
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
                "-D",
            ])
            .arg(&data)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let port = free_port();
        let sockets = format!(
            "unix_socket_directories = '{}'\nport = {port}\n{settings}",
            directory.display()
        );
        append(
            &data.join("postgresql.conf"),
            &(SETTINGS.to_owned() + &sockets),
        );
        std::fs::write(data.join("pg_hba.conf"), hba).unwrap();
        prepare(&data);
        let log = directory.join("postgres.log");
        let program = binaries.join("postgres");
        let arguments = [program.to_str().unwrap(), "-D", data.to_str().unwrap()];
        let mut process = Process::start(&arguments, &directory, &log, Signal::SIGQUIT);
        within(
            super::PATIENCE * 3,
            "PostgreSQL accepts connections",
            || {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                assert!(process.ended().is_none(), "PostgreSQL ended:\n{log}");
                Wire::login(address(port), "postgres", "postgres", None).ok()
            },
        );
        let server = Self {
            port,
            directory,
            _process: process,
        };
        server.sql(
            "postgres",
            "CREATE ROLE with_password; CREATE ROLE with_certificate",
        );
        server.make_roles();
        server
    }

    fn make_roles(&self) {
        for role in ROLES {
            let method = if role == "md5_user" {
                "md5"
            } else {
                "scram-sha-256"
            };
            self.sql(
                "postgres",
                &format!(
                    "BEGIN; SET LOCAL password_encryption = '{method}';
                     CREATE ROLE {role} LOGIN PASSWORD '{}'; COMMIT",
                    password(role)
                ),
            );
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> SocketAddr {
        address(self.port)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("postgres.log")).unwrap_or_default()
    }

    /// Where it lives, and what else is needed as long as it does.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A new empty database, owned by `app`, which no other test touches.
    pub fn database(&self, hint: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{hint}_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name} OWNER app"));
        name
    }

    /// A direct connection of the superuser.
    pub fn connect(&self, database: &str) -> Wire {
        Wire::login(self.address(), "postgres", database, None).unwrap()
    }

    /// Runs `sql` directly, as the superuser.
    pub fn sql(&self, database: &str, sql: &str) -> Rows {
        self.connect(database).rows(sql)
    }

    /// One value of `sql`, run directly, as text.
    pub fn value(&self, database: &str, sql: &str) -> String {
        self.sql(database, sql).only()
    }

    /// How many sessions `database` has, by the state that `pg_stat_activity` shows; ours not counted.
    pub fn sessions(&self, database: &str, state: &str) -> usize {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = '{database}' AND state LIKE '{state}' AND pid <> pg_backend_pid()"
        );
        self.value("postgres", &sql).parse().unwrap()
    }
}

/// The password of one of [`ROLES`].
pub fn password(role: &str) -> String {
    format!("{role}-secret")
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn append(path: &Path, text: &str) {
    let old = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, old + text).unwrap();
}

/// The directory of `initdb` and `postgres`: of the newest version where a distribution keeps
/// several, else what `pg_config` names, else what PATH has.
pub fn binaries() -> PathBuf {
    if let Some(chosen) = std::env::var_os("PG_BIN") {
        return chosen.into();
    }
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    found.sort();
    let mut places: Vec<PathBuf> = found.into_iter().rev().map(|(_, path)| path).collect();
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        places.push(PathBuf::from(
            String::from_utf8_lossy(&output.stdout).trim(),
        ));
    }
    places.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    places
        .into_iter()
        .find(|place| place.join("initdb").exists() && place.join("postgres").exists())
        .expect("PostgreSQL's initdb and postgres: run scripts/setup")
}
