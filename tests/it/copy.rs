//! COPY that goes wrong, and COPY that is large. What is answered when is in the transcripts.

use std::io::Read;
use std::time::Duration;

use crate::support::scripted::Scripted;
use crate::support::wire::error;
use crate::support::{Pooler, Wire, frontend, postgres, within};

fn pooler() -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    let database = postgres().database("copy");
    postgres()
        .connect(&database)
        .rows("CREATE TABLE t(a int primary key); GRANT ALL ON t TO app");
    (pooler, database)
}

/// Goes on sending copy data after the server has ended the COPY with an error, as a client does that
/// does not look.
fn send_late_data(pooler: &Pooler, client: &mut Wire, database: &str) {
    let chunk = frontend::copy_data(&b"nonsense\n".repeat(7000));
    for round in 0..400 {
        client.send(&chunk);
        if round == 200 {
            within(
                Duration::from_secs(5),
                "the server is back in the pool",
                || (pooler.pool(database, "app").get("sv_active") == 0).then_some(()),
            );
            let mut next = pooler.connect(database);
            assert_eq!(next.value("SELECT 'next'"), "next");
        }
    }
}

#[test]
fn a_client_that_goes_on_after_the_error_keeps_no_server() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.send(&frontend::query("COPY t FROM STDIN"));
    client.read_until(b'G');
    let before = pooler.peak_memory();
    send_late_data(&pooler, &mut client, &database);
    client.send(&frontend::copy_done());
    let replies = client.read_until_ready();
    assert_eq!(error(&replies).sqlstate(), "22P02");
    assert_eq!(client.value("SELECT count(*) FROM t"), "0");
    let grown = pooler.peak_memory().saturating_sub(before);
    assert!(grown < 20_000, "memory has grown by {grown} KiB");
}

#[test]
fn by_the_extended_protocol_with_sync_behind_execute_too() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.send_all(&[
        frontend::parse("", "COPY t FROM STDIN", &[]),
        frontend::bind("", "", &[]),
        frontend::execute("", 0),
        frontend::sync(),
    ]);
    client.read_until(b'G');
    let chunk = frontend::copy_data(&b"1\n".repeat(30_000));
    for _ in 0..100 {
        client.send(&chunk);
    }
    client.send_all(&[frontend::copy_done(), frontend::sync()]);
    let replies = client.read_until_ready();
    assert_eq!(error(&replies).sqlstate(), "23505");
    assert_eq!(client.value("SELECT count(*) FROM t"), "0");
    assert_eq!(pooler.connect(&database).value("SELECT 'next'"), "next");
}

#[test]
fn a_failed_copy_inside_a_transaction_keeps_its_server_until_the_end() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    client.send(&frontend::query("COPY t FROM STDIN"));
    client.read_until(b'G');
    client.send(&frontend::copy_data(b"x\n"));
    client.send(&frontend::copy_done());
    assert_eq!(error(&client.read_until_ready()).sqlstate(), "22P02");
    assert_eq!(client.status, b'E');
    assert_eq!(pooler.pool(&database, "app").get("sv_active"), 1);
    client.rows("ROLLBACK");
    pooler.wait_for_pool(&database, "app", "sv_active", 0);
}

#[test]
fn a_large_copy_in_and_out_arrives_in_full() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.send(&frontend::query("COPY t FROM STDIN"));
    client.read_until(b'G');
    for chunk in 0..100 {
        let numbers = (0..1000).map(|line| (chunk * 1000 + line).to_string());
        let lines = numbers.collect::<Vec<_>>().join(
            "
",
        ) + "
";
        client.send(&frontend::copy_data(lines.as_bytes()));
    }
    client.send(&frontend::copy_done());
    client.read_until_ready();
    client.send(&frontend::query(
        "COPY (SELECT a FROM t ORDER BY a) TO STDOUT",
    ));
    let replies = client.read_until_ready();
    let lines = replies.iter().filter(|message| message.tag == b'd');
    let expected = (0..100_000).map(|line| format!("{line}\n"));
    assert!(
        lines
            .map(|message| message.body.clone())
            .eq(expected.map(String::into_bytes))
    );
}

/// A client whose COPY FROM by the extended protocol takes data, with `last` behind its Execute.
fn begin_extended_copy(client: &mut Wire, last: Vec<u8>) {
    client.send_all(&[
        frontend::parse("", "COPY t FROM STDIN", &[]),
        frontend::bind("", "", &[]),
        frontend::execute("", 0),
        last,
    ]);
    client.read_until(b'G');
    client.send(&frontend::copy_data(b"1\n2\n"));
}

#[test]
fn a_client_that_dies_in_an_extended_copy_leaves_its_server_at_once() {
    let (pooler, database) = pooler();
    let pid = |client: &mut Wire| client.value("SELECT pg_backend_pid()");
    let first = pid(&mut pooler.connect(&database));
    // With a Sync on its way nobody can prove that the server has read it before the COPY was broken off, so that
    // server is exchanged; without one it is brought back.
    for (last, same) in [(frontend::flush(), true), (frontend::sync(), false)] {
        for in_block in [false, true] {
            for reset in [true, false] {
                let mut client = pooler.connect(&database);
                if in_block {
                    client.rows("BEGIN");
                }
                begin_extended_copy(&mut client, last.clone());
                if reset {
                    client.abort();
                } else {
                    drop(client);
                }
                let mut next = pooler.connect(&database);
                next.patience(Duration::from_secs(5));
                assert_eq!(pid(&mut next) == first, same);
                assert_eq!(next.value("SELECT count(*) FROM t"), "0");
            }
        }
    }
}

#[test]
fn a_client_sent_away_in_the_middle_of_a_message_gets_nothing_put_into_it() {
    let start = frontend::message(b'H', &[0, 0, 1, 0, 0]);
    let whole = frontend::message(b'd', &vec![b'x'; 200_000]);
    let sent = [start, whole[..1000].to_vec()].concat();
    let half = sent.clone();
    let server = Scripted::start(move |_, session| {
        session.accept_login();
        if session.read_until(b'Q') {
            session.send(&half);
            session.hang();
        }
    });
    let pooler = Pooler::start(|ini| {
        ini.set("query_timeout", 1)
            .set("server_check_query", "")
            .target("half", &server.target());
    });
    let mut client = pooler.login("app", "half", None).unwrap();
    client.send(&frontend::query("COPY t TO STDOUT"));
    let mut got = Vec::new();
    client.stream().read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), sent.len(), "{}", got.escape_ascii());
    assert!(got == sent);
}
