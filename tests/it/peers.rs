//! Several poolers behind one address: a cancel request that comes to the wrong one is passed on.

use nix::sys::signal::Signal;

use crate::process::Home;
use crate::support::pooler::binary;
use crate::support::process::command;
use crate::support::wire::error;
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

#[test]
fn a_cancel_request_finds_the_process_whose_key_it_is() {
    let database = postgres().database("peers");
    let first = Pooler::start(|ini| {
        ini.set("peer_id", 1);
    });
    let second = Pooler::start(|ini| {
        ini.set("peer_id", 2);
        ini.peer(
            1,
            &format!("host=127.0.0.1 port={}", first.address().port()),
        );
        ini.peer(2, "host=127.0.0.1");
    });
    let mut client = first.connect(&database);
    assert_eq!(client.pid.to_be_bytes()[1..3], [1, 0]);
    assert_eq!(client.key[3] & 3, 3);
    client.send(&frontend::query("SELECT pg_sleep(60)"));
    wait_until("the query runs", || {
        postgres().sessions(&database, "active") == 1
    });
    let mut wire = Wire::connect(second.address()).unwrap();
    wire.send(&frontend::cancel(client.pid, &client.key));
    assert!(wire.ended());
    assert_eq!(error(&client.read_until_ready()).sqlstate(), "57014");
    let pools = second.console("SHOW PEER_POOLS");
    assert_eq!(pools.get(0, "peer_id"), "1");
    let peers = second.console("SHOW PEERS");
    assert_eq!(peers.rows.len(), 2);
    assert_eq!(peers.get(1, "port"), "6432");
    assert_eq!(peers.get(1, "pool_size"), "20");
}

#[test]
fn peers_of_a_toml_file_are_found_as_well() {
    let database = postgres().database("peers");
    let first = Pooler::start(|ini| {
        ini.set("peer_id", 1);
    });
    let home = Home::new();
    let toml = format!(
        "[general]\nhost = '127.0.0.1'\nport = {}\nunix_socket_dir = ''\npidfile = 'pid'\npeer_id = 2\n\
         [peers.1]\nhost = '127.0.0.1'\nport = {}\n",
        home.port,
        first.address().port()
    );
    home.write("a.toml", &toml);
    let mut child = command(binary(), &home.folder)
        .args(["-q", "a.toml"])
        .spawn()
        .unwrap();
    wait_until("it accepts", || home.accepts());
    let mut client = first.connect(&database);
    client.send(&frontend::query("SELECT pg_sleep(60)"));
    wait_until("the query runs", || {
        postgres().sessions(&database, "active") == 1
    });
    let mut wire = Wire::connect(([127, 0, 0, 1], home.port).into()).unwrap();
    wire.send(&frontend::cancel(client.pid, &client.key));
    assert!(wire.ended());
    assert_eq!(error(&client.read_until_ready()).sqlstate(), "57014");
    home.signal(Signal::SIGQUIT);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_key_for_nobody_and_one_that_went_round_too_often_are_dropped() {
    let database = postgres().database("peers");
    let pooler = Pooler::start(|ini| {
        ini.set("peer_id", 1);
        ini.peer(2, "host=127.0.0.1 port=1");
    });
    let mut client = pooler.connect(&database);
    for (pid, last) in [(0x0002_0000_u32, 3_u8), (0x0002_0000, 0), (0x0003_0000, 3)] {
        let mut wire = Wire::connect(pooler.address()).unwrap();
        wire.send(&frontend::cancel(pid, &[1, 2, 3, last]));
        assert!(wire.ended());
    }
    assert_eq!(client.value("SELECT 'lives'"), "lives");
}
