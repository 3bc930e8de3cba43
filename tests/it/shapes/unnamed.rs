//! The same of the unnamed statement, which follows its client from server to server as a text: PostgreSQL keeps to what it was.

use super::{
    CASES, Case, Changed, changed_directly, described, is_refused, pooler, succeeds, undescribed,
    values,
};
use crate::support::frontend::{bind, bind_with_formats, describe, execute, parse, query, sync};
use crate::support::wire::{error, names};
use crate::support::{Message, Wire};

/// As Go's `lib/pq` does it.
fn parsed(text: &str) -> Vec<Vec<u8>> {
    vec![parse("", text, &[]), describe(b'S', ""), sync()]
}

/// The same answer, or the same error.
fn is_as(replies: &[Message], wanted: &[Message], place: &str) {
    let failed = |replies: &[Message]| {
        let error = replies.iter().find(|message| message.tag == b'E');
        error
            .map(|error| (error.sqlstate(), error.field('R')))
            // (Who it was that refused a failed transaction is of no account.)
            .map(|(code, routine)| (code == "0A000").then_some(routine).ok_or(code))
    };
    assert_eq!(failed(replies), failed(wanted), "{place}: {replies:?}");
    if failed(wanted).is_none() {
        assert_eq!(names(replies), names(wanted), "{place}");
        assert_eq!(values(replies, place), values(wanted, place), "{place}");
    }
}

fn both(direct: &mut Wire, client: &mut Wire, messages: &[Vec<u8>], place: &str) {
    let wanted = direct.exchange(messages);
    is_as(&client.exchange(messages), &wanted, place);
    assert_eq!(client.status, direct.status, "{place}");
}

#[test]
fn who_has_described_it_gets_from_another_server_what_its_own_postgresql_would_say() {
    let pooler = pooler();
    // (Each of them changes what it returns.)
    for case in CASES.iter().filter(|case| case.name != "what is returned") {
        let prepares = parsed(case.text);
        let (mut direct, _place) = changed_directly(case, &prepares);
        let mut changed = Changed::new(&pooler, case, &prepares);
        let client = &mut changed.client;
        for batch in [
            undescribed(""),
            undescribed(""),
            described(""),
            vec![describe(b'S', ""), sync()],
            undescribed(""),
        ] {
            both(&mut direct, client, &batch, case.name);
        }
        // On the first server.
        changed.holder.rows("commit");
        let mut other = pooler.connect(&changed.place.0);
        other.rows("begin");
        both(&mut direct, client, &undescribed(""), case.name);
        // And after a Parse.
        for batch in [parsed(case.text), undescribed(""), described("")] {
            both(&mut direct, client, &batch, case.name);
        }
        changed.holder.rows("begin");
        other.rows("commit");
        both(&mut direct, client, &undescribed(""), case.name);
        // A Query is the end of it.
        for batch in [vec![query("select 1")], undescribed("")] {
            both(&mut direct, client, &batch, case.name);
        }
    }
}

#[test]
fn in_a_transaction_too() {
    let pooler = pooler();
    for case in CASES.iter().filter(|case| case.name != "what is returned") {
        let prepares = parsed(case.text);
        let begin = || {
            let begins = parse("begin", "begin", &[]);
            vec![begins, bind("", "begin", &[]), execute("", 0), sync()]
        };
        let (mut direct, _place) = changed_directly(case, &prepares);
        let mut changed = Changed::new(&pooler, case, &prepares);
        for batch in [
            begin(),
            undescribed(""),
            undescribed(""),
            vec![query("rollback")],
            undescribed(""),
        ] {
            both(&mut direct, &mut changed.client, &batch, case.name);
        }
    }
}

#[test]
fn binary_values_are_not_taken_for_those_of_another_type() {
    let case = Case {
        name: "a parameter of another type",
        text: "INSERT INTO t (id, b) VALUES (2, $1)",
        change: "ALTER TABLE t ALTER b TYPE real",
        refused: false,
    };
    let pooler = pooler();
    let three = vec![Some(vec![0, 0, 0, 3])];
    let mut changed = Changed::new(&pooler, &case, &parsed(case.text));
    let binary = [
        bind_with_formats("", "", &[1], &three, &[]),
        execute("", 0),
        sync(),
    ];
    is_refused(&changed.client.exchange(&binary), case.name);
    let text = [bind("", "", &[Some(b"3".to_vec())]), execute("", 0), sync()];
    succeeds(&changed.client.exchange(&text), case.name);
    changed.holder.rows("commit");
    assert_eq!(changed.client.value("select b from t where id = 2"), "3");
}

#[test]
fn what_a_client_never_asks_for_is_compared_once_it_has_used_it_on_another_server() {
    let pooler = pooler();
    let case = &CASES[0];
    for asks in [false, true] {
        let parse = || {
            let rest = if asks { described("") } else { undescribed("") };
            [vec![parse("", case.text, &[])], rest].concat()
        };
        let mut changed = Changed::new(&pooler, case, &parse());
        let client = &mut changed.client;
        // Nobody can tell what it was. From now on it is what it is here.
        succeeds(&client.exchange(&undescribed("")), case.name);
        changed.holder.rows("commit");
        for number in 0..2 {
            succeeds(&client.exchange(&parse()), case.name);
            changed.holder.rows("begin");
            let sql = format!("ALTER TABLE t ADD d{number} int");
            crate::support::postgres().sql(&changed.place.0, &sql);
            for _ in 0..2 {
                let replies = client.exchange(&undescribed(""));
                assert_eq!(error(&replies).sqlstate(), "0A000", "{replies:?}");
            }
            changed.holder.rows("commit");
        }
    }
}
