//! The operator's commands: `pgferry show`, `top`, `check`, `health` and `upgrade`, beside PgBouncer's command line.
//!
//! Owns their grammar, a small blocking client of the console ([`console`]), where it connects to ([`target`]), and how
//! its answers are printed. Owns nothing of the running pooler: what is shown comes over the console as it does for
//! `psql`, so that a PgBouncer can be asked as well. `pgferry-top` is a program of its own, in the room `top`.
//!
//! ```text
//!   argv ── command ──┬─ check ──▶ argv of the pooler, with --check
//!                     ├─ top ────▶ pgferry-top, which takes this process's place
//!                     ├─ health ─▶ GET /readyz
//!                     ├─ upgrade ▶ Options ─▶ Target ─▶ Console: UPGRADE
//!                     └─ show ───▶ Options ─▶ Target ─▶ Console ─▶ Rows ─▶ text
//! ```

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use crate::config;
use crate::net::tls::{HandshakeError, SetupError};

pub mod console;
mod health;
pub mod options;
mod show;
pub mod target;
mod upgrade;
mod write;

/// What `pgferry --help` says of the commands.
pub const COMMANDS: &str = "\
Commands, unless a file of that name exists (each knows --help):
  pgferry show NAME     Print what the console's SHOW NAME says
  pgferry top           Watch a pooler in the terminal
  pgferry check FILE    The same as --check FILE
  pgferry health [URL]  Is the pooler ready? Asks its http_listen
  pgferry upgrade       Put a new process in the place of the one that runs
";

/// Why a command has failed. Each is one line on the standard error output; none holds a password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that `--config` names is refused.
    #[error("{0}")]
    Config(#[from] config::Error),
    /// `--url` is none, or a part of it means nothing here.
    #[error("the URL is refused: {0}")]
    Url(config::Problem),
    /// A setting for TLS, from the URL or the environment, is refused.
    #[error("{0}")]
    TlsSetting(config::Problem),
    /// What was given can't be used.
    #[error("{0}")]
    Usage(String),
    /// There is nobody at that address.
    #[error("could not connect to {address}: {source}")]
    Connect {
        /// As in [`target::Address`]'s text.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The connection failed, or took too long.
    #[error("connection lost: {0}")]
    Io(#[from] io::Error),
    /// The files of TLS can't be used.
    #[error("TLS setup failed: {0}")]
    TlsSetup(#[from] SetupError),
    /// No encrypted connection came about.
    #[error("TLS failed: {0}")]
    Tls(#[from] HandshakeError),
    /// TLS is asked for and not to be had.
    #[error("the server does not offer TLS, and sslmode asks for it")]
    NoTls,
    /// The pooler sent what is no message.
    #[error("unexpected answer: {0}")]
    Protocol(#[from] crate::protocol::Error),
    /// A message that has no place here, by its tag.
    #[error("unexpected message '{}'", char::from(*.0).escape_default())]
    Unexpected(u8),
    /// The answer has more bytes than anybody could read.
    #[error("the answer is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// We can't log in by the method that is asked for.
    #[error("login failed: {0}")]
    Login(#[from] crate::auth::Error),
    /// The console has refused: its words.
    #[error("{severity}: {message}")]
    Refused {
        /// `ERROR` or `FATAL`.
        severity: String,
        /// The text.
        message: String,
    },
    /// The pooler answers and is not ready.
    #[error("not ready: {0}")]
    NotReady(String),
    /// `pgferry-top` is not beside `pgferry`.
    #[error("could not run {}: {source} (it is built with --features top)", path.display())]
    NoTop {
        /// Where it was looked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What became of a command line.
#[derive(Debug)]
pub enum Outcome {
    /// A command ran, and the process ends with this code: 0, or 1 after a message.
    Ran(ExitCode),
    /// It is the pooler's, perhaps changed: the whole of it.
    Pooler(Vec<OsString>),
}

/// Runs the command that is the first argument. There is none if that is not one of these words, or if it is a
/// file: PgBouncer's command line takes any name.
pub fn command(mut argv: Vec<OsString>) -> Outcome {
    let word = argv.get(1).and_then(|word| word.to_str());
    let Some(word) = word.filter(|word| !Path::new(word).exists()) else {
        return Outcome::Pooler(argv);
    };
    let outcome = match word {
        "show" => parsed(&argv).and_then(|arguments| complain(show::run(&arguments))),
        "upgrade" => parsed(&argv).and_then(|arguments| complain(upgrade::run(&arguments))),
        "health" => parsed(&argv).and_then(|arguments| complain(health::run(&arguments))),
        "top" => complain(top(argv.split_off(2))),
        "check" => {
            if let Some(word) = argv.get_mut(1) {
                *word = "--check".into();
            }
            return Outcome::Pooler(argv);
        }
        _ => return Outcome::Pooler(argv),
    };
    Outcome::Ran(outcome.err().unwrap_or(ExitCode::SUCCESS))
}

/// The arguments of a command, or the code to end with after clap has said what it has to.
fn parsed<A: Parser>(argv: &[OsString]) -> Result<A, ExitCode> {
    A::try_parse_from(argv.iter().skip(1)).map_err(|error| told(&error))
}

/// Prints clap's text: help is no failure, and a mistake leaves with 1, as on the pooler's own command line.
pub fn told(error: &clap::Error) -> ExitCode {
    // Nobody is left to tell when the terminal is gone.
    let _ = error.print();
    if error.use_stderr() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Says on the standard error output why it failed.
pub fn complain(outcome: Result<(), Error>) -> Result<(), ExitCode> {
    outcome.map_err(|error| {
        eprintln!("pgferry: {error}");
        ExitCode::FAILURE
    })
}

/// Comes back only if `pgferry-top` can't be run.
fn top(arguments: Vec<OsString>) -> Result<(), Error> {
    let path = std::env::current_exe()?.with_file_name("pgferry-top");
    let source = std::process::Command::new(&path).args(arguments).exec();
    Err(Error::NoTop { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn other_lines_are_the_poolers() {
        for line in [
            "pgferry",
            "pgferry -d a.ini",
            "pgferry showing",
            "pgferry -q show",
        ] {
            let Outcome::Pooler(argv) = command(words(line)) else {
                panic!("{line}")
            };
            assert_eq!(argv, words(line));
        }
    }

    #[test]
    fn check_is_the_option() {
        let Outcome::Pooler(argv) = command(words("pgferry check a.ini")) else {
            panic!("it ran")
        };
        assert_eq!(argv, words("pgferry --check a.ini"));
    }

    #[test]
    fn a_command_knows_its_help_and_refuses_what_it_does_not_know() {
        let code = |line| match command(words(line)) {
            Outcome::Ran(code) => code,
            Outcome::Pooler(_) => panic!("{line}"),
        };
        assert_eq!(code("pgferry show --help"), ExitCode::SUCCESS);
        assert_eq!(code("pgferry show"), ExitCode::FAILURE);
        assert_eq!(code("pgferry upgrade --help"), ExitCode::SUCCESS);
        assert_eq!(code("pgferry upgrade now"), ExitCode::FAILURE);
        assert_eq!(code("pgferry health --frob"), ExitCode::FAILURE);
    }
}
