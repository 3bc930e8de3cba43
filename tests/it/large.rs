//! Messages far larger than any buffer pass through without being held whole.

use std::io::{Read, Write};

use crate::support::{Pooler, frontend, postgres};

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
    let row = replies
        .iter()
        .find(|message| message.tag == b'D')
        .expect("a row");
    assert_eq!(row.values(), [Some(SIZE.to_string())]);
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
    let row = replies
        .iter()
        .find(|message| message.tag == b'D')
        .expect("a row");
    assert_eq!(row.values(), [Some(SIZE.to_string())]);
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
