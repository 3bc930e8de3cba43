//! Clients that vanish at the worst moment leave servers that the next client can use, and no more
//! servers than the pool may have.

use std::thread;
use std::time::Duration;

use crate::support::{Pooler, Wire, frontend, postgres, wait_until, within};

fn pooler() -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 2);
    });
    let database = postgres().database("churn");
    postgres()
        .connect(&database)
        .rows("CREATE TABLE t(a int primary key, b text); GRANT ALL ON t TO app");
    (pooler, database)
}

/// Does `work` with a client, then has it vanish, once by a reset and once by a plain end.
fn vanish(work: impl Fn(&mut Wire)) {
    let (pooler, database) = pooler();
    for reset in [true, false, true, false] {
        let mut client = pooler.connect(&database);
        work(&mut client);
        if reset {
            client.abort();
        } else {
            drop(client);
        }
        is_clean(&pooler, &database);
    }
}

fn is_clean(pooler: &Pooler, database: &str) {
    wait_until("no client holds a server", || {
        let pool = pooler.pool(database, "app");
        pool.get("sv_active") == 0 && pool.get("cl_waiting") == 0
    });
    wait_until("no session is active or inside a transaction", || {
        postgres().sessions(database, "active") + postgres().sessions(database, "idle in%") == 0
    });
    // Both servers at once, so that each is tried.
    let mut clients: Vec<Wire> = (0..2).map(|_| pooler.connect(database)).collect();
    for client in &mut clients {
        client.rows("BEGIN");
        assert_eq!(client.value("SELECT 'clean'"), "clean");
    }
    for client in &mut clients {
        client.rows("COMMIT");
    }
    // PostgreSQL may take a moment to let go of one that was closed.
    wait_until("there are no more servers than there may be", || {
        postgres().sessions(database, "%") <= 2
    });
    assert_eq!(postgres().value(database, "SELECT count(*) FROM t"), "0");
}

#[test]
fn in_the_middle_of_a_transaction() {
    vanish(|client| {
        client.rows("BEGIN");
        client.rows("INSERT INTO t VALUES (1)");
    });
}

#[test]
fn in_a_failed_transaction() {
    vanish(|client| {
        client.rows("BEGIN");
        client.query("SELECT 1/0");
    });
}

#[test]
fn in_the_middle_of_a_result() {
    vanish(|client| {
        client.send(&frontend::query(
            "SELECT n, repeat('x', 1000) FROM generate_series(1, 200000) AS n",
        ));
        for _ in 0..10 {
            client.read_message();
        }
    });
}

#[test]
fn in_the_middle_of_one_large_row() {
    vanish(|client| {
        client.send(&frontend::query("SELECT repeat('x', 50000000)"));
        client.read_message();
    });
}

#[test]
fn in_the_middle_of_copy_in() {
    vanish(|client| {
        client.send(&frontend::query("COPY t FROM STDIN"));
        client.read_until(b'G');
        client.send(&frontend::copy_data(b"1\tone\n"));
        client.send(&frontend::copy_data(b"2\ttwo\n")[..6]);
    });
}

#[test]
fn in_the_middle_of_copy_out() {
    vanish(|client| {
        client.send(&frontend::query(
            "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 200000)) TO STDOUT",
        ));
        client.read_until(b'd');
    });
}

#[test]
fn between_parse_and_sync() {
    vanish(|client| {
        client.send_all(&[
            frontend::parse("s", "INSERT INTO t VALUES (1)", &[]),
            frontend::bind("", "s", &[]),
        ]);
        client.send_all(&[frontend::execute("", 0), frontend::flush()]);
        client.read_until(b'C');
    });
}

#[test]
fn in_the_middle_of_a_message() {
    vanish(|client| {
        let query = frontend::query("SELECT 'never sent in full'");
        client.send(&query[..query.len() / 2]);
    });
}

#[test]
fn in_the_middle_of_a_message_of_a_transaction() {
    vanish(|client| {
        client.rows("BEGIN");
        let bind = frontend::bind("", "", &[Some(vec![b'x'; 100_000])]);
        client.send(&frontend::parse("", "SELECT $1::text", &[]));
        client.send(&bind[..bind.len() / 2]);
    });
}

#[test]
fn with_many_requests_in_flight() {
    vanish(|client| {
        for _ in 0..50 {
            client.send_all(&[
                frontend::parse("", "SELECT repeat('x', 10000)", &[]),
                frontend::bind("", "", &[]),
                frontend::execute("", 0),
                frontend::sync(),
            ]);
        }
    });
}

#[test]
fn while_a_long_query_runs_which_is_then_cancelled() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.send(&frontend::query("SELECT pg_sleep(1000)"));
    wait_until("the query runs", || {
        postgres().sessions(&database, "active") == 1
    });
    client.abort();
    within(Duration::from_secs(5), "the query is cancelled", || {
        (postgres().sessions(&database, "active") == 0).then_some(())
    });
    is_clean(&pooler, &database);
}

#[test]
fn while_waiting_for_a_server() {
    let (pooler, database) = pooler();
    let mut holding: Vec<Wire> = (0..2).map(|_| pooler.connect(&database)).collect();
    for client in &mut holding {
        client.rows("BEGIN");
    }
    let mut waiting = pooler.connect(&database);
    waiting.send(&frontend::query("INSERT INTO t VALUES (1)"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    waiting.abort();
    pooler.wait_for_pool(&database, "app", "cl_waiting", 0);
    drop(holding);
    is_clean(&pooler, &database);
}

#[test]
fn a_storm_of_vanishing_clients_opens_few_servers() {
    let (pooler, database) = pooler();
    let before = postgres().value(
        &database,
        "SELECT sessions FROM pg_stat_database WHERE datname = current_database()",
    );
    thread::scope(|scope| {
        for number in 0..8_u32 {
            let (pooler, database) = (&pooler, &database);
            scope.spawn(move || {
                for turn in 0..25_u32 {
                    let mut client = pooler.connect(database);
                    client.send(&frontend::query(
                        "SELECT n, repeat('x', 100) FROM generate_series(1, 1000) AS n",
                    ));
                    client.read_message();
                    if (number + turn) % 2 == 0 {
                        client.abort();
                    }
                }
            });
        }
    });
    is_clean(&pooler, &database);
    drop(before);
}
