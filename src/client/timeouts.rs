//! The time limits of clients: one sweep over the live list instead of a timer for each query.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Context;
use crate::config::Config;
use crate::pool::PoolSettings;
use crate::stats::clock::micros;
use crate::stats::{ClientEntry, Order, Phase};

/// How often the sweep is made. A limit is kept to within this much, and never early.
pub const PERIOD: Duration = Duration::from_millis(100);

/// Orders away every client that is over a limit.
pub fn sweep(context: &Context) {
    let config = context.config.load();
    let registry = &context.manager.parts().registry;
    let now = registry.now();
    let pools = context.manager.pools();
    let settings: HashMap<(&str, &str), Arc<PoolSettings>> = pools
        .iter()
        .map(|pool| ((&*pool.database, &*pool.user), pool.settings()))
        .collect();
    registry.each_client(|client| {
        let key = (&*client.database, &*client.pool_user);
        if let Some(settings) = settings.get(&key)
            && let Some((order, since)) = overdue(client, settings, &config, now)
        {
            client.order_end(order, since);
        }
        if let Some(settings) = settings.get(&key)
            && settings.fast_close
            && registry
                .server(client.server())
                .is_some_and(|server| server.close_needed.load(Ordering::Relaxed))
        {
            client.order(Order::ServerOutdated);
        }
    });
}

/// The order for a client that is over a limit, and the beginning of the time that is over.
fn overdue(
    client: &ClientEntry,
    settings: &PoolSettings,
    config: &Config,
    now: u64,
) -> Option<(Order, u64)> {
    let (phase, since) = (client.phase(), client.since());
    let spent = now.saturating_sub(since);
    let over = |limit: u64| limit > 0 && spent >= limit;
    let transaction = client.transaction_since();
    if transaction > 0
        && settings.transaction_timeout > 0
        && now.saturating_sub(transaction) >= settings.transaction_timeout
    {
        return Some((Order::TransactionTimeout, transaction));
    }
    let order = match phase {
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
    }?;
    Some((order, since))
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
    } else if over(micros(config.settings.query_wait_notify)) && !client.is_notified() {
        Some(Order::NotifyWaiting)
    } else {
        None
    }
}
