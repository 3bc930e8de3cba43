//! `pgferry top` in a terminal of its own, over a running pooler: keys in, screens out.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::support::{Pooler, eventually, postgres, wait_until};

const ROWS: usize = 24;
const COLUMNS: usize = 120;

/// A terminal: `script` gives it a pty, and this reads what the program draws.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    drawn: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(url: &str) -> Self {
        // The pty of a `script` without a terminal has no size.
        let program = env!("CARGO_BIN_EXE_pgferry");
        let line = format!("stty rows {ROWS} cols {COLUMNS}; exec {program} top --url '{url}'");
        let mut child = Command::new("script")
            .args([
                "--quiet",
                "--return",
                "--flush",
                "--command",
                &line,
                "/dev/null",
            ])
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let keys = child.stdin.take().unwrap();
        let mut output = child.stdout.take().unwrap();
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let kept = drawn.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                kept.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { child, keys, drawn }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn screen(&self) -> String {
        let bytes = self.drawn.lock().unwrap().clone();
        screen(&String::from_utf8_lossy(&bytes))
    }

    /// Waits until the screen has all of these texts.
    fn shows(&self, texts: &[&str]) {
        wait_until(&format!("all of {texts:?} on the screen"), || {
            let screen = self.screen();
            texts.iter().all(|text| screen.contains(text))
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the screen ---\n{}", self.screen());
        }
    }
}

/// What stands on the screen after these bytes: places of the cursor, erasing, and texts; colours are passed over.
fn screen(drawn: &str) -> String {
    let mut cells = vec![vec![' '; COLUMNS]; ROWS];
    let (mut row, mut column) = (0, 0);
    let mut chars = drawn.chars();
    while let Some(char) = chars.next() {
        match char {
            '\u{1b}' if chars.next() == Some('[') => {
                let mut parameters = String::new();
                let end = chars.by_ref().find(|char| {
                    parameters.push(*char);
                    char.is_ascii_alphabetic()
                });
                parameters.pop();
                let mut numbers = parameters.split(';').map(|text| text.parse().unwrap_or(1));
                match end {
                    Some('H') => {
                        row = numbers.next().unwrap_or(1) - 1;
                        column = numbers.next().unwrap_or(1) - 1;
                    }
                    Some('J') => cells = vec![vec![' '; COLUMNS]; ROWS],
                    _ => {}
                }
            }
            char if char.is_control() => {}
            char => {
                if let Some(cell) = cells.get_mut(row).and_then(|line| line.get_mut(column)) {
                    *cell = char;
                }
                column += 1;
            }
        }
    }
    let lines = cells.iter().map(|line| line.iter().collect::<String>());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn keys_move_through_the_views_of_a_running_pooler() {
    let pooler = Pooler::start(|_| ());
    let database = postgres().database("watched");
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    let url = pooler.url("pgbouncer").replace("app@", "postgres@");
    let mut terminal = Terminal::start(&url);
    terminal.shows(&["pgferry top", "as postgres", &database, "cl_active", "tx/s"]);
    terminal.press("3");
    terminal.shows(&["remote_pid", "request_time"]);
    terminal.press("2");
    terminal.shows(&["connect_time", "wait", &database]);
    // Only the console's own client is left.
    terminal.press("/pgbouncer\r");
    terminal.shows(&["[/pgbouncer]"]);
    wait_until("the other clients are filtered out", || {
        !terminal.screen().contains(&database)
    });
    terminal.press("\u{1b}");
    terminal.shows(&[&database]);
    terminal.press("p");
    terminal.shows(&["PAUSED"]);
    terminal.press("?");
    terminal.shows(&["another view"]);
    terminal.press("x7");
    terminal.shows(&["reason"]);
    terminal.press("q");
    let status = eventually("it ends", || terminal.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_lost_pooler_is_told_and_found_again() {
    let mut pooler = Pooler::start(|ini| {
        ini.set("so_reuseport", 1);
    });
    let url = pooler.url("pgbouncer").replace("app@", "postgres@");
    let terminal = Terminal::start(&url);
    terminal.shows(&["cl_active", "tx/s"]);
    let file = pooler.directory().join("pooler.ini");
    let port = pooler.address().port();
    let folder = crate::support::process::directory();
    for name in ["pooler.ini", "userlist.txt"] {
        std::fs::copy(pooler.directory().join(name), folder.join(name)).unwrap();
        crate::support::process::hand_over(&folder.join(name));
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let old = pooler.directory().display().to_string();
    let text = text.replace(&old, &folder.display().to_string());
    std::fs::write(folder.join("pooler.ini"), text).unwrap();
    pooler.signal(nix::sys::signal::Signal::SIGQUIT);
    pooler.wait();
    terminal.shows(&["could not connect"]);
    let binary = crate::support::pooler::binary()
        .to_str()
        .unwrap()
        .to_owned();
    let _again = Pooler::start_in(folder, port, &[&binary, "pooler.ini"]);
    wait_until("the view is back", || {
        !terminal.screen().contains("could not connect")
    });
}
