//! The process and its files: in the background, its pidfile, its log, several on one port.

use std::path::{Path, PathBuf};
use std::process::Output;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::pooler::binary;
use crate::support::ports::free_port;
use crate::support::postgres::password;
use crate::support::process::{command, directory, hand_over};
use crate::support::{Pooler, Wire, postgres, wait_until};

/// A folder with a configuration, and the daemon that runs there, if any.
pub(crate) struct Home {
    pub folder: PathBuf,
    pub port: u16,
}

impl Home {
    pub fn new() -> Self {
        let (folder, port) = (directory(), free_port());
        let ini = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir = {}\nauth_type = any\npidfile = pid\nlogfile = log\n",
            postgres().port(),
            folder.display()
        );
        let home = Self { folder, port };
        home.write("a.ini", &ini);
        home
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
        hand_over(&self.path(name));
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        command(binary(), &self.folder)
            .args(arguments)
            .output()
            .unwrap()
    }

    pub fn pid(&self) -> Option<Pid> {
        self.read("pid").trim().parse().ok().map(Pid::from_raw)
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid().unwrap(), signal).unwrap();
    }

    pub fn accepts(&self) -> bool {
        Wire::connect(([127, 0, 0, 1], self.port).into()).is_ok()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = kill(pid, Signal::SIGKILL);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A pid that was alive a moment ago and has been reaped.
fn dead_pid() -> u32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    pid
}

#[test]
fn a_daemon_leaves_its_terminal_and_its_files_are_tidy() {
    let home = Home::new();
    home.write("pid", &format!("{}\n", dead_pid()));
    let started = home.run(&["-d", "a.ini"]);
    assert!(started.status.success(), "{started:?}");
    assert_eq!(
        (started.stdout.len(), started.stderr.len()),
        (0, 0),
        "{started:?}"
    );
    wait_until("it accepts", || home.accepts());
    assert!(home.read("log").contains("stale pidfile, removing"));
    let socket = home.path(&format!(".s.PGSQL.{}", home.port));
    assert!(socket.exists());

    // A second one is told off, on its terminal, and spoils nothing.
    let second = home.run(&["-d", "a.ini"]);
    assert_eq!(second.status.code(), Some(1));
    let complaint = home.read("log");
    assert!(complaint.contains("FATAL unix socket is in use, cannot continue"));
    assert!(home.accepts() && socket.exists());

    // logrotate: the old file is let go on HUP.
    std::fs::rename(home.path("log"), home.path("log.1")).unwrap();
    home.signal(Signal::SIGHUP);
    wait_until("a new log is written", || {
        Path::exists(&home.path("log"))
            && home.read("log.1").contains("got SIGHUP, re-reading config")
    });
    home.signal(Signal::SIGINT);
    wait_until("it has gone", || !home.path("pid").exists());
    wait_until("so has its socket", || !socket.exists());
    assert!(home.read("log").contains("got SIGINT, shutting down"));
}

#[test]
fn a_daemon_needs_a_pidfile_and_one_of_the_living_stops_it() {
    let home = Home::new();
    let ini = home.read("a.ini").replace("pidfile = pid\n", "");
    home.write("b.ini", &ini);
    let refused = home.run(&["-d", "b.ini"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        home.read("log")
            .contains("FATAL daemon needs pidfile configured")
    );
    let ini = home
        .read("a.ini")
        .replace("pidfile = pid", "pidfile = other");
    home.write("c.ini", &ini);
    home.write("other", &format!("{}\n", std::process::id()));
    let refused = home.run(&["c.ini"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        text.contains("FATAL pidfile 'other' exists, another instance running?"),
        "{text}"
    );
}

#[test]
fn the_auth_file_of_an_environment_is_read_again_on_hup() {
    let home = Home::new();
    let database = postgres().database("process");
    let url = format!(
        "postgres://app:{}@127.0.0.1:{}/{database}",
        password("app"),
        postgres().port()
    );
    home.write("users", "\"other\" \"one\"\n");
    let mut child = command(binary(), &home.folder)
        .env("DATABASE_URL", url)
        .env("LISTEN_PORT", home.port.to_string())
        .env("UNIX_SOCKET_DIR", &home.folder)
        .env("AUTH_TYPE", "scram-sha-256")
        .env("ADMIN_USERS", "other")
        .env("AUTH_FILE", "users")
        .env("PIDFILE", "pid")
        .arg("-q")
        .spawn()
        .unwrap();
    let login = |user: &str, database: &str, password: &str| {
        let address = ([127, 0, 0, 1], home.port).into();
        Wire::login(address, user, database, Some(password))
    };
    wait_until("it serves", || login("other", "pgbouncer", "one").is_ok());
    home.write("users", "\"other\" \"two\"\n");
    home.signal(Signal::SIGHUP);
    wait_until("the new password holds", || {
        login("other", "pgbouncer", "two").is_ok()
    });
    assert!(login("other", "pgbouncer", "one").is_err());
    let mut client = login("app", &database, &password("app")).unwrap();
    assert_eq!(client.value("SELECT 1"), "1");
    drop(client);
    home.signal(Signal::SIGINT);
    assert!(child.wait().unwrap().success());
}

#[test]
fn two_processes_share_a_port_and_one_takes_over_from_the_other() {
    let database = postgres().database("process");
    let mut first = Pooler::start(|ini| {
        ini.set("so_reuseport", 1);
    });
    let port = first.address().port();
    let second = Pooler::launch(|ini| {
        ini.set("so_reuseport", 1);
        ini.set("listen_port", port);
    });
    wait_until("the second one is up", || {
        second.log().contains("process up: ")
    });
    let mut client = first.connect(&database);
    client.rows("SELECT 1");
    first.signal(Signal::SIGTERM);
    wait_until("the first one is about to go", || {
        first.log().contains("got SIGTERM") || second.log().contains("got SIGTERM")
    });
    wait_until("new clients go to the second one", || {
        (0..8).all(|_| first.login("app", &database, None).is_ok())
    });
    assert_eq!(
        client.value("SELECT 'served to the end'"),
        "served to the end"
    );
    drop(client);
    // The client may have been the second one's: the first then had none.
    assert!(first.wait().success());
}
