//! Which statements take the time: SHOW STATEMENTS, and the texts of slow queries.

use std::time::Duration;

use crate::support::frontend::{bind, execute, flush, parse, query, sync};
use crate::support::http::get;
use crate::support::pooler::Ini;
use crate::support::ports::free_port;
use crate::support::wire::{Rows, error};
use crate::support::{Pooler, Wire, postgres, wait_until};

fn start(change: impl FnOnce(&mut Ini)) -> (Pooler, Wire, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 2).set("track_statements", 50);
        change(ini);
    });
    let database = postgres().database("statements");
    let client = pooler.connect(&database);
    (pooler, client, database)
}

/// SHOW STATEMENTS, once so many calls of this text are in it.
fn wait_for(pooler: &Pooler, text: &str, calls: u64) -> (Rows, usize) {
    let mut found = None;
    wait_until(&format!("{calls} calls of {text}"), || {
        let rows = pooler.console("SHOW STATEMENTS");
        if let Some(row) = rows.find("query", text)
            && number(&rows, row, "calls") == calls
        {
            found = Some((rows, row));
        }
        found.is_some()
    });
    found.unwrap()
}

fn number(rows: &Rows, row: usize, column: &str) -> u64 {
    rows.get(row, column).parse().unwrap()
}

#[test]
fn simple_queries_that_differ_in_their_data_are_one_statement() {
    let (pooler, mut client, database) = start(|_| {});
    for number in 0..5 {
        client.rows(&format!(
            "SELECT generate_series(1, {number}), 'secret' -- {number}"
        ));
    }
    client.rows("SELECT pg_sleep(0.2)");
    let text = "SELECT generate_series(?, ?), ?";
    let (rows, row) = wait_for(&pooler, text, 5);
    assert_eq!(rows.get(row, "database"), database);
    assert_eq!(rows.get(row, "user"), "app");
    assert_eq!(number(&rows, row, "rows"), 10);
    assert_eq!(number(&rows, row, "errors"), 0);
    assert!(number(&rows, row, "bytes") > 100);
    let (rows, slow) = wait_for(&pooler, "SELECT pg_sleep(?)", 1);
    assert_eq!(slow, 0, "what took the most time comes first");
    let time = number(&rows, slow, "total_time");
    assert!((200_000..10_000_000).contains(&time), "{time}");
    assert_eq!(number(&rows, slow, "max_time"), time);
    assert_eq!(number(&rows, slow, "mean_time"), time);
    assert!(rows.get(slow, "last").starts_with("20"));
    pooler.console("RESET STATEMENTS");
    assert_eq!(pooler.console("SHOW STATEMENTS").find("query", text), None);
}

#[test]
fn unnamed_and_named_statements_are_counted_when_they_are_run() {
    for mode in ["transaction", "session"] {
        let (pooler, mut client, _) = start(|ini| {
            ini.set("pool_mode", mode);
        });
        let unnamed = "SELECT $1::text || 'x'";
        for _ in 0..3 {
            let messages = [
                parse("", unnamed, &[]),
                bind("", "", &[Some(b"a".to_vec())]),
                execute("", 0),
                sync(),
            ];
            client.exchange(&messages);
        }
        wait_for(&pooler, "SELECT $1::text || ?", 3);
        client.exchange(&[parse("s1", "SELECT generate_series(1, 7)", &[]), sync()]);
        for _ in 0..4 {
            client.exchange(&[bind("", "s1", &[]), execute("", 0), sync()]);
        }
        let (rows, row) = wait_for(&pooler, "SELECT generate_series(?, ?)", 4);
        assert_eq!(number(&rows, row, "rows"), 28);
        // The Parse comes alone, and what it makes is run after its answer.
        client.send_all(&[parse("", "SELECT 1, 'flushed'", &[]), flush()]);
        client.read_message();
        client.exchange(&[bind("", "", &[]), execute("", 0), sync()]);
        wait_for(&pooler, "SELECT ?, ?", 1);
    }
}

#[test]
fn of_a_batch_the_first_statement_that_is_run_is_counted() {
    let (pooler, mut client, _) = start(|_| {});
    client.exchange(&[
        parse("one", "SELECT 'one'", &[]),
        parse("two", "SELECT 'two' AS two", &[]),
        bind("", "two", &[]),
        execute("", 0),
        bind("", "one", &[]),
        execute("", 0),
        sync(),
    ]);
    let (rows, row) = wait_for(&pooler, "SELECT ? AS two", 1);
    assert_eq!(number(&rows, row, "rows"), 2);
    client.query("SELECT 'first'; SELECT a FROM missing");
    let (rows, row) = wait_for(&pooler, "SELECT ?; SELECT a FROM missing", 1);
    assert_eq!(number(&rows, row, "errors"), 1);
    assert_eq!(rows.find("query", "SELECT ?"), None);
}

#[test]
fn rows_of_a_portal_that_is_run_in_parts_are_its_statements() {
    let (pooler, mut client, _) = start(|_| {});
    client.query("BEGIN");
    client.exchange(&[
        parse("", "SELECT * FROM generate_series(1, 25)", &[]),
        bind("c1", "", &[]),
        execute("c1", 10),
        sync(),
    ]);
    client.exchange(&[execute("c1", 10), sync()]);
    client.exchange(&[execute("c1", 10), sync()]);
    client.query("COMMIT");
    let (rows, row) = wait_for(&pooler, "SELECT * FROM generate_series(?, ?)", 3);
    assert_eq!(number(&rows, row, "rows"), 25);
}

#[test]
fn errors_and_what_is_broken_off_are_counted() {
    let (pooler, mut client, database) = start(|ini| {
        ini.set("query_timeout", 1);
    });
    error(&client.query("SELECT 1 / 0"));
    error(&client.exchange(&[parse("", "SELEC 1", &[]), sync()]));
    let (rows, row) = wait_for(&pooler, "SELECT ? / ?", 1);
    assert_eq!(number(&rows, row, "errors"), 1);
    wait_for(&pooler, "SELEC ?", 1);
    let mut late = pooler.connect(&database);
    late.patience(Duration::from_secs(30));
    late.send(&query("SELECT pg_sleep(60)"));
    let (rows, row) = wait_for(&pooler, "SELECT pg_sleep(?)", 1);
    assert_eq!(number(&rows, row, "errors"), 1);
    assert!(number(&rows, row, "total_time") >= 900_000);
}

#[test]
fn what_clients_wait_for_a_server_is_their_statements() {
    let (pooler, mut holding, database) = start(|ini| {
        ini.set("default_pool_size", 1);
    });
    holding.query("BEGIN");
    let mut waiting = pooler.connect(&database);
    waiting.send(&query("SELECT 'waits'"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    holding.rows("SELECT pg_sleep(0.3)");
    holding.query("COMMIT");
    waiting.read_until_ready();
    let (rows, row) = wait_for(&pooler, "SELECT ?", 1);
    assert!(number(&rows, row, "wait_time") >= 250_000);
    assert!(number(&rows, row, "total_time") < 250_000);
}

#[test]
fn the_least_used_make_room() {
    let (pooler, mut client, _) = start(|ini| {
        ini.set("track_statements", 10).set("worker_threads", 1);
    });
    for number in 0..100 {
        client.rows(&format!("SELECT 1 AS a{number}"));
        client.rows("SELECT 'often'");
    }
    let (rows, _) = wait_for(&pooler, "SELECT ?", 100);
    assert!(rows.rows.len() <= 11, "{rows:?}");
    let others = rows.find("query", "(others)").unwrap();
    assert!(number(&rows, others, "calls") >= 90);
}

#[test]
fn nothing_is_counted_where_it_is_off_and_a_reload_forgets() {
    let (mut pooler, mut client, database) = start(|_| {});
    client.rows("SELECT 1");
    wait_for(&pooler, "SELECT ?", 1);
    pooler.reconfigure(|ini| {
        ini.set("track_statements", 0);
    });
    client.rows("SELECT 2");
    pooler.connect(&database).rows("SELECT 3");
    assert_eq!(pooler.console("SHOW STATEMENTS").rows.len(), 0);
    pooler.reconfigure(|ini| {
        ini.set("track_statements", 5);
    });
    client.rows("SELECT 4");
    wait_for(&pooler, "SELECT ?", 1);
}

#[test]
fn the_status_page_has_them_while_they_are_counted() {
    let port = free_port();
    let (mut pooler, mut client, _) = start(|ini| {
        ini.set("http_listen", format!("127.0.0.1:{port}"));
    });
    client.rows("SELECT 1 AS \"<b>\", 'secret'");
    wait_for(&pooler, "SELECT ? AS \"<b>\", ?", 1);
    let page = get(port, "/").body;
    assert!(page.contains("<h2>Top statements</h2>"), "{page}");
    assert!(
        page.contains("SELECT ? AS &quot;&lt;b&gt;&quot;, ?"),
        "{page}"
    );
    assert!(!page.contains("secret"));
    pooler.reconfigure(|ini| {
        ini.set("track_statements", 0);
    });
    assert!(!get(port, "/").body.contains("Top statements"));
}

/// The log's lines of slow queries, once there are so many.
fn slow_lines(pooler: &Pooler, count: usize) -> Vec<String> {
    wait_until(&format!("{count} slow queries"), || {
        pooler.log().matches("slow query: ").count() == count
    });
    let log = pooler.log();
    let lines = log.lines().filter(|line| line.contains("slow query: "));
    lines.map(str::to_owned).collect()
}

#[test]
fn slow_queries_have_their_texts_in_the_log_as_is_wanted() {
    let text = "SELECT 'top secret',\n 4711 FROM generate_series(1, 3)";
    for (mode, ends) in [
        ("off", " ms)"),
        (
            "normalized",
            " bytes): SELECT ?, ? FROM generate_series(?, ?)",
        ),
        (
            "full",
            " bytes): SELECT 'top secret',  4711 FROM generate_series(1, 3)",
        ),
    ] {
        let (pooler, mut client, _) = start(|ini| {
            ini.set("track_statements", 0)
                .set("log_min_duration", 0)
                .set("log_statement_text", mode);
        });
        client.rows(text);
        client.exchange(&[
            parse("s", text, &[]),
            bind("", "s", &[]),
            execute("", 0),
            sync(),
        ]);
        let lines = slow_lines(&pooler, 2);
        for line in &lines {
            assert!(line.ends_with(ends), "{mode}: {line}");
            assert_eq!(line.contains(", 3 rows, "), mode != "off", "{line}");
        }
        let log = pooler.log();
        assert_eq!(log.contains("secret"), mode == "full", "{mode}: {log}");
        assert_eq!(pooler.console("SHOW STATEMENTS").rows.len(), 0);
    }
}

#[test]
fn the_log_has_no_texts_but_of_slow_queries() {
    let (pooler, mut client, _) = start(|ini| {
        ini.set("log_statement_text", "full")
            .set("log_min_duration", 300);
    });
    client.rows("SELECT 'quick'");
    client.rows("SELECT 'slow', pg_sleep(0.4)");
    let lines = slow_lines(&pooler, 1);
    assert!(
        lines[0].ends_with("SELECT 'slow', pg_sleep(0.4)"),
        "{lines:?}"
    );
    assert!(!pooler.log().contains("quick"));
    wait_for(&pooler, "SELECT ?, pg_sleep(?)", 1);
}
