//! "Is this my uuid?": everybody asks only for what is its own, by every protocol, while some are
//! killed, cancel, or wait too long. One wrong answer is one too many.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::frontend::{bind, execute, parse, query, sync};
use crate::support::wire::rows;
use crate::support::{Message, Pooler, Wire, eventually, frontend, postgres, wait_until};

const CLIENTS: u64 = 100;
const TIME: Duration = Duration::from_secs(10);

/// What one asks for: no two are the same in a run.
fn unique(client: u64, turn: u64) -> String {
    format!(
        "{:016x}-{:08x}-{turn:08x}",
        client.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        client
    )
}

/// Draws numbers; the run need not be the same each time, only mixed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// One of the ways to ask for `mine`; a query takes up to 4 ms, so that the queue is never empty. `None`: a cancel request
/// that was meant for an earlier query has come in time for the first of two round trips.
fn ask(client: &mut Wire, way: u64, mine: &str, pause: u64) -> Option<Vec<u8>> {
    let sleep = format!("pg_sleep(0.00{pause})");
    let value = [Some(mine.as_bytes().to_vec())];
    let sql = format!("SELECT $1::text FROM {sleep}");
    let request = match way {
        0 => query(&format!("SELECT '{mine}' FROM {sleep}")),
        1 => [
            parse("", &sql, &[]),
            bind("", "", &value),
            execute("", 0),
            sync(),
        ]
        .concat(),
        2 => {
            let name = format!("s{pause}");
            [
                frontend::close(b'S', &name),
                parse(&name, &sql, &[]),
                bind("", &name, &value),
                execute("", 0),
                sync(),
            ]
            .concat()
        }
        3 => {
            // Two round trips, as DescribeExec makes.
            client.send_all(&[parse("", &sql, &[]), frontend::describe(b'S', ""), sync()]);
            let failed = rows(&client.read_until_ready()).err();
            if failed.is_some_and(|error| error.sqlstate() == "57014") {
                return None;
            }
            [bind("", "", &value), execute("", 0), sync()].concat()
        }
        _ => query(&format!("BEGIN; SELECT '{mine}' FROM {sleep}; COMMIT")),
    };
    Some(request)
}

/// Logs in; on a slow machine the first server may be longer in coming than a client may wait.
fn enter(pooler: &Pooler, database: &str) -> Wire {
    eventually("a login", || pooler.login("app", database, None).ok())
}

fn values(replies: &[Message]) -> Vec<String> {
    replies
        .iter()
        .filter(|message| message.tag == b'D')
        .map(|row| row.values()[0].clone().unwrap())
        .collect()
}

/// Asks until the time is up; counts answers. Waiting too long and being cancelled are no failures.
fn storm(pooler: &Pooler, database: &str, number: u64, answers: &AtomicU64) {
    let mut dice = Dice(number.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    let end = Instant::now() + TIME;
    let mut client = enter(pooler, database);
    let mut turn = 0;
    while Instant::now() < end {
        turn += 1;
        let mine = unique(number, turn);
        let way = dice.roll(5);
        let Some(request) = ask(&mut client, way, &mine, dice.roll(5)) else {
            continue;
        };
        match dice.roll(60) {
            0 => {
                // Dies with the request half sent, or sent and not answered.
                let cut = usize::try_from(dice.roll(request.len() as u64 + 1)).unwrap();
                let _ = client.try_send(&request[..cut]);
                client.abort();
                client = enter(pooler, database);
                continue;
            }
            1 => {
                let _ = client.try_send(&request);
                let mut cancel = Wire::connect(pooler.address()).unwrap();
                cancel.send(&frontend::cancel(client.pid, &client.key));
            }
            _ => {
                let _ = client.try_send(&request);
            }
        }
        let replies = client.read_until_ready();
        if replies.is_empty() && way == 3 {
            // Sent away in the first of its two round trips.
            client = enter(pooler, database);
            continue;
        }
        for value in values(&replies) {
            assert_eq!(value, mine, "another client's answer");
            answers.fetch_add(1, Ordering::Relaxed);
        }
        let failed = rows(&replies).err();
        let code = failed.as_ref().map(Message::sqlstate).unwrap_or_default();
        assert!(
            failed.is_none() || ["57014", "08P01"].contains(&code.as_str()),
            "{failed:?}"
        );
        if replies.last().is_none_or(|last| last.tag != b'Z') {
            client = enter(pooler, database); // query_wait_timeout
        }
    }
}

#[test]
fn nobody_ever_gets_anothers_answer() {
    let database = postgres().database("uuid");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 5)
            .set("query_wait_timeout", "0.2")
            .set("max_prepared_statements", 3);
    });
    let answers = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (pooler, database, answers) = (&pooler, &database, &answers);
            scope.spawn(move || storm(pooler, database, number, answers));
        }
    });
    let answers = answers.load(Ordering::Relaxed);
    assert!(answers > 1000, "only {answers} answers");
    wait_until("no session is left in a transaction", || {
        postgres().sessions(&database, "active") + postgres().sessions(&database, "idle in%") == 0
    });
    let sessions = postgres().sessions(&database, "%");
    assert!(sessions <= 5, "{sessions} servers");
}
