//! How long a server lives: until its time is over, until it cannot be made clean, until it is found dead.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::scripted::Scripted;
use crate::support::{Pooler, Wire, eventually, frontend, postgres};

/// Ends its threads even when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn distinct(mut pids: Vec<String>) -> usize {
    pids.sort();
    pids.dedup();
    pids.len()
}

/// Dropping so many tables takes longer than a millisecond, so DISCARD ALL fails with the client's own limit.
const LEAVE_A_MESS: &str = "
    DO $$ BEGIN
        FOR number IN 1..300 LOOP
            EXECUTE format('CREATE TEMP TABLE mine_%s(a int primary key, b text)', number);
        END LOOP;
    END $$;
    SET statement_timeout = '1ms'";

#[test]
fn a_server_whose_reset_query_fails_is_not_lent_again() {
    let database = postgres().database("lifetime");
    let pooler = Pooler::start(|ini| {
        ini.set("pool_mode", "session").set("default_pool_size", 1);
    });
    for leaves in [Wire::abort, |mut client: Wire| {
        client.send(&frontend::terminate());
    }] {
        let mut first = pooler.connect(&database);
        let pid = first.value("SELECT pg_backend_pid()");
        let mut second = pooler.connect(&database);
        second.send(&frontend::query("SHOW statement_timeout"));
        pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
        first.query(LEAVE_A_MESS);
        leaves(first);
        let replies = second.read_until_ready();
        assert_eq!(crate::support::wire::rows(&replies).unwrap().only(), "0");
        assert_ne!(second.value("SELECT pg_backend_pid()"), pid);
        assert_eq!(second.value("SELECT to_regclass('mine_1') IS NULL"), "t");
    }
}

#[test]
fn with_server_lifetime_0_a_server_serves_once() {
    let database = postgres().database("lifetime");
    let pooler = Pooler::start(|ini| {
        ini.set("server_lifetime", 0).set("default_pool_size", 2);
    });
    let mut client = pooler.connect(&database);
    let pids: Vec<_> = (0..10)
        .map(|_| client.value("SELECT pg_backend_pid()"))
        .collect();
    assert_eq!(distinct(pids), 10);
    // Once is a whole transaction.
    client.rows("BEGIN");
    let pids: Vec<_> = (0..10)
        .map(|_| client.value("SELECT pg_backend_pid()"))
        .collect();
    assert_eq!(distinct(pids), 1);
    client.rows("COMMIT");
}

#[test]
fn with_server_lifetime_0_the_login_that_a_server_was_opened_for_is_not_its_use() {
    let server = Scripted::start(|_, session| {
        session.serve();
    });
    let pooler = Pooler::start(|ini| {
        ini.set("server_lifetime", 0)
            .target("once", &server.target());
    });
    let mut client = pooler.login("app", "once", None).unwrap();
    assert_eq!(client.query("SELECT").len(), 2);
    assert_eq!(server.accepted(), 1);
}

#[test]
fn with_server_lifetime_0_no_servers_are_opened_that_nobody_wants() {
    let server = Scripted::start(|_, session| {
        session.serve();
    });
    let pooler = Pooler::start(|ini| {
        ini.set("server_lifetime", 0)
            .set("default_pool_size", 4)
            .set("min_pool_size", 2)
            .set("server_check_query", "")
            .set("client_idle_timeout", 2)
            .target("once", &server.target());
    });
    let mut client = pooler.login("app", "once", None).unwrap();
    for _ in 0..20 {
        assert_eq!(client.query("SELECT").len(), 2);
    }
    // One for each query, and a few that were opened ahead: the login's, the two of the minimum, those that were
    // on their way when another came free.
    let opened = server.accepted();
    assert!(opened <= 20 + 20, "{opened} servers for 20 queries");
    // By the time it is sent away for its silence, the pool has been looked at many times.
    assert!(client.ended());
    let opened = server.accepted() - opened;
    assert!(opened <= 4, "{opened} servers for no query at all");
}

#[test]
fn server_lifetime_is_kept_while_clients_leave_a_server_no_rest() {
    let database = postgres().database("lifetime");
    let pooler = Pooler::start(|ini| {
        ini.set("server_lifetime", 1).set("default_pool_size", 1);
    });
    let (stop, pids) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = pooler.connect(&database);
                while !stop.load(Ordering::Relaxed) {
                    let pid = client.value("SELECT pg_backend_pid()");
                    let mut pids = pids.lock().unwrap();
                    if !pids.contains(&pid) {
                        pids.push(pid);
                    }
                }
            });
        }
        eventually("the server was replaced twice", || {
            (pids.lock().unwrap().len() > 2).then_some(())
        });
    });
    assert!(pooler.servers(&database, "app") <= 1);
}

#[test]
fn a_query_that_meets_a_dead_server_first_is_counted_once() {
    // Every server dies of its second check.
    let server = Scripted::start(|_, session| {
        session.accept_login();
        let mut checks = 0;
        while let Some((_, text)) = session.read_message() {
            checks += u32::from(text.starts_with(b"CHECK"));
            if checks > 1 {
                return;
            }
            session.complete("SELECT 0");
            session.ready(b'I');
        }
    });
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1)
            .set("server_check_query", "CHECK")
            .set("server_check_delay", 0)
            .target("dying", &server.target());
    });
    let mut client = pooler.login("app", "dying", None).unwrap();
    for _ in 0..6 {
        assert_eq!(client.query("SELECT").len(), 2);
    }
    assert!(server.accepted() > 2, "servers have died");
    for column in [
        "total_query_count",
        "total_xact_count",
        "total_server_assignment_count",
    ] {
        assert_eq!(pooler.stat("dying", column), 6, "{column}");
    }
}

#[test]
fn a_server_terminated_behind_our_back_costs_no_query() {
    let database = postgres().database("lifetime");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1).set("server_check_delay", 0);
    });
    let mut client = pooler.connect(&database);
    let mut direct = postgres().connect("postgres");
    for _ in 0..5 {
        let pid = client.value("SELECT pg_backend_pid()");
        direct.rows(&format!("SELECT pg_terminate_backend({pid}, 5000)"));
        assert_ne!(client.value("SELECT pg_backend_pid()"), pid);
    }
    assert_eq!(pooler.stat(&database, "total_query_count"), 10);
}
