//! Errors while a client waits for a server, and what it is told meanwhile.

use super::{Findings, end, fatal, fields, said, shown};
use crate::support::pooler::is_pgbouncer;
use crate::support::scripted::{Scripted, Session};
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

/// A pooler with one server, which is taken, and a client that waits for it while these settings hold.
fn waiting(settings: &[(&str, &str)]) -> (Pooler, Wire, Wire) {
    let database = postgres().database("waiting");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    let mut holder = pooler.connect(&database);
    holder.rows("BEGIN");
    // Only now, so that it is not the first login that takes too long.
    for (key, value) in settings {
        pooler.console(&format!("SET {key} = '{value}'"));
    }
    let mut client = pooler.connect(&database);
    client.send(&frontend::query("SELECT 1"));
    (pooler, holder, client)
}

#[test]
fn who_waits_too_long_is_told_by_which_limit() {
    let mut findings = Findings::default();
    for setting in ["query_wait_timeout", "query_timeout"] {
        let (_pooler, _holder, mut client) = waiting(&[(setting, "0.5")]);
        findings.compare(setting, end(&mut client), fatal(setting));
    }
    findings.report();
}

#[test]
fn who_waits_while_it_shuts_down_is_told() {
    let (pooler, holder, mut client) = waiting(&[]);
    wait_until("it waits", || {
        let clients = pooler.console("SHOW CLIENTS");
        clients.find("state", "waiting").is_some()
    });
    pooler.console("SHUTDOWN WAIT_FOR_SERVERS");
    assert_eq!(end(&mut client), fatal("server shutting down"));
    drop(holder);
}

#[test]
fn who_waits_is_told_once() {
    if is_pgbouncer() {
        // It has this since 1.25.
        return;
    }
    let (_pooler, _holder, mut client) =
        waiting(&[("query_wait_notify", "1"), ("query_wait_timeout", "2.5")]);
    let notice = client.read_message().unwrap();
    let text = "No server connection available in postgres backend, client being queued";
    assert_eq!(
        (notice.tag, shown(&notice)),
        (b'N', fields("NOTICE", "00000", text))
    );
    let next = client.read_message().unwrap();
    assert_eq!(
        (next.tag, shown(&next)),
        (b'E', fatal("query_wait_timeout"))
    );
    assert_eq!(client.read_message(), None);
}

#[test]
fn a_login_is_greeted() {
    if is_pgbouncer() {
        // The same.
        return;
    }
    let pooler = Pooler::start(|ini| {
        ini.set("login_notify_message", "be kind");
    });
    let mut client = said(
        &pooler,
        &frontend::startup(&[("user", "app"), ("database", "postgres")]),
    );
    let welcome = client.read_until(b'Z');
    let place = welcome
        .iter()
        .position(|message| message.tag == b'N')
        .unwrap();
    assert_eq!(shown(&welcome[place]), fields("NOTICE", "00000", "be kind"));
    assert_eq!(place + 2, welcome.len(), "right before ReadyForQuery");
}

#[test]
fn who_begins_to_wait_for_a_server_that_is_gone_is_told_why() {
    // A pooler as the server: it can be made to go.
    let server = Pooler::start(|_| ());
    let database = postgres().database("waiting");
    let target = format!(
        "host=127.0.0.1 port={} dbname={database}",
        server.address().port()
    );
    let pooler = Pooler::start(|ini| {
        ini.target("gone", &target);
    });
    let (mut first, mut second) = (pooler.connect("gone"), pooler.connect("gone"));
    first.rows("SELECT 1");
    drop(server);
    wait_until("the server is closed", || {
        pooler.console("SHOW SERVERS").rows.is_empty()
    });
    first.send(&frontend::query("SELECT 1"));
    wait_until("it was tried again", || {
        pooler.log().contains("connect failed")
    });
    second.send(&frontend::query("SELECT 1"));
    let text = "server login has been failing, cached error: connect failed (server_login_retry)";
    assert_eq!(end(&mut second), fatal(text));
}

/// A server that asks for SCRAM and then does this.
fn scram(mechanism: &'static str, then: fn(&mut Session)) -> Scripted {
    Scripted::start(move |_, session| {
        session.read_startup();
        let mut body = vec![0, 0, 0, 10];
        body.extend(mechanism.as_bytes());
        body.extend([0, 0]);
        session.send(&frontend::message(b'R', &body));
        then(session);
        session.hang();
    })
}

/// Goes along with the exchange, and proves nothing.
fn prove_nothing(session: &mut Session) {
    let Some((_, first)) = session.read_message() else {
        return;
    };
    let first = String::from_utf8_lossy(&first).into_owned();
    let nonce = first.split("r=").nth(1).unwrap_or_default();
    let answer = |kind: u8, text: &str| {
        let mut body = vec![0, 0, 0, kind];
        body.extend(text.as_bytes());
        frontend::message(b'R', &body)
    };
    session.send(&answer(11, &format!("r={nonce}more,s=c2FsdHNhbHQ=,i=4096")));
    session.read_message();
    let signature = "v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    session.send(&answer(12, signature));
}

#[test]
fn a_login_at_the_server_that_cannot_be_done_is_told() {
    let (foreign, liar) = (
        scram("SCRAM-SHA-1", |_| ()),
        scram("SCRAM-SHA-256", prove_nothing),
    );
    let pooler = Pooler::start(|ini| {
        ini.secret("scram_user", "md500000000000000000000000000000000")
            .target("foreign", &foreign.target())
            .target("liar", &liar.target());
    });
    let login = |user: &str, database: &str| {
        end(&mut said(
            &pooler,
            &frontend::startup(&[("user", user), ("database", database)]),
        ))
    };
    let mut findings = Findings::default();
    let text = "server login failed: wrong password type";
    findings.compare(
        "an md5 secret",
        login("scram_user", "postgres"),
        fatal(text),
    );
    let text =
        "server login failed: none of the server's SASL authentication mechanisms are supported";
    findings.compare("another mechanism", login("app", "foreign"), fatal(text));
    let text = "server login failed: invalid server signature";
    findings.compare("a wrong signature", login("app", "liar"), fatal(text));
    findings.report();
}
