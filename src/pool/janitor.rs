//! What happens to pools with time: servers that are too old, idle too long or dead are closed, missing ones are
//! opened, and those who wait are served as soon as a failed server may be tried again or the
//! reserve is due.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::Manager;

/// How often time-outs are looked at: PgBouncer does it three times a second.
const PERIOD: Duration = Duration::from_millis(100);

/// How often it is looked for pools that nobody uses.
const FORGETTING: Duration = Duration::from_secs(1);

/// Runs for the life of the process.
pub async fn run(manager: Arc<Manager>) {
    let kick = manager.parts().kick.clone();
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut forgetting = interval(FORGETTING);
    forgetting.set_missed_tick_behavior(MissedTickBehavior::Delay);
    manager.make_forced_pools();
    loop {
        tokio::select! {
            _ = tick.tick() => sweep(&manager),
            _ = forgetting.tick() => manager.forget_unused(),
            () = kick.notified() => {}
        }
        for pool in manager.pools() {
            if pool.has_waiters() {
                pool.feed();
            }
        }
        manager.tend_dedicated();
    }
}

fn sweep(manager: &Manager) {
    let config = manager.parts().config.load();
    for pool in manager.pools() {
        pool.sweep();
        let forced = config
            .databases
            .get(&pool.database)
            .is_some_and(|database| database.user.is_some());
        if forced || manager.clients_of_database(&pool.database) > 0 {
            pool.feed_minimum();
        }
    }
}
