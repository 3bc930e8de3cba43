//! Free TCP ports for servers that cannot be told "port 0" and then be asked what they got.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range that Linux draws the ports of outgoing connections from: a port of that range,
/// free now, may be some client's by the time the server binds it.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port nothing listens on, never handed out twice by this process.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(u64::from(std::process::id()) * 97 % u64::from(COUNT)).unwrap();
    loop {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = FIRST + offset;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
