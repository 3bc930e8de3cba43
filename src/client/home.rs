//! Where a client lives.

use crate::pool::Pool;

/// Where a client lives. (Short numbers, as there is one of these for each client.)
#[derive(Debug, Clone, Copy)]
pub(super) struct Home {
    worker: u16,
    shard: u16,
}

impl Home {
    /// With this worker.
    pub(super) fn of(pool: &Pool, worker: usize) -> Self {
        let short = |number| u16::try_from(number).unwrap_or_default();
        Self {
            worker: short(worker),
            shard: short(pool.shard_of(worker)),
        }
    }

    /// The worker.
    #[inline]
    pub(super) fn worker(self) -> usize {
        self.worker.into()
    }

    /// The pool's shard there.
    #[inline]
    pub(super) fn shard(self) -> usize {
        self.shard.into()
    }
}
