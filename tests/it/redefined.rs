//! Types that are dropped and made again while statements are prepared: PostgreSQL goes on looking for the old one, and no
//! server's copy of a statement may be a client's fate that has prepared the text after it.

use crate::support::frontend::{
    bind, bind_with_formats, close, describe, execute, parse, query, sync,
};
use crate::support::wire::{error, names};
use crate::support::{Message, Pooler, Wire, postgres};

/// What is there first, a text, what happens then, and a value for the text's parameter.
struct Case {
    name: &'static str,
    setup: &'static str,
    text: &'static str,
    change: &'static str,
    value: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "an enum, written",
        setup: "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id serial, m mood)",
        text: "INSERT INTO t (m) VALUES ($1) RETURNING m",
        change: "DROP TYPE mood CASCADE; CREATE TYPE mood AS ENUM ('ok', 'glad'); ALTER TABLE t ADD m mood",
        value: "ok",
    },
    Case {
        name: "an enum, written and not returned",
        setup: "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id serial, m mood)",
        text: "INSERT INTO t (m) VALUES ($1)",
        change: "DROP TYPE mood CASCADE; CREATE TYPE mood AS ENUM ('ok', 'glad'); ALTER TABLE t ADD m mood",
        value: "ok",
    },
    Case {
        name: "an enum, compared",
        setup: "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id int, m mood); INSERT INTO t VALUES (1, 'ok')",
        text: "SELECT id FROM t WHERE m = $1",
        change: "DROP TYPE mood CASCADE; CREATE TYPE mood AS ENUM ('ok', 'glad'); ALTER TABLE t ADD m mood; UPDATE t SET m = 'ok'",
        value: "ok",
    },
    Case {
        name: "an enum, by its name",
        setup: "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        text: "SELECT $1::mood",
        change: "DROP TYPE mood; CREATE TYPE mood AS ENUM ('ok', 'glad')",
        value: "ok",
    },
    Case {
        name: "a domain",
        setup: "CREATE DOMAIN d AS int CHECK (VALUE > 5)",
        text: "SELECT $1::d",
        change: "DROP DOMAIN d; CREATE DOMAIN d AS int CHECK (VALUE > 0)",
        value: "2",
    },
    Case {
        name: "a composite type",
        setup: "CREATE TYPE pair AS (a int, b int)",
        text: "SELECT ($1::pair).b",
        change: "DROP TYPE pair; CREATE TYPE pair AS (a int, b int, c int)",
        value: "(1,2,3)",
    },
    Case {
        name: "a table",
        setup: "CREATE TABLE t (a int, b int)",
        text: "INSERT INTO t VALUES ($1, 1) RETURNING *",
        change: "DROP TABLE t; CREATE TABLE t (b bigint, a int)",
        value: "5000000000",
    },
    Case {
        name: "a column that was widened",
        setup: "CREATE TABLE t (a int)",
        text: "INSERT INTO t VALUES ($1)",
        change: "ALTER TABLE t ALTER a TYPE bigint",
        value: "5000000000",
    },
    Case {
        name: "a column that is uuid now",
        setup: "CREATE TABLE t (a int)",
        text: "SELECT 1 FROM t WHERE a = $1",
        change: "ALTER TABLE t DROP a; ALTER TABLE t ADD a uuid",
        value: "00000000-0000-0000-0000-000000000000",
    },
];

/// The ways of drivers: what is sent until each ReadyForQuery.
const WAYS: [&str; 5] = [
    "in one batch",
    "like libpq",
    "undescribed",
    "described first",
    "in a transaction",
];

fn batches(case: &Case, way: &str) -> Vec<Vec<Vec<u8>>> {
    let value = vec![Some(case.value.as_bytes().to_vec())];
    let (parse, bind) = (parse("s", case.text, &[]), bind("", "s", &value));
    let (statement, portal) = (describe(b'S', "s"), describe(b'P', ""));
    let asks = vec![bind.clone(), portal, execute("", 0), sync()];
    match way {
        "in one batch" => vec![[vec![parse], asks.clone()].concat(), asks],
        "like libpq" => vec![vec![parse, sync()], asks.clone(), asks],
        "undescribed" => vec![
            vec![parse, statement, sync()],
            vec![bind, execute("", 0), sync()],
        ],
        "described first" => vec![
            vec![parse, sync()],
            vec![statement, bind, execute("", 0), sync()],
        ],
        _ => vec![
            vec![query("BEGIN")],
            vec![parse, sync()],
            asks.clone(),
            asks,
            vec![query("ROLLBACK")],
        ],
    }
}

/// The replies to all of it by a client that has just come, and how many of them are errors.
fn play(mut client: Wire, case: &Case, way: &str) -> (Vec<Vec<Message>>, usize) {
    let replies: Vec<Vec<Message>> = batches(case, way)
        .iter()
        .map(|batch| client.exchange(batch))
        .collect();
    let is_error = |batch: &&Vec<Message>| batch.iter().any(|message| message.tag == b'E');
    let errors = replies.iter().filter(is_error).count();
    (replies, errors)
}

fn directly(database: &str) -> Wire {
    Wire::login(postgres().address(), "app", database, None).unwrap()
}

fn pooler() -> Pooler {
    Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    })
}

/// The change has been made, and a client of before has its statement on the one server.
fn changed(pooler: &Pooler, case: &Case) -> (String, Wire) {
    let database = postgres().database("redefined");
    let grants = "GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC; \
                  GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO PUBLIC";
    postgres().sql(&database, &format!("{}; {grants}", case.setup));
    let mut old = pooler.connect(&database);
    let replies = old.exchange(&[parse("s", case.text, &[]), describe(b'S', "s"), sync()]);
    assert!(
        replies.iter().all(|message| message.tag != b'E'),
        "{replies:?}"
    );
    postgres().sql(&database, &format!("{}; {grants}", case.change));
    (database, old)
}

#[test]
fn who_prepares_a_text_anew_gets_what_postgresql_makes_of_it_now() {
    let pooler = pooler();
    for (number, case) in CASES.iter().enumerate() {
        for way in WAYS.into_iter().take(if number < 3 { 5 } else { 2 }) {
            let (database, _old) = changed(&pooler, case);
            let place = format!("{} / {way}", case.name);
            let (wanted, none) = play(directly(&database), case, way);
            assert_eq!(none, 0, "{place}: {wanted:?}");
            let (replies, errors) = play(pooler.connect(&database), case, way);
            // Parse and all that follows in one batch can be run again. Else there may be an error, until it is prepared once more.
            if way == "in one batch" {
                assert_eq!(replies, wanted, "{place}");
            }
            assert!(errors <= 2, "{place}: {replies:?}");
            if errors == 0 && way == "like libpq" {
                assert_eq!(replies, wanted, "{place}");
            }
            let (replies, _) = play(pooler.connect(&database), case, way);
            assert_eq!(replies, wanted, "{place}, the next one");
        }
    }
}

#[test]
fn who_asks_for_the_columns_and_sends_text_does_not_notice_that_a_type_was_made_again() {
    let gone = CASES
        .iter()
        .filter(|case| case.change.contains("DROP TYPE"));
    let pooler = pooler();
    for case in gone {
        let (database, mut old) = changed(&pooler, case);
        let asks = batches(case, "like libpq").pop().unwrap();
        for client in [&mut old, &mut pooler.connect(&database)] {
            client.exchange(&[parse("s", case.text, &[]), sync()]);
            let replies = client.exchange(&asks);
            assert!(
                replies.iter().all(|message| message.tag != b'E'),
                "{}: {replies:?}",
                case.name
            );
        }
        let replans = pooler.stat(&database, "total_replan_count");
        assert_eq!(replans, 1, "{}", case.name);
    }
}

#[test]
fn who_knows_the_columns_is_told_when_a_type_is_gone() {
    let case = &CASES[0];
    let pooler = pooler();
    let (database, mut old) = changed(&pooler, case);
    let known = batches(case, "undescribed").pop().unwrap();
    assert_eq!(error(&old.exchange(&known)).sqlstate(), "XX000");
    for _ in 0..2 {
        assert_eq!(error(&old.exchange(&known)).sqlstate(), "0A000");
    }
    assert_eq!(play(pooler.connect(&database), case, "like libpq").1, 0);
    old.exchange(&[close(b'S', "s"), sync()]);
    let again = [vec![parse("s", case.text, &[])], known].concat();
    let wanted = ["ParseComplete", "BindComplete", "DataRow"];
    assert_eq!(names(&old.exchange(&again))[..3], wanted);
}

#[test]
fn binary_values_are_not_tried_on_another_type() {
    let case = CASES
        .iter()
        .find(|case| case.name == "a column that is uuid now");
    let case = case.unwrap();
    let pooler = pooler();
    let (_database, mut old) = changed(&pooler, case);
    let four = vec![Some(vec![0, 0, 0, 1])];
    let batch = [
        bind_with_formats("", "s", &[1], &four, &[]),
        describe(b'P', ""),
        execute("", 0),
        sync(),
    ];
    assert_eq!(error(&old.exchange(&batch)).sqlstate(), "42883");
    // Read anew, it is another type, and nobody tries what the value would be then.
    assert_eq!(error(&old.exchange(&batch)).sqlstate(), "0A000");
    // Whoever has been told of that type has meant it: it is for PostgreSQL to say.
    old.exchange(&[describe(b'S', "s"), sync()]);
    assert_eq!(error(&old.exchange(&batch)).sqlstate(), "08P01");
}

#[test]
fn a_wrong_value_changes_nothing_for_those_who_have_the_statement() {
    let case = CASES
        .iter()
        .find(|case| case.name == "a column that was widened");
    let case = case.unwrap();
    let pooler = pooler();
    let (database, mut old) = changed(&pooler, case);
    let four = vec![Some(vec![0, 0, 0, 1])];
    let batch = [
        bind_with_formats("", "s", &[1], &four, &[]),
        execute("", 0),
        sync(),
    ];
    let mut other = pooler.connect(&database);
    other.exchange(&[parse("s", case.text, &[]), sync()]);
    let wide = batches(case, "like libpq").pop().unwrap();
    for _ in 0..2 {
        assert_eq!(error(&other.exchange(&wide)).sqlstate(), "22003");
        let wanted = ["BindComplete", "CommandComplete", "ReadyForQuery"];
        assert_eq!(names(&old.exchange(&batch)), wanted);
    }
    other.exchange(&[close(b'S', "s"), parse("s", case.text, &[]), sync()]);
    assert_eq!(names(&other.exchange(&wide))[0], "BindComplete");
}
