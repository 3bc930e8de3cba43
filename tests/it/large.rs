//! Messages far larger than any buffer pass through without being held whole.

use std::io::{Read, Write};

use crate::support::wire::{error, first_value, names};
use crate::support::{Message, Pooler, Wire, frontend, postgres};

const SIZE: usize = 100 << 20;
/// What the pooler may use more than before, in KiB.
const ALLOWED: u64 = 32 << 10;

fn pooler() -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    (pooler, postgres().database("large"))
}

fn grown(pooler: &Pooler, before: u64) {
    // The kernel counts roughly: the peak may even seem to have shrunk.
    let grown = pooler.peak_memory().saturating_sub(before);
    assert!(grown < ALLOWED, "memory has grown by {grown} KiB");
}

#[test]
fn a_value_of_100_mb_comes_out() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    let before = pooler.peak_memory();
    client.send(&frontend::query(&format!("SELECT repeat('x', {SIZE})")));
    let replies = client.read_until_ready();
    assert_eq!(replies[1].body.len(), SIZE + 6);
    assert!(replies[1].body[6..].iter().all(|byte| *byte == b'x'));
    grown(&pooler, before);
    assert_eq!(client.value("SELECT 'next'"), "next");
}

#[test]
fn a_value_of_100_mb_comes_out_to_a_client_that_reads_slowly() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    let before = pooler.peak_memory();
    client.send(&frontend::query(&format!("SELECT repeat('x', {SIZE})")));
    let mut stream = client.stream();
    let mut part = vec![0; 1 << 20];
    let mut read = 0;
    // Reads a part, then lets the pooler meet a full socket.
    for _ in 0..10 {
        read += stream.read(&mut part).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    while read < SIZE {
        read += stream.read(&mut part).unwrap();
    }
    grown(&pooler, before);
}

#[test]
fn a_value_of_100_mb_goes_in() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    let before = pooler.peak_memory();
    let value = vec![b'y'; SIZE];
    client.send(&frontend::parse("", "SELECT length($1::text)", &[]));
    client.send(&frontend::bind("", "", &[Some(value)]));
    let replies = client.exchange(&[frontend::execute("", 0), frontend::sync()]);
    assert_eq!(first_value(&replies), SIZE.to_string());
    grown(&pooler, before);
}

#[test]
fn a_value_of_100_mb_goes_into_a_named_statement() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.exchange(&[
        frontend::parse("s", "SELECT length($1::text)", &[]),
        frontend::sync(),
    ]);
    let before = pooler.peak_memory();
    client.send(&frontend::bind("", "s", &[Some(vec![b'z'; SIZE])]));
    let replies = client.exchange(&[frontend::execute("", 0), frontend::sync()]);
    assert_eq!(first_value(&replies), SIZE.to_string());
    grown(&pooler, before);
}

#[test]
fn a_query_of_20_mb_goes_in() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    let before = pooler.peak_memory();
    let text = "q".repeat(20 << 20);
    assert_eq!(
        client.value(&format!("SELECT length('{text}')")),
        text.len().to_string()
    );
    grown(&pooler, before);
}

#[test]
fn a_message_may_come_in_small_pieces() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    let request = [
        frontend::parse("s", "SELECT $1::text", &[]),
        frontend::bind("", "s", &[Some(b"in pieces".to_vec())]),
        frontend::execute("", 0),
        frontend::sync(),
        frontend::query("SELECT 'and a query'"),
    ]
    .concat();
    for size in [1, 2, 3, 7] {
        for piece in request.chunks(size) {
            client.stream().write_all(piece).unwrap();
        }
        let replies = [client.read_until_ready(), client.read_until_ready()].concat();
        let rows: Vec<_> = replies
            .iter()
            .filter(|message| message.tag == b'D')
            .collect();
        assert_eq!(rows[0].values(), [Some("in pieces".to_owned())]);
        assert_eq!(rows[1].values(), [Some("and a query".to_owned())]);
        client.exchange(&[frontend::close(b'S', "s"), frontend::sync()]);
    }
}

/// A statement that is longer than the pooler keeps, and the length of the text in it.
fn long_statement(size: usize) -> (String, String) {
    let sql = format!("SELECT length('{}'), $1::text", "s".repeat(size));
    (sql, size.to_string())
}

fn run_unnamed(client: &mut Wire, value: &str) -> Vec<Message> {
    let values = [Some(value.as_bytes().to_vec())];
    client.exchange(&[
        frontend::bind("", "", &values),
        frontend::describe(b'P', ""),
        frontend::execute("", 0),
        frontend::sync(),
    ])
}

fn row(replies: &[Message]) -> Vec<Option<String>> {
    let row = replies.iter().find(|message| message.tag == b'D');
    row.unwrap_or_else(|| panic!("a row among {replies:?}"))
        .values()
}

#[test]
fn a_long_unnamed_statement_is_there_for_later_messages_of_the_transaction() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    for size in [2 << 20, 48 << 20] {
        client.rows("BEGIN");
        let before = pooler.peak_memory();
        let (sql, length) = long_statement(size);
        let replies = client.exchange(&[frontend::parse("", &sql, &[]), frontend::sync()]);
        assert_eq!(names(&replies), ["ParseComplete", "ReadyForQuery"]);
        for value in ["one", "two"] {
            let replies = run_unnamed(&mut client, value);
            assert_eq!(
                row(&replies),
                [Some(length.clone()), Some(value.to_owned())]
            );
        }
        grown(&pooler, before);
        // A query takes its place, as in PostgreSQL.
        client.rows("SELECT 1");
        let replies = run_unnamed(&mut client, "three");
        assert_eq!(error(&replies).sqlstate(), "26000");
        client.rows("ROLLBACK");
    }
}

#[test]
fn a_long_unnamed_statement_outside_of_a_transaction_lasts_while_nobody_else_has_the_server() {
    let (pooler, database) = pooler();
    let (mut client, mut other) = (pooler.connect(&database), pooler.connect(&database));
    other.rows("SELECT 1");
    let before = pooler.peak_memory();
    for size in [2 << 20, 48 << 20] {
        let (sql, length) = long_statement(size);
        let replies = client.exchange(&[frontend::parse("", &sql, &[]), frontend::sync()]);
        assert_eq!(names(&replies), ["ParseComplete", "ReadyForQuery"]);
        let replies = run_unnamed(&mut client, "one");
        assert_eq!(row(&replies), [Some(length), Some("one".to_owned())]);
        // Nobody has kept the text: it is gone, and never somebody else's.
        other.exchange(&[
            frontend::parse("", "SELECT 'other', $1::text", &[]),
            frontend::sync(),
        ]);
        let replies = run_unnamed(&mut client, "two");
        assert_eq!(error(&replies).sqlstate(), "26000");
        let replies = run_unnamed(&mut other, "three");
        assert_eq!(
            row(&replies),
            [Some("other".to_owned()), Some("three".to_owned())]
        );
    }
    grown(&pooler, before);
}

#[test]
fn a_named_statement_of_16_mb_answers_as_it_does_directly() {
    let (pooler, database) = pooler();
    let (sql, _) = long_statement(16 << 20);
    let play = |client: &mut Wire| {
        let mut replies = client.exchange(&[frontend::parse("s", &sql, &[]), frontend::sync()]);
        for value in ["one", "two"] {
            let values = [Some(value.as_bytes().to_vec())];
            replies.extend(client.exchange(&[
                frontend::describe(b'S', "s"),
                frontend::bind("", "s", &values),
                frontend::execute("", 0),
                frontend::sync(),
            ]));
        }
        replies
    };
    let direct = play(&mut postgres().connect(&database));
    assert_eq!(play(&mut pooler.connect(&database)), direct);
    // The second client's is prepared already.
    assert_eq!(play(&mut pooler.connect(&database)), direct);
}

#[test]
fn a_message_of_a_server_over_the_limit_ends_the_server_and_its_client() {
    let database = postgres().database("large");
    let mut pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1)
            .set("max_packet_size", 10_000);
    });
    let mut client = pooler.connect(&database);
    let pid = client.value("SELECT pg_backend_pid()");
    // With its header exactly as long as may be: tag, length, columns, length of the column.
    let longest = client.value(&format!("SELECT repeat('x', {})", 10_000 - 11));
    assert_eq!(longest.len(), 9_989);
    let replies = client.query(&format!(
        "SELECT 'first' UNION ALL SELECT repeat('x', {})",
        9_990
    ));
    // What came before it went on.
    assert_eq!(
        names(&replies),
        ["RowDescription", "DataRow", "ErrorResponse"]
    );
    let farewell = error(&replies);
    assert_eq!(farewell.field('M').as_deref(), Some("bad pkt header"));
    assert_eq!(farewell.field('S').as_deref(), Some("FATAL"));
    assert_eq!(farewell.sqlstate(), "08P01");
    assert!(client.ended());
    let mut next = pooler.connect(&database);
    assert_ne!(next.value("SELECT pg_backend_pid()"), pid);
    assert!(pooler.log().contains("bad pkt header"));

    // What the client sends is measured by the same, and the words are for its eyes.
    let mut sender = pooler.connect(&database);
    sender.send(&frontend::query(&"x".repeat(10_000)));
    let farewell = sender.read_message().unwrap();
    assert_eq!(
        farewell.field('M').as_deref(),
        Some("bad packet header: '5100002715787878'")
    );
    pooler.reconfigure(|ini| {
        ini.unset("max_packet_size");
    });
    assert_eq!(next.value("SELECT repeat('x', 20000)").len(), 20_000);
}
