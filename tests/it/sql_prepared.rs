//! Statements of SQL's PREPARE go along with their client: names are its own, on whichever server it is, and a pool may have fewer
//! servers than there are clients with such statements.

use crate::differential::shown;
use crate::sessions::{fill, servers_used, taking_turns};
use crate::support::frontend::{bind, describe, execute, parse, sync};
use crate::support::wire::error;
use crate::support::{Pooler, Wire, postgres};

const TABLE: &str = "CREATE TABLE t (a int, b text); INSERT INTO t VALUES (1, 'one'), (2, 'two'); GRANT ALL ON t TO PUBLIC";

fn pooler_with(table: &str) -> (Pooler, String) {
    let pooler = taking_turns(|_| ());
    let database = postgres().database("sql_prepared");
    postgres().sql(&database, table);
    fill(&pooler, &database);
    (pooler, database)
}

fn pins(pooler: &Pooler) -> usize {
    pooler.console("SHOW PINS").rows.len()
}

#[test]
fn clients_with_statements_of_one_name_share_one_server() {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    let database = postgres().database("sql_prepared");
    let mut clients: Vec<Wire> = (0..4).map(|_| pooler.connect(&database)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.rows(&format!("PREPARE p(int) AS SELECT $1 + {number}"));
    }
    for _ in 0..3 {
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.value("EXECUTE p(10)"), (10 + number).to_string());
        }
    }
    assert_eq!(pins(&pooler), 0);
    clients[1].rows("DEALLOCATE p");
    let mut stranger = pooler.connect(&database);
    for client in [1, 0, 2] {
        assert_eq!(
            stranger.value("SELECT count(*) FROM pg_prepared_statements WHERE from_sql"),
            "0"
        );
        let replies = clients[client].query("EXECUTE p(10)");
        match client {
            1 => assert_eq!(error(&replies).sqlstate(), "26000"),
            _ => assert_eq!(replies[1].values(), [Some((10 + client).to_string())]),
        }
    }
    assert_eq!(error(&stranger.query("EXECUTE p(1)")).sqlstate(), "26000");
}

/// Two clients, and which of them says what.
const SCRIPT: &[(usize, &str)] = &[
    (0, "PREPARE p AS SELECT a, b FROM t WHERE a = $1"),
    (1, "PREPARE p AS SELECT b FROM t WHERE b = $1"),
    (0, "EXECUTE p(1)"),
    (1, "EXECUTE p('two')"),
    (0, "EXECUTE p('x')"),
    (0, "PREPARE p AS SELECT 1"),
    (
        0,
        "PREPARE \"Odd \"\"name\"(text, int) AS SELECT $1 || ';' AS s, $2 -- end",
    ),
    (0, "EXECUTE \"Odd \"\"name\"('x', 2)"),
    (
        1,
        "SELECT 1; PREPARE q AS SELECT ';', '\\d' ~ 'd'; SELECT 2",
    ),
    (1, "EXECUTE q"),
    (1, "PREPARE r AS SELECT '\\;'"),
    (1, "EXECUTE r"),
    (0, "EXPLAIN (COSTS OFF) EXECUTE p(1)"),
    (0, "BEGIN"),
    (0, "EXECUTE p(2)"),
    (1, "EXECUTE p('one')"),
    (0, "PREPARE in_transaction AS SELECT count(*) FROM t"),
    (0, "ROLLBACK"),
    (0, "EXECUTE in_transaction"),
    (0, "CREATE TEMP TABLE made AS EXECUTE p(2)"),
    (0, "SELECT * FROM made"),
    (0, "DROP TABLE made"),
    (0, "EXECUTE p(2); EXECUTE p(1)"),
    (
        0,
        "SELECT name, parameter_types FROM pg_prepared_statements WHERE from_sql ORDER BY name",
    ),
    (
        1,
        "SELECT name, parameter_types FROM pg_prepared_statements WHERE from_sql ORDER BY name",
    ),
    (0, "DEALLOCATE p"),
    (0, "EXECUTE p(1)"),
    (1, "EXECUTE p('one')"),
    (
        0,
        "PREPARE p(int, int) AS INSERT INTO t VALUES ($1, $2) RETURNING *",
    ),
    (0, "EXECUTE p(3, 4)"),
    (1, "DEALLOCATE ALL"),
    (1, "EXECUTE q"),
    (0, "EXECUTE p(5, 6)"),
    (0, "DISCARD ALL"),
    (0, "EXECUTE p(5, 6)"),
    (0, "PREPARE s AS SELECT set_config('work_mem', $1, false)"),
    (0, "EXECUTE s('8MB')"),
    (0, "SHOW work_mem"),
    (1, "SHOW work_mem"),
    (
        0,
        "DO $$ BEGIN EXECUTE 'PREPARE dynamic AS SELECT 7'; END $$",
    ),
    (0, "EXECUTE dynamic"),
    (0, "SET search_path = pg_catalog"),
    (0, "PREPARE path AS SELECT count(*) FROM public.t"),
    (0, "EXECUTE path"),
    (0, "EXECUTE s('9MB')"),
    (0, "SHOW work_mem"),
];

#[test]
fn everything_is_answered_as_by_postgresql() {
    let (pooler, database) = pooler_with(TABLE);
    let direct = postgres().database("sql_prepared_direct");
    postgres().sql(&direct, TABLE);
    let straight = || Wire::login(postgres().address(), "app", &direct, None).unwrap();
    let mut expected = [straight(), straight()];
    let mut found = [pooler.connect(&database), pooler.connect(&database)];
    let mut third = pooler.connect(&database);
    for (client, sql) in SCRIPT {
        assert_eq!(
            shown(&found[*client].query(sql)),
            shown(&expected[*client].query(sql)),
            "{client}: {sql}"
        );
        // So that the servers change places.
        third.rows("SELECT 1");
    }
    assert_eq!(pins(&pooler), 0);
    for client in &mut found {
        assert_eq!(servers_used(client), 3);
    }
}

#[test]
fn the_extended_protocol_runs_them_on_every_server() {
    let (pooler, database) = pooler_with(TABLE);
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    one.rows("PREPARE p(int) AS SELECT b FROM t WHERE a = $1");
    other.rows("PREPARE p(int) AS SELECT a, a FROM t WHERE a = $1");
    for client in [&mut one, &mut other] {
        client.exchange(&[parse("run", "EXECUTE p(1)", &[]), sync()]);
    }
    for _ in 0..4 {
        for (client, expected, columns) in [(&mut one, "one", 1), (&mut other, "1", 2)] {
            let by_text = [
                bind("", "run", &[]),
                describe(b'S', "run"),
                describe(b'P', ""),
                execute("", 0),
                sync(),
            ];
            let by_name = [
                bind("", "p", &[Some(b"1".to_vec())]),
                describe(b'S', "p"),
                describe(b'P', ""),
                execute("", 0),
                sync(),
            ];
            for messages in [by_text, by_name] {
                let replies = client.exchange(&messages);
                let described = replies.iter().filter(|it| it.name() == "RowDescription");
                for description in described {
                    assert_eq!(description.columns().len(), columns);
                }
                let row = replies.iter().find(|it| it.name() == "DataRow").unwrap();
                assert_eq!(row.values(), vec![Some(expected.to_owned()); columns]);
            }
        }
    }
    assert_eq!(pins(&pooler), 0);
}

#[test]
fn what_a_statement_leaves_behind_is_noticed() {
    let (pooler, database) = pooler_with(TABLE);
    let mut client = pooler.connect(&database);
    client.rows("PREPARE plain(int) AS SELECT $1");
    client.rows("PREPARE locks AS SELECT pg_advisory_lock(1)");
    client.rows("SELECT 1");
    let looks = || pooler.stat(&database, "total_session_look_count");
    let before = looks();
    client.rows("EXECUTE plain(1)");
    client.rows("SELECT 1");
    assert_eq!(looks(), before, "nothing was to be looked for");
    client.rows("EXECUTE locks");
    assert_eq!(servers_used(&mut client), 1);
    assert_eq!(pooler.console("SHOW PINS").get(0, "reason"), "locks");
    client.rows("SELECT pg_advisory_unlock(1)");
    assert_eq!(servers_used(&mut client), 3);
    client.rows("EXECUTE plain(pg_try_advisory_lock(2)::int)");
    assert_eq!(servers_used(&mut client), 1);
    client.rows("SELECT pg_advisory_unlock(2)");
    client.rows("DEALLOCATE plain; PREPARE plain AS SELECT pg_advisory_lock(3)");
    client.rows("EXECUTE plain");
    assert_eq!(servers_used(&mut client), 1);
}

#[test]
fn a_table_that_is_gone_is_no_reason_to_refuse_anything_else() {
    let (pooler, database) = pooler_with(TABLE);
    let mut client = pooler.connect(&database);
    client.rows("PREPARE gone AS SELECT count(*) FROM t");
    client.rows("PREPARE stays AS SELECT 1");
    postgres().sql(&database, "ALTER TABLE t RENAME TO hidden");
    for _ in 0..6 {
        assert_eq!(client.value("EXECUTE stays"), "1");
        let replies = client.query("EXECUTE gone");
        // On the server where it was made PostgreSQL says that the table is gone.
        let sqlstate = error(&replies).sqlstate();
        assert!(
            ["42P01", "26000"].contains(&sqlstate.as_str()),
            "{sqlstate}"
        );
    }
    postgres().sql(&database, "ALTER TABLE hidden RENAME TO t");
    for _ in 0..6 {
        assert_eq!(client.value("EXECUTE gone"), "2");
    }
}

#[test]
fn a_statement_that_can_not_be_told_from_its_text_keeps_the_server() {
    let (pooler, database) = pooler_with(TABLE);
    let mut client = pooler.connect(&database);
    client.rows("PREPARE p AS SELECT 1; DEALLOCATE p; PREPARE p AS SELECT 2");
    assert_eq!(servers_used(&mut client), 1);
    assert_eq!(pooler.console("SHOW PINS").get(0, "reason"), "statements");
    assert_eq!(client.value("EXECUTE p"), "2");
    client.rows("DEALLOCATE p");
    assert_eq!(servers_used(&mut client), 3);
    for number in 0..65 {
        client.rows(&format!("PREPARE p{number} AS SELECT {number}"));
    }
    assert_eq!(servers_used(&mut client), 1);
    client.rows("DEALLOCATE p0");
    assert_eq!(servers_used(&mut client), 3);
    for number in 1..65 {
        assert_eq!(
            client.value(&format!("EXECUTE p{number}")),
            number.to_string()
        );
    }
}

#[test]
fn what_connect_query_prepares_everybody_has() {
    let database = postgres().database("sql_prepared");
    let pooler = taking_turns(|ini| {
        ini.database(&database, "connect_query='PREPARE ours AS SELECT 42'");
    });
    fill(&pooler, &database);
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    one.rows("PREPARE mine AS SELECT 1");
    for _ in 0..4 {
        assert_eq!(one.value("EXECUTE ours"), "42");
        assert_eq!(other.value("EXECUTE ours"), "42");
    }
    one.rows("DEALLOCATE ours");
    for _ in 0..4 {
        assert_eq!(error(&one.query("EXECUTE ours")).sqlstate(), "26000");
        assert_eq!(other.value("EXECUTE ours"), "42");
    }
}
