//! Every setting of `[pgbouncer]`: what it takes, its default, and what a reload and SET do with it.

use nix::unistd::User;

use super::Findings;
use crate::support::pooler::is_pgbouncer;
use crate::support::process::account;
use crate::support::tls::authority;
use crate::support::wire::Rows;
use crate::support::{Pooler, Wire};

/// How a value is written.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A whole number as C reads it.
    Int,
    /// The same, as 0 or 1.
    Bool,
    /// Seconds.
    Time,
    /// One of some words.
    Word,
    /// Any text.
    Text,
}
use Kind::{Bool, Int, Text, Time, Word};

/// What a reload does with a changed line.
#[derive(Clone, Copy, PartialEq)]
enum Reload {
    /// It holds from then on.
    Yes,
    /// It holds from the next start on.
    No,
}
use Reload::{No, Yes};

/// A setting without default: SHOW CONFIG has NULL.
const NULL: &str = "(null)";

/// Name, kind, default as SHOW CONFIG prints it, what a reload does, and a value that is not the default.
type Row = (&'static str, Kind, &'static str, Reload, &'static str);

const AUTH_QUERY: &str = "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END \
                          FROM pg_authid WHERE rolname=$1 AND rolcanlogin";

/// General, and the network.
const GENERAL: &[Row] = &[
    ("logfile", Text, "", Yes, "other.log"),
    ("pidfile", Text, "", No, "pooler.pid"),
    ("listen_addr", Text, "", No, "127.0.0.1"),
    ("listen_port", Int, "6432", No, "(its own)"),
    ("unix_socket_dir", Text, "/tmp", No, "."),
    ("unix_socket_mode", Int, "0777", No, "0700"),
    ("unix_socket_group", Text, "", No, "(its own)"),
    ("user", Text, NULL, No, "(its own)"),
    ("conffile", Text, NULL, Yes, "pooler.ini"),
    ("job_name", Text, "pgbouncer", No, "other"),
    ("syslog", Bool, "0", Yes, "1"),
    ("syslog_ident", Text, "pgbouncer", Yes, "other"),
    ("syslog_facility", Word, "daemon", Yes, "local7"),
    ("verbose", Int, NULL, Yes, "1"),
    ("log_connections", Bool, "1", Yes, "0"),
    ("log_disconnections", Bool, "1", Yes, "0"),
    ("log_pooler_errors", Bool, "1", Yes, "0"),
    ("log_stats", Bool, "1", Yes, "0"),
    // PgBouncer takes whole seconds only.
    ("stats_period", Time, "60", Yes, "61"),
    ("admin_users", Text, "", Yes, "postgres, other"),
    ("stats_users", Text, "", Yes, "app, other"),
    ("pool_mode", Word, "session", Yes, "statement"),
    ("max_client_conn", Int, "100", Yes, "101"),
    ("default_pool_size", Int, "20", Yes, "21"),
    ("min_pool_size", Int, "0", Yes, "1"),
    ("reserve_pool_size", Int, "0", Yes, "2"),
    ("reserve_pool_timeout", Time, "5", Yes, "5.5"),
    ("max_db_connections", Int, "0", Yes, "51"),
    ("max_db_client_connections", Int, "0", Yes, "52"),
    ("max_user_connections", Int, "0", Yes, "53"),
    ("max_user_client_connections", Int, "0", Yes, "54"),
    ("server_round_robin", Bool, "0", Yes, "1"),
    (
        "track_extra_parameters",
        Text,
        "IntervalStyle",
        No,
        "IntervalStyle, search_path",
    ),
    (
        "ignore_startup_parameters",
        Text,
        "",
        Yes,
        "extra_float_digits, options",
    ),
    ("disable_pqexec", Bool, "0", No, "1"),
    ("application_name_add_host", Bool, "0", Yes, "1"),
    ("max_prepared_statements", Int, "200", Yes, "100"),
    ("peer_id", Int, "0", Yes, "16383"),
    ("scram_iterations", Int, "4096", Yes, "5000"),
    ("login_notify_message", Text, "", Yes, "be kind"),
    // The same.
    ("query_wait_notify", Time, "5", Yes, "6"),
    ("pkt_buf", Int, "4096", No, "8192"),
    ("sbuf_loopcnt", Int, "5", Yes, "6"),
    ("max_packet_size", Int, "2147483647", Yes, "4294967295"),
    ("listen_backlog", Int, "128", No, "64"),
    ("so_reuseport", Bool, "0", No, "1"),
    ("tcp_defer_accept", Int, "1", Yes, "45"),
    ("tcp_socket_buffer", Int, "0", Yes, "65536"),
    ("tcp_keepalive", Bool, "1", Yes, "0"),
    ("tcp_keepcnt", Int, "0", Yes, "3"),
    ("tcp_keepidle", Int, "0", Yes, "60"),
    ("tcp_keepintvl", Int, "0", Yes, "10"),
    ("tcp_user_timeout", Int, "0", Yes, "10000"),
    ("dns_max_ttl", Time, "15", Yes, "1.5"),
    ("dns_nxdomain_ttl", Time, "15", Yes, "1.5"),
    ("dns_zone_check_period", Time, "0", Yes, "1.5"),
    ("resolv_conf", Text, "", No, "/etc/resolv.conf"),
];

/// Who comes in, and TLS.
const LOGIN: &[Row] = &[
    ("auth_file", Text, NULL, Yes, "more-users.txt"),
    ("auth_hba_file", Text, "", Yes, "hba.conf"),
    ("auth_ident_file", Text, NULL, Yes, "ident.conf"),
    // Behind its files: we do not take it without them.
    ("auth_type", Word, "md5", Yes, "hba"),
    ("auth_user", Text, NULL, Yes, "postgres"),
    (
        "auth_query",
        Text,
        AUTH_QUERY,
        Yes,
        "SELECT $1, 'x' -- ; # a",
    ),
    ("auth_dbname", Text, NULL, Yes, "postgres"),
    (
        "auth_ldap_options",
        Text,
        NULL,
        Yes,
        "ldapserver=127.0.0.1 ldapprefix=\"cn=\"",
    ),
    ("client_tls_sslmode", Word, "disable", Yes, "allow"),
    ("client_tls_key_file", Text, "", Yes, "pooler.key"),
    ("client_tls_cert_file", Text, "", Yes, "pooler.crt"),
    ("client_tls_ca_file", Text, "", Yes, "root.crt"),
    ("client_tls_protocols", Text, "secure", Yes, "tlsv1.3"),
    ("client_tls_ciphers", Text, "default", Yes, "HIGH"),
    (
        "client_tls13_ciphers",
        Text,
        NULL,
        Yes,
        "TLS_AES_128_GCM_SHA256",
    ),
    ("client_tls_dheparams", Text, "auto", Yes, "none"),
    ("client_tls_ecdhcurve", Text, "auto", Yes, "prime256v1"),
    ("server_tls_sslmode", Word, "prefer", Yes, "verify-ca"),
    ("server_tls_ca_file", Text, "", Yes, "root.crt"),
    ("server_tls_key_file", Text, "", Yes, "pooler.key"),
    ("server_tls_cert_file", Text, "", Yes, "pooler.crt"),
    (
        "server_tls_protocols",
        Text,
        "secure",
        Yes,
        "tlsv1.2,tlsv1.3",
    ),
    ("server_tls_ciphers", Text, "default", Yes, "HIGH"),
    (
        "server_tls13_ciphers",
        Text,
        NULL,
        Yes,
        "TLS_AES_256_GCM_SHA384",
    ),
];

/// Limits of time, and what belongs to them.
const TIMES: &[Row] = &[
    ("server_lifetime", Time, "3600", Yes, "1000.25"),
    ("server_idle_timeout", Time, "600", Yes, "100"),
    ("server_connect_timeout", Time, "15", Yes, "10"),
    ("server_login_retry", Time, "15", Yes, "1"),
    ("server_check_delay", Time, "30", Yes, "31"),
    // Before 1.25 it was "select 1".
    ("server_check_query", Text, "<empty>", Yes, "select 2"),
    ("server_reset_query", Text, "DISCARD ALL", Yes, "RESET ALL"),
    ("server_reset_query_always", Bool, "0", Yes, "1"),
    ("server_fast_close", Bool, "0", Yes, "1"),
    ("client_login_timeout", Time, "60", Yes, "50"),
    ("client_idle_timeout", Time, "0", Yes, "1000"),
    ("query_timeout", Time, "0", Yes, "1000"),
    ("query_wait_timeout", Time, "120", Yes, "100"),
    ("cancel_wait_timeout", Time, "10", Yes, "9.5"),
    ("idle_transaction_timeout", Time, "0", Yes, "1000"),
    ("transaction_timeout", Time, "0", Yes, "1000"),
    ("autodb_idle_timeout", Time, "3600", Yes, "60.5"),
    ("pool_idle_timeout", Time, "0", Yes, "60"),
    ("suspend_timeout", Time, "10", Yes, "5"),
];

/// What has no meaning for us: a value other than the default is one warning.
const WITHOUT_EFFECT: &[&str] = &[
    "job_name",
    "pkt_buf",
    "sbuf_loopcnt",
    "dns_zone_check_period",
    "resolv_conf",
    "client_tls_dheparams",
];

/// What PgBouncer has since 1.25.
const NEWER: &[&str] = &[
    "scram_iterations",
    "login_notify_message",
    "query_wait_notify",
    "auth_ldap_options",
    "client_tls13_ciphers",
    "server_tls13_ciphers",
    "transaction_timeout",
    "pool_idle_timeout",
];

/// Ours.
const OURS: &[&str] = &[
    "http_listen",
    "io_uring",
    "metrics_max_pools",
    "follow_functions",
    "follow_sequences",
    "log_min_duration",
    "max_pinned_servers",
    "pin_policy",
    "prepare_unnamed_after",
    "prepare_unnamed_texts",
    "shutdown_mode",
    "drain_timeout",
    "worker_threads",
    "min_worker_threads",
    "prepared_statements_memory",
    "stats_users_prefix",
    "log_statement_text",
    "track_statements",
    "otlp_endpoint",
    "otlp_headers",
    "otlp_interval",
    "otlp_resource_attributes",
    "otlp_sample",
    "otlp_service_name",
    "otlp_traceparent",
];

/// More values that are refused, for settings that say more than their kind does.
const REFUSED: &[(&str, &str)] = &[
    ("listen_port", "70000"),
    ("peer_id", "16384"),
    ("peer_id", "-1"),
    ("auth_dbname", "pgbouncer"),
    ("auth_type", "kerberos"),
    ("pool_mode", "transactional"),
    ("syslog_facility", "local8"),
    ("client_tls_sslmode", "required"),
    ("max_client_conn", "100 ; clients"),
    ("unix_socket_mode", "rwxrwxrwx"),
    ("tcp_user_timeout", "1.5"),
    ("no_such_setting", "1"),
];

fn table() -> impl Iterator<Item = &'static Row> {
    let rows = [GENERAL, LOGIN, TIMES].into_iter().flatten();
    rows.filter(|row| !is_pgbouncer() || !NEWER.contains(&row.0))
}

/// Values that are no value of a setting of this kind.
fn wrong(kind: Kind) -> &'static [&'static str] {
    match kind {
        Int => &["", "many", "1.5"],
        Bool => &["", "yes", "true", "on"],
        Time => &["", "-1", "1s", "soon"],
        Word => &["", "sometimes"],
        Text => &[],
    }
}

/// The value of the table, or the one that this process must have.
fn valid(row: &Row, pooler: Option<&Pooler>) -> String {
    let (name, value) = (row.0, row.4);
    if value != "(its own)" {
        return value.to_owned();
    }
    let (uid, gid) = account();
    match name {
        "user" => User::from_uid(uid).unwrap().unwrap().name,
        "unix_socket_group" => gid.to_string(),
        _ => pooler.map_or_else(String::new, |pooler| pooler.address().port().to_string()),
    }
}

/// How SHOW CONFIG prints it.
fn printed(name: &str, value: &str) -> String {
    if name == "unix_socket_mode" {
        "448".to_owned()
    } else {
        value.to_owned()
    }
}

/// The files that the values of the table name.
fn write_files(ini: &mut crate::support::pooler::Ini) {
    let identity = authority().issue("pooler", &["localhost"]);
    ini.file("hba.conf", "host all all 127.0.0.1/32 trust\n")
        .file("ident.conf", "map postgres all\n")
        .file(
            "more-users.txt",
            "\"postgres\" \"postgres-secret\"\n\"app\" \"\"\n",
        )
        .file("pooler.key", &identity.key)
        .file("pooler.crt", &identity.certificate)
        .file("root.crt", authority().certificate());
}

/// The rows of the table but the one that must stay as it is.
fn settable() -> impl Iterator<Item = &'static Row> {
    table().filter(|row| row.0 != "listen_port")
}

fn config(pooler: &Pooler) -> Rows {
    pooler.console("SHOW CONFIG")
}

fn cell(rows: &Rows, key: &str, column: &str) -> String {
    let Some(row) = rows.find("key", key) else {
        return "(not there)".to_owned();
    };
    let at = rows.columns.iter().position(|name| name == column).unwrap();
    rows.rows[row][at]
        .clone()
        .unwrap_or_else(|| NULL.to_owned())
}

#[test]
fn show_config_has_every_setting_with_its_default_and_whether_it_can_be_changed() {
    let pooler = Pooler::start(|_| ());
    let rows = config(&pooler);
    let mut findings = Findings::default();
    for row in table() {
        let (name, _, default, reload, _) = *row;
        findings.compare(
            format!("default of {name}"),
            cell(&rows, name, "default"),
            default,
        );
        let changeable = if reload == Yes { "yes" } else { "no" };
        findings.compare(
            format!("changeable of {name}"),
            cell(&rows, name, "changeable"),
            changeable,
        );
        let expected = match (pooler.ini.get(name), name) {
            (Some(set), _) => set.to_owned(),
            (None, "unix_socket_mode") => "511".to_owned(),
            (None, "verbose") => "0".to_owned(),
            (None, "conffile") => pooler.directory().join("pooler.ini").display().to_string(),
            (None, _) => default.to_owned(),
        };
        findings.compare(
            format!("value of {name}"),
            cell(&rows, name, "value"),
            expected,
        );
    }
    let names: Vec<String> = (0..rows.rows.len())
        .map(|row| rows.get(row, "key"))
        .collect();
    for name in &names {
        let known = OURS.contains(&name.as_str()) || table().any(|row| row.0 == name);
        findings.compare(format!("{name} is known"), known, true);
    }
    findings.compare(
        "in the order of their names",
        names.is_sorted() || is_pgbouncer(),
        true,
    );
    findings.report();
}

#[test]
fn every_setting_takes_its_value_at_the_start_and_what_has_no_effect_is_said_once() {
    let pooler = Pooler::start(|ini| {
        write_files(ini);
        for row in settable() {
            ini.set(row.0, valid(row, None));
        }
    });
    let rows = config(&pooler);
    let mut findings = Findings::default();
    for row in settable() {
        let value = printed(row.0, &valid(row, Some(&pooler)));
        findings.compare(row.0, cell(&rows, row.0, "value"), value);
    }
    let log = pooler.log();
    for row in settable() {
        let warnings = log.matches(&format!("] {} has no effect: ", row.0)).count();
        let wanted = usize::from(WITHOUT_EFFECT.contains(&row.0));
        findings.compare(format!("warnings about {}", row.0), warnings, wanted);
    }
    findings.report();
}

#[test]
fn a_reload_takes_what_can_be_changed_and_gives_back_the_default_of_a_line_that_is_gone() {
    let mut pooler = Pooler::start(write_files);
    let before = config(&pooler);
    let fixed = ["listen_addr", "admin_users"];
    let lines = || settable().filter(|row| !fixed.contains(&row.0));
    let values: Vec<_> = lines().map(|row| (row, valid(row, None))).collect();
    pooler.reconfigure(|ini| {
        for (row, value) in &values {
            ini.set(row.0, value);
        }
    });
    let during = config(&pooler);
    pooler.reconfigure(|ini| {
        for (row, _) in &values {
            ini.unset(row.0);
        }
        ini.set("auth_type", "trust")
            .set("auth_file", "userlist.txt");
    });
    let after = config(&pooler);
    let mut findings = Findings::default();
    for (row, value) in &values {
        let (name, _, default, reload, _) = **row;
        let was = cell(&before, name, "value");
        let wanted = if reload == Yes {
            printed(name, value)
        } else {
            was.clone()
        };
        findings.compare(
            format!("{name} after it came"),
            cell(&during, name, "value"),
            wanted,
        );
        let wanted = match (reload, name) {
            (No, _) => was,
            (Yes, "auth_type") => "trust".to_owned(),
            (Yes, "auth_file") => "userlist.txt".to_owned(),
            (Yes, "verbose") => "0".to_owned(),
            (Yes, "conffile") => continue,
            (Yes, _) => default.to_owned(),
        };
        findings.compare(
            format!("{name} after it went"),
            cell(&after, name, "value"),
            wanted,
        );
    }
    findings.report();
}

#[test]
fn set_takes_what_can_be_changed_and_succeeds_with_the_rest() {
    let pooler = Pooler::start(write_files);
    let mut console = pooler.open_console();
    let mut findings = Findings::default();
    for row in settable().filter(|row| row.0 != "auth_query") {
        let (name, _, _, reload, _) = *row;
        let value = valid(row, None);
        let was = cell(&console.rows("SHOW CONFIG"), name, "value");
        let replies = console.query(&format!("SET {name} = '{value}'"));
        let tag = replies.iter().find(|message| message.tag == b'C');
        let tag = tag.map(super::shown);
        findings.compare(
            format!("tag of {name}"),
            tag,
            Some(format!("SET {name}={value}\\0")),
        );
        let wanted = if reload == Yes {
            printed(name, &value)
        } else {
            was
        };
        findings.compare(
            name,
            cell(&console.rows("SHOW CONFIG"), name, "value"),
            wanted,
        );
        let has_notice = replies.iter().any(|message| message.tag == b'N');
        let must_be_told = reload == No || WITHOUT_EFFECT.contains(&name);
        if must_be_told && !is_pgbouncer() {
            findings.compare(format!("a notice about {name}"), has_notice, true);
        }
    }
    findings.report();
}

/// Sends RELOAD and says what is refused; empty: nothing.
fn reload(pooler: &Pooler, console: &mut Wire, lines: &str) -> String {
    std::fs::write(pooler.directory().join("bad.ini"), lines).unwrap();
    let replies = console.query("RELOAD");
    match replies.iter().find(|message| message.tag == b'E') {
        Some(message) => {
            assert_eq!(message.sqlstate(), "F0000");
            message.field('D').unwrap_or_default()
        }
        None => "(nothing)".to_owned(),
    }
}

#[test]
fn a_wrong_value_is_refused_by_file_line_and_name_and_changes_nothing() {
    if is_pgbouncer() {
        // Its console tells that a reload has failed since 1.25, and never why.
        return;
    }
    let pooler = Pooler::start(|_| ());
    let mut console = pooler.open_console();
    let own = std::fs::read_to_string(pooler.directory().join("pooler.ini")).unwrap();
    let file = pooler.directory().join("bad.ini").display().to_string();
    console.rows(&format!("SET conffile = '{file}'"));
    let mut findings = Findings::default();
    let by_kind = table().flat_map(|row| wrong(row.1).iter().map(|value| (row.0, *value)));
    for (name, value) in by_kind.chain(REFUSED.iter().copied()) {
        // Once more, behind what is there: the later line wins.
        let own = own.replace("[databases]", &format!("{name} = {value}\n[databases]"));
        let line = own.lines().position(|line| line == "[databases]").unwrap();
        let told = reload(&pooler, &mut console, &own);
        let expected = match name {
            "auth_dbname" => "auth_dbname: ".to_owned(),
            "no_such_setting" => format!("{file}:{line}: [pgbouncer] unknown key \"{name}\""),
            _ => format!("{file}:{line}: [pgbouncer] {name} = {value}"),
        };
        findings.compare(
            format!("{name} = {value}, refused with {told}"),
            told.starts_with(&expected),
            true,
        );
    }
    findings.compare(
        "the settings as they were",
        cell(&config(&pooler), "query_timeout", "value"),
        "0",
    );
    findings.report();
}

#[test]
fn a_wrong_value_stops_the_start_with_exit_code_1() {
    let mut pooler = Pooler::launch(|ini| {
        ini.set("log_stats", "yes");
    });
    assert_eq!(pooler.wait().code(), Some(1));
    let log = pooler.log();
    assert!(
        log.contains("pooler.ini:") && log.contains("log_stats"),
        "{log}"
    );
}
