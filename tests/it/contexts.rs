//! What a text means is up to the session's settings: a statement is shared only by clients that have the same.

use crate::support::frontend::{self, bind, describe, execute, parse, query, sync};
use crate::support::wire::{names, rows};
use crate::support::{Pooler, Wire, postgres};

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
