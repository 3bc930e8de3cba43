use std::sync::atomic::Ordering;
use std::time::Duration;

use super::*;
use crate::admin::tests::{client, console};
use crate::pool::Learned;
use crate::stats::registry::{CancelKey, NewServer, Peer, ServerGuard};
use crate::stats::{Phase, ServerEntry, ServerState};

/// The rows of a SHOW as lines of `column=value`, without columns that are 0, "" or NULL.
fn shown(console: &Console, rights: Rights, name: &str) -> Vec<String> {
    let show = find(name).unwrap();
    let headings = (show.headings)();
    let rows = (show.rows)(&View::new(console, rights));
    let line = |row: Vec<Cell>| {
        assert_eq!(row.len(), headings.len());
        let cells = row
            .into_iter()
            .zip(&headings)
            .filter_map(|(cell, heading)| match cell {
                Cell::Null | Cell::Number(0) => None,
                Cell::Text(text) if text.is_empty() => None,
                Cell::Text(text) => {
                    assert_eq!(heading.kind, Type::Text);
                    Some(format!("{}={text}", heading.name))
                }
                Cell::Number(number) => {
                    assert_ne!(heading.kind, Type::Text);
                    Some(format!("{}={number}", heading.name))
                }
            });
        cells.collect::<Vec<_>>().join(" ")
    };
    rows.into_iter().map(line).collect()
}

fn server(console: &Console, state: ServerState) -> ServerGuard {
    let registry = &console.manager.parts().registry;
    let entry = ServerEntry::new(NewServer {
        replication: crate::protocol::startup::Replication::None,
        id: registry.next_id(),
        user: "joe".into(),
        database: "app".into(),
        host: "localhost".into(),
        peer: Peer::Tcp("[::1]:5432".parse().unwrap()),
        tls: String::new(),
        local: Some("[::1]:40000".parse().unwrap()),
        connected: registry.now(),
        cancel_pid: 77,
        cancel_key: CancelKey(Box::new([0; 4])),
    });
    let guard = registry.enter_server(entry);
    guard.set_state(state);
    guard
}

/// Makes joe's pool of `app` and counts something in it.
fn pool(console: &Console) {
    let config = console.manager.parts().config.load();
    let pool = console.manager.pool(
        &config,
        &config.database("app").unwrap(),
        "joe",
        Learned::default(),
    );
    let counters = pool.counters(0).unwrap();
    counters.transactions.add(20);
    counters.transaction_time.add(1_000);
    counters.received.add(400);
    counters.prepare_cache_hits.add(5);
    counters.prepare_cache_misses.add(2);
    counters.replans.add(3);
    counters.slow_listeners.add(1);
}

#[tokio::test]
async fn pools_count_who_does_what() {
    let (console, _) = console();
    pool(&console);
    let clients = [
        client(&console, "app", "joe"),
        client(&console, "app", "joe"),
        client(&console, "pgcat", "root"),
    ];
    clients[0].enter(Phase::Waiting, 0);
    clients[1].enter(Phase::IdleInTransaction, 0);
    let _servers = [
        server(&console, ServerState::Active),
        server(&console, ServerState::Idle),
        server(&console, ServerState::Idle),
        server(&console, ServerState::Used),
        server(&console, ServerState::Tested),
        server(&console, ServerState::BeingCanceled),
    ];
    let rows = [
        "database=app user=joe cl_active=1 cl_waiting=1 sv_active=1 sv_being_canceled=1 sv_idle=2 sv_used=1 \
         sv_tested=1 pool_mode=session prepare_cache_hit=5 prepare_cache_miss=2",
        "database=pgbouncer user=pgbouncer cl_active=1 pool_mode=statement",
    ];
    assert_eq!(shown(&console, Rights::Stats, "pools"), rows);
}

#[tokio::test(start_paused = true)]
async fn statistics_have_sums_and_the_last_period() {
    let (console, _) = console();
    pool(&console);
    tokio::time::advance(Duration::from_secs(2)).await;
    let line = console.averages.tick(&console.manager);
    assert!(line.starts_with("stats: 10 xacts/s, 0 queries/s, "));
    console.averages.count_query();
    let stats = [
        "database=app total_xact_count=20 total_received=400 total_xact_time=1000 avg_xact_count=10 avg_recv=200 \
         avg_xact_time=50 total_prepare_cache_hit=5 total_prepare_cache_miss=2 total_replan_count=3 total_slow_listener_count=1",
        "database=pgbouncer total_xact_count=1 total_query_count=1",
    ];
    assert_eq!(shown(&console, Rights::Stats, "stats"), stats);
    let averages = [
        "database=app xact_count=10 bytes_received=200 xact_time=50",
        "database=pgbouncer",
    ];
    assert_eq!(shown(&console, Rights::Stats, "stats_averages"), averages);
    let totals = shown(&console, Rights::Stats, "stats_totals");
    assert!(totals[0].starts_with("database=app xact_count=20 bytes_received=400 "));
    let list = shown(&console, Rights::Stats, "totals");
    assert_eq!(list[1], "name=total_xact_count value=21");
    assert_eq!(list[3], "name=total_client_bytes value=400");
    assert_eq!(list[13], "name=avg_xact_count value=10");
    assert_eq!(list[25], "name=total_prepare_cache_miss value=2");
    assert_eq!(list[28], "name=total_replan_count value=3");
    assert_eq!(list[29], "name=total_slow_listener_count value=1");
    assert_eq!(list.last().unwrap(), "name=total_unnamed_demotion_count");
    assert_eq!(list.len(), 32);
}

#[tokio::test(start_paused = true)]
async fn clients_and_servers_point_at_each_other() {
    let (console, _) = console();
    let joe = client(&console, "app", "joe");
    let server = server(&console, ServerState::Idle);
    joe.set_server(server.id);
    joe.enter(Phase::Active, 0);
    *joe.application_name.lock() = b"psql".to_vec();
    server.link(joe.id, 0);
    server.prepare_cache_hits.store(3, Ordering::Relaxed);
    let untimed = |lines: Vec<String>| -> String {
        let words: Vec<_> = lines[0].split(" connect_time=").collect();
        let end = words[1].find("ptr=").unwrap();
        format!("{} {}", words[0], &words[1][end..])
    };
    assert_eq!(
        untimed(shown(&console, Rights::Stats, "clients")),
        "type=C user=joe database=app replication=none state=active addr=10.0.0.1 port=5000 local_addr=10.0.0.2 local_port=6432 \
         ptr=0x1 link=0x2 application_name=psql id=1"
    );
    assert_eq!(
        untimed(shown(&console, Rights::Stats, "servers")),
        "type=S user=joe database=app replication=none state=active addr=::1 port=5432 local_addr=::1 \
         local_port=40000 ptr=0x2 link=0x1 remote_pid=77 application_name=psql id=2 prepare_cache_hit=3"
    );
}

#[tokio::test]
async fn a_waiting_client_shows_for_how_long() {
    tokio::time::pause();
    let (console, _) = console();
    let joe = client(&console, "app", "joe");
    joe.enter(Phase::Waiting, console.manager.parts().registry.now());
    tokio::time::advance(Duration::from_micros(2_000_007)).await;
    let line = shown(&console, Rights::Stats, "clients").remove(0);
    assert!(
        line.contains("state=waiting") && line.contains("wait=2 wait_us="),
        "{line}"
    );
}

#[tokio::test]
async fn databases_show_what_holds_and_the_console() {
    let (console, _) = console();
    console.manager.pause(Some("app"));
    console.manager.set_disabled("forced", true);
    let mut root = console.manager.admit();
    root.name(("pgbouncer", 0), ("root", 0)).unwrap();
    let rows = [
        "name=app host=127.0.0.1 port=5432 database=app pool_size=20 server_lifetime=3600 paused=1",
        "name=forced host=127.0.0.1 port=5432 database=forced force_user=owner pool_size=3 server_lifetime=3600 \
         disabled=1",
        "name=pgbouncer port=6432 database=pgbouncer force_user=pgbouncer pool_size=2 server_lifetime=3600 \
         pool_mode=statement current_client_connections=1",
    ];
    assert_eq!(shown(&console, Rights::Stats, "databases"), rows);
}

#[tokio::test]
async fn users_are_those_of_the_files_and_those_who_are_here() {
    let mut config = crate::admin::tests::config(1);
    let own = crate::config::UserSettings {
        pool_size: Some(7),
        ..Default::default()
    };
    config.users.insert("joe".into(), own);
    config
        .secrets
        .insert("ann".into(), crate::config::users::SecretText::new("x"));
    let (console, _) = crate::admin::tests::console_with(config);
    let _root = client(&console, "pgbouncer", "root");
    let rows = [
        "name=ann",
        "name=joe pool_size=        7",
        "name=owner",
        "name=root",
    ];
    assert_eq!(shown(&console, Rights::Stats, "users"), rows);
}

#[tokio::test]
async fn settings_are_in_order_and_tell_null_from_empty() {
    let (console, _) = console();
    let lines = shown(&console, Rights::Stats, "config");
    assert!(lines.is_sorted());
    assert!(lines.contains(&"key=listen_port value=6432 default=6432 changeable=no".to_owned()));
    assert!(
        lines.contains(&"key=pool_mode value=session default=session changeable=yes".to_owned())
    );
    let rows = (find("config").unwrap().rows)(&View::new(&console, Rights::Stats));
    let row = |key: &str| rows.iter().find(|row| row[0] == Cell::from(key)).unwrap();
    assert_eq!(row("auth_file")[1..3], [Cell::Null, Cell::Null]);
    assert_eq!(row("pidfile")[1..3], [Cell::from(""), Cell::from("")]);
}

#[tokio::test]
async fn lists_state_and_version() {
    let (console, _) = console();
    pool(&console);
    let _joe = client(&console, "app", "joe");
    let lists = shown(&console, Rights::Stats, "lists");
    let expected = [
        "list=databases items=3",
        "list=users items=2",
        "list=peers",
        "list=pools items=2",
    ];
    assert_eq!(lists[..4], expected);
    assert_eq!(lists.len(), 14);
    console.manager.pause(None);
    let state = [
        "key=active value=no",
        "key=paused value=yes",
        "key=suspended value=no",
    ];
    assert_eq!(shown(&console, Rights::Stats, "state"), state);
    assert_eq!(
        shown(&console, Rights::Stats, "version"),
        ["version=PgBouncer 1.25.2 (pgferry test)"]
    );
    assert!(shown(&console, Rights::Stats, "mem")[0].starts_with("name=client_entries size="));
}

#[tokio::test]
async fn statement_texts_are_for_administrators_and_cut() {
    let (console, _) = console();
    let statements = &console.manager.parts().statements;
    let long = format!("select '{}'\0\0\0", "é".repeat(5000));
    let one = statements
        .intern(b"select 1\0\0\0", &statements.context(b""), 1 << 20)
        .unwrap();
    let _again = one.clone();
    let _other = statements
        .intern(long.as_bytes(), &statements.context(b""), 1 << 20)
        .unwrap();
    let stats = shown(&console, Rights::Stats, "prepared");
    let name = String::from_utf8_lossy(one.name()).into_owned();
    assert_eq!(stats[0], format!("id=1 name={name} holders=2 bytes=11"));
    let admin = shown(&console, Rights::Admin, "prepared");
    assert_eq!(admin[0], format!("{} query=select 1", stats[0]));
    let text = admin[1].split_once("query=").unwrap().1;
    assert_eq!(text.chars().count(), 200);
    assert!(text.ends_with("éé"));
}
