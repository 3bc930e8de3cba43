//! SUSPEND: nothing is under way, and nothing begins.

use crate::support::wire::{self, error};
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

fn pooler(suspend_timeout: &str) -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("suspend_timeout", suspend_timeout);
    });
    (pooler, postgres().database("suspend"))
}

fn says(console: &mut Wire, command: &str) -> String {
    wire::names(&console.query(command)).join(" ")
}

#[test]
fn queries_wait_for_resume_and_open_transactions_rest() {
    let (pooler, database) = pooler("10");
    let (mut inside, mut idle) = (pooler.connect(&database), pooler.connect(&database));
    inside.rows("BEGIN");
    let mut console = pooler.open_console();
    assert_eq!(
        says(&mut console, "SUSPEND"),
        "CommandComplete ReadyForQuery"
    );
    let state = console.rows("SHOW STATE");
    assert_eq!(
        state.get(state.find("key", "suspended").unwrap(), "value"),
        "yes"
    );
    assert_eq!(
        state.get(state.find("key", "active").unwrap(), "value"),
        "no"
    );
    idle.send(&frontend::query("SELECT 'idle'"));
    inside.send(&frontend::query("SELECT 'inside'"));
    assert_eq!(
        error(&console.query("SUSPEND")).field('M').unwrap(),
        "already suspended/paused"
    );
    assert_eq!(postgres().sessions(&database, "active"), 0);
    let stats = console.rows("SHOW STATS_TOTALS");
    let row = stats.find("database", &database).unwrap();
    assert_eq!(stats.get(row, "query_count"), "1");
    assert_eq!(
        says(&mut console, "RESUME"),
        "CommandComplete ReadyForQuery"
    );
    assert_eq!(wire::rows(&idle.read_until_ready()).unwrap().only(), "idle");
    assert_eq!(
        wire::rows(&inside.read_until_ready()).unwrap().only(),
        "inside"
    );
    inside.rows("COMMIT");
}

#[test]
fn it_waits_for_a_query_and_ends_with_the_console_that_gave_it() {
    let (pooler, database) = pooler("10");
    let mut client = pooler.connect(&database);
    client.send(&frontend::query("SELECT pg_sleep(0.3), 'done'"));
    wait_until("the query runs", || {
        postgres().sessions(&database, "active") == 1
    });
    let mut console = pooler.open_console();
    assert_eq!(
        says(&mut console, "SUSPEND"),
        "CommandComplete ReadyForQuery"
    );
    assert_eq!(postgres().sessions(&database, "active"), 0);
    client.read_until_ready();
    client.send(&frontend::query("SELECT 'after'"));
    drop(console);
    assert_eq!(
        wire::rows(&client.read_until_ready()).unwrap().only(),
        "after"
    );
    assert_eq!(pooler.connect(&database).value("SELECT 'new'"), "new");
}

#[test]
fn who_does_not_fall_silent_is_sent_away() {
    let (pooler, database) = pooler("0.3");
    let mut client = pooler.connect(&database);
    client.send(&frontend::query("SELECT pg_sleep(60)"));
    wait_until("the query runs", || {
        postgres().sessions(&database, "active") == 1
    });
    let mut console = pooler.open_console();
    assert_eq!(
        says(&mut console, "SUSPEND"),
        "CommandComplete ReadyForQuery"
    );
    let farewell = client.read_message().unwrap();
    let farewell = if farewell.tag == b'T' {
        client.read_message().unwrap()
    } else {
        farewell
    };
    assert_eq!(farewell.field('M').as_deref(), Some("suspend_timeout"));
}
