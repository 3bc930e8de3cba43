//! Which functions of a pool's database may touch a session without the text that calls them saying so.
//!
//! The first server of a pool is asked before anybody gets it, and now and then it is seen whether functions have changed since.
//! What was made in between is not known yet.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::time::timeout;

use super::auth_query::lease;
use super::sequences::Sequences;
use super::state::Pool;
use crate::server::{Error, Server};
use crate::sql::functions::STATEFUL;
use crate::sql::touches::{Draws, Found, Touches, draws, has_name};

/// How often it is seen whether they have changed.
const PERIOD: Duration = Duration::from_secs(60);

/// How long a server may take to tell.
const LIMIT: Duration = Duration::from_secs(15);

/// Something that changes when functions, triggers or rules do.
const VERSION: &str = "SELECT pg_catalog.concat_ws(' ', \
     (SELECT pg_catalog.count(*) || ' ' || pg_catalog.sum(pg_catalog.hashtext(xmin::text || oid)) FROM pg_catalog.pg_proc), \
     (SELECT pg_catalog.count(*) || ' ' || pg_catalog.sum(pg_catalog.hashtext(xmin::text || oid)) FROM pg_catalog.pg_trigger), \
     (SELECT pg_catalog.count(*) || ' ' || pg_catalog.sum(pg_catalog.hashtext(xmin::text || oid)) FROM pg_catalog.pg_rewrite))";

/// What a database was found to have.
#[derive(Debug, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent findings, and no states"
)]
struct Known {
    version: Vec<u8>,
    names: Names,
    /// Custom settings that are named in them.
    settings: Vec<Box<[u8]>>,
    behind_writes: bool,
    behind_anything: bool,
    /// Those that ask what sequences gave last, and those that draw from them.
    asking: Names,
    drawing: Names,
    /// Something else does ask, without being called by a name.
    asks_unseen: bool,
    /// A trigger draws.
    draws_unseen: bool,
}

type Names = HashSet<Box<[u8]>, ahash::RandomState>;

/// The functions of a pool's database that may touch a session.
#[derive(Debug, Default)]
pub struct Functions {
    known: ArcSwapOption<Known>,
    is_watched: AtomicBool,
    sequences: Sequences,
}

impl Functions {
    /// May a function of this name, in lower case and without its schema, touch the session?
    pub fn is_stateful(&self, name: &[u8]) -> bool {
        self.known
            .load()
            .as_ref()
            .is_some_and(|known| known.names.contains(name))
    }

    /// What was learned of sequences.
    #[inline]
    pub fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// Does a text that does this ask what sequences gave last?
    pub fn ask_sequences(&self, found: &Found, sql: &[u8]) -> bool {
        found.touches.contains(Touches::SEQUENCES)
            || found.touches.contains(Touches::BODY)
                && self.known.load().as_ref().is_some_and(|known| {
                    !known.asking.is_empty() && has_name(sql, &|name| known.asking.contains(name))
                })
    }

    /// May any query ask that, by what it does not show?
    pub fn ask_sequences_unseen(&self) -> bool {
        let known = self.known.load();
        known.as_ref().is_some_and(|known| known.asks_unseen)
    }

    /// What a text may draw from sequences.
    pub fn draws(&self, sql: &[u8]) -> Draws {
        let known = self.known.load();
        let Some(known) = &*known else {
            return draws(sql, &|_| false);
        };
        match draws(sql, &|name| known.drawing.contains(name)) {
            Draws::Unshown if known.draws_unseen => Draws::Shown,
            draws => draws,
        }
    }

    /// Takes the custom settings that are named in them, one by one.
    pub fn each_setting(&self, mut take: impl FnMut(&[u8])) {
        if let Some(known) = &*self.known.load() {
            known.settings.iter().for_each(|name| take(name));
        }
    }

    /// May a text touch the session through what it does not show: triggers, views, policies, defaults and so on?
    /// `writes`: it changes tables.
    pub fn are_behind(&self, writes: bool) -> bool {
        self.known
            .load()
            .as_ref()
            .is_some_and(|known| known.behind_anything || writes && known.behind_writes)
    }
}

/// What a successor of this process is to know of the functions.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct CarriedFunctions {
    #[prost(bytes = "vec", tag = "1")]
    version: Vec<u8>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    names: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    settings: Vec<Vec<u8>>,
    #[prost(bool, tag = "4")]
    behind_writes: bool,
    #[prost(bool, tag = "5")]
    behind_anything: bool,
    #[prost(bytes = "vec", repeated, tag = "6")]
    asking: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    drawing: Vec<Vec<u8>>,
    #[prost(bool, tag = "8")]
    asks_unseen: bool,
    #[prost(bool, tag = "9")]
    draws_unseen: bool,
    /// Somebody asks what sequences gave last; and after texts that begin like these.
    #[prost(bool, tag = "10")]
    sequences_are_read: bool,
    #[prost(bytes = "vec", repeated, tag = "11")]
    followed: Vec<Vec<u8>>,
    /// What stands before these two is known.
    #[prost(bool, tag = "12")]
    is_known: bool,
}

impl Functions {
    /// What a successor is to know.
    pub(super) fn carry(&self) -> CarriedFunctions {
        let of_sequences = CarriedFunctions {
            sequences_are_read: self.sequences.are_read(),
            followed: self.sequences.followed(),
            ..CarriedFunctions::default()
        };
        let known = self.known.load();
        let Some(known) = known.as_ref() else {
            return of_sequences;
        };
        let all = |names: &Names| names.iter().map(|name| name.to_vec()).collect();
        CarriedFunctions {
            is_known: true,
            version: known.version.clone(),
            names: all(&known.names),
            settings: known.settings.iter().map(|name| name.to_vec()).collect(),
            behind_writes: known.behind_writes,
            behind_anything: known.behind_anything,
            asking: all(&known.asking),
            drawing: all(&known.drawing),
            asks_unseen: known.asks_unseen,
            draws_unseen: known.draws_unseen,
            ..of_sequences
        }
    }

    /// What the process before this one knew, as far as it is not known already.
    pub(super) fn take_over(&self, carried: &CarriedFunctions) {
        if carried.sequences_are_read {
            self.sequences.read();
        }
        for beginning in &carried.followed {
            self.sequences.follow(beginning);
        }
        if !carried.is_known || self.known.load().is_some() {
            return;
        }
        let all = |names: &[Vec<u8>]| names.iter().map(|name| name.as_slice().into()).collect();
        self.known.store(Some(Arc::new(Known {
            version: carried.version.clone(),
            names: all(&carried.names),
            settings: carried
                .settings
                .iter()
                .map(|it| it.as_slice().into())
                .collect(),
            behind_writes: carried.behind_writes,
            behind_anything: carried.behind_anything,
            asking: all(&carried.asking),
            drawing: all(&carried.drawing),
            asks_unseen: carried.asks_unseen,
            draws_unseen: carried.draws_unseen,
        })));
    }
}

impl Pool {
    /// Asks a server that nobody has had yet, unless one was asked before.
    pub(super) async fn learn_functions(self: &Arc<Self>, server: &mut Server, worker: usize) {
        let settings = self.settings();
        if !settings.follows_functions
            || settings.functions.is_watched.swap(true, Ordering::Relaxed)
        {
            return;
        }
        // One that takes longer is closed: it is in the middle of an answer.
        let _ = timeout(LIMIT, self.ask_for_functions(server)).await;
        let pool = Arc::downgrade(self);
        self.parts.workers.spawn_on(worker, async move {
            loop {
                tokio::time::sleep(PERIOD).await;
                let Some(pool) = pool.upgrade() else { return };
                if pool.settings().follows_functions
                    && pool.accounting.lock().open() > 0
                    && let Ok(mut pooled) = lease(&pool, worker).await
                {
                    let _ = timeout(LIMIT, pool.ask_for_functions(&mut pooled.server)).await;
                    pool.check_in(pool.shard_of(worker), pooled);
                }
            }
        });
    }

    async fn ask_for_functions(&self, server: &mut Server) {
        let functions = self.settings().functions.clone();
        let before = functions.known.load_full();
        let version = before.as_ref().map(|known| known.version.as_slice());
        match ask(server, version).await {
            Ok(None) => {}
            Ok(Some(known)) => {
                if known.behind_writes || known.behind_anything {
                    tracing::info!(
                        database = self.database,
                        "triggers, views or the like call functions that may touch the session: \
                         it is looked at more often (follow_functions)"
                    );
                }
                if known.asks_unseen || !known.asking.is_empty() {
                    functions.sequences.read();
                }
                functions.known.store(Some(Arc::new(known)));
            }
            Err(error) => tracing::warn!(
                database = self.database,
                "which functions touch the session can't be found out: {error}"
            ),
        }
    }
}

/// What the database has; `None`: the same as in this version of it.
async fn ask(server: &mut Server, version: Option<&[u8]>) -> Result<Option<Known>, Error> {
    let rows = server.ask_for_rows(VERSION.as_bytes()).await?;
    let now = rows.into_iter().flatten().flatten().next();
    let now = now.unwrap_or_default();
    if version == Some(&*now) {
        return Ok(None);
    }
    // Compiling it takes longer than running it.
    let text = format!(
        "BEGIN READ ONLY; SET LOCAL jit = off; SET LOCAL statement_timeout = '10s'; {STATEFUL}; COMMIT"
    );
    let mut known = Known {
        version: now,
        ..Known::default()
    };
    let rows = match server.ask_for_rows(text.as_bytes()).await {
        Ok(rows) => rows,
        Err(error) => {
            server.run(b"ROLLBACK").await?;
            return Err(error);
        }
    };
    for row in rows {
        let mut columns = row.into_iter().flatten();
        let (Some(kind), Some(name)) = (columns.next(), columns.next()) else {
            continue;
        };
        match kind.as_slice() {
            b"function" => {
                known.names.insert(name.into());
            }
            b"reads" => {
                known.asking.insert(name.into());
            }
            b"draws" => {
                known.drawing.insert(name.into());
            }
            b"hidden" => known.asks_unseen = true,
            b"fires" => known.draws_unseen = true,
            b"setting" => known.settings.push(name.into()),
            b"trigger" => known.behind_writes = true,
            _ => known.behind_anything = true,
        }
    }
    // An operator or a cast, say, may be what asks.
    known.asks_unseen |= known.behind_anything && !known.asking.is_empty();
    Ok(Some(known))
}
