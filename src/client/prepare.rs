//! Making a leased server fit for its client: a check if it was idle for long, and the client's values for the tracked
//! parameters. Rare, so it is a future of its own, made only when there is something to do.

use std::time::Duration;

use super::Error;
use super::relay::Relay;
use crate::pool::{PoolSettings, Pooled};
use crate::server::look::Seen;
use crate::server::overlay::Overlay;
use crate::server::overlay::prepared::Prepared;
use crate::server::session::Tracked;
use crate::server::{self, Doom, Drawn, State};
use crate::sql::touches::Touches;
use crate::stats::ServerState;

/// The tracked parameter that says how texts are written.
const ENCODING: &str = "client_encoding";

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

/// Makes the server's session the client's: `overlay` is what it has besides the tracked parameters. Afterwards the
/// client's copy of these has the server's spelling.
pub async fn adopt(
    mut pooled: Pooled,
    wanted: &Tracked,
    overlay: Overlay,
) -> Result<Pooled, Error> {
    for sql in difference(&pooled.server.state, wanted, &overlay) {
        if let Err(error) = run(&mut pooled, &sql).await {
            return Err(refused(pooled, &error));
        }
    }
    match prepare_missing(&mut pooled, &overlay).await {
        Ok(made) => pooled.server.state.overlay = made,
        Err(error) => return Err(refused(pooled, &error)),
    }
    Ok(pooled)
}

/// Makes the client's statements of SQL's PREPARE that the server lacks, as many as can be made: a table may be gone meanwhile, and that
/// is no reason to refuse what else the client wants to do. What the session is then.
async fn prepare_missing(pooled: &mut Pooled, overlay: &Overlay) -> Result<Overlay, server::Error> {
    let missing = overlay.missing(&pooled.server.state.overlay);
    if missing.is_empty() {
        return Ok(overlay.clone());
    }
    let text = |statement: &&Prepared| {
        let mut sql = Vec::new();
        statement.put_prepare(&mut sql);
        sql
    };
    let texts: Vec<Vec<u8>> = missing.iter().map(text).collect();
    let refused = tokio::time::timeout(LIMIT, pooled.server.run_each(&texts))
        .await
        .map_err(|_| server::Error::ConnectTimeout)??;
    let lost = refused.iter().filter_map(|at| missing.get(*at).copied());
    Ok(overlay.without_statements(&lost.collect::<Vec<_>>()))
}

/// The texts that make the session the client's but for statements that it lacks, to be run one after the other; none if nothing
/// has to change.
///
/// The encoding comes first, in a text of its own: the values in the others are in the client's.
pub fn difference(state: &State, wanted: &Tracked, overlay: &Overlay) -> Vec<Vec<u8>> {
    let encoding = wanted.difference(&state.tracked, |name| name == ENCODING);
    let mut others = wanted.difference(&state.tracked, |name| name != ENCODING);
    others.extend_from_slice(&overlay.difference(&state.overlay));
    others.extend_from_slice(&overlay.deallocation(&state.overlay));
    let mut texts = vec![encoding, others];
    texts.retain(|text| !text.is_empty());
    texts
}

/// The session could not be made the client's: the server is closed, and this ends the client.
pub fn refused(pooled: Pooled, error: &server::Error) -> Error {
    if let server::Error::Query(text) = error {
        tracing::debug!("server refuses a client's parameter: {text}");
        pooled.close("invalid server parameter");
        return Error::InvalidParameter;
    }
    pooled.close("server conn crashed?");
    Error::ServerCrashed
}

/// Puts the server out of its client's reach: a cancel request that is still on its way would hit what we do.
async fn take_away(pooled: &mut Pooled) {
    if !pooled.server.entry.unlink() {
        pooled.server.entry.cancels_settled().await;
    }
    pooled.server.entry.set_state(ServerState::Tested);
}

/// Runs the reset query. The server is not clean if it fails: what the client has set may be why.
pub async fn reset(pooled: &mut Pooled, query: &[u8]) {
    take_away(pooled).await;
    let mut result = run(pooled, query).await;
    if result.is_ok() && !pooled.server.state.overlay.is_empty() {
        // It was not DISCARD ALL, and who knows what it leaves.
        result = look_again(pooled).await;
    }
    if let Err(error) = result {
        pooled.server.state.doom.get_or_insert(Doom::CheckFailed);
        tracing::debug!(
            server = pooled.server.entry.id,
            "server_reset_query: {error}"
        );
    }
}

/// Looks at the session, with the server out of reach of the client's cancel requests.
pub async fn look(
    pooled: &mut Pooled,
    login: &str,
    names: &[Box<[u8]>],
) -> Result<Seen, server::Error> {
    take_away(pooled).await;
    pooled.server.state.heard.clear();
    if let Some(counters) = pooled.pool().clone().counters(pooled.server.home) {
        counters.looks.add(1);
    }
    tokio::time::timeout(LIMIT, pooled.server.look(login, names))
        .await
        .unwrap_or(Err(server::Error::ConnectTimeout))
}

/// Finds out what is left of what was set.
async fn look_again(pooled: &mut Pooled) -> Result<(), server::Error> {
    let login = pooled.pool().user.clone();
    let overlay = pooled.server.state.overlay.iter().map(|(name, _)| name);
    let customs = overlay.filter(|name| name.contains(&b'.')).map(Box::from);
    let customs: Vec<Box<[u8]>> = customs.collect();
    let looking = pooled.server.look(&login, &customs);
    let seen = tokio::time::timeout(LIMIT, looking).await;
    pooled.server.state.overlay = seen.map_err(|_| server::Error::ConnectTimeout)??.overlay;
    Ok(())
}

/// What the client has reset goes back to what it has asked for at its login, and not to what the server began with.
pub async fn go_back(
    pooled: &mut Pooled,
    at_login: &Tracked,
    seen: &Seen,
) -> Result<(), server::Error> {
    let was_reset = |name: &str| {
        let mut reset = seen.at_first.iter();
        reset.any(|known| **known == *name.as_bytes())
    };
    let sql = at_login.difference(&pooled.server.state.tracked, was_reset);
    if sql.is_empty() {
        return Ok(());
    }
    run(pooled, &sql).await
}

/// Takes away what a client that is gone has left in the session, and what the configuration says.
pub async fn clean(pooled: &mut Pooled, relay: &Relay) {
    let left = relay.belongings.as_ref();
    if let Some(left) = left.filter(|it| it.leaves_something()) {
        if left.holds().contains(Touches::LIBRARY) {
            // There is no way to unload one.
            pooled.server.state.doom.get_or_insert(Doom::ClientLeft);
            return;
        }
        if !left.must_look() && left.holds() == Touches::SEQUENCES {
            // Statements may stay.
            reset(pooled, b"DISCARD SEQUENCES").await;
            pooled.server.state.drawn = Drawn::ByNobody;
            return clean_as_configured(pooled, relay).await;
        }
        reset(pooled, b"DISCARD ALL").await;
        pooled.server.state.drawn = Drawn::ByNobody;
        let connect_query = relay.settings.target.connect_query.as_deref();
        if let Some(query) = connect_query
            && let Err(error) = run(pooled, query.as_bytes()).await
        {
            tracing::debug!(server = pooled.server.entry.id, "connect_query: {error}");
        }
        pooled.server.state.overlay = pooled.server.state.base.clone();
    }
    clean_as_configured(pooled, relay).await;
}

async fn clean_as_configured(pooled: &mut Pooled, relay: &Relay) {
    if let Some(query) = relay.settings.resets_on_release() {
        reset(pooled, query).await;
    }
}

/// Runs a query with a limit of time.
pub async fn run(pooled: &mut Pooled, sql: &[u8]) -> Result<(), server::Error> {
    tokio::time::timeout(LIMIT, pooled.server.run(sql))
        .await
        .map_err(|_| server::Error::ConnectTimeout)?
}
