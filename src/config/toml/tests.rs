//! Tests of the TOML dialect.

use proptest::prelude::*;

use super::*;
use crate::config::{Host, PoolMode, SslMode};

fn load(text: &str) -> Draft {
    read(text, "t.toml").unwrap()
}

fn refused(text: &str) -> String {
    read(text, "t.toml").unwrap_err().to_string()
}

fn pool(keys: &str) -> String {
    format!(
        "[pools.app]\n{keys}\n[pools.app.shards.0]\nservers=[[\"db\", 5433, \"primary\"]]\ndatabase=\"real\"\n"
    )
}

#[test]
fn pgcats_general_names_reach_our_settings() {
    let settings = load(
        "[general]\nhost='0.0.0.0'\nport=7000\nconnect_timeout=1500\nidle_timeout=30000\nserver_lifetime=60000\n\
         healthcheck_delay=10\nidle_client_in_transaction_timeout=2000\nlog_client_connections=false\n\
         tcp_keepalives_idle=5\ntcp_keepalives_count=6\ntcp_keepalives_interval=7\n\
         prepared_statements_cache_size=9\nworker_threads=4\n",
    )
    .settings;
    assert_eq!(
        (settings.listen_addr, settings.listen_port),
        (vec!["0.0.0.0".into()], 7000)
    );
    assert_eq!(settings.server_connect_timeout, Duration::from_millis(1500));
    assert_eq!(settings.query_wait_timeout, Duration::from_millis(1500));
    assert_eq!(settings.server_idle_timeout, Duration::from_secs(30));
    assert_eq!(settings.server_lifetime, Duration::from_secs(60));
    assert_eq!(settings.server_check_delay, Duration::from_millis(10));
    assert_eq!(settings.idle_transaction_timeout, Duration::from_secs(2));
    assert!(!settings.log_connections && settings.log_disconnections);
    assert_eq!(
        (
            settings.tcp_keepidle,
            settings.tcp_keepcnt,
            settings.tcp_keepintvl
        ),
        (5, 6, 7)
    );
    assert_eq!(
        (settings.max_prepared_statements, settings.worker_threads),
        (9, 4)
    );
}

#[test]
fn our_own_names_are_in_seconds_and_win_over_what_pgcats_imply() {
    let settings = load(
        "[general]\nquery_wait_timeout=2.5\nconnect_timeout=100\nlog_stats=false\nadmin_users=['a', 'b']\n\
         unix_socket_mode=0o700\npool_mode='statement'\nserver_round_robin=true\nmax_client_conn=0x10\n",
    )
    .settings;
    assert_eq!(settings.query_wait_timeout, Duration::from_millis(2500));
    assert_eq!(settings.server_connect_timeout, Duration::from_millis(100));
    assert_eq!(settings.admin_users, ["a", "b"]);
    assert_eq!(settings.unix_socket_mode.0, 0o700);
    assert_eq!(
        (settings.pool_mode, settings.max_client_conn),
        (PoolMode::Statement, 16)
    );
    assert!(settings.server_round_robin && !settings.log_stats);
}

#[test]
fn every_setting_of_the_table_is_a_key_of_general() {
    for row in TABLE {
        let text = format!(
            "[general]\n{} = '{}'\n",
            row.name,
            row.default.unwrap_or_default().replace('\'', "\"")
        );
        if let Err(error) = read(&text, "t.toml") {
            assert!(row.name == "server_lifetime", "{error}");
        }
    }
}

#[test]
fn an_administrator_and_a_secret_come_from_general() {
    let draft = load(
        "[general]\nadmin_users='x'\nadmin_username='boss'\nadmin_password='p'\nprepared_statements=false\n",
    );
    assert_eq!(draft.settings.admin_users, ["x", "boss"]);
    assert_eq!(draft.secrets["boss"].expose(), "p");
    assert_eq!(draft.settings.max_prepared_statements, 0);
}

#[test]
fn a_pool_is_a_database_in_transaction_mode_unless_something_names_another() {
    let app = &load(&pool("")).databases["app"];
    assert_eq!(
        (app.server_dbname(), &app.host, app.port),
        ("real", &Host::Tcp("db".into()), 5433)
    );
    assert_eq!(app.pool_mode, Some(PoolMode::Transaction));
    assert_eq!(
        load(&pool("pool_mode='session'")).databases["app"].pool_mode,
        Some(PoolMode::Session)
    );
    let general = format!("[general]\npool_mode='statement'\n{}", pool(""));
    assert_eq!(load(&general).databases["app"].pool_mode, None);
}

#[test]
fn a_pools_own_keys_are_read() {
    let draft = load(&pool(
        "connect_timeout=1000\nidle_timeout=2000\nserver_lifetime=3000\nprepared_statements_cache_size=0\n\
         auth_query=\"SELECT usename, passwd FROM pg_shadow WHERE usename='$1'\"\nauth_query_user='looker'\n\
         auth_query_password='pw'\nreserve_pool_size=3\nmax_db_connections=50\nconnect_query='SELECT 1'\n",
    ));
    let app = &draft.databases["app"];
    assert_eq!(app.server_connect_timeout, Some(Duration::from_secs(1)));
    assert_eq!(app.query_wait_timeout, Some(Duration::from_secs(1)));
    assert_eq!(app.server_idle_timeout, Some(Duration::from_secs(2)));
    assert_eq!(app.server_lifetime, Some(Duration::from_secs(3)));
    assert_eq!(app.max_prepared_statements, Some(0));
    assert_eq!(
        app.auth_query.as_deref(),
        Some("SELECT usename, passwd FROM pg_shadow WHERE usename=$1")
    );
    assert_eq!(app.auth_user.as_deref(), Some("looker"));
    assert_eq!(draft.secrets["looker"].expose(), "pw");
    assert_eq!(
        (app.reserve_pool_size, app.max_db_connections),
        (Some(3), Some(50))
    );
    assert_eq!(app.connect_query.as_deref(), Some("SELECT 1"));
}

#[test]
fn users_belong_to_their_pool() {
    let text = format!(
        "{}[pools.app.users.0]\nusername='a'\npassword='p'\npool_size=5\nmin_pool_size=1\npool_mode='session'\n\
         statement_timeout=1500\nserver_username='real'\nserver_password='q'\n[pools.app.users.1]\nusername='b'\n",
        pool("")
    );
    let draft = load(&text);
    let users = &draft.databases["app"].users;
    assert_eq!(
        users["a"].password.as_ref().map(SecretText::expose),
        Some("p")
    );
    assert_eq!(
        (users["a"].pool_size, users["a"].min_pool_size),
        (Some(5), Some(1))
    );
    assert_eq!(users["a"].pool_mode, Some(PoolMode::Session));
    assert_eq!(users["a"].query_timeout, Some(Duration::from_millis(1500)));
    assert_eq!(users["a"].server_username.as_deref(), Some("real"));
    assert_eq!(users["b"].password, None);
    assert!(draft.secrets.is_empty());
}

#[test]
fn what_changes_no_query_is_a_warning_or_nothing() {
    let draft = load(&pool(
        "load_balancing_mode='loc'\nprimary_reads_enabled=true\nquery_parser_enabled=false",
    ));
    assert!(draft.warnings.is_empty());
    let draft = load(
        "[general]\nban_time=60\nautoreload=15000\nserver_tls=false\nenable_prometheus_exporter=true\n",
    );
    insta::assert_snapshot!(draft.warnings.join("\n"), @r"
    t.toml:2: [general] ban_time has no effect: with one server per pool none is banned
    t.toml:3: [general] autoreload has no effect: the file is read again on SIGHUP and RELOAD
    t.toml:5: [general] enable_prometheus_exporter has no effect: there is no HTTP listener
    ");
}

#[test]
fn pgcats_words_about_tls_are_read() {
    use SslMode::{Disable, Prefer, Require, VerifyFull};
    let modes = |text: &str| {
        let settings = load(&format!("[general]\n{text}")).settings;
        (settings.client_tls_sslmode, settings.server_tls_sslmode)
    };
    assert_eq!(modes(""), (Disable, Prefer));
    let files = "tls_certificate = 'c'\ntls_private_key = 'k'\n";
    assert_eq!(modes(files), (Prefer, Prefer));
    assert_eq!(
        modes(&format!("{files}client_tls_sslmode = 'require'\n")),
        (Require, Prefer)
    );
    assert_eq!(modes("server_tls = false\n"), (Disable, Disable));
    assert_eq!(modes("server_tls = true\n"), (Disable, Prefer));
    assert_eq!(
        modes("server_tls = true\nverify_server_certificate = true\n"),
        (Disable, VerifyFull)
    );
}

#[test]
fn every_refusal_names_line_section_and_key() {
    let user = |keys: &str| format!("{}[pools.app.users.0]\n{keys}\n", pool(""));
    let texts = [
        "[general]\nport = \n".to_owned(),
        "[generals]\n".to_owned(),
        "general = 1\n".to_owned(),
        "[general]\nprot = 1\n".to_owned(),
        "[general]\n\nport = 'x'\n".to_owned(),
        "[general]\nconnect_timeout = -1\n".to_owned(),
        "[general]\nmax_client_conn = true\n".to_owned(),
        "[general]\nadmin_users = [1]\n".to_owned(),
        "[general]\nadmin_password = 'x'\n".to_owned(),
        "[general]\nadmin_username = 'x'\nadmin_password = 1\n".to_owned(),
        "[general]\nserver_tls = 'yes'\n".to_owned(),
        "[general]\nauth_type = 'kerberos'\n".to_owned(),
        "[plugins.intercept]\nenabled = true\n".to_owned(),
        "[pools.pgbouncer]\npool_size = 1\n".to_owned(),
        "[pools.app]\npool_mode = 'session'\n".to_owned(),
        pool("pool_mod = 'session'"),
        pool("pool_mode = 'x'"),
        pool("query_parser_enabled = true"),
        pool("default_role = 'replica'"),
        pool("automatic_sharding_key = 'a.b'"),
        pool("") + "[pools.app.shards.1]\ndatabase = 'x'\n",
        pool("") + "mirrors = [['db', 1, 0]]\n",
        pool("").replace("primary", "replica"),
        pool("").replace("]]", "], ['db', 1, 'primary']]"),
        pool("").replace("5433", "0"),
        pool("").replace(", \"primary\"", ""),
        user("password = 's3cret'"),
        user("username = 'a'\npassword = 1"),
        user("username = 'a'\nauth_type = 'trust'"),
        user("username = 'a'\n[pools.app.users.1]\nusername = 'a'"),
        user(
            "username = 'a'\n[pools.app.users.1]\nusername = 'b'\nserver_username = 'a'\npool_size = 1",
        ),
    ];
    let messages: Vec<String> = texts.iter().map(|text| refused(text)).collect();
    insta::assert_snapshot!(messages.join("\n"), @r#"
    t.toml:2: syntax error: string values must be quoted, expected literal string
    t.toml:1: unknown section "generals"; did you mean "general"?
    t.toml:1: general = integer: expected a table
    t.toml:2: [general] unknown key "prot"; did you mean "port"?
    t.toml:3: [general] port: listen_port = x: expected a port, 0 to 65535
    t.toml:2: [general] connect_timeout = integer: expected whole milliseconds, 0 or more
    t.toml:2: [general] max_client_conn = true: expected integer
    t.toml:2: [general] admin_users = array: expected a list of strings
    t.toml:2: [general] admin_username is missing
    t.toml:3: [general] admin_password: expected a string
    t.toml:2: [general] server_tls = string: expected true or false
    t.toml:2: [general] auth_type = kerberos: expected one of any, trust, plain, md5, cert, hba, ldap, pam, scram-sha-256
    t.toml:2: [plugins.intercept] plugin intercept: not supported by this version of pgferry
    t.toml:2: [pools.pgbouncer] the name "pgbouncer" is reserved for the console
    t.toml:2: [pools.app] shards is missing
    t.toml:2: [pools.app] unknown key "pool_mod"; did you mean "pool_mode"?
    t.toml:2: [pools.app] pool_mode = x: expected one of session, transaction, statement
    t.toml:2: [pools.app] query_parser_enabled: query routing: not supported by this version of pgferry
    t.toml:2: [pools.app] default_role: replicas: not supported by this version of pgferry
    t.toml:2: [pools.app] automatic_sharding_key: sharding: not supported by this version of pgferry
    t.toml:7: [pools.app.shards.1] several shards: not supported by this version of pgferry
    t.toml:6: [pools.app.shards.0] mirrors: not supported by this version of pgferry
    t.toml:4: [pools.app.shards.0] servers that are not primary: not supported by this version of pgferry
    t.toml:4: [pools.app.shards.0] more than one server in a pool: not supported by this version of pgferry
    t.toml:4: [pools.app.shards.0] port = 0: expected a port, 1 to 65535
    t.toml:4: [pools.app.shards.0] servers = array: expected [["host", port, "primary"]]
    t.toml:7: [pools.app.users.0] username is missing
    t.toml:8: [pools.app.users.0] password: expected a string
    t.toml:8: [pools.app.users.0] auth_type of one user: not supported by this version of pgferry
    t.toml:9: [pools.app.users.1] user a is given twice
    t.toml:9: [pools.app.users.1] another user of this pool logs in to PostgreSQL as a with other settings
    "#);
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(
        text in "(\\[(general|pools|pools\\.a|pools\\.a\\.(users|shards)\\.0)\\]\n|(port|host|servers|username|pool_size|admin_password) ?= ?|[0-9.]{1,3}\n|'[a-z]{0,3}'\n|\\[\\[?|\\]\\]?|true\n|[ \n\"',{}é]){0,30}",
    ) {
        let _ = read(&text, "t.toml");
    }
}

#[test]
fn peers_are_tables_by_their_numbers() {
    let peers = load(
        "[peers.1]\nhost='/tmp/one'\n[peers.2]\nhost='db.example'\nport=7000\npool_size=3\n[general]\npeer_id=1",
    )
    .peers;
    let parts = |id: u16| {
        let peer = &peers[&id];
        (peer.host.clone(), peer.port, peer.pool_size)
    };
    assert_eq!(parts(1), (Host::Unix("/tmp/one".into()), 6432, None));
    assert_eq!(parts(2), (Host::Tcp("db.example".into()), 7000, Some(3)));
    for (text, complaint) in [
        ("[peers.1]\nport=1", "t.toml:2: [peers.1] host is missing"),
        (
            "[peers.0]\nhost='a'",
            "t.toml:2: [peers.0] syntax error: a peer is a number, 1 to 65535",
        ),
        (
            "[peers.1]\nhost='a'\nport=0",
            "t.toml:3: [peers.1] port = 0: expected a port, 1 to 65535",
        ),
        (
            "[peers.1]\nhost=1",
            "t.toml:2: [peers.1] host = integer: expected a string",
        ),
        (
            "[peers.1]\nhost='a'\nprt=1",
            "t.toml:3: [peers.1] unknown key \"prt\"; did you mean \"port\"?",
        ),
        (
            "[peers]\n1='host=a'",
            "t.toml:2: [peers] 1 = string: expected a table",
        ),
    ] {
        assert_eq!(refused(text), complaint);
    }
}
