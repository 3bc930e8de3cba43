//! Servers that are not to be had: what those who wait are told, and what the log says.

use crate::support::scripted::Scripted;
use crate::support::wire::refusal;
use crate::support::{Pooler, frontend, postgres, wait_until};

fn closings(pooler: &Pooler, reason: &str) -> usize {
    pooler
        .log()
        .matches(&format!("closing because: {reason} (age="))
        .count()
}

#[test]
fn query_timeout_holds_for_a_login_that_waits_for_the_first_server() {
    let silent = Scripted::start(|_, session| session.hang());
    let pooler = Pooler::start(|ini| {
        ini.set("query_timeout", 1)
            .set("server_connect_timeout", "0.5")
            .target("silent", &silent.target());
    });
    assert_eq!(
        refusal(pooler.login("app", "silent", None)),
        "query_timeout"
    );
    // It took our connection, so it is not the network that failed.
    assert!(closings(&pooler, "connect timeout") >= 1);
    assert_eq!(closings(&pooler, "connect failed"), 0);
}

#[test]
fn a_host_that_is_passed_over_has_its_line_in_the_log() {
    let port = postgres().port();
    let pooler = Pooler::start(|ini| {
        let hosts = format!("host=no-such-host.invalid,127.0.0.1 port={port} dbname=postgres");
        ini.target("several", &format!("{hosts} load_balance_hosts=disable"));
    });
    assert_eq!(pooler.connect("several").value("SELECT 1"), "1");
    let line = format!(
        ": several/app@no-such-host.invalid:{port} closing because: server DNS lookup failed (age="
    );
    assert_eq!(pooler.log().matches(&line).count(), 1);
}

#[test]
fn a_refused_login_is_told_to_those_who_wait_though_an_outdated_server_is_in_use() {
    let server = Scripted::start(|number, session| {
        if number > 0 {
            session.read_startup();
            session.error("FATAL", "28P01", "not with this password");
            return;
        }
        session.accept_login();
        while session.read_until(b'Q') {
            session.complete("BEGIN");
            session.ready(b'T');
        }
    });
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 2)
            .set("follow_functions", 0)
            .set("server_check_query", "")
            .target("changed", &server.target());
    });
    let (mut inside, mut waiting) = (pooler.connect("changed"), pooler.connect("changed"));
    inside.query("BEGIN");
    pooler.console("RECONNECT");
    waiting.send(&frontend::query("SELECT 1"));
    let reply = waiting.read_message().unwrap();
    assert_eq!(reply.field('M').as_deref(), Some("not with this password"));
    assert_eq!(reply.sqlstate(), "28P01");
    // The server, and the client.
    assert_eq!(closings(&pooler, "not with this password"), 2);
    assert_eq!(inside.query("SELECT 1").len(), 2, "it goes on");
}

#[test]
fn servers_that_a_reload_outdates_go_with_pgbouncers_reason() {
    let database = postgres().database("outdated");
    let mut pooler = Pooler::start(|ini| {
        ini.database(&database, "");
    });
    pooler.connect(&database).rows("SELECT 1");
    pooler.reconfigure(|ini| {
        ini.database(&database, "connect_query='SELECT 1'");
    });
    let line = format!(": {database}/app@127.0.0.1:{}", postgres().port());
    wait_until("the server goes", || {
        pooler.log().contains(&format!(
            "{line} closing because: database configuration changed (age="
        ))
    });
}

#[test]
fn an_auth_query_that_gets_no_server_is_told_why() {
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "md5")
            .set("auth_user", "postgres")
            .no_secret("app");
        ini.target("reserved", "host=127.0.0.1 auth_dbname=pgbouncer");
    });
    assert_eq!(
        refusal(pooler.login("app", "no_such_database_here", Some("x"))),
        "database \"no_such_database_here\" does not exist"
    );
    // The console is no database that can be asked; clients are not told more than that something is wrong.
    assert_eq!(
        refusal(pooler.login("app", "reserved", Some("x"))),
        "bouncer config error"
    );
    let line = "cannot use the reserved \"pgbouncer\" database as an auth_dbname";
    assert!(pooler.log().contains(line));
}
