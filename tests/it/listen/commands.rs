//! What operators do while clients listen.

use super::*;

fn listeners(pooler: &Pooler, column: &str) -> Vec<String> {
    let rows = pooler.console("SHOW LISTENERS");
    (0..rows.rows.len())
        .map(|row| rows.get(row, column).clone())
        .collect()
}

/// What a console says, which stays connected: SUSPEND ends with the one that gave it.
#[test]
fn what_comes_while_all_is_suspended_is_told_afterwards() {
    let (pooler, database) = start();
    let mut clients: Vec<Wire> = (0..3).map(|_| pooler.connect(&database)).collect();
    for client in &mut clients {
        run(client, "LISTEN a");
    }
    clients[1].rows("BEGIN");
    let mut console = pooler.open_console();
    console.rows("SUSPEND");
    for payload in ["one", "two"] {
        postgres().sql(&database, &format!("NOTIFY a, '{payload}'"));
    }
    // No other connection is accepted now.
    wait_until("they are there", || {
        console.rows("SHOW LISTENERS").get(0, "received") == "2"
    });
    clients[2].send(&frontend::query("SELECT 'asked'"));
    for client in [0, 1] {
        clients[client].patience(Duration::from_millis(50));
        assert!(clients[client].try_read_message().is_err(), "it is told");
        clients[client].patience(Duration::from_secs(10));
    }
    console.rows("RESUME");
    assert_eq!(payload(&mut clients[0]), "one");
    assert_eq!(payload(&mut clients[0]), "two");
    clients[1].rows("COMMIT");
    assert_eq!(
        (payload(&mut clients[1]), payload(&mut clients[1])),
        ("one".into(), "two".into())
    );
    let mut told = Vec::new();
    while told.len() < 2 {
        let message = clients[2].read_message().unwrap();
        if message.tag == b'A' {
            told.push(read(&message).2);
        }
    }
    assert_eq!(told, ["one", "two"]);
}

#[test]
fn a_database_that_is_killed_takes_its_listener_along() {
    let (pooler, database) = start();
    let (mut idle, mut inside) = (pooler.connect(&database), pooler.connect(&database));
    run(&mut idle, "LISTEN a");
    run(&mut inside, "LISTEN b");
    inside.rows("BEGIN");
    pooler.console(&format!("KILL {database}"));
    for client in [&mut idle, &mut inside] {
        let farewell = client.read_message().unwrap();
        assert_eq!(farewell.field('M').unwrap(), "database removed");
        assert!(client.ended());
    }
    wait_until("no connection is left", || connections(&database) == 0);
    assert_eq!(listeners(&pooler, "channel").len(), 0);
    pooler.console(&format!("RESUME {database}"));
    let mut client = pooler.connect(&database);
    run(&mut client, "LISTEN a");
    assert_eq!(pinned(&pooler), 0);
    assert_quiet(&mut client, &database, "a");
    assert_eq!(listeners(&pooler, "lost"), ["0"]);
}

#[test]
fn one_that_is_killed_takes_nothing_from_others() {
    let (pooler, database) = start();
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    one.rows("LISTEN mine");
    run(&mut one, "LISTEN a");
    run(&mut other, "LISTEN a");
    let clients = pooler.console("SHOW CLIENTS");
    let first = clients.find("database", &database).unwrap();
    pooler.console(&format!("KILL_CLIENT {}", clients.get(first, "id")));
    let (mut gone, mut left) = if one
        .try_read_message()
        .is_ok_and(|it| it.is_some_and(|it| it.tag == b'E'))
    {
        (one, other)
    } else {
        (other, one)
    };
    assert!(gone.ended());
    wait_until("it is gone", || {
        let rows = pooler.console("SHOW LISTENERS");
        rows.get(rows.find("channel", "a").unwrap(), "clients") == "1"
    });
    assert_quiet(&mut left, &database, "a");
}

#[test]
fn a_database_that_is_disabled_goes_on_telling() {
    let (pooler, database) = start();
    let mut client = pooler.connect(&database);
    run(&mut client, "LISTEN a");
    pooler.console(&format!("DISABLE {database}"));
    assert!(pooler.login("app", &database, None).is_err());
    assert_quiet(&mut client, &database, "a");
    run(&mut client, "LISTEN b");
    assert_quiet(&mut client, &database, "b");
    pooler.console(&format!("ENABLE {database}"));
    assert_eq!(listeners(&pooler, "lost"), ["0", "0"]);
}

#[test]
fn who_listens_first_in_a_pool_that_is_paused_does_not_keep_it_from_being_so() {
    let (pooler, database) = start();
    let mut clients = [pooler.connect(&database), pooler.connect(&database)];
    run(&mut clients[1], "LISTEN a");
    for client in &mut clients {
        client.rows("BEGIN");
        client.rows("LISTEN b");
    }
    let mut console = pooler.open_console();
    console.send(&frontend::query(&format!("PAUSE {database}")));
    wait_until("it is paused", || {
        let rows = pooler.console("SHOW DATABASES");
        let row = rows.find("name", &database);
        row.is_some_and(|row| rows.get(row, "paused") == "1")
    });
    for client in &mut clients {
        client.rows("COMMIT");
    }
    let replies = console.read_until_ready();
    assert!(replies.iter().all(|it| it.tag != b'E'), "{replies:?}");
    wait_until("no connection is left", || connections(&database) == 0);
    console.rows(&format!("RESUME {database}"));
    for client in &mut clients {
        assert_eq!(client.read_message().unwrap().name(), "NoticeResponse");
        assert_quiet(client, &database, "b");
    }
    assert_quiet(&mut clients[1], &database, "a");
    assert_eq!(pinned(&pooler), 0);
}

#[test]
fn wait_close_waits_for_the_listener_too() {
    let (pooler, database) = start();
    let mut client = pooler.connect(&database);
    run(&mut client, "LISTEN a");
    let before = listeners(&pooler, "server");
    pooler.console("RECONNECT");
    pooler.console("WAIT_CLOSE");
    assert_ne!(listeners(&pooler, "server"), before);
    assert_eq!(listeners(&pooler, "lost"), ["0"]);
    assert_quiet(&mut client, &database, "a");
}

#[test]
fn who_listens_already_can_end_it_after_pin_policy_was_switched_off() {
    let (pooler, database) = start();
    let (mut one, mut other) = (pooler.connect(&database), pooler.connect(&database));
    for client in [&mut one, &mut other] {
        client.rows("LISTEN a");
        run(client, "LISTEN b");
    }
    pooler.console("SET pin_policy = off");
    for client in [&mut one, &mut other] {
        assert_quiet(client, &database, "a");
    }
    run(&mut one, "UNLISTEN a");
    run(&mut other, "UNLISTEN *");
    wait_until("it is known", || listeners(&pooler, "channel") == ["b"]);
    assert_quiet(&mut one, &database, "b");
    // And who has ended it is as all others.
    run(&mut other, "LISTEN b");
    assert_eq!(listeners(&pooler, "clients"), ["1"]);
    pooler.console("SET pin_policy = auto");
    run(&mut other, "LISTEN b");
    assert_eq!(listeners(&pooler, "clients"), ["2"]);
}
