//! What an operator sees of what goes on inside: errors, reloads, slow queries.

use crate::support::wire::Rows;
use crate::support::{Pooler, postgres};

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
        "08P01 client (others) app 1 no such database: no_such_database".to_owned(),
    ];
    for line in &expected {
        assert!(seen.contains(line), "{line}: {seen:#?}");
    }
    assert!(!seen.iter().any(|line| line.contains("nobody")), "{seen:#?}");
}
