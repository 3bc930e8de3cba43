//! A cancel request reaches the query of the client that asked, and nobody else's.

use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::scripted::Scripted;
use crate::support::wire::error;
use crate::support::{Message, Pooler, Wire, frontend, postgres, wait_until};

fn pooler(servers: usize) -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", servers);
    });
    (pooler, postgres().database("cancel"))
}

/// Sends a cancel request and waits for the pooler to hang up, which is all the answer there is.
fn cancel(pooler: &Pooler, pid: u32, key: &[u8]) {
    let mut wire = Wire::connect(pooler.address()).unwrap();
    wire.send(&frontend::cancel(pid, key));
    assert!(wire.ended());
}

#[test]
fn one_that_cannot_be_passed_on_in_time_is_given_up_with_a_line_in_the_log() {
    let server = Scripted::start(|number, session| {
        if number == 0 {
            session.accept_login();
            session.read_until(b'Q');
        }
        session.hang();
    });
    let pooler = Pooler::start(|ini| {
        ini.set("cancel_wait_timeout", 1)
            .set("follow_functions", 0)
            .target("endless", &server.target());
    });
    let mut client = pooler.connect("endless");
    client.send(&frontend::query("SELECT"));
    pooler.wait_for_pool("endless", "app", "sv_active", 1);
    cancel(&pooler, client.pid, &client.key);
    let line = "closing because: cancel_wait_timeout (age=1s)";
    assert!(pooler.log().contains(line));
}

fn wait_until_it_sleeps(database: &str, sessions: usize) {
    wait_until("the query runs", || {
        postgres().sessions(database, "active") == sessions
    });
}

#[test]
fn it_ends_the_running_query_and_the_session_goes_on() {
    let (pooler, database) = pooler(2);
    let mut client = pooler.connect(&database);
    let mut other = pooler.connect(&database);
    for _ in 0..3 {
        client.send(&frontend::query("SELECT pg_sleep(60)"));
        other.send(&frontend::query("SELECT pg_sleep(0.5), 'finished'"));
        wait_until_it_sleeps(&database, 2);
        cancel(&pooler, client.pid, &client.key);
        assert_eq!(error(&client.read_until_ready()).sqlstate(), "57014");
        assert_eq!(client.value("SELECT 'goes on'"), "goes on");
        let replies = other.read_until_ready();
        assert!(
            replies.iter().all(|message| message.tag != b'E'),
            "{replies:?}"
        );
    }
}

#[test]
fn it_works_inside_a_transaction() {
    let (pooler, database) = pooler(1);
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    client.send(&frontend::query("SELECT pg_sleep(60)"));
    wait_until_it_sleeps(&database, 1);
    cancel(&pooler, client.pid, &client.key);
    assert_eq!(error(&client.read_until_ready()).sqlstate(), "57014");
    assert_eq!(client.status, b'E');
    client.rows("ROLLBACK");
    assert_eq!(client.value("SELECT 1"), "1");
}

#[test]
fn a_wrong_key_does_nothing() {
    let (pooler, database) = pooler(1);
    let mut client = pooler.connect(&database);
    client.send(&frontend::query("SELECT pg_sleep(0.5), 'finished'"));
    wait_until_it_sleeps(&database, 1);
    let mut wrong = client.key.clone();
    wrong[0] ^= 1;
    cancel(&pooler, client.pid, &wrong);
    cancel(&pooler, client.pid.wrapping_add(1), &client.key);
    cancel(&pooler, client.pid, &[]);
    cancel(
        &pooler,
        client.pid,
        &[client.key.clone(), vec![0; 300]].concat(),
    );
    let replies = client.read_until_ready();
    assert!(
        replies.iter().all(|message| message.tag != b'E'),
        "{replies:?}"
    );
}

#[test]
fn keys_differ_between_clients() {
    let (pooler, database) = pooler(1);
    let mut keys: Vec<_> = (0..20)
        .map(|_| pooler.connect(&database))
        .map(|client| (client.pid, client.key.clone()))
        .collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 20);
}

#[test]
fn a_late_one_never_hits_the_servers_next_user() {
    let (pooler, database) = pooler(1);
    let mut late = pooler.connect(&database);
    let mut next = pooler.connect(&database);
    for _ in 0..20 {
        late.rows("SELECT 1");
        next.send(&frontend::query("SELECT pg_sleep(0.05)"));
        cancel(&pooler, late.pid, &late.key);
        let replies = next.read_until_ready();
        assert!(
            replies.iter().all(|message| message.tag != b'E'),
            "{replies:?}"
        );
    }
}

#[test]
fn a_race_between_a_cancel_and_the_end_of_its_query_harms_no_stranger() {
    let (pooler, database) = pooler(2);
    let end = Instant::now() + Duration::from_secs(3);
    thread::scope(|scope| {
        for _ in 0..4 {
            let (pooler, database) = (&pooler, &database);
            scope.spawn(move || {
                let mut client = pooler.connect(database);
                while Instant::now() < end {
                    client.send(&frontend::query("SELECT pg_sleep(0.003)"));
                    let mut wire = Wire::connect(pooler.address()).unwrap();
                    wire.send(&frontend::cancel(client.pid, &client.key));
                    let replies = client.read_until_ready();
                    let errors = replies.iter().filter(|message| message.tag == b'E');
                    assert!(errors.map(Message::sqlstate).all(|code| code == "57014"));
                }
            });
            scope.spawn(move || {
                let mut stranger = pooler.connect(database);
                while Instant::now() < end {
                    let replies = stranger.query("SELECT pg_sleep(0.002), 'mine'");
                    assert!(
                        replies.iter().all(|message| message.tag != b'E'),
                        "{replies:?}"
                    );
                }
            });
        }
    });
    assert_eq!(pooler.connect(&database).value("SELECT 'fine'"), "fine");
}

#[test]
fn a_query_that_waits_for_a_server_can_be_cancelled() {
    let (pooler, database) = pooler(1);
    let mut holding = pooler.connect(&database);
    holding.rows("BEGIN");
    let mut waiting = pooler.connect(&database);
    waiting.send(&frontend::query("SELECT 1"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    cancel(&pooler, waiting.pid, &waiting.key);
    assert_eq!(error(&waiting.read_until_ready()).sqlstate(), "57014");
    assert_eq!(pooler.pool(&database, "app").get("cl_waiting"), 0);
    assert_eq!(holding.value("SELECT 'undisturbed'"), "undisturbed");
    holding.rows("COMMIT");
    assert_eq!(waiting.value("SELECT 'later'"), "later");
}

#[test]
fn a_client_of_protocol_3_2_cancels_with_the_key_it_was_given() {
    let (pooler, database) = pooler(1);
    let mut client = Wire::connect(pooler.address()).unwrap();
    let parameters = [("user", "app"), ("database", database.as_str())];
    client.send(&frontend::startup_of_version(0x0003_0002, &parameters));
    let greeting = client.read_until_ready();
    let data = greeting
        .iter()
        .find(|message| message.tag == b'K')
        .expect("BackendKeyData");
    let pid = u32::from_be_bytes(data.body[..4].try_into().unwrap());
    client.send(&frontend::query("SELECT pg_sleep(60)"));
    wait_until_it_sleeps(&database, 1);
    cancel(&pooler, pid, &data.body[4..]);
    assert_eq!(error(&client.read_until_ready()).sqlstate(), "57014");
}

#[test]
fn who_asks_is_hung_up_on_when_the_request_is_through() {
    let (events, happened) = mpsc::channel();
    let (proceed, may_proceed) = mpsc::channel::<()>();
    let (events, may_proceed) = (Mutex::new(events), Mutex::new(may_proceed));
    let server = Scripted::start(move |number, session| {
        let tell = |what: &'static str| events.lock().unwrap().send(what).unwrap();
        if number == 0 {
            session.accept_login();
            session.read_until(b'Q');
            tell("a query");
            session.hang();
        } else {
            session.read_startup();
            tell("a request");
            may_proceed.lock().unwrap().recv().unwrap();
        }
    });
    let pooler = Pooler::start(|ini| {
        // Its first query is to be the client's.
        ini.set("follow_functions", 0)
            .target("scripted", &server.target());
    });
    let mut client = pooler.connect("scripted");
    client.send(&frontend::query("SELECT 1"));
    assert_eq!(happened.recv().unwrap(), "a query");
    let mut wire = Wire::connect(pooler.address()).unwrap();
    wire.send(&frontend::cancel(client.pid, &client.key));
    assert_eq!(happened.recv().unwrap(), "a request");
    wire.patience(Duration::from_millis(200));
    assert!(wire.try_read_message().is_err(), "nothing comes yet");
    wire.patience(Duration::from_secs(20));
    proceed.send(()).unwrap();
    assert!(wire.ended());
}
