//! Clients that replicate: a server of their own, and COPY in both directions.

use crate::support::postgres::binaries;
use crate::support::process::{command, directory};
use crate::support::wire::{self, error};
use crate::support::{Message, Pooler, Wire, frontend, postgres, wait_until};

fn replicates(pooler: &Pooler, kind: &str, database: &str) -> Wire {
    let parameters = [
        ("user", "postgres"),
        ("database", database),
        ("replication", kind),
        ("application_name", "replica"),
        ("options", "-c geqo=off"),
    ];
    Wire::login_with(pooler.address(), &parameters, None)
        .unwrap_or_else(|refusal| panic!("{refusal:?}"))
}

fn pooler() -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 2);
        ini.set("query_timeout", "0.5");
    });
    (pooler, postgres().database("replication"))
}

/// Messages up to the first CopyData of WAL.
fn first_change(client: &mut Wire) -> Message {
    loop {
        let message = client.read_message().unwrap();
        match message.tag {
            b'd' if message.body.first() == Some(&b'w') => return message,
            b'd' | b'N' | b'S' => {}
            _ => panic!("{message:?}"),
        }
    }
}

#[test]
fn physical_replication_streams_until_the_client_ends_it() {
    let (pooler, database) = pooler();
    let mut client = replicates(&pooler, "yes", &database);
    let system = client.rows("IDENTIFY_SYSTEM");
    let position = system.get(0, "xlogpos");
    client.send(&frontend::query(&format!(
        "START_REPLICATION PHYSICAL {position}"
    )));
    assert_eq!(client.read_message().unwrap().tag, b'W');
    postgres().sql(&database, "CREATE TABLE t AS SELECT 1 AS a");
    first_change(&mut client);
    let clients = pooler.console("SHOW CLIENTS");
    let row = clients.find("replication", "physical").unwrap();
    assert_eq!(clients.get(row, "state"), "active");
    let servers = pooler.console("SHOW SERVERS");
    assert!(servers.find("replication", "physical").is_some());
    // `query_timeout` ends others and not this one.
    let mut ordinary = pooler.connect(&database);
    let replies = ordinary.query("SELECT pg_sleep(60)");
    assert_eq!(error(&replies).field('M').as_deref(), Some("query timeout"));
    client.send(&frontend::copy_done());
    let replies = client.read_until_ready();
    assert!(replies.iter().any(|message| message.tag == b'c'));
    assert_eq!(client.status, b'I');
    client.rows("IDENTIFY_SYSTEM");
    drop(client);
    wait_until("its server is gone", || {
        let servers = pooler.console("SHOW SERVERS");
        servers.find("replication", "physical").is_none()
    });
    assert!(pooler.log().contains("replication=yes"));
}

#[test]
fn logical_replication_sends_changes_and_ends_with_the_client() {
    let (pooler, database) = pooler();
    postgres().sql(&database, "CREATE TABLE t (a int)");
    postgres().sql(&database, "CREATE PUBLICATION p FOR TABLE t");
    let mut client = replicates(&pooler, "database", &database);
    assert_eq!(client.value("SHOW geqo"), "off");
    assert_eq!(client.value("SHOW application_name"), "replica");
    client.rows("CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput");
    client.send(&frontend::query(
        "START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')",
    ));
    assert_eq!(client.read_message().unwrap().tag, b'W');
    postgres().sql(&database, "INSERT INTO t VALUES (7)");
    first_change(&mut client);
    // It leaves in the middle of it, and so does its server.
    drop(client);
    wait_until("its server is gone", || {
        postgres().sessions(&database, "%") == 0
    });
    wait_until("it is said", || {
        pooler
            .log()
            .contains("closing because: replication client was closed")
    });
}

#[test]
fn it_takes_a_place_in_the_pool_and_gives_it_back() {
    let (pooler, database) = pooler();
    let mut ordinary: Vec<Wire> = (0..2)
        .map(|_| pooler.login("postgres", &database, None).unwrap())
        .collect();
    for client in &mut ordinary {
        client.rows("BEGIN");
    }
    for client in &mut ordinary {
        client.rows("COMMIT");
    }
    assert_eq!(postgres().sessions(&database, "%"), 2);
    let mut client = replicates(&pooler, "database", &database);
    wait_until("an idle server has made room", || {
        postgres().sessions(&database, "%") == 2
    });
    ordinary[0].rows("BEGIN");
    ordinary[1].send(&frontend::query("SELECT 'later'"));
    pooler.wait_for_pool(&database, "postgres", "cl_waiting", 1);
    client.rows("IDENTIFY_SYSTEM");
    // RECONNECT ends it at once.
    pooler.console("RECONNECT");
    let farewell = client.read_message().unwrap();
    assert_eq!(
        farewell.field('M').as_deref(),
        Some("database configuration changed")
    );
    let replies = ordinary[1].read_until_ready();
    assert_eq!(wire::rows(&replies).unwrap().only(), "later");
    ordinary[0].rows("COMMIT");
}

#[test]
fn pg_basebackup_works_through_the_pooler() {
    let (pooler, _) = pooler();
    let target = directory();
    let program = binaries().join("pg_basebackup");
    let port = pooler.address().port().to_string();
    let made = command(program, &target)
        .args([
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "-U",
            "postgres",
            "-X",
            "stream",
        ])
        .args(["-c", "fast", "-D", "copy"])
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    assert!(target.join("copy/PG_VERSION").exists());
    std::fs::remove_dir_all(target).unwrap();
}
