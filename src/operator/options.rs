//! The options by which a console is found: `psql`'s letters, a URL, or the pooler's own file.

use std::path::PathBuf;

use clap::{ArgAction, Args};

/// Where the console is and who asks. What is not given comes from `--config`, then from the variables `PGHOST`,
/// `PGPORT`, `PGUSER`, `PGPASSWORD`, `PGSSLMODE` and `PGSSLROOTCERT`.
// The doc comments of the fields are what `--help` shows. `-h` is the host, as in psql, so the help has no letter.
#[derive(Debug, Clone, Default, Args)]
#[expect(clippy::doc_markdown, reason = "help texts, shown as they are")]
pub struct Options {
    /// The console, as postgres://user:password@host:port/pgbouncer
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// Host, or the directory of the Unix socket [default: 127.0.0.1]
    #[arg(short = 'h', long, value_name = "HOST")]
    pub host: Option<String>,

    /// Port [default: 6432]
    #[arg(short, long, value_name = "PORT")]
    pub port: Option<u16>,

    /// User; the password comes from PGPASSWORD or from the auth_file of --config
    #[arg(short = 'U', long = "username", alias = "user", value_name = "USER")]
    pub user: Option<String>,

    /// The console's name [default: pgbouncer]
    #[arg(short, long, value_name = "NAME")]
    pub dbname: Option<String>,

    /// Take address, port and user from this file of the pooler's (ini or TOML)
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print help
    #[arg(long, action = ArgAction::Help)]
    pub(super) help: Option<bool>,
}
