//! What monitoring is told: one table of metrics, read from the same places as SHOW.
//!
//! What a scrape costs goes with the number of pools, never with that of clients or of queries. Pools beyond `metrics_max_pools`
//! are added up as one, so that a monitoring system is not flooded where every user has a pool.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::admin::Console;
use crate::admin::numbers::Numbers;
use crate::stats::errors::OTHERS;
use crate::stats::exposition::{Family, Kind, Labels, Value, seconds};
use crate::stats::histogram::Distribution;

/// A metric that each pool has.
struct Metric {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    read: fn(&Numbers) -> Value,
}

/// Makes a table of them from rows: kind, name, what it tells, and how it is read.
macro_rules! metrics {
    ($($kind:ident $name:literal $help:literal |$row:ident| $read:expr;)*) => {
        &[$(Metric { name: $name, help: $help, kind: Kind::$kind, read: |$row| $read },)*]
    };
}

#[allow(clippy::cast_precision_loss, reason = "2^53 of anything are exact")]
fn number(value: u64) -> Value {
    Value::Number(value as f64)
}

fn count(value: usize) -> Value {
    number(value as u64)
}

fn times(value: &Distribution) -> Value {
    Value::Times(Box::new(value.clone()))
}

static OF_POOLS: &[Metric] = metrics! {
    Gauge "pgferry_clients_waiting" "Clients that wait for a server." |row| count(row.waiting);
    Gauge "pgferry_longest_wait_seconds" "How long the first of them has waited." |row| Value::Number(row.longest_wait.as_secs_f64());
    Gauge "pgferry_servers_active" "Servers that are lent to clients, checked or reset." |row| count(row.busy());
    Gauge "pgferry_servers_idle" "Servers that are free." |row| count(row.idle);
    Gauge "pgferry_servers_connecting" "Connections to PostgreSQL that are being made." |row| count(row.connecting);
    Gauge "pgferry_pool_size" "The most servers the pool may have, without its reserve; 0: no limit." |row| count(row.size);
    Gauge "pgferry_servers_pinned" "Servers that clients keep because of what they have left there." |row| count(row.pinned);
    Gauge "pgferry_pool_paused" "Whether the pool is paused." |row| count(row.paused);
    Counter "pgferry_server_assignments_total" "Times a server was given to a client." |row| number(row.totals.server_assignments);
    Counter "pgferry_transactions_total" "Transactions." |row| number(row.totals.transactions);
    Counter "pgferry_queries_total" "Queries; a pipeline up to its last Sync is one." |row| number(row.totals.queries);
    Counter "pgferry_received_bytes_total" "Bytes from clients." |row| number(row.totals.received);
    Counter "pgferry_sent_bytes_total" "Bytes to clients." |row| number(row.totals.sent);
    Counter "pgferry_client_logins_total" "Clients that have logged in." |row| number(row.totals.client_logins);
    Counter "pgferry_client_parses_total" "Named statements that clients have prepared." |row| number(row.totals.client_parses);
    Counter "pgferry_server_parses_total" "Named statements that were prepared on servers." |row| number(row.totals.server_parses);
    Counter "pgferry_binds_total" "Times a named statement was bound." |row| number(row.totals.binds);
    Counter "pgferry_prepared_hits_total" "Times the server had the statement that was asked for." |row| number(row.totals.prepare_cache_hits);
    Counter "pgferry_prepared_misses_total" "Times it had to be prepared first." |row| number(row.totals.prepare_cache_misses);
    Counter "pgferry_replans_total" "Batches run again because a table had changed under a prepared statement." |row| number(row.totals.replans);
    Counter "pgferry_session_looks_total" "Looks at a session whose client may have changed it." |row| number(row.totals.looks);
    Counter "pgferry_pins_total" "Times a client began to keep its server." |row| number(row.totals.pins);
    Counter "pgferry_server_desyncs_total" "Servers closed because their stream was not proved empty." |row| number(row.totals.server_desyncs);
    Counter "pgferry_server_drains_total" "Servers left in the middle of something and brought back." |row| number(row.totals.server_drains);
    Counter "pgferry_pooler_errors_total" "Errors that the pooler itself has sent to clients." |row| number(row.totals.pooler_errors);
    Histogram "pgferry_wait_seconds" "What clients waited for a server, if they had to." |row| times(&row.wait);
    Histogram "pgferry_transaction_seconds" "Transactions, from a client's first message to the release of its server." |row| times(&row.transaction);
    Histogram "pgferry_query_seconds" "Queries, from the first message to the server to its last answer." |row| times(&row.query);
    Histogram "pgferry_connect_seconds" "Connections to PostgreSQL, from the first packet to the end of the login." |row| times(&row.connect);
};

/// All metrics of this moment.
pub fn gather(console: &Console) -> Vec<Family> {
    let rows = rows(console);
    let mut families: Vec<Family> = OF_POOLS
        .iter()
        .map(|metric| Family {
            name: metric.name,
            help: metric.help,
            kind: metric.kind,
            samples: rows
                .iter()
                .map(|(labels, row)| (labels.clone(), (metric.read)(row)))
                .collect(),
        })
        .collect();
    families.extend(of_process(console));
    families.push(errors(console));
    families.extend(reloads(console));
    families.push(panics(console));
    families.extend(telemetry(console));
    families
}

fn panics(console: &Console) -> Family {
    Family {
        name: "pgferry_panics_total",
        help: "Tasks that have met with a bug and ended, with their clients alone.",
        kind: Kind::Counter,
        samples: vec![(
            Labels::new(),
            number(console.manager.parts().workers.panics()),
        )],
    }
}

/// What becomes of what is sent by `otlp_endpoint`.
fn telemetry(console: &Console) -> [Family; 2] {
    let fate = console.manager.parts().registry.spans.fate();
    let sample =
        |(result, count): (&str, u64)| (vec![("result", result.to_owned())], number(count));
    [
        Family {
            name: "pgferry_otlp_spans_total",
            help: "Spans of traced transactions, by what came of them: sent to the collector, or dropped.",
            kind: Kind::Counter,
            samples: [("sent", fate.sent), ("dropped", fate.dropped)]
                .map(sample)
                .to_vec(),
        },
        Family {
            name: "pgferry_otlp_failures_total",
            help: "Requests to the collector that have failed.",
            kind: Kind::Counter,
            samples: vec![(Labels::new(), number(fate.failures))],
        },
    ]
}

fn reloads(console: &Console) -> [Family; 2] {
    let reloads = &console.manager.parts().registry.reloads;
    let (done, rejected) = reloads.counts();
    let sample =
        |(result, count): (&str, u64)| (vec![("result", result.to_owned())], number(count));
    [
        Family {
            name: "pgferry_config_reloads_total",
            help: "Reloads of the configuration, by what came of them: ok or rejected.",
            kind: Kind::Counter,
            samples: [("ok", done), ("rejected", rejected)].map(sample).to_vec(),
        },
        single(
            "pgferry_config_last_reload_success",
            "Whether the latest reload was taken; 1 also if there was none.",
            Kind::Gauge,
            f64::from(u8::from(reloads.is_latest_done())),
        ),
    ]
}

/// Errors by what they are; who had them is SHOW ERRORS' to say.
fn errors(console: &Console) -> Family {
    let mut counts: BTreeMap<(String, &str), u64> = BTreeMap::new();
    for row in console.manager.parts().registry.errors.rows() {
        *counts.entry((row.sqlstate, row.fault.word())).or_default() += row.count;
    }
    let sample = |((sqlstate, fault), count): ((String, &str), u64)| {
        let labels = vec![("sqlstate", sqlstate), ("fault", fault.to_owned())];
        (labels, number(count))
    };
    Family {
        name: "pgferry_errors_total",
        help: "Errors that clients were sent, by SQLSTATE and whose they are: the client's, the server's or the pooler's own.",
        kind: Kind::Counter,
        samples: counts.into_iter().map(sample).collect(),
    }
}

/// The text of `docs/monitoring.md`, for the families that there are.
pub fn markdown(families: &[Family]) -> String {
    use std::fmt::Write;
    let mut text = String::from(include_str!("monitoring_head.md"));
    for family in families {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| `{}` | {} | {} |",
            family.name,
            family.kind.word(),
            family.help
        );
    }
    text
}

/// The pools, by their labels.
fn rows(console: &Console) -> Vec<(Labels, Numbers)> {
    let limit = console
        .manager
        .parts()
        .config
        .load()
        .settings
        .metrics_max_pools;
    let mut rows: BTreeMap<(String, String), Numbers> = BTreeMap::new();
    // The oldest keep their names, so that a series does not come and go.
    for (at, pool) in console.manager.pools().iter().enumerate() {
        let key = if at < limit {
            (pool.database.clone(), pool.user.clone())
        } else {
            (OTHERS.to_owned(), OTHERS.to_owned())
        };
        rows.entry(key).or_default().merge(&Numbers::of(pool));
    }
    let labels = |(database, user)| vec![("database", database), ("user", user)];
    rows.into_iter()
        .map(|(key, row)| (labels(key), row))
        .collect()
}

fn single(name: &'static str, help: &'static str, kind: Kind, value: f64) -> Family {
    Family {
        name,
        help,
        kind,
        samples: vec![(Labels::new(), Value::Number(value))],
    }
}

#[allow(clippy::cast_precision_loss, reason = "2^53 of anything are exact")]
fn of_process(console: &Console) -> Vec<Family> {
    use Kind::{Counter, Gauge};
    let manager = &console.manager;
    let parts = manager.parts();
    let usage = usage();
    let began = SystemTime::now() - manager.started().elapsed();
    let began = began.duration_since(UNIX_EPOCH).unwrap_or_default();
    let info = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    vec![
        Family {
            name: "pgferry_build_info",
            help: "Which pgferry it is.",
            kind: Gauge,
            samples: vec![(info, Value::Number(1.0))],
        },
        single(
            "pgferry_clients",
            "Connections of clients, those that are logging in included.",
            Gauge,
            manager.active_clients() as f64,
        ),
        single(
            "pgferry_max_client_conn",
            "The most there may be.",
            Gauge,
            parts.config.load().settings.max_client_conn as f64,
        ),
        single(
            "pgferry_pools",
            "Pools.",
            Gauge,
            manager.pools().len() as f64,
        ),
        single(
            "pgferry_workers",
            "Worker threads.",
            Gauge,
            parts.workers.count() as f64,
        ),
        single(
            "pgferry_workers_in_use",
            "Worker threads that clients are on.",
            Gauge,
            parts.workers.in_use() as f64,
        ),
        single(
            "pgferry_shutting_down",
            "Whether the process is about to end.",
            Gauge,
            f64::from(u8::from(console.control.is_shutting_down())),
        ),
        single(
            "process_start_time_seconds",
            "When the process began, in seconds after 1970.",
            Gauge,
            began.as_secs_f64(),
        ),
        single(
            "process_cpu_seconds_total",
            "CPU time, of the process and of the kernel for it.",
            Counter,
            usage.cpu,
        ),
        single(
            "process_resident_memory_bytes",
            "Resident memory.",
            Gauge,
            usage.memory as f64,
        ),
        single(
            "process_max_fds",
            "The limit of open files.",
            Gauge,
            usage.max_files as f64,
        ),
    ]
}

/// What the process has used.
#[derive(Debug, Default)]
struct Usage {
    cpu: f64,
    memory: u64,
    max_files: u64,
}

/// How many files the process may open; 0: the kernel does not say.
pub(super) fn max_files() -> u64 {
    usage().max_files
}

/// What the kernel says of us; zeros where it says nothing.
fn usage() -> Usage {
    use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
    use nix::sys::time::TimeValLike;
    let micros =
        |time: nix::sys::time::TimeVal| u64::try_from(time.num_microseconds()).unwrap_or(0);
    let cpu = getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| {
        micros(usage.user_time()) + micros(usage.system_time())
    });
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident = pages
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok());
    Usage {
        cpu: seconds(cpu),
        memory: resident.unwrap_or(0_u64) * 4096,
        max_files: getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are() {
        for metric in OF_POOLS {
            assert_eq!(
                metric.kind == Kind::Counter,
                metric.name.ends_with("_total"),
                "{}",
                metric.name
            );
            assert_eq!(
                metric.kind == Kind::Histogram,
                metric.name.ends_with("_seconds") && !metric.name.contains("longest"),
                "{}",
                metric.name
            );
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn the_process_has_used_something() {
        let usage = usage();
        assert!(usage.memory > 1 << 20 && usage.max_files > 0, "{usage:?}");
    }
}
