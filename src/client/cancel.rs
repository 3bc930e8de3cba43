//! Cancel requests of clients: whose query is meant, and that nobody else's is hit.

use std::sync::Arc;

use subtle::ConstantTimeEq;

use super::Context;
use crate::net::Address;
use crate::server::cancel;
use crate::stats::registry::Peer;
use crate::stats::{Order, Phase};

/// Acts on a CancelRequest. Like PostgreSQL, it answers nothing: who asks can't tell whether a key exists.
pub async fn request(context: &Arc<Context>, pid: i32, key: &[u8]) {
    let registry = &context.manager.parts().registry;
    let Some(client) = registry.client_by_cancel_pid(pid) else {
        return;
    };
    if !bool::from(client.cancel_key.0.ct_eq(key)) {
        return;
    }
    match client.phase() {
        Phase::Waiting => client.order(Order::CancelWaiting),
        Phase::Active => {
            let Some(server) = registry.server(client.server()) else {
                return;
            };
            // From here on the server stays with this client until the request is through.
            let Some(guard) = server.begin_cancel(client.id) else {
                return;
            };
            let config = context.config.load();
            let pool = context
                .manager
                .pools()
                .into_iter()
                .find(|pool| pool.database == client.database && pool.user == client.pool_user);
            let Some(pool) = pool else { return };
            let target = pool.settings().target.clone();
            let limit = match config.settings.cancel_wait_timeout {
                limit if limit.is_zero() => std::time::Duration::from_secs(3600),
                limit => limit,
            };
            // Where this server is, not where the next one would be looked for.
            let address = match server.peer {
                Peer::Tcp(peer) => Address::Tcp(peer.ip().to_string(), peer.port()),
                Peer::Unix(_) => (*target.address).clone(),
            };
            let tls = context.manager.parts().tls.load();
            let route = cancel::Route {
                address: &address,
                configured: &target.address,
                tcp: &target.tcp,
                tls: &tls.servers,
            };
            if let Err(error) = cancel::send(guard, &route, limit).await {
                tracing::debug!(client = client.id, "cancel request not delivered: {error}");
            }
        }
        Phase::Idle | Phase::IdleInTransaction | Phase::LinkedIdle | Phase::Draining => {}
    }
}
