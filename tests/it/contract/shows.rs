//! What the console shows: columns with their types as they go over the wire, and who may see them.

use super::{Findings, fatal, fields, shown};
use crate::support::pooler::is_pgbouncer;
use crate::support::wire::{Refusal, error};
use crate::support::{Message, Pooler, Wire, postgres};

/// Each SHOW with its columns, in order: `t` text, `i` int4, `q` int8, `n` numeric, `b` bytea. Ours stand behind a `|`.
const SHOWS: &[(&str, &[&str])] = &[
    ("CLIENTS", &[CONNECTION, "| pinned t"]),
    (
        "SERVERS",
        &[CONNECTION, "| prepare_cache_hit q, prepare_cache_miss q"],
    ),
    ("SOCKETS", &[CONNECTION, BUFFERS]),
    ("ACTIVE_SOCKETS", &[CONNECTION, BUFFERS]),
    (
        "POOLS",
        &[
            "database t, user t, cl_active i, cl_waiting i, cl_active_cancel_req i, cl_waiting_cancel_req i",
            "sv_active i, sv_active_cancel i, sv_being_canceled i, sv_idle i, sv_used i, sv_tested i, sv_login i",
            "maxwait i, maxwait_us i, pool_mode t, load_balance_hosts t",
            "| prepare_cache_hit q, prepare_cache_miss q",
        ],
    ),
    (
        "PEER_POOLS",
        &[
            "peer_id i, cl_active_cancel_req i, cl_waiting_cancel_req i, sv_active_cancel i, sv_login i",
        ],
    ),
    ("PEERS", &["peer_id i, host t, port i, pool_size i"]),
    (
        "DATABASES",
        &[
            "name t, host t, port i, database t, force_user t, pool_size i, min_pool_size i, reserve_pool_size i",
            "server_lifetime i, pool_mode t, load_balance_hosts t, max_connections i, current_connections i",
            "max_client_connections i, current_client_connections i, paused i, disabled i",
        ],
    ),
    (
        "USERS",
        &[
            "name t, pool_size t, reserve_pool_size t, pool_mode t, max_user_connections i, current_connections i",
            "max_user_client_connections i, current_client_connections i",
        ],
    ),
    (
        "STATS",
        &[
            "database t, total_server_assignment_count n, total_xact_count n, total_query_count n, total_received n",
            "total_sent n, total_xact_time n, total_query_time n, total_wait_time n, total_client_parse_count n",
            "total_server_parse_count n, total_bind_count n, total_client_login_count n",
            "avg_server_assignment_count n, avg_xact_count n, avg_query_count n, avg_recv n, avg_sent n",
            "avg_xact_time n, avg_query_time n, avg_wait_time n, avg_client_parse_count n, avg_server_parse_count n",
            "avg_bind_count n, avg_client_login_count n",
            "| total_prepare_cache_hit n, total_prepare_cache_miss n, total_session_look_count n, total_pin_count n, total_replan_count n, total_slow_listener_count n",
            "total_unnamed_reuse_count n, total_unnamed_demotion_count n",
        ],
    ),
    (
        "STATS_TOTALS",
        &[
            "database t, server_assignment_count n, xact_count n, query_count n, bytes_received n, bytes_sent n",
            "xact_time n, query_time n, wait_time n, client_parse_count n, server_parse_count n, bind_count n",
            "client_login_count n | prepare_cache_hit n, prepare_cache_miss n, session_look_count n, pin_count n, replan_count n, slow_listener_count n",
            "unnamed_reuse_count n, unnamed_demotion_count n",
        ],
    ),
    (
        "STATS_AVERAGES",
        &[
            "database t, server_assignment_count n, xact_count n, query_count n, bytes_received n, bytes_sent n",
            "xact_time n, query_time n, wait_time n, avg_client_parse_count n, avg_server_parse_count n",
            "avg_bind_count n, avg_client_login_count n",
        ],
    ),
    ("TOTALS", &["name t, value n"]),
    ("CONFIG", &["key t, value t, default t, changeable t"]),
    ("LISTS", &["list t, items i"]),
    ("MEM", &["name t, size i, used i, free i, memtotal i"]),
    ("STATE", &["key t, value t"]),
    ("VERSION", &["version t"]),
    ("DNS_HOSTS", &["hostname t, ttl q, addrs t"]),
    ("DNS_ZONES", &["zonename t, serial q, count i"]),
    (
        "FDS",
        &[
            "fd i, task t, user t, database t, addr t, port i, cancel q, link i, client_encoding t, std_strings t",
            "datestyle t, timezone t, password t, scram_client_key b, scram_server_key b",
        ],
    ),
    (
        "PINS",
        &[
            "| client q, user t, database t, pool_user t, server q, reason t, age q, age_us i, query t",
        ],
    ),
    ("ADVICE", &["| setting t, database t, user t, advice t"]),
    (
        "ERRORS",
        &["| sqlstate t, fault t, database t, user t, count q, last t, message t"],
    ),
    (
        "RELOADS",
        &["| time t, result t, applied t, needs_restart t, error t"],
    ),
    ("PREPARED", &["| id q, name t, holders q, bytes q, query t"]),
];

const CONNECTION: &str = "type t, user t, database t, replication t, state t, addr t, port i, local_addr t, \
     local_port i, connect_time t, request_time t, wait i, wait_us i, close_needed i, ptr t, link t, remote_pid i, \
     tls t, application_name t, prepared_statements i, id i";

const BUFFERS: &str =
    "recv_pos i, pkt_pos i, pkt_remain i, send_pos i, send_remain i, pkt_avail i, send_avail i";

/// Rows whose names are the same in each version, in their order.
const ROWS: &[(&str, &str)] = &[
    (
        "LISTS",
        "databases users peers pools peer_pools free_clients used_clients login_clients free_servers used_servers \
         dns_names dns_zones dns_queries dns_pending",
    ),
    ("STATE", "active paused suspended"),
    (
        "TOTALS",
        "total_server_assignment_count total_xact_count total_query_count total_client_bytes total_server_bytes \
         total_xact_time total_query_time total_wait_time total_ps_client_parse_count total_ps_server_parse_count \
         total_ps_bind_count total_client_login_count avg_server_assignment_count avg_xact_count avg_query_count \
         avg_client_bytes avg_server_bytes avg_xact_time avg_query_time avg_wait_time avg_ps_client_parse_count \
         avg_ps_server_parse_count avg_ps_bind_count avg_client_login_count",
    ),
];

/// What drivers ask for, and what they are told.
const PARAMETERS: &[(&str, &str)] = &[
    ("client_encoding", "UTF-8"),
    ("default_transaction_isolation", "read committed"),
    ("standard_conforming_strings", "on"),
    ("datestyle", "ISO"),
    ("timezone", "GMT"),
];

/// Is it something that PgBouncer has since 1.25, and one that is older is tested?
fn is_newer(name: &str) -> bool {
    is_pgbouncer() && name.contains("client_login_count")
}

/// The columns of a SHOW, as `name type`.
fn columns(parts: &[&str]) -> Vec<String> {
    let text = parts.join(", ").replace(", |", " |");
    let ours = text.split('|').skip(1);
    let theirs = text.split('|').take(1);
    let all: Vec<&str> = if is_pgbouncer() {
        theirs.collect()
    } else {
        theirs.chain(ours).collect()
    };
    let columns = all.iter().flat_map(|part| part.split(','));
    let columns = columns.map(|column| column.trim().to_owned());
    columns
        .filter(|column| !column.is_empty() && !is_newer(column))
        .collect()
}

/// The same of a RowDescription: text format, no table, no modifier.
fn described(message: &Message) -> Vec<String> {
    let mut rest = &message.body[2..];
    let mut columns = Vec::new();
    while !rest.is_empty() {
        let (name, after) = rest.split_at(rest.iter().position(|byte| *byte == 0).unwrap());
        let (fields, after) = after[1..].split_at(18);
        let oid = u32::from_be_bytes(fields[6..10].try_into().unwrap());
        // Name, length on the wire.
        let (letter, length) = match oid {
            25 => ('t', -1),
            23 => ('i', 4),
            20 => ('q', 8),
            1700 => ('n', -1),
            17 => ('b', -1),
            _ => ('?', 0),
        };
        let mut expected = vec![0; 6];
        expected.extend(oid.to_be_bytes());
        expected.extend(i16::to_be_bytes(length));
        expected.extend(i32::to_be_bytes(-1));
        expected.extend([0, 0]);
        let name = String::from_utf8_lossy(name);
        let odd = if fields == expected {
            String::new()
        } else {
            format!(" {fields:?}")
        };
        columns.push(format!("{name} {letter}{odd}"));
        rest = after;
    }
    columns
}

fn start() -> (Pooler, String) {
    let database = postgres().database("shows");
    let pooler = Pooler::start(|ini| {
        ini.set("stats_users", "other").set("peer_id", 1);
        ini.peer(2, "host=127.0.0.1 port=1");
    });
    (pooler, database)
}

fn console(pooler: &Pooler, user: &str) -> Wire {
    pooler.login(user, "pgbouncer", None).unwrap()
}

#[test]
fn every_show_has_pgbouncers_columns_and_types_and_then_ours() {
    let (pooler, database) = start();
    pooler.connect(&database).rows("SELECT 1");
    let mut findings = Findings::default();
    for word in ["SHOW", "select"] {
        let mut console = console(&pooler, "postgres");
        for (name, parts) in SHOWS {
            let wanted = columns(parts);
            if wanted.is_empty() {
                continue;
            }
            let replies = console.query(&format!("{word} {name}"));
            let description = replies.iter().find(|message| message.tag == b'T');
            findings.compare(name, description.map(described), Some(wanted));
            let end: Vec<_> = replies
                .iter()
                .rev()
                .take(2)
                .map(|it| (it.tag, shown(it)))
                .collect();
            findings.compare(
                format!("{name}: the end"),
                end,
                vec![(b'Z', "I".to_owned()), (b'C', "SHOW\\0".to_owned())],
            );
        }
    }
    findings.report();
}

#[test]
fn tables_of_names_have_pgbouncers_rows() {
    let (pooler, _) = start();
    let mut console = console(&pooler, "postgres");
    let mut findings = Findings::default();
    for (name, names) in ROWS {
        let rows = console.rows(&format!("SHOW {name}"));
        let found = rows
            .rows
            .iter()
            .map(|row| row[0].clone().unwrap_or_default());
        let ours = [
            "total_prepare_cache_hit",
            "total_prepare_cache_miss",
            "total_session_look_count",
            "total_pin_count",
            "total_replan_count",
            "total_slow_listener_count",
            "total_unnamed_reuse_count",
            "total_unnamed_demotion_count",
        ];
        let found: Vec<_> = found
            .filter(|name| !ours.contains(&name.as_str()))
            .collect();
        let names = names.split_whitespace().filter(|name| !is_newer(name));
        findings.compare(name, found, names.collect::<Vec<_>>());
    }
    for (name, value) in PARAMETERS {
        let rows = console.rows(&format!("SHOW {}", name.to_uppercase()));
        findings.compare(
            name,
            (rows.columns, rows.rows),
            (
                vec![(*name).to_owned()],
                vec![vec![Some((*value).to_owned())]],
            ),
        );
    }
    let usage = console.query("SHOW HELP");
    let told = usage.iter().find(|message| message.tag == b'N').unwrap();
    let told = (told.field('S'), told.sqlstate(), told.field('M'));
    findings.compare(
        "SHOW HELP",
        told,
        (
            Some("NOTICE".to_owned()),
            "00000".to_owned(),
            Some("Console usage".to_owned()),
        ),
    );
    let version = console.value("SHOW VERSION");
    let number = version
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .find(|word| word.matches('.').count() == 2);
    findings.compare(
        "a PgBouncer's number first",
        number.map(|it| it.starts_with("1.2")),
        Some(true),
    );
    findings.report();
}

#[test]
fn the_console_greets_with_pgbouncers_parameters() {
    let (pooler, _) = start();
    let console = console(&pooler, "postgres");
    let mut findings = Findings::default();
    let wanted = [
        ("client_encoding", "UTF8"),
        ("server_encoding", "UTF8"),
        ("DateStyle", "ISO"),
        ("TimeZone", "GMT"),
        ("standard_conforming_strings", "on"),
        ("is_superuser", "on"),
    ];
    for (name, value) in wanted {
        findings.compare(name, console.parameter(name), Some(value));
    }
    let version = console.parameter("server_version").unwrap_or_default();
    findings.compare("server_version", version.ends_with("/bouncer"), true);
    findings.compare("how many", console.parameters.len(), wanted.len() + 1);
    findings.compare("the status", console.status, b'I');
    findings.report();
}

#[test]
fn who_may_look_sees_all_but_fds_and_who_may_not_is_sent_away() {
    let (pooler, _) = start();
    let denied = fields("ERROR", "08P01", "admin access needed");
    let mut viewer = console(&pooler, "other");
    let mut findings = Findings::default();
    for (name, parts) in SHOWS.iter().filter(|(_, parts)| !columns(parts).is_empty()) {
        let replies = viewer.query(&format!("SHOW {name}"));
        if *name == "FDS" {
            findings.compare(name, shown(error(&replies)), denied.clone());
        } else {
            let description = replies.iter().find(|message| message.tag == b'T');
            findings.compare(name, description.map(described), Some(columns(parts)));
        }
    }
    for (name, _) in PARAMETERS {
        findings.compare(name, viewer.rows(&format!("SHOW {name}")).rows.len(), 1);
        let replies = viewer.query(&format!("SET {name} = 'x'"));
        let told: Vec<_> = replies.iter().map(|it| (it.tag, shown(it))).collect();
        let wanted = vec![
            (b'N', fields("NOTICE", "00000", "SET ignored")),
            (b'C', "SET\\0".to_owned()),
            (b'Z', "I".to_owned()),
        ];
        findings.compare(format!("SET {name}"), told, wanted);
    }
    let commands = [
        "SET query_timeout = 1",
        "RELOAD",
        "PAUSE",
        "PAUSE postgres",
        "RESUME",
        "RESUME postgres",
        "DISABLE postgres",
        "ENABLE postgres",
        "RECONNECT",
        "KILL",
        "KILL_CLIENT 1",
        "WAIT_CLOSE",
        "SUSPEND",
        "SHUTDOWN",
        "SHUTDOWN WAIT_FOR_SERVERS",
        "SHUTDOWN WAIT_FOR_CLIENTS",
    ];
    for command in commands {
        let replies = viewer.query(command);
        findings.compare(command, shown(error(&replies)), denied.clone());
        findings.compare(
            format!("{command}: the end"),
            replies.last().map(|it| it.tag),
            Some(b'Z'),
        );
    }
    let Some(Refusal::Error(refusal)) = pooler.login("app", "pgbouncer", None).err() else {
        panic!("who may not look came in");
    };
    findings.compare("a stranger", shown(&refusal), fatal("not allowed"));
    findings.report();
}

#[test]
fn who_is_anybody_may_look() {
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "any").database("*", "user=app");
    });
    let mut viewer = console(&pooler, "whoever");
    assert!(!viewer.rows("SHOW POOLS").rows.is_empty());
    assert_eq!(
        shown(error(&viewer.query("PAUSE"))),
        fields("ERROR", "08P01", "admin access needed")
    );
    let mut admin = console(&pooler, "postgres");
    assert_eq!(admin.rows("PAUSE").rows.len(), 0);
}
