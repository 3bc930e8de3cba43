//! The command line: `PgBouncer`'s options and manners, and `--check`.
//!
//! Only the grammar and the texts live here; what the options do is the start's business. clap
//! parses, but complaints are worded like getopt's and leave with 1, as scripts around
//! `PgBouncer` expect; clap would say more and leave with 2.

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// The PgBouncer version whose behaviour is ours.
pub const COMPATIBLE_WITH: &str = "1.25.2";

/// What `-V` prints and `SHOW VERSION` returns.
///
/// Drivers and scripts take the first `N.N.N` in it for the `PgBouncer` version whose behaviour
/// they may count on; our own comes after it.
pub const VERSION_LINE: &str = concat!(
    "pgferry (PgBouncer 1.25.2 compatible) ",
    env!("CARGO_PKG_VERSION")
);

/// A PostgreSQL connection pooler: PgBouncer's files and habits on many cores.
// The doc comments of this struct are what `--help` shows.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(
    name = "pgferry",
    version = VERSION_LINE,
    after_help = crate::operator::COMMANDS,
    infer_long_args = true,
    args_override_self = true
)]
#[expect(clippy::doc_markdown, reason = "help texts, shown as they are")]
#[expect(clippy::struct_excessive_bools, reason = "a flag is a bool")]
pub struct Args {
    /// Run in the background (needs the setting pidfile)
    #[arg(short, long)]
    pub daemon: bool,

    /// Print nothing on stderr
    #[arg(short, long)]
    pub quiet: bool,

    /// Take the place of the process that runs: its sockets, clients and servers, without their noticing
    #[arg(short = 'R', long)]
    pub reboot: bool,

    /// Say more; repeat it for even more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Become this user once the configuration is read
    #[arg(short, long, value_name = "USER", allow_hyphen_values = true)]
    pub user: Option<String>,

    /// Read and check the configuration, then exit
    #[arg(long)]
    pub check: bool,

    /// The configuration file; may be left out when DATABASE_URL is set
    pub config: Option<PathBuf>,

    // Taken here to be refused in PgBouncer's words.
    #[arg(hide = true)]
    surplus: Vec<PathBuf>,
}

/// The command line asks for no start: what to print, where, and the exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// `-h` or `-V`: text for stdout, exit code 0.
    Told(String),
    /// A mistake: text for stderr, exit code 1.
    Refused(String),
}

impl Exit {
    /// `PgBouncer`'s two lines for a command line without a configuration file, or with two.
    pub fn missing_config(argv0: &str) -> Self {
        Self::refused(argv0, "no configuration file specified")
    }

    fn refused(argv0: &str, complaint: &str) -> Self {
        Self::Refused(format!(
            "{argv0}: {complaint}\nTry \"{argv0} --help\" for more information.\n"
        ))
    }

    /// Prints the text and gives the exit code to leave `main` with.
    pub fn print(&self) -> ExitCode {
        use std::io::Write;
        // Nobody is left to tell when the terminal is gone.
        match self {
            Self::Told(text) => {
                let _ = std::io::stdout().write_all(text.as_bytes());
                ExitCode::SUCCESS
            }
            Self::Refused(text) => {
                let _ = std::io::stderr().write_all(text.as_bytes());
                ExitCode::FAILURE
            }
        }
    }
}

/// Parses a whole command line, the program's name first (`std::env::args_os()`).
///
/// A line without a configuration file is accepted: without `DATABASE_URL` in the environment
/// the start ends with [`Exit::missing_config`].
pub fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Args, Exit> {
    let words: Vec<OsString> = argv.into_iter().collect();
    let argv0 = program(&words);
    let parsed = Args::try_parse_from(&words).map_err(|error| exit(&argv0, &error))?;
    if !parsed.surplus.is_empty() {
        return Err(Exit::missing_config(&argv0));
    }
    Ok(parsed)
}

/// The name the program was called by, for messages; `pgferry` when there is none.
pub fn program(argv: &[OsString]) -> String {
    argv.first().map_or_else(
        || "pgferry".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}

fn exit(argv0: &str, error: &clap::Error) -> Exit {
    match error.kind() {
        ErrorKind::DisplayHelp => Exit::Told(error.render().to_string()),
        ErrorKind::DisplayVersion => Exit::Told(format!("{VERSION_LINE}\n")),
        kind => Exit::refused(argv0, &complaint(kind, error)),
    }
}

/// glibc's getopt wording of a clap error.
fn complaint(kind: ErrorKind, error: &clap::Error) -> String {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        let text = error.render().to_string();
        let line = text.lines().next().unwrap_or_default();
        return line.strip_prefix("error: ").unwrap_or(line).to_owned();
    };
    // clap adds the value's name: `--user <USER>`.
    let option = argument.split_whitespace().next().unwrap_or(argument);
    match kind {
        ErrorKind::UnknownArgument => match option.strip_prefix("--") {
            Some(_) => format!("unrecognized option '{option}'"),
            None => format!("invalid option -- '{}'", option.trim_start_matches('-')),
        },
        ErrorKind::TooManyValues => format!("option '{option}' doesn't allow an argument"),
        ErrorKind::InvalidUtf8 => format!("option '{option}' has an argument that is not UTF-8"),
        _ => format!("option '{option}' requires an argument"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(line: &str) -> Result<Args, Exit> {
        parse(
            std::iter::once("pgferry")
                .chain(line.split_whitespace())
                .map(OsString::from),
        )
    }

    /// What was understood, in one order.
    fn understood(line: &str) -> String {
        let args = parse_words(line).unwrap_or_else(|exit| panic!("{line}: {exit:?}"));
        let mut words = Vec::new();
        for (set, word) in [
            (args.daemon, "daemon"),
            (args.quiet, "quiet"),
            (args.reboot, "reboot"),
            (args.check, "check"),
        ] {
            words.extend(set.then(|| word.to_owned()));
        }
        words.extend((args.verbose > 0).then(|| format!("verbose={}", args.verbose)));
        words.extend(args.user.as_ref().map(|user| format!("user={user}")));
        words.extend(args.config.as_ref().map(|file| file.display().to_string()));
        words.join(" ")
    }

    #[test]
    fn accepted_lines_mean_what_pgbouncer_means_by_them() {
        let table = [
            ("a.ini", "a.ini"),
            ("-d a.ini", "daemon a.ini"),
            ("a.ini -d", "daemon a.ini"),
            ("--daemon --daemon a.ini", "daemon a.ini"),
            ("--quiet a.ini", "quiet a.ini"),
            ("-dq a.ini", "daemon quiet a.ini"),
            ("-R a.ini", "reboot a.ini"),
            ("--reboot a.ini", "reboot a.ini"),
            ("-v a.ini", "verbose=1 a.ini"),
            ("-vv a.ini --verbose", "verbose=3 a.ini"),
            ("--verb a.ini", "verbose=1 a.ini"),
            ("-u pooler a.ini", "user=pooler a.ini"),
            ("-upooler a.ini", "user=pooler a.ini"),
            ("--user=pooler a.ini", "user=pooler a.ini"),
            ("a.ini --user pooler", "user=pooler a.ini"),
            ("-u one -u two a.ini", "user=two a.ini"),
            ("-u -d a.ini", "user=-d a.ini"),
            ("--check a.ini", "check a.ini"),
            ("-- a.ini", "a.ini"),
            ("-- -a.ini", "-a.ini"),
            ("-d", "daemon"),
            ("", ""),
        ];
        for (line, expected) in table {
            assert_eq!(understood(line), expected, "{line}");
        }
    }

    #[test]
    fn refused_lines_get_one_complaint_and_the_hint() {
        let table = [
            ("a.ini b.ini", "no configuration file specified"),
            ("a.ini -- -b.ini", "no configuration file specified"),
            ("--frob a.ini", "unrecognized option '--frob'"),
            ("--frob=1 a.ini", "unrecognized option '--frob'"),
            ("-x a.ini", "invalid option -- 'x'"),
            ("-dx a.ini", "invalid option -- 'x'"),
            ("-x1 a.ini", "invalid option -- 'x'"),
            ("a.ini -u", "option '--user' requires an argument"),
            ("a.ini --user", "option '--user' requires an argument"),
            (
                "--daemon=1 a.ini",
                "option '--daemon' doesn't allow an argument",
            ),
        ];
        for (line, complaint) in table {
            let expected =
                format!("pgferry: {complaint}\nTry \"pgferry --help\" for more information.\n");
            assert_eq!(parse_words(line), Err(Exit::Refused(expected)), "{line}");
        }
    }

    #[test]
    fn the_complaint_calls_the_program_as_it_was_called() {
        let exit = Exit::missing_config("/usr/sbin/pgbouncer");
        let text = "/usr/sbin/pgbouncer: no configuration file specified\n\
                    Try \"/usr/sbin/pgbouncer --help\" for more information.\n";
        assert_eq!(exit, Exit::Refused(text.to_owned()));
        assert_eq!(program(&[]), "pgferry");
    }

    #[test]
    fn version_and_help_are_told_on_stdout() {
        for line in ["-V", "--version", "a.ini -V"] {
            assert_eq!(
                parse_words(line),
                Err(Exit::Told(format!("{VERSION_LINE}\n"))),
                "{line}"
            );
        }
        for line in ["-h", "--help"] {
            let Err(Exit::Told(text)) = parse_words(line) else {
                panic!("{line} told nothing")
            };
            assert!(
                text.contains("Usage: pgferry [OPTIONS] [CONFIG]\n"),
                "{text}"
            );
            for option in [
                "--daemon",
                "--quiet",
                "--reboot",
                "--user",
                "--check",
                "--version",
            ] {
                assert!(text.contains(option), "{option} is missing in {text}");
            }
        }
    }

    #[test]
    fn the_first_three_numbers_of_the_version_are_pgbouncers() {
        let numbers: Vec<_> = VERSION_LINE
            .split(|c: char| !c.is_ascii_digit() && c != '.')
            .filter(|word| word.split('.').count() == 3)
            .collect();
        assert_eq!(numbers, ["1.25.2", env!("CARGO_PKG_VERSION")]);
    }

    #[test]
    fn a_name_that_is_not_utf_8_is_still_a_file() {
        use std::os::unix::ffi::OsStringExt;
        let file = OsString::from_vec(vec![b'a', 0xff]);
        let args = parse([OsString::from("pgferry"), file.clone()]).unwrap();
        assert_eq!(args.config, Some(file.into()));
    }

    fn packaging(name: &str) -> PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("packaging")
            .join(name)
    }

    #[test]
    fn the_completions_of_the_packages_know_every_option() {
        use clap::CommandFactory;
        use clap_complete::{Shell, generate};
        for (shell, name) in [
            (Shell::Bash, "completions/pgferry.bash"),
            (Shell::Zsh, "completions/_pgferry"),
            (Shell::Fish, "completions/pgferry.fish"),
        ] {
            let mut made = Vec::new();
            generate(shell, &mut Args::command(), "pgferry", &mut made);
            let path = packaging(name);
            if std::env::var_os("UPDATE_DOCS").is_some() {
                std::fs::write(&path, &made).unwrap();
            }
            let written = std::fs::read(path).unwrap_or_default();
            assert!(
                written == made,
                "packaging/{name} is stale: UPDATE_DOCS=1 cargo test --lib cli"
            );
        }
    }

    #[test]
    fn the_manual_page_has_every_option() {
        use clap::CommandFactory;
        let page = std::fs::read_to_string(packaging("man/pgferry.1")).unwrap();
        let mut command = Args::command();
        command.build();
        for option in command.get_arguments().filter_map(clap::Arg::get_long) {
            let line = format!(r"\-\-{option}");
            assert!(page.contains(&line), "--{option} is not in pgferry.1");
        }
        for subcommand in command.get_subcommands().map(clap::Command::get_name) {
            let line = format!(".B {subcommand}");
            assert!(
                subcommand == "help" || page.contains(&line),
                "{subcommand} is not in pgferry.1"
            );
        }
    }
}
