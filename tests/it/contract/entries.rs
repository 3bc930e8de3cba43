//! The keys of a line in `[databases]`, `[users]` and `[peers]`.

use std::fmt::Write as _;

use super::Findings;
use crate::support::pooler::is_pgbouncer;
use crate::support::postgres::tls_postgres;
use crate::support::{Pooler, Wire, postgres};

/// A key of a line: a value, where the console shows it, and a value that is refused.
struct Key {
    name: &'static str,
    value: &'static str,
    /// Column and cell of the section's SHOW.
    shows: Option<(&'static str, &'static str)>,
    wrong: Option<&'static str>,
}

const fn key(name: &'static str, value: &'static str) -> Key {
    Key {
        name,
        value,
        shows: None,
        wrong: None,
    }
}

impl Key {
    const fn shows(mut self, column: &'static str, cell: &'static str) -> Self {
        self.shows = Some((column, cell));
        self
    }

    const fn refuses(mut self, value: &'static str) -> Self {
        self.wrong = Some(value);
        self
    }
}

const DATABASES: &[Key] = &[
    key("dbname", "other").shows("database", "other"),
    key("host", "127.0.0.1").shows("host", "127.0.0.1"),
    key("port", "6543").shows("port", "6543").refuses("0"),
    key("user", "owner").shows("force_user", "owner"),
    key("password", "'it''s secret'"),
    key("auth_user", "asker"),
    key("auth_query", "'select $1, null'"),
    key("auth_dbname", "postgres"),
    key("pool_size", "7")
        .shows("pool_size", "7")
        .refuses("many"),
    key("min_pool_size", "3")
        .shows("min_pool_size", "3")
        .refuses("1.5"),
    key("reserve_pool_size", "4")
        .shows("reserve_pool_size", "4")
        .refuses("x"),
    key("reserve_pool", "5")
        .shows("reserve_pool_size", "5")
        .refuses("x"),
    key("max_db_connections", "8")
        .shows("max_connections", "8")
        .refuses("x"),
    key("max_db_client_connections", "9")
        .shows("max_client_connections", "9")
        .refuses("x"),
    key("server_lifetime", "60")
        .shows("server_lifetime", "60")
        .refuses("1h"),
    key("query_wait_timeout", "61").refuses("1m"),
    key("pool_mode", "session")
        .shows("pool_mode", "session")
        .refuses("x"),
    key("load_balance_hosts", "disable").refuses("random"),
    key("connect_query", "'select 1'"),
    key("client_encoding", "LATIN1"),
    key("datestyle", "German"),
    key("timezone", "UTC"),
    key("application_name", "x"),
];

const USERS: &[Key] = &[
    key("pool_size", "7")
        .shows("pool_size", "        7")
        .refuses("x"),
    key("reserve_pool_size", "8")
        .shows("reserve_pool_size", "        8")
        .refuses("x"),
    key("pool_mode", "statement")
        .shows("pool_mode", "statement")
        .refuses("x"),
    key("max_user_connections", "9")
        .shows("max_user_connections", "9")
        .refuses("x"),
    key("max_user_client_connections", "10")
        .shows("max_user_client_connections", "10")
        .refuses("x"),
    key("query_timeout", "11").refuses("1.5"),
    key("query_wait_timeout", "12").refuses("x"),
    key("idle_transaction_timeout", "13").refuses("x"),
    key("transaction_timeout", "14").refuses("x"),
    key("client_idle_timeout", "15").refuses("x"),
];

const PEERS: &[Key] = &[
    key("host", "127.0.0.1").shows("host", "127.0.0.1"),
    key("port", "6433").shows("port", "6433").refuses("0"),
    key("pool_size", "3").shows("pool_size", "3").refuses("x"),
];

/// What PgBouncer has since 1.25.
const NEWER: &[(&str, &str)] = &[
    ("databases", "query_wait_timeout"),
    ("users", "reserve_pool_size"),
    ("users", "query_wait_timeout"),
    ("users", "transaction_timeout"),
];

/// A section, its keys, its SHOW with the column of its names, and what a line needs besides.
const SECTIONS: &[(&str, &[Key], &str, &str, &str)] = &[
    ("databases", DATABASES, "DATABASES", "name", ""),
    ("users", USERS, "USERS", "name", ""),
    ("peers", PEERS, "PEERS", "peer_id", "host=10.0.0.1"),
];

/// The name of a key's line.
fn name(section: &str, at: usize) -> String {
    if section == "peers" {
        (at + 1).to_string()
    } else {
        format!("line_{at}")
    }
}

/// The line of a key.
fn line(key: &Key, value: &str, besides: &str) -> String {
    if besides.starts_with(key.name) {
        format!("{}={value}", key.name)
    } else {
        format!("{besides} {}={value}", key.name).trim().to_owned()
    }
}

fn keys(
    section: &'static str,
    keys: &'static [Key],
) -> impl Iterator<Item = (usize, &'static Key)> {
    let keys = keys.iter().enumerate();
    keys.filter(move |(_, key)| !is_pgbouncer() || !NEWER.contains(&(section, key.name)))
}

#[test]
fn every_key_is_taken_and_shown() {
    let mut pooler = Pooler::start(|ini| {
        ini.target("stays", "");
    });
    pooler.reconfigure(|ini| {
        for (section, all, _, _, besides) in SECTIONS {
            for (at, key) in keys(section, all) {
                let (name, line) = (name(section, at), line(key, key.value, besides));
                match *section {
                    "databases" => ini.target(&name, &line),
                    "users" => ini.user(&name, &line),
                    _ => ini.peer(name.parse().unwrap(), &line),
                };
            }
        }
    });
    let mut findings = Findings::default();
    for (section, all, show, column, _) in SECTIONS {
        let rows = pooler.console(&format!("SHOW {show}"));
        for (at, key) in keys(section, all) {
            let Some((shown_in, cell)) = key.shows else {
                continue;
            };
            let found = rows.find(column, &name(section, at));
            let found = found.map(|row| rows.get(row, shown_in));
            findings.compare(
                format!("{section}: {}", key.name),
                found,
                Some(cell.to_owned()),
            );
        }
    }
    pooler.reconfigure(|ini| {
        for at in 0..DATABASES.len() {
            ini.without_database(&name("databases", at));
        }
        for at in 0..PEERS.len() {
            ini.without_peer(&name("peers", at));
        }
    });
    let gone = |show: &str| pooler.console(show).find("name", "line_0").is_none();
    findings.compare("databases are gone", gone("SHOW DATABASES"), true);
    findings.compare("peers are gone", pooler.console("SHOW PEERS").rows.len(), 0);
    findings.report();
}

/// The DETAIL of RELOAD's error, or all of its answer.
fn told(console: &mut Wire) -> String {
    let replies = console.query("RELOAD");
    let error = replies.iter().find(|message| message.tag == b'E');
    error
        .and_then(|message| message.field('D'))
        .unwrap_or_else(|| format!("{replies:?}"))
}

#[test]
fn a_wrong_value_or_key_is_refused_by_file_line_and_name() {
    if is_pgbouncer() {
        // Its console tells that a reload has failed since 1.25, and never why.
        return;
    }
    let mut pooler = Pooler::start(|_| ());
    let mut console = pooler.open_console();
    pooler.rewrite(|ini| {
        ini.without_database("*");
    });
    let own = std::fs::read_to_string(pooler.directory().join("pooler.ini")).unwrap();
    let file = pooler.directory().join("bad.ini").display().to_string();
    console.rows(&format!("SET conffile = '{file}'"));
    let mut findings = Findings::default();
    let mut try_line = |section: &str, (name, line): (&str, &str), says: &str| {
        let mut text = own.clone();
        writeln!(text, "[{section}]\n{name} = {line}").unwrap();
        std::fs::write(&file, &text).unwrap();
        let at = text.lines().count();
        let (told, wanted) = (
            told(&mut console),
            format!("{file}:{at}: [{section}] {name}: {says}"),
        );
        findings.compare(
            format!("{line} with {told}"),
            told.starts_with(&wanted),
            true,
        );
    };
    for (section, all, _, _, besides) in SECTIONS {
        for key in *all {
            let wrong = key.wrong.into_iter().map(|value| {
                let says = format!("{} = {value}: ", key.name);
                (value, says)
            });
            for (value, says) in wrong {
                try_line(section, ("7", &line(key, value, besides)), &says);
            }
            // An empty value is a mistake of syntax, and so is what is no pair.
            try_line(section, ("7", &format!("{}=", key.name)), "syntax error: ");
            try_line(section, ("7", key.name), "syntax error: ");
        }
        try_line(
            section,
            ("7", "no_such_key=1"),
            "unknown key \"no_such_key\"",
        );
    }
    try_line(
        "databases",
        ("pgbouncer", "port=1"),
        "the name \"pgbouncer\" is reserved",
    );
    try_line("databases", (&"x".repeat(64), "port=1"), "name of 64 bytes");
    for id in ["0", "65536", "one"] {
        try_line("peers", (id, "host=a"), "syntax error: a peer is a number");
    }
    try_line("peers", ("1", "port=1"), "host is missing");
    findings.report();
}

/// What a reload changes in a line of `[databases]`, and whether servers are replaced by that.
const CHANGES: &[(&str, &str, bool)] = &[
    ("dbname", "dbname=postgres", true),
    ("host", "host=localhost", true),
    ("user", "user=other", true),
    ("connect_query", "connect_query='select 2'", true),
    ("auth_dbname", "auth_dbname=postgres", true),
    ("auth_query", "auth_query='select 1, 2'", true),
    ("load_balance_hosts", "load_balance_hosts=disable", true),
    ("password", "password=another", false),
    ("auth_user", "auth_user=postgres", false),
    ("pool_size", "pool_size=7", false),
    ("min_pool_size", "min_pool_size=1", false),
    ("reserve_pool_size", "reserve_pool_size=7", false),
    ("max_db_connections", "max_db_connections=7", false),
    (
        "max_db_client_connections",
        "max_db_client_connections=7",
        false,
    ),
    ("server_lifetime", "server_lifetime=700", false),
    ("query_wait_timeout", "query_wait_timeout=7", false),
    ("pool_mode", "pool_mode=session", false),
];

/// What we replace servers for, in contrast to PgBouncer.
const CHANGES_OF_OURS: &[(&str, &str)] = &[
    ("client_encoding", "client_encoding=LATIN1"),
    ("datestyle", "datestyle=German"),
    ("timezone", "timezone=UTC"),
    ("application_name", "application_name=x"),
];

#[test]
fn a_reload_replaces_servers_that_would_be_other_ones_by_now_and_leaves_the_rest() {
    let (database, moved) = (postgres().database("entries"), tls_postgres());
    let ours = CHANGES_OF_OURS
        .iter()
        .map(|(name, change)| (*name, *change, !is_pgbouncer()));
    let changes = CHANGES.iter().copied().chain(ours);
    let moves = format!("port={}", moved.port());
    let changes = changes.chain([("port", moves.as_str(), true), ("(nothing)", "", false)]);
    let changes: Vec<_> = changes
        .filter(|(name, ..)| !is_pgbouncer() || !NEWER.contains(&("databases", name)))
        .collect();
    let line = |change: &str| {
        // A later pair wins, but two of one key are no good manners.
        let key = change.split('=').next().unwrap_or_default().to_owned() + "=";
        let port = format!("port={}", postgres().port());
        let dbname = format!("dbname={database}");
        let own = ["host=127.0.0.1", &port, &dbname];
        let own = own.into_iter().filter(|pair| !pair.starts_with(&key));
        own.chain([change])
            .collect::<Vec<_>>()
            .join(" ")
            .trim()
            .to_owned()
    };
    let mut pooler = Pooler::start(|ini| {
        for (name, ..) in &changes {
            ini.target(name.trim_matches(['(', ')']), &line(""));
        }
    });
    moved.sql("postgres", &format!("CREATE DATABASE {database}"));
    let mut clients: Vec<Wire> = changes
        .iter()
        .map(|(name, ..)| pooler.connect(name.trim_matches(['(', ')'])))
        .collect();
    // The time of its start tells a server from another one with the same id elsewhere.
    let ask = "SELECT pg_backend_pid() || ' ' || (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())";
    let before: Vec<String> = clients.iter_mut().map(|client| client.value(ask)).collect();
    pooler.reconfigure(|ini| {
        for (name, change, _) in &changes {
            ini.target(name.trim_matches(['(', ')']), &line(change));
        }
    });
    let mut findings = Findings::default();
    for ((name, _, replaced), (client, before)) in
        changes.iter().zip(clients.iter_mut().zip(before))
    {
        findings.compare(
            format!("{name}: another server"),
            client.value(ask) != before,
            *replaced,
        );
    }
    findings.report();
}
