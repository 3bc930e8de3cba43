//! Several hosts for one database, and names of hosts.

use crate::support::{Pooler, postgres, wait_until};

/// The addresses of all servers, in order.
fn addresses(pooler: &Pooler) -> Vec<String> {
    let servers = pooler.console("SHOW SERVERS");
    let mut found: Vec<String> = (0..servers.rows.len())
        .map(|row| servers.get(row, "addr").clone())
        .collect();
    found.sort();
    found
}

fn with_hosts(hosts: &str) -> (Pooler, String) {
    let (database, port) = (postgres().database("hosts"), postgres().port());
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 4);
        ini.target(
            "several",
            &format!("host={hosts} port={port} dbname={database}"),
        );
    });
    (pooler, database)
}

#[test]
fn servers_are_spread_over_the_hosts_in_turn() {
    let sockets = postgres().directory().display().to_string();
    let (pooler, _) = with_hosts(&format!("{sockets},127.0.0.1"));
    let mut clients: Vec<_> = (0..4).map(|_| pooler.connect("several")).collect();
    for client in &mut clients {
        client.rows("BEGIN");
    }
    assert_eq!(
        addresses(&pooler),
        ["127.0.0.1", "127.0.0.1", "unix", "unix"]
    );
    let databases = pooler.console("SHOW DATABASES");
    let row = databases.find("name", "several").unwrap();
    assert_eq!(databases.get(row, "host"), format!("{sockets},127.0.0.1"));
    assert_eq!(databases.get(row, "load_balance_hosts"), "round-robin");
}

#[test]
fn without_turns_one_host_is_kept_until_it_fails() {
    let sockets = postgres().directory().display().to_string();
    let (pooler, _) = with_hosts(&format!(
        "/nowhere,127.0.0.1,{sockets} load_balance_hosts=disable"
    ));
    let mut clients: Vec<_> = (0..3).map(|_| pooler.connect("several")).collect();
    for client in &mut clients {
        client.rows("BEGIN");
    }
    assert_eq!(addresses(&pooler), ["127.0.0.1"; 3]);
}

#[test]
fn a_host_that_refuses_is_passed_over_without_a_pause() {
    let (pooler, _) = with_hosts("127.0.0.2,127.0.0.1");
    let mut clients: Vec<_> = (0..4).map(|_| pooler.connect("several")).collect();
    for client in &mut clients {
        client.rows("BEGIN");
    }
    assert_eq!(addresses(&pooler), ["127.0.0.1"; 4]);
}

#[test]
fn a_name_is_looked_up_and_remembered() {
    let (pooler, _) = with_hosts("localhost");
    pooler.connect("several").rows("SELECT 1");
    let hosts = pooler.console("SHOW DNS_HOSTS");
    let row = hosts.find("hostname", "localhost").unwrap();
    assert!(hosts.get(row, "addrs").contains("127.0.0.1:0"));
    assert!(hosts.get(row, "ttl").parse::<u64>().unwrap() <= 15);
    let lists = pooler.console("SHOW LISTS");
    assert_eq!(
        lists.get(lists.find("list", "dns_names").unwrap(), "items"),
        "1"
    );
}

#[test]
fn a_name_without_addresses_is_said_in_pgbouncers_words() {
    let pooler = Pooler::start(|ini| {
        ini.set("query_wait_timeout", "0.5");
        ini.target("nowhere", "host=no-such-host.invalid");
    });
    let refusal = pooler.login("app", "nowhere", None).err().unwrap();
    assert_eq!(refusal.text(), "query_wait_timeout");
    wait_until("the log tells", || {
        pooler.log().contains("server DNS lookup failed")
    });
}
