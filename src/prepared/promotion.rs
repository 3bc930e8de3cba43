//! Texts of unnamed statements that a pool's clients use again and again, and that are prepared instead.
//!
//! Owns which texts these are: the count of what was seen, the list of what is prepared, and how long each stays there. What is
//! done with a batch is `client::translate`'s; whether a plan is bad is [`watch`]'s.
//!
//! To count costs one store for a text that is not prepared, and nothing is written for one that is. The list is a map that
//! is replaced when it changes, so that looking takes no lock.
//!
//! A statement here is nobody else's: its settings are like no other's, so a client's name never stands for it. Once in
//! [`PERIOD`] it is outdated, which makes every server read it anew: what PostgreSQL does not notice (a new function that fits
//! better, a new table in front of the old one) is noticed then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Context, Registry, Statement};
use crate::stats::clock::micros;
use watch::Watch;

pub mod watch;

pub use watch::{Run, Verdict};

/// How often all are read anew, and those that were not used since are dropped.
pub const PERIOD: Duration = Duration::from_secs(60);

/// How many texts are counted at a time, in a table of 16 kB. Of more than that only the frequent ones get anywhere.
const COUNTED: usize = 2048;

/// A count that stays: the text is not to be prepared.
const REFUSED: u64 = COUNT_MASK;
const COUNT_MASK: u64 = 0xffff;

/// A text that is prepared.
#[derive(Debug)]
pub struct Promoted {
    statement: Arc<Statement>,
    context: Context,
    /// Since the last time that all were read anew.
    is_used: AtomicBool,
    /// Is it used unprepared for now, or for good, as its plan may be bad?
    is_barred: AtomicBool,
    /// Microseconds above which a run is worth a look.
    limit: AtomicU64,
    watch: Mutex<Watch>,
}

impl Promoted {
    /// The statement on the servers, if it is to be used.
    #[inline]
    pub fn statement(&self) -> Option<&Arc<Statement>> {
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        (!self.is_barred.load(Ordering::Relaxed)).then_some(&self.statement)
    }
}

/// By the hash of settings and definition. Of two with the same hash the first is in it.
type Map = HashMap<u64, Arc<Promoted>, ahash::RandomState>;

/// The list at one moment.
pub struct List(Guard<Arc<Map>>);

impl List {
    /// What there is to this text, read under these settings; `hash` is [`Promotions::hash`]'s.
    #[inline]
    pub fn get(&self, hash: u64, context: &Context, definition: &[u8]) -> Option<&Promoted> {
        let found = self.0.get(&hash)?;
        (found.context == *context && found.statement.definition() == definition).then_some(found)
    }
}

struct Table {
    hasher: ahash::RandomState,
    began: Instant,
    /// The upper 48 bits of a hash, and how often it was seen.
    seen: Box<[AtomicU64]>,
    promoted: ArcSwap<Map>,
    /// Microseconds after `began`.
    refreshed: AtomicU64,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            hasher: ahash::RandomState::new(),
            began: Instant::now(),
            seen: (0..COUNTED).map(|_| AtomicU64::new(0)).collect(),
            promoted: ArcSwap::from_pointee(Map::default()),
            refreshed: AtomicU64::new(0),
        }
    }
}

/// The texts of one pool. Empty, and next to nothing, until the first is counted.
#[derive(Default)]
pub struct Promotions(OnceLock<Table>);

impl std::fmt::Debug for Promotions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the texts: they are clients'.
        write!(f, "Promotions({})", self.len())
    }
}

impl Promotions {
    fn table(&self) -> &Table {
        self.0.get_or_init(Table::default)
    }

    /// The number by which a text is found.
    #[inline]
    pub fn hash(&self, context: &Context, definition: &[u8]) -> u64 {
        self.table().hasher.hash_one((context.number(), definition))
    }

    /// The texts that are prepared. When they were not read anew for long they are from now on.
    #[inline]
    pub fn list(&self, now: u64) -> List {
        let table = self.table();
        let last = table.refreshed.load(Ordering::Relaxed);
        if now.saturating_sub(last) >= micros(PERIOD) {
            let mine =
                table
                    .refreshed
                    .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
            if mine.is_ok() {
                table.refresh();
            }
        }
        List(table.promoted.load())
    }

    /// Microseconds since some moment.
    #[inline]
    pub fn now(&self) -> u64 {
        micros(self.table().began.elapsed())
    }

    /// The text was sent once more, and is not prepared. Has it been seen so often (`after`, not 0) that it is to be?
    pub fn count(&self, hash: u64, after: usize) -> bool {
        let (tag, seen) = (hash & !COUNT_MASK, &self.table().seen);
        let at = |number: u64| {
            let at = usize::try_from(number).unwrap_or_default() % seen.len().max(1);
            seen.get(at)
        };
        let (Some(one), Some(other)) = (at(hash), at(hash >> 24)) else {
            return false;
        };
        let (first, second) = (one.load(Ordering::Relaxed), other.load(Ordering::Relaxed));
        let (slot, held) = if first & !COUNT_MASK == tag {
            (one, first)
        } else if second & !COUNT_MASK == tag {
            (other, second)
        } else if rank(first) <= rank(second) {
            (one, first)
        } else {
            (other, second)
        };
        let count = if held & !COUNT_MASK != tag {
            // Each newcomer takes one from the count of who has the place, and at last the place.
            let is_free = rank(held) == 0;
            slot.store(if is_free { tag | 1 } else { held - 1 }, Ordering::Relaxed);
            1
        } else if held & COUNT_MASK == REFUSED {
            return false;
        } else {
            // Two at the same time may count as one.
            let count = ((held & COUNT_MASK) + 1).min(REFUSED - 1);
            slot.store(tag | count, Ordering::Relaxed);
            count
        };
        count >= u64::try_from(after).unwrap_or(u64::MAX).min(REFUSED - 1)
    }

    /// The text is not to be prepared: it is not counted any more, as long as its place is not needed.
    pub fn refuse(&self, hash: u64) {
        self.set_count(hash, REFUSED);
    }

    /// It is counted from the beginning.
    fn postpone(&self, hash: u64) {
        self.set_count(hash, 0);
    }

    fn set_count(&self, hash: u64, count: u64) {
        let tag = hash & !COUNT_MASK;
        for slot in &self.table().seen {
            if slot.load(Ordering::Relaxed) & !COUNT_MASK == tag {
                slot.store(tag | count, Ordering::Relaxed);
            }
        }
    }

    /// From now on the text is prepared, unless there are `most` already, or there is no room (`memory`, bytes) for it.
    pub fn promote(
        &self,
        (hash, context, definition): (u64, &Context, &[u8]),
        registry: &Registry,
        (most, memory): (usize, usize),
    ) {
        let table = self.table();
        if table.promoted.load().len() >= most || table.promoted.load().contains_key(&hash) {
            return self.postpone(hash);
        }
        let apart = registry.context_apart();
        let Ok(statement) = registry.intern(definition, &apart, memory) else {
            return self.postpone(hash);
        };
        let promoted = Arc::new(Promoted {
            statement,
            context: context.clone(),
            is_used: AtomicBool::new(true),
            is_barred: AtomicBool::new(false),
            limit: AtomicU64::new(u64::MAX),
            watch: Mutex::default(),
        });
        table.promoted.rcu(|map| {
            let mut map = Map::clone(map);
            map.entry(hash).or_insert_with(|| promoted.clone());
            map
        });
    }

    /// A run of the text is over. Says what has become of it, if that has changed.
    pub fn ran(&self, hash: u64, run: Run, took: u64) -> Option<Verdict> {
        let map = self.table().promoted.load();
        let promoted = map.get(&hash)?;
        let weight = match run {
            Run::Reused if took <= promoted.limit.load(Ordering::Relaxed) => {
                // Of those that are as they should be one in so many is enough.
                if took.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 != 0 {
                    return None;
                }
                8
            }
            Run::Reused | Run::Fresh | Run::Plain => 1,
        };
        // Somebody else's run will do as well.
        let mut watch = promoted.watch.try_lock()?;
        let verdict = watch.ran(run, took, weight);
        promoted.limit.store(watch.limit(), Ordering::Relaxed);
        promoted
            .is_barred
            .store(!watch.is_trusted(), Ordering::Relaxed);
        verdict
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.get().map_or(0, |table| table.promoted.load().len())
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How much a place in the table is worth to who has it.
fn rank(held: u64) -> u64 {
    match held & COUNT_MASK {
        REFUSED => 0,
        count => count,
    }
}

impl Table {
    #[cold]
    fn refresh(&self) {
        self.promoted.rcu(|map| {
            let mut map = Map::clone(map);
            // What was found to be bad is not tried a second time.
            map.retain(|_, it| it.is_used.load(Ordering::Relaxed) || it.watch.lock().is_over());
            map
        });
        for promoted in self.promoted.load().values() {
            promoted.is_used.store(false, Ordering::Relaxed);
            promoted.statement.outdate();
        }
        // What was counted long ago counts for less.
        for slot in &self.seen {
            let held = slot.load(Ordering::Relaxed);
            if held & COUNT_MASK != REFUSED {
                slot.store(
                    (held & !COUNT_MASK) | ((held & COUNT_MASK) / 2),
                    Ordering::Relaxed,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
