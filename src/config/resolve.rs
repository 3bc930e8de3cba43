//! Which value holds: the user's, the database's or the global one.
//!
//! PgBouncer's order is user, database, global; a user of one database alone comes before all. Two names
//! of a user matter: the *client user* logged in to us, the *server user* logs in to PostgreSQL, and a
//! forced user makes them differ (PgBouncer: "Section \[users\]").

use std::sync::Arc;
use std::time::Duration;

use crate::config::databases::{CONSOLE, MAX_NAME};
use crate::config::{Config, Database, PinPolicy, PoolMode, SecretText, UserSettings};

/// Our own name for the console, and PgCat's. A database that is configured under one of them comes first.
const CONSOLE_ALIASES: [&str; 2] = ["pgferry", "pgcat"];

impl Config {
    /// Does the console answer under this database name?
    pub fn is_console(&self, database: &str) -> bool {
        database == CONSOLE
            || (CONSOLE_ALIASES.contains(&database) && !self.databases.contains_key(database))
    }

    /// The database a client asks for by name, made from the `*` entry if it is not configured itself.
    pub fn database(&self, name: &str) -> Option<Arc<Database>> {
        if let Some(database) = self.databases.get(name) {
            return Some(Arc::clone(database));
        }
        if name == CONSOLE || name.is_empty() || name.len() > MAX_NAME {
            return None;
        }
        let fallback = self.fallback.as_deref()?;
        Some(Arc::new(Database {
            name: name.to_owned(),
            ..fallback.clone()
        }))
    }

    /// Whether this user may log in to the database at all.
    pub fn admits(&self, database: &Database, client_user: &str) -> bool {
        database.users.is_empty() || database.users.contains_key(client_user)
    }

    /// The name that a client's servers log in with.
    pub fn server_user<'a>(&self, database: &'a Database, client_user: &'a str) -> &'a str {
        let renamed = || database.users.get(client_user)?.server_username.as_deref();
        database
            .user
            .as_deref()
            .or_else(renamed)
            .unwrap_or(client_user)
    }

    /// What a client must prove; `None`: no secret is stored, so `auth_query` is asked.
    pub fn secret<'a>(
        &'a self,
        database: &'a Database,
        client_user: &str,
    ) -> Option<&'a SecretText> {
        let own = database
            .users
            .get(client_user)
            .and_then(|user| user.password.as_ref());
        own.or_else(|| self.secrets.get(client_user))
    }

    /// All that clients of this name may prove, whatever database they want.
    pub fn secrets_of<'a>(&'a self, client_user: &str) -> impl Iterator<Item = &'a SecretText> {
        let databases = self.databases.values().chain(&self.fallback);
        let own = databases.filter_map(move |database| {
            let user = database.users.get(client_user)?;
            user.password.as_ref()
        });
        own.chain(self.secrets.get(client_user))
    }

    /// What the servers of a client log in with; `None`: only what the client's own login reveals.
    pub fn server_secret<'a>(
        &'a self,
        database: &'a Database,
        client_user: &str,
    ) -> Option<&'a SecretText> {
        if let Some(forced) = &database.user {
            return database
                .password
                .as_ref()
                .or_else(|| self.secrets.get(forced));
        }
        let Some(user) = database.users.get(client_user) else {
            return self.secrets.get(client_user);
        };
        match (&user.server_password, &user.server_username) {
            (Some(password), _) => Some(password),
            (None, Some(name)) => self.secrets.get(name),
            (None, None) => self.secret(database, client_user),
        }
    }

    /// Most servers of a pool; 0: no limit.
    pub fn pool_size(&self, database: &Database, server_user: &str) -> usize {
        let own = database
            .pool_user(server_user)
            .and_then(|user| user.pool_size);
        own.or_else(|| self.user(server_user)?.pool_size)
            .or(database.pool_size)
            .unwrap_or(self.settings.default_pool_size)
    }

    /// Servers kept open in a pool that is in use.
    pub fn min_pool_size(&self, database: &Database, server_user: &str) -> usize {
        let own = database
            .pool_user(server_user)
            .and_then(|user| user.min_pool_size);
        own.or(database.min_pool_size)
            .unwrap_or(self.settings.min_pool_size)
    }

    /// Servers a pool may have beyond its size when clients wait too long.
    pub fn reserve_pool_size(&self, database: &Database, server_user: &str) -> usize {
        self.user(server_user)
            .and_then(|user| user.reserve_pool_size)
            .or(database.reserve_pool_size)
            .unwrap_or(self.settings.reserve_pool_size)
    }

    /// When a server goes back to its pool.
    pub fn pool_mode(&self, database: &Database, server_user: &str) -> PoolMode {
        let own = database
            .pool_user(server_user)
            .and_then(|user| user.pool_mode);
        own.or_else(|| self.user(server_user)?.pool_mode)
            .or(database.pool_mode)
            .unwrap_or(self.settings.pool_mode)
    }

    /// What becomes of a client whose session can't move to another server.
    pub fn pin_policy(&self, database: &Database, server_user: &str) -> PinPolicy {
        self.user(server_user)
            .and_then(|user| user.pin_policy)
            .or(database.pin_policy)
            .unwrap_or(self.settings.pin_policy)
    }

    /// Age at which an unused server is closed; zero: servers are used once.
    pub fn server_lifetime(&self, database: &Database, server_user: &str) -> Duration {
        let own = database
            .pool_user(server_user)
            .and_then(|user| user.server_lifetime);
        own.or(database.server_lifetime)
            .unwrap_or(self.settings.server_lifetime)
    }

    /// Time after which an unused server is closed; zero: never.
    pub fn server_idle_timeout(&self, database: &Database) -> Duration {
        database
            .server_idle_timeout
            .unwrap_or(self.settings.server_idle_timeout)
    }

    /// Longest a connection and login to PostgreSQL may take; zero: no limit.
    pub fn server_connect_timeout(&self, database: &Database) -> Duration {
        database
            .server_connect_timeout
            .unwrap_or(self.settings.server_connect_timeout)
    }

    /// Prepared statements kept on each server; 0: statements are passed through.
    pub fn max_prepared_statements(&self, database: &Database) -> usize {
        database
            .max_prepared_statements
            .unwrap_or(self.settings.max_prepared_statements)
    }

    /// How long a query takes that is logged; `None`: none is.
    pub fn log_min_duration(&self, database: &Database) -> Option<Duration> {
        let own = database.log_min_duration;
        own.unwrap_or(self.settings.log_min_duration).0
    }

    /// Uses after which an unnamed statement is prepared; 0: never.
    pub fn prepare_unnamed_after(&self, database: &Database) -> usize {
        database
            .prepare_unnamed_after
            .unwrap_or(self.settings.prepare_unnamed_after)
    }

    /// Most servers of a database; 0: no limit.
    pub fn max_db_connections(&self, database: &Database) -> usize {
        database
            .max_db_connections
            .unwrap_or(self.settings.max_db_connections)
    }

    /// Most clients of a database; 0: no limit.
    pub fn max_db_client_connections(&self, database: &Database) -> usize {
        database
            .max_db_client_connections
            .unwrap_or(self.settings.max_db_client_connections)
    }

    /// Most servers that log in with this name; 0: no limit.
    pub fn max_user_connections(&self, server_user: &str) -> usize {
        let own = self
            .user(server_user)
            .and_then(|user| user.max_user_connections);
        own.unwrap_or(self.settings.max_user_connections)
    }

    /// Most clients that log in with this name; 0: no limit.
    pub fn max_user_client_connections(&self, client_user: &str) -> usize {
        let own = self
            .user(client_user)
            .and_then(|user| user.max_user_client_connections);
        own.unwrap_or(self.settings.max_user_client_connections)
    }

    /// Longest a query may run; zero: no limit.
    pub fn query_timeout(&self, database: &Database, server_user: &str) -> Duration {
        let own = database
            .pool_user(server_user)
            .and_then(|user| user.query_timeout);
        own.or_else(|| self.user(server_user)?.query_timeout)
            .unwrap_or(self.settings.query_timeout)
    }

    /// Longest a query may wait for a server; zero: for ever.
    pub fn query_wait_timeout(&self, database: &Database, client_user: &str) -> Duration {
        self.user(client_user)
            .and_then(|user| user.query_wait_timeout)
            .or(database.query_wait_timeout)
            .unwrap_or(self.settings.query_wait_timeout)
    }

    /// Longest idling within a transaction; zero: no limit.
    pub fn idle_transaction_timeout(&self, server_user: &str) -> Duration {
        let own = self
            .user(server_user)
            .and_then(|user| user.idle_transaction_timeout);
        own.unwrap_or(self.settings.idle_transaction_timeout)
    }

    /// Longest transaction; zero: no limit.
    pub fn transaction_timeout(&self, server_user: &str) -> Duration {
        let own = self
            .user(server_user)
            .and_then(|user| user.transaction_timeout);
        own.unwrap_or(self.settings.transaction_timeout)
    }

    /// Longest silence of a client that has no server; zero: no limit.
    pub fn client_idle_timeout(&self, client_user: &str) -> Duration {
        let own = self
            .user(client_user)
            .and_then(|user| user.client_idle_timeout);
        own.unwrap_or(self.settings.client_idle_timeout)
    }

    /// Who runs `auth_query` for clients of this database; `None`: it is not used.
    pub fn auth_user<'a>(&'a self, database: &'a Database) -> Option<&'a str> {
        database
            .auth_user
            .as_deref()
            .or(self.settings.auth_user.as_deref())
    }

    /// The query that looks up secrets for clients of this database.
    pub fn auth_query<'a>(&'a self, database: &'a Database) -> &'a str {
        database
            .auth_query
            .as_deref()
            .unwrap_or(&self.settings.auth_query)
    }

    /// The database that `auth_query` runs in; `None`: the one the client asks for.
    pub fn auth_dbname<'a>(&'a self, database: &'a Database) -> Option<&'a str> {
        database
            .auth_dbname
            .as_deref()
            .or(self.settings.auth_dbname.as_deref())
    }

    fn user(&self, name: &str) -> Option<&UserSettings> {
        self.users.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Host, PoolUser};

    fn app() -> Database {
        Database::new("app", Host::Tcp("db".into()))
    }

    #[test]
    fn a_user_wins_over_a_database_and_a_database_over_the_global_setting() {
        let mut config = Config::default();
        let mut database = app();
        assert_eq!(config.pool_size(&database, "u"), 20);
        assert_eq!(
            config.query_wait_timeout(&database, "u"),
            Duration::from_secs(120)
        );
        database.pool_size = Some(5);
        database.pool_mode = Some(PoolMode::Transaction);
        database.query_wait_timeout = Some(Duration::from_secs(7));
        assert_eq!(config.pool_size(&database, "u"), 5);
        assert_eq!(config.pool_mode(&database, "u"), PoolMode::Transaction);
        assert_eq!(
            config.query_wait_timeout(&database, "u"),
            Duration::from_secs(7)
        );
        let user = UserSettings {
            pool_size: Some(2),
            pool_mode: Some(PoolMode::Statement),
            query_wait_timeout: Some(Duration::ZERO),
            ..UserSettings::default()
        };
        config.users.insert("u".into(), user);
        assert_eq!(config.pool_size(&database, "u"), 2);
        assert_eq!(config.pool_mode(&database, "u"), PoolMode::Statement);
        assert_eq!(config.query_wait_timeout(&database, "u"), Duration::ZERO);
        assert_eq!(config.pool_size(&database, "other"), 5);
        database.users.insert(
            "u".into(),
            PoolUser {
                pool_size: Some(1),
                ..PoolUser::default()
            },
        );
        assert_eq!(config.pool_size(&database, "u"), 1);
    }

    #[test]
    fn the_fallback_takes_the_name_that_was_asked_for() {
        let mut config = Config::default();
        assert!(config.database("any").is_none());
        config.fallback = Some(Arc::new(Database {
            port: 5433,
            ..app()
        }));
        let made = config.database("any").unwrap();
        assert_eq!(
            (made.name.as_str(), made.server_dbname(), made.port),
            ("any", "any", 5433)
        );
        assert!(config.database("pgbouncer").is_none());
        assert!(config.database(&"x".repeat(64)).is_none());
    }

    #[test]
    fn a_configured_database_comes_before_the_fallback() {
        let mut config = Config {
            fallback: Some(Arc::new(app())),
            ..Config::default()
        };
        config
            .databases
            .insert("app".into(), Arc::new(Database { port: 1, ..app() }));
        assert_eq!(config.database("app").unwrap().port, 1);
    }

    #[test]
    fn a_forced_user_logs_in_with_its_own_secret() {
        let mut config = Config::default();
        config
            .secrets
            .insert("forced".into(), SecretText::new("stored"));
        config
            .secrets
            .insert("client".into(), SecretText::new("mine"));
        let mut database = app();
        assert_eq!(config.server_user(&database, "client"), "client");
        assert_eq!(
            config.server_secret(&database, "client").unwrap().expose(),
            "mine"
        );
        database.user = Some("forced".into());
        assert_eq!(config.server_user(&database, "client"), "forced");
        assert_eq!(
            config.server_secret(&database, "client").unwrap().expose(),
            "stored"
        );
        database.password = Some(SecretText::new("own"));
        assert_eq!(
            config.server_secret(&database, "client").unwrap().expose(),
            "own"
        );
        assert_eq!(config.secret(&database, "client").unwrap().expose(), "mine");
    }

    #[test]
    fn a_database_with_users_admits_nobody_else() {
        let mut config = Config::default();
        config.secrets.insert("admin".into(), SecretText::new("x"));
        let mut database = app();
        assert!(config.admits(&database, "admin"));
        let user = PoolUser {
            password: Some(SecretText::new("p")),
            server_username: Some("real".into()),
            server_password: Some(SecretText::new("q")),
            ..PoolUser::default()
        };
        database.users.insert("alias".into(), user);
        assert!(config.admits(&database, "alias") && !config.admits(&database, "admin"));
        assert_eq!(config.server_user(&database, "alias"), "real");
        assert_eq!(config.secret(&database, "alias").unwrap().expose(), "p");
        assert_eq!(
            config.server_secret(&database, "alias").unwrap().expose(),
            "q"
        );
    }
}
