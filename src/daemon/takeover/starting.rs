//! A successor that this process starts itself (the console's `UPGRADE`), so that it is in the same control group, under the
//! same supervisor, and with the same arguments and environment.
//!
//! Its standard input is one end of a pair of sockets, and the takeover is talked about there: no Unix socket has to be found
//! by its name, and a successor that can't start says why. It knows of that by a variable with the number of its parent.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::unistd::{dup2_stdin, getppid};

use super::{Error, Kind, Word, say};
use crate::daemon::cli::Args;
use crate::net::Parcels;

/// The variable with the number of the process that has started a successor.
const PARENT: &str = "PGFERRY_SUCCEEDS";

/// Where systemd has put sockets, for a process that is not the successor (`sd_listen_fds(3)`).
const ACTIVATION: [&str; 4] = [
    "LISTEN_PID",
    "LISTEN_PIDFDID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
];

/// The process whose watchdog is fed (`sd_watchdog_enabled(3)`).
const WATCHDOG: &str = "WATCHDOG_PID";

/// How this process was started.
#[derive(Debug, Clone)]
pub struct Origin {
    program: PathBuf,
    /// What it is called by.
    name: OsString,
    arguments: Vec<OsString>,
}

impl Origin {
    /// Of a process with this command line. To be asked for at the start, when its program is where it was found: a package
    /// may put another one there later, which is the one meant.
    pub fn of(argv: &[OsString], args: &Args) -> Self {
        let name = argv.first().cloned().unwrap_or_default();
        let running = std::env::current_exe().unwrap_or_default();
        Self {
            program: found_as(&name, &running).unwrap_or(running),
            name,
            arguments: arguments(args),
        }
    }

    /// Starts a successor. Comes back with it and with our end of what it talks by.
    pub fn start(&self) -> Result<(Child, UnixStream), Error> {
        let (ours, theirs) = UnixStream::pair()?;
        let child = self.command(OwnedFd::from(theirs)).spawn();
        let child = child.map_err(|source| Error::Start {
            path: self.program.clone(),
            source,
        })?;
        tracing::info!("started process {} to take over", child.id());
        Ok((child, ours))
    }

    fn command(&self, input: OwnedFd) -> Command {
        let own = std::process::id();
        let mut command = Command::new(&self.program);
        command
            .arg0(&self.name)
            .args(&self.arguments)
            .env(PARENT, own.to_string())
            .stdin(Stdio::from(input));
        for name in ACTIVATION {
            command.env_remove(name);
        }
        // Who had been told to feed it passes that on, and nobody else.
        let watchdog = std::env::var(WATCHDOG);
        if watchdog.is_ok_and(|pid| pid.parse() == Ok(own)) {
            command.env_remove(WATCHDOG);
        }
        command
    }
}

/// The name by which this program was found, if it was: a symbolic link may lead to another version by now.
fn found_as(name: &OsStr, running: &Path) -> Option<PathBuf> {
    let identity = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let own = identity(running)?;
    let is_it = |path: &PathBuf| identity(path) == Some(own);
    if Path::new(name).components().count() > 1 {
        return std::path::absolute(name).ok().filter(is_it);
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(is_it)
}

/// The same again, for a process that takes over. It stays where its parent is: in the background, or not.
fn arguments(args: &Args) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["-R".into()];
    if args.quiet || args.daemon {
        arguments.push("-q".into());
    }
    arguments.extend((0..args.verbose).map(|_| "-v".into()));
    if let Some(user) = &args.user {
        arguments.push(format!("--user={user}").into());
    }
    if let Some(config) = &args.config {
        arguments.extend(["--".into(), config.clone().into()]);
    }
    arguments
}

/// What a process talks by whose parent has started it as its successor.
pub fn by_parent() -> Option<io::Result<UnixStream>> {
    let parent = std::env::var(PARENT).ok()?;
    let is_ours = parent.parse() == Ok(getppid().as_raw());
    is_ours.then(|| {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(UnixStream::from(input))
    })
}

/// Tells the parent why its successor can't start.
pub fn give_up(reason: &str) {
    let Some(Ok(socket)) = by_parent() else {
        return;
    };
    let word = Word {
        text: reason.to_owned(),
        pid: 0,
    };
    // The parent learns that we are gone in any case.
    let _ = Parcels::over(socket).and_then(|parcels| say(&parcels, Kind::Failed, &word, &[]));
}

/// The successor has taken over: its standard input is nothing special any more.
pub fn let_go() {
    if by_parent().is_some() {
        // An error: it stays what it is, and nobody reads it.
        let _ = File::open("/dev/null").map(dup2_stdin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::cli;

    fn again(line: &str) -> String {
        let argv = std::iter::once("pgferry").chain(line.split_whitespace());
        let args = cli::parse(argv.map(OsString::from)).unwrap();
        arguments(&args)
            .join(OsStr::new(" "))
            .into_string()
            .unwrap()
    }

    #[test]
    fn a_successor_gets_the_same_arguments_but_for_the_background() {
        let table = [
            ("a.ini", "-R -- a.ini"),
            ("-R a.ini", "-R -- a.ini"),
            ("-dq a.ini", "-R -q -- a.ini"),
            ("a.ini -d", "-R -q -- a.ini"),
            ("-vv -u pooler a.ini", "-R -v -v --user=pooler -- a.ini"),
            ("-- -a.ini", "-R -- -a.ini"),
            ("-q", "-R -q"),
        ];
        for (line, wanted) in table {
            assert_eq!(again(line), wanted, "{line}");
            assert_eq!(again(wanted), wanted, "and of that {line}");
        }
    }

    #[test]
    fn a_link_is_followed_when_the_successor_starts_and_a_lie_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let link = folder.path().join("current");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        assert_eq!(found_as(link.as_os_str(), &own), Some(link));
        assert_eq!(found_as(OsStr::new("/bin/sh"), &own), None);
        assert_eq!(found_as(OsStr::new("no-such-program"), &own), None);
        assert_eq!(found_as(OsStr::new(""), &own), None);
        let shell = Path::new("/bin/sh");
        let found = found_as(OsStr::new("sh"), shell).unwrap();
        assert!(found.ends_with("sh") && found.is_absolute());
    }

    #[test]
    fn what_is_for_this_process_alone_is_not_passed_on() {
        let origin = Origin {
            program: "/bin/true".into(),
            name: "true".into(),
            arguments: Vec::new(),
        };
        let null = File::open("/dev/null").unwrap();
        let command = origin.command(null.into());
        let said = |wanted: &str| {
            let mut all = command.get_envs();
            all.find(|(name, _)| *name == wanted)
                .map(|(_, value)| value.map(OsStr::to_owned))
        };
        for name in ACTIVATION {
            assert_eq!(said(name), Some(None), "{name}");
        }
        assert_eq!(said("NOTIFY_SOCKET"), None, "it is as it was");
        let own = std::process::id().to_string();
        assert_eq!(said(PARENT), Some(Some(own.into())));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let origin = Origin {
            program: "/no/such/program".into(),
            name: "pgferry".into(),
            arguments: Vec::new(),
        };
        let error = origin.start().unwrap_err().to_string();
        assert!(
            error.starts_with("could not run /no/such/program: "),
            "{error}"
        );
    }
}
