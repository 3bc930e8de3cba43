//! The time limits of clients: one sweep over the live list instead of a timer for each query.

use std::time::Duration;

use super::Context;
use crate::config::Config;
use crate::pool::Pool;
use crate::stats::{ClientEntry, Order, Phase};

/// How often the sweep is made. A limit is kept to within this much, and never early.
pub const PERIOD: Duration = Duration::from_millis(100);

/// Orders away every client that is over a limit.
pub fn sweep(context: &Context) {
    let config = context.config.load();
    let parts = context.manager.parts();
    let now = parts.registry.now();
    let pools = context.manager.pools();
    for client in parts.registry.clients() {
        let pool = pools
            .iter()
            .find(|pool| pool.database == client.database && pool.user == client.pool_user);
        if let Some(order) = pool.and_then(|pool| overdue(&client, pool, &config, now)) {
            client.order(order);
        }
    }
}

fn overdue(client: &ClientEntry, pool: &Pool, config: &Config, now: u64) -> Option<Order> {
    let phase = client.phase();
    let spent = now.saturating_sub(client.since());
    let settings = pool.settings();
    let over = |limit: u64| limit > 0 && spent >= limit;
    let transaction = client.transaction_since();
    if transaction > 0
        && settings.transaction_timeout > 0
        && now.saturating_sub(transaction) >= settings.transaction_timeout
    {
        return Some(Order::TransactionTimeout);
    }
    match phase {
        Phase::Active if over(settings.query_timeout) => Some(Order::QueryTimeout),
        Phase::IdleInTransaction if over(settings.idle_transaction_timeout) => {
            Some(Order::IdleTransactionTimeout)
        }
        Phase::Waiting => waiting(client, config, over, settings.query_timeout),
        Phase::Idle if over(micros(config.client_idle_timeout(&client.user))) => {
            Some(Order::ClientIdleTimeout)
        }
        Phase::Active
        | Phase::IdleInTransaction
        | Phase::Idle
        | Phase::LinkedIdle
        | Phase::Draining => None,
    }
}

fn waiting(
    client: &ClientEntry,
    config: &Config,
    over: impl Fn(u64) -> bool,
    query_timeout: u64,
) -> Option<Order> {
    let wait = config
        .database(&client.database)
        .map_or(config.settings.query_wait_timeout, |database| {
            config.query_wait_timeout(&database, &client.user)
        });
    if over(micros(wait)) {
        Some(Order::QueryWaitTimeout)
    } else if over(query_timeout) {
        Some(Order::QueryTimeoutWaiting)
    } else if over(micros(config.settings.query_wait_notify)) {
        Some(Order::NotifyWaiting)
    } else {
        None
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
