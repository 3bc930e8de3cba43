//! systemd's side, played by the tests: what it is told, and the sockets that it hands over.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;

use crate::process::Home;
use crate::support::pooler::binary;
use crate::support::process::{Orphan, command, hand_over};
use crate::support::wire::Wire;
use crate::support::{PATIENCE, frontend, wait_until};

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

/// The program with these as its descriptors 3, 4 and 5. A shell moves them there and becomes the program: nothing safe
/// in Rust gives a child more than its first three.
fn activated(home: &Home, sockets: [OwnedFd; 3], pid: &str, arguments: &str) -> Command {
    let script = format!(
        "exec 3<&0 4>&1 5>&2 0</dev/null 1>>output 2>&1; exec env LISTEN_PID={pid} LISTEN_FDS=3 \
         LISTEN_FDNAMES=v4:v6:local {} {arguments}",
        binary().display()
    );
    let [first, second, third] = sockets;
    let mut command = command("sh", &home.folder);
    command
        .args(["-c", &script])
        .stdin(Stdio::from(first))
        .stdout(Stdio::from(second))
        .stderr(Stdio::from(third));
    command
}

/// The sockets of a unit with three lines.
struct Sockets {
    v4: TcpListener,
    v6: TcpListener,
    local: UnixListener,
}

impl Sockets {
    fn open(home: &Home) -> Self {
        Self {
            v4: TcpListener::bind("127.0.0.1:0").unwrap(),
            // Where there is no IPv6, another address must do.
            v6: TcpListener::bind("[::1]:0")
                .or_else(|_| TcpListener::bind("127.0.0.2:0"))
                .unwrap(),
            local: UnixListener::bind(home.path("local")).unwrap(),
        }
    }

    fn copies(&self) -> [OwnedFd; 3] {
        [
            self.v4.try_clone().unwrap().into(),
            self.v6.try_clone().unwrap().into(),
            self.local.try_clone().unwrap().into(),
        ]
    }
}

/// Where only the console is wanted.
fn home_with_console() -> Home {
    let home = Home::new();
    let ini = home.read("a.ini") + "admin_users = postgres\n";
    home.write("a.ini", &ini);
    home
}

fn asks_console(address: SocketAddr) {
    let mut console = Wire::login(address, "postgres", "pgbouncer", None).unwrap();
    assert_eq!(console.rows("SHOW VERSION").rows.len(), 1);
}

#[test]
fn sockets_of_systemd_are_listened_on_in_place_of_our_own_and_outlive_us() {
    let home = home_with_console();
    let sockets = Sockets::open(&home);
    let (v4, v6) = (
        sockets.v4.local_addr().unwrap(),
        sockets.v6.local_addr().unwrap(),
    );
    // Somebody comes before there is a process.
    let mut early = UnixStream::connect(home.path("local")).unwrap();
    let start = frontend::startup(&[("user", "postgres"), ("database", "pgbouncer")]);
    early.write_all(&start).unwrap();

    let mut child = activated(&home, sockets.copies(), "$$", "-q a.ini")
        .spawn()
        .unwrap();
    early.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = [0; 1];
    early.read_exact(&mut head).unwrap();
    assert_eq!(head, *b"R");
    asks_console(v4);
    asks_console(v6);
    assert!(!home.accepts(), "it listens on listen_addr");
    let own = home.path(&format!(".s.PGSQL.{}", home.port));
    assert!(!own.exists());
    let log = home.read("log");
    let place = home.path("local");
    for line in [
        format!("listening on {v4} (v4)"),
        format!("listening on {v6} (v6)"),
        format!("listening on unix:{} (local)", place.display()),
        "systemd has passed sockets: listen_addr is ignored".to_owned(),
        "systemd has passed sockets: there is none of ours in unix_socket_dir".to_owned(),
    ] {
        assert_eq!(log.matches(&line).count(), 1, "{line} in\n{log}");
    }

    home.signal(Signal::SIGINT);
    assert!(child.wait().unwrap().success());
    assert!(place.exists());
    // Who comes now waits for the next process.
    let waiting = TcpStream::connect(v4).unwrap();
    let mut child = activated(&home, sockets.copies(), "$$", "-q a.ini")
        .spawn()
        .unwrap();
    asks_console(v4);
    drop(waiting);
    home.signal(Signal::SIGINT);
    assert!(child.wait().unwrap().success());
}

#[test]
fn sockets_of_systemd_go_over_in_an_upgrade() {
    let home = home_with_console();
    let sockets = Sockets::open(&home);
    let (v4, v6) = (
        sockets.v4.local_addr().unwrap(),
        sockets.v6.local_addr().unwrap(),
    );
    let mut child = activated(&home, sockets.copies(), "$$", "-q a.ini")
        .spawn()
        .unwrap();
    asks_console(v4);
    // From here on only the processes have them, as far as they have.
    drop(sockets);
    let mut successors: Vec<Orphan> = Vec::new();
    for _ in 0..2 {
        let before = home.pid();
        let mut console = Wire::login(v6, "postgres", "pgbouncer", None).unwrap();
        console.rows("UPGRADE");
        wait_until("another process has the pidfile", || {
            home.pid().is_some_and(|pid| Some(pid) != before)
        });
        let pid = home.pid().unwrap().as_raw().cast_unsigned();
        successors.push(Orphan::adopt(pid, &home.folder));
        for address in [v4, v6] {
            asks_console(address);
        }
        let mut local = UnixStream::connect(home.path("local")).unwrap();
        local.set_read_timeout(Some(PATIENCE)).unwrap();
        let start = frontend::startup(&[("user", "postgres"), ("database", "pgbouncer")]);
        local.write_all(&start).unwrap();
        let mut head = [0; 1];
        local.read_exact(&mut head).unwrap();
        assert_eq!(head, *b"R");
        assert!(!home.accepts(), "it listens on listen_addr");
    }
    assert!(child.wait().unwrap().success());
    home.signal(Signal::SIGINT);
    wait_until("it has gone", || !home.path("pid").exists());
    // It was systemd's, and is the next one's.
    assert!(home.path("local").exists());
}

#[test]
fn sockets_for_another_process_are_left_alone() {
    let home = home_with_console();
    let sockets = Sockets::open(&home);
    let mut child = activated(&home, sockets.copies(), "1", "-q a.ini")
        .spawn()
        .unwrap();
    wait_until("it accepts on its own port", || home.accepts());
    asks_console(([127, 0, 0, 1], home.port).into());
    assert!(!home.read("log").contains("systemd has passed sockets"));
    home.signal(Signal::SIGINT);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_daemon_takes_its_sockets_along_into_the_background() {
    let home = home_with_console();
    let sockets = Sockets::open(&home);
    let started = activated(&home, sockets.copies(), "$$", "-d a.ini")
        .status()
        .unwrap();
    assert!(started.success(), "{}", home.read("output"));
    asks_console(sockets.v4.local_addr().unwrap());
    home.signal(Signal::SIGINT);
    wait_until("it has gone", || !home.path("pid").exists());
}

#[test]
fn a_descriptor_that_cannot_be_listened_on_stops_the_start() {
    let home = home_with_console();
    let sockets = Sockets::open(&home);
    let refused = |third: OwnedFd| {
        let [first, second, _] = sockets.copies();
        let mut command = activated(&home, [first, second, third], "$$", "a.ini");
        let status = command.status().unwrap();
        assert_eq!(status.code(), Some(1));
        home.read("output")
    };
    let folder = std::fs::File::open(&home.folder).unwrap();
    let said = refused(folder.into());
    assert!(
        said.contains("FATAL cannot use descriptor 5 passed by systemd: not a TCP or Unix socket"),
        "{said}"
    );
    let (connected, _other) = UnixStream::pair().unwrap();
    let said = refused(connected.into());
    assert!(
        said.contains("FATAL cannot use descriptor 5 passed by systemd: it does not listen"),
        "{said}"
    );
}

/// The units themselves, where somebody can judge them.
#[test]
fn the_units_are_what_systemd_understands() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["pgferry.service", "pgferry.socket"] {
        let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/");
        let text = std::fs::read_to_string(format!("{unit}{name}")).unwrap();
        let text = text.replace("/usr/bin/pgferry", "/bin/true");
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(folder.path().join("pgferry.socket"))
        .arg(folder.path().join("pgferry.service"))
        .output();
    let Ok(output) = output else {
        return; // no systemd here
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Before version 253 the second `Type=` is passed over; the first one holds then.
    let ours =
        |line: &&str| !line.ends_with("Failed to parse service type, ignoring: notify-reload");
    assert!(
        output.status.success() && said.lines().filter(ours).count() == 0,
        "{said}"
    );
}

/// What systemd itself thinks of the cage: 0 is closed, 10 is open.
#[test]
fn the_service_is_hardened() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/pgferry.service");
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=20", unit])
        .output();
    let Ok(output) = output else {
        return; // no systemd here
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "more than 2.0: {said}");
}
