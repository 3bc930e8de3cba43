//! systemd's side, played by the tests: what it is told, and the sockets that it hands over.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command};

use nix::sys::signal::Signal;

use crate::process::Home;
use crate::support::PATIENCE;
use crate::support::pooler::binary;
use crate::support::process::{command, hand_over};
use crate::support::wire::Wire;

/// What systemd hears.
struct Systemd {
    socket: UnixDatagram,
}

impl Systemd {
    fn listen(home: &Home) -> Self {
        let socket = UnixDatagram::bind(home.path("notify")).unwrap();
        hand_over(&home.path("notify"));
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket }
    }

    fn hears(&self) -> String {
        let mut buffer = [0; 1000];
        let length = self.socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// The beginning of a reload and its end.
    fn hears_a_reload(&self) {
        let begun = self.hears();
        let since = begun.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(since.trim_end().parse::<u64>().unwrap() > 0);
        assert_eq!(self.hears(), "READY=1\n");
    }
}

/// The pooler as a service of the type `notify`.
fn service(home: &Home) -> Command {
    let mut command = command(binary(), &home.folder);
    command
        .args(["-q", "a.ini"])
        .env("NOTIFY_SOCKET", home.path("notify"));
    command
}

fn ends_well(mut child: Child) {
    assert!(child.wait().unwrap().success());
}

#[test]
fn systemd_is_told_when_it_is_ready_and_when_it_ends() {
    let home = Home::new();
    let systemd = Systemd::listen(&home);
    let child = service(&home).spawn().unwrap();
    assert_eq!(systemd.hears(), "READY=1\n");
    assert!(home.accepts());
    home.signal(Signal::SIGINT);
    assert_eq!(systemd.hears(), "STOPPING=1\n");
    ends_well(child);
}

#[test]
fn systemd_is_told_of_every_reload_and_of_its_end_whatever_comes_of_it() {
    let home = Home::new();
    let good = home.read("a.ini") + "admin_users = postgres\n";
    home.write("a.ini", &good);
    let systemd = Systemd::listen(&home);
    let child = service(&home).spawn().unwrap();
    assert_eq!(systemd.hears(), "READY=1\n");

    home.signal(Signal::SIGHUP);
    systemd.hears_a_reload();

    home.write("a.ini", &(good.clone() + "no_such_setting = 1\n"));
    home.signal(Signal::SIGHUP);
    systemd.hears_a_reload();
    assert!(home.read("log").contains("configuration not reloaded"));

    home.write("a.ini", &good);
    let address = ([127, 0, 0, 1], home.port).into();
    let mut console = Wire::login(address, "postgres", "pgbouncer", None).unwrap();
    console.rows("RELOAD");
    systemd.hears_a_reload();

    // One that is about to end does not become ready again.
    home.signal(Signal::SIGTERM);
    assert_eq!(systemd.hears(), "STOPPING=1\n");
    console.rows("RELOAD");
    drop(console);
    ends_well(child);
    systemd.socket.set_nonblocking(true).unwrap();
    assert!(systemd.socket.recv(&mut [0; 100]).is_err());
}

#[test]
fn systemds_watchdog_is_fed_while_the_workers_turn() {
    let home = Home::new();
    let systemd = Systemd::listen(&home);
    let child = service(&home)
        .env("WATCHDOG_USEC", "50000")
        .spawn()
        .unwrap();
    assert_eq!(systemd.hears(), "READY=1\n");
    for _ in 0..5 {
        assert_eq!(systemd.hears(), "WATCHDOG=1\n");
    }
    home.signal(Signal::SIGINT);
    while systemd.hears() != "STOPPING=1\n" {}
    ends_well(child);
}
