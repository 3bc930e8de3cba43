//! Prepared statements that no server was asked for by their client. What PostgreSQL itself answers is
//! in the transcripts of `oracle`; here are the things that it never sees: other clients, and a bound on
//! how many a server keeps.

use crate::support::frontend::{self, bind, execute, parse, sync};
use crate::support::wire::{self, error, first_value, rows};
use crate::support::{Pooler, Wire, postgres, wait_until};

/// A pooler with a pool of `servers` and a database of its own.
fn pooler(servers: usize, statements: usize) -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", servers)
            .set("max_prepared_statements", statements);
    });
    (pooler, postgres().database("prepared"))
}

fn text(value: &str) -> Vec<frontend::Value> {
    vec![Some(value.as_bytes().to_vec())]
}

/// Executes a prepared statement that takes one text, and tells its one value.
fn run(client: &mut Wire, name: &str, value: &str) -> String {
    let replies = client.exchange(&[bind("", name, &text(value)), execute("", 0), sync()]);
    first_value(&replies)
}

fn prepare(client: &mut Wire, name: &str, sql: &str) {
    let replies = client.exchange(&[parse(name, sql, &[]), sync()]);
    assert_eq!(
        wire::names(&replies),
        ["ParseComplete", "ReadyForQuery"],
        "{replies:?}"
    );
}

#[test]
fn one_name_of_many_clients_is_each_ones_own() {
    let (pooler, database) = pooler(3, 100);
    let mut clients: Vec<Wire> = (0..20).map(|_| pooler.connect(&database)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        prepare(client, "sqlx_s_1", &format!("select {number} || $1::text"));
    }
    for turn in 0..5 {
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(
                run(client, "sqlx_s_1", &format!("/{turn}")),
                format!("{number}/{turn}")
            );
        }
    }
}

#[test]
fn the_unnamed_statement_of_one_client_is_not_anothers() {
    let (pooler, database) = pooler(1, 100);
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    prepare(&mut one, "", "select 'one ' || $1::text");
    prepare(&mut other, "", "select 'other ' || $1::text");
    assert_eq!(run(&mut one, "", "x"), "one x");
    assert_eq!(run(&mut other, "", "y"), "other y");
    // A simple query drops the server's unnamed statement, but only its own client's.
    other.rows("select 1");
    assert_eq!(run(&mut one, "", "z"), "one z");
    let replies = other.exchange(&[bind("", "", &text("y")), execute("", 0), sync()]);
    assert_eq!(error(&replies).sqlstate(), "26000");
}

#[test]
fn a_statement_is_prepared_once_for_each_server() {
    let (pooler, database) = pooler(1, 100);
    for _ in 0..5 {
        let mut client = pooler.connect(&database);
        prepare(&mut client, "mine", "select $1::text");
        for _ in 0..20 {
            assert_eq!(run(&mut client, "mine", "x"), "x");
        }
    }
    let pool = pooler.pool(&database, "app");
    assert_eq!(pool.get("prepare_cache_miss"), 1);
    assert!(
        pool.get("prepare_cache_hit") >= 100,
        "{}",
        pool.get("prepare_cache_hit")
    );
    let servers = pooler.console("SHOW SERVERS");
    let row = servers.find("database", &database).unwrap();
    assert_eq!(servers.get(row, "prepare_cache_miss"), "1");
    assert_eq!(servers.get(row, "prepared_statements"), "1");
}

#[test]
fn a_server_keeps_no_more_statements_than_it_may() {
    for limit in [1, 2] {
        let (pooler, database) = pooler(1, limit);
        let mut client = pooler.connect(&database);
        for number in 0..6 {
            prepare(
                &mut client,
                &format!("s{number}"),
                &format!("select {number} || $1::text"),
            );
        }
        for turn in 0..4 {
            for number in 0..6 {
                let value = run(&mut client, &format!("s{number}"), &format!("/{turn}"));
                assert_eq!(value, format!("{number}/{turn}"));
            }
        }
        let kept = client.value("select count(*) from pg_prepared_statements");
        assert_eq!(
            kept,
            limit.to_string(),
            "of max_prepared_statements = {limit}"
        );
    }
}

#[test]
fn a_batch_may_use_more_statements_than_a_server_keeps() {
    let (pooler, database) = pooler(1, 2);
    let mut client = pooler.connect(&database);
    for _ in 0..3 {
        let mut batch = Vec::new();
        for number in 0..50 {
            let name = format!("s{number}");
            batch.push(parse(&name, &format!("select {number} || $1::text"), &[]));
            batch.push(frontend::describe(b'S', &name));
            batch.push(bind("", &name, &text("!")));
            batch.push(execute("", 0));
        }
        batch.push(sync());
        let replies = client.exchange(&batch);
        let values: Vec<_> = rows(&replies).unwrap().rows;
        assert_eq!(
            values.len(),
            1,
            "each has its own description, so one row is after the last"
        );
        let count = replies.iter().filter(|message| message.tag == b'D').count();
        assert_eq!(count, 50, "{:?}", wire::names(&replies));
        // All of them again, by name only, then away with them.
        let mut batch = Vec::new();
        for number in 0..50 {
            batch.push(bind("", &format!("s{number}"), &text("?")));
            batch.push(execute("", 0));
            batch.push(frontend::close(b'S', &format!("s{number}")));
        }
        batch.push(sync());
        let replies = client.exchange(&batch);
        let values: Vec<String> = replies
            .iter()
            .filter(|message| message.tag == b'D')
            .map(|row| row.values()[0].clone().unwrap())
            .collect();
        let expected: Vec<String> = (0..50).map(|number| format!("{number}?")).collect();
        assert_eq!(values, expected);
    }
    // The surplus goes with the next statement that is used.
    prepare(&mut client, "next", "select 'next' || $1::text");
    let kept: usize = client
        .value("select count(*) from pg_prepared_statements")
        .parse()
        .unwrap();
    assert!(kept <= 2, "{kept} statements are kept");
}

#[test]
fn eviction_inside_a_batch_that_ends_in_a_flush_keeps_its_replies_in_order() {
    let (pooler, database) = pooler(1, 1);
    let mut client = pooler.connect(&database);
    client.send_all(&[
        parse("a", "select 'a' || $1::text", &[]),
        frontend::describe(b'S', "a"),
        parse("b", "select 'b' || $1::text", &[]),
        frontend::describe(b'S', "b"),
        bind("", "a", &text("1")),
        frontend::flush(),
    ]);
    let replies = client.read_until(b'2');
    let expected = [
        "ParseComplete",
        "ParameterDescription",
        "RowDescription",
        "ParseComplete",
        "ParameterDescription",
        "RowDescription",
        "BindComplete",
    ];
    assert_eq!(wire::names(&replies), expected);
    let replies = client.exchange(&[
        execute("", 0),
        bind("", "b", &text("2")),
        execute("", 0),
        sync(),
    ]);
    assert_eq!(first_value(&replies), "a1");
    assert_eq!(replies.len(), 6, "{replies:?}");
}

#[test]
fn a_client_that_leaves_between_parse_and_sync_leaves_nothing_wrong() {
    let (pooler, database) = pooler(1, 100);
    let request = [
        parse("s", "select 1 + $1::int", &[]),
        bind("", "s", &text("1")),
    ]
    .concat();
    let half = request.len() / 2;
    for (round, bytes) in [&request[..], &request[..half], &request[..3]]
        .iter()
        .enumerate()
    {
        for reset in [true, false] {
            let mut leaver = pooler.connect(&database);
            leaver.send(bytes);
            if reset {
                leaver.abort();
            } else {
                drop(leaver);
            }
            let mut next = pooler.connect(&database);
            prepare(&mut next, "mine", "select 1 + $1::int");
            assert_eq!(
                run(&mut next, "mine", "41"),
                "42",
                "round {round}, reset {reset}"
            );
        }
    }
}

#[test]
fn an_error_in_the_middle_leaves_small_caches_right() {
    for limit in [1, 2] {
        let (pooler, database) = pooler(2, limit);
        let mut client = pooler.connect(&database);
        for _ in 0..5 {
            let replies = client.exchange(&[
                parse("good", "select 'good' || $1::text", &[]),
                bind("", "good", &text("!")),
                execute("", 0),
                parse("bad", "selekt", &[]),
                parse("late", "select 'late' || $1::text", &[]),
                bind("", "late", &text("!")),
                execute("", 0),
                sync(),
            ]);
            assert_eq!(error(&replies).sqlstate(), "42601");
            assert_eq!(run(&mut client, "good", "?"), "good?");
            let replies = client.exchange(&[bind("", "late", &text("x")), sync()]);
            assert_eq!(
                error(&replies).sqlstate(),
                "26000",
                "skipped, so never made"
            );
            let replies = client.exchange(&[parse("bad", "selekt", &[]), sync()]);
            assert_eq!(
                error(&replies).sqlstate(),
                "42601",
                "the same mistake, the same error"
            );
            prepare(&mut client, "late", "select 'late' || $1::text");
            assert_eq!(run(&mut client, "late", "?"), "late?");
            client.exchange(&[
                frontend::close(b'S', "good"),
                frontend::close(b'S', "late"),
                sync(),
            ]);
        }
    }
}

#[test]
fn deallocate_all_and_discard_all_harm_no_other_client() {
    let (pooler, database) = pooler(1, 100);
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    for command in ["deallocate all", "discard all"] {
        prepare(&mut one, "s", "select 'same' || $1::text");
        prepare(&mut other, "s", "select 'same' || $1::text");
        assert_eq!(run(&mut one, "s", "1"), "same1");
        one.rows(command);
        let replies = one.exchange(&[bind("", "s", &text("x")), sync()]);
        assert_eq!(error(&replies).sqlstate(), "26000", "after {command}");
        assert_eq!(run(&mut other, "s", "2"), "same2", "after {command}");
        other.exchange(&[frontend::close(b'S', "s"), sync()]);
    }
}

#[test]
fn deallocating_one_name_harms_no_other_client() {
    let (pooler, database) = pooler(1, 100);
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    for client in [&mut one, &mut other] {
        prepare(client, "s", "select 'same' || $1::text");
    }
    one.rows("deallocate s");
    assert_eq!(run(&mut other, "s", "2"), "same2");
    let replies = one.exchange(&[bind("", "s", &text("x")), sync()]);
    assert_eq!(error(&replies).sqlstate(), "26000");
}

#[test]
fn support_can_be_switched_by_a_reload_under_load() {
    let (mut pooler, database) = pooler(2, 100);
    let mut before = pooler.connect(&database);
    prepare(&mut before, "s", "select 'before' || $1::text");
    assert_eq!(run(&mut before, "s", "1"), "before1");
    for statements in [0, 100] {
        pooler.reconfigure(|ini| {
            ini.set("max_prepared_statements", statements);
        });
        let mut after = pooler.connect(&database);
        assert_eq!(after.value("select 'usable'"), "usable");
    }
    let mut after = pooler.connect(&database);
    prepare(&mut after, "s", "select 'after' || $1::text");
    assert_eq!(run(&mut after, "s", "1"), "after1");
}

#[test]
fn statements_nobody_holds_are_forgotten() {
    let (pooler, database) = pooler(1, 5);
    for round in 0..20 {
        let mut client = pooler.connect(&database);
        for number in 0..20 {
            prepare(&mut client, "s", &format!("select {round} + {number}"));
            client.exchange(&[frontend::close(b'S', "s"), sync()]);
        }
    }
    wait_until("what is left is what the server keeps", || {
        pooler.console("SHOW PREPARED").rows.len() <= 5
    });
}

#[test]
fn in_session_mode_names_are_kept_for_the_life_of_a_client() {
    let database = postgres().database("prepared");
    let pooler = Pooler::start(|ini| {
        ini.set("pool_mode", "session").set("default_pool_size", 1);
    });
    for _ in 0..2 {
        let mut client = pooler.connect(&database);
        prepare(&mut client, "s", "select 'session' || $1::text");
        assert_eq!(run(&mut client, "s", "!"), "session!");
        client.rows("prepare by_sql as select 'sql'");
        assert_eq!(client.value("execute by_sql"), "sql");
    }
}

#[test]
fn tokio_postgres_prepares_on_whichever_server_it_meets() {
    let (pooler, database) = pooler(3, 10);
    let url = pooler.url(&database);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for number in 0..20_i32 {
            let url = url.clone();
            tasks.push(tokio::task::spawn(async move {
                use_tokio_postgres(&url, number).await
            }));
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
}

async fn use_tokio_postgres(url: &str, number: i32) -> anyhow::Result<()> {
    let (mut client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    let driver = tokio::task::spawn(connection);
    let statement = client.prepare("select $1::int4 + 1, $2::text").await?;
    for turn in 0..20_i32 {
        let row = client
            .query_one(&statement, &[&turn, &format!("{number}")])
            .await?;
        anyhow::ensure!(
            row.get::<_, i32>(0) == turn + 1 && row.get::<_, &str>(1) == number.to_string()
        );
        let transaction = client.transaction().await?;
        let row = transaction
            .query_one(&format!("select $1::int4 * {number}"), &[&turn])
            .await?;
        anyhow::ensure!(row.get::<_, i32>(0) == turn * number);
        transaction.rollback().await?;
        let (one, two) = futures_util::future::join(
            client.query_one("select $1::int4", &[&number]),
            client.query_one("select $1::int4", &[&turn]),
        )
        .await;
        anyhow::ensure!(one?.get::<_, i32>(0) == number && two?.get::<_, i32>(0) == turn);
    }
    drop((client, statement));
    driver.await??;
    Ok(())
}

/// Runs a prepared statement where it may turn out that the server has lost it: at most `allowed` times in all.
fn run_in_spite_of(client: &mut Wire, name: &str, value: &str, allowed: &mut u32) -> String {
    loop {
        let replies = client.exchange(&[bind("", name, &text(value)), execute("", 0), sync()]);
        let Some(error) = replies.iter().find(|message| message.tag == b'E') else {
            return first_value(&replies);
        };
        assert_eq!(error.sqlstate(), "26000");
        assert!(*allowed > 0, "once more: {error:?}");
        *allowed -= 1;
    }
}

#[test]
fn a_function_that_drops_all_statements_costs_others_one_error() {
    let (pooler, database) = pooler(1, 100);
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    let names = ["a", "b", "c"];
    for name in names {
        prepare(&mut other, name, &format!("select '{name}' || $1::text"));
        prepare(&mut one, name, &format!("select '{name}' || $1::text"));
    }
    let pid = other.value("select pg_backend_pid()");
    for command in ["DEALLOCATE ALL", "DEALLOCATE ALL; SELECT 1"] {
        one.rows(&format!("do $$ begin execute '{command}'; end $$"));
        // The server says nothing of it, so one error there must be; the client then has all of them again.
        let mut allowed = 1;
        for turn in ["1", "2"] {
            for name in names {
                assert_eq!(
                    run_in_spite_of(&mut other, name, turn, &mut allowed),
                    format!("{name}{turn}")
                );
                assert_eq!(
                    run_in_spite_of(&mut one, name, turn, &mut 0),
                    format!("{name}{turn}")
                );
            }
        }
    }
    assert_eq!(other.value("select pg_backend_pid()"), pid);
}
