//! Who gets a server, when, and how many there are.

use std::time::{Duration, Instant};

use crate::support::wire::error;
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

/// A client inside a transaction, which keeps its server.
fn holder(pooler: &Pooler, database: &str) -> Wire {
    let mut client = pooler.connect(database);
    client.rows("BEGIN");
    client
}

#[test]
fn a_pool_opens_no_more_servers_than_it_may() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 3);
    });
    let mut clients: Vec<Wire> = (0..10).map(|_| pooler.connect(&database)).collect();
    for client in &mut clients {
        client.send(&frontend::query("BEGIN"));
    }
    pooler.wait_for_pool(&database, "app", "cl_waiting", 7);
    assert_eq!(pooler.pool(&database, "app").get("sv_active"), 3);
    wait_until("three are in a transaction", || {
        postgres().sessions(&database, "idle in transaction") == 3
    });
    drop(clients);
}

#[test]
fn waiting_clients_are_served_first_come_first_served() {
    let database = postgres().database("pooling");
    postgres()
        .connect(&database)
        .rows("CREATE SEQUENCE turn; GRANT ALL ON turn TO app");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    let mut holding = holder(&pooler, &database);
    let mut waiting: Vec<Wire> = (0..8).map(|_| pooler.connect(&database)).collect();
    for (number, client) in waiting.iter_mut().enumerate() {
        client.send(&frontend::query("SELECT nextval('turn')"));
        pooler.wait_for_pool(&database, "app", "cl_waiting", number as u64 + 1);
    }
    holding.rows("COMMIT");
    for (number, client) in waiting.iter_mut().enumerate() {
        let replies = client.read_until_ready();
        assert_eq!(
            crate::support::wire::rows(&replies).unwrap().only(),
            (number + 1).to_string()
        );
    }
}

#[test]
fn clients_share_one_server_between_their_transactions() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    let pid = one.value("SELECT pg_backend_pid()");
    assert_eq!(other.value("SELECT pg_backend_pid()"), pid);
    one.rows("BEGIN");
    assert_eq!(one.value("SELECT pg_backend_pid()"), pid);
    one.rows("COMMIT");
    assert_eq!(other.value("SELECT pg_backend_pid()"), pid);
}

#[test]
fn a_client_that_waits_too_long_is_told_query_wait_timeout() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1).set("query_wait_timeout", 1);
    });
    let mut waiting = pooler.connect(&database);
    let mut holding = holder(&pooler, &database);
    let begin = Instant::now();
    let replies = waiting.query("SELECT 1");
    assert_eq!(
        error(&replies).field('M').as_deref(),
        Some("query_wait_timeout")
    );
    assert!(
        begin.elapsed() >= Duration::from_secs(1),
        "after {:?}",
        begin.elapsed()
    );
    assert!(waiting.ended());
    assert_eq!(holding.value("SELECT 'undisturbed'"), "undisturbed");
}

#[test]
fn min_pool_size_keeps_servers_ready() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 5).set("min_pool_size", 3);
    });
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    wait_until("three servers are there", || {
        pooler.servers(&database, "app") == 3
    });
}

#[test]
fn the_reserve_helps_those_who_wait_long() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1)
            .set("reserve_pool_size", 1)
            .set("reserve_pool_timeout", 1);
    });
    let _holding = holder(&pooler, &database);
    let mut second = pooler.connect(&database);
    let begin = Instant::now();
    second.rows("BEGIN");
    assert!(
        begin.elapsed() >= Duration::from_millis(900),
        "after {:?}",
        begin.elapsed()
    );
    let mut third = pooler.connect(&database);
    third.send(&frontend::query("SELECT 1"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    assert_eq!(pooler.servers(&database, "app"), 2);
}

#[test]
fn one_client_too_many_is_refused() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("max_client_conn", 2);
    });
    let _first = pooler.connect(&database);
    let second = pooler.connect(&database);
    let refusal = pooler
        .login("app", &database, None)
        .err()
        .expect("the third is refused");
    assert_eq!(
        refusal.text(),
        "no more connections allowed (max_client_conn)"
    );
    // The console is exempt.
    assert!(!pooler.console("SHOW POOLS").rows.is_empty());
    drop(second);
    wait_until("there is room again", || {
        pooler.login("app", &database, None).is_ok()
    });
}

#[test]
fn a_database_has_no_more_servers_than_max_db_connections() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("max_db_connections", 2);
    });
    let mut clients: Vec<Wire> = ["app", "other", "app", "other", "postgres"]
        .iter()
        .map(|user| pooler.login(user, &database, None).unwrap())
        .collect();
    // One after another: an idle server of one user makes room for another user's.
    for client in &mut clients {
        assert_eq!(client.value("SELECT 1"), "1");
    }
    for client in &mut clients[..2] {
        client.rows("BEGIN");
    }
    clients[4].send(&frontend::query("SELECT 'after'"));
    pooler.wait_for_pool(&database, "postgres", "cl_waiting", 1);
    // One that made room may still be on its way out.
    wait_until("two servers are left", || {
        postgres().sessions(&database, "%") <= 2
    });
    clients[0].rows("COMMIT");
    assert_eq!(clients[4].read_until_ready().len(), 4);
}

#[test]
fn a_user_has_no_more_servers_than_max_user_connections() {
    let (one, two) = (
        postgres().database("pooling"),
        postgres().database("pooling"),
    );
    let pooler = Pooler::start(|ini| {
        ini.set("max_user_connections", 1);
    });
    let (mut first, mut second) = (pooler.connect(&one), pooler.connect(&two));
    for _ in 0..3 {
        assert_eq!(first.value("SELECT current_database()"), one);
        assert_eq!(second.value("SELECT current_database()"), two);
    }
    first.rows("BEGIN");
    second.send(&frontend::query("SELECT 1"));
    pooler.wait_for_pool(&two, "app", "cl_waiting", 1);
    first.rows("COMMIT");
    assert_eq!(second.read_until_ready().len(), 4);
}

#[test]
fn in_session_mode_a_client_keeps_its_server_and_leaves_it_clean() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("pool_mode", "session").set("default_pool_size", 1);
    });
    let mut first = pooler.connect(&database);
    let pid = first.value("SELECT pg_backend_pid()");
    first.rows("SET work_mem = '1234kB'; CREATE TEMP TABLE mine(a int); LISTEN mine");
    let mut second = pooler.connect(&database);
    second.send(&frontend::query("SELECT 1"));
    assert_eq!(first.value("SHOW work_mem"), "1234kB");
    drop(first);
    second.read_until_ready();
    assert_eq!(second.value("SELECT pg_backend_pid()"), pid);
    assert_eq!(second.value("SHOW work_mem"), "4MB");
    assert_eq!(second.value("SELECT to_regclass('mine') IS NULL"), "t");
}

#[test]
fn in_statement_mode_a_transaction_block_is_refused() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("pool_mode", "statement");
    });
    let mut client = pooler.connect(&database);
    assert_eq!(client.value("SELECT 1"), "1");
    let replies = client.query("BEGIN");
    let text = error(&replies).field('M').unwrap();
    assert_eq!(
        text,
        "transaction blocks not allowed in statement pooling mode"
    );
    assert!(client.ended());
    assert_eq!(pooler.connect(&database).value("SELECT 2"), "2");
    wait_until("no transaction is open", || {
        postgres().sessions(&database, "idle in%") == 0
    });
}

#[test]
fn pool_mode_may_differ_by_database_and_user() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1)
            .database(
                "by_session",
                &format!("dbname={database} pool_mode=session"),
            )
            .user("other", "pool_mode=statement");
    });
    let _one = pooler.connect("by_session").value("SELECT 1");
    let _two = pooler
        .login("other", &database, None)
        .unwrap()
        .value("SELECT 1");
    let pools = pooler.console("SHOW POOLS");
    let mode = |database: &str| pools.get(pools.find("database", database).unwrap(), "pool_mode");
    assert_eq!(mode("by_session"), "session");
    assert_eq!(mode(&database), "statement");
}

#[test]
fn many_clients_over_few_servers_all_get_through() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 4);
    });
    std::thread::scope(|scope| {
        for number in 0..60 {
            let (pooler, database) = (&pooler, &database);
            scope.spawn(move || {
                let mut client = pooler.connect(database);
                for turn in 0..30 {
                    let expected = format!("{number}/{turn}");
                    assert_eq!(client.value(&format!("SELECT '{expected}'")), expected);
                }
            });
        }
    });
    let pool = pooler.pool(&database, "app");
    assert_eq!(pool.get("cl_waiting"), 0);
    assert!(pooler.servers(&database, "app") <= 4);
}

#[test]
fn in_statement_mode_a_whole_transaction_in_one_write_is_refused_too() {
    let database = postgres().database("pooling");
    let pooler = Pooler::start(|ini| {
        ini.set("pool_mode", "statement")
            .set("default_pool_size", 1);
    });
    postgres()
        .connect(&database)
        .rows("CREATE TABLE t(a int); GRANT ALL ON t TO app");
    let begin = [
        frontend::parse("", "BEGIN", &[]),
        frontend::bind("", "", &[]),
        frontend::execute("", 0),
        frontend::sync(),
    ];
    let insert = frontend::query("INSERT INTO t VALUES (1)");
    let commit = frontend::query("COMMIT");
    for write in [
        [frontend::query("BEGIN"), commit.clone()].concat(),
        [frontend::query("BEGIN"), insert.clone(), commit.clone()].concat(),
        [begin.concat(), insert.clone(), commit.clone()].concat(),
        [frontend::query("BEGIN; INSERT INTO t VALUES (1)"), commit].concat(),
    ] {
        let mut client = pooler.connect(&database);
        client.send(&write);
        let replies = client.read_until_ready();
        let text = error(&replies).field('M').unwrap();
        assert_eq!(
            text,
            "transaction blocks not allowed in statement pooling mode"
        );
        assert_eq!(replies.last().unwrap().tag, b'E', "{replies:?}");
        assert!(client.ended());
        let mut next = pooler.connect(&database);
        assert_eq!(next.value("SELECT 'next'"), "next");
        assert_eq!(postgres().sessions(&database, "idle in%"), 0);
    }
}
