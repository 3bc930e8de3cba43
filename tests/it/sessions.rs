//! Transaction pooling, and nobody notices: what a client sets goes along with it, what can't move keeps its server, and no
//! other client sees any of it.

use crate::support::pooler::Ini;
use crate::support::scripted::Scripted;
use crate::support::wire::{Rows, error};
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

/// A pooler whose every transaction goes to another server, if it can.
fn roaming(change: impl FnOnce(&mut Ini)) -> (Pooler, String) {
    (taking_turns(change), postgres().database("sessions"))
}

/// A pooler whose pools have three servers that take turns.
pub fn taking_turns(change: impl FnOnce(&mut Ini)) -> Pooler {
    Pooler::start(|ini| {
        ini.set("default_pool_size", 3).set("server_round_robin", 1);
        change(ini);
    })
}

/// Opens all three servers, so that there is another one to go to.
pub fn fill(pooler: &Pooler, database: &str) {
    let mut clients: Vec<Wire> = (0..3).map(|_| pooler.connect(database)).collect();
    for client in &mut clients {
        client.rows("BEGIN");
    }
    for client in &mut clients {
        client.rows("COMMIT");
    }
}

/// The server that runs this.
fn server(client: &mut Wire) -> String {
    client.value("SELECT pg_backend_pid()")
}

/// On how many servers six transactions run.
pub fn servers_used(client: &mut Wire) -> usize {
    let mut seen: Vec<String> = (0..6).map(|_| server(client)).collect();
    seen.sort();
    seen.dedup();
    seen.len()
}

fn pins(pooler: &Pooler) -> Rows {
    pooler.console("SHOW PINS")
}

#[test]
fn what_a_client_sets_it_keeps_on_every_server_and_nobody_else_sees() {
    let (pooler, database) = roaming(|_| ());
    fill(&pooler, &database);
    postgres().sql("postgres", "GRANT other TO app");
    let mut stranger = pooler.connect(&database);
    let look = "SELECT current_setting('work_mem') || ' ' || current_user || ' ' || current_setting('search_path') \
                || ' ' || coalesce(current_setting('app.tenant', true), '') || ' ' || current_setting('lock_timeout')";
    let fresh = stranger.value(look);
    let ways: [&[&str]; 6] = [
        &[
            "SET work_mem='8MB'",
            "SET ROLE other",
            "SET search_path=x, y",
            "SET app.tenant='t'",
            "SET lock_timeout='1s'",
        ],
        &[
            "BEGIN",
            "SET work_mem='8MB'",
            "SET ROLE other",
            "SET search_path=x, y",
            "SET app.tenant='t'",
            "SET lock_timeout='1s'",
            "COMMIT",
        ],
        &[
            "SELECT set_config('work_mem', '8MB', false), set_config('search_path', 'x, y', false)",
            "SELECT set_config('role', 'other', false), set_config('app.tenant', 't', false)",
            "SELECT set_config('lock_timeout', '1s', false)",
        ],
        &[
            "DO $$ BEGIN SET work_mem='8MB'; SET ROLE other; SET search_path=x, y; \
             PERFORM set_config('app.tenant', 't', false); SET lock_timeout='1s'; END $$",
        ],
        &[
            "SET work_mem='8MB'; SET ROLE other; SET search_path=x, y; SELECT 1; SET app.tenant='t'; SET lock_timeout='1s'",
        ],
        &[
            "BEGIN",
            "SET work_mem='8MB'",
            "SET ROLE other",
            "SET search_path=x, y",
            "SET app.tenant='t'",
            "SET lock_timeout='1s'",
            "SAVEPOINT s",
            "SET work_mem='9MB'",
            "RESET ROLE",
            "ROLLBACK TO s",
            "SET LOCAL search_path=z",
            "COMMIT",
        ],
    ];
    for way in ways {
        let mut client = pooler.connect(&database);
        for sql in way {
            client.rows(sql);
        }
        for _ in 0..4 {
            assert_eq!(client.value(look), "8MB other x, y t 1s", "{way:?}");
            assert_eq!(stranger.value(look), fresh, "{way:?}");
        }
        assert_eq!(servers_used(&mut client), 3, "{way:?}");
        client.rows("RESET ALL; RESET ROLE");
        assert_eq!(client.value(look), fresh);
        drop(client);
    }
    assert!(pins(&pooler).rows.is_empty());
}

#[test]
fn what_is_rolled_back_or_local_leaves_nothing() {
    let (pooler, database) = roaming(|_| ());
    fill(&pooler, &database);
    let mut client = pooler.connect(&database);
    let fresh = client.value("SHOW work_mem");
    for script in [
        &["BEGIN", "SET work_mem='8MB'", "ROLLBACK"][..],
        &["BEGIN", "SET LOCAL work_mem='8MB'", "COMMIT"],
        &[
            "BEGIN",
            "SELECT set_config('work_mem', '8MB', true)",
            "COMMIT",
        ],
        &["BEGIN", "SET work_mem='8MB'", "RESET work_mem", "COMMIT"],
    ] {
        for sql in script {
            client.rows(sql);
        }
        for _ in 0..4 {
            assert_eq!(client.value("SHOW work_mem"), fresh, "{script:?}");
        }
    }
    client.rows("BEGIN");
    client.rows("SET work_mem='8MB'");
    assert_eq!(error(&client.query("SELECT 1/0")).sqlstate(), "22012");
    client.rows("COMMIT");
    for _ in 0..4 {
        assert_eq!(client.value("SHOW work_mem"), fresh);
    }
}

#[test]
fn a_setting_by_parameters_of_a_named_statement_is_followed() {
    let (pooler, database) = roaming(|_| ());
    fill(&pooler, &database);
    let (mut client, mut stranger) = (pooler.connect(&database), pooler.connect(&database));
    let text = |value: &str| Some(value.as_bytes().to_vec());
    client.exchange(&[
        frontend::parse("set", "SELECT set_config($1, $2, false)", &[]),
        frontend::sync(),
    ]);
    for (name, value) in [
        ("app.tenant", "7"),
        ("App.Other", "8"),
        ("work_mem", "9MB"),
        ("app.tenant", "10"),
    ] {
        let replies = client.exchange(&[
            frontend::bind("", "set", &[text(name), text(value)]),
            frontend::execute("", 0),
            frontend::sync(),
        ]);
        assert_eq!(
            crate::support::wire::names(&replies).last(),
            Some(&"ReadyForQuery")
        );
        for _ in 0..4 {
            assert_eq!(
                client.value(&format!("SELECT current_setting('{name}')")),
                value
            );
            let seen = stranger.value(&format!(
                "SELECT coalesce(current_setting('{name}', true), '')"
            ));
            assert_ne!(seen, value);
        }
    }
    assert_eq!(servers_used(&mut client), 3);
}

#[test]
fn state_that_can_not_move_keeps_its_server_for_as_long_as_it_lives() {
    let (pooler, database) = roaming(|_| ());
    fill(&pooler, &database);
    let mut client = pooler.connect(&database);
    for (begin, end, reason) in [
        (
            "CREATE TEMP TABLE mine (v int)",
            "DROP TABLE mine",
            "temporary",
        ),
        (
            "SELECT 1 AS v INTO TEMPORARY mine",
            "DISCARD TEMP",
            "temporary",
        ),
        (
            "SELECT pg_advisory_lock(1)",
            "SELECT pg_advisory_unlock(1)",
            "locks",
        ),
        (
            "WITH l AS (SELECT pg_try_advisory_lock(1)) SELECT * FROM l",
            "SELECT pg_advisory_unlock_all()",
            "locks",
        ),
        (
            "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; COMMIT",
            "CLOSE c",
            "cursors",
        ),
        (
            "PREPARE p AS SELECT 1; DEALLOCATE p; PREPARE p AS SELECT 2",
            "DEALLOCATE p",
            "statements",
        ),
        (
            "PREPARE p AS SELECT 1; DEALLOCATE p; PREPARE p AS SELECT 2",
            "DISCARD ALL",
            "statements",
        ),
    ] {
        client.rows(begin);
        assert_eq!(servers_used(&mut client), 1, "{begin}");
        let pins = pins(&pooler);
        assert_eq!(pins.get(0, "reason"), reason, "{begin}");
        assert_eq!(pins.get(0, "query"), begin);
        assert_eq!(pins.get(0, "database"), database);
        let clients = pooler.console("SHOW CLIENTS");
        assert!(clients.find("pinned", reason).is_some());
        client.rows(end);
        assert_eq!(servers_used(&mut client), 3, "{end}");
        assert!(self::pins(&pooler).rows.is_empty(), "{end}");
    }
}

#[test]
fn what_a_killed_client_had_is_gone_from_its_server() {
    let (pooler, database) = roaming(|ini| {
        ini.set("default_pool_size", 1);
    });
    for begin in [
        "CREATE TEMP TABLE mine (v int)",
        "SELECT pg_advisory_lock(1)",
        "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; COMMIT",
        "LISTEN news",
        "PREPARE p AS SELECT 1",
        "SET work_mem = '8MB'",
    ] {
        let mut client = pooler.connect(&database);
        client.rows(begin);
        let pid = server(&mut client);
        client.abort();
        let mut next = pooler.connect(&database);
        assert_eq!(server(&mut next), pid, "{begin}: the same server serves on");
        let left = next.value(
            "SELECT (SELECT count(*) FROM pg_class WHERE relname = 'mine')
                  + (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
                      AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
                  + (SELECT count(*) FROM pg_cursors WHERE is_holdable)
                  + (SELECT count(*) FROM pg_listening_channels())
                  + (SELECT count(*) FROM pg_prepared_statements WHERE from_sql)
                  + (SELECT count(*) FROM pg_settings WHERE source = 'session' AND name = 'work_mem')",
        );
        assert_eq!(left, "0", "{begin}");
    }
    assert!(pins(&pooler).rows.is_empty());
}

#[test]
fn a_notification_reaches_the_one_that_listens_while_it_is_idle() {
    let (pooler, database) = roaming(|_| ());
    let (mut listener, mut other) = (pooler.connect(&database), pooler.connect(&database));
    listener.rows("LISTEN news");
    other.rows("NOTIFY news, 'hello'");
    let message = listener.read_message().unwrap();
    assert_eq!(message.name(), "NotificationResponse");
    assert!(String::from_utf8_lossy(&message.body[4..]).starts_with("news\0hello"));
}

#[test]
fn no_notification_gets_lost_while_the_session_is_looked_at() {
    const MANY: usize = 400;
    let (pooler, database) = roaming(|_| ());
    let mut listener = pooler.connect(&database);
    listener.rows("LISTEN news");
    let mut other = postgres().connect(&database);
    let notifier = std::thread::spawn(move || {
        for number in 0..MANY {
            other.rows(&format!("NOTIFY news, '{number}'"));
        }
    });
    let mut heard = Vec::new();
    let mut hear = |message: &crate::support::message::Message| {
        if message.name() == "NotificationResponse" {
            let text = String::from_utf8_lossy(&message.body[4..]).into_owned();
            heard.push(text.replace("news\0", "").replace('\0', ""));
        }
    };
    while !notifier.is_finished() {
        listener
            .query("SELECT set_config('app.tenant', 't', false)")
            .iter()
            .for_each(&mut hear);
    }
    notifier.join().unwrap();
    // What is left comes before the reply to the next query, or right behind it.
    for _ in 0..2 {
        listener.query("SELECT 1").iter().for_each(&mut hear);
    }
    let wanted: Vec<String> = (0..MANY).map(|number| number.to_string()).collect();
    assert_eq!(heard, wanted);
}

#[test]
fn a_notification_right_behind_a_look_does_not_wait_for_the_next_query() {
    let server = Scripted::start(|_, session| {
        session.accept_login();
        while let Some((tag, _)) = session.read_message() {
            if tag == b'Q' {
                session.complete("LISTEN");
                session.ready(b'I');
            } else if tag == b'S' {
                // The look has been asked. In one write, as it may arrive.
                session.send(
                    &[
                        frontend::message(b'3', b""),
                        frontend::message(b'1', b""),
                        frontend::message(b'2', b""),
                        frontend::message(b'D', b"\0\x03\0\0\0\x01h\0\0\0\x08channels\0\0\0\0"),
                        frontend::message(b'C', b"SELECT 1\0"),
                        frontend::message(b'3', b""),
                        frontend::message(b'Z', b"I"),
                        frontend::message(b'A', b"\0\0\0\x07news\0hello\0"),
                    ]
                    .concat(),
                );
            }
        }
    });
    let (pooler, _) = roaming(|ini| {
        ini.target("scripted", &server.target());
    });
    let mut listener = pooler.connect("scripted");
    listener.rows("LISTEN news");
    assert_eq!(
        listener.read_message().unwrap().name(),
        "NotificationResponse"
    );
}

#[test]
fn sql_prepared_statements_work_across_transactions() {
    let (pooler, database) = roaming(|_| ());
    fill(&pooler, &database);
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    one.rows("PREPARE p(int) AS SELECT $1 + 1");
    other.rows("PREPARE p(int) AS SELECT $1 + 2");
    for _ in 0..3 {
        assert_eq!(one.value("EXECUTE p(10)"), "11");
        assert_eq!(other.value("EXECUTE p(10)"), "12");
    }
    assert_eq!(
        error(&one.query("PREPARE p AS SELECT 1")).sqlstate(),
        "42P05"
    );
    one.rows("DEALLOCATE p");
    assert_eq!(error(&one.query("EXECUTE p(1)")).sqlstate(), "26000");
    assert_eq!(other.value("EXECUTE p(10)"), "12");
}

#[test]
fn refuse_sends_the_client_away_and_cleans_up() {
    let (pooler, database) = roaming(|ini| {
        ini.set("pin_policy", "refuse").set("default_pool_size", 1);
    });
    let mut client = pooler.connect(&database);
    client.rows("SET work_mem = '8MB'");
    assert_eq!(client.value("SHOW work_mem"), "8MB");
    client.rows("SELECT pg_advisory_lock(1)");
    let message = client.read_message().unwrap();
    assert_eq!(
        (message.name(), message.sqlstate().as_str()),
        ("ErrorResponse", "0A000")
    );
    assert_eq!(
        message.field('M').as_deref(),
        Some("session state is refused by pin_policy: locks")
    );
    assert!(client.ended());
    let mut next = pooler.connect(&database);
    assert_eq!(
        next.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"),
        "0"
    );
}

#[test]
fn there_is_a_limit_to_the_servers_that_are_kept() {
    let (pooler, database) = roaming(|ini| {
        ini.set("max_pinned_servers", 1);
    });
    let (mut first, mut second) = (pooler.connect(&database), pooler.connect(&database));
    first.rows("SELECT pg_advisory_lock(1)");
    first.rows("SELECT 1");
    second.rows("SELECT pg_advisory_lock(2)");
    let message = second.read_message().unwrap();
    assert_eq!(message.sqlstate(), "53300");
    assert!(second.ended());
    assert_eq!(first.value("SELECT pg_advisory_unlock(1)"), "t");
    first.rows("SELECT 1");
    let mut third = pooler.connect(&database);
    third.rows("SELECT pg_advisory_lock(2)");
    assert_eq!(servers_used(&mut third), 1);
}

#[test]
fn off_is_as_pgbouncer() {
    let (pooler, database) = roaming(|ini| {
        ini.set("pin_policy", "off").set("default_pool_size", 1);
    });
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    one.rows("SET work_mem = '8MB'");
    assert_eq!(other.value("SHOW work_mem"), "8MB");
    one.rows("CREATE TEMP TABLE mine (v int)");
    other.rows("DROP TABLE mine");
    assert!(pins(&pooler).rows.is_empty());
}

#[test]
fn the_policy_can_be_set_for_a_database_and_for_a_user() {
    let database = postgres().database("sessions");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1)
            .database("followed", &format!("dbname={database}"))
            .database("plain", &format!("dbname={database} pin_policy=off"))
            .user("other", "pin_policy=off");
    });
    let keeps = |user: &str, name: &str| {
        let mut client = pooler.login(user, name, None).unwrap();
        client.rows("SELECT pg_advisory_lock(1)");
        // Answered only after its session was looked at.
        client.rows("SELECT 1");
        let keeps = !pins(&pooler).rows.is_empty();
        client.rows("SELECT pg_advisory_unlock_all()");
        client.rows("SELECT 1");
        keeps
    };
    assert!(keeps("app", "followed"));
    assert!(!keeps("app", "plain"));
    assert!(!keeps("other", "followed"));
}

#[test]
fn what_connect_query_sets_is_where_every_client_begins() {
    let database = postgres().database("sessions");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1).database(
            "set",
            &format!(
                "dbname={database} connect_query='SET work_mem = ''5MB''; SET app.zone = ''a'''"
            ),
        );
    });
    let look = "SELECT current_setting('work_mem') || current_setting('app.zone')";
    let (mut one, mut other) = (pooler.connect("set"), pooler.connect("set"));
    one.rows("SET work_mem = '6MB'; SET app.zone = 'b'");
    assert_eq!(other.value(look), "5MBa");
    assert_eq!(one.value(look), "6MBb");
    assert_eq!(other.value(look), "5MBa");
    one.rows("SELECT pg_advisory_lock(1)");
    one.abort();
    assert_eq!(other.value(look), "5MBa");
}

#[test]
fn a_statement_timeout_of_one_client_is_not_anothers() {
    let (pooler, database) = roaming(|ini| {
        ini.set("default_pool_size", 1);
    });
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    one.rows("SET statement_timeout = '50ms'");
    assert_eq!(other.value("SELECT 'slept' FROM pg_sleep(0.3)"), "slept");
    assert_eq!(error(&one.query("SELECT pg_sleep(1)")).sqlstate(), "57014");
    assert_eq!(other.value("SELECT 'slept' FROM pg_sleep(0.3)"), "slept");
}

#[test]
fn a_client_that_nothing_can_be_found_out_about_keeps_its_server() {
    let (pooler, database) = roaming(|_| ());
    fill(&pooler, &database);
    let mut client = pooler.connect(&database);
    // The look itself takes longer.
    client.rows("SET statement_timeout = 1");
    wait_until("it is pinned or looked at", || {
        client
            .query("SELECT 1")
            .iter()
            .all(|message| message.tag != b'E')
    });
    for _ in 0..4 {
        assert_eq!(client.value("SHOW statement_timeout"), "1ms");
    }
    client.rows("RESET statement_timeout");
    for _ in 0..4 {
        assert_eq!(client.value("SHOW statement_timeout"), "0");
    }
}

#[test]
fn what_functions_and_triggers_do_to_a_session_is_followed() {
    let database = postgres().database("sessions");
    postgres().sql(
        &database,
        "CREATE FUNCTION sets() RETURNS text LANGUAGE plpgsql AS $$ BEGIN SET work_mem = '3MB'; RETURN 'set'; END $$;
         CREATE FUNCTION calls() RETURNS text LANGUAGE sql AS 'SELECT sets()';
         CREATE FUNCTION locks() RETURNS bool LANGUAGE sql AS 'SELECT pg_try_advisory_lock(3)';
         CREATE FUNCTION quiet() RETURNS int LANGUAGE sql AS 'SELECT 1';",
    );
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 3).set("server_round_robin", 1);
    });
    fill(&pooler, &database);
    let looks = || pooler.stat(&database, "total_session_look_count");
    let mut client = pooler.connect(&database);
    client.rows("SELECT quiet(), count(*), now() FROM pg_class");
    assert_eq!(looks(), 0);
    client.rows("SELECT calls()");
    for _ in 0..4 {
        assert_eq!(client.value("SHOW work_mem"), "3MB");
    }
    client.rows("RESET ALL");
    client.rows("SELECT locks()");
    assert_eq!(servers_used(&mut client), 1);
    client.rows("SELECT pg_advisory_unlock_all()");
    assert_eq!(servers_used(&mut client), 3);
}

#[test]
fn a_trigger_that_sets_something_is_followed() {
    let database = postgres().database("sessions");
    postgres().sql(
        &database,
        "CREATE TABLE written (v int); GRANT ALL ON written TO app;
         CREATE FUNCTION sets() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN SET work_mem = '3MB'; RETURN NEW; END $$;
         CREATE TRIGGER t BEFORE INSERT ON written FOR EACH ROW EXECUTE FUNCTION sets();",
    );
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 3).set("server_round_robin", 1);
    });
    fill(&pooler, &database);
    let (mut client, mut stranger) = (pooler.connect(&database), pooler.connect(&database));
    let fresh = client.value("SHOW work_mem");
    client.rows("INSERT INTO written VALUES (1)");
    for _ in 0..4 {
        assert_eq!(client.value("SHOW work_mem"), "3MB");
        assert_eq!(stranger.value("SHOW work_mem"), fresh);
    }
}

#[test]
fn reset_goes_back_to_what_the_client_asked_for_at_its_login() {
    let (pooler, database) = roaming(|_| ());
    fill(&pooler, &database);
    let enter = |address| {
        let mut client = Wire::connect(address).unwrap();
        client.send(&frontend::startup(&[
            ("user", "app"),
            ("database", &database),
            ("TimeZone", "Asia/Tokyo"),
            ("application_name", "prog"),
        ]));
        client.read_until_ready();
        client
    };
    let look = "SELECT current_setting('TimeZone') || ' ' || current_setting('application_name')";
    let (mut client, mut direct) = (enter(pooler.address()), enter(postgres().address()));
    for sql in [
        "RESET ALL",
        "SET TimeZone = 'UTC'",
        "RESET TimeZone",
        "SET application_name = 'other'",
        "SET application_name TO DEFAULT",
        "BEGIN; SET TimeZone = 'UTC'; RESET TimeZone; COMMIT",
        "CREATE TEMP TABLE mine (v int)",
        "RESET ALL",
        "DISCARD ALL",
    ] {
        for side in [&mut client, &mut direct] {
            side.rows(sql);
        }
        for _ in 0..3 {
            assert_eq!(client.value(look), direct.value(look), "{sql}");
        }
    }
}
