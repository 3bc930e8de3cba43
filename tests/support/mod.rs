//! What the integration tests stand on: a throw-away PostgreSQL, the pooler under test as a real
//! process, a raw protocol client that sends and shows every byte, and a scripted server for what a
//! real one never does. No assertions about the pooler live here.

pub mod collector;
pub mod directory;
pub mod frontend;
pub mod http;
pub mod message;
pub mod pam;
pub mod pooler;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod scripted;
pub mod tls;
pub mod transcript;
pub mod wire;

use std::time::{Duration, Instant};

pub use directory::directory;
pub use message::Message;
pub use pooler::Pooler;
pub use postgres::postgres;
pub use wire::Wire;

/// How long a test waits for something that must happen, on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Asks `probe` until it answers, and gives up loudly after [`PATIENCE`].
pub fn eventually<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, probe)
}

/// Asks `probe` until it answers, and gives up loudly after `limit`.
pub fn within<T>(limit: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until `probe` is true, and gives up loudly after [`PATIENCE`].
pub fn wait_until(what: &str, mut probe: impl FnMut() -> bool) {
    eventually(what, || probe().then_some(()));
}
