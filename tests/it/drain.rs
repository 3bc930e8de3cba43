//! The bounded end: `shutdown_mode = drain`, and `SHUTDOWN DRAIN`.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::frontend::{query, startup};
use crate::support::http::get;
use crate::support::pooler::Ini;
use crate::support::ports::free_port;
use crate::support::wire::error;
use crate::support::{Pooler, Wire, postgres, wait_until};

fn pooler(seconds: u32, change: impl FnOnce(&mut Ini)) -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("shutdown_mode", "drain")
            .set("drain_timeout", seconds)
            .set("default_pool_size", 2);
        change(ini);
    });
    (pooler, postgres().database("drain"))
}

/// The client is told that it has to go, and then its connection ends.
fn is_told(client: &mut Wire) {
    let message = client.read_message().expect("a farewell");
    farewell(&message);
    assert!(client.ended());
}

fn farewell(message: &crate::support::message::Message) {
    assert_eq!(message.tag, b'E');
    assert_eq!(message.field('S').as_deref(), Some("FATAL"));
    assert_eq!(message.field('C').as_deref(), Some("57P01"));
    assert_eq!(
        message.field('M').as_deref(),
        Some("terminating connection due to administrator command")
    );
}

fn begun(pooler: &Pooler) {
    wait_until("the drain has begun", || pooler.log().contains("draining"));
}

#[test]
fn silent_clients_are_told_and_the_process_ends_when_they_have_gone() {
    let (mut pooler, database) = pooler(9, |_| ());
    let mut clients: Vec<Wire> = (0..10).map(|_| pooler.connect(&database)).collect();
    for client in &mut clients {
        client.rows("SELECT 1");
    }
    let began = Instant::now();
    pooler.signal(Signal::SIGTERM);
    clients.iter_mut().for_each(is_told);
    assert!(pooler.wait().success());
    assert!(began.elapsed() < Duration::from_secs(9));
}

#[test]
fn transactions_end_and_those_that_wait_get_their_server() {
    let (mut pooler, database) = pooler(30, |ini| {
        ini.set("default_pool_size", 1);
    });
    let mut busy = pooler.connect(&database);
    let mut waits = pooler.connect(&database);
    busy.rows("BEGIN");
    busy.rows("CREATE TABLE drained (a int)");
    waits.send(&query("SELECT 'served'"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    pooler.signal(Signal::SIGTERM);
    begun(&pooler);
    assert_eq!(busy.value("SELECT 1"), "1");
    busy.rows("COMMIT");
    let replies = waits.read_until_ready();
    assert!(replies.iter().any(|message| message.tag == b'D'));
    // Neither was in the way of the other's end.
    is_told(&mut busy);
    is_told(&mut waits);
    assert!(pooler.wait().success());
    let kept = postgres().value(&database, "SELECT to_regclass('drained') IS NOT NULL");
    assert_eq!(kept, "t");
}

#[test]
fn who_never_falls_silent_is_told_behind_its_work_and_not_behind_a_look() {
    let (mut pooler, database) = pooler(6, |_| ());
    let mut client = pooler.connect(&database);
    pooler.signal(Signal::SIGTERM);
    begun(&pooler);
    let end = Instant::now() + Duration::from_secs(6);
    let told = loop {
        assert!(Instant::now() < end);
        // What pools send before they lend a connection; the farewell is found by it, or it is alive.
        client.send(&query("-- ping"));
        let first = client.read_message().expect("an answer");
        if first.tag == b'E' {
            break first;
        }
        client.read_until_ready();
        client.rows("BEGIN");
        client.rows("SELECT pg_sleep(0.01)");
        client.rows("COMMIT");
    };
    farewell(&told);
    assert!(pooler.wait().success());
    assert!(Instant::now() < end, "it went in its turn");
}

#[test]
fn what_is_left_is_ended_in_time() {
    let (mut pooler, database) = pooler(2, |_| ());
    let mut inside = pooler.connect(&database);
    let mut asks = pooler.connect(&database);
    inside.rows("BEGIN");
    asks.send(&query("SELECT pg_sleep(100)"));
    pooler.wait_for_pool(&database, "app", "cl_active", 2);
    let began = Instant::now();
    pooler.signal(Signal::SIGTERM);
    is_told(&mut inside);
    is_told(&mut asks);
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert!(pooler.wait().success());
    wait_until("no server is left", || {
        postgres().sessions(&database, "%") == 0
    });
}

#[test]
fn a_second_signal_ends_at_once() {
    let (mut pooler, database) = pooler(100, |_| ());
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    pooler.signal(Signal::SIGTERM);
    begun(&pooler);
    pooler.signal(Signal::SIGTERM);
    assert!(pooler.wait().success());
    assert!(client.ended());
}

#[test]
fn nobody_new_gets_in_and_readiness_says_so_while_the_console_stays() {
    let http = free_port();
    let (mut pooler, database) = pooler(30, |ini| {
        ini.set("http_listen", format!("127.0.0.1:{http}"))
            .set("shutdown_mode", "wait_for_clients")
            .set("unix_socket_dir", ".");
    });
    let status = || get(http, "/readyz").status;
    assert_eq!(status(), 200);
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    let mut console = pooler.open_console();
    console.rows("SHUTDOWN DRAIN 20");
    assert_eq!(status(), 503);
    let new = startup(&[("user", "app"), ("database", &database)]);
    let refused = pooler.by_socket(&new);
    assert_eq!(error(&refused).sqlstate(), "57P03");
    let text = error(&refused).field('M');
    assert_eq!(text.as_deref(), Some("the pooler is shutting down"));
    wait_until("the port is closed", || {
        TcpStream::connect_timeout(&pooler.address(), Duration::from_millis(100)).is_err()
    });
    console.rows("SHOW POOLS");
    client.rows("COMMIT");
    is_told(&mut client);
    assert!(pooler.wait().success());
    assert!(console.ended());
}

/// A client that works as a pool of connections does: it looks whether its connection lives, and takes another if not.
struct Worker {
    address: SocketAddr,
    database: String,
    connection: Option<Wire>,
}

impl Worker {
    fn work(&mut self) {
        let mut client = self.lend();
        client.rows("BEGIN");
        client.rows("INSERT INTO done VALUES (1)");
        client.rows("COMMIT");
        self.connection = Some(client);
    }

    fn lend(&mut self) -> Wire {
        if let Some(mut client) = self.connection.take() {
            let alive = client.try_send(&query("")).is_ok()
                && matches!(client.try_read_message(), Ok(Some(first)) if first.tag == b'I');
            if alive {
                client.read_until_ready();
                return client;
            }
        }
        Wire::login(self.address, "app", &self.database, None).expect("somebody lets it in")
    }
}

#[test]
fn a_rolling_restart_of_three_processes_on_one_port_fails_no_transaction() {
    let port = free_port();
    let start = || {
        let pooler = Pooler::launch(|ini| {
            ini.set("so_reuseport", 1)
                .set("listen_port", port)
                .set("shutdown_mode", "drain")
                .set("drain_timeout", 3);
        });
        wait_until("it is up", || pooler.log().contains("process up: "));
        pooler
    };
    let database = postgres().database("drain_rolling");
    let mut admin = postgres().connect(&database);
    admin.rows("CREATE TABLE done (a int); GRANT ALL ON done TO app");
    let mut poolers: Vec<Pooler> = (0..3).map(|_| start()).collect();
    let ends = AtomicBool::new(false);
    let committed = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..12_u64)
            .map(|number| {
                let mut worker = Worker {
                    address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
                    database: database.clone(),
                    connection: None,
                };
                let ends = &ends;
                scope.spawn(move || {
                    let mut done = 0_u64;
                    while !ends.load(Ordering::Relaxed) {
                        worker.work();
                        done += 1;
                        // Some connect again all the time, some pause, some never do.
                        if number % 4 == 0 && done.is_multiple_of(20) {
                            worker.connection = None;
                        } else if number % 4 == 1 {
                            std::thread::sleep(Duration::from_millis(20));
                        }
                    }
                    done
                })
            })
            .collect();
        for pooler in &mut poolers {
            pooler.signal(Signal::SIGTERM);
            assert!(pooler.wait().success());
            assert!(pooler.log().contains("drained, exiting"));
            *pooler = start();
        }
        ends.store(true, Ordering::Relaxed);
        let done = workers.into_iter().map(|worker| worker.join().unwrap());
        done.sum::<u64>()
    });
    let counted = postgres().value(&database, "SELECT count(*) FROM done");
    assert_eq!(counted, committed.to_string());
}
