//! What a text means is up to the session's settings: a statement is shared only by clients that have the same.

use crate::support::frontend::{self, bind, close, describe, execute, flush, parse, query, sync};
use crate::support::wire::{names, rows};
use crate::support::{Message, Pooler, Wire, postgres};

const DAY: &str = "select extract(month from '01/02/2003'::date)::text";
const HOUR: &str = "select extract(hour from '2003-07-01 00:00+00'::timestamptz at time zone 'UTC')::text \
                    || extract(hour from '2003-07-01 12:00'::timestamptz at time zone 'UTC')::text";

fn pooler(servers: usize) -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", servers)
            .set("max_prepared_statements", 100);
    });
    (pooler, postgres().database("contexts"))
}

/// Runs a statement without parameters, and tells its one value.
fn run(client: &mut Wire, name: &str) -> String {
    rows(&client.exchange(&[bind("", name, &[]), execute("", 0), sync()]))
        .unwrap()
        .only()
}

fn prepare(client: &mut Wire, name: &str, sql: &str) {
    let replies = client.exchange(&[parse(name, sql, &[]), describe(b'S', name), sync()]);
    assert_eq!(names(&replies)[0], "ParseComplete", "{replies:?}");
}

#[test]
fn one_text_of_clients_with_other_settings_is_read_as_each_ones_own() {
    let (pooler, database) = pooler(1);
    let mut american =
        pooler.connect_with(&database, &[("DateStyle", "ISO, MDY"), ("TimeZone", "UTC")]);
    let mut german = pooler.connect_with(
        &database,
        &[("DateStyle", "German, DMY"), ("TimeZone", "UTC")],
    );
    let mut japanese = pooler.connect_with(
        &database,
        &[("DateStyle", "ISO, MDY"), ("TimeZone", "Asia/Tokyo")],
    );
    let clients = [&mut american, &mut german, &mut japanese];
    let wanted = [("1", "012"), ("2", "012"), ("1", "03")];
    for client in clients {
        prepare(client, "day", DAY);
        prepare(client, "hour", HOUR);
    }
    for _ in 0..3 {
        let clients = [&mut american, &mut german, &mut japanese];
        for (client, (day, hour)) in clients.into_iter().zip(wanted) {
            assert_eq!(
                (run(client, "day"), run(client, "hour")),
                (day.to_owned(), hour.to_owned())
            );
        }
    }
}

#[test]
fn the_name_of_an_application_does_not_make_another_statement() {
    let (pooler, database) = pooler(1);
    for name in ["one", "other"] {
        let mut client = pooler.connect_with(&database, &[("application_name", name)]);
        prepare(&mut client, "s", "select 1");
        client.rows("set application_name = 'third'");
        assert_eq!(run(&mut client, "s"), "1");
    }
    assert_eq!(pooler.pool(&database, "app").get("prepare_cache_miss"), 1);
    assert_eq!(pooler.console("SHOW PREPARED").rows.len(), 1);
}

#[test]
fn a_statement_made_before_a_set_is_read_under_the_new_settings_and_nobody_elses_is() {
    for servers in [1, 2] {
        let (pooler, database) = pooler(servers);
        let settings = [("DateStyle", "ISO, MDY")];
        let mut stays = pooler.connect_with(&database, &settings);
        let mut changes = pooler.connect_with(&database, &settings);
        for client in [&mut stays, &mut changes] {
            prepare(client, "s", DAY);
        }
        for (set, month) in [
            ("set DateStyle = 'ISO, DMY'", "2"),
            ("set DateStyle = 'ISO, MDY'", "1"),
            ("set DateStyle = 'German'; select 1", "2"),
            ("reset DateStyle", "1"),
            ("begin; set local DateStyle = 'German, DMY'", "2"),
        ] {
            changes.rows(set);
            for _ in 0..3 {
                assert_eq!(run(&mut changes, "s"), month, "after {set}");
                if !set.starts_with("begin") || servers > 1 {
                    assert_eq!(run(&mut stays, "s"), "1", "after {set}");
                }
            }
        }
        changes.rows("commit");
        for client in [&mut stays, &mut changes] {
            assert_eq!(run(client, "s"), "1");
        }
    }
}

#[test]
fn what_is_parsed_right_behind_a_set_is_read_under_what_it_sets() {
    let set = "set DateStyle = 'ISO, DMY'";
    let in_one_write: [(&str, Vec<Vec<u8>>); 4] = [
        ("by a query", vec![query(set)]),
        (
            "in a batch of its own",
            vec![
                parse("", set, &[]),
                bind("", "", &[]),
                execute("", 0),
                sync(),
            ],
        ),
        (
            "in the same batch",
            vec![parse("", set, &[]), bind("", "", &[]), execute("", 0)],
        ),
        ("with a name", vec![bind("", "set", &[]), execute("", 0)]),
    ];
    for (way, messages) in in_one_write {
        let (pooler, database) = pooler(1);
        let settings = [("DateStyle", "ISO, MDY")];
        let mut stays = pooler.connect_with(&database, &settings);
        let mut changes = pooler.connect_with(&database, &settings);
        prepare(&mut stays, "s", DAY);
        prepare(&mut changes, "older", DAY);
        prepare(&mut changes, "set", set);
        let mut messages = messages;
        let ends = messages
            .iter()
            .filter(|message| matches!(message[0], b'Q' | b'S'))
            .count();
        for name in ["s", "older"] {
            if name == "s" {
                messages.push(parse("s", DAY, &[]));
            }
            messages.extend([bind("", name, &[]), execute("", 0)]);
        }
        messages.push(sync());
        changes.send_all(&messages);
        let replies: Vec<_> = (0..=ends)
            .flat_map(|_| changes.read_until_ready())
            .collect();
        assert!(
            replies.iter().all(|message| message.tag != b'E'),
            "{way}: {replies:?}"
        );
        let months: Vec<_> = replies
            .iter()
            .filter(|message| message.tag == b'D')
            .map(|message| message.values()[0].clone().unwrap())
            .collect();
        assert_eq!(months, ["2", "2"], "{way}");
        for _ in 0..2 {
            assert_eq!(run(&mut stays, "s"), "1", "{way}");
            assert_eq!(run(&mut changes, "s"), "2", "{way}");
            assert_eq!(run(&mut changes, "older"), "2", "{way}");
        }
    }
}

#[test]
fn a_change_that_no_text_tells_of_spoils_nothing_for_others() {
    let (pooler, database) = pooler(1);
    let settings = [("DateStyle", "ISO, MDY")];
    let mut stays = pooler.connect_with(&database, &settings);
    let mut changes = pooler.connect_with(&database, &settings);
    // By a function, and with the statement behind it in the same batch.
    let replies = changes.exchange(&[
        parse("", "select set_config('DateStyle', 'ISO, DMY', false)", &[]),
        bind("", "", &[]),
        execute("", 0),
        parse("s", DAY, &[]),
        bind("", "s", &[]),
        execute("", 0),
        sync(),
    ]);
    let last = replies.iter().rfind(|message| message.tag == b'D').unwrap();
    assert_eq!(last.values()[0].as_deref(), Some("2"));
    prepare(&mut stays, "s", DAY);
    for _ in 0..2 {
        assert_eq!(run(&mut stays, "s"), "1");
        assert_eq!(run(&mut changes, "s"), "2");
    }
    let closed = changes.exchange(&[frontend::close(b'S', "s"), sync()]);
    assert_eq!(names(&closed), ["CloseComplete", "ReadyForQuery"]);
}

/// Two schemas with tables of the same names. Those of `t` have the same columns, and those of `u` have not.
const SCHEMAS: &str = "CREATE SCHEMA one; CREATE SCHEMA two; \
    CREATE TABLE one.t (a int); CREATE TABLE two.t (a int); INSERT INTO one.t VALUES (1); INSERT INTO two.t VALUES (2); \
    CREATE TABLE one.u (a int); CREATE TABLE two.u (a text, b int); \
    INSERT INTO one.u VALUES (1); INSERT INTO two.u VALUES ('2', 22); \
    GRANT USAGE ON SCHEMA one, two TO PUBLIC; \
    GRANT SELECT ON ALL TABLES IN SCHEMA one TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA two TO PUBLIC";

fn run_by(name: &str) -> Vec<Vec<u8>> {
    vec![bind("", name, &[]), execute("", 0)]
}

fn unnamed(sql: &str) -> Vec<Vec<u8>> {
    [vec![parse("", sql, &[])], run_by("")].concat()
}

/// What was said, as far as it can be the same: the messages' names, values, and the code of an error.
fn told(replies: &[Message]) -> Vec<String> {
    let text = |message: &Message| match message.tag {
        b'D' => format!("{:?}", message.values()),
        b'E' => message.sqlstate(),
        b'Z' => format!("ready {:?}", message.body),
        _ => names(std::slice::from_ref(message))[0].to_owned(),
    };
    // PostgreSQL reports a change of `search_path` since 18.
    let replies = replies.iter().filter(|message| message.tag != b'S');
    replies.map(text).collect()
}

/// A batch whose SET is taken back by its error, behind which a name is given to a statement. `before` comes first.
struct TakenBack {
    place: String,
    batch: Vec<Vec<u8>>,
}

/// In all ways.
fn all_taken_back(text: &str) -> Vec<TakenBack> {
    let sets = [
        unnamed("SET search_path = two"),
        unnamed("SET LOCAL search_path = two"),
        run_by("set"),
    ];
    let gives = [
        vec![parse("s", text, &[])],
        vec![close(b'S', "older"), parse("s", text, &[])],
        vec![
            parse("s", text, &[]),
            close(b'S', "s"),
            parse("s", text, &[]),
        ],
    ];
    let uses = [
        vec![],
        vec![describe(b'S', "s")],
        vec![flush()],
        run_by("s"),
        run_by("older"),
        vec![bind("", "s", &[]), describe(b'P', ""), execute("", 0)],
    ];
    let fails = [
        unnamed("SELECT 1/0"),
        vec![parse("", "wrong", &[])],
        vec![bind("", "nobody", &[])],
    ];
    let mut all = Vec::new();
    for (set, way) in sets.iter().enumerate() {
        for (give, gives) in gives.iter().enumerate() {
            for (usage, uses) in uses.iter().enumerate() {
                for (failure, fails) in fails.iter().enumerate() {
                    all.push(TakenBack {
                        place: format!("{text}, {set}, {give}, {usage}, {failure}"),
                        batch: [&way[..], gives, uses, fails, &[sync()][..]].concat(),
                    });
                }
            }
        }
    }
    all
}

/// What uses the name then, each of it a batch.
fn used_later(name: &str) -> Vec<Vec<Vec<u8>>> {
    let run = || [run_by(name), vec![sync()]].concat();
    vec![
        run(),
        run(),
        vec![query("BEGIN")],
        run(),
        vec![query("ROLLBACK")],
        vec![parse("s", "SELECT 1", &[]), sync()],
        run(),
        vec![close(b'S', name), sync()],
        run(),
    ]
}

#[test]
fn a_name_given_behind_a_set_that_is_taken_back_is_what_postgresql_makes_of_it() {
    for servers in [1, 2] {
        let (pooler, database) = pooler(servers);
        postgres().sql(&database, SCHEMAS);
        for text in ["SELECT * FROM t", "SELECT * FROM u"] {
            for (number, case) in all_taken_back(text).iter().enumerate() {
                let place = format!("{servers} servers, {}", case.place);
                let mut direct = Wire::login(postgres().address(), "app", &database, None).unwrap();
                let mut client = pooler.connect(&database);
                let mut other = pooler.connect(&database);
                let prepares = [
                    query("SET search_path = one"),
                    parse("set", "SET search_path = two", &[]),
                    parse("older", text, &[]),
                    sync(),
                ];
                for wire in [&mut direct, &mut client] {
                    wire.send_all(&prepares);
                    wire.read_until_ready();
                    wire.read_until_ready();
                }
                let name = if number % 2 == 0 { "s" } else { "older" };
                if number % 3 == 0 {
                    // All of it is on its way before the first answer.
                    let later = used_later(name).concat();
                    for wire in [&mut direct, &mut client] {
                        wire.send_all(&[case.batch.clone(), later.clone()].concat());
                    }
                    for turn in 0..=used_later(name).len() {
                        let wanted = told(&direct.read_until_ready());
                        assert_eq!(
                            told(&client.read_until_ready()),
                            wanted,
                            "{place}: turn {turn}"
                        );
                    }
                    continue;
                }
                let wanted = told(&direct.exchange(&case.batch));
                assert_eq!(
                    told(&client.exchange(&case.batch)),
                    wanted,
                    "{place}: at first"
                );
                for (turn, messages) in used_later(name).iter().enumerate() {
                    // By turns on either of the servers.
                    let is_lent = servers > 1 && turn % 2 == 0 && client.status == b'I';
                    if is_lent {
                        other.rows("BEGIN");
                    }
                    let wanted = told(&direct.exchange(messages));
                    assert_eq!(
                        told(&client.exchange(messages)),
                        wanted,
                        "{place}: turn {turn}"
                    );
                    if is_lent {
                        other.rows("COMMIT");
                    }
                }
            }
        }
    }
}
