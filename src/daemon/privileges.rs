//! Who we are to the system: user, terminal, limit of open files.
//!
//! Everything here changes the whole process and belongs before the first thread: `daemonize`
//! forks, and a fork takes only the calling thread along.

use crate::daemon::Error;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Uid, User, daemon, getuid, initgroups, setgid, setuid};
use std::ffi::CString;
use std::io;

/// Becomes the named user: its groups, its primary group, its uid (`-u`, `user`).
///
/// Without root only the user we are already can be "switched" to. Supplementary groups come
/// from the group database, so a key readable by group `ssl-cert` stays readable.
pub fn switch_user(name: &str) -> Result<(), Error> {
    let failed = |source: io::Error| Error::SwitchUser {
        name: name.to_owned(),
        source,
    };
    let user = User::from_name(name)
        .map_err(|errno| failed(errno.into()))?
        .ok_or_else(|| Error::UnknownUser {
            name: name.to_owned(),
        })?;
    if getuid().is_root() {
        let account = CString::new(name).map_err(|nul| failed(nul.into()))?;
        initgroups(&account, user.gid).map_err(|errno| failed(errno.into()))?;
    }
    // The group first: afterwards we may not change it any more.
    setgid(user.gid).map_err(|errno| failed(errno.into()))?;
    setuid(user.uid).map_err(|errno| failed(errno.into()))?;
    if !user.uid.is_root() && setuid(Uid::from_raw(0)).is_ok() {
        return Err(failed(io::Error::other("the way back to root is open")));
    }
    Ok(())
}

/// Refuses to serve clients as uid 0; ask after [`switch_user`].
pub fn refuse_root() -> Result<(), Error> {
    refuse_uid(getuid())?;
    refuse_uid(nix::unistd::geteuid())
}

fn refuse_uid(uid: Uid) -> Result<(), Error> {
    if uid.is_root() {
        Err(Error::Root)
    } else {
        Ok(())
    }
}

/// Leaves the terminal: the caller's process exits with 0, its child goes on in a session of its
/// own with stdin, stdout and stderr on `/dev/null` (`-d`).
///
/// The working folder stays, so relative paths in the configuration keep their meaning. Must be
/// called before any thread starts.
pub fn daemonize() -> Result<(), Error> {
    let (keep_folder, keep_stdio) = (true, false);
    daemon(keep_folder, keep_stdio).map_err(|errno| Error::Daemonize {
        source: errno.into(),
    })
}

/// Raises the soft limit of open files to the hard one; gives both as they are afterwards.
///
/// Every client and every server costs one descriptor, and the usual soft limit is 1024. Where
/// the system refuses, the old soft limit comes back and the caller's log line shows it.
pub fn raise_fd_limit() -> Result<(u64, u64), Error> {
    let failed = |errno: nix::Error| Error::FdLimit {
        source: errno.into(),
    };
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed)?;
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        return Ok((hard, hard));
    }
    Ok((soft, hard))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::process::{Command, Stdio};

    /// Runs one of the ignored tests below in a process of its own, since it changes the process.
    fn run_alone(test: &str) -> std::process::Output {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--test-threads=1"])
            .arg(format!("daemon::privileges::tests::{test}"))
            .output()
            .unwrap()
    }

    #[test]
    fn an_unknown_user_is_named_in_the_error() {
        let error = switch_user("no-such-user-here").unwrap_err();
        assert_eq!(
            error.to_string(),
            "could not find user 'no-such-user-here' to switch to"
        );
    }

    #[test]
    fn a_name_with_a_nul_is_no_user() {
        assert!(switch_user("ro\0ot").is_err());
    }

    #[test]
    fn root_is_refused_and_others_are_not() {
        let error = refuse_uid(Uid::from_raw(0)).unwrap_err();
        assert_eq!(error.to_string(), "pgferry should not run as root");
        assert!(refuse_uid(Uid::from_raw(1)).is_ok());
    }

    #[test]
    fn the_soft_limit_of_files_reaches_the_hard_one() {
        let (soft, hard) = raise_fd_limit().unwrap();
        assert_eq!(soft, hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (soft, hard));
    }

    #[test]
    fn root_becomes_the_named_user_for_good() {
        if !getuid().is_root() || User::from_name("nobody").unwrap().is_none() {
            return; // nothing to drop, or nobody to become
        }
        let output = run_alone("become_nobody");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }

    #[test]
    #[ignore = "changes the user of the process; run by root_becomes_the_named_user_for_good"]
    fn become_nobody() {
        let nobody = User::from_name("nobody").unwrap().unwrap();
        switch_user("nobody").unwrap();
        assert_eq!(getuid(), nobody.uid);
        assert_eq!(nix::unistd::getgid(), nobody.gid);
        assert!(
            !nix::unistd::getgroups()
                .unwrap()
                .contains(&nix::unistd::Gid::from_raw(0))
        );
        refuse_root().unwrap();
        assert!(matches!(switch_user("root"), Err(Error::SwitchUser { .. })));
    }

    #[test]
    fn a_daemon_leaves_its_session_and_keeps_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        // A pipe the daemon inherits: it ends with the daemon, whether that spoke or not.
        let (ours, theirs) = nix::unistd::pipe().unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--test-threads=1"])
            .arg("daemon::privileges::tests::become_a_daemon")
            .env("DAEMON_REPORT_FD", theirs.as_raw_fd().to_string())
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        drop(theirs);
        assert!(status.success());
        let mut report = String::new();
        File::from(ours).read_to_string(&mut report).unwrap();
        let lines: Vec<_> = report.lines().collect();
        assert_eq!(lines.len(), 4, "{report:?}");
        assert_eq!(lines[0], lines[1], "not the leader of its session");
        assert_eq!(lines[2], "/dev/null");
        assert_eq!(
            lines[3],
            folder.path().canonicalize().unwrap().to_str().unwrap()
        );
    }

    #[test]
    #[ignore = "leaves the session; run by a_daemon_leaves_its_session_and_keeps_its_folder"]
    fn become_a_daemon() {
        let Ok(fd) = std::env::var("DAEMON_REPORT_FD") else {
            return; // somebody ran the ignored tests: nobody would read what we say
        };
        daemonize().unwrap();
        let session = nix::unistd::getsid(None).unwrap();
        let stderr = std::fs::read_link("/proc/self/fd/2").unwrap();
        let folder = std::env::current_dir().unwrap();
        let pid = std::process::id();
        let text = format!(
            "{pid}\n{session}\n{}\n{}\n",
            stderr.display(),
            folder.display()
        );
        std::fs::write(format!("/proc/self/fd/{fd}"), text).unwrap();
    }
}
