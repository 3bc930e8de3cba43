//! The pidfile: says that we run, and to whom a script may send its signals.
//!
//! A start looks first and writes later ([`check`] before it daemonises, so that the complaint
//! still reaches the terminal; [`Pidfile::create`] after, when the pid is final). Locking is not
//! done here: as with `PgBouncer`, a pid that lives is the lock.

use crate::daemon::Error;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// No pid is longer than this; what is longer is not a pidfile of ours.
const LONGEST: u64 = 32;

/// Refuses to go on when the pidfile belongs to a process that lives, and removes a stale one.
///
/// [`Error::PidfileExists`] also when the content is no pid: the file may be somebody else's.
pub fn check(path: &Path) -> Result<(), Error> {
    let failed = |source| Error::Pidfile {
        path: path.to_owned(),
        source,
    };
    let Some(content) = read(path).map_err(failed)? else {
        return Ok(());
    };
    match parse_pid(&content) {
        Some(pid) if !is_alive(pid) => {}
        Some(_) | None => {
            return Err(Error::PidfileExists {
                path: path.to_owned(),
            });
        }
    }
    tracing::info!("stale pidfile, removing");
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Our pidfile, removed on drop.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
    pid: u32,
}

impl Pidfile {
    /// Checks once more and writes our pid and a newline, mode 0644 less the umask.
    ///
    /// Call it after daemonising: the pid written is the present one. Two starts at the same
    /// moment cannot both succeed, since the file is created with `O_EXCL`.
    pub fn create(path: &Path) -> Result<Self, Error> {
        check(path)?;
        let pid = std::process::id();
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(path)
            .map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => Error::PidfileExists {
                    path: path.to_owned(),
                },
                _ => Error::Pidfile {
                    path: path.to_owned(),
                    source,
                },
            })?;
        // From here on the file is ours to remove, also when the disk is full.
        let pidfile = Self {
            path: path.to_owned(),
            pid,
        };
        file.write_all(format!("{pid}\n").as_bytes())
            .map_err(|source| Error::Pidfile {
                path: path.to_owned(),
                source,
            })?;
        Ok(pidfile)
    }

    /// Writes our pid again in place of that of a successor, which has failed.
    pub fn reclaim(path: &Path, successor: u32) -> Result<Self, Error> {
        let failed = |source| Error::Pidfile {
            path: path.to_owned(),
            source,
        };
        let content = read(path).map_err(failed)?;
        let named = content.and_then(|content| parse_pid(&content));
        if named.is_some_and(|pid| pid.as_raw().cast_unsigned() == successor) {
            fs::remove_file(path).map_err(failed)?;
        }
        Self::create(path)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Pidfile {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return; // a forked copy of us
        }
        // Somebody may have removed our file and started a second instance: leave that one's alone.
        let foreign = matches!(read(&self.path), Ok(Some(content))
            if parse_pid(&content).is_some_and(|pid| pid.as_raw().cast_unsigned() != self.pid));
        if !foreign
            && let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(
                "could not remove pidfile '{}': {error}",
                self.path.display()
            );
        }
    }
}

/// The first bytes of the file, `None` when there is none.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = Vec::new();
    file.take(LONGEST).read_to_end(&mut content)?;
    Ok(Some(content))
}

fn parse_pid(content: &[u8]) -> Option<Pid> {
    let pid: i32 = std::str::from_utf8(content).ok()?.trim().parse().ok()?;
    // Zero and below would ask kill(2) about process groups.
    (pid > 0).then(|| Pid::from_raw(pid))
}

fn is_alive(pid: Pid) -> bool {
    // Our own pid in a file we have not written is a leftover: in a container every start is pid 1.
    if pid == Pid::this() {
        return false;
    }
    // EPERM says that it lives and is somebody else's; whatever else fails is no proof of death.
    !matches!(kill(pid, None), Err(Errno::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgferry.pid");
        (folder, path)
    }

    /// A pid that was alive a moment ago and has been reaped.
    fn dead_pid() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        pid
    }

    #[test]
    fn the_file_holds_our_pid_and_goes_with_the_value() {
        let (_folder, path) = folder();
        let pidfile = Pidfile::create(&path).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("{}\n", std::process::id())
        );
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777 & !0o644, 0);
        assert_eq!(pidfile.path(), path);
        drop(pidfile);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_pid_is_another_instance() {
        let (_folder, path) = folder();
        let parent = Pid::parent();
        fs::write(&path, format!("{parent}\n")).unwrap();
        let error = Pidfile::create(&path).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "pidfile '{}' exists, another instance running?",
                path.display()
            )
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{parent}\n"));
    }

    #[test]
    fn a_dead_pid_is_stale_and_replaced() {
        let (_folder, path) = folder();
        fs::write(&path, format!("{}\n", dead_pid())).unwrap();
        check(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, dead_pid().to_string()).unwrap();
        let _pidfile = Pidfile::create(&path).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("{}\n", std::process::id())
        );
    }

    #[test]
    fn our_own_pid_is_a_leftover_of_an_earlier_container() {
        let (_folder, path) = folder();
        fs::write(&path, std::process::id().to_string()).unwrap();
        assert!(check(&path).is_ok());
    }

    #[test]
    fn content_that_is_no_pid_is_left_alone() {
        let (_folder, path) = folder();
        for content in ["", "0\n", "-1\n", "nobody\n", "12 13\n", "99999999999\n"] {
            fs::write(&path, content).unwrap();
            assert!(
                matches!(check(&path), Err(Error::PidfileExists { .. })),
                "{content:?}"
            );
            assert!(path.exists());
        }
    }

    #[test]
    fn a_missing_folder_is_an_error_when_writing() {
        let (folder, _) = folder();
        let path = folder.path().join("absent/pgferry.pid");
        assert!(check(&path).is_ok());
        assert!(matches!(Pidfile::create(&path), Err(Error::Pidfile { .. })));
    }

    #[test]
    fn a_file_that_became_another_instances_stays() {
        let (_folder, path) = folder();
        let pidfile = Pidfile::create(&path).unwrap();
        fs::write(&path, format!("{}\n", Pid::parent())).unwrap();
        drop(pidfile);
        assert!(path.exists());
    }
}
