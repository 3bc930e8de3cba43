//! Making a leased server fit for its client: a check if it was idle for long, and the client's values for the tracked
//! parameters. Rare, so it is a future of its own, made only when there is something to do.

use std::time::Duration;

use super::Error;
use crate::pool::{PoolSettings, Pooled};
use crate::server::session::Tracked;
use crate::server::{self, Doom};
use crate::stats::ServerState;

/// How long a check or a reset may take before the server counts as dead.
const LIMIT: Duration = Duration::from_secs(10);

/// Does the server have to be checked before use?
pub fn needs_check(pooled: &Pooled, settings: &PoolSettings, idle: Duration) -> bool {
    settings.check_query.is_some()
        && (idle > settings.check_delay || pooled.server.entry.state() == ServerState::Used)
}

/// Runs the check query. A server that fails it is closed, and the client needs another.
pub async fn check(mut pooled: Pooled, query: &[u8]) -> Option<Pooled> {
    pooled.server.entry.set_state(ServerState::Tested);
    if run(&mut pooled, query).await.is_ok() {
        return Some(pooled);
    }
    pooled.close("server check failed");
    None
}

/// Sets the client's values on the server. Afterwards the client's copy has the server's spelling.
pub async fn adopt(mut pooled: Pooled, wanted: &Tracked) -> Result<Pooled, Error> {
    let sql = wanted.difference(&pooled.server.state.tracked);
    if sql.is_empty() {
        return Ok(pooled);
    }
    match run(&mut pooled, &sql).await {
        Ok(()) => Ok(pooled),
        Err(server::Error::Query(text)) => {
            tracing::debug!("server refuses a client's parameter: {text}");
            pooled.close("invalid server parameter");
            Err(Error::InvalidParameter)
        }
        Err(_) => {
            pooled.close("server conn crashed?");
            Err(Error::ServerCrashed)
        }
    }
}

/// Runs the reset query. The server is not clean if it fails: what the client has set may be why.
pub async fn reset(pooled: &mut Pooled, query: &[u8]) {
    // A cancel request that is still on its way would hit the reset.
    if !pooled.server.entry.unlink() {
        pooled.server.entry.cancels_settled().await;
    }
    pooled.server.entry.set_state(ServerState::Tested);
    if let Err(error) = run(pooled, query).await {
        pooled.server.state.doom.get_or_insert(Doom::CheckFailed);
        tracing::debug!(
            server = pooled.server.entry.id,
            "server_reset_query: {error}"
        );
    }
}

/// Runs a query with a limit of time.
pub async fn run(pooled: &mut Pooled, sql: &[u8]) -> Result<(), server::Error> {
    tokio::time::timeout(LIMIT, pooled.server.run(sql))
        .await
        .map_err(|_| server::Error::ConnectTimeout)?
}
