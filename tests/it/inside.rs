//! What an operator sees of what goes on inside: errors, reloads, slow queries.

use crate::support::wire::{Rows, rows};
use crate::support::{Pooler, frontend, postgres, wait_until};

/// The rows of SHOW ERRORS as `sqlstate fault database user count message`.
fn errors(pooler: &Pooler) -> Vec<String> {
    let rows: Rows = pooler.console("SHOW ERRORS");
    let names = ["sqlstate", "fault", "database", "user", "count", "message"];
    let line = |row| names.map(|name| rows.get(row, name)).join(" ");
    let mut lines: Vec<String> = (0..rows.rows.len()).map(line).collect();
    lines.sort();
    lines
}

#[test]
fn errors_are_counted_by_what_they_are_and_whose() {
    let database = postgres().database("inside");
    let pooler = Pooler::start(|ini| {
        ini.set("query_wait_timeout", 1);
    });
    let mut client = pooler.connect(&database);
    for _ in 0..2 {
        client.query("SELECT 1/0");
    }
    client.query("SELECT nothing");
    client.query("DO $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$");
    assert!(pooler.login("app", "no_such_database", None).is_err());
    assert!(pooler.login("nobody", &database, None).is_err());
    let seen = errors(&pooler);
    let expected = [
        format!("22012 client {database} app 2 division by zero"),
        format!("42703 client {database} app 1 column \"nothing\" does not exist"),
        format!("53100 server {database} app 1 full"),
        "3D000 server (others) app 1 database \"no_such_database\" does not exist".to_owned(),
    ];
    for line in &expected {
        assert!(seen.contains(line), "{line}: {seen:#?}");
    }
    assert!(
        !seen.iter().any(|line| line.contains("nobody")),
        "{seen:#?}"
    );
}

#[test]
fn reloads_are_listed_with_what_they_have_changed_and_why_they_were_refused() {
    let mut pooler = Pooler::start(|_| ());
    assert!(pooler.console("SHOW RELOADS").rows.is_empty());
    pooler.reconfigure(|ini| {
        ini.set("query_timeout", 7).set("io_uring", 0);
    });
    pooler.rewrite(|ini| {
        ini.set("query_timeout", "soon");
    });
    pooler.reload();
    wait_until("the second reload", || {
        pooler.console("SHOW RELOADS").rows.len() == 2
    });
    let rows = pooler.console("SHOW RELOADS");
    assert_eq!(rows.get(0, "result"), "rejected");
    assert!(rows.get(0, "error").contains("query_timeout"));
    assert_eq!(rows.get(1, "result"), "ok");
    assert_eq!(rows.get(1, "applied"), "query_timeout");
    assert_eq!(rows.get(1, "needs_restart"), "io_uring");
}

#[test]
fn a_bug_in_one_clients_task_costs_that_client_alone() {
    let database = postgres().database("inside");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1).set("max_client_conn", 3);
    });
    let mut unlucky = pooler.connect(&database);
    let mut other = pooler.connect(&database);
    let before = other.value("SELECT pg_backend_pid()");
    unlucky.rows("BEGIN");
    other.send(&frontend::query("SELECT pg_backend_pid()"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    unlucky.send(&frontend::query(
        "DO $$ BEGIN RAISE EXCEPTION 'pgferry shall panic'; END $$",
    ));
    assert!(unlucky.ended());
    // The server it had is closed, and who waits gets another.
    let after = rows(&other.read_until_ready()).unwrap().only();
    assert_ne!(before, after);
    // Its place is free.
    let mut next = pooler.connect(&database);
    assert_eq!(next.value("SELECT 1"), "1");
    let log = pooler.log();
    assert!(
        log.contains("a task panicked at src/client/replies.rs:"),
        "{log}"
    );
    assert!(log.contains("closing because: internal error"), "{log}");
}

#[test]
fn advice_is_shown_and_logged() {
    let pooler = Pooler::start(|ini| {
        ini.set("max_client_conn", 1).set("stats_period", 1);
    });
    let database = postgres().database("inside");
    let _client = pooler.connect(&database);
    let rows = pooler.console("SHOW ADVICE");
    assert_eq!(rows.get(0, "setting"), "max_client_conn");
    wait_until("a line in the log", || {
        pooler.log().contains("advice: max_client_conn: ")
    });
}

#[test]
fn slow_queries_are_in_the_log_with_what_they_waited_and_what_they_took() {
    let database = postgres().database("inside");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1).set("log_min_duration", 300);
    });
    let mut client = pooler.connect(&database);
    client.rows("SELECT 'quick'");
    let mut holding = pooler.connect(&database);
    holding.rows("BEGIN");
    client.send(&frontend::query("SELECT 'waits'"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    holding.rows("SELECT pg_sleep(0.4)");
    holding.rows("COMMIT");
    client.read_until_ready();
    wait_until("two slow queries", || {
        pooler.log().matches("slow query: ").count() == 2
    });
    let log = pooler.log();
    let lines: Vec<&str> = log.lines().filter(|it| it.contains("slow query")).collect();
    assert!(
        lines[0].contains("waited for a server 0.000 ms, ran 4"),
        "{log}"
    );
    assert!(!lines[1].contains("waited for a server 0."), "{log}");
    assert!(
        lines
            .iter()
            .all(|line| line.contains(&format!(": {database}/app@"))),
        "{log}"
    );
}
