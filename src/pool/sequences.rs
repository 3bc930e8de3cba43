//! What a pool has learned of who asks what sequences gave last (`currval`, `lastval`), and after which texts.
//!
//! Nearly every write draws from a sequence, and no program that asks does so without having written first. So a pool in which
//! nobody has ever asked need not know who has drawn; and where somebody has, later than in the transaction that drew,
//! it is kept for those whose texts begin like the one that drew.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;

/// Most beginnings that are kept; what is learned beyond is forgotten.
const MOST: usize = 1024;

/// What one pool has learned.
#[derive(Debug, Default)]
pub struct Sequences {
    are_read: AtomicBool,
    /// Read with each text that draws, and changed once for each.
    beginnings: ArcSwap<HashSet<Box<[u8]>, ahash::RandomState>>,
}

impl Sequences {
    /// Does anybody ask what sequences gave last?
    #[inline]
    pub fn are_read(&self) -> bool {
        self.are_read.load(Ordering::Relaxed)
    }

    /// Somebody does.
    pub fn read(&self) {
        self.are_read.store(true, Ordering::Relaxed);
    }

    /// Somebody has asked for what a text that begins like this had drawn in an earlier transaction.
    pub fn follow(&self, beginning: &[u8]) {
        if self.is_followed(beginning) || self.beginnings.load().len() >= MOST {
            return;
        }
        self.beginnings.rcu(|known| {
            let mut more = HashSet::clone(known);
            more.insert(beginning.into());
            more
        });
    }

    /// Those beginnings, in no order.
    pub fn followed(&self) -> Vec<Vec<u8>> {
        let known = self.beginnings.load();
        known.iter().map(|beginning| beginning.to_vec()).collect()
    }

    /// Was that so for a text that begins like this?
    pub fn is_followed(&self, beginning: &[u8]) -> bool {
        self.beginnings.load().contains(beginning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learned_is_known_up_to_a_limit() {
        let sequences = Sequences::default();
        assert!(!sequences.are_read() && !sequences.is_followed(b"insert into t "));
        sequences.read();
        sequences.follow(b"insert into t ");
        assert!(sequences.are_read() && sequences.is_followed(b"insert into t "));
        for number in 0..2 * MOST {
            sequences.follow(&number.to_be_bytes());
        }
        assert!(!sequences.is_followed(&(2 * MOST - 1).to_be_bytes()));
        assert!(sequences.is_followed(b"insert into t "));
    }
}
