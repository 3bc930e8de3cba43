//! Clients that do not read what they are sent: they are not read either, so that memory stays bounded.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Pooler, Wire, frontend, postgres};

/// More than all buffers of the system together hold of this.
const ENOUGH: usize = 64 << 20;

/// What the pooler may use more than before, in KiB.
const ALLOWED: u64 = 24 << 10;

/// Writes until the other side takes no more. Says what was not taken of the last piece, and how many were written
/// with that.
fn write_until_stuck<'a>(mut stream: &TcpStream, piece: &'a [u8]) -> (&'a [u8], usize) {
    stream
        .set_write_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    for count in 1..=ENOUGH / piece.len() {
        let mut rest = piece;
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(_) => return (rest, count),
            }
        }
    }
    panic!("{ENOUGH} bytes were taken from a client that reads nothing");
}

/// A client whose system takes little that it has not read.
fn client_with_small_buffers(pooler: &Pooler, database: &str) -> Wire {
    let client = pooler.connect(database);
    let socket = socket2::SockRef::from(client.stream());
    socket.set_recv_buffer_size(128 << 10).unwrap();
    socket.set_send_buffer_size(128 << 10).unwrap();
    client
}

fn pooler() -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    (pooler, postgres().database("unread"))
}

/// Messages that the pooler answers by itself once the server has the statement.
fn round() -> Vec<u8> {
    [frontend::parse("s", "", &[]), frontend::close(b'S', "s")].concat()
}

#[test]
fn a_client_that_reads_no_answers_of_the_poolers_is_not_read_without_end() {
    let (pooler, database) = pooler();
    let mut client = client_with_small_buffers(&pooler, &database);
    client.rows("BEGIN");
    client.exchange(&[round(), frontend::sync()]);
    let before = pooler.peak_memory();
    let piece = round().repeat(1000);
    let (rest, count) = write_until_stuck(client.stream(), &piece);
    let grown = pooler.peak_memory() - before;
    assert!(grown < ALLOWED, "memory has grown by {grown} KiB");
    // Once it reads, everything is answered in order.
    let end = [rest, &frontend::sync(), &frontend::query("COMMIT")].concat();
    let mut stream = client.stream().try_clone().unwrap();
    stream.set_write_timeout(None).unwrap();
    let writer = std::thread::spawn(move || stream.write_all(&end).unwrap());
    for number in 0..count * 1000 {
        let tags = [(); 2].map(|()| client.read_message().unwrap().tag);
        assert_eq!(tags, [b'1', b'3'], "answer {number}");
    }
    client.read_until_ready();
    client.read_until_ready();
    writer.join().unwrap();
    assert_eq!(client.value("SELECT 'usable'"), "usable");
}

#[test]
fn nor_is_one_without_a_server() {
    let (pooler, database) = pooler();
    let mut client = client_with_small_buffers(&pooler, &database);
    client.rows("SELECT 1");
    let before = pooler.peak_memory();
    let piece = frontend::sync().repeat(1000);
    write_until_stuck(client.stream(), &piece);
    let grown = pooler.peak_memory() - before;
    assert!(grown < ALLOWED, "memory has grown by {grown} KiB");
    client.abort();
    assert_eq!(pooler.connect(&database).value("SELECT 'next'"), "next");
}

#[test]
fn one_that_vanishes_while_it_is_stuck_leaves_its_server() {
    let (pooler, database) = pooler();
    for reset in [true, false] {
        let mut client = client_with_small_buffers(&pooler, &database);
        client.rows("BEGIN");
        client.exchange(&[round(), frontend::sync()]);
        write_until_stuck(client.stream(), &round().repeat(1000));
        if reset {
            client.abort();
        } else {
            drop(client);
        }
        assert_eq!(pooler.connect(&database).value("SELECT 'next'"), "next");
    }
}
