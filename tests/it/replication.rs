//! Replication clients: each has a server of its own, which counts, is shown, and goes with it.

use std::process::Command;

use crate::support::frontend;
use crate::support::postgres::{binaries, password};
use crate::support::process;
use crate::support::{Pooler, Wire, postgres, wait_until};

fn pooler(size: u32) -> Pooler {
    Pooler::start(|ini| {
        ini.set("default_pool_size", size);
    })
}

/// A program of PostgreSQL's, on its way to the pooler.
fn program(name: &str, pooler: &Pooler) -> Command {
    let mut command = process::command(binaries().join(name), postgres().directory());
    command
        .args(["-h", "127.0.0.1", "-U", "postgres", "-p"])
        .arg(pooler.address().port().to_string());
    command
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn replica(pooler: &Pooler, database: &str) -> Wire {
    let parameters = [
        ("user", "postgres"),
        ("database", database),
        ("replication", "database"),
        ("application_name", "replica"),
    ];
    Wire::login_with(pooler.address(), &parameters, Some(&password("postgres")))
        .unwrap_or_else(|refusal| panic!("login: {refusal:?}"))
}

/// The values of a column of SHOW CLIENTS or SHOW SERVERS for those that replicate.
fn replicating(pooler: &Pooler, command: &str, column: &str) -> Vec<String> {
    let rows = pooler.console(command);
    (0..rows.rows.len())
        .filter(|row| rows.get(*row, "replication") != "none")
        .map(|row| rows.get(row, column))
        .collect()
}

#[test]
fn a_base_backup_with_its_log_comes_through() {
    let pooler = pooler(4);
    // It goes with the pooler.
    let target = pooler.directory().join("backup");
    succeeds(
        program("pg_basebackup", &pooler)
            .args(["-c", "fast", "-D"])
            .arg(&target),
    );
    assert!(target.join("backup_manifest").exists());
    succeeds(Command::new(binaries().join("pg_verifybackup")).arg(&target));
    wait_until("its servers are closed", || {
        replicating(&pooler, "SHOW SERVERS", "id").is_empty()
    });
}

#[test]
fn logical_changes_stream_to_the_end_that_was_asked_for() {
    let pooler = pooler(4);
    let database = postgres().database("logical");
    let slot = format!("slot_{database}");
    let recv = || {
        let mut command = program("pg_recvlogical", &pooler);
        command.args(["-d", &database, "--slot", &slot]);
        command
    };
    succeeds(recv().args(["--create-slot", "-P", "test_decoding"]));
    postgres().sql(&database, "create table t as select 'streamed' as word");
    postgres().sql(&database, "insert into t values ('twice')");
    let end = postgres().value(&database, "select pg_current_wal_insert_lsn()");
    let out = succeeds(recv().args(["--start", "--endpos", &end, "-f", "-"]));
    assert!(out.contains("'twice'"), "{out}");
    succeeds(recv().arg("--drop-slot"));
}

#[test]
fn each_has_a_server_of_its_own_that_is_shown_and_closed_with_it() {
    let pooler = pooler(4);
    let database = postgres().database("replica");
    let mut client = replica(&pooler, &database);
    assert_eq!(client.rows("IDENTIFY_SYSTEM").rows.len(), 1);
    assert_eq!(client.value("show application_name"), "replica");
    for show in ["SHOW CLIENTS", "SHOW SERVERS"] {
        assert_eq!(replicating(&pooler, show, "replication"), ["logical"]);
        assert_eq!(replicating(&pooler, show, "state"), ["active"]);
    }
    let mut ordinary = pooler.login("postgres", &database, None).unwrap();
    let pid = ordinary.value("select pg_backend_pid()");
    assert!(!replicating(&pooler, "SHOW SERVERS", "remote_pid").contains(&pid));
    drop(client);
    wait_until("its server is closed", || {
        replicating(&pooler, "SHOW SERVERS", "id").is_empty()
    });
    assert_eq!(ordinary.value("select pg_backend_pid()"), pid);
}

#[test]
fn it_counts_in_the_pool_and_an_idle_server_makes_room_for_it() {
    let pooler = pooler(1);
    let database = postgres().database("replica");
    let mut ordinary = pooler.login("postgres", &database, None).unwrap();
    let pid = ordinary.value("select pg_backend_pid()");
    let mut client = replica(&pooler, &database);
    assert_eq!(client.rows("IDENTIFY_SYSTEM").rows.len(), 1);
    assert_eq!(pooler.servers(&database, "postgres"), 1);
    // The other has to wait until the place is free again.
    ordinary.send(&frontend::query("select pg_backend_pid()"));
    pooler.wait_for_pool(&database, "postgres", "cl_waiting", 1);
    drop(client);
    let replies = ordinary.read_until_ready();
    let other = crate::support::wire::rows(&replies).unwrap().only();
    assert_ne!(other, pid);
}

#[test]
fn reconnect_and_kill_end_it_with_a_word() {
    let pooler = pooler(4);
    let database = postgres().database("replica");
    for (command, words) in [
        ("RECONNECT", "database configuration changed"),
        ("KILL_CLIENT", "admin forced disconnect"),
    ] {
        let mut client = replica(&pooler, &database);
        let command = match command {
            "KILL_CLIENT" => {
                format!(
                    "KILL_CLIENT {}",
                    replicating(&pooler, "SHOW CLIENTS", "ptr")[0]
                )
            }
            other => other.to_owned(),
        };
        pooler.console(&command);
        let message = client.read_message().unwrap();
        assert_eq!(message.field('M').as_deref(), Some(words));
        assert!(client.ended());
        wait_until("its server is closed", || {
            replicating(&pooler, "SHOW SERVERS", "id").is_empty()
        });
    }
}

#[test]
fn a_refused_one_is_told_that_the_login_failed() {
    let pooler = pooler(4);
    let database = postgres().database("replica");
    let parameters = [
        ("user", "app"),
        ("database", &*database),
        ("replication", "database"),
    ];
    let refusal = Wire::login_with(pooler.address(), &parameters, None)
        .err()
        .unwrap();
    assert!(
        refusal.text().contains("login failed"),
        "{}",
        refusal.text()
    );
    // The server, and the client.
    let line = "closing because: login failed (age=";
    assert_eq!(pooler.log().matches(line).count(), 2);
    let mut ordinary = pooler.connect(&database);
    assert_eq!(ordinary.value("select 1"), "1");
}
