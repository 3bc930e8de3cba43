//! How the pooler ends: TERM waits for clients, INT for servers, QUIT for nobody.

use nix::sys::signal::Signal;

use crate::support::{Pooler, Wire, postgres, wait_until};

fn pooler() -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 2);
    });
    (pooler, postgres().database("shutdown"))
}

fn refuses_new_clients(pooler: &Pooler, database: &str) {
    wait_until("new clients are refused", || {
        pooler.login("app", database, None).is_err()
    });
}

#[test]
fn term_serves_the_present_clients_until_they_leave() {
    let (mut pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    let mut other = pooler.connect(&database);
    client.rows("BEGIN");
    pooler.signal(Signal::SIGTERM);
    refuses_new_clients(&pooler, &database);
    for _ in 0..3 {
        assert_eq!(client.value("SELECT 1"), "1");
        assert_eq!(other.value("SELECT 2"), "2");
    }
    client.rows("COMMIT");
    assert_eq!(client.value("SELECT 3"), "3");
    drop(client);
    assert_eq!(other.value("SELECT 4"), "4");
    assert!(pooler.running());
    drop(other);
    assert!(pooler.wait().success());
    wait_until("no server is left", || {
        postgres().sessions(&database, "%") == 0
    });
}

#[test]
fn a_second_term_ends_at_once() {
    let (mut pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    pooler.signal(Signal::SIGTERM);
    refuses_new_clients(&pooler, &database);
    pooler.signal(Signal::SIGTERM);
    assert!(pooler.wait().success());
    assert!(client.ended());
}

#[test]
fn int_lets_transactions_finish() {
    let (mut pooler, database) = pooler();
    let mut inside = pooler.connect(&database);
    inside.rows("BEGIN");
    inside.rows("CREATE TABLE kept(a int)");
    pooler.signal(Signal::SIGINT);
    refuses_new_clients(&pooler, &database);
    assert!(pooler.running());
    assert_eq!(inside.value("SELECT 1"), "1");
    inside.rows("COMMIT");
    assert!(pooler.wait().success());
    assert_eq!(
        postgres().value(&database, "SELECT to_regclass('kept') IS NOT NULL"),
        "t"
    );
}

#[test]
fn int_tells_those_who_would_have_to_wait() {
    let (mut pooler, database) = pooler();
    let mut inside = pooler.connect(&database);
    let mut idle = pooler.connect(&database);
    inside.rows("BEGIN");
    pooler.signal(Signal::SIGINT);
    refuses_new_clients(&pooler, &database);
    let replies = idle.query("SELECT 1");
    let told = replies
        .iter()
        .find(|message| message.tag == b'E')
        .and_then(|error| error.field('M'));
    assert_eq!(told.as_deref(), Some("server shutting down"));
    inside.rows("COMMIT");
    assert!(pooler.wait().success());
}

#[test]
fn quit_ends_at_once() {
    let (mut pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    pooler.signal(Signal::SIGQUIT);
    assert!(pooler.wait().success());
    assert!(client.ended());
    wait_until("no server is left", || {
        postgres().sessions(&database, "%") == 0
    });
}

#[test]
fn shutdown_by_the_console_ends_at_once() {
    let (mut pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    let mut console = pooler.open_console();
    console.query("SHUTDOWN");
    assert!(pooler.wait().success());
}

#[test]
fn no_query_is_lost_by_a_graceful_one() {
    let (mut pooler, database) = pooler();
    postgres()
        .connect(&database)
        .rows("CREATE TABLE t(a int); GRANT ALL ON t TO app");
    let answered = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..10)
            .map(|_| {
                let mut client = pooler.connect(&database);
                scope.spawn(move || work_until_term(&mut client))
            })
            .collect();
        wait_until("they work", || {
            postgres().value(&database, "SELECT count(*) > 50 FROM t") == "t"
        });
        pooler.signal(Signal::SIGTERM);
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum::<u64>()
    });
    assert!(pooler.wait().success());
    assert_eq!(
        postgres().value(&database, "SELECT count(*) FROM t"),
        answered.to_string()
    );
}

/// Inserts rows, one query each, all of which must be answered; tells how many.
fn work_until_term(client: &mut Wire) -> u64 {
    for _ in 0..300 {
        client.rows("INSERT INTO t VALUES (1)");
    }
    300
}
