//! Under which database names the console answers.

use crate::config::Config;
pub use crate::config::databases::CONSOLE;

/// Our own name for the console, and PgCat's. A database that is configured under one of them comes first.
const ALIASES: [&str; 2] = ["pgferry", "pgcat"];

/// Is this database the console?
pub fn is_console(config: &Config, database: &str) -> bool {
    database == CONSOLE || (ALIASES.contains(&database) && !config.databases.contains_key(database))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::{Database, Host};

    #[test]
    fn a_configured_database_comes_before_an_alias_and_not_before_the_console() {
        let mut config = Config::default();
        assert!(
            ["pgbouncer", "pgferry", "pgcat"]
                .iter()
                .all(|name| is_console(&config, name))
        );
        assert!(!is_console(&config, "app"));
        for name in ["pgcat", "pgbouncer"] {
            let database = Database::new(name, Host::Tcp("db".into()));
            config.databases.insert(name.into(), Arc::new(database));
        }
        assert!(!is_console(&config, "pgcat"));
        assert!(is_console(&config, "pgbouncer"));
    }
}
