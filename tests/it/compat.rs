//! What a PgBouncer file may ask for, and what a PgBouncer log says.

use crate::support::wire::{Refusal, error};
use crate::support::{Pooler, Wire, eventually, frontend, postgres, wait_until};

#[test]
fn a_login_is_greeted_with_the_message_and_its_name_gets_the_address() {
    let database = postgres().database("compat");
    let pooler = Pooler::start(|ini| {
        ini.set("login_notify_message", "be kind");
        ini.set("application_name_add_host", 1);
    });
    let mut client = Wire::connect(pooler.address()).unwrap();
    let parameters = [("user", "app"), ("database", database.as_str())];
    client.send(&frontend::startup(&parameters));
    let mut notice = None;
    loop {
        let message = client.read_message().unwrap();
        match message.tag {
            b'N' => notice = message.field('M'),
            b'Z' => break,
            b'E' => panic!("{message:?}"),
            _ => {}
        }
    }
    assert_eq!(notice.as_deref(), Some("be kind"));
    let port = client.stream().local_addr().unwrap().port();
    assert_eq!(
        client.value("SHOW application_name"),
        format!("app - 127.0.0.1:{port}")
    );
}

#[test]
fn disable_pqexec_ends_clients_of_the_simple_protocol_only() {
    let database = postgres().database("compat");
    let pooler = Pooler::start(|ini| {
        ini.set("disable_pqexec", 1);
    });
    let mut client = pooler.connect(&database);
    let replies = client.exchange(&[
        frontend::parse("", "SELECT 'fine'", &[]),
        frontend::bind("", "", &[]),
        frontend::execute("", 0),
        frontend::sync(),
    ]);
    assert_eq!(crate::support::wire::rows(&replies).unwrap().only(), "fine");
    client.send(&frontend::query("SELECT 1"));
    let reply = client.read_message().unwrap();
    assert_eq!(reply.field('M').as_deref(), Some("PQexec disallowed"));
    assert_eq!(reply.field('S').as_deref(), Some("FATAL"));
    assert!(client.ended());
    assert_eq!(pooler.console("SHOW VERSION").rows.len(), 1);
}

#[test]
fn server_fast_close_takes_session_clients_along_outside_of_transactions() {
    let database = postgres().database("compat");
    let pooler = Pooler::start(|ini| {
        ini.set("pool_mode", "session");
        ini.set("server_fast_close", 1);
    });
    let (mut idle, mut inside) = (pooler.connect(&database), pooler.connect(&database));
    idle.rows("SELECT 1");
    inside.rows("BEGIN");
    pooler.console("RECONNECT");
    let reply = idle.read_message().unwrap();
    assert_eq!(
        reply.field('M').as_deref(),
        Some("database configuration changed")
    );
    assert_eq!(inside.value("SELECT 'goes on'"), "goes on");
    inside.send(&frontend::query("COMMIT"));
    let replies = inside.read_until(b'E');
    assert_eq!(
        error(&replies).field('M').as_deref(),
        Some("database configuration changed")
    );
}

#[test]
fn a_database_made_by_the_star_is_forgotten_with_its_statistics() {
    let database = postgres().database("compat");
    let pooler = Pooler::start(|ini| {
        ini.set("autodb_idle_timeout", 1);
        ini.set("server_idle_timeout", "0.1");
    });
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    assert!(
        pooler
            .log()
            .contains(&format!("registered new auto-database: {database}"))
    );
    let is_known =
        |show: &str, column: &str| pooler.console(show).find(column, &database).is_some();
    // It has no server any more, but a client, for longer than it takes to forget one without.
    wait_until("the server is gone", || {
        pooler.servers(&database, "app") == 0
    });
    let other = postgres().database("compat");
    pooler.connect(&other).rows("SELECT 1");
    let forgets = format!("dropping database '{other}'");
    wait_until("another one is forgotten", || {
        pooler.log().contains(&forgets)
    });
    assert!(is_known("SHOW DATABASES", "name"));
    drop(client);
    wait_until("it is forgotten", || !is_known("SHOW DATABASES", "name"));
    assert!(!is_known("SHOW STATS", "database"));
    assert!(pooler.log().contains(&format!(
        "dropping database '{database}' as it does not exist anymore or inactive auto-database"
    )));
    assert_eq!(pooler.connect(&database).value("SELECT 'again'"), "again");
}

#[test]
fn an_unused_pool_is_forgotten_and_its_counts_are_not() {
    let database = postgres().database("compat");
    let pooler = Pooler::start(|ini| {
        ini.set("pool_idle_timeout", 1);
        ini.set("server_idle_timeout", "0.1");
        ini.database(&database, "");
    });
    let count = |column: &str| pooler.stat(&database, column);
    pooler.connect(&database).rows("SELECT 1");
    wait_until("the pool is forgotten", || {
        pooler
            .console("SHOW POOLS")
            .find("database", &database)
            .is_none()
    });
    let line = format!(
        "cleaning up idle pool for user app on db {database} because: pool idle timeout (age= "
    );
    wait_until("it is said", || pooler.log().contains(&line));
    assert_eq!(count("total_query_count"), 1);
    pooler.connect(&database).rows("SELECT 1");
    assert_eq!(count("total_query_count"), 2);
}

#[test]
fn set_conffile_names_the_file_of_the_next_reload() {
    let pooler = Pooler::start(|ini| {
        ini.set("query_timeout", 7);
    });
    let own = pooler.directory().join("pooler.ini");
    let other = pooler.directory().join("other.ini");
    let text = std::fs::read_to_string(&own).unwrap();
    std::fs::write(
        &other,
        text.replace("query_timeout = 7", "query_timeout = 8"),
    )
    .unwrap();
    let value = |name: &str| {
        let config = pooler.console("SHOW CONFIG");
        config
            .get(config.find("key", name).unwrap(), "value")
            .clone()
    };
    pooler.console(&format!("SET conffile = '{}'", other.display()));
    assert_eq!(value("query_timeout"), "7");
    pooler.console("RELOAD");
    assert_eq!(value("query_timeout"), "8");
    assert_eq!(value("conffile"), other.display().to_string());
}

#[test]
fn the_log_has_pgbouncers_lines_for_logins_and_their_ends() {
    let database = postgres().database("compat");
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "scram-sha-256");
        ini.target("down", "host=127.0.0.1 port=1");
        ini.set("query_wait_timeout", 1);
    });
    let login = |user: &str, database: &str, password: &str| -> Result<Wire, Refusal> {
        pooler.login(user, database, Some(password))
    };
    let client = login("app", &database, "app-secret").unwrap();
    let port = client.stream().local_addr().unwrap().port();
    drop(client);
    login("app", &database, "wrong").err().unwrap();
    login("nobody", &database, "wrong").err().unwrap();
    let refusal = login("app", "down", "app-secret").err().unwrap();
    assert_eq!(refusal.text(), "query_wait_timeout");
    let lines = [
        format!(
            ": {database}/app@127.0.0.1:{port} login attempt: db={database} user=app tls=no replication=no"
        ),
        format!(
            ": {database}/app@127.0.0.1:{port} closing because: client unexpected eof (age=0s)"
        ),
        " closing because: SASL authentication failed (age=0s)".to_owned(),
        "pooler error: SASL authentication failed".to_owned(),
        "no such user: nobody".to_owned(),
        ": down/app@127.0.0.1:1 closing because: connect failed (age=0s)".to_owned(),
        "closing because: query_wait_timeout (age=1s)".to_owned(),
        "new connection to server (from 127.0.0.1:".to_string(),
    ];
    for line in lines {
        wait_until(&line, || pooler.log().contains(&line));
    }
    let log = pooler.log();
    let first = log
        .lines()
        .find(|line| line.contains("login attempt"))
        .unwrap();
    assert!(first.contains(" LOG C-0x"), "{first}");
}

#[test]
fn whoever_is_sent_away_finds_the_reason_in_the_log_already() {
    let database = postgres().database("compat");
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "plain").set("disable_pqexec", 1);
    });
    let closings = |reason: &str| {
        let line = format!("closing because: {reason} (age=");
        pooler.log().matches(&line).count()
    };
    for count in 1..=20 {
        pooler.login("app", &database, Some("wrong")).err().unwrap();
        assert_eq!(closings("password authentication failed"), count);
        let mut client = pooler.login("app", &database, Some("app-secret")).unwrap();
        client.send(&frontend::query("SELECT 1"));
        client.read_until(b'E');
        assert_eq!(closings("PQexec disallowed"), count);
    }
}

#[test]
fn the_console_counts_its_clients_and_lets_its_administrators_in_anyway() {
    let database = postgres().database("compat");
    let pooler = Pooler::start(|ini| {
        ini.set("stats_users", "other")
            .set("admin_users", "postgres,app")
            .set("max_db_client_connections", 2)
            .set("max_user_client_connections", 2);
    });
    let enter = |user: &str, database: &str| pooler.login(user, database, None);
    let _first = enter("other", "pgbouncer").unwrap();
    let databases = pooler.console("SHOW DATABASES");
    let row = databases.find("name", "pgbouncer").unwrap();
    assert_eq!(databases.get(row, "max_client_connections"), "2");
    assert_eq!(databases.get(row, "current_client_connections"), "2");
    let _second = eventually("the one that asked is gone", || {
        enter("other", "pgbouncer").ok()
    });
    let refusal = enter("other", "pgbouncer").err().unwrap().text();
    assert_eq!(
        refusal,
        "client connections exceeded (max_db_client_connections)"
    );
    let users = pooler.console("SHOW USERS");
    let row = users.find("name", "other").unwrap();
    assert_eq!(users.get(row, "current_client_connections"), "2");
    // Administrators are free at the console only.
    let _third = enter("app", &database).unwrap();
    let _fourth = enter("app", "pgbouncer").unwrap();
    let refusal = enter("app", &database).err().unwrap().text();
    assert_eq!(
        refusal,
        "client connections exceeded (max_user_client_connections)"
    );
    assert!(enter("app", "pgbouncer").is_ok());
}

#[test]
fn an_administrator_gets_in_by_the_unix_socket_while_it_shuts_down() {
    let database = postgres().database("compat");
    let mut pooler = Pooler::start(|ini| {
        ini.set("unix_socket_dir", "/tmp");
        ini.set("unix_socket_mode", "0777");
    });
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    pooler.signal(nix::sys::signal::Signal::SIGTERM);
    wait_until("TCP is closed", || Wire::connect(pooler.address()).is_err());
    let port = pooler.address().port();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let connect = |user: &str, database: &str| {
            let mut config = tokio_postgres::Config::new();
            config
                .host_path("/tmp")
                .port(port)
                .user(user)
                .dbname(database);
            async move { config.connect(tokio_postgres::NoTls).await }
        };
        let refused = connect("app", &database).await.err().unwrap();
        let refused = refused.as_db_error().unwrap().message().to_owned();
        assert_eq!(refused, "pooler is shutting down");
        let (console, connection) = connect("postgres", "pgbouncer").await.unwrap();
        let driver = tokio::task::spawn(connection);
        assert!(
            !console
                .simple_query("SHOW CLIENTS")
                .await
                .unwrap()
                .is_empty()
        );
        let refused = console.simple_query("RESUME").await.err().unwrap();
        assert_eq!(
            refused.as_db_error().unwrap().message(),
            "pooler is shutting down"
        );
        let line = format!("pgbouncer/postgres@unix({}):{port} ", std::process::id());
        assert!(pooler.log().contains(&line), "{line}");
        drop(console);
        driver.await.unwrap().unwrap();
    });
    drop(client);
    assert!(pooler.wait().success());
    assert!(pooler.log().contains("client connections dropped, exiting"));
}
