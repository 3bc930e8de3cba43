//! The console: PgBouncer's commands and columns, by the simple and by the extended protocol.

use crate::support::wire::{self, error};
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

fn pooler() -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 2);
    });
    (pooler, postgres().database("admin"))
}

/// All that has rows, with the first of its columns.
const SHOWS: &[(&str, &str)] = &[
    ("POOLS", "database"),
    ("CLIENTS", "type"),
    ("SERVERS", "type"),
    ("DATABASES", "name"),
    ("USERS", "name"),
    ("STATS", "database"),
    ("STATS_TOTALS", "database"),
    ("STATS_AVERAGES", "database"),
    ("TOTALS", "name"),
    ("SOCKETS", "type"),
    ("ACTIVE_SOCKETS", "type"),
    ("CONFIG", "key"),
    ("LISTS", "list"),
    ("MEM", "name"),
    ("STATE", "key"),
    ("VERSION", "version"),
];

#[test]
fn show_works_by_the_extended_protocol() {
    let (pooler, database) = pooler();
    pooler.connect(&database).rows("SELECT 1");
    let mut console = pooler.open_console();
    for (name, column) in SHOWS {
        let replies = console.exchange(&[
            frontend::parse("", &format!("SHOW {name}"), &[]),
            frontend::describe(b'S', ""),
            frontend::bind("", "", &[]),
            frontend::describe(b'P', ""),
            frontend::execute("", 0),
            frontend::sync(),
        ]);
        let start = [
            "ParseComplete",
            "ParameterDescription",
            "RowDescription",
            "BindComplete",
            "RowDescription",
        ];
        assert_eq!(
            wire::names(&replies)[..5],
            start,
            "SHOW {name}: {replies:?}"
        );
        let rows = wire::rows(&replies).unwrap();
        assert!(!rows.rows.is_empty(), "SHOW {name} has rows");
        assert_eq!(rows.columns[0], *column);
        // The same as a named statement, in two steps.
        let statement = format!("show_{name}");
        let parse = frontend::parse(&statement, &format!("SHOW {name}"), &[]);
        console.exchange(&[parse, frontend::sync()]);
        let replies = console.exchange(&[
            frontend::bind("", &statement, &[]),
            frontend::execute("", 0),
            frontend::sync(),
        ]);
        assert!(
            replies.iter().any(|message| message.tag == b'D'),
            "{replies:?}"
        );
    }
}

#[test]
fn drivers_can_ask_with_their_own_habits() {
    let (pooler, database) = pooler();
    pooler.connect(&database).rows("SELECT 1");
    let url = pooler.url("pgbouncer").replace("app@", "postgres@");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .unwrap();
        let driver = tokio::task::spawn(connection);
        let pools = client.query("SHOW POOLS", &[]).await.unwrap();
        assert!(
            pools
                .iter()
                .any(|row| row.get::<_, &str>("database") == database)
        );
        let databases = client.simple_query("SHOW DATABASES").await.unwrap();
        assert!(!databases.is_empty());
        drop(client);
        driver.await.unwrap().unwrap();
    });
}

#[test]
fn the_console_has_three_names() {
    let (pooler, _) = pooler();
    for name in ["pgbouncer", "pgferry", "pgcat"] {
        let mut console = pooler.login("postgres", name, None).unwrap();
        assert_eq!(console.rows("SHOW VERSION").rows.len(), 1, "{name}");
    }
}

#[test]
fn pause_waits_for_transactions_and_resume_lets_them_in_again() {
    let (pooler, database) = pooler();
    let mut inside = pooler.connect(&database);
    let mut outside = pooler.connect(&database);
    inside.rows("BEGIN");
    let mut pausing = pooler.open_console();
    pausing.send(&frontend::query("PAUSE"));
    let paused = || {
        let rows = pooler.console("SHOW STATE");
        rows.find("key", "paused")
            .is_some_and(|row| rows.get(row, "value") == "yes")
    };
    wait_until("the pause has begun", paused);
    inside.rows("SELECT 1");
    outside.send(&frontend::query("SELECT 'after'"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    inside.rows("COMMIT");
    let replies = pausing.read_until_ready();
    assert_eq!(wire::names(&replies), ["CommandComplete", "ReadyForQuery"]);
    assert!(paused());
    assert_eq!(
        postgres().sessions(&database, "%"),
        0,
        "no server is left while paused"
    );
    pausing.rows("RESUME");
    let replies = outside.read_until_ready();
    assert_eq!(wire::rows(&replies).unwrap().only(), "after");
    assert_eq!(
        error(&pausing.query("RESUME")).field('M').unwrap(),
        "pooler is not paused/suspended"
    );
}

#[test]
fn one_database_can_be_paused() {
    let (pooler, database) = pooler();
    let other = postgres().database("admin");
    let mut client = pooler.connect(&database);
    let mut free = pooler.connect(&other);
    client.rows("SELECT 1");
    pooler.console(&format!("PAUSE {database}"));
    client.send(&frontend::query("SELECT 'after'"));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    assert_eq!(free.value("SELECT 'free'"), "free");
    pooler.console(&format!("RESUME {database}"));
    assert_eq!(
        wire::rows(&client.read_until_ready()).unwrap().only(),
        "after"
    );
}

#[test]
fn kill_drops_clients_and_servers_of_a_database() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    pooler.console(&format!("KILL {database}"));
    assert!(client.ended());
    wait_until("its servers are gone", || {
        postgres().sessions(&database, "%") == 0
    });
    pooler.console(&format!("RESUME {database}"));
    assert_eq!(pooler.connect(&database).value("SELECT 'back'"), "back");
}

#[test]
fn reconnect_replaces_servers_between_transactions() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    let pid = client.value("SELECT pg_backend_pid()");
    pooler.console("RECONNECT");
    assert_eq!(client.value("SELECT pg_backend_pid()"), pid);
    client.rows("COMMIT");
    assert_ne!(client.value("SELECT pg_backend_pid()"), pid);
}

#[test]
fn show_clients_and_servers_tell_who_holds_what() {
    let (pooler, database) = pooler();
    let parameters = [
        ("user", "app"),
        ("database", &database),
        ("application_name", "known"),
    ];
    let mut client = Wire::login_with(pooler.address(), &parameters, None).unwrap();
    client.rows("BEGIN");
    let pid = client.value("SELECT pg_backend_pid()");
    let port = client.stream().local_addr().unwrap().port().to_string();
    let clients = pooler.console("SHOW CLIENTS");
    let row = clients.find("port", &port).expect("our client");
    assert_eq!(clients.get(row, "state"), "active");
    assert_eq!(clients.get(row, "local_addr"), "127.0.0.1");
    assert_eq!(
        clients.get(row, "local_port"),
        pooler.address().port().to_string()
    );
    assert_eq!(clients.get(row, "user"), "app");
    assert_eq!(clients.get(row, "application_name"), "known");
    let servers = pooler.console("SHOW SERVERS");
    let server = servers.find("remote_pid", &pid).expect("our server");
    assert_eq!(servers.get(server, "state"), "active");
    assert_eq!(servers.get(server, "link"), clients.get(row, "ptr"));
    assert_eq!(clients.get(row, "link"), servers.get(server, "ptr"));
    client.rows("COMMIT");
    let servers = pooler.console("SHOW SERVERS");
    let server = servers.find("remote_pid", &pid).expect("our server");
    assert_eq!(servers.get(server, "state"), "idle");
    let parameters = [
        ("user", "postgres"),
        ("database", "pgbouncer"),
        ("application_name", "operator"),
    ];
    let mut console = Wire::login_with(pooler.address(), &parameters, None).unwrap();
    let clients = console.rows("SHOW CLIENTS");
    assert!(clients.find("application_name", "operator").is_some());
}

#[test]
fn stats_count_queries_and_transactions() {
    let (pooler, database) = pooler();
    let mut client = pooler.connect(&database);
    for _ in 0..10 {
        client.rows("SELECT 1");
    }
    client.rows("BEGIN");
    client.rows("SELECT 1");
    client.rows("COMMIT");
    let count = |column: &str| pooler.stat(&database, column);
    wait_until("all is counted", || count("total_query_count") == 13);
    assert_eq!(count("total_xact_count"), 11);
    assert!(count("total_received") > 100 && count("total_sent") > 300);
}
