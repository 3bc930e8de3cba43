//! The last reloads of the configuration: what each has changed, or why it was not taken.

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;

/// So many are kept.
const KEPT: usize = 20;

/// What came of a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The new configuration holds.
    Done {
        /// What differs from the one before.
        applied: String,
        /// What has to wait for a restart.
        needs_restart: String,
    },
    /// Nothing has changed, for this reason.
    Rejected(String),
}

/// A reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reload {
    /// When it was over.
    pub at: SystemTime,
    /// What came of it.
    pub outcome: Outcome,
}

/// The reloads since the process began.
#[derive(Debug, Default)]
pub struct Reloads {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: VecDeque<Reload>,
    done: u64,
    rejected: u64,
}

impl Reloads {
    /// Another one, just now.
    pub fn note(&self, outcome: Outcome) {
        let mut inner = self.inner.lock();
        match outcome {
            Outcome::Done { .. } => inner.done += 1,
            Outcome::Rejected(_) => inner.rejected += 1,
        }
        inner.last.truncate(KEPT - 1);
        let at = SystemTime::now();
        inner.last.push_front(Reload { at, outcome });
    }

    /// The last ones, the latest first.
    pub fn last(&self) -> Vec<Reload> {
        self.inner.lock().last.iter().cloned().collect()
    }

    /// How many were taken, and how many were not.
    pub fn counts(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.done, inner.rejected)
    }

    /// Was the latest taken? Where there was none the configuration is that of the start, which was.
    pub fn is_latest_done(&self) -> bool {
        let inner = self.inner.lock();
        let latest = inner.last.front();
        latest.is_none_or(|latest| matches!(latest.outcome, Outcome::Done { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_twenty_are_kept_and_all_are_counted() {
        let reloads = Reloads::default();
        assert!(reloads.is_latest_done());
        for number in 0..30 {
            reloads.note(Outcome::Rejected(number.to_string()));
        }
        assert!(!reloads.is_latest_done());
        reloads.note(Outcome::Done {
            applied: "query_timeout".into(),
            needs_restart: String::new(),
        });
        let last = reloads.last();
        assert_eq!((last.len(), reloads.counts()), (20, (1, 30)));
        assert!(reloads.is_latest_done());
        assert_eq!(last[1].outcome, Outcome::Rejected("29".into()));
    }
}
