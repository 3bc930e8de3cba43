//! Settings that go ahead of a client's first message to a server: in one round trip with it, and what they are refused for does
//! not run.

use std::sync::Mutex;
use std::sync::mpsc::sync_channel;

use crate::support::frontend::{bind, execute, message, parse, query, sync};
use crate::support::message::Message;
use crate::support::scripted::{Scripted, Session};
use crate::support::wire::names;
use crate::support::{Pooler, Wire, postgres};

/// The text of the next Query; anything else ends the test.
fn next_query(session: &mut Session) -> String {
    let (tag, body) = session.read_message().expect("a query");
    assert_eq!(tag, b'Q');
    let text = body.strip_suffix(b"\0").expect("a text");
    String::from_utf8(text.to_vec()).unwrap()
}

fn in_tokyo(pooler: &Pooler, database: &str) -> Wire {
    let parameters = [
        ("user", "app"),
        ("database", database),
        ("TimeZone", "Asia/Tokyo"),
    ];
    Wire::login_with(pooler.address(), &parameters, None).unwrap()
}

/// Answers what is sent ahead, and then every query.
fn answer_from_here_on(session: &mut Session) {
    session.complete("BEGIN");
    session.ready(b'T');
    session.complete("SET");
    session.send(&message(b'S', b"TimeZone\0Asia/Tokyo\0"));
    session.complete("COMMIT");
    session.ready(b'I');
    session.complete("SELECT 1");
    session.ready(b'I');
    while session.read_until(b'Q') {
        session.complete("SELECT 1");
        session.ready(b'I');
    }
}

#[test]
fn settings_and_the_first_query_take_one_round_trip() {
    let server = Scripted::start(|_, session| {
        session.accept_login();
        // Nothing is said before all of it is there.
        let texts = [(); 3].map(|()| next_query(session));
        let wanted = ["BEGIN", "SET TimeZone='Asia/Tokyo';COMMIT", "SELECT 7"];
        assert_eq!(texts, wanted);
        answer_from_here_on(session);
    });
    let pooler = Pooler::start(|ini| {
        ini.target("scripted", &server.target())
            .set("follow_functions", 0);
    });
    let mut client = in_tokyo(&pooler, "scripted");
    let replies = client.query("SELECT 7");
    assert_eq!(names(&replies), ["CommandComplete", "ReadyForQuery"]);
    assert_eq!(server.accepted(), 1);
}

#[test]
fn a_server_whose_client_is_killed_in_the_meantime_serves_the_next() {
    let (may_answer, killed) = sync_channel(0);
    let killed = Mutex::new(killed);
    let server = Scripted::start(move |number, session| {
        if number > 0 {
            // A cancel request for the query of a client that is gone.
            return;
        }
        session.accept_login();
        for _ in 0..3 {
            next_query(session);
        }
        killed.lock().unwrap().recv().unwrap();
        answer_from_here_on(session);
    });
    let pooler = Pooler::start(|ini| {
        ini.target("scripted", &server.target())
            .set("follow_functions", 0)
            .set("default_pool_size", 1);
    });
    let mut client = in_tokyo(&pooler, "scripted");
    client.send(&query("SELECT 7"));
    pooler.wait_for_pool("scripted", "app", "cl_active", 1);
    let clients = pooler.console("SHOW CLIENTS");
    let row = clients.find("database", "scripted").unwrap();
    pooler.console(&format!("KILL_CLIENT {}", clients.get(row, "id")));
    assert_eq!(names(&client.read_until(b'E')), ["ErrorResponse"]);
    may_answer.send(()).unwrap();
    let mut next = pooler.connect("scripted");
    let replies = next.query("SELECT 8");
    assert_eq!(*names(&replies).last().unwrap(), "ReadyForQuery");
    let log = pooler.log();
    assert_eq!(log.matches("new connection to server").count(), 1, "{log}");
}

/// A client whose settings no server takes.
fn refused(pooler: &Pooler, database: &str) -> Wire {
    let parameters = [
        ("user", "app"),
        ("database", database),
        ("DateStyle", "no such style"),
    ];
    Wire::login_with(pooler.address(), &parameters, None).unwrap()
}

#[test]
fn nothing_runs_if_the_settings_are_refused() {
    let database = postgres().database("ahead");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    let mut witness = pooler.connect(&database);
    witness.rows("CREATE TABLE t (way int)");
    let insert = |way| format!("INSERT INTO t VALUES ({way})");
    let run = |name: &str, sql: &str| {
        [
            parse(name, sql, &[]),
            bind("", name, &[]),
            execute("", 0),
            sync(),
        ]
        .concat()
    };
    let one_batch = |texts: [&str; 3]| {
        let parts =
            texts.map(|sql| [parse("", sql, &[]), bind("", "", &[]), execute("", 0)].concat());
        [parts.concat(), sync()].concat()
    };
    let ways = [
        query(&insert(0)),
        query(&format!("ROLLBACK; {}", insert(1))),
        query(&format!("/* - */ -- -\n commit; {}", insert(2))),
        query(&format!("; END; {}", insert(3))),
        query(&format!("PREPARE TRANSACTION 'p'; {}", insert(4))),
        [query(&insert(5)), query(&insert(5))].concat(),
        [query("SELECT 1"), query("ROLLBACK"), query(&insert(6))].concat(),
        run("", &insert(7)),
        run("named", &insert(8)),
        [run("", "ROLLBACK"), run("", &insert(9))].concat(),
        one_batch(["SELECT 1", "ROLLBACK", &insert(10)]),
        one_batch(["ROLLBACK", &insert(11), "SELECT 1"]),
        [parse("", "", &[]), run("", &insert(12))].concat(),
        [message(b'H', b""), query(&insert(13))].concat(),
    ];
    for (way, bytes) in ways.iter().enumerate() {
        let mut client = refused(&pooler, &database);
        client.send(bytes);
        let replies = client.read_until(b'E');
        let said = replies.last().unwrap().field('M');
        assert_eq!(said.as_deref(), Some("invalid server parameter"), "{way}");
        assert!(client.ended());
        assert_eq!(witness.value("SELECT count(*) FROM t"), "0", "{way}");
    }
}

#[test]
fn batches_behind_the_first_come_in_their_order() {
    let database = postgres().database("ahead");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    let mut other = pooler.connect(&database);
    other.rows("SELECT 1");
    let mut client = in_tokyo(&pooler, &database);
    let prepared = [parse("zone", "SHOW TimeZone", &[]), bind("", "zone", &[])];
    let rest = [execute("", 0), sync(), query("SELECT 2")];
    client.send_all(&[query("SELECT 1"), prepared.concat(), rest.concat()]);
    let mut replies = client.read_until_ready();
    replies.extend(client.read_until_ready());
    replies.extend(client.read_until_ready());
    let rows = replies.iter().filter(|it| it.name() == "DataRow");
    let values: Vec<_> = rows.map(Message::values).collect();
    let wanted = ["1", "Asia/Tokyo", "2"].map(|value| vec![Some(value.to_owned())]);
    assert_eq!(values, wanted);
    assert_eq!(
        other.value("SHOW TimeZone"),
        postgres().value(&database, "SHOW TimeZone")
    );
}

#[test]
fn values_are_set_in_their_client_s_encoding() {
    let database = postgres().database("ahead");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    let mut latin = pooler.connect(&database);
    let mut other = pooler.connect(&database);
    latin.rows("SET client_encoding = 'LATIN1'");
    latin.send(&message(b'Q', b"SET app.name = '\xe9'\0"));
    latin.read_until_ready();
    for _ in 0..2 {
        assert_eq!(other.value("SHOW client_encoding"), "UTF8");
        assert_eq!(
            latin.value("SELECT ascii(current_setting('app.name'))"),
            "233"
        );
    }
}
