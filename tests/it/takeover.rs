//! `-R`: a new process takes the place of the one that runs, and its clients do not notice.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::pooler::Ini;
use crate::support::tls::authority;
use crate::support::wire::{error, names, rows};
use crate::support::{Pooler, Wire, frontend, postgres, process, wait_until};

fn start(servers: usize, change: impl FnOnce(&mut Ini)) -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("unix_socket_dir", ".")
            .set("pidfile", "pooler.pid")
            .set("default_pool_size", servers)
            .set("drain_timeout", 3);
        change(ini);
    });
    (pooler, postgres().database("takeover"))
}

/// The processes of PostgreSQL that serve this database.
fn sessions(database: &str) -> BTreeSet<String> {
    let sql = format!("SELECT pid FROM pg_stat_activity WHERE datname = '{database}'");
    let rows = postgres().sql("postgres", &sql).rows;
    rows.concat().into_iter().flatten().collect()
}

fn run_prepared(client: &mut Wire, name: &str) -> Vec<String> {
    let messages = [
        frontend::bind("", name, &[]),
        frontend::execute("", 0),
        frontend::sync(),
    ];
    let replies = client.exchange(&messages);
    let rows = rows(&replies).unwrap().rows;
    rows.concat().into_iter().flatten().collect()
}

fn prepare(client: &mut Wire, name: &str, sql: &str) {
    let messages = [frontend::parse(name, sql, &[]), frontend::sync()];
    assert_eq!(
        names(&client.exchange(&messages)),
        ["ParseComplete", "ReadyForQuery"]
    );
}

#[test]
fn clients_keep_their_statements_their_settings_and_their_servers() {
    let (mut pooler, database) = start(2, |_| ());
    let mut clients: Vec<Wire> = (0..6).map(|_| pooler.connect(&database)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        prepare(
            client,
            "mine",
            &format!("SELECT {number}, current_setting('search_path')"),
        );
        client.rows(&format!("SET search_path = 's{number}'"));
        client.rows(&format!("SET application_name = 'number {number}'"));
        client.rows(&format!("SET custom.number = '{number}'"));
    }
    let before = sessions(&database);
    assert_eq!(before.len(), 2);
    for _ in 0..3 {
        let old = pooler.pid();
        pooler.take_over();
        assert_ne!(pooler.pid(), old);
        let written = std::fs::read_to_string(pooler.directory().join("pooler.pid")).unwrap();
        assert_eq!(written.trim(), pooler.pid().to_string());
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(
                run_prepared(client, "mine"),
                [number.to_string(), format!("s{number}")]
            );
            assert_eq!(
                client.value("SHOW application_name"),
                format!("number {number}")
            );
            assert_eq!(client.value("SHOW custom.number"), number.to_string());
        }
        assert_eq!(
            sessions(&database),
            before,
            "no server was opened, and none closed"
        );
        assert_eq!(pooler.connect(&database).value("SELECT 'new'"), "new");
    }
    assert!(pooler.socket().exists());
}

#[test]
fn transactions_and_what_can_not_move_go_over_with_their_servers() {
    let (mut pooler, database) = start(6, |_| ());
    let mut open = pooler.connect(&database);
    open.rows("CREATE TABLE t (a int)");
    open.rows("BEGIN");
    open.rows("INSERT INTO t VALUES (1)");
    prepare(&mut open, "count", "SELECT count(*) FROM t");
    assert_eq!(run_prepared(&mut open, "count"), ["1"]);
    let mut failed = pooler.connect(&database);
    failed.rows("BEGIN");
    error(&failed.query("SELECT 1/0"));
    let mut owner = pooler.connect(&database);
    owner.rows("CREATE TEMPORARY TABLE own AS SELECT 7 AS a");
    owner.rows("PREPARE by_sql AS SELECT a FROM own");
    let mut locker = pooler.connect(&database);
    locker.rows("SELECT pg_advisory_lock(17)");
    let mut preparer = pooler.connect(&database);
    preparer.rows("PREPARE by_sql(int) AS SELECT $1 + 1");
    let mut unnamed = pooler.connect(&database);
    unnamed.rows("BEGIN");
    unnamed.exchange(&[
        frontend::parse("", "SELECT 'unnamed'", &[]),
        frontend::sync(),
    ]);
    let before = sessions(&database);
    pooler.take_over();
    assert_eq!(run_prepared(&mut open, "count"), ["1"]);
    assert_eq!(run_prepared(&mut unnamed, ""), ["unnamed"]);
    assert_eq!(owner.value("EXECUTE by_sql"), "7");
    assert_eq!(preparer.value("EXECUTE by_sql(1)"), "2");
    let refused = failed.query("SELECT 1");
    assert_eq!(error(&refused).field('C').as_deref(), Some("25P02"));
    failed.rows("ROLLBACK");
    let pins = pooler.console("SHOW PINS").rows.len();
    assert_eq!(pins, 2, "the owner and the locker");
    assert_eq!(sessions(&database), before);
    open.rows("COMMIT");
    assert_eq!(postgres().value(&database, "SELECT count(*) FROM t"), "1");
    assert_eq!(
        postgres().value(&database, "SELECT pg_try_advisory_lock(17)"),
        "f"
    );
    locker.rows("SELECT pg_advisory_unlock(17)");
    owner.rows("DROP TABLE own");
    owner.rows("DEALLOCATE by_sql");
    wait_until("nobody keeps a server", || {
        pooler.console("SHOW PINS").rows.is_empty()
    });
}

#[test]
fn a_session_pool_goes_over_as_it_is() {
    let (mut pooler, database) = start(3, |ini| {
        ini.set("pool_mode", "session");
    });
    let mut clients: Vec<Wire> = (0..3).map(|_| pooler.connect(&database)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        prepare(client, "mine", &format!("SELECT {number}"));
        client.rows("CREATE TEMPORARY TABLE own (a int)");
    }
    let mut waits = pooler.connect(&database);
    waits.send(&frontend::query("SELECT 'served'"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    let before = sessions(&database);
    pooler.take_over();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(run_prepared(client, "mine"), [number.to_string()]);
        assert_eq!(client.value("SELECT count(*) FROM own"), "0");
    }
    assert_eq!(sessions(&database), before);
    drop(clients);
    assert_eq!(
        names(&waits.read_until_ready()).last(),
        Some(&"ReadyForQuery")
    );
}

/// The client's query runs until the session that comes back unlocks what it waits for.
fn in_the_way(client: &mut Wire, database: &str) -> Wire {
    let mut obstacle = postgres().connect(database);
    obstacle.rows("SELECT pg_advisory_lock(1)");
    client.send(&frontend::query("SELECT pg_advisory_xact_lock(1)"));
    wait_until("the query runs", || {
        postgres().sessions(database, "active") == 1
    });
    obstacle
}

#[test]
fn queries_that_run_end_where_they_are_and_those_that_wait_go_ahead() {
    let (mut pooler, database) = start(1, |_| ());
    let mut busy = pooler.connect(&database);
    let mut waits = pooler.connect(&database);
    let mut obstacle = in_the_way(&mut busy, &database);
    waits.send(&frontend::query("SELECT 'served'"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    pooler.succeed();
    wait_until("it has taken over", || pooler.log().contains("process up"));
    assert!(!pooler.has_left(), "it has a query to end");
    assert_eq!(
        pooler.servers(&database, "app"),
        0,
        "there is no room for one more"
    );
    obstacle.rows("SELECT pg_advisory_unlock(1)");
    assert_eq!(rows(&busy.read_until_ready()).unwrap().rows.len(), 1);
    let replies = waits.read_until_ready();
    assert_eq!(rows(&replies).unwrap().only(), "served");
    wait_until("the process before ends", || pooler.has_left());
    assert_eq!(busy.value("SELECT 1"), "1");
}

#[test]
fn who_waits_for_a_server_has_not_more_time_for_it_after_a_takeover() {
    let (mut pooler, database) = start(1, |ini| {
        ini.set("query_wait_timeout", 3).set("query_wait_notify", 1);
    });
    let mut keeps = pooler.connect(&database);
    keeps.rows("BEGIN");
    let mut waits = pooler.connect(&database);
    let began = Instant::now();
    waits.send(&frontend::query("SELECT 1"));
    let notice = waits.read_message().unwrap();
    assert_eq!(notice.name(), "NoticeResponse", "{notice:?}");
    pooler.take_over();
    assert!(began.elapsed() < Duration::from_secs(3), "a slow machine");
    let clients = pooler.console("SHOW CLIENTS");
    let row = clients.find("state", "waiting").unwrap();
    assert_ne!(clients.get(row, "wait"), "0", "it has waited for a second");
    // It is told once that it waits.
    let end = waits.read_message().unwrap();
    assert_eq!(end.field('M').as_deref(), Some("query_wait_timeout"));
    let limit = Duration::from_secs(3)..Duration::from_millis(4500);
    assert!(limit.contains(&began.elapsed()), "{:?}", began.elapsed());
    keeps.rows("COMMIT");
}

#[test]
fn a_query_can_be_cancelled_on_both_sides_of_the_takeover() {
    let (mut pooler, database) = start(2, |_| ());
    let mut client = pooler.connect(&database);
    client.send(&frontend::query("SELECT pg_sleep(60)"));
    wait_until("the query runs", || {
        postgres().sessions(&database, "active") == 1
    });
    pooler.succeed();
    wait_until("it has taken over", || pooler.log().contains("process up"));
    for _ in 0..2 {
        // The first time it is still with the process before.
        let mut cancel = Wire::connect(pooler.address()).unwrap();
        cancel.send(&frontend::cancel(client.pid, &client.key));
        assert!(cancel.ended());
        let replies = client.read_until_ready();
        assert_eq!(error(&replies).field('C').as_deref(), Some("57014"));
        wait_until("the process before ends", || pooler.has_left());
        client.send(&frontend::query("SELECT pg_sleep(60)"));
        wait_until("the query runs", || {
            postgres().sessions(&database, "active") == 1
        });
    }
}

#[test]
fn listeners_miss_nothing_and_hear_nothing_twice() {
    let (mut pooler, database) = start(3, |_| ());
    let mut listeners: Vec<Wire> = (0..5).map(|_| pooler.connect(&database)).collect();
    for listener in &mut listeners {
        listener.rows("LISTEN news");
    }
    let stop = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let (stop, database) = (&stop, &database);
        let sender = scope.spawn(move || {
            let mut direct = postgres().connect(database);
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                direct.rows(&format!("NOTIFY news, '{number}'"));
                // Nobody reads meanwhile, and a client whose socket is full can't go over.
                thread::sleep(Duration::from_millis(2));
            }
            number
        });
        for _ in 0..3 {
            pooler.take_over();
            thread::sleep(Duration::from_millis(200));
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().unwrap()
    });
    assert!(sent > 20);
    for listener in &mut listeners {
        for number in 1..=sent {
            let message = listener.read_message().expect("a notification");
            assert_eq!(message.name(), "NotificationResponse", "{message:?}");
            let wanted = format!("news\0{number}\0");
            assert!(
                message.body.ends_with(wanted.as_bytes()),
                "not {number}: {message:?}"
            );
        }
        listener.rows("UNLISTEN news");
    }
}

#[test]
fn what_a_transaction_has_ended_to_listen_to_stays_ended() {
    let (mut pooler, database) = start(2, |_| ());
    let mut listener = pooler.connect(&database);
    listener.rows("LISTEN stays");
    listener.rows("LISTEN goes");
    listener.rows("BEGIN");
    listener.rows("UNLISTEN goes");
    pooler.take_over();
    listener.rows("COMMIT");
    postgres().sql(&database, "NOTIFY goes");
    postgres().sql(&database, "NOTIFY stays");
    let message = listener.read_message().expect("a notification");
    assert!(message.body.ends_with(b"stays\0\0"), "{message:?}");
}

#[test]
fn a_server_that_was_to_be_replaced_still_is() {
    let (mut pooler, database) = start(1, |_| ());
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    let before = client.value("SELECT pg_backend_pid()");
    pooler.console("RECONNECT");
    pooler.take_over();
    assert_eq!(client.value("SELECT pg_backend_pid()"), before);
    client.rows("COMMIT");
    assert_ne!(client.value("SELECT pg_backend_pid()"), before);
}

#[test]
fn who_is_encrypted_is_sent_away_between_transactions() {
    let directory = process::directory();
    let (mut pooler, database) = start(2, |ini| encrypted(ini, &directory));
    let login = || {
        Wire::login_encrypted(
            pooler.address(),
            &authority().client(None),
            "app",
            &database,
        )
        .unwrap()
    };
    let (mut idle, mut busy) = (login(), login());
    let mut plain = pooler.connect(&database);
    busy.rows("BEGIN");
    pooler.succeed();
    let farewell = |client: &mut Wire| client.read_message().unwrap().field('C');
    assert_eq!(farewell(&mut idle).as_deref(), Some("57P01"));
    assert_eq!(busy.value("SELECT 1"), "1");
    assert_eq!(plain.value("SELECT 1"), "1");
    busy.rows("COMMIT");
    assert_eq!(farewell(&mut busy).as_deref(), Some("57P01"));
    wait_until("the process before ends", || pooler.has_left());
    assert_eq!(plain.value("SELECT 1"), "1");
    std::fs::remove_dir_all(&directory).unwrap();
}

fn encrypted(ini: &mut Ini, directory: &Path) {
    authority()
        .issue("a pooler", &["localhost", "127.0.0.1"])
        .write(directory, "pooler");
    let file = |name: &str| directory.join(name).display().to_string();
    ini.set("client_tls_sslmode", "allow")
        .set("client_tls_key_file", file("pooler.key"))
        .set("client_tls_cert_file", file("pooler.crt"));
}

#[test]
fn a_successor_that_can_not_start_changes_nothing() {
    let (mut pooler, database) = start(2, |_| ());
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    // Nothing of it moves before the configuration is read.
    pooler.rewrite(|ini| {
        ini.set("pool_mode", "nonsense");
    });
    pooler.succeed();
    assert!(!pooler.give_up().success());
    pooler.rewrite(|ini| {
        ini.set("pool_mode", "transaction")
            .set("http_listen", "256.1.1.1:1");
    });
    pooler.succeed();
    assert!(
        !pooler.give_up().success(),
        "it has seen the sockets, and failed then"
    );
    client.rows("COMMIT");
    assert_eq!(pooler.connect(&database).value("SELECT 1"), "1");
    assert!(pooler.socket().exists());
    pooler.rewrite(|ini| {
        ini.set("http_listen", "");
    });
    pooler.take_over();
    assert_eq!(client.value("SELECT 2"), "2");
}

#[test]
fn a_successor_that_dies_half_way_leaves_the_rest_to_the_process_before() {
    let (mut pooler, database) = start(2, |_| ());
    let mut busy = pooler.connect(&database);
    let mut obstacle = in_the_way(&mut busy, &database);
    pooler.succeed();
    wait_until("it has taken over", || pooler.log().contains("process up"));
    // By then everything has gone over that can at once, and who can't is being sent away.
    wait_until("it waits for the query", || {
        pooler.log_before().contains("draining")
    });
    pooler.signal(nix::sys::signal::Signal::SIGKILL);
    assert!(!pooler.give_up().success());
    wait_until("the process before goes on", || {
        pooler.log().contains("takeover failed")
    });
    assert_eq!(pooler.connect(&database).value("SELECT 1"), "1");
    obstacle.rows("SELECT pg_advisory_unlock(1)");
    assert_eq!(rows(&busy.read_until_ready()).unwrap().rows.len(), 1);
    let written = std::fs::read_to_string(pooler.directory().join("pooler.pid")).unwrap();
    assert_eq!(written.trim(), pooler.pid().to_string());
    pooler.take_over();
    assert_eq!(busy.value("SELECT 1"), "1");
}

#[test]
fn a_pause_goes_on() {
    let (mut pooler, database) = start(2, |_| ());
    let mut client = pooler.connect(&database);
    assert_eq!(client.value("SELECT 1"), "1");
    pooler.console(&format!("PAUSE {database}"));
    pooler.take_over();
    client.send(&frontend::query("SELECT 2"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    pooler.console(&format!("RESUME {database}"));
    let replies = client.read_until_ready();
    assert_eq!(rows(&replies).unwrap().only(), "2");
}

#[test]
fn clients_come_and_go_while_one_process_follows_the_other() {
    let (mut pooler, database) = start(4, |_| ());
    let address = pooler.address();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..8)
            .map(|number| {
                let (stop, database) = (&stop, &database);
                scope.spawn(move || {
                    let mut done = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let mut client = Wire::login(address, "app", database, None).unwrap();
                        for turn in 0..=number {
                            assert_eq!(client.value(&format!("SELECT {turn}")), turn.to_string());
                            done += 1;
                        }
                    }
                    done
                })
            })
            .collect();
        for _ in 0..5 {
            pooler.take_over();
            thread::sleep(Duration::from_millis(100));
        }
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            assert!(worker.join().unwrap() > 0);
        }
    });
    assert!(sessions(&database).len() <= 4);
}

#[test]
fn where_nobody_runs_it_starts_as_usual() {
    let pooler = Pooler::start(|ini| {
        ini.set("unix_socket_dir", ".");
        ini.option("-R");
    });
    assert!(pooler.log().contains("nobody to take over from"));
    assert_eq!(pooler.connect("postgres").value("SELECT 1"), "1");
}
