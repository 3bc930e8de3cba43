//! Cancel requests of clients: whose query is meant, and that nobody else's is hit.

use std::sync::Arc;

use subtle::ConstantTimeEq;

use super::{Conn, Context};
use crate::config::PeerId;
use crate::pool::peers::unspent;
use crate::server::{self, cancel};
use crate::stats::{Order, Phase};

/// Acts on a CancelRequest. Like PostgreSQL, it answers nothing: who asks can't tell whether a key exists.
///
/// Returns when the query has been told to stop. `conn`: how the log calls the one who asks.
pub async fn request(context: &Arc<Context>, conn: &Conn, pid: i32, key: &[u8]) {
    let parts = context.manager.parts();
    let registry = &parts.registry;
    let config = context.config.load();
    let has_peers = config.settings.peer_id != PeerId::default();
    let whole = if has_peers {
        unspent(key.to_vec())
    } else {
        key.to_vec()
    };
    let find = || {
        let client = registry.client_by_cancel_key(pid, &whole);
        client.filter(|client| client.cancel_key.0.ct_eq(&whole).into())
    };
    let mut client = find();
    // It may be on its way from there, and here by now.
    if client.is_none() && context.ask_before(pid, key).await {
        client = find();
    }
    let Some(client) = client else {
        if has_peers {
            let passes = parts
                .peers
                .pass_on(&config, &parts.names, pid, key.to_vec());
            passes.await;
        }
        return;
    };
    if config.is_console(&client.database) {
        // It has no server. What it waits for ends, or else what it has paused: PgBouncer's short way to RESUME.
        client.order(Order::CancelWaiting);
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
            let tls = context.manager.parts().tls.load();
            let route = cancel::Route {
                tcp: &target.tcp,
                tls: &tls.servers,
            };
            match cancel::send(guard, &route, limit).await {
                Ok(()) => {}
                Err(server::Error::ConnectTimeout) => conn.closes(context, &"cancel_wait_timeout"),
                Err(error) => {
                    tracing::debug!(client = client.id, "cancel request not delivered: {error}");
                }
            }
        }
        Phase::Idle | Phase::IdleInTransaction | Phase::LinkedIdle | Phase::Draining => {}
    }
}
