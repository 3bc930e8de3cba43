//! LISTEN in transaction pooling: many clients, one connection, and each notification exactly once.

mod commands;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::message::Message;
use crate::support::wire::error;
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

fn start() -> (Pooler, String) {
    start_with(|_| ())
}

fn start_with(change: impl FnOnce(&mut crate::support::pooler::Ini)) -> (Pooler, String) {
    let database = postgres().database("listen");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 2)
            .set("server_round_robin", 1)
            .set("max_client_conn", 1000);
        change(ini);
    });
    (pooler, database)
}

/// The process id, channel and payload of a notification.
fn read(message: &Message) -> (u32, String, String) {
    assert_eq!(message.name(), "NotificationResponse", "{message:?}");
    let (pid, text) = message.body.split_at(4);
    let mut parts = text
        .split(|&byte| byte == 0)
        .map(|part| String::from_utf8_lossy(part).into_owned());
    (
        u32::from_be_bytes(pid.try_into().unwrap()),
        parts.next().unwrap(),
        parts.next().unwrap(),
    )
}

/// The next notification, for which nothing is sent.
fn next(client: &mut Wire) -> (u32, String, String) {
    read(&client.read_message().expect("a notification"))
}

fn payload(client: &mut Wire) -> String {
    next(client).2
}

/// Nothing more has come, up to a notification sent now.
fn assert_quiet(client: &mut Wire, database: &str, channel: &str) {
    postgres().sql(database, &format!("NOTIFY {channel}, 'the end'"));
    assert_eq!(payload(client), "the end");
}

fn connections(database: &str) -> usize {
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'");
    postgres().value("postgres", &sql).parse().unwrap()
}

/// Runs it, and waits until the end of its transaction is dealt with.
fn run(client: &mut Wire, sql: &str) {
    client.rows(sql);
    client.rows("SELECT 1");
}

fn pinned(pooler: &Pooler) -> usize {
    pooler.console("SHOW PINS").rows.len()
}

#[test]
fn two_hundred_listeners_share_one_connection_besides_the_pool() {
    let (pooler, database) = start();
    let mut clients: Vec<Wire> = (0..200).map(|_| pooler.connect(&database)).collect();
    for client in &mut clients {
        run(client, "LISTEN news");
    }
    assert_eq!(pinned(&pooler), 0);
    assert!(connections(&database) <= 3);
    let listeners = pooler.console("SHOW LISTENERS");
    assert_eq!(listeners.get(0, "channel"), "news");
    assert_eq!(listeners.get(0, "clients"), "200");
    let mut writer = pooler.connect(&database);
    for number in 0..5 {
        writer.rows(&format!("NOTIFY news, '{number}'"));
    }
    for client in &mut clients {
        for number in 0..5 {
            assert_eq!(payload(client), number.to_string());
        }
    }
    let listeners = pooler.console("SHOW LISTENERS");
    assert_eq!(listeners.get(0, "received"), "5");
    assert_eq!(listeners.get(0, "delivered"), "1000");
    drop(clients);
    wait_until("nobody listens", || {
        pooler.console("SHOW LISTENERS").rows.is_empty()
    });
}

#[test]
fn a_client_knows_its_own_notifications_by_its_number() {
    let (pooler, database) = start();
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    for client in [&mut one, &mut other] {
        run(client, "LISTEN news");
    }
    one.rows("NOTIFY news, 'mine'");
    assert_eq!(next(&mut one), (one.pid, "news".into(), "mine".into()));
    assert_eq!(next(&mut other), (one.pid, "news".into(), "mine".into()));
    postgres().sql(&database, "NOTIFY news, 'a stranger''s'");
    assert_ne!(next(&mut one).0, one.pid);
    assert_ne!(next(&mut other).0, other.pid);
    // In the transaction that begins to listen, PostgreSQL tells it before ReadyForQuery.
    let mut third = pooler.connect(&database);
    let replies = third.query("BEGIN; LISTEN \"My news\"; NOTIFY \"My news\", 'at once'; COMMIT");
    let told: Vec<_> = replies.iter().filter(|it| it.tag == b'A').collect();
    assert_eq!(told.len(), 1);
    assert_eq!(
        read(told[0]),
        (third.pid, "My news".into(), "at once".into())
    );
}

#[test]
fn what_is_rolled_back_does_not_count_and_what_is_committed_does() {
    let (pooler, database) = start();
    let mut client = pooler.connect(&database);
    let scripts: [(&[&str], &[&str]); 12] = [
        (&["BEGIN", "LISTEN a", "ROLLBACK"], &[]),
        (&["BEGIN", "LISTEN a", "LISTEN b", "COMMIT"], &["a", "b"]),
        (&["BEGIN", "UNLISTEN a", "ROLLBACK"], &["a", "b"]),
        (&["BEGIN", "UNLISTEN *", "ROLLBACK"], &["a", "b"]),
        (&["BEGIN", "SELECT 1", "UNLISTEN a", "COMMIT"], &["b"]),
        (
            &[
                "BEGIN",
                "SAVEPOINT s",
                "UNLISTEN b",
                "ROLLBACK TO s",
                "LISTEN c",
                "COMMIT",
            ],
            &["b", "c"],
        ),
        (
            &[
                "BEGIN",
                "UNLISTEN b",
                "SAVEPOINT s",
                "LISTEN d",
                "ROLLBACK TO s",
                "COMMIT",
            ],
            &["c"],
        ),
        (
            &["UNLISTEN *; LISTEN e", "LISTEN \"Q\"\"uoted\\\""],
            &["e", "Q\"\"uoted\\"],
        ),
        (&["BEGIN", "UNLISTEN *", "LISTEN a", "COMMIT"], &["a"]),
        (
            &["SET work_mem='8MB'", "BEGIN; LISTEN b; SELECT 1; COMMIT"],
            &["a", "b"],
        ),
        (&["UNLISTEN zzz"], &["a", "b"]),
        (&["BEGIN", "UNLISTEN *", "COMMIT"], &[]),
    ];
    let all = ["a", "b", "c", "d", "e", "Q\"\"uoted\\"];
    let mut round = 0;
    for (script, listens) in scripts {
        for sql in script {
            client.rows(sql);
        }
        // The hand-over keeps the order of each channel only.
        client.rows("SELECT 1");
        assert_eq!(pinned(&pooler), 0, "{script:?}");
        for server in 0..2 {
            round += 1;
            for channel in all {
                postgres().sql(&database, &format!("NOTIFY \"{channel}\", '{round}'"));
            }
            for channel in listens {
                let (_, name, payload) = next(&mut client);
                assert_eq!(
                    (name, payload),
                    (channel.replace("\"\"", "\""), round.to_string()),
                    "{script:?} {server}"
                );
            }
        }
        // An error in the transaction undoes it as well.
        client.rows("BEGIN");
        client.rows("UNLISTEN *; LISTEN d");
        assert_eq!(error(&client.query("SELECT 1/0")).sqlstate(), "22012");
        client.rows("COMMIT");
        for channel in listens {
            postgres().sql(&database, &format!("NOTIFY \"{channel}\", 'still'"));
            assert_eq!(payload(&mut client), "still", "{script:?}");
        }
        assert_eq!(
            client.value("SELECT count(*) FROM pg_listening_channels()"),
            "0"
        );
    }
}

#[test]
fn the_extended_protocol_does_the_same() {
    let (pooler, database) = start();
    let mut client = pooler.connect(&database);
    let run = |client: &mut Wire, texts: &[&str]| {
        let mut messages = Vec::new();
        for sql in texts {
            messages.push(frontend::parse("", sql, &[]));
            messages.push(frontend::bind("", "", &[]));
            messages.push(frontend::execute("", 0));
        }
        messages.push(frontend::sync());
        let replies = client.exchange(&messages);
        let names = crate::support::wire::names(&replies);
        let once = ["ParseComplete", "BindComplete", "CommandComplete"];
        let mut wanted: Vec<_> = texts.iter().flat_map(|_| once).collect();
        wanted.push("ReadyForQuery");
        assert_eq!(names, wanted, "{texts:?} {replies:?}");
    };
    run(&mut client, &["LISTEN a"]);
    run(&mut client, &["LISTEN b", "LISTEN c"]);
    run(&mut client, &["UNLISTEN a"]);
    assert_quiet(&mut client, &database, "b");
    run(&mut client, &["BEGIN", "UNLISTEN b", "COMMIT"]);
    postgres().sql(&database, "NOTIFY a; NOTIFY b");
    assert_quiet(&mut client, &database, "c");
    run(&mut client, &["BEGIN"]);
    run(&mut client, &["UNLISTEN *"]);
    run(&mut client, &["ROLLBACK"]);
    assert_quiet(&mut client, &database, "c");
    // By a statement that has a name, on whichever server.
    client.exchange(&[frontend::parse("stop", "UNLISTEN c", &[]), frontend::sync()]);
    for _ in 0..3 {
        let replies = client.exchange(&[
            frontend::bind("", "stop", &[]),
            frontend::execute("", 0),
            frontend::sync(),
        ]);
        let names = crate::support::wire::names(&replies);
        assert_eq!(names, ["BindComplete", "CommandComplete", "ReadyForQuery"]);
        postgres().sql(&database, "NOTIFY c");
        run(&mut client, &["LISTEN d"]);
        assert_quiet(&mut client, &database, "d");
        run(&mut client, &["LISTEN c"]);
        assert_quiet(&mut client, &database, "c");
    }
    run(&mut client, &["DISCARD ALL"]);
    postgres().sql(&database, "NOTIFY c; NOTIFY d");
    run(&mut client, &["LISTEN e"]);
    assert_quiet(&mut client, &database, "e");
}

#[test]
fn transactions_may_be_sent_ahead() {
    let (pooler, database) = start();
    let mut client = pooler.connect(&database);
    let mut send = |texts: &[&str]| {
        let all: Vec<_> = texts.iter().map(|sql| frontend::query(sql)).collect();
        client.send_all(&all);
        for sql in texts {
            let replies = client.read_until_ready();
            assert!(replies.iter().all(|it| it.tag != b'E'), "{sql} {replies:?}");
        }
        client.rows("SELECT 1");
        let mut seen = Vec::new();
        postgres().sql(&database, "NOTIFY a; NOTIFY b; NOTIFY c; NOTIFY d");
        postgres().sql(&database, "NOTIFY \"end\"");
        loop {
            match next(&mut client).1 {
                channel if channel == "end" => return seen.join(" "),
                channel => seen.push(channel),
            }
        }
    };
    assert_eq!(
        send(&["LISTEN \"end\"", "LISTEN a", "LISTEN b", "UNLISTEN a"]),
        "b"
    );
    let script = [
        "BEGIN",
        "UNLISTEN b",
        "ROLLBACK",
        "LISTEN c",
        "BEGIN",
        "LISTEN d",
        "UNLISTEN c",
        "COMMIT",
    ];
    assert_eq!(send(&script), "b d");
    assert_eq!(
        send(&["LISTEN a", "BEGIN", "UNLISTEN a", "ROLLBACK"]),
        "a b d"
    );
    assert_eq!(send(&["DISCARD ALL", "LISTEN \"end\"", "LISTEN d"]), "d");
    // In a transaction that has failed it is refused once.
    client.send_all(&[
        frontend::query("BEGIN"),
        frontend::query("SELECT 1/0"),
        frontend::query("UNLISTEN d"),
        frontend::query("ROLLBACK"),
    ]);
    for errors in [0, 1, 1, 0] {
        let replies = client.read_until_ready();
        assert_eq!(replies.iter().filter(|it| it.tag == b'E').count(), errors);
    }
    assert_quiet(&mut client, &database, "d");
}

#[test]
fn discard_all_ends_it() {
    let (pooler, database) = start();
    let (mut client, mut other) = (pooler.connect(&database), pooler.connect(&database));
    client.rows("LISTEN a");
    other.rows("LISTEN a");
    client.rows("DISCARD ALL");
    other.rows("NOTIFY a, 'x'");
    assert_eq!(payload(&mut other), "x");
    client.rows("LISTEN b");
    assert_quiet(&mut client, &database, "b");
    client.rows("UNLISTEN b");
    wait_until("only one is left", || {
        pooler.console("SHOW LISTENERS").rows.len() == 1
    });
}

/// Notifies a counter, one commit each, until it is dropped.
struct Counter {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Counter {
    fn start(database: &str, channel: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (database, stops) = (database.to_owned(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut writer = postgres().connect(&database);
            for number in 0.. {
                if stops.load(Ordering::SeqCst) {
                    return;
                }
                writer.rows(&format!("NOTIFY {channel}, '{number}'"));
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

/// It is no warning.
fn read_on(message: Message) -> Message {
    assert_eq!(message.name(), "NotificationResponse");
    message
}

/// The numbers that came on the channel among these messages.
fn numbers(messages: &[Message], channel: &str, into: &mut Vec<u64>) {
    for message in messages.iter().filter(|it| it.tag == b'A') {
        let (_, name, payload) = read(message);
        if name == channel {
            into.push(payload.parse().unwrap());
        }
    }
}

fn assert_contiguous(numbers: &[u64]) {
    for pair in numbers.windows(2) {
        assert_eq!(pair[1], pair[0] + 1);
    }
}

#[test]
fn a_hand_over_neither_loses_nor_repeats_anything() {
    let (pooler, database) = start();
    let _counter = Counter::start(&database, "count");
    let mut client = pooler.connect(&database);
    for _ in 0..30 {
        let mut seen = Vec::new();
        numbers(&client.query("LISTEN count"), "count", &mut seen);
        while seen.len() < 40 {
            let message = client.read_message().unwrap();
            numbers(&[message], "count", &mut seen);
        }
        assert_contiguous(&seen);
        client.rows("UNLISTEN *");
    }
    assert_eq!(pinned(&pooler), 0);
}

#[test]
fn what_changes_beside_a_channel_leaves_its_stream_whole() {
    let (pooler, database) = start();
    let _counter = Counter::start(&database, "count");
    let mut client = pooler.connect(&database);
    let mut seen = Vec::new();
    numbers(&client.query("LISTEN count"), "count", &mut seen);
    for round in 0..20 {
        for sql in [
            format!("LISTEN c{round}"),
            "BEGIN; LISTEN d; SELECT 1; COMMIT".to_owned(),
            "BEGIN; UNLISTEN count; ROLLBACK".to_owned(),
            "UNLISTEN d".to_owned(),
            "SET work_mem = '8MB'".to_owned(),
            "SELECT 1".to_owned(),
        ] {
            numbers(&client.query(&sql), "count", &mut seen);
        }
    }
    let goal = seen.len() + 50;
    while seen.len() < goal {
        let message = client.read_message().unwrap();
        numbers(&[message], "count", &mut seen);
    }
    assert_contiguous(&seen);
}

#[test]
fn nothing_is_told_inside_of_a_transaction() {
    let (pooler, database) = start();
    let (mut client, mut other) = (pooler.connect(&database), pooler.connect(&database));
    client.rows("LISTEN news");
    other.rows("LISTEN news");
    client.rows("BEGIN");
    postgres().sql(&database, "NOTIFY news, 'later'");
    assert_eq!(payload(&mut other), "later");
    for _ in 0..3 {
        let replies = client.query("SELECT 1");
        assert!(replies.iter().all(|message| message.tag != b'A'));
    }
    let mut replies = client.query("COMMIT");
    if replies.iter().all(|message| message.tag != b'A') {
        replies.push(client.read_message().unwrap());
    }
    let told = replies.iter().find(|it| it.tag == b'A').unwrap();
    assert_eq!(read(told).2, "later");
}

#[test]
fn the_longest_payload_comes_whole() {
    let (pooler, database) = start();
    let mut client = pooler.connect(&database);
    client.rows("LISTEN news");
    let long = "x".repeat(7999);
    for _ in 0..20 {
        client.send(&frontend::query(&format!("NOTIFY news, '{long}'")));
    }
    let (mut told, mut ready) = (0, 0);
    while told < 20 || ready < 20 {
        let message = client.read_message().unwrap();
        match message.tag {
            b'A' => {
                assert_eq!(read(&message).2, long);
                told += 1;
            }
            b'Z' => ready += 1,
            _ => {}
        }
    }
}

#[test]
fn whoever_is_gone_listens_no_more() {
    let (pooler, database) = start();
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    one.rows("LISTEN a");
    run(&mut one, "LISTEN b");
    run(&mut other, "LISTEN a");
    let clients = pooler.console("SHOW LISTENERS");
    assert_eq!(clients.get(0, "clients"), "2");
    one.abort();
    wait_until("only one listens", || {
        let left = pooler.console("SHOW LISTENERS");
        left.rows.len() == 1 && left.get(0, "clients") == "1"
    });
    assert_quiet(&mut other, &database, "a");
}

#[test]
fn a_lost_listener_comes_back_and_says_so() {
    let (pooler, database) = start();
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    one.rows("LISTEN a");
    run(&mut one, "SELECT 1");
    run(&mut other, "LISTEN b");
    let listener = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE datname = '{database}' AND query LIKE 'LISTEN %' AND query NOT LIKE '%NOTIFY%'"
    );
    assert_eq!(postgres().value("postgres", &listener), "1");
    for client in [&mut one, &mut other] {
        let notice = client.read_message().unwrap();
        assert_eq!(notice.name(), "NoticeResponse");
        assert_eq!(notice.field('S').as_deref(), Some("WARNING"));
    }
    assert_quiet(&mut one, &database, "a");
    assert_quiet(&mut other, &database, "b");
    assert_eq!(pooler.console("SHOW LISTENERS").get(0, "lost"), "1");
    // And a hand-over works again.
    one.rows("LISTEN c");
    assert_quiet(&mut one, &database, "c");
    one.rows("SELECT 1");
    assert_eq!(pinned(&pooler), 0);
}

#[test]
fn reconnect_replaces_the_listener_unnoticed_and_pause_ends_it() {
    let (pooler, database) = start();
    let mut client = pooler.connect(&database);
    run(&mut client, "LISTEN a");
    let counter = Counter::start(&database, "count");
    let mut seen = Vec::new();
    numbers(&client.query("LISTEN count"), "count", &mut seen);
    numbers(&client.query("SELECT 1"), "count", &mut seen);
    for _ in 0..3 {
        let first = pooler.console("SHOW LISTENERS").get(0, "server");
        pooler.console("RECONNECT");
        wait_until("another listens", || {
            pooler.console("SHOW LISTENERS").get(0, "server") != first
        });
        let goal = seen.len() + 20;
        while seen.len() < goal {
            let message = client.read_message().unwrap();
            numbers(&[read_on(message)], "count", &mut seen);
        }
    }
    numbers(&client.query("UNLISTEN count"), "count", &mut seen);
    assert_contiguous(&seen);
    drop(counter);
    client.rows("SELECT 1");
    assert_quiet(&mut client, &database, "a");
    assert_eq!(pooler.console("SHOW LISTENERS").get(0, "lost"), "0");
    pooler.console(&format!("PAUSE {database}"));
    wait_until("no connection is left", || connections(&database) == 0);
    pooler.console(&format!("RESUME {database}"));
    assert_eq!(client.read_message().unwrap().name(), "NoticeResponse");
    assert_quiet(&mut client, &database, "a");
}

#[test]
fn a_client_that_takes_nothing_is_sent_away() {
    let (pooler, database) = start();
    let (mut slow, mut other) = (pooler.connect(&database), pooler.connect(&database));
    slow.rows("LISTEN news");
    other.rows("LISTEN news");
    slow.rows("BEGIN");
    let mut writer = postgres().connect(&database);
    // Each statement sends a thousand of them.
    for _ in 0..5 {
        writer.rows(
            "SELECT count(pg_notify('news', repeat('x', 7900) || n)) FROM generate_series(1, 1000) n",
        );
        for _ in 0..1000 {
            payload(&mut other);
        }
    }
    let message = slow.read_message().unwrap();
    assert_eq!(
        (message.name(), message.sqlstate().as_str()),
        ("ErrorResponse", "53200")
    );
    assert!(slow.ended());
    assert_eq!(pooler.stat(&database, "total_slow_listener_count"), 1);
}

#[test]
fn who_keeps_a_server_for_other_reasons_is_told_all_the_same() {
    let (pooler, database) = start();
    let mut client = pooler.connect(&database);
    client.rows("LISTEN a");
    run(&mut client, "CREATE TEMP TABLE mine (v int)");
    assert_eq!(pooler.console("SHOW PINS").get(0, "reason"), "temporary");
    assert_quiet(&mut client, &database, "a");
    client.rows("LISTEN b");
    client.rows("UNLISTEN a");
    postgres().sql(&database, "NOTIFY a, 'no more'");
    assert_quiet(&mut client, &database, "b");
    run(&mut client, "DROP TABLE mine");
    assert_eq!(pinned(&pooler), 0);
    assert_quiet(&mut client, &database, "b");
}

#[test]
fn without_room_for_a_listener_clients_keep_their_servers() {
    let (pooler, database) = start_with(|ini| {
        ini.set("max_db_connections", 2);
    });
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    other.rows("BEGIN");
    run(&mut one, "LISTEN a");
    assert_eq!(pooler.console("SHOW PINS").get(0, "reason"), "channels");
    assert_quiet(&mut one, &database, "a");
    run(&mut one, "UNLISTEN a");
    other.rows("COMMIT");
    assert_eq!(pinned(&pooler), 0);
}

#[test]
fn pin_policy_refuse_does_not_refuse_what_is_shared() {
    let (pooler, database) = start_with(|ini| {
        ini.set("pin_policy", "refuse");
    });
    let mut client = pooler.connect(&database);
    client.rows("LISTEN a");
    assert_quiet(&mut client, &database, "a");
    client.rows("UNLISTEN a");
    assert_eq!(client.value("SELECT 1"), "1");
}

#[test]
fn session_pooling_is_as_it_was() {
    let (pooler, database) = start_with(|ini| {
        ini.set("pool_mode", "session");
    });
    let mut client = pooler.connect(&database);
    client.rows("LISTEN a");
    let server: u32 = client.value("SELECT pg_backend_pid()").parse().unwrap();
    assert!(pooler.console("SHOW LISTENERS").rows.is_empty());
    let replies = client.query("NOTIFY a, 'x'");
    let told = replies.iter().find(|it| it.tag == b'A').unwrap();
    assert_eq!(read(told), (server, "a".into(), "x".into()));
    client.patience(Duration::from_secs(10));
    assert_quiet(&mut client, &database, "a");
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

#[test]
fn whatever_is_said_it_listens_to_what_a_session_of_its_own_would() {
    let (pooler, database) = start();
    let (mut client, mut direct) = (pooler.connect(&database), postgres().connect(&database));
    let mut dice = Dice(42);
    let words = [
        "BEGIN",
        "BEGIN",
        "COMMIT",
        "COMMIT",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT s",
        "SAVEPOINT s",
        "ROLLBACK TO s",
        "RELEASE s",
        "LISTEN a",
        "LISTEN b",
        "LISTEN c",
        "LISTEN a",
        "UNLISTEN a",
        "UNLISTEN b",
        "UNLISTEN c",
        "UNLISTEN *",
        "SELECT 1",
        "SELECT 1/0",
        "SET work_mem = '8MB'",
        "DISCARD ALL",
        "LISTEN a; UNLISTEN b",
        "UNLISTEN a; SELECT 1/0",
        "BEGIN; UNLISTEN c; COMMIT",
        "DO $$ BEGIN LISTEN c; UNLISTEN b; END $$",
        "DEALLOCATE ALL; UNLISTEN a",
    ];
    let mut said: Vec<String> = Vec::new();
    for _ in 0..600 {
        let sql = words[usize::try_from(dice.roll(words.len() as u64)).unwrap()];
        let how = dice.roll(3);
        said.push(format!("{sql} ({how})"));
        let [ours, theirs] = [&mut client, &mut direct].map(|wire| {
            let replies = match how {
                0 if !sql.contains(';') => wire.exchange(&[
                    frontend::parse("", sql, &[]),
                    frontend::bind("", "", &[]),
                    frontend::execute("", 0),
                    frontend::sync(),
                ]),
                _ => wire.query(sql),
            };
            let names = replies.iter().filter(|it| !matches!(it.tag, b'A' | b'S'));
            let names: Vec<_> = names
                .map(|it| (it.name(), it.comparable(&mut Vec::new())))
                .collect();
            (format!("{names:?}"), wire.status)
        });
        assert_eq!(ours, theirs, "{said:?}");
        if ours.1 != b'I' {
            continue;
        }
        client.rows("SELECT 1");
        let list = "SELECT string_agg(c, ' ' ORDER BY c) FROM pg_listening_channels() c";
        let rows = pooler.console("SHOW LISTENERS");
        // Those that nobody listens to any more may still be shown for a moment.
        let shown = (0..rows.rows.len()).filter(|&row| rows.get(row, "clients") == "1");
        let shown: Vec<_> = shown.map(|row| rows.get(row, "channel")).collect();
        assert_eq!(shown.join(" "), direct.value(list), "{said:?}");
    }
}
