//! Clients are moved from worker to worker while they work, and notice nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::support::frontend::{self, bind, execute, parse, sync};
use crate::support::wire::first_value;
use crate::support::{Pooler, Wire, eventually, postgres};

/// Ends its threads even when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two workers; the log tells how many are in use.
fn pooler() -> Pooler {
    Pooler::start(|ini| {
        ini.set("worker_threads", 2)
            .set("min_worker_threads", 1)
            .set("default_pool_size", 12)
            .set("verbose", 1);
    })
}

/// Has the number of workers in use changed, by reload and SIGHUP in turn, and waits until it is.
fn use_workers(pooler: &mut Pooler, count: usize) {
    let line = format!("workers in use: {count} ");
    let before = pooler.log().matches(&line).count();
    let change = |ini: &mut crate::support::pooler::Ini| {
        ini.set("min_worker_threads", count);
    };
    if count == 1 {
        pooler.reconfigure(change);
    } else {
        pooler.rewrite(change);
        pooler.reload();
    }
    eventually(&format!("{count} workers are in use"), || {
        (pooler.log().matches(&line).count() > before).then_some(())
    });
}

/// All kinds of work, with answers that are this client's only.
fn work(client: &mut Wire, number: usize, turn: usize) {
    let mark = format!("{number}/{turn}");
    // Others do not have to wait for a processor while this one sleeps, so that few workers are enough.
    let query = format!("SELECT '{mark}' FROM pg_sleep(0.04)");
    assert_eq!(client.value(&query), mark);
    let values = [Some(turn.to_string().into_bytes())];
    let replies = client.exchange(&[bind("", "mine", &values), execute("", 0), sync()]);
    assert_eq!(first_value(&replies), mark);
    let replies = client.exchange(&[
        parse("", &format!("SELECT '{mark}/' || $1::text"), &[]),
        sync(),
    ]);
    assert_eq!(replies.len(), 2, "{replies:?}");
    let replies = client.exchange(&[bind("", "", &values), execute("", 0), sync()]);
    assert_eq!(first_value(&replies), format!("{mark}/{turn}"));
    if turn.is_multiple_of(5) {
        client.rows("BEGIN");
        client.rows(&format!("SET LOCAL application_name = '{mark}'"));
        assert_eq!(client.value("SHOW application_name"), mark);
        client.rows("COMMIT");
        assert_eq!(client.value("SHOW application_name"), format!("c{number}"));
    }
    // Two queries, with the second cut in two.
    let both = [
        frontend::query(&format!("SELECT 'one {mark}'")),
        frontend::query(&format!("SELECT 'two {mark}'")),
    ]
    .concat();
    let (first, rest) = both.split_at(both.len() - 5);
    client.send(first);
    assert_eq!(
        first_value(&client.read_until_ready()),
        format!("one {mark}")
    );
    client.send(rest);
    assert_eq!(
        first_value(&client.read_until_ready()),
        format!("two {mark}")
    );
}

fn worker_client(pooler: &Pooler, database: &str, number: usize) -> Wire {
    let name = format!("c{number}");
    let parameters = [
        ("user", "app"),
        ("database", database),
        ("application_name", name.as_str()),
    ];
    let mut client = Wire::login_with(pooler.address(), &parameters, None).unwrap();
    let sql = format!("SELECT '{number}/' || $1::text");
    let replies = client.exchange(&[parse("mine", &sql, &[]), sync()]);
    assert_eq!(replies.len(), 2, "{replies:?}");
    client
}

#[test]
fn clients_at_work_are_moved_and_get_their_own_answers() {
    let database = postgres().database("workers");
    let mut pooler = pooler();
    let mut clients: Vec<Wire> = (0..20)
        .map(|number| worker_client(&pooler, &database, number))
        .collect();
    let (stop, turns) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for (number, client) in clients.iter_mut().enumerate() {
            let (stop, turns) = (&stop, &turns);
            scope.spawn(move || {
                let _stop = Stop(stop);
                for turn in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    work(client, number, turn);
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for count in [2, 1, 2, 1, 2] {
            use_workers(&mut pooler, count);
            let before = turns.load(Ordering::Relaxed);
            eventually("everybody has worked since", || {
                assert!(!stop.load(Ordering::Relaxed), "a client has failed");
                (turns.load(Ordering::Relaxed) > before + 100).then_some(())
            });
        }
    });
    assert_eq!(pooler.pool(&database, "app").get("cl_waiting"), 0);
}

#[test]
fn clients_in_transactions_in_the_queue_and_in_half_a_message_are_moved() {
    let (database, busy) = (
        postgres().database("workers"),
        postgres().database("workers"),
    );
    let mut pooler = pooler();
    pooler.reconfigure(|ini| {
        ini.database(
            &busy.clone(),
            &format!("dbname={busy} pool_size=1 pool_mode=transaction"),
        );
    });
    let mut inside: Vec<Wire> = (0..4)
        .map(|number| worker_client(&pooler, &database, number))
        .collect();
    let mut halves: Vec<Wire> = (0..6)
        .map(|number| worker_client(&pooler, &database, number))
        .collect();
    let mut holding = pooler.connect(&busy);
    let mut queued: Vec<Wire> = (0..6).map(|_| pooler.connect(&busy)).collect();
    for count in [2, 1, 2] {
        let mut pids = Vec::new();
        for client in &mut inside {
            client.rows("BEGIN");
            pids.push(client.value("SELECT pg_backend_pid()"));
        }
        holding.rows("BEGIN");
        for (number, client) in queued.iter_mut().enumerate() {
            client.send(&frontend::query(&format!("SELECT 'queued {number}'")));
        }
        pooler.wait_for_pool(&busy, "app", "cl_waiting", 6);
        let messages: Vec<Vec<u8>> = (0..halves.len())
            .map(|number| half_messages(number, count))
            .collect();
        for (client, bytes) in halves.iter_mut().zip(&messages) {
            client.send(&bytes[..bytes.len() / 2]);
        }
        use_workers(&mut pooler, count);
        for (number, (client, bytes)) in halves.iter_mut().zip(&messages).enumerate() {
            client.send(&bytes[bytes.len() / 2..]);
            let value = first_value(&client.read_until_ready());
            assert_eq!(value, format!("{number}/{count}"));
        }
        for (client, pid) in inside.iter_mut().zip(pids) {
            assert_eq!(client.value("SELECT pg_backend_pid()"), pid);
            client.rows("COMMIT");
        }
        holding.rows("COMMIT");
        for (number, client) in queued.iter_mut().enumerate() {
            let value = first_value(&client.read_until_ready());
            assert_eq!(value, format!("queued {number}"));
        }
    }
}

/// What answers `number/count`, in several ways; half of it ends inside of a message.
fn half_messages(number: usize, count: usize) -> Vec<u8> {
    let values = [Some(count.to_string().into_bytes())];
    let padding = "x".repeat(if number > 3 { 100_000 } else { 100 });
    match number % 2 {
        0 => frontend::query(&format!("SELECT '{number}/{count}' /* {padding} */")),
        _ => {
            let name = "again";
            [
                frontend::close(b'S', name),
                parse(
                    name,
                    &format!("SELECT '{number}/' || $1::text /* {padding} */"),
                    &[],
                ),
                bind("", name, &values),
                execute("", 0),
                sync(),
            ]
            .concat()
        }
    }
}
