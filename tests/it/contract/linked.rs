//! Errors of clients that have logged in, with a server or without.

use super::{Findings, end, fatal, shown};
use crate::support::pooler::{Ini, is_pgbouncer};
use crate::support::scripted::Scripted;
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

fn start(change: impl FnOnce(&mut Ini)) -> (Pooler, String) {
    let database = postgres().database("linked");
    (Pooler::start(change), database)
}

/// A client that has sent this after its login.
fn having_sent(pooler: &Pooler, database: &str, sql: &str) -> Wire {
    let mut client = pooler.connect(database);
    client.send(&frontend::query(sql));
    client
}

#[test]
fn what_takes_too_long_is_ended_in_pgbouncers_words() {
    // Name, what is done, and what is said.
    let limits = [
        ("query_timeout", "SELECT pg_sleep(20)", "query timeout"),
        (
            "idle_transaction_timeout",
            "BEGIN",
            "idle transaction timeout",
        ),
        ("client_idle_timeout", "SELECT 1", "client_idle_timeout"),
        ("transaction_timeout", "BEGIN", "transaction timeout"),
    ];
    // PgBouncer has the last one since 1.25.
    let limits = &limits[..if is_pgbouncer() { 3 } else { 4 }];
    let mut findings = Findings::default();
    for (setting, sql, text) in limits {
        let (pooler, database) = start(|_| ());
        let mut client = pooler.connect(&database);
        // Only now, so that it is not the login that takes too long.
        pooler.console(&format!("SET {setting} = '0.5'"));
        client.send(&frontend::query(sql));
        findings.compare(setting, end(&mut client), fatal(text));
    }
    findings.report();
}

#[test]
fn what_the_console_ends_has_pgbouncers_words() {
    let (mut pooler, database) = start(|_| ());
    pooler.reconfigure(|ini| {
        ini.database("own", &format!("dbname={database}"))
            .database("gone", &format!("dbname={database}"));
    });
    let mut findings = Findings::default();
    for inside in [false, true] {
        let client = || {
            let mut client = pooler.connect("own");
            client.rows(if inside { "BEGIN" } else { "SELECT 1" });
            client
        };
        let mut killed = client();
        pooler.console("KILL own");
        let told = end(&mut killed);
        findings.compare(format!("KILL, {inside}"), told, fatal("database removed"));
        pooler.console("RESUME own");
        if is_pgbouncer() {
            // It takes an id since 1.25.
            continue;
        }
        let mut one = client();
        let port = one.stream().local_addr().unwrap().port().to_string();
        let clients = pooler.console("SHOW CLIENTS");
        let id = clients.get(clients.find("port", &port).unwrap(), "id");
        pooler.console(&format!("KILL_CLIENT {id}"));
        let told = end(&mut one);
        findings.compare(
            format!("KILL_CLIENT, {inside}"),
            told,
            fatal("admin forced disconnect"),
        );
    }
    let mut client = pooler.connect("gone");
    client.rows("SELECT 1");
    pooler.reconfigure(|ini| {
        ini.without_database("gone");
    });
    findings.compare("RELOAD", end(&mut client), fatal("database removed"));
    findings.report();
}

#[test]
fn a_server_that_is_outdated_takes_its_client_along_where_it_must() {
    let (pooler, database) = start(|ini| {
        ini.set("server_fast_close", 1).set("pool_mode", "session");
    });
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    let parameters = [
        ("user", "app"),
        ("database", &database),
        ("replication", "database"),
    ];
    postgres().sql("postgres", "ALTER ROLE other REPLICATION");
    let parameters = [("user", "other"), parameters[1], parameters[2]];
    let mut replica = Wire::login_with(pooler.address(), &parameters, None).unwrap();
    replica.rows("IDENTIFY_SYSTEM");
    pooler.console("RECONNECT");
    let mut findings = Findings::default();
    let text = "database configuration changed";
    findings.compare("server_fast_close", end(&mut client), fatal(text));
    findings.compare("replication", end(&mut replica), fatal(text));
    findings.report();
}

#[test]
fn modes_that_do_not_allow_something_say_so_in_pgbouncers_words() {
    let mut findings = Findings::default();
    let (pooler, database) = start(|ini| {
        ini.set("pool_mode", "statement");
    });
    let told = end(&mut having_sent(&pooler, &database, "BEGIN"));
    let text = "transaction blocks not allowed in statement pooling mode";
    findings.compare("BEGIN", told, fatal(text));
    let (pooler, database) = start(|ini| {
        ini.set("disable_pqexec", 1);
    });
    let told = end(&mut having_sent(&pooler, &database, "SELECT 1"));
    findings.compare("a query", told, fatal("PQexec disallowed"));
    let (pooler, database) = start(|_| ());
    let parameters = [
        ("user", "app"),
        ("database", &database),
        ("datestyle", "no such style"),
    ];
    let mut client = Wire::login_with(pooler.address(), &parameters, None).unwrap();
    client.send(&frontend::query("SELECT 1"));
    findings.compare(
        "DateStyle",
        end(&mut client),
        fatal("invalid server parameter"),
    );
    findings.report();
}

/// What makes no sense, and the end of that.
fn broken_messages() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let message = frontend::message;
    let (parse, bind) = ("failed to parse packet", "failed to parse packet");
    let again = frontend::startup(&[("user", "app"), ("database", "postgres")]);
    vec![
        ("an unknown tag", message(b'y', &[]), "unknown pkt"),
        (
            "an unknown tag and no body yet",
            vec![b'y', 0, 0, 1, 0],
            "unknown pkt",
        ),
        ("a late password", frontend::password("x"), "unknown pkt"),
        ("a second startup packet", again, "unknown pkt"),
        ("Parse without a name", message(b'P', b"s"), parse),
        ("Parse without anything", message(b'P', b""), parse),
        (
            "Parse without a text",
            message(b'P', b"s\0select 1"),
            "broken Parse packet",
        ),
        (
            "Parse without types",
            message(b'P', b"s\0select 1\0"),
            "broken Parse packet",
        ),
        (
            "Parse with too few",
            message(b'P', b"s\0select 1\0\0\x02\0\0\0\x17"),
            "broken Parse packet",
        ),
        ("Bind without anything", message(b'B', b""), bind),
        ("Bind without names", message(b'B', b"p\0s"), bind),
        ("Describe without a name", message(b'D', b"Ss"), parse),
        ("Describe without anything", message(b'D', b""), parse),
        ("Close without a name", message(b'C', b"Ss"), parse),
        ("Close without anything", message(b'C', b""), parse),
        (
            "a length below four",
            vec![b'Q', 0, 0, 0, 3],
            "bad packet header: '5100000003'",
        ),
        (
            "a negative length",
            vec![b'Q', 255, 255, 255, 255],
            "bad packet header: '51ffffffff'",
        ),
        (
            "one over max_packet_size",
            [&[b'Q', 0, 1, 0, 0][..], b"select"].concat(),
            "bad packet header: '510001000073656c'",
        ),
    ]
}

#[test]
fn what_makes_no_sense_is_told_in_pgbouncers_words() {
    let (pooler, database) = start(|ini| {
        ini.set("max_packet_size", 20_000)
            .set("default_pool_size", 1);
    });
    let mut findings = Findings::default();
    for inside in [false, true] {
        for (what, bytes, text) in broken_messages() {
            let mut client = pooler.connect(&database);
            client.rows(if inside { "BEGIN" } else { "SELECT 1" });
            client.send(&bytes);
            findings.compare(format!("{what}, {inside}"), end(&mut client), fatal(text));
        }
    }
    // PostgreSQL has its own words for this, and the session goes on.
    let mut client = pooler.connect(&database);
    for body in [&b""[..], b"select 1", b"select 1\0x\0"] {
        client.send(&frontend::message(b'Q', body));
        let replies = client.read_until_ready();
        findings.compare("a query", replies[0].sqlstate(), "08P01".to_owned());
        findings.compare("its end", replies.last().map(|it| it.tag), Some(b'Z'));
    }
    findings.report();
}

#[test]
fn a_server_that_goes_or_makes_no_sense_is_told_in_pgbouncers_words() {
    let serve = |answer: &'static [u8]| {
        Scripted::start(move |_, session| {
            session.accept_login();
            while let Some((b'Q', text)) = session.read_message() {
                if text.starts_with(b"break") {
                    session.send(answer);
                    return;
                }
                session.complete("SELECT 0");
                session.ready(b'I');
            }
        })
    };
    let (dying, header) = (serve(b""), serve(b"T\0\0\0\x01"));
    let pooler = Pooler::start(|ini| {
        ini.target("dying", &dying.target())
            .target("header", &header.target());
    });
    let mut findings = Findings::default();
    let told = end(&mut having_sent(&pooler, "dying", "break"));
    findings.compare("it dies", told, fatal("server conn crashed?"));
    let told = end(&mut having_sent(&pooler, "header", "break"));
    findings.compare("a wrong header", told, fatal("bad pkt header"));
    findings.report();
}

#[test]
fn who_does_not_fall_silent_for_suspend_is_told() {
    if is_pgbouncer() {
        // It does not wait for queries.
        return;
    }
    let (pooler, database) = start(|ini| {
        ini.set("suspend_timeout", 1);
    });
    let mut client = having_sent(&pooler, &database, "SELECT pg_sleep(20)");
    wait_until("it runs", || postgres().sessions(&database, "active") == 1);
    pooler.console("SUSPEND");
    assert_eq!(end(&mut client), fatal("suspend_timeout"));
}

#[test]
fn a_client_that_comes_while_it_shuts_down_is_told() {
    if is_pgbouncer() {
        // It keeps its socket since 1.25.
        return;
    }
    let (pooler, database) = start(|ini| {
        ini.set("unix_socket_dir", ".");
    });
    let stays = pooler.connect(&database);
    pooler.console("SHUTDOWN WAIT_FOR_CLIENTS");
    let late = frontend::startup(&[("user", "app"), ("database", &database)]);
    let told = pooler.by_socket(&late);
    assert_eq!(
        shown(told.last().unwrap()),
        fatal("pooler is shutting down")
    );
    drop(stays);
}
