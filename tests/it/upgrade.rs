//! `UPGRADE`: the process starts its successor itself, and what watches over it hears who it is.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, UnixAddr, UnixCredentials, recvmsg, setsockopt,
    sockopt::PassCred,
};
use nix::unistd::Pid;

use crate::process::Home;
use crate::support::pooler::binary;
use crate::support::postgres::password;
use crate::support::process::{Orphan, command, hand_over};
use crate::support::wire::{error, rows};
use crate::support::{PATIENCE, Pooler, Wire, eventually, frontend, postgres, wait_until};

/// A pooler of a service: with a program of its own, so that another one can be put in its place, and a `systemd` that
/// listens.
struct Unit {
    home: Home,
    systemd: UnixDatagram,
    child: Child,
    /// Who was started by the one before.
    successors: Vec<Orphan>,
}

impl Unit {
    /// With these lines at the end of its configuration, and a shell's way of starting the program: `$PROGRAM a.ini`.
    fn start(lines: &str) -> Self {
        let home = Home::new();
        let server = format!(" user=app password='{}'\n[pgbouncer]", password("app"));
        let ini = home.read("a.ini").replace("\n[pgbouncer]", &server)
            + "admin_users = postgres\npool_mode = transaction\ndrain_timeout = 3\n"
            + lines;
        home.write("a.ini", &ini);
        let systemd = UnixDatagram::bind(home.path("notify")).unwrap();
        hand_over(&home.path("notify"));
        systemd.set_read_timeout(Some(PATIENCE)).unwrap();
        setsockopt(&systemd, PassCred, &true).unwrap();
        install(&home, None);
        // As systemd does it: the variables are meant for this process alone.
        let script =
            "exec env WATCHDOG_PID=$$ LISTEN_PID=1 LISTEN_FDS=1 ./pooler -q a.ini >output 2>&1";
        let child = command("sh", &home.folder)
            .args(["-c", script])
            .env("NOTIFY_SOCKET", home.path("notify"))
            .env("WATCHDOG_USEC", "200000")
            .spawn()
            .unwrap();
        let unit = Self {
            home,
            systemd,
            child,
            successors: Vec::new(),
        };
        unit.hears(unit.child.id(), "READY=1");
        unit
    }

    fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.home.port).into()
    }

    fn console(&self) -> Wire {
        Wire::login(self.address(), "postgres", "pgbouncer", None).unwrap()
    }

    fn connect(&self) -> Wire {
        Wire::login(self.address(), "app", "postgres", None).unwrap()
    }

    /// The error that UPGRADE ends with.
    fn refusal(&self) -> String {
        let replies = self.console().query("UPGRADE");
        error(&replies).field('M').unwrap()
    }

    /// What the next message says, and who says it.
    fn next(&self) -> (u32, String) {
        let mut bytes = [0; 1000];
        let mut buffer = [IoSliceMut::new(&mut bytes)];
        let mut space = nix::cmsg_space!(UnixCredentials);
        let (socket, flags) = (self.systemd.as_raw_fd(), MsgFlags::empty());
        let message = recvmsg::<UnixAddr>(socket, &mut buffer, Some(&mut space), flags).unwrap();
        let sender = message.cmsgs().unwrap().find_map(|it| match it {
            ControlMessageOwned::ScmCredentials(who) => Some(who.pid()),
            _ => None,
        });
        let length = message.bytes;
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        (u32::try_from(sender.unwrap()).unwrap(), text)
    }

    /// Waits until this process says so, and fails if anybody else says anything.
    fn hears(&self, who: u32, what: &str) {
        loop {
            let (sender, text) = self.next();
            assert_eq!(sender, who, "{text} before {what}");
            if text.trim_end() == what {
                return;
            }
            assert!(
                text.starts_with("WATCHDOG=1") || text.starts_with("STATUS="),
                "{text} before {what}"
            );
        }
    }

    fn pid(&self) -> u32 {
        let written = || self.home.pid().map(|pid| pid.as_raw().cast_unsigned());
        eventually("its pidfile is there", written)
    }

    /// UPGRADE, and who has taken over.
    fn upgrade(&mut self) -> u32 {
        self.console().rows("UPGRADE");
        self.adopt()
    }

    fn adopt(&mut self) -> u32 {
        let last = self.successors.last().map_or(self.child.id(), Orphan::pid);
        let new = eventually("another process has the pidfile", || {
            Some(self.pid()).filter(|pid| *pid != last)
        });
        self.successors.push(Orphan::adopt(new, &self.home.folder));
        new
    }

    fn ends(mut self) {
        self.home.signal(Signal::SIGINT);
        wait_until("it ends", || !self.home.path("pid").exists());
        wait_until("with all before it", || {
            self.successors.iter().all(|it| !it.runs())
        });
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the pooler's log ---\n{}", self.home.read("log"));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Puts this script, or the program itself, where the pooler was started, as a package does: by a new file.
fn install(home: &Home, script: Option<&str>) {
    let (new, place) = (home.path("new"), home.path("pooler"));
    match script {
        Some(script) => std::fs::write(&new, format!("#!/bin/sh\n{script}\n")).unwrap(),
        None => drop(std::fs::copy(binary(), &new).unwrap()),
    }
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
    hand_over(&new);
    std::fs::rename(new, place).unwrap();
}

#[test]
fn nobody_notices_one_upgrade_after_the_other() {
    let mut pooler = Pooler::start(|ini| {
        ini.set("pidfile", "pooler.pid")
            .set("default_pool_size", 4)
            // There is no socket to knock at.
            .set("unix_socket_dir", "");
    });
    let database = postgres().database("upgrade");
    let mut open = pooler.connect(&database);
    open.rows("CREATE TABLE t AS SELECT 1 AS a");
    open.rows("BEGIN");
    open.rows("UPDATE t SET a = 2");
    let (address, stop) = (pooler.address(), AtomicBool::new(false));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|number| {
                let (stop, database) = (&stop, &database);
                scope.spawn(move || {
                    let mut stays = Wire::login(address, "app", database, None).unwrap();
                    let mut done = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let sql = format!("SELECT {number}");
                        assert_eq!(stays.value(&sql), number.to_string());
                        let mut comes = Wire::login(address, "app", database, None).unwrap();
                        assert_eq!(comes.value(&sql), number.to_string());
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        for _ in 0..4 {
            pooler.upgrade();
        }
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            assert!(worker.join().unwrap() > 0);
        }
    });
    assert_eq!(open.value("SELECT a FROM t"), "2");
    open.rows("COMMIT");
    assert_eq!(postgres().value(&database, "SELECT a FROM t"), "2");
}

#[test]
fn systemd_hears_who_the_service_is_and_its_watchdog_is_fed() {
    let mut unit = Unit::start("");
    let mut client = unit.connect();
    for _ in 0..2 {
        let old = unit.pid();
        unit.hears(old, "WATCHDOG=1");
        let new = unit.upgrade();
        unit.hears(old, &format!("MAINPID={new}"));
        // From here on the one before says nothing.
        unit.hears(new, "READY=1");
        for _ in 0..3 {
            unit.hears(new, "WATCHDOG=1");
        }
        assert_eq!(client.value("SELECT 1"), "1");
    }
    unit.ends();
}

#[test]
fn a_new_program_is_started_and_one_that_fails_says_why() {
    let mut unit = Unit::start("");
    let mut client = unit.connect();
    client.rows("BEGIN");
    let good = unit.home.read("a.ini");
    unit.home
        .write("a.ini", &(good.clone() + "pool_mode = nonsense\n"));
    let said = unit.refusal();
    assert!(
        said.starts_with("UPGRADE failed: ") && said.contains("pool_mode"),
        "{said}"
    );
    // It has seen the sockets, and fails then.
    unit.home
        .write("a.ini", &(good.clone() + "http_listen = 256.1.1.1:1\n"));
    let said = unit.refusal();
    assert!(said.contains("could not listen on http_listen"), "{said}");
    unit.home.write("a.ini", &good);
    install(&unit.home, Some("exit 7"));
    assert_eq!(
        unit.refusal(),
        "UPGRADE failed: the new process ended (exit status: 7); its log says why"
    );
    std::fs::remove_file(unit.home.path("pooler")).unwrap();
    let said = unit.refusal();
    assert!(
        said.starts_with("UPGRADE failed: could not run ") && said.contains("No such file"),
        "{said}"
    );
    let old = unit.child.id();
    unit.hears(old, "WATCHDOG=1");
    assert_eq!(unit.pid(), old);
    // The file that runs is not there any more: the one in its place is meant.
    install(&unit.home, None);
    let new = unit.upgrade();
    unit.hears(old, &format!("MAINPID={new}"));
    client.rows("COMMIT");
    assert_eq!(unit.connect().value("SELECT 1"), "1");
    // Of sockets it inherits but the one it talks by: one that somebody else has as well never closes.
    install(
        &unit.home,
        Some("readlink /proc/$$/fd/* >inherited; exit 1"),
    );
    unit.refusal();
    let inherited = unit.home.read("inherited");
    assert_eq!(inherited.matches("socket:").count(), 1, "{inherited}");
    assert!(!inherited.contains("anon_inode"), "{inherited}");
    unit.ends();
}

#[test]
fn a_second_upgrade_is_refused_while_one_is_under_way() {
    let mut unit = Unit::start("");
    install(
        &unit.home,
        Some("echo $$ >slow; mv slow started; exec sleep 60"),
    );
    let mut first = unit.console();
    first.send(&frontend::query("UPGRADE"));
    wait_until("a successor starts", || unit.home.path("started").exists());
    let slow: i32 = unit.home.read("started").trim().parse().unwrap();
    let slow = Orphan::adopt(slow.cast_unsigned(), &unit.home.folder);
    assert_eq!(
        unit.refusal(),
        "UPGRADE failed: a successor is on its way already"
    );
    kill(Pid::from_raw(slow.pid().cast_signed()), Signal::SIGTERM).unwrap();
    let replies = first.read_until_ready();
    let said = error(&replies).field('M').unwrap();
    assert!(said.contains("signal: 15"), "{said}");
    install(&unit.home, None);
    unit.upgrade();
    unit.ends();
}

#[test]
fn if_a_successor_dies_half_way_the_service_is_the_one_before() {
    let mut unit = Unit::start("default_pool_size = 2\n");
    let mut busy = unit.connect();
    let mut obstacle = postgres().connect("postgres");
    obstacle.rows("SELECT pg_advisory_lock(4711)");
    busy.send(&frontend::query("SELECT pg_advisory_xact_lock(4711)"));
    let active = "SELECT count(*) FROM pg_locks WHERE objid = 4711 AND NOT granted";
    wait_until("the query runs", || {
        postgres().value("postgres", active) == "1"
    });
    // Longer than a takeover may fail before it is said to have come about.
    let new = unit.upgrade();
    let old = unit.child.id();
    unit.hears(old, &format!("MAINPID={new}"));
    unit.hears(new, "READY=1");
    kill(Pid::from_raw(new.cast_signed()), Signal::SIGKILL).unwrap();
    let back = format!("MAINPID={old}");
    while unit.next() != (old, back.clone() + "\n") {}
    unit.hears(old, "WATCHDOG=1");
    assert_eq!(unit.connect().value("SELECT 1"), "1");
    obstacle.rows("SELECT pg_advisory_unlock(4711)");
    assert_eq!(rows(&busy.read_until_ready()).unwrap().rows.len(), 1);
    unit.ends();
}

#[test]
fn a_script_can_do_it() {
    let mut unit = Unit::start("");
    let run = |home: &Home| {
        let output = command(binary(), &home.folder)
            .args(["upgrade", "--config", "a.ini"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), text)
    };
    let good = unit.home.read("a.ini");
    unit.home
        .write("a.ini", &(good.clone() + "http_listen = 256.1.1.1:1\n"));
    let (code, said) = run(&unit.home);
    assert_eq!(code, Some(1));
    assert!(
        said.starts_with("pgferry: ERROR: UPGRADE failed: "),
        "{said}"
    );
    unit.home.write("a.ini", &good);
    assert_eq!(run(&unit.home), (Some(0), String::new()));
    unit.adopt();
    unit.ends();
}
