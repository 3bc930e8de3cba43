//! The pages for monitoring and for people: `http_listen`.

use std::net::Ipv4Addr;

use nix::sys::signal::Signal;

use crate::support::http::{ask, get};
use crate::support::pooler::Ini;
use crate::support::ports::free_port;
use crate::support::wire::Rows;
use crate::support::{Pooler, postgres};

fn start(change: impl FnOnce(&mut Ini)) -> (Pooler, u16, String) {
    let port = free_port();
    let pooler = Pooler::start(|ini| {
        ini.set("http_listen", format!("127.0.0.1:{port}"));
        change(ini);
    });
    (pooler, port, postgres().database("http"))
}

/// The value of a sample, which is a whole number.
fn count(text: &str, name: &str) -> u64 {
    let value = sample(text, name);
    assert!(value.fract().abs() < f64::EPSILON, "{name} {value}");
    format!("{value}").parse().unwrap()
}

/// The value of a sample.
fn sample(text: &str, name: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}"))
        .parse()
        .unwrap()
}

#[test]
fn metrics_are_the_numbers_of_show() {
    // On a busy machine the pool may find a second server worth having.
    let (pooler, port, database) = start(|ini| {
        ini.set("default_pool_size", 1);
    });
    let mut client = pooler.connect(&database);
    for _ in 0..20 {
        client.rows("SELECT 1");
    }
    client.rows("BEGIN");
    client.rows("SELECT pg_sleep(0.3)");
    let labels = format!("{{database=\"{database}\",user=\"app\"}}");
    let text = get(port, "/metrics").body;
    assert_eq!(count(&text, &format!("pgferry_servers_active{labels}")), 1);
    client.rows("COMMIT");
    let text = get(port, "/metrics").body;
    let stats: Rows = pooler.console("SHOW STATS");
    let row = stats.find("database", &database).unwrap();
    let pairs = [
        ("pgferry_transactions_total", "total_xact_count"),
        ("pgferry_queries_total", "total_query_count"),
        ("pgferry_received_bytes_total", "total_received"),
        ("pgferry_sent_bytes_total", "total_sent"),
        ("pgferry_client_logins_total", "total_client_login_count"),
        ("pgferry_session_looks_total", "total_session_look_count"),
    ];
    for (metric, column) in pairs {
        let shown: u64 = stats.get(row, column).parse().unwrap();
        assert_eq!(
            count(&text, &format!("{metric}{labels}")),
            shown,
            "{metric}"
        );
    }
    assert_eq!(count(&text, &format!("pgferry_servers_idle{labels}")), 1);
    assert_eq!(
        count(&text, &format!("pgferry_query_seconds_count{labels}")),
        23
    );
    assert_eq!(
        count(&text, &format!("pgferry_transaction_seconds_count{labels}")),
        21
    );
    let bucket = |le| {
        format!("pgferry_query_seconds_bucket{{database=\"{database}\",user=\"app\",le=\"{le}\"}}")
    };
    assert_eq!(count(&text, &bucket("0.25")), 22);
    assert_eq!(count(&text, &bucket("+Inf")), 23);
    assert_eq!(
        count(&text, &format!("pgferry_connect_seconds_count{labels}")),
        1
    );
    let sum = sample(&text, &format!("pgferry_query_seconds_sum{labels}"));
    assert!((0.3..10.0).contains(&sum), "{sum}");
    assert!(sample(&text, "process_resident_memory_bytes") > 1e6);
}

#[test]
fn each_format_is_given_to_who_asks_for_it() {
    let (_pooler, port, _) = start(|_| ());
    let kinds = [
        ("", "text/plain; version=0.0.4"),
        (
            "\r\nAccept: application/openmetrics-text;version=1.0.0",
            "application/openmetrics-text",
        ),
        (
            "\r\nAccept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
            "application/vnd.google.protobuf",
        ),
    ];
    for (header, wanted) in kinds {
        let answer = ask(port, &format!("GET /metrics HTTP/1.1{header}"));
        assert_eq!(answer.status, 200);
        assert!(
            answer.head.contains(&format!("content-type: {wanted}")),
            "{}",
            answer.head
        );
        assert_eq!(
            answer.body.ends_with("# EOF\n"),
            wanted.contains("openmetrics")
        );
    }
}

#[test]
fn pools_beyond_the_limit_are_added_up() {
    let (pooler, port, database) = start(|ini| {
        ini.set("metrics_max_pools", 2);
    });
    for at in 0..5 {
        let name = format!("{database}_{at}");
        postgres().sql(&database, &format!("CREATE DATABASE {name}"));
        pooler.connect(&name).rows("SELECT 1");
    }
    let text = get(port, "/metrics").body;
    let series = text
        .lines()
        .filter(|line| line.starts_with("pgferry_queries_total{"));
    assert_eq!(series.count(), 3, "{text}");
    let others = count(
        &text,
        "pgferry_queries_total{database=\"(others)\",user=\"(others)\"}",
    );
    assert_eq!(others, 3);
}

#[test]
fn health_and_readiness_differ_when_the_end_has_begun() {
    let (pooler, port, database) = start(|_| ());
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(port, path).status, 200, "{path}");
    }
    pooler.signal(Signal::SIGTERM);
    crate::support::wait_until("it is not ready any more", || {
        get(port, "/readyz").status == 503
    });
    assert_eq!(get(port, "/healthz").status, 200);
    assert_eq!(
        count(&get(port, "/metrics").body, "pgferry_shutting_down"),
        1
    );
}

#[test]
fn the_page_shows_the_pools_and_needs_no_script() {
    let (pooler, port, database) = start(|_| ());
    pooler.connect(&database).rows("SELECT 1");
    let answer = get(port, "/");
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/html"));
    assert!(
        answer.body.contains(&format!("<td>{database}</td>")),
        "{}",
        answer.body
    );
    assert!(!answer.body.contains("<script"));
}

#[test]
fn anything_else_is_refused() {
    let (_pooler, port, _) = start(|_| ());
    assert_eq!(get(port, "/nothing").status, 404);
    assert_eq!(get(port, "/metrics/").status, 404);
    let answer = ask(port, "POST /metrics HTTP/1.1\r\nContent-Length: 0");
    assert_eq!(answer.status, 405);
    assert!(answer.head.contains("allow: get, head"));
    let answer = ask(port, "HEAD /metrics HTTP/1.1");
    assert_eq!((answer.status, answer.body.as_str()), (200, ""));
    assert_eq!(ask(port, "GET / HTTP/9.9").status, 400);
}

#[test]
fn an_address_that_can_not_be_bound_ends_the_start() {
    let holder = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken = holder.local_addr().unwrap();
    let mut pooler = Pooler::launch(|ini| {
        ini.set("http_listen", taken);
    });
    assert_eq!(pooler.wait().code(), Some(1));
    let wanted = format!("could not listen on http_listen '{taken}'");
    assert!(pooler.log().contains(&wanted), "{}", pooler.log());
}
