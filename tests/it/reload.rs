//! A changed file takes effect without a restart; a bad one changes nothing.

use crate::support::wire::error;
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

fn pooler() -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    (pooler, postgres().database("reload"))
}

fn setting(pooler: &Pooler, key: &str) -> String {
    let rows = pooler.console("SHOW CONFIG");
    rows.get(rows.find("key", key).unwrap(), "value")
}

#[test]
fn sighup_makes_a_pool_larger_while_clients_wait() {
    let (mut pooler, database) = pooler();
    let mut holding = pooler.connect(&database);
    holding.rows("BEGIN");
    let mut waiting = pooler.connect(&database);
    waiting.send(&frontend::query("SELECT 'served'"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    pooler.rewrite(|ini| {
        ini.set("default_pool_size", 2);
    });
    pooler.reload();
    assert_eq!(waiting.read_until_ready().len(), 4);
    assert_eq!(setting(&pooler, "default_pool_size"), "2");
}

#[test]
fn sighup_makes_a_pool_smaller() {
    let (mut pooler, database) = pooler();
    pooler.reconfigure(|ini| {
        ini.set("default_pool_size", 4);
    });
    let mut clients: Vec<Wire> = (0..4).map(|_| pooler.connect(&database)).collect();
    for client in &mut clients {
        client.rows("BEGIN");
    }
    for client in &mut clients {
        client.rows("COMMIT");
    }
    assert_eq!(postgres().sessions(&database, "%"), 4);
    pooler.rewrite(|ini| {
        ini.set("default_pool_size", 1);
    });
    pooler.reload();
    wait_until("one server is left", || {
        postgres().sessions(&database, "%") == 1
    });
    assert_eq!(clients[3].value("SELECT 1"), "1");
}

#[test]
fn a_bad_file_changes_nothing_and_is_explained() {
    let (mut pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    let pid = client.value("SELECT pg_backend_pid()");
    pooler.rewrite(|ini| {
        ini.set("default_pool_size", 9)
            .set("query_wait_timeout", 7)
            .set("no_such_setting", 1);
    });
    let mut console = pooler.open_console();
    let replies = console.query("RELOAD");
    assert_eq!(error(&replies).sqlstate(), "F0000");
    pooler.reload();
    wait_until("the log says why", || {
        pooler.log().contains("no_such_setting")
    });
    assert_eq!(setting(&pooler, "default_pool_size"), "1");
    assert_eq!(setting(&pooler, "query_wait_timeout"), "120");
    assert_eq!(client.value("SELECT pg_backend_pid()"), pid);
}

#[test]
fn an_unchanged_pool_keeps_its_servers() {
    let (mut pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    let pid = client.value("SELECT pg_backend_pid()");
    for _ in 0..3 {
        pooler.reconfigure(|ini| {
            ini.set("query_wait_timeout", 77)
                .database("another", "dbname=postgres");
        });
        assert_eq!(client.value("SELECT pg_backend_pid()"), pid);
    }
    assert_eq!(setting(&pooler, "query_wait_timeout"), "77");
    assert_eq!(
        pooler.connect("another").value("SELECT current_database()"),
        "postgres"
    );
}

#[test]
fn a_database_that_moves_takes_its_clients_along() {
    let (one, two) = (postgres().database("reload"), postgres().database("reload"));
    let mut pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 2)
            .database("moving", &format!("dbname={one}"));
    });
    let mut client = pooler.connect("moving");
    let mut inside = pooler.connect("moving");
    assert_eq!(client.value("SELECT current_database()"), one);
    inside.rows("BEGIN");
    pooler.reconfigure(|ini| {
        ini.database("moving", &format!("dbname={two}"));
    });
    assert_eq!(
        inside.value("SELECT current_database()"),
        one,
        "a transaction stays where it is"
    );
    inside.rows("COMMIT");
    assert_eq!(inside.value("SELECT current_database()"), two);
    assert_eq!(client.value("SELECT current_database()"), two);
}

#[test]
fn users_come_and_go() {
    let mut pooler = Pooler::start(|ini| {
        ini.set("auth_type", "md5");
    });
    let login =
        |pooler: &Pooler, secret: &str| pooler.login("app", "postgres", Some(secret)).is_ok();
    assert!(login(&pooler, "app-secret"));
    pooler.reconfigure(|ini| {
        ini.secret("app", "app-secret-that-is-new");
    });
    assert!(!login(&pooler, "app-secret"));
    pooler.reconfigure(|ini| {
        ini.secret("app", "app-secret");
    });
    assert!(login(&pooler, "app-secret"));
}

#[test]
fn a_value_set_by_the_console_lasts_until_the_next_reload() {
    let (pooler, _) = pooler();
    pooler.console("SET query_wait_timeout = 33");
    assert_eq!(setting(&pooler, "query_wait_timeout"), "33");
    pooler.console("RELOAD");
    assert_eq!(setting(&pooler, "query_wait_timeout"), "120");
}

#[test]
fn a_line_that_is_gone_is_the_default_again() {
    let (mut pooler, _) = pooler();
    pooler.reconfigure(|ini| {
        ini.set("query_timeout", 5);
    });
    assert_eq!(setting(&pooler, "query_timeout"), "5");
    pooler.reconfigure(|ini| {
        ini.unset("query_timeout");
    });
    assert_eq!(setting(&pooler, "query_timeout"), "0");
}

#[test]
fn clients_of_databases_that_go_are_sent_away_but_not_those_that_the_star_made() {
    let own = postgres().database("reload");
    let mut pooler = Pooler::start(|ini| {
        ini.database("named", "dbname=postgres");
    });
    let (mut named, mut made) = (pooler.connect("named"), pooler.connect(&own));
    named.rows("SELECT 1");
    made.rows("SELECT 1");
    pooler.reconfigure(|ini| {
        ini.without_database("named").without_database("*");
    });
    let farewell = named.read_message().unwrap();
    assert_eq!(farewell.field('M').as_deref(), Some("database removed"));
    assert_eq!(made.value("SELECT 'stays'"), "stays");
    let refusal = pooler.login("app", &own, None).err().unwrap();
    assert_eq!(refusal.text(), format!("no such database: {own}"));
}
