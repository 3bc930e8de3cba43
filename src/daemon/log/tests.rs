use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tracing::{debug, error, info, info_span, trace, warn};

/// A quiet log into a file, what is said while it is the thread's, and the file's text.
struct Fixture {
    folder: tempfile::TempDir,
    handle: LogHandle,
    dispatch: tracing::Dispatch,
}

impl Fixture {
    fn new(verbosity: u8, format: Format) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = Some(folder.path().join("log"));
        let (subscriber, handle) = build(&LogOptions {
            syslog: None,
            quiet: true,
            file,
            verbosity,
            format,
        })
        .unwrap();
        Self {
            folder,
            handle,
            dispatch: tracing::Dispatch::new(subscriber),
        }
    }

    fn during(&self, say: impl FnOnce()) -> String {
        tracing::dispatcher::with_default(&self.dispatch, say);
        fs::read_to_string(self.path()).unwrap_or_default()
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

/// The lines behind the pid.
fn logged(verbosity: u8, say: impl FnOnce()) -> Vec<String> {
    let text = Fixture::new(verbosity, Format::Text).during(say);
    let pid = format!(" [{}] ", std::process::id());
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match line.split_once(&pid) {
            Some((_, rest)) => lines.push(rest.to_owned()),
            None => lines.push(line.to_owned()),
        }
    }
    lines
}

/// Lines of `say_every_level`: release builds contain no trace.
const MOST: usize = if cfg!(debug_assertions) { 6 } else { 5 };

fn say_every_level() {
    error!(fatal = true, "a");
    error!("b");
    warn!("c");
    info!("d");
    debug!("e");
    trace!("f");
}

#[test]
fn the_line_is_pgbouncers() {
    let text = Fixture::new(0, Format::Text).during(|| info!("process up"));
    let (time, rest) = text.split_at("2026-11-21 09:06:06.093".len());
    let shape: String = time
        .chars()
        .map(|c| if c.is_ascii_digit() { '9' } else { c })
        .collect();
    assert_eq!(shape, "9999-99-99 99:99:99.999");
    let (zone, rest) = rest.strip_prefix(' ').unwrap().split_once(' ').unwrap();
    assert!(!zone.is_empty(), "{text}");
    assert_eq!(rest, format!("[{}] LOG process up\n", std::process::id()));
}

#[test]
fn the_time_is_local_with_three_digits_and_a_zone() {
    let zone = jiff::tz::TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
    let time: Timestamp = "2026-07-01T09:06:06.0939Z".parse().unwrap();
    let text = Zoned::new(time, zone).strftime(TIME).to_string();
    assert_eq!(text, "2026-07-01 11:06:06.093 CEST");
}

#[test]
fn levels_have_pgbouncers_names() {
    let lines = logged(2, say_every_level);
    assert_eq!(
        lines,
        [
            "FATAL a",
            "ERROR b",
            "WARNING c",
            "LOG d",
            "DEBUG e",
            "NOISE f"
        ]
    );
}

#[test]
fn verbosity_decides_how_far_down_it_goes() {
    for (verbosity, lines) in [(0, 4), (1, 5), (2, MOST), (3, MOST), (255, MOST)] {
        assert_eq!(
            logged(verbosity, say_every_level).len(),
            lines,
            "verbosity {verbosity}"
        );
    }
}

#[test]
fn verbosity_changes_while_the_process_runs() {
    let fixture = Fixture::new(0, Format::Text);
    assert_eq!(fixture.during(say_every_level).lines().count(), 4);
    // Set where this log is the thread's: tracing asks the default log of the caller what it wants
    // when there is only one, and a process has its own everywhere.
    let at = |verbosity| {
        let text = fixture.during(|| {
            fixture.handle.set_verbosity(verbosity).unwrap();
            say_every_level();
        });
        text.lines().count()
    };
    assert_eq!(at(1), 4 + 5);
    assert_eq!(at(0), 4 + 5 + 4);
    assert_eq!(at(2), 4 + 5 + 4 + MOST);
}

#[test]
fn libraries_speak_only_of_trouble_until_asked() {
    let say = || {
        warn!(target: "rustls::conn", "trouble");
        debug!(target: "rustls::conn", "chatter");
    };
    assert_eq!(logged(2, say), ["WARNING trouble"]);
    assert_eq!(logged(3, say), ["WARNING trouble", "DEBUG chatter"]);
}

#[test]
fn a_line_break_in_a_message_cannot_start_a_line() {
    let lines = logged(0, || info!("one\ntwo \x1b[31m\r\n"));
    assert_eq!(lines, ["LOG one", "\ttwo \\u{1b}[31m\\r"]);
    let lines = logged(0, || info!(user = "x\n2026 FATAL", "login"));
    assert_eq!(lines, ["LOG login user=\"x\\n2026 FATAL\""]);
}

#[test]
fn fields_follow_the_message() {
    let lines = logged(0, || {
        info!(db = "app", pid = 7, ok = true, note = "a b", "up {}", 1);
    });
    assert_eq!(lines, ["LOG up 1 db=app pid=7 ok=true note=\"a b\""]);
    let fault = io::Error::other("gone");
    let lines = logged(
        0,
        || warn!(fault = &fault as &dyn std::error::Error, addr = %"::1", "lost"),
    );
    assert_eq!(lines, ["WARNING lost fault=gone addr=::1"]);
    assert_eq!(logged(0, || info!(only = 1)), ["LOG only=1"]);
}

#[test]
fn the_connection_stands_before_the_message() {
    let lines = logged(0, || {
        info!(conn = "C-0x1: db/user@[::1]:5000", "login attempt");
    });
    assert_eq!(lines, ["LOG C-0x1: db/user@[::1]:5000 login attempt"]);
}

#[test]
fn spans_lend_their_connection_and_fields() {
    let lines = logged(0, || {
        let client = info_span!("client", conn = "C-0x1: a/b@unix(7)", db = "a", user = "?");
        client.record("user", "b");
        let _client = client.enter();
        let _server = info_span!("server", server = 3).entered();
        info!(elapsed = 5, "closing");
        info!(conn = "S-0x2: a/b@host:1", "new connection to server");
    });
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("LOG C-0x1: a/b@unix(7) closing elapsed=5 server=3 db=a "));
    assert!(lines[0].ends_with(" user=b"));
    assert!(lines[1].starts_with("LOG S-0x2: a/b@host:1 new connection to server server=3 "));
}

#[test]
fn a_rotated_file_is_let_go_by_reopen() {
    let fixture = Fixture::new(0, Format::Text);
    fixture.during(|| info!("one"));
    let rotated = fixture.folder.path().join("log.1");
    fs::rename(fixture.path(), &rotated).unwrap();
    fixture.during(|| info!("two"));
    fixture.handle.reopen().unwrap();
    let fresh = fixture.during(|| info!("three"));
    let old = fs::read_to_string(rotated).unwrap();
    assert!(old.contains("one") && old.contains("two") && !old.contains("three"));
    assert!(fresh.contains("three") && !fresh.contains("two"));
    let mode = fs::metadata(fixture.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777 & !0o644, 0);
}

#[test]
fn an_existing_file_is_appended_to() {
    let fixture = Fixture::new(0, Format::Text);
    fs::write(fixture.path(), "before\n").unwrap();
    fixture.handle.reopen().unwrap();
    assert!(fixture.during(|| info!("after")).starts_with("before\n"));
}

#[test]
fn a_file_that_cannot_be_opened_leaves_the_old_one_in_use() {
    let fixture = Fixture::new(0, Format::Text);
    let absent = fixture.folder.path().join("absent/log");
    let error = fixture.handle.set_file(Some(absent.clone())).unwrap_err();
    let start = format!("could not open logfile '{}': ", absent.display());
    assert!(error.to_string().starts_with(&start), "{error}");
    assert!(
        fixture
            .during(|| info!("still here"))
            .contains("still here")
    );
    let options = LogOptions {
        file: Some(absent),
        ..LogOptions::default()
    };
    assert!(matches!(
        build(&options).map(|_| ()),
        Err(Error::LogFile { .. })
    ));
}

#[test]
fn the_file_can_be_changed_and_given_up() {
    let fixture = Fixture::new(0, Format::Text);
    let other = fixture.folder.path().join("other");
    fixture.handle.set_file(Some(other.clone())).unwrap();
    assert_eq!(fixture.during(|| info!("elsewhere")), "");
    fixture.handle.set_file(None).unwrap();
    fixture.during(|| info!("nowhere"));
    fixture.handle.reopen().unwrap();
    let text = fs::read_to_string(other).unwrap();
    assert!(text.contains("elsewhere") && !text.contains("nowhere"));
}

#[test]
fn json_is_one_object_a_line() {
    let fixture = Fixture::new(0, Format::Json);
    let text = fixture.during(|| {
        let _client = info_span!("client", db = "app").entered();
        error!(fatal = true, user = "a\nb", "no\nway");
        debug!("hidden");
    });
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("{\"timestamp\":\"2"), "{text}");
    let parts = [
        r#""level":"ERROR""#,
        r#""message":"no\nway""#,
        r#""fatal":true"#,
        r#""user":"a\nb""#,
        r#""span":{"db":"app","name":"client"}"#,
    ];
    for part in parts {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let stamp = text.split('"').nth(3).unwrap();
    assert!(
        stamp.parse::<Timestamp>().is_ok() && stamp.ends_with('Z'),
        "{stamp}"
    );
}
