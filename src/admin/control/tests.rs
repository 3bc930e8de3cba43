use std::sync::atomic::Ordering;

use super::*;
use crate::admin::parse::parse;
use crate::admin::tests::{client, console, console_with};
use crate::config::{Config, Database, Host};

/// What a command answers, in one line.
fn answer(console: &Console, rights: Rights, text: &str) -> String {
    match parse(text).and_then(|command| run(console, rights, &command)) {
        Ok(Outcome::Done { tag, notice: None }) => tag,
        Ok(Outcome::Done {
            tag,
            notice: Some(notice),
        }) => format!("{tag} (NOTICE {})", notice.message),
        Ok(Outcome::Rows(rows)) => format!("{} rows", rows.len()),
        Ok(outcome) => format!("{outcome:?}"),
        Err(error) => format!("{} {error}", error.sqlstate()),
    }
}

#[tokio::test]
async fn what_concerns_the_process_is_asked_of_it() {
    let (console, process) = console();
    let table = [
        ("SET Pool_Mode = transaction", "SET Pool_Mode=transaction"),
        (
            "SET listen_port TO 1",
            "SET listen_port=1 (NOTICE it takes a restart)",
        ),
        ("SET nothing = 1", "08P01 SET failed"),
        ("RELOAD", "RELOAD"),
        ("SHUTDOWN WAIT_FOR_SERVERS", "SHUTDOWN"),
        ("SHUTDOWN WAIT_FOR_CLIENTS", "SHUTDOWN"),
        ("SHUTDOWN", "Close"),
    ];
    for (text, wanted) in table {
        assert_eq!(answer(&console, Rights::Admin, text), wanted, "{text}");
    }
    let asked = [
        "set pool_mode transaction",
        "set listen_port 1",
        "set nothing 1",
        "reload",
        "shutdown WaitForServers",
        "shutdown WaitForClients",
        "shutdown Now",
    ];
    assert_eq!(*process.asked.lock(), asked);
    process.broken.store(true, Ordering::Relaxed);
    process.ending.store(true, Ordering::Relaxed);
    assert_eq!(
        answer(&console, Rights::Admin, "RELOAD"),
        "F0000 RELOAD failed, see logs for additional details"
    );
    assert_eq!(
        answer(&console, Rights::Admin, "RESUME"),
        "08P01 pooler is shutting down"
    );
    // A console's other name is named.
    assert_eq!(
        answer(&console, Rights::Admin, "KILL pgferry"),
        "08P01 cannot kill admin db: pgferry"
    );
}

#[tokio::test]
async fn resume_of_a_database_ends_no_suspend() {
    let (console, _) = console();
    let table = [
        ("SUSPEND", "SUSPEND"),
        ("RESUME app", "08P01 database app is not paused"),
        ("RESUME", "RESUME"),
        ("RESUME", "08P01 pooler is not paused/suspended"),
    ];
    for (text, wanted) in table {
        assert_eq!(answer(&console, Rights::Admin, text), wanted, "{text}");
    }
}

#[tokio::test]
async fn those_who_may_look_may_do_nothing_else() {
    let (console, process) = console();
    for show in SHOWS {
        let answer = answer(&console, Rights::Stats, &format!("SHOW {}", show.name));
        let wanted = if show.is_private {
            "08P01 admin access needed"
        } else {
            " rows"
        };
        assert!(answer.ends_with(wanted), "{}: {answer}", show.name);
    }
    assert_eq!(
        answer(&console, Rights::Stats, "SET datestyle TO 'ISO'"),
        "SET (NOTICE SET ignored)"
    );
    let verbs = VERBS.iter().map(|verb| match verb.word {
        "reset" => verb.usage.to_owned(),
        word => word.to_owned(),
    });
    let commands = verbs.chain(["SET pool_mode = session".to_owned(), "PAUSE app".to_owned()]);
    for text in commands {
        assert_eq!(
            answer(&console, Rights::Stats, &text),
            "08P01 admin access needed",
            "{text}"
        );
    }
    assert!(process.asked.lock().is_empty());
    assert!(!console.manager.is_paused("app"));
}

#[tokio::test]
async fn an_upgrade_is_answered_when_it_is_over_or_refused_with_the_reason() {
    let (console, process) = console();
    let upgrade = parse("UPGRADE").unwrap();
    let Ok(Outcome::Wait(wait)) = run(&console, Rights::Admin, &upgrade) else {
        panic!("it does not wait");
    };
    assert_eq!(wait.outcome(&console.manager), None);
    assert!(!process.upgrade.is_answered());
    process.upgrade.end(Ok(()));
    // What is said first counts.
    process.upgrade.end(Err("too late".into()));
    assert_eq!(wait.outcome(&console.manager), Some(Ok("UPGRADE")));
    drop(wait);
    assert!(process.upgrade.is_answered());
    process.broken.store(true, Ordering::Relaxed);
    assert_eq!(
        answer(&console, Rights::Admin, "UPGRADE"),
        "08P01 UPGRADE failed: one is under way"
    );
}

#[tokio::test(start_paused = true)]
async fn suspend_waits_for_clients_that_are_not_silent_and_sends_them_away_in_the_end() {
    let (console, _) = console();
    let joe = client(&console, "app", "joe");
    let _root = client(&console, "pgbouncer", "root");
    let suspend = parse("SUSPEND").unwrap();
    let Ok(Outcome::Wait(wait)) = run(&console, Rights::Admin, &suspend) else {
        panic!("it does not wait");
    };
    assert!(joe.take_orders().has(Order::Suspend));
    // It holds.
    assert!(joe.take_orders().has(Order::Suspend));
    assert_eq!(wait.outcome(&console.manager), None);
    tokio::time::advance(std::time::Duration::from_secs(10)).await;
    assert_eq!(wait.outcome(&console.manager), None);
    assert!(joe.take_orders().has(Order::SuspendTimeout));
    joe.rest();
    assert_eq!(wait.outcome(&console.manager), Some(Ok("SUSPEND")));
    assert_eq!(answer(&console, Rights::Admin, "RESUME"), "RESUME");
    assert!(!joe.rests() && !joe.has_orders());
    assert_eq!(wait.outcome(&console.manager), Some(Err(Error::Resumed)));
}

#[tokio::test]
async fn disable_and_enable_reach_the_pools() {
    let (console, _) = console();
    answer(&console, Rights::Admin, "DISABLE app");
    assert!(console.manager.is_disabled("app"));
    answer(&console, Rights::Admin, "ENABLE app");
    assert!(!console.manager.is_disabled("app"));
}

#[tokio::test]
async fn kill_client_takes_an_id_or_a_pointer() {
    let (console, _) = console();
    for text in ["KILL_CLIENT 1", "KILL_CLIENT 0x2;"] {
        let joe = client(&console, "app", "joe");
        assert_eq!(answer(&console, Rights::Admin, text), "KILL_CLIENT");
        assert!(joe.take_orders().has(Order::AdminDisconnect));
    }
}

#[tokio::test]
async fn kill_drops_the_clients_of_its_database_only() {
    let (console, _) = console();
    let (joe, ann) = (
        client(&console, "app", "joe"),
        client(&console, "forced", "ann"),
    );
    answer(&console, Rights::Admin, "KILL app");
    assert!(joe.take_orders().has(Order::DatabaseRemoved));
    assert!(!ann.has_orders());
    assert!(console.manager.is_paused("app") && !console.manager.is_paused("forced"));
}

#[tokio::test]
async fn a_name_that_only_the_fallback_covers_is_a_database() {
    let fallback = Database::new("*", Host::Tcp("db".into()));
    let (console, _) = console_with(Config {
        fallback: Some(fallback.into()),
        ..Config::default()
    });
    assert_eq!(
        answer(&console, Rights::Admin, "PAUSE \"any name\""),
        "PAUSE"
    );
    assert_eq!(
        answer(&console, Rights::Admin, "RESUME other"),
        "08P01 database other is not paused"
    );
    assert!(console.manager.is_paused("any name"));
}

#[test]
fn the_help_names_every_command() {
    let text = help();
    assert!(text.starts_with("\n\tSHOW HELP|POOLS|CLIENTS|"));
    assert!(
        SHOWS
            .iter()
            .all(|show| text.contains(&show.name.to_ascii_uppercase()))
    );
    assert!(VERBS.iter().all(|verb| text.contains(verb.usage)));
}
