//! Secrets by SQL: `auth_query`, run as `auth_user` through an ordinary pool, so that it counts in its limits.

use std::future::poll_fn;
use std::sync::Arc;

use super::manager::Learned;
use super::{Manager, Pool, Pooled, WaitError, Waiter};
use crate::config::{Config, Database};
use crate::server;

/// Why no secret was found out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `auth_dbname` names a database that is not configured.
    #[error("authentication database \"{0}\" is not configured.")]
    UnknownDatabase(String),
    /// `auth_dbname` names a database that the console disabled.
    #[error("authentication database \"{0}\" is disabled")]
    Disabled(String),
    /// There was no server to ask.
    #[error("{0}")]
    Wait(#[from] WaitError),
    /// The server did not answer as it should.
    #[error("error in auth_query: {0}")]
    Query(#[from] server::Error),
}

/// What `auth_query` said about a user.
#[derive(Debug)]
pub struct Found {
    /// The login name it returned.
    pub user: String,
    /// The secret; `None`: never matches.
    pub secret: Option<String>,
}

/// Asks for the secret of `user`; `None`: no such user. Runs on `worker`.
pub async fn look_up(
    manager: &Manager,
    config: &Config,
    database: &Database,
    user: &str,
    worker: usize,
) -> Result<Option<Found>, Error> {
    let Some(auth_user) = config.auth_user(database) else {
        return Ok(None);
    };
    let auth_database = match config.auth_dbname(database) {
        Some(name) => config
            .database(name)
            .ok_or_else(|| Error::UnknownDatabase(name.to_owned()))?,
        None => Arc::new(database.clone()),
    };
    if manager.is_disabled(&auth_database.name) {
        return Err(Error::Disabled(auth_database.name.clone()));
    }
    let pool = manager.pool(config, &auth_database, auth_user, Learned::default());
    let mut pooled = lease(&pool, worker).await?;
    // A caller that gives up here drops the server half-way through, and so closes it.
    let row = pooled
        .server
        .ask(config.auth_query(database).as_bytes(), user.as_bytes())
        .await;
    // A query that failed has hurt nobody; a connection that failed is closed there.
    pool.check_in(pool.shard_of(worker), pooled);
    let Some(row) = row? else { return Ok(None) };
    let mut columns = row.into_iter();
    let (Some(Some(name)), Some(secret), None) = (columns.next(), columns.next(), columns.next())
    else {
        return Err(
            server::Error::Query("auth_query must return user and secret".to_owned()).into(),
        );
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Some(Found {
        user: text(name),
        secret: secret.map(text),
    }))
}

/// Waits for a server outside of a client's session: at login, or for `auth_query`. Cancel-safe: who
/// gives up leaves the queue.
pub async fn lease(pool: &Arc<Pool>, worker: usize) -> Result<Pooled, WaitError> {
    let shard = pool.shard_of(worker);
    let now = pool.parts.registry.now();
    let pooled = match pool.try_lease(shard) {
        Some(pooled) => pooled,
        None => {
            if let Some(error) = pool.cached_error() {
                return Err(error);
            }
            let place = Place {
                pool,
                shard,
                waiter: Arc::default(),
            };
            pool.enqueue(shard, &place.waiter, now);
            poll_fn(|cx| place.waiter.poll(cx)).await?
        }
    };
    pooled
        .rehomed(worker)
        .map_err(|error| WaitError::LoginFailed(error.to_string()))
}

/// A place in the queue that is given up when dropped.
struct Place<'a> {
    pool: &'a Arc<Pool>,
    shard: usize,
    waiter: Arc<Waiter>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.pool.leave(self.shard, &self.waiter);
    }
}
