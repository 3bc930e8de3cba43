//! What takes too long, and servers that hang, lie or go away.

use std::time::{Duration, Instant};

use crate::support::scripted::Scripted;
use crate::support::wire::error;
use crate::support::{Message, Pooler, Wire, frontend, postgres, wait_until};

fn pooler(key: &str, seconds: &str) -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1).set(key, seconds);
    });
    (pooler, postgres().database("timeouts"))
}

fn ends_with(client: &mut Wire, replies: &[Message], text: &str) {
    assert_eq!(error(replies).field('M').as_deref(), Some(text));
    assert_eq!(error(replies).field('S').as_deref(), Some("FATAL"));
    assert!(client.ended());
}

/// Everything up to the end of the connection.
fn read_all(client: &mut Wire) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some(message) = client.read_message() {
        messages.push(message);
    }
    messages
}

#[test]
fn query_timeout_ends_a_running_query_and_its_client() {
    let (pooler, database) = pooler("query_timeout", "1");
    let mut client = pooler.connect(&database);
    let begin = Instant::now();
    let replies = client.query("SELECT pg_sleep(30)");
    ends_with(&mut client, &replies, "query timeout");
    assert!(
        begin.elapsed() >= Duration::from_secs(1),
        "after {:?}",
        begin.elapsed()
    );
    wait_until("the query has ended", || {
        postgres().sessions(&database, "active") == 0
    });
    assert_eq!(pooler.connect(&database).value("SELECT 'next'"), "next");
}

#[test]
fn idle_transaction_timeout_ends_a_silent_transaction() {
    let (pooler, database) = pooler("idle_transaction_timeout", "1");
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    let replies = read_all(&mut client);
    ends_with(&mut client, &replies, "idle transaction timeout");
    wait_until("the transaction is gone", || {
        postgres().sessions(&database, "idle in%") == 0
    });
    assert_eq!(pooler.connect(&database).value("SELECT 'next'"), "next");
}

#[test]
fn transaction_timeout_ends_a_long_transaction() {
    let (pooler, database) = pooler("transaction_timeout", "1");
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    let replies = client.query("SELECT pg_sleep(30)");
    ends_with(&mut client, &replies, "transaction timeout");
    wait_until("the transaction is gone", || {
        postgres().sessions(&database, "active") + postgres().sessions(&database, "idle in%") == 0
    });
}

#[test]
fn client_idle_timeout_ends_a_silent_client() {
    let (pooler, database) = pooler("client_idle_timeout", "1");
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    let replies = read_all(&mut client);
    ends_with(&mut client, &replies, "client_idle_timeout");
}

#[test]
fn client_login_timeout_ends_a_connection_that_says_nothing() {
    let pooler = Pooler::start(|ini| {
        // Else the kernel waits for the silent one's first byte, and it is not here yet.
        ini.set("client_login_timeout", 1)
            .set("tcp_defer_accept", 0);
    });
    let silent = Wire::connect(pooler.address()).unwrap();
    let mut half = Wire::connect(pooler.address()).unwrap();
    half.send(&[0, 0, 0, 50, 0, 3]);
    for mut client in [silent, half] {
        let farewell = client.read_message().unwrap();
        assert_eq!(farewell.field('M').as_deref(), Some("client_login_timeout"));
        assert!(client.ended());
    }
}

#[test]
fn server_idle_timeout_closes_an_unused_server() {
    let (pooler, database) = pooler("server_idle_timeout", "1");
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    wait_until("the server is closed", || {
        postgres().sessions(&database, "%") == 0
    });
    assert_eq!(client.value("SELECT 'again'"), "again");
}

#[test]
fn server_lifetime_replaces_a_server() {
    let (pooler, database) = pooler("server_lifetime", "1");
    let mut client = pooler.connect(&database);
    let pid = client.value("SELECT pg_backend_pid()");
    wait_until("another server", || {
        client.value("SELECT pg_backend_pid()") != pid
    });
    client.rows("BEGIN");
    let pid = client.value("SELECT pg_backend_pid()");
    client.rows("SELECT pg_sleep(1.5)");
    assert_eq!(
        client.value("SELECT pg_backend_pid()"),
        pid,
        "not in the middle of a transaction"
    );
}

#[test]
fn a_server_that_hangs_in_its_login_is_given_up() {
    let server = Scripted::start(|_, session| {
        session.read_startup();
        session.hang();
    });
    let pooler = Pooler::start(|ini| {
        ini.set("server_connect_timeout", 1)
            .set("query_wait_timeout", 3)
            .target("hung", &server.target());
    });
    let refusal = pooler
        .login("app", "hung", None)
        .err()
        .expect("no login without a server");
    assert!(!refusal.text().is_empty(), "the client is told why");
    assert!(server.accepted() >= 1);
}

#[test]
fn a_servers_own_login_error_reaches_the_client() {
    let pooler = Pooler::start(|_| {});
    let refusal = pooler.login("app", "no_such_database", None).err().unwrap();
    assert_eq!(
        refusal.text(),
        "database \"no_such_database\" does not exist"
    );
}

#[test]
fn a_server_that_is_starting_up_is_waited_for() {
    let server = Scripted::start(|number, session| {
        if number == 0 {
            session.read_startup();
            session.error("FATAL", "57P03", "the database system is starting up");
            return;
        }
        session.serve();
    });
    let pooler = Pooler::start(|ini| {
        ini.set("server_login_retry", 1)
            .target("slow", &server.target());
    });
    let mut client = pooler.login("app", "slow", None).unwrap();
    assert_eq!(client.query("SELECT").len(), 2);
}

#[test]
fn a_server_that_dies_in_the_middle_of_a_reply_is_told_to_the_client() {
    let server = Scripted::start(|_, session| {
        session.accept_login();
        session.read_until(b'Q');
        // Half of a DataRow.
        session.send(&frontend::message(b'D', &[0, 1, 0, 0, 0, 100])[..9]);
    });
    let pooler = Pooler::start(|ini| {
        ini.set("server_check_delay", 30)
            .target("dying", &server.target());
    });
    let mut client = pooler.login("app", "dying", None).unwrap();
    client.send(&frontend::query("SELECT 1"));
    // What came is passed on or not; in either case the connection ends, and the next one is served.
    assert!(client.ended());
    assert!(pooler.login("app", "dying", None).is_ok());
}

#[test]
fn a_server_that_dies_between_queries_costs_the_client_nothing() {
    let database = postgres().database("timeouts");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 2);
    });
    let mut client = pooler.connect(&database);
    let pid = client.value("SELECT pg_backend_pid()");
    postgres().sql("postgres", &format!("SELECT pg_terminate_backend({pid})"));
    wait_until("the pooler has seen it go", || {
        postgres().sessions(&database, "%") == 0
    });
    wait_until("and has dropped it", || {
        pooler.servers(&database, "app") == 0
    });
    assert_ne!(client.value("SELECT pg_backend_pid()"), pid);
}

#[test]
fn a_server_terminated_under_a_client_passes_its_error_on() {
    let (pooler, database) = pooler("query_timeout", "0");
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    let pid = client.value("SELECT pg_backend_pid()");
    client.send(&frontend::query("SELECT pg_sleep(30)"));
    wait_until("the query runs", || {
        postgres().sessions(&database, "active") == 1
    });
    postgres().sql("postgres", &format!("SELECT pg_terminate_backend({pid})"));
    let replies = read_all(&mut client);
    assert_eq!(error(&replies).sqlstate(), "57P01");
}

#[test]
fn a_server_whose_messages_make_no_sense_is_closed() {
    let server = Scripted::start(|number, session| {
        session.accept_login();
        session.read_until(b'Q');
        match number % 3 {
            0 => session.send(&[b'D', 0, 0, 0, 1]),
            1 => session.send(&[b'Z', 0x7f, 0xff, 0xff, 0xff, b'I']),
            _ => session.send(&frontend::message(b'Z', b"?")),
        }
        session.hang();
    });
    let pooler = Pooler::start(|ini| {
        ini.set("query_timeout", 5)
            .target("lying", &server.target());
    });
    for _ in 0..3 {
        let mut client = pooler.login("app", "lying", None).unwrap();
        client.send(&frontend::query("SELECT 1"));
        assert!(client.ended());
    }
    assert!(
        pooler.console("SHOW VERSION").rows.len() == 1,
        "the pooler lives on"
    );
}

#[test]
fn a_server_that_speaks_unasked_is_not_lent_out_with_it() {
    let server = Scripted::start(|_, session| {
        session.accept_login();
        while session.read_until(b'Q') {
            session.complete("SELECT 0");
            session.ready(b'I');
            // An answer that nobody asked for: the next client must not take it for its own.
            session.complete("SELECT 666");
            session.ready(b'I');
        }
    });
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1)
            .set("server_login_retry", 1)
            .target("chatty", &server.target());
    });
    for _ in 0..5 {
        let mut client = pooler.login("app", "chatty", None).unwrap();
        let replies = client.query("SELECT");
        assert_eq!(replies[0].body, b"SELECT 0\0", "{replies:?}");
    }
}

/// A client that waits for the one server, and was told so; and the one that has it.
fn told_that_it_waits(pooler: &Pooler, database: &str) -> (Wire, Wire) {
    let mut holding = pooler.connect(database);
    holding.rows("BEGIN");
    let mut waiting = pooler.connect(database);
    waiting.send(&frontend::query("SELECT 1"));
    let notice = waiting.read_message().unwrap();
    assert_eq!(notice.name(), "NoticeResponse", "{notice:?}");
    (holding, waiting)
}

#[test]
fn query_wait_timeout_still_holds_for_a_client_that_was_told_that_it_waits() {
    let database = postgres().database("timeouts");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1)
            .set("query_wait_notify", 1)
            .set("query_wait_timeout", 2);
    });
    let (mut holding, mut waiting) = told_that_it_waits(&pooler, &database);
    let replies = read_all(&mut waiting);
    ends_with(&mut waiting, &replies, "query_wait_timeout");
    assert_eq!(holding.value("SELECT 'undisturbed'"), "undisturbed");
}

#[test]
fn kill_client_reaches_a_client_that_was_told_that_it_waits() {
    let database = postgres().database("timeouts");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1).set("query_wait_notify", 1);
    });
    let (mut holding, mut waiting) = told_that_it_waits(&pooler, &database);
    let clients = pooler.console("SHOW CLIENTS");
    let row = clients.find("state", "waiting").expect("one waits");
    pooler.console(&format!("KILL_CLIENT {}", clients.get(row, "id")));
    let replies = read_all(&mut waiting);
    ends_with(&mut waiting, &replies, "admin forced disconnect");
    // And one after the other: a client that is served after it was told is an ordinary client again.
    let mut waiting = pooler.connect(&database);
    waiting.send(&frontend::query("SELECT 1"));
    assert_eq!(waiting.read_message().unwrap().name(), "NoticeResponse");
    holding.rows("COMMIT");
    assert_eq!(waiting.read_until_ready().len(), 4);
    let clients = pooler.console("SHOW CLIENTS");
    let port = waiting.stream().local_addr().unwrap().port().to_string();
    let row = clients.find("port", &port).expect("it is listed");
    pooler.console(&format!("KILL_CLIENT {}", clients.get(row, "id")));
    let replies = read_all(&mut waiting);
    ends_with(&mut waiting, &replies, "admin forced disconnect");
}
