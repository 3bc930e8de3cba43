//! The console: PgBouncer's commands and columns, by the simple and by the extended protocol.

use crate::support::wire::{self, error};
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

fn pooler() -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 2);
    });
    (pooler, postgres().database("admin"))
}

fn console(pooler: &Pooler) -> Wire {
    pooler.login("postgres", "pgbouncer", None).unwrap()
}

/// PgBouncer's columns, which ours may only follow.
const COLUMNS: &[(&str, &str)] = &[
    (
        "POOLS",
        "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active \
         sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait maxwait_us \
         pool_mode load_balance_hosts",
    ),
    (
        "CLIENTS",
        "type user database replication state addr port local_addr local_port connect_time request_time \
         wait wait_us close_needed ptr link remote_pid tls application_name prepared_statements id",
    ),
    (
        "SERVERS",
        "type user database replication state addr port local_addr local_port connect_time request_time \
         wait wait_us close_needed ptr link remote_pid tls application_name prepared_statements id",
    ),
    (
        "DATABASES",
        "name host port database force_user pool_size min_pool_size reserve_pool_size server_lifetime \
         pool_mode load_balance_hosts max_connections current_connections max_client_connections \
         current_client_connections paused disabled",
    ),
    (
        "USERS",
        "name pool_size reserve_pool_size pool_mode max_user_connections current_connections \
         max_user_client_connections current_client_connections",
    ),
    (
        "STATS",
        "database total_server_assignment_count total_xact_count total_query_count total_received \
         total_sent total_xact_time total_query_time total_wait_time total_client_parse_count \
         total_server_parse_count total_bind_count total_client_login_count avg_server_assignment_count \
         avg_xact_count avg_query_count avg_recv avg_sent avg_xact_time avg_query_time avg_wait_time \
         avg_client_parse_count avg_server_parse_count avg_bind_count avg_client_login_count",
    ),
    (
        "STATS_TOTALS",
        "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time \
         query_time wait_time client_parse_count server_parse_count bind_count client_login_count",
    ),
    (
        "STATS_AVERAGES",
        "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time \
         query_time wait_time avg_client_parse_count avg_server_parse_count avg_bind_count \
         avg_client_login_count",
    ),
    ("TOTALS", "name value"),
    (
        "SOCKETS",
        "type user database replication state addr port local_addr local_port connect_time request_time \
         wait wait_us close_needed ptr link remote_pid tls application_name prepared_statements id \
         recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail send_avail",
    ),
    (
        "ACTIVE_SOCKETS",
        "type user database replication state addr port local_addr local_port connect_time request_time \
         wait wait_us close_needed ptr link remote_pid tls application_name prepared_statements id \
         recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail send_avail",
    ),
    ("CONFIG", "key value default changeable"),
    ("LISTS", "list items"),
    ("MEM", "name size used free memtotal"),
    ("STATE", "key value"),
    ("VERSION", "version"),
];

#[test]
fn every_show_has_pgbouncers_columns_first() {
    let (pooler, database) = pooler();
    pooler.connect(&database).rows("SELECT 1");
    let mut console = console(&pooler);
    for (name, columns) in COLUMNS {
        let rows = console.rows(&format!("SHOW {name}"));
        let columns: Vec<&str> = columns.split_whitespace().collect();
        assert_eq!(
            rows.columns[..columns.len().min(rows.columns.len())],
            columns,
            "SHOW {name}"
        );
        assert!(!rows.rows.is_empty(), "SHOW {name} has rows");
    }
}

#[test]
fn show_works_by_the_extended_protocol() {
    let (pooler, database) = pooler();
    pooler.connect(&database).rows("SELECT 1");
    let mut console = console(&pooler);
    for (name, columns) in COLUMNS {
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
        assert_eq!(
            Some(rows.columns[0].as_str()),
            columns.split_whitespace().next()
        );
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
fn an_unknown_command_is_an_error_and_the_session_goes_on() {
    let (pooler, _) = pooler();
    let mut console = console(&pooler);
    for command in ["NONSENSE", "SHOW NOTHING", "", "SELECT 1"] {
        let replies = console.query(command);
        let reply = error(&replies);
        assert_eq!(reply.field('S').as_deref(), Some("ERROR"), "{command}");
        assert_eq!(reply.sqlstate(), "08P01", "{command}");
        assert_eq!(
            reply.field('M').unwrap(),
            format!("invalid command '{command}', use SHOW HELP;")
        );
    }
    assert_eq!(console.rows("show version;").rows.len(), 1);
    assert_eq!(
        error(&console.query("PAUSE pgbouncer")).field('M').unwrap(),
        "cannot pause admin db: pgbouncer"
    );
}

#[test]
fn pause_waits_for_transactions_and_resume_lets_them_in_again() {
    let (pooler, database) = pooler();
    let mut inside = pooler.connect(&database);
    let mut outside = pooler.connect(&database);
    inside.rows("BEGIN");
    let mut pausing = console(&pooler);
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
    let count = |column: &str| -> u64 {
        let rows = pooler.console("SHOW STATS");
        rows.get(rows.find("database", &database).unwrap(), column)
            .parse()
            .unwrap()
    };
    wait_until("all is counted", || count("total_query_count") == 13);
    assert_eq!(count("total_xact_count"), 11);
    assert!(count("total_received") > 100 && count("total_sent") > 300);
}

#[test]
fn chatty_drivers_are_humoured() {
    let (pooler, _) = pooler();
    let mut console = console(&pooler);
    for name in [
        "client_encoding",
        "standard_conforming_strings",
        "datestyle",
        "timezone",
    ] {
        assert_eq!(
            console.rows(&format!("SHOW {name}")).rows.len(),
            1,
            "{name}"
        );
    }
    let replies = console.query("SET client_encoding = 'UTF8'");
    assert!(
        replies.iter().all(|message| message.tag != b'E'),
        "{replies:?}"
    );
}
