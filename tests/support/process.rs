//! Child processes that never outlive the test run and never run as root.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, User};

/// The account that servers run under: ours, or `postgres` where we are root, since neither
/// PostgreSQL nor the pooler runs as root.
pub fn account() -> (Uid, Gid) {
    static ACCOUNT: OnceLock<(Uid, Gid)> = OnceLock::new();
    *ACCOUNT.get_or_init(|| {
        if !Uid::effective().is_root() {
            return (Uid::effective(), Gid::effective());
        }
        let user = User::from_name("postgres")
            .unwrap()
            .expect("a user named postgres");
        (user.uid, user.gid)
    })
}

/// Gives a file or directory to [`account`].
pub fn hand_over(path: &Path) {
    let (uid, gid) = account();
    std::os::unix::fs::chown(path, Some(uid.as_raw()), Some(gid.as_raw())).unwrap();
}

/// A new directory that [`account`] owns. It is not removed by itself: the supervisor of the process
/// that lives in it does that, even when the test run is killed.
pub fn directory() -> PathBuf {
    let path = tempfile::Builder::new()
        .prefix("pgferry-test-")
        .tempdir()
        .unwrap()
        .keep();
    hand_over(&path);
    path
}

/// `program` under [`account`], in `directory`.
pub fn command(program: impl AsRef<std::ffi::OsStr>, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory);
    if Uid::effective().is_root() {
        let (uid, gid) = account();
        command
            .uid(uid.as_raw())
            .gid(gid.as_raw())
            .env("HOME", directory);
    }
    command
}

/// A server process. Its pid is that of the program itself: a watcher beside it, not above it, ends
/// it and removes its directory once our end of a pipe closes, however we die.
pub struct Process {
    child: Child,
    // Held for its drop only.
    lifeline: Option<ChildStdin>,
}

/// `$1` the signal that ends the program, `$2` its directory, the rest the program. The shell turns
/// into the program, so that signals and the exit status are the program's own. The number of turns is
/// bounded because a dead orphan stays a zombie where nothing reaps it.
const SUPERVISOR: &str = r#"
signal=$1 directory=$2; shift 2
exec 3<&0
( cat <&3 >/dev/null 2>&1
  kill -s "$signal" $$ 2>/dev/null
  turn=0
  while kill -0 $$ 2>/dev/null && [ $turn -lt 50 ]; do sleep 0.1; turn=$((turn + 1)); done
  rm -rf "$directory" ) >/dev/null 2>&1 &
exec 3<&-
exec "$@" </dev/null
"#;

impl Process {
    /// Starts `arguments[0]` in `directory`, with its output in `log`.
    pub fn start(arguments: &[&str], directory: &Path, log: &Path, end_by: Signal) -> Self {
        let output = File::create(log).unwrap();
        hand_over(log);
        let mut child = command("sh", directory)
            .args(["-c", SUPERVISOR, "supervisor", &end_by.as_str()[3..]])
            .arg(directory)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let lifeline = child.stdin.take();
        Self { child, lifeline }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap());
        kill(pid, signal).unwrap();
    }

    /// The exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }
}

/// A process that one of ours has started, in the same directory. Another one beside it ends it when we are gone.
pub struct Orphan {
    pid: u32,
    directory: PathBuf,
    watcher: Child,
}

/// `$1` the process, `$2` its directory, by which it is known to be still the same.
const WATCHER: &str =
    r#"cat >/dev/null; [ "$(readlink "/proc/$1/cwd")" != "$2" ] || kill -s KILL "$1""#;

impl Orphan {
    pub fn adopt(pid: u32, directory: &Path) -> Self {
        let watcher = Command::new("sh")
            .args(["-c", WATCHER, "watcher", &pid.to_string()])
            .arg(directory)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let directory = directory.to_owned();
        Self {
            pid,
            directory,
            watcher,
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Is it there? (One that has ended and that nobody has asked about is in no directory.)
    pub fn runs(&self) -> bool {
        std::fs::read_link(format!("/proc/{}/cwd", self.pid)).is_ok_and(|at| at == self.directory)
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::SIGKILL);
            let _ = self.child.wait();
        }
        drop(self.lifeline.take());
    }
}
