//! Secrets by SQL: `auth_query`, run as `auth_user` through an ordinary pool, so that it counts in its limits.

use std::future::poll_fn;
use std::sync::Arc;

use super::{Manager, Pool, Pooled, WaitError, Waiter};
use crate::config::{Config, Database, SecretText};
use crate::server;

/// Why no secret was found out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `auth_dbname` names a database that is not configured.
    #[error("authentication database \"{0}\" is not configured.")]
    UnknownDatabase(String),
    /// `auth_dbname` names the console.
    #[error("cannot use the reserved \"{0}\" database as an auth_dbname")]
    Reserved(String),
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
#[derive(Debug, Clone)]
pub struct Found {
    /// The login name it returned, which holds from then on.
    pub user: String,
    /// The secret; `None`: never matches.
    pub secret: Option<SecretText>,
}

/// Longest name that `auth_query` may return, in bytes; as in an `auth_file`.
const MAX_USER: usize = 127;

/// What is asked: logins that ask the same at the same time share the answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Question {
    database: String,
    auth_user: String,
    query: String,
    user: String,
}

/// An answer that many may have.
pub(super) type Answer = Result<Option<Found>, Arc<Error>>;

/// Asks for the secret of `user`; `None`: no such user. Runs on `worker`, or on that of somebody who asks the same.
///
/// The answer is never older than the call. Cancel-safe.
pub async fn look_up(
    manager: &Manager,
    config: &Config,
    database: &Database,
    user: &str,
    worker: usize,
) -> Result<Option<Found>, Arc<Error>> {
    let Some(auth_user) = config.auth_user(database) else {
        return Ok(None);
    };
    let auth_database = match config.auth_dbname(database) {
        Some(name) if config.is_console(name) => {
            return Err(Error::Reserved(name.to_owned()).into());
        }
        Some(name) => config
            .database(name)
            .ok_or_else(|| Error::UnknownDatabase(name.to_owned()))?,
        None => Arc::new(database.clone()),
    };
    if manager.is_disabled(&auth_database.name) {
        return Err(Error::Disabled(auth_database.name.clone()).into());
    }
    let question = Question {
        database: auth_database.name.clone(),
        auth_user: auth_user.to_owned(),
        query: config.auth_query(database).to_owned(),
        user: user.to_owned(),
    };
    let pool = manager.pool_of_auth_user(config, &auth_database, auth_user);
    let query = question.query.clone();
    manager
        .look_ups
        .ask(question, || async move {
            ask(&pool, &query, user, worker).await.map_err(Arc::new)
        })
        .await
}

async fn ask(
    pool: &Arc<Pool>,
    query: &str,
    user: &str,
    worker: usize,
) -> Result<Option<Found>, Error> {
    let mut pooled = lease(pool, worker).await?;
    // A caller that gives up here drops the server half-way through, and so closes it.
    let settings = pool.settings();
    let connect_query = settings.target.connect_query.as_deref();
    let row = match pooled.server.forget_clients(connect_query).await {
        Ok(()) => pooled.server.ask(query.as_bytes(), user.as_bytes()).await,
        Err(error) => Err(error),
    };
    // A query that failed has hurt nobody; a connection that failed is closed there.
    pool.check_in(pool.shard_of(worker), pooled);
    row?.map(found).transpose()
}

/// Reads the row: a name and a secret, and nothing else.
fn found(row: Vec<Option<Vec<u8>>>) -> Result<Found, Error> {
    let wrong = |what: &str| Error::from(server::Error::Query(what.to_owned()));
    let mut columns = row.into_iter();
    let (Some(name), Some(secret), None) = (columns.next(), columns.next(), columns.next()) else {
        return Err(wrong("expected 2 columns, user and secret"));
    };
    let text = |bytes: Vec<u8>| {
        String::from_utf8(bytes).map_err(|_| wrong("expected user and secret in UTF-8"))
    };
    let user = text(name.ok_or_else(|| wrong("expected a user, not NULL"))?)?;
    if user.is_empty() || user.len() > MAX_USER {
        return Err(wrong("expected a user of 1 to 127 bytes"));
    }
    let secret = secret.map(text).transpose()?.map(SecretText::new);
    Ok(Found { user, secret })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(columns: &[Option<&str>]) -> Result<(String, Option<String>), String> {
        let row = columns.iter().map(|it| it.map(|it| it.as_bytes().to_vec()));
        found(row.collect())
            .map(|found| (found.user, found.secret.map(|it| it.expose().to_owned())))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_row_is_a_user_and_a_secret() {
        assert_eq!(
            read(&[Some("u"), Some("s")]),
            Ok(("u".into(), Some("s".into())))
        );
        assert_eq!(read(&[Some("u"), None]), Ok(("u".into(), None)));
        let long = "u".repeat(128);
        for row in [
            &[Some("u")][..],
            &[],
            &[Some("u"), Some("s"), None],
            &[None, Some("s")],
            &[Some(""), Some("s")],
            &[Some(&long), None],
        ] {
            let error = read(row).unwrap_err();
            assert!(
                error.starts_with("error in auth_query: expected "),
                "{error}"
            );
        }
    }
}
