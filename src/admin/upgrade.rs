//! What the console and the process have in common while a successor takes over (`UPGRADE`).
//!
//! Starting it, and giving everything to it, is `daemon`'s.

use std::sync::{Arc, OnceLock};

/// An upgrade under way, and then what came of it: nothing more to say, or why everything is as it was.
#[derive(Debug, Clone, Default)]
pub struct Upgrade(Arc<OnceLock<Result<(), String>>>);

impl Upgrade {
    /// It is over. What was said first counts.
    pub fn end(&self, outcome: Result<(), String>) {
        // An error: it has been said.
        let _ = self.0.set(outcome);
    }

    /// What came of it; `None`: not yet known.
    pub fn outcome(&self) -> Option<&Result<(), String>> {
        self.0.get()
    }

    /// Does nobody else ask for the outcome any more?
    pub fn is_answered(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl PartialEq for Upgrade {
    /// The same one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Upgrade {}
