//! Telemetry: `otlp_endpoint`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pgferry::stats::exposition::otlp::Metric;
use pgferry::stats::otlp::Span;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::collector::{Behaviour, Collector, attribute, nobody, text};
use crate::support::frontend::{bind, execute, parse, sync};
use crate::support::http::get;
use crate::support::pooler::Ini;
use crate::support::ports::free_port;
use crate::support::tls::Authority;
use crate::support::wire::error;
use crate::support::{Pooler, postgres, wait_until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A comment that says this trace, by this span, sampled or not.
fn comment(trace: &str, flags: &str) -> String {
    format!("/*traceparent='00-{trace}-{PARENT}-{flags}'*/")
}

fn start(collector: &Collector, change: impl FnOnce(&mut Ini)) -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("otlp_endpoint", collector.url())
            .set("otlp_interval", 0)
            .set("otlp_traceparent", "comment");
        change(ini);
    });
    (pooler, postgres().database("otlp"))
}

fn hex(bytes: &[u8]) -> String {
    let number = bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u128::from(*byte));
    format!("{number:0width$x}", width = 2 * bytes.len())
}

fn of(trace: &str) -> impl Fn(&Span) -> bool + '_ {
    move |span| hex(&span.trace_id) == trace
}

/// The number of a sum for these labels.
fn sum(metrics: &[Metric], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let metric = metrics.iter().find(|metric| metric.name == name)?;
    let mut points = metric.sum.as_ref()?.data_points.iter();
    let found = points.find(|point| {
        labels
            .iter()
            .all(|(key, value)| text(&point.attributes, key).as_deref() == Some(*value))
    });
    found?.as_double
}

#[test]
fn metrics_are_those_of_the_page() {
    let (collector, port) = (Collector::start(), free_port());
    let (pooler, database) = start(&collector, |ini| {
        ini.set("otlp_interval", 1)
            .set(
                "otlp_resource_attributes",
                "deployment.environment.name=t%20est",
            )
            .set("http_listen", format!("127.0.0.1:{port}"));
    });
    let mut client = pooler.connect(&database);
    for _ in 0..7 {
        client.rows("SELECT 1");
    }
    let labels = [("database", database.as_str()), ("user", "app")];
    let queries = |metrics: &[Metric]| sum(metrics, "pgferry_queries_total", &labels);
    let (resource, metrics) = collector.metrics(|it| queries(it) == Some(7.0));
    let page = get(port, "/metrics").body;
    let line = format!("pgferry_queries_total{{database=\"{database}\",user=\"app\"}} 7\n");
    assert!(page.contains(&line), "{page}");
    let name = |key| text(&resource.attributes, key);
    assert_eq!(name("service.name").as_deref(), Some("pgferry"));
    let environment = name("deployment.environment.name");
    assert_eq!(environment.as_deref(), Some("t est"));
    // All families of the page that have samples are there.
    let mut families: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    families.retain(|family| {
        page.contains(&format!("\n{family}{{"))
            || page.contains(&format!("\n{family} "))
            || page.contains(&format!("\n{family}_count"))
    });
    for family in families {
        assert!(metrics.iter().any(|it| it.name == family), "{family}");
    }
    let times = metrics.iter().find(|it| it.name == "pgferry_query_seconds");
    let times = times.unwrap().histogram.as_ref().unwrap();
    assert_eq!(times.data_points[0].count, 7);
}

#[test]
fn a_transaction_with_a_traceparent_is_a_span_of_that_trace() {
    let collector = Collector::start();
    let (pooler, database) = start(&collector, |_| ());
    let mut client = pooler.connect(&database);
    client.rows(&format!(
        "SELECT pg_sleep(0.05), 'secret' {}",
        comment(TRACE, "01")
    ));
    let span = collector.span(of(TRACE));
    assert_eq!(hex(&span.parent_span_id), PARENT);
    assert_eq!(span.span_id.len(), 8);
    assert_eq!(span.name, format!("SELECT {database}"));
    let took = span.end_time_unix_nano - span.start_time_unix_nano;
    assert!((50_000_000..5_000_000_000).contains(&took), "{took}");
    let get = |key| text(&span.attributes, key);
    for (key, value) in [
        ("db.system.name", "postgresql"),
        ("db.namespace", &database),
        ("db.operation.name", "SELECT"),
        ("user.name", "app"),
        ("server.address", "127.0.0.1"),
    ] {
        assert_eq!(get(key).as_deref(), Some(value), "{key}");
    }
    let port = attribute(&span.attributes, "server.port").unwrap();
    assert_eq!(port.int_value, Some(i64::from(postgres().port())));
    let rows = attribute(&span.attributes, "pgferry.rows").unwrap();
    assert_eq!(rows.int_value, Some(1));
    assert_eq!(get("db.query.text"), None);
    assert_eq!(span.status, None);
}

#[test]
fn what_is_not_sampled_makes_none_and_what_says_nothing_is_drawn() {
    let collector = Collector::start();
    let (mut pooler, database) = start(&collector, |ini| {
        ini.set("otlp_sample", 1);
    });
    let mut client = pooler.connect(&database);
    client.rows(&format!("SELECT 1 {}", comment(TRACE, "00")));
    client.rows("SELECT 2");
    client.rows("SHOW work_mem");
    let shown = collector.span(|span| span.name.starts_with("SHOW"));
    assert!(shown.parent_span_id.is_empty() && shown.trace_id.len() == 16);
    let spans = collector.spans();
    assert!(!spans.iter().any(of(TRACE)), "{spans:?}");
    assert_eq!(spans.len(), 2);
    pooler.reconfigure(|ini| {
        ini.set("otlp_sample", 0).set("otlp_traceparent", "off");
    });
    client.rows(&format!("SELECT 3 {}", comment(TRACE, "01")));
    pooler.reconfigure(|ini| {
        ini.set("otlp_traceparent", "both");
    });
    client.rows(&format!("SHOW ALL {}", comment(TRACE, "01")));
    let span = collector.span(of(TRACE));
    assert!(span.name.starts_with("SHOW"), "{}", span.name);
}

#[test]
fn a_transaction_of_several_queries_is_one_span() {
    let collector = Collector::start();
    let (pooler, database) = start(&collector, |_| ());
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    client.rows(&format!("SELECT 1 {}", comment(TRACE, "01")));
    let failed = client.query("SELECT 1/0");
    assert_eq!(error(&failed).field('C').as_deref(), Some("22012"));
    client.rows("ROLLBACK");
    let span = collector.span(of(TRACE));
    assert_eq!(span.name, format!("SELECT {database}"));
    let queries = attribute(&span.attributes, "pgferry.queries").unwrap();
    assert_eq!(queries.int_value, Some(4));
    let code = text(&span.attributes, "db.response.status_code");
    assert_eq!(code.as_deref(), Some("22012"));
    assert_eq!(span.status.unwrap().code, 2);
    // The next one is another one.
    client.rows("SELECT 1");
    client.rows(&format!("SELECT 1 {}", comment(&"7".repeat(32), "01")));
    assert_eq!(collector.span(of(&"7".repeat(32))).status, None);
    assert_eq!(collector.spans().len(), 2);
}

#[test]
fn whoever_leaves_in_the_middle_ends_the_span() {
    let collector = Collector::start();
    let (pooler, database) = start(&collector, |_| ());
    let mut client = pooler.connect(&database);
    client.rows("BEGIN");
    client.rows(&format!("SELECT 1 {}", comment(TRACE, "01")));
    client.abort();
    let span = collector.span(of(TRACE));
    let reason = text(&span.attributes, "error.type");
    assert_eq!(reason.as_deref(), Some("left"));
}

#[test]
fn the_extended_protocol_and_application_names_have_a_say() {
    let collector = Collector::start();
    let (pooler, database) = start(&collector, |ini| {
        ini.set("otlp_traceparent", "both");
    });
    let mut client = pooler.connect(&database);
    let sql = format!("{} INSERT INTO pg_temp.x VALUES ($1)", comment(TRACE, "01"));
    client.rows("CREATE TEMP TABLE x (a text)");
    client.exchange(&[
        parse("", "BEGIN", &[]),
        bind("", "", &[]),
        execute("", 0),
        parse("", &sql, &[]),
        bind("", "", &[Some(b"a".to_vec())]),
        execute("", 0),
        sync(),
    ]);
    client.rows("COMMIT");
    assert_eq!(hex(&collector.span(of(TRACE)).parent_span_id), PARENT);
    let other = "8".repeat(32);
    let name = format!("shop 00-{other}-{PARENT}-01");
    let mut client = pooler.connect_with(&database, &[("application_name", &name)]);
    client.rows("SELECT 1");
    assert_eq!(hex(&collector.span(of(&other)).parent_span_id), PARENT);
}

#[test]
fn a_wait_is_part_of_a_span_and_so_is_one_that_was_in_vain() {
    let collector = Collector::start();
    let (pooler, database) = start(&collector, |ini| {
        ini.set("default_pool_size", 1).set("query_wait_timeout", 1);
    });
    let mut first = pooler.connect(&database);
    let mut second = pooler.connect(&database);
    first.rows("BEGIN");
    second.query(&format!("SELECT 1 {}", comment(TRACE, "01")));
    let span = collector.span(of(TRACE));
    let wait = attribute(&span.attributes, "pgferry.wait").unwrap();
    assert!(wait.double_value.unwrap() >= 1.0, "{wait:?}");
    assert!(text(&span.attributes, "server.address").is_none());
    assert_eq!(
        text(&span.attributes, "error.type").as_deref(),
        Some("08P01")
    );
    let other = "9".repeat(32);
    let mut third = pooler.connect(&database);
    let asked = comment(&other, "01");
    let waits = std::thread::spawn(move || third.rows(&format!("SELECT 1 {asked}")));
    pooler.wait_for_pool(&database, "app", "cl_waiting", 1);
    first.rows("SELECT pg_sleep(0.2)");
    first.rows("COMMIT");
    waits.join().unwrap();
    let span = collector.span(of(&other));
    let wait = attribute(&span.attributes, "pgferry.wait").unwrap();
    assert!(
        (0.15..10.0).contains(&wait.double_value.unwrap()),
        "{wait:?}"
    );
    assert_eq!(span.status, None);
}

#[test]
fn texts_are_told_as_the_log_may_have_them() {
    for (how, wanted) in [
        ("normalized", "SELECT ?, ? + ?"),
        ("full", "SELECT 'hunter2', 1 + 1"),
    ] {
        let collector = Collector::start();
        let (pooler, database) = start(&collector, |ini| {
            ini.set("log_statement_text", how).set("otlp_sample", 1);
        });
        let mut client = pooler.connect(&database);
        client.rows("SELECT 'hunter2', 1 + 1");
        let span = collector.span(|_| true);
        let told = text(&span.attributes, "db.query.text");
        assert_eq!(told.as_deref(), Some(wanted));
        assert!(!pooler.log().contains("hunter2"));
    }
}

#[test]
fn secrets_go_to_the_collector_and_nowhere_else() {
    let collector = Collector::start();
    let (mut pooler, database) = start(&collector, |ini| {
        ini.set("otlp_headers", "Authorization=Bearer%20hunter2,x-org=7")
            .set("verbose", 3);
    });
    let mut client = pooler.connect(&database);
    client.rows(&format!("SELECT 1 {}", comment(TRACE, "01")));
    collector.span(of(TRACE));
    let head = collector.head();
    assert!(
        head.contains("\r\nauthorization: bearer hunter2\r\n"),
        "{head}"
    );
    assert!(head.contains("\r\nx-org: 7\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-type: application/x-protobuf\r\n"));
    let shown = pooler.console("SHOW CONFIG");
    let row = shown.find("key", "otlp_headers").unwrap();
    assert_eq!(shown.get(row, "value"), "authorization=(..),x-org=(..)");
    collector.behaves(Behaviour::Refuses(401, "x: y"));
    client.rows(&format!("SELECT 1 {}", comment(TRACE, "01")));
    wait_until("a line about it", || pooler.log().contains("401"));
    pooler.reconfigure(|ini| {
        ini.set("otlp_headers", "authorization=Bearer%20hunter2-new");
    });
    let reloads = pooler.console("SHOW RELOADS");
    assert!(!format!("{reloads:?}").contains("hunter2"));
    assert!(!pooler.log().contains("hunter2"), "{}", pooler.log());
}

/// A line of the page: how many spans came to this.
fn spans_so_far(port: u16, result: &str) -> u64 {
    let page = get(port, "/metrics").body;
    let name = format!("pgferry_otlp_spans_total{{result=\"{result}\"}} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_collector_that_hangs_or_is_away_harms_nobody_and_what_is_lost_is_counted() {
    let (collector, port) = (Collector::start(), free_port());
    collector.behaves(Behaviour::Hangs);
    let (mut pooler, database) = start(&collector, |ini| {
        ini.set("otlp_sample", 1)
            .set("http_listen", format!("127.0.0.1:{port}"));
    });
    let mut client = pooler.connect(&database);
    let began = Instant::now();
    for _ in 0..3500 {
        client.rows("SELECT 1");
    }
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    wait_until("some are lost", || spans_so_far(port, "dropped") >= 900);
    assert_eq!(spans_so_far(port, "sent"), 0);
    pooler.reconfigure(|ini| {
        ini.set("otlp_endpoint", nobody());
    });
    client.rows("SELECT 1");
    // It ends in time all the same.
    drop(client);
    let began = Instant::now();
    pooler.signal(Signal::SIGINT);
    pooler.wait();
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    assert!(!pooler.log().contains("panicked"));
}

#[test]
fn what_is_refused_for_now_comes_again_and_what_is_refused_for_good_does_not() {
    let (collector, port) = (Collector::start(), free_port());
    collector.behaves(Behaviour::Refuses(503, "retry-after: 1"));
    let (pooler, database) = start(&collector, |ini| {
        ini.set("http_listen", format!("127.0.0.1:{port}"));
    });
    let mut client = pooler.connect(&database);
    client.rows(&format!("SELECT 1 {}", comment(TRACE, "01")));
    wait_until("it is tried again", || {
        collector.requests("/v1/traces") >= 2
    });
    collector.behaves(Behaviour::Takes);
    collector.span(of(TRACE));
    wait_until("it is counted", || spans_so_far(port, "sent") == 1);
    let log = pooler.log();
    assert_eq!(log.matches("could not send spans").count(), 1, "{log}");
    wait_until("all is well", || pooler.log().contains("spans are sent to"));
    collector.behaves(Behaviour::Refuses(400, "x: y"));
    let before = collector.requests("/v1/traces");
    client.rows(&format!("SELECT 1 {}", comment(TRACE, "01")));
    wait_until("it is lost", || spans_so_far(port, "dropped") == 1);
    assert_eq!(collector.requests("/v1/traces"), before + 1);
    collector.behaves(Behaviour::TakesLess(1));
    client.rows(&format!("SELECT 1 {}", comment(TRACE, "01")));
    wait_until("it is lost, too", || spans_so_far(port, "dropped") == 2);
}

#[test]
fn what_is_left_at_the_end_is_sent() {
    let collector = Collector::start();
    let (mut pooler, database) = start(&collector, |ini| {
        ini.set("otlp_interval", 3600);
    });
    let mut client = pooler.connect(&database);
    client.rows(&format!("SELECT 1 {}", comment(TRACE, "01")));
    drop(client);
    pooler.signal(Signal::SIGINT);
    pooler.wait();
    collector.span(of(TRACE));
    collector.metrics(|_| true);
}

#[test]
fn a_collector_with_tls_must_have_a_certificate_that_is_trusted() {
    let authority = Authority::new("of collectors");
    let identity = authority.issue("collector", &["127.0.0.1", "localhost"]);
    let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let collector = Collector::start_with(Some(Arc::new(tls)));
    let directory = crate::support::process::directory();
    let path = directory.join("authority.pem");
    for (trusted, is_taken) in [(&authority, true), (&Authority::new("another"), false)] {
        trusted.write(&path);
        let (pooler, database) = start(&collector, |ini| {
            let url = format!("https://localhost:{}", collector.port());
            ini.set("otlp_endpoint", url)
                .variable("SSL_CERT_FILE", &path);
        });
        let mut client = pooler.connect(&database);
        for _ in 0..2 {
            client.rows(&format!("SELECT 1 {}", comment(TRACE, "01")));
        }
        if is_taken {
            wait_until("both spans", || collector.spans().len() == 2);
        } else {
            wait_until("a line about it", || {
                pooler.log().contains("certificate verify failed")
            });
        }
    }
    assert_eq!(collector.spans().len(), 2);
}
