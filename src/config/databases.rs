//! Databases: the `[databases]` section and what a database entry says.
//!
//! Owns PgBouncer's connection strings (its doc: "Section \[databases\]") and the typed [`Database`].
//! Which value wins when a user, a database and a global setting disagree is decided in `resolve`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::error::Problem;
use crate::config::kind::{
    LoadBalance, MillisOrNever, PinPolicy, PoolMode, Value, quoted, signed_int,
};
use crate::config::users::{ByUser, SecretText};

/// Longest database name, PostgreSQL's `NAMEDATALEN` - 1.
pub const MAX_NAME: usize = 63;

/// The console's name, which no database may have.
pub const CONSOLE: &str = "pgbouncer";

/// Where PostgreSQL listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// Directory of the Unix socket `.s.PGSQL.<port>`; one that begins with `@` is in the abstract
    /// namespace.
    Unix(PathBuf),
    /// Host name, IPv4 or IPv6 address.
    Tcp(String),
}

impl Host {
    /// Stands for `unix_socket_dir` until all files are read: it may be set further down.
    pub(crate) fn socket_dir() -> Self {
        Self::Unix(PathBuf::new())
    }

    /// Reads one host: a name with a `/` or `@` in front is a socket directory.
    pub fn parse(text: &str) -> Self {
        if text.starts_with(['/', '@']) {
            Self::Unix(PathBuf::from(text))
        } else {
            Self::Tcp(text.to_owned())
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(directory) => write!(f, "{}", directory.display()),
            Self::Tcp(name) => f.write_str(name),
        }
    }
}

/// One database that clients can ask for. `None` in a setting: as everywhere else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// The name that clients ask for; `*` for the entry that stands for all others.
    pub name: String,
    /// The database's name in PostgreSQL; `None`: the same.
    pub dbname: Option<String>,
    /// Where PostgreSQL listens.
    pub host: Host,
    /// More places where it may be had.
    pub more_hosts: Vec<Host>,
    /// Which of several hosts a new server is made at.
    pub load_balance_hosts: LoadBalance,
    /// PostgreSQL's port, on every host.
    pub port: u16,
    /// Forced user: the server-side user for every client.
    pub user: Option<String>,
    /// The forced user's password; `None`: the one in `auth_file`.
    pub password: Option<SecretText>,
    /// Who runs `auth_query` for clients of this database.
    pub auth_user: Option<String>,
    /// The query that looks up the secrets of its clients.
    pub auth_query: Option<String>,
    /// The database that `auth_query` runs in.
    pub auth_dbname: Option<String>,
    /// Servers per pool; 0: no limit.
    pub pool_size: Option<usize>,
    /// Servers kept open per pool.
    pub min_pool_size: Option<usize>,
    /// Servers added to a pool whose clients wait too long.
    pub reserve_pool_size: Option<usize>,
    /// Most servers, all users together; never 0, which means "as everywhere" in a file.
    pub max_db_connections: Option<usize>,
    /// Most clients; never 0, which means "as everywhere" in a file.
    pub max_db_client_connections: Option<usize>,
    /// Age at which unused servers are closed; never 0, which means "as everywhere" in a file.
    pub server_lifetime: Option<Duration>,
    /// Time after which unused servers are closed (TOML only).
    pub server_idle_timeout: Option<Duration>,
    /// Longest a connection and login may take (TOML only).
    pub server_connect_timeout: Option<Duration>,
    /// Longest a query may wait for a server; zero: for ever.
    pub query_wait_timeout: Option<Duration>,
    /// When a server goes back to its pool.
    pub pool_mode: Option<PoolMode>,
    /// What becomes of a client whose session can't move.
    pub pin_policy: Option<PinPolicy>,
    /// Prepared statements kept on each server; 0: passed through (TOML only).
    pub max_prepared_statements: Option<usize>,
    /// How long a query takes that is logged (`log_min_duration`).
    pub log_min_duration: Option<MillisOrNever>,
    /// Uses after which an unnamed statement is prepared (`prepare_unnamed_after`); 0: never.
    pub prepare_unnamed_after: Option<usize>,
    /// Run on each new server before its first use; its errors are logged and ignored.
    pub connect_query: Option<String>,
    /// `client_encoding` of the server's startup packet.
    pub client_encoding: Option<String>,
    /// `datestyle` of the server's startup packet.
    pub datestyle: Option<String>,
    /// `timezone` of the server's startup packet.
    pub timezone: Option<String>,
    /// `application_name` of the server's startup packet.
    pub application_name: Option<String>,
    /// Users of this database alone, by client name (PgCat's `[pools.NAME.users.N]`). Not empty: nobody
    /// else may log in to it. Empty: every user of the `auth_file` may.
    pub users: ByUser<PoolUser>,
}

/// A user that belongs to one database (PgCat's `[pools.NAME.users.N]`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolUser {
    /// What the client must prove; `None`: looked up by `auth_query`.
    pub password: Option<SecretText>,
    /// Servers in this user's pool.
    pub pool_size: Option<usize>,
    /// Servers kept open in this user's pool.
    pub min_pool_size: Option<usize>,
    /// When a server goes back to the pool.
    pub pool_mode: Option<PoolMode>,
    /// Age at which unused servers are closed.
    pub server_lifetime: Option<Duration>,
    /// Longest a query may run (PgCat's `statement_timeout`).
    pub query_timeout: Option<Duration>,
    /// Name to log in to PostgreSQL with; `None`: the client's.
    pub server_username: Option<String>,
    /// Password to log in to PostgreSQL with; `None`: the client's.
    pub server_password: Option<SecretText>,
}

impl Database {
    /// A database at this host with everything else at its default.
    pub fn new(name: &str, host: Host) -> Self {
        Self {
            name: name.to_owned(),
            dbname: None,
            host,
            more_hosts: Vec::new(),
            load_balance_hosts: LoadBalance::default(),
            port: 5432,
            user: None,
            password: None,
            auth_user: None,
            auth_query: None,
            auth_dbname: None,
            pool_size: None,
            min_pool_size: None,
            reserve_pool_size: None,
            max_db_connections: None,
            max_db_client_connections: None,
            server_lifetime: None,
            server_idle_timeout: None,
            server_connect_timeout: None,
            query_wait_timeout: None,
            pool_mode: None,
            pin_policy: None,
            max_prepared_statements: None,
            log_min_duration: None,
            prepare_unnamed_after: None,
            connect_query: None,
            client_encoding: None,
            datestyle: None,
            timezone: None,
            application_name: None,
            users: ByUser::default(),
        }
    }

    /// The database's name in PostgreSQL.
    pub fn server_dbname(&self) -> &str {
        self.dbname.as_deref().unwrap_or(&self.name)
    }

    /// All hosts, in their order.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        std::iter::once(&self.host).chain(&self.more_hosts)
    }

    /// The pool user whose servers log in as `server_user`.
    pub fn pool_user(&self, server_user: &str) -> Option<&PoolUser> {
        let is_it = |name: &str, user: &PoolUser| {
            user.server_username.as_deref().unwrap_or(name) == server_user
        };
        // Nearly always the names are the same; the scan is for renamed users.
        if let Some(user) = self
            .users
            .get(server_user)
            .filter(|user| is_it(server_user, user))
        {
            return Some(user);
        }
        self.users
            .iter()
            .find(|(name, user)| is_it(name, user))
            .map(|(_, user)| user)
    }
}

/// The keys of a `[databases]` line.
pub(crate) const KEYS: &[&str] = &[
    "dbname",
    "host",
    "port",
    "user",
    "password",
    "auth_user",
    "auth_query",
    "auth_dbname",
    "pool_size",
    "min_pool_size",
    "reserve_pool_size",
    "reserve_pool",
    "max_db_connections",
    "max_db_client_connections",
    "server_lifetime",
    "query_wait_timeout",
    "pool_mode",
    "pin_policy",
    "log_min_duration",
    "prepare_unnamed_after",
    "load_balance_hosts",
    "connect_query",
    "client_encoding",
    "datestyle",
    "timezone",
    "application_name",
];

/// Refuses the names a database cannot have.
pub(crate) fn check_name(name: &str) -> Result<(), Problem> {
    if name == CONSOLE {
        return Err(Problem::ReservedName);
    }
    if name.len() > MAX_NAME {
        return Err(Problem::NameTooLong {
            length: name.len(),
            limit: MAX_NAME,
        });
    }
    Ok(())
}

/// Reads the right-hand side of a `[databases]` line.
pub(crate) fn parse(name: &str, line: &str) -> Result<Database, Problem> {
    check_name(name)?;
    let mut database = Database::new(name, Host::socket_dir());
    for (key, value) in pairs(line)? {
        set(&mut database, &key, value)?;
    }
    Ok(database)
}

/// Gives one key of an entry its value.
pub(crate) fn set(database: &mut Database, key: &str, value: String) -> Result<(), Problem> {
    match key {
        "dbname" => database.dbname = Some(value),
        "host" => {
            let mut hosts = value.split(',').map(|host| Host::parse(host.trim()));
            database.host = hosts.next().unwrap_or_else(Host::socket_dir);
            database.more_hosts = hosts.collect();
            if value.split(',').any(|host| host.trim().is_empty()) {
                return Err(Problem::invalid(key, &value, "a host between commas"));
            }
        }
        "port" => match u16::parse(&value) {
            Ok(port) if port > 0 => database.port = port,
            _ => return Err(Problem::invalid(key, &value, "a port, 1 to 65535")),
        },
        "user" => database.user = Some(value),
        "password" => database.password = Some(SecretText::new(value)),
        "auth_user" => database.auth_user = Some(value),
        "auth_query" => database.auth_query = Some(value),
        "auth_dbname" => database.auth_dbname = Some(value),
        "pool_size" => database.pool_size = count(key, &value)?,
        "min_pool_size" => database.min_pool_size = count(key, &value)?,
        "reserve_pool_size" | "reserve_pool" => database.reserve_pool_size = count(key, &value)?,
        "max_db_connections" => {
            database.max_db_connections = count(key, &value)?.filter(|n| *n > 0);
        }
        "max_db_client_connections" => {
            database.max_db_client_connections = count(key, &value)?.filter(|n| *n > 0);
        }
        "server_lifetime" => {
            database.server_lifetime = whole_seconds(key, &value)?.filter(|t| !t.is_zero());
        }
        "query_wait_timeout" => database.query_wait_timeout = whole_seconds(key, &value)?,
        "pool_mode" => database.pool_mode = Some(typed(key, &value)?),
        "pin_policy" => database.pin_policy = Some(typed(key, &value)?),
        "log_min_duration" => database.log_min_duration = Some(typed(key, &value)?),
        "prepare_unnamed_after" => database.prepare_unnamed_after = count(key, &value)?,
        "load_balance_hosts" => database.load_balance_hosts = typed(key, &value)?,
        "connect_query" => database.connect_query = Some(value),
        "client_encoding" => database.client_encoding = Some(value),
        "datestyle" => database.datestyle = Some(value),
        "timezone" => database.timezone = Some(value),
        "application_name" => database.application_name = Some(value),
        _ => return Err(Problem::unknown_key(key, KEYS.iter().copied())),
    }
    Ok(())
}

/// A number of which a negative one means "as everywhere else".
pub(crate) fn count(key: &str, value: &str) -> Result<Option<usize>, Problem> {
    let number = signed_int(value).map_err(|fault| Problem::fault(key, value, fault))?;
    Ok(usize::try_from(number).ok())
}

/// Whole seconds, of which a negative number means "as everywhere else".
pub(crate) fn whole_seconds(key: &str, value: &str) -> Result<Option<Duration>, Problem> {
    let number = signed_int(value).map_err(|fault| Problem::fault(key, value, fault))?;
    Ok(u64::try_from(number).ok().map(Duration::from_secs))
}

/// A value of any kind a setting can have.
pub(crate) fn typed<T: Value>(key: &str, value: &str) -> Result<T, Problem> {
    T::parse(value).map_err(|fault| Problem::fault(key, value, fault))
}

/// Cuts `key=value key='it''s'` into pairs. Only spaces separate; an empty value is an error.
///
/// Errors name the key and never the value, which may be a password.
pub(crate) fn pairs(line: &str) -> Result<Vec<(String, String)>, Problem> {
    let mut found = Vec::new();
    let mut rest = line.trim_start_matches(' ');
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').ok_or_else(|| missing_equals(rest))?;
        let key = key.trim_end_matches(' ');
        if key.is_empty() || key.contains([' ', '\t', '\'']) {
            return Err(missing_equals(key));
        }
        let (value, after) = value(key, after.trim_start_matches(' '))?;
        if value.is_empty() {
            return Err(Problem::Syntax(format!("empty value for {key}")));
        }
        found.push((key.to_owned(), value));
        rest = after.trim_start_matches(' ');
    }
    Ok(found)
}

fn missing_equals(text: &str) -> Problem {
    // What stands here may be the tail of a password with a blank in it, so only a plain word is shown.
    let word = text
        .trim_start_matches(' ')
        .split([' ', '\t'])
        .next()
        .unwrap_or_default();
    if KEYS.contains(&word) {
        Problem::Syntax(format!("expected = after {word}"))
    } else {
        Problem::Syntax("expected key=value pairs separated by spaces".to_owned())
    }
}

/// One value, and what follows it.
fn value<'a>(key: &str, text: &'a str) -> Result<(String, &'a str), Problem> {
    if text.starts_with('\'') {
        let unterminated = || Problem::Syntax(format!("unterminated quote in the value of {key}"));
        let (value, after) = quoted(text, '\'').ok_or_else(unterminated)?;
        if after.is_empty() || after.starts_with(' ') {
            return Ok((value, after));
        }
        return Err(Problem::Syntax(format!(
            "expected a space after the value of {key}"
        )));
    }
    let (bare, after) = text.split_at(text.find(' ').unwrap_or(text.len()));
    if bare.contains('\t') {
        return Err(Problem::Syntax(format!(
            "tab in the value of {key}: separate pairs with spaces"
        )));
    }
    Ok((bare.to_owned(), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(line: &str) -> Database {
        parse("app", line).unwrap()
    }

    fn refused(line: &str) -> String {
        parse("app", line).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_right_hand_side_is_the_same_database_on_the_default_socket() {
        let app = database("");
        assert_eq!((app.server_dbname(), app.port), ("app", 5432));
        assert_eq!(app, Database::new("app", Host::socket_dir()));
    }

    #[test]
    fn every_key_is_read() {
        let app = database(
            "dbname=real host=db.example port=5433 user=u password='p w' auth_user=a auth_query='SELECT $1, 2' \
             auth_dbname=adb pool_size=5 min_pool_size=1 reserve_pool=2 max_db_connections=7 \
             max_db_client_connections=8 server_lifetime=60 query_wait_timeout=0 pool_mode=Transaction \
             load_balance_hosts=disable connect_query='SET x=''1''' client_encoding=UTF8 datestyle=ISO \
             timezone=UTC application_name=me",
        );
        assert_eq!(app.server_dbname(), "real");
        assert_eq!((app.host, app.port), (Host::Tcp("db.example".into()), 5433));
        assert_eq!(app.password.as_ref().map(SecretText::expose), Some("p w"));
        assert_eq!(app.auth_query.as_deref(), Some("SELECT $1, 2"));
        assert_eq!(
            (app.pool_size, app.min_pool_size, app.reserve_pool_size),
            (Some(5), Some(1), Some(2))
        );
        assert_eq!(
            (app.max_db_connections, app.max_db_client_connections),
            (Some(7), Some(8))
        );
        assert_eq!(app.server_lifetime, Some(Duration::from_secs(60)));
        assert_eq!(app.query_wait_timeout, Some(Duration::ZERO));
        assert_eq!(app.pool_mode, Some(PoolMode::Transaction));
        assert_eq!(app.connect_query.as_deref(), Some("SET x='1'"));
        assert_eq!(app.application_name.as_deref(), Some("me"));
    }

    #[test]
    fn minus_one_and_a_zero_limit_mean_as_everywhere() {
        let app = database("pool_size=-1 max_db_connections=0 server_lifetime=0");
        assert_eq!(app, database(""));
        assert_eq!(database("pool_size=0").pool_size, Some(0));
    }

    #[test]
    fn a_directory_an_abstract_name_and_an_address_are_told_apart() {
        assert_eq!(database("host=/run/pg").host, Host::Unix("/run/pg".into()));
        assert_eq!(database("host=@pg").host, Host::Unix("@pg".into()));
        assert_eq!(database("host=::1").host, Host::Tcp("::1".into()));
        let several = database("host=/run/pg,db1,::1 load_balance_hosts=disable");
        let hosts: Vec<String> = several.hosts().map(ToString::to_string).collect();
        assert_eq!(hosts, ["/run/pg", "db1", "::1"]);
        assert_eq!(several.load_balance_hosts, LoadBalance::Disable);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        insta::assert_snapshot!([
            refused("prot=5432"),
            refused("port=0"),
            refused("port=x"),
            refused("host=a,,b"),
            refused("pool_size=many"),
            refused("pool_mode=sometimes"),
            refused("load_balance_hosts=random"),
        ].join("\n"), @r#"
        unknown key "prot"; did you mean "port"?
        port = 0: expected a port, 1 to 65535
        port = x: expected a port, 1 to 65535
        host = a,,b: expected a host between commas
        pool_size = many: expected a whole number
        pool_mode = sometimes: expected one of session, transaction, statement
        load_balance_hosts = random: expected one of round-robin, disable
        "#);
    }

    #[test]
    fn syntax_errors_never_show_a_value() {
        let lines = [
            "host",
            "host=",
            "host=''",
            "password=s3c r3t",
            "password='s3cret",
            "password='a'b",
            "=x",
            "port=1\thost=s3cret",
            "a'b=1",
        ];
        for line in lines {
            let text = refused(line);
            assert!(
                text.starts_with("syntax error: ")
                    && !text.contains("s3c")
                    && !text.contains("r3t"),
                "{text}"
            );
        }
        assert_eq!(refused("host"), "syntax error: expected = after host");
        assert_eq!(refused("host="), "syntax error: empty value for host");
    }

    #[test]
    fn blanks_may_surround_the_equals_sign() {
        assert_eq!(database("  port = 5433   user  ='u'  ").port, 5433);
    }

    #[test]
    fn the_consoles_name_and_over_long_names_are_refused() {
        assert!(matches!(parse("pgbouncer", ""), Err(Problem::ReservedName)));
        assert!(matches!(
            parse(&"x".repeat(64), ""),
            Err(Problem::NameTooLong { length: 64, .. })
        ));
        assert!(parse(&"x".repeat(63), "").is_ok());
    }

    #[test]
    fn a_pool_user_is_found_by_the_name_its_servers_use() {
        let mut app = database("");
        let renamed = PoolUser {
            server_username: Some("real".into()),
            pool_size: Some(3),
            ..PoolUser::default()
        };
        app.users.insert("alias".into(), renamed);
        app.users.insert(
            "plain".into(),
            PoolUser {
                pool_size: Some(4),
                ..PoolUser::default()
            },
        );
        assert_eq!(
            app.pool_user("real").and_then(|user| user.pool_size),
            Some(3)
        );
        assert_eq!(
            app.pool_user("plain").and_then(|user| user.pool_size),
            Some(4)
        );
        assert_eq!(app.pool_user("alias"), None);
    }
}
