//! `currval` and `lastval` in transaction pooling: a client's own draws or PostgreSQL's error, never what another has drawn.

use crate::sessions::{fill, servers_used, taking_turns};
use crate::support::frontend::{bind, execute, parse, sync};
use crate::support::message::Message;
use crate::support::pooler::Ini;
use crate::support::wire::error;
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

const SCHEMA: &str = "
    CREATE TABLE t (id serial, v text); CREATE TABLE u (id int GENERATED ALWAYS AS IDENTITY, v text);
    CREATE TABLE child (parent int DEFAULT currval('t_id_seq'));
    CREATE TABLE audited (v text);
    CREATE SEQUENCE s; CREATE SEQUENCE strange START 1000;
    CREATE FUNCTION adds(v text) RETURNS void LANGUAGE sql AS $$ INSERT INTO t (v) VALUES (v) $$;
    CREATE FUNCTION asks() RETURNS bigint LANGUAGE sql AS $$ SELECT lastval() $$;
    CREATE FUNCTION twice() RETURNS bigint LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO t (v) VALUES ('both'); RETURN currval('t_id_seq'); END $$;
    CREATE FUNCTION logs() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO u (v) VALUES (NEW.v); RETURN NEW; END $$;
    CREATE TRIGGER logs AFTER INSERT OR UPDATE ON audited FOR EACH ROW EXECUTE FUNCTION logs();
    GRANT ALL ON ALL TABLES IN SCHEMA public TO app; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app;";

/// Without anything by which the pool could know from the beginning that somebody asks.
const PLAIN: &str = "
    CREATE TABLE t (id serial, v text); CREATE TABLE u (id serial, v text); CREATE SEQUENCE s;
    GRANT ALL ON ALL TABLES IN SCHEMA public TO app; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app;";

const INSERT: &str = "INSERT INTO t (v) VALUES ('x')";

/// A pooler whose every transaction goes to another of its three servers, if it can.
fn roaming(schema: &str, change: impl FnOnce(&mut Ini)) -> (Pooler, String) {
    let database = postgres().database("sequences");
    postgres().sql(&database, schema);
    let pooler = taking_turns(change);
    fill(&pooler, &database);
    (pooler, database)
}

/// One server for all.
fn alone(schema: &str, change: impl FnOnce(&mut Ini)) -> (Pooler, String) {
    let database = postgres().database("sequences");
    postgres().sql(&database, schema);
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
        change(ini);
    });
    (pooler, database)
}

fn pins(pooler: &Pooler) -> Vec<String> {
    let rows = pooler.console("SHOW PINS");
    (0..rows.rows.len())
        .map(|row| rows.get(row, "reason"))
        .collect()
}

/// The values, and the errors with their texts.
fn said(replies: &[Message]) -> Vec<String> {
    let told = replies.iter().filter_map(|message| match message.tag {
        b'D' => Some(format!("{:?}", message.values())),
        b'E' => Some(format!(
            "{} {}",
            message.sqlstate(),
            message.field('M').unwrap_or_default()
        )),
        b'C' => Some(String::from_utf8_lossy(&message.body).into_owned()),
        _ => None,
    });
    told.collect()
}

fn is_unset(replies: &[Message]) -> bool {
    error(replies).sqlstate() == "55000"
}

fn extended(client: &mut Wire, texts: &[&str]) -> Vec<Message> {
    let mut messages = Vec::new();
    for sql in texts {
        messages.extend([parse("", sql, &[]), bind("", "", &[]), execute("", 0)]);
    }
    messages.push(sync());
    client.exchange(&messages)
}

/// Each text is a transaction of its own, but where it says otherwise.
const SCRIPTS: [&[&str]; 17] = [
    &[
        "INSERT INTO audited VALUES ('a')",
        "DISCARD SEQUENCES",
        "UPDATE audited SET v = 'b'",
        "SELECT lastval()",
    ],
    &["SELECT lastval()", "SELECT currval('s')"],
    &["SELECT nextval('s')", "SELECT currval('s'), lastval()"],
    &[INSERT, "SELECT lastval()", "SELECT \"currval\"('t_id_seq')"],
    &[
        "INSERT INTO u (v) VALUES ('x')",
        "SELECT LASTVAL()",
        "SELECT currval('t_id_seq')",
    ],
    &[
        "COPY (SELECT 1) TO STDOUT",
        INSERT,
        "SELECT pg_catalog.lastval()",
    ],
    &[
        "BEGIN",
        INSERT,
        "SELECT lastval()",
        "ROLLBACK",
        "SELECT lastval(), currval('t_id_seq')",
    ],
    &[
        "BEGIN",
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        INSERT,
        "COMMIT",
        "SELECT lastval()",
    ],
    &[
        "BEGIN",
        "SELECT lastval()",
        "ROLLBACK",
        INSERT,
        "SELECT lastval()",
    ],
    &[
        "SELECT adds('y')",
        "SELECT asks()",
        "SELECT twice()",
        "SELECT asks()",
    ],
    &[
        "INSERT INTO audited VALUES ('z')",
        "SELECT lastval()",
        "SELECT currval('u_id_seq')",
    ],
    &[
        "INSERT INTO child DEFAULT VALUES",
        INSERT,
        "INSERT INTO child DEFAULT VALUES RETURNING parent",
    ],
    &[
        "SELECT setval('s', 77)",
        "SELECT currval('s')",
        "SELECT lastval()",
    ],
    &[
        "INSERT INTO t (v) VALUES ('a') RETURNING currval('t_id_seq')",
        "SELECT lastval()",
    ],
    &[
        "DO $$ BEGIN PERFORM nextval('s'); END $$",
        "DO $$ BEGIN PERFORM setval('s', lastval() + 5); END $$",
        "SELECT currval('s')",
    ],
    &[
        INSERT,
        "DISCARD SEQUENCES",
        "SELECT lastval()",
        INSERT,
        "SELECT lastval()",
        "DISCARD ALL",
        "SELECT lastval()",
    ],
    &[
        "DISCARD SEQUENCES; INSERT INTO t (v) VALUES ('x')",
        "SELECT lastval()",
        "SELECT 1",
        "SELECT lastval()",
    ],
];

#[test]
fn followed_from_the_beginning_it_is_as_in_a_session_of_ones_own() {
    let (pooler, pooled) = roaming(SCHEMA, |ini| {
        ini.set("follow_sequences", "on");
    });
    let direct = postgres().database("sequences");
    postgres().sql(&direct, SCHEMA);
    let connect_direct = || Wire::login(postgres().address(), "app", &direct, None).unwrap();
    for is_extended in [false, true] {
        for script in SCRIPTS {
            let mut sides = [connect_direct(), pooler.connect(&pooled)];
            let mut strangers = [connect_direct(), pooler.connect(&pooled)];
            for sql in script {
                // A stranger is everywhere, and goes.
                for stranger in &mut strangers {
                    for _ in 0..3 {
                        stranger.rows("SELECT nextval('strange')");
                        stranger.rows("DISCARD SEQUENCES");
                    }
                }
                let answers = sides.each_mut().map(|side| {
                    said(&if is_extended && !sql.contains(';') {
                        extended(side, &[sql])
                    } else {
                        side.query(sql)
                    })
                });
                assert_eq!(answers[0], answers[1], "{script:?}: {sql}");
            }
        }
    }
}

#[test]
fn nobody_finds_what_another_has_drawn() {
    for follow in ["auto", "on"] {
        let (pooler, database) = alone(PLAIN, |ini| {
            ini.set("follow_sequences", follow)
                .set("max_pinned_servers", 0);
        });
        let mut stranger = pooler.connect(&database);
        stranger.rows(INSERT);
        stranger.rows("SELECT nextval('s')");
        drop(stranger);
        for asks in [
            "SELECT lastval()",
            "SELECT currval('s')",
            "BEGIN; SELECT currval('t_id_seq')",
        ] {
            let mut client = pooler.connect(&database);
            assert!(is_unset(&client.query(asks)), "{asks}");
            client.rows("ROLLBACK");
            assert!(is_unset(&extended(&mut client, &["SELECT lastval()"])));
        }
        // Watched: what it draws itself does not bring up the rest.
        let mut stranger = pooler.connect(&database);
        stranger.rows("SELECT nextval('s')");
        drop(stranger);
        let mut client = pooler.connect(&database);
        client.rows("BEGIN");
        client.rows(INSERT);
        client.rows("SELECT lastval()");
        assert!(is_unset(&client.query("SELECT currval('s')")), "{follow}");
        client.rows("ROLLBACK");
    }
}

#[test]
fn what_a_transaction_has_drawn_it_is_told_from_the_beginning_and_nobody_is_pinned() {
    let (pooler, database) = alone(PLAIN, |_| ());
    let mut stranger = pooler.connect(&database);
    let mut client = pooler.connect(&database);
    for _ in 0..2 {
        stranger.rows(INSERT);
        client.rows("BEGIN");
        let id = client.value("INSERT INTO t (v) VALUES ('x') RETURNING id");
        assert_eq!(client.value("SELECT lastval()"), id);
        assert_eq!(client.value("SELECT currval('t_id_seq')"), id);
        client.rows("COMMIT");
        stranger.rows(INSERT);
        let told =
            said(&client.query("INSERT INTO t (v) VALUES ('x') RETURNING id; SELECT lastval()"));
        assert_eq!(told[0], told[2]);
        stranger.rows(INSERT);
        let insert = "INSERT INTO t (v) VALUES ('x') RETURNING id";
        let told = said(&extended(&mut client, &[insert, "SELECT lastval()"]));
        assert_eq!(told[0], told[2]);
        stranger.rows(INSERT);
        let told = said(&extended(
            &mut client,
            &["BEGIN", insert, "SELECT lastval()", "COMMIT"],
        ));
        assert_eq!(told[1], told[3]);
        // In batches that do not wait for each other.
        stranger.rows(INSERT);
        for sql in ["BEGIN", insert, "SELECT lastval()", "COMMIT"] {
            client.send_all(&[
                parse("", sql, &[]),
                bind("", "", &[]),
                execute("", 0),
                sync(),
            ]);
        }
        let mut told = Vec::new();
        for _ in 0..4 {
            told.extend(said(&client.read_until_ready()));
        }
        assert_eq!(told[1], told[3]);
        stranger.rows(INSERT);
        for sql in ["BEGIN", insert, "SELECT lastval()", "COMMIT"] {
            client.send(&frontend::query(sql));
        }
        let mut told = Vec::new();
        for _ in 0..4 {
            told.extend(said(&client.read_until_ready()));
        }
        assert_eq!(told[1], told[3]);
    }
    assert!(pins(&pooler).is_empty());
}

#[test]
fn who_asks_later_is_followed_and_so_are_those_who_draw_by_the_same_text() {
    let (pooler, database) = roaming(PLAIN, |_| ());
    let mut client = pooler.connect(&database);
    client.rows(INSERT);
    // The first time it is not known.
    client.query("SELECT lastval()");
    for _ in 0..3 {
        let id = client.value("INSERT INTO t (v) VALUES ('x') RETURNING id");
        for _ in 0..3 {
            assert_eq!(client.value("SELECT lastval()"), id);
        }
        assert_eq!(client.value("SELECT currval('t_id_seq')"), id);
    }
    assert_eq!(pins(&pooler), ["sequences"]);
    let mut other = pooler.connect(&database);
    let id = other.value("INSERT INTO t (v) VALUES ('y') RETURNING id");
    assert_eq!(other.value("SELECT lastval()"), id);
    assert_eq!(pins(&pooler).len(), 2);
    // Nobody has ever asked behind this one.
    let mut third = pooler.connect(&database);
    third.rows("INSERT INTO u (v) VALUES ('x')");
    third.rows("SELECT 1");
    assert_eq!(pins(&pooler).len(), 2);
    // It ends by DISCARD, and when they leave.
    client.rows("DISCARD SEQUENCES");
    client.rows("SELECT 1");
    assert!(is_unset(&client.query("SELECT lastval()")));
    other.send(&frontend::terminate());
    wait_until("nobody keeps a server", || pins(&pooler).is_empty());
    drop(third);
    assert_eq!(servers_used(&mut client), 3);
    client.rows(INSERT);
    assert_eq!(pins(&pooler), ["sequences"]);
    client.rows("DISCARD ALL");
    assert_eq!(servers_used(&mut client), 3);
}

#[test]
fn named_statements_are_followed_too() {
    let (pooler, database) = roaming(PLAIN, |ini| {
        ini.set("max_prepared_statements", 100);
    });
    let mut client = pooler.connect(&database);
    client.exchange(&[
        parse("draw", "INSERT INTO t (v) VALUES ($1) RETURNING id", &[]),
        parse("ask", "SELECT lastval()", &[]),
        sync(),
    ]);
    let value = Some(b"x".to_vec());
    let draw = |client: &mut Wire| {
        said(&client.exchange(&[
            bind("", "draw", std::slice::from_ref(&value)),
            execute("", 0),
            sync(),
        ]))
    };
    let ask =
        |client: &mut Wire| said(&client.exchange(&[bind("", "ask", &[]), execute("", 0), sync()]));
    draw(&mut client);
    ask(&mut client);
    for _ in 0..4 {
        let drawn = draw(&mut client);
        assert_eq!(ask(&mut client)[0], drawn[0]);
        assert_eq!(ask(&mut client)[0], drawn[0]);
    }
}

#[test]
fn copy_draws() {
    let (pooler, database) = roaming(PLAIN, |ini| {
        ini.set("follow_sequences", "on");
    });
    let mut client = pooler.connect(&database);
    client.send(&frontend::query("COPY t (v) FROM STDIN"));
    client.send_all(&[frontend::copy_data(b"a\nb\n"), frontend::copy_done()]);
    client.read_until_ready();
    for _ in 0..4 {
        assert_eq!(client.value("SELECT lastval()"), "2");
    }
}

#[test]
fn a_client_that_is_killed_leaves_nothing() {
    let (pooler, database) = alone(PLAIN, |ini| {
        ini.set("follow_sequences", "on");
    });
    let mut client = pooler.connect(&database);
    client.rows(INSERT);
    assert_eq!(pins(&pooler), ["sequences"]);
    let pid = client.value("SELECT pg_backend_pid()");
    client.abort();
    let mut next = pooler.connect(&database);
    assert_eq!(next.value("SELECT pg_backend_pid()"), pid);
    assert!(is_unset(&next.query("SELECT lastval()")));
    assert!(is_unset(&next.query("SELECT currval('t_id_seq')")));
}

#[test]
fn where_it_can_not_be_kept_postgresql_says_so() {
    for (setting, value) in [("pin_policy", "refuse"), ("max_pinned_servers", "1")] {
        let (pooler, database) = roaming(PLAIN, |ini| {
            ini.set("follow_sequences", "on").set(setting, value);
        });
        let mut first = pooler.connect(&database);
        first.rows("CREATE TEMP TABLE IF NOT EXISTS x (v int) ON COMMIT DROP");
        first.rows(INSERT);
        first.rows("SELECT 1");
        let kept = pins(&pooler).len();
        let mut client = pooler.connect(&database);
        for _ in 0..4 {
            client.rows(INSERT);
        }
        assert_eq!(pins(&pooler).len(), kept, "{setting}");
        let mut stranger = pooler.connect(&database);
        for _ in 0..3 {
            stranger.rows("SELECT nextval('s')");
        }
        assert!(is_unset(&client.query("SELECT lastval()")), "{setting}");
        assert_eq!(client.value("SELECT 1"), "1");
    }
}

#[test]
fn a_view_that_asks_does_not_tell_either() {
    let (pooler, database) = alone(PLAIN, |_| ());
    postgres().sql(
        &database,
        "CREATE VIEW asks AS SELECT lastval(); GRANT ALL ON asks TO app",
    );
    let mut stranger = pooler.connect(&database);
    stranger.rows("SELECT nextval('s')");
    let mut client = pooler.connect(&database);
    assert!(is_unset(&client.query("SELECT * FROM asks")));
}

#[test]
fn off_is_as_pgbouncer() {
    for (setting, value) in [("follow_sequences", "off"), ("pin_policy", "off")] {
        let (pooler, database) = alone(PLAIN, |ini| {
            ini.set(setting, value);
        });
        let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
        for _ in 0..2 {
            let id = one.value("INSERT INTO t (v) VALUES ('x') RETURNING id");
            assert_eq!(other.value("SELECT lastval()"), id, "{setting}");
        }
        assert!(pins(&pooler).is_empty());
    }
}

#[test]
fn a_database_whose_functions_ask_is_watched_from_the_beginning() {
    let (pooler, database) = alone(SCHEMA, |_| ());
    let mut stranger = pooler.connect(&database);
    stranger.rows("SELECT nextval('s')");
    drop(stranger);
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    client.rows(INSERT);
    assert!(is_unset(&client.query("SELECT currval('s')")));
    client.rows("ROLLBACK");
}
