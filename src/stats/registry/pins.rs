//! Which clients keep their servers outside of session pooling, and why: SHOW PINS.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{ClientEntry, Registry};
use crate::sql::touches::Touches;

/// Why and since when a client keeps its server.
#[derive(Debug, Clone)]
pub struct PinInfo {
    /// What it has there.
    pub holds: Touches,
    /// Microseconds after the epoch.
    pub since: u64,
    /// The server's id.
    pub server: u64,
    /// The beginning of the text that made it so.
    pub text: String,
}

/// A client that keeps its server.
#[derive(Debug, Clone)]
pub struct Pin {
    /// The client.
    pub client: Arc<ClientEntry>,
    /// Why.
    pub info: PinInfo,
}

/// A client's place in the list; it leaves when this is dropped.
#[derive(Debug)]
pub struct PinGuard {
    client: u64,
    registry: Arc<Registry>,
    /// How many clients of its pool do so.
    pinned: Arc<AtomicUsize>,
    count: usize,
}

impl Registry {
    /// Enters a client. `pinned` counts those of its pool.
    pub fn pin(
        self: &Arc<Self>,
        client: Arc<ClientEntry>,
        pinned: Arc<AtomicUsize>,
        info: PinInfo,
    ) -> PinGuard {
        let count = pinned.fetch_add(1, Ordering::Relaxed) + 1;
        let id = client.id;
        self.pins.insert(id, Pin { client, info });
        PinGuard {
            client: id,
            registry: self.clone(),
            pinned,
            count,
        }
    }

    /// Why this client keeps its server, if it does.
    pub fn pin_of(&self, client: u64) -> Option<String> {
        let pin = self.pins.get(&client)?;
        Some(pin.info.holds.to_string())
    }

    /// All clients that keep their servers, in no order.
    pub fn pins(&self) -> Vec<Pin> {
        self.pins.iter().map(|pin| pin.clone()).collect()
    }
}

impl PinGuard {
    /// How many clients of the pool kept their servers when this one began to, with this one.
    pub fn count(&self) -> usize {
        self.count
    }

    /// There is another reason now. The time it began stays.
    pub fn change(&self, info: PinInfo) {
        if let Some(mut pin) = self.registry.pins.get_mut(&self.client) {
            pin.info = PinInfo {
                since: pin.info.since,
                ..info
            };
        }
    }
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        self.registry.pins.remove(&self.client);
        self.pinned.fetch_sub(1, Ordering::Relaxed);
    }
}
