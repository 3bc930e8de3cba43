//! The settings that clients ask for at their logins, as far as PostgreSQL has taken them: it is asked about each set
//! once, and clients that ask for the same afterwards need no server for that.
//!
//! Refusals are not kept: each is a transaction that sets nothing. One question at a time is asked in a pool, so a crowd
//! that asks for the same costs one, and whoever asks for something else every time holds no more than one server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::timeout;

use super::auth_query::lease;
use super::state::Pool;
use super::{Pooled, WaitError};
use crate::server;
use crate::server::overlay::{Overlay, Setting};
use crate::server::trial::{Refusal, Tried};

/// So many sets are kept for each pool. None is longer than a start-up message.
const MOST: usize = 32;

/// How long a server may take to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// A server may be lost that often; then it is not the server.
const ATTEMPTS: usize = 3;

/// What a client's session is that has asked for settings at its login.
#[derive(Debug, Default)]
pub struct LoginSettings {
    /// All that is set at the beginning of its session.
    pub all: Overlay,
    /// What it has asked for: RESET goes back to that.
    pub own: Overlay,
    /// The custom settings among these.
    pub customs: Vec<Box<[u8]>>,
    /// Those of these that PostgreSQL reports in `ParameterStatus`.
    pub reported: Vec<Setting>,
}

/// Why a client does not get the settings that it asks for.
#[derive(Debug, thiserror::Error)]
pub enum Declined {
    /// PostgreSQL's own refusal.
    #[error("{0}")]
    Refused(Refusal),
    /// There was no server to ask.
    #[error("{0}")]
    Wait(#[from] WaitError),
    /// Servers were lost that were asked.
    #[error("{0}")]
    Server(server::Error),
}

/// What was asked for, and of which edition of the pool.
#[derive(Debug)]
struct Known {
    asked: Vec<Setting>,
    edition: (u64, u64),
    accepted: Arc<LoginSettings>,
}

/// The sets that were taken.
#[derive(Debug, Default)]
pub(super) struct Acceptances {
    /// Held by who asks.
    turn: tokio::sync::Mutex<()>,
    /// The one used last comes last.
    known: Mutex<Vec<Known>>,
}

impl Acceptances {
    fn find(&self, asked: &[Setting], edition: (u64, u64)) -> Option<Arc<LoginSettings>> {
        let mut known = self.known.lock();
        let at = known
            .iter()
            .rposition(|it| it.edition == edition && it.asked == asked)?;
        if let Some(later) = known.get_mut(at..) {
            later.rotate_left(1);
        }
        known.last().map(|it| it.accepted.clone())
    }

    fn keep(&self, asked: Vec<Setting>, edition: (u64, u64), accepted: Arc<LoginSettings>) {
        let mut known = self.known.lock();
        // What was found out before a reload or RECONNECT holds no more.
        known.retain(|it| it.edition == edition);
        if known.len() == MOST {
            known.remove(0);
        }
        known.push(Known {
            asked,
            edition,
            accepted,
        });
    }
}

impl Pool {
    /// What comes of these settings in a session of this pool. Waits for a server, unless somebody has asked for the same
    /// before. Cancel-safe: the server of a caller that gives up is closed if it is in the middle of its answer.
    pub async fn accept(
        self: &Arc<Self>,
        asked: &[Setting],
        worker: usize,
    ) -> Result<Arc<LoginSettings>, Declined> {
        let edition = || (self.generation(), self.version());
        if let Some(accepted) = self.accepted.find(asked, edition()) {
            return Ok(accepted);
        }
        let _turn = self.accepted.turn.lock().await;
        let edition = edition();
        if let Some(accepted) = self.accepted.find(asked, edition) {
            return Ok(accepted);
        }
        let tried = self.try_settings(asked, worker).await?;
        let accepted = Arc::new(self.accepted(tried));
        self.accepted
            .keep(asked.to_vec(), edition, accepted.clone());
        Ok(accepted)
    }

    /// A server has refused what was taken for accepted: the next client that asks for it learns why.
    pub fn forget_accepted(&self, refused: &Arc<LoginSettings>) {
        let mut known = self.accepted.known.lock();
        known.retain(|it| !Arc::ptr_eq(&it.accepted, refused));
    }

    async fn try_settings(
        self: &Arc<Self>,
        asked: &[Setting],
        worker: usize,
    ) -> Result<Tried, Declined> {
        let mut lost = server::Error::ConnectTimeout;
        for _ in 0..ATTEMPTS {
            let mut pooled = lease(self, worker).await?;
            let trial = timeout(LIMIT, pooled.server.try_settings(asked)).await;
            match trial.unwrap_or(Err(server::Error::ConnectTimeout)) {
                Ok(outcome) => {
                    self.give_back(pooled, worker);
                    return outcome.map_err(Declined::Refused);
                }
                Err(error) => {
                    pooled.close("server conn crashed?");
                    lost = error;
                }
            }
        }
        Err(Declined::Server(lost))
    }

    /// Gives back a server that was only asked something of our own, and is what it was before.
    pub fn give_back(self: &Arc<Self>, pooled: Pooled, worker: usize) {
        let shard = self.shard_of(worker);
        if pooled.server.served || !pooled.server.is_clean() {
            self.check_in(shard, pooled);
        } else {
            // With a `server_lifetime` of 0 it has its one use before it.
            self.admit(shard, pooled);
        }
    }

    fn accepted(&self, tried: Tried) -> LoginSettings {
        let welcome = self.welcome().unwrap_or_default();
        let is_reported = |name: &[u8]| {
            welcome
                .iter()
                .any(|(known, _)| known.eq_ignore_ascii_case(name))
        };
        let reported = tried.own.iter().filter(|(name, _)| is_reported(name));
        let reported = reported.map(|(name, value)| (name.into(), value.into()));
        LoginSettings {
            reported: reported.collect(),
            all: tried.all,
            own: tried.own,
            customs: tried.customs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: usize) -> Vec<Setting> {
        let value = value.to_string().into_bytes();
        vec![(b"work_mem".as_slice().into(), value.into())]
    }

    #[test]
    fn the_set_that_was_used_longest_ago_has_to_go() {
        let (known, edition) = (Acceptances::default(), (1, 1));
        for number in 0..MOST {
            known.keep(set(number), edition, Arc::default());
        }
        let first = known.find(&set(0), edition).unwrap();
        known.keep(set(MOST), edition, Arc::default());
        assert!(Arc::ptr_eq(&first, &known.find(&set(0), edition).unwrap()));
        assert!(known.find(&set(1), edition).is_none());
        assert_eq!(known.known.lock().len(), MOST);
    }

    #[test]
    fn nothing_holds_beyond_a_reload_or_reconnect() {
        let known = Acceptances::default();
        known.keep(set(0), (1, 1), Arc::default());
        assert!(known.find(&set(0), (1, 1)).is_some());
        assert!(known.find(&set(0), (2, 1)).is_none());
        assert!(known.find(&set(0), (1, 2)).is_none());
        known.keep(set(1), (2, 1), Arc::default());
        assert_eq!(known.known.lock().len(), 1);
    }
}
