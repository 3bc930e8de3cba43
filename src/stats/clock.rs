//! The time, read once for what a worker does in one turn.
//!
//! A worker that has many sockets ready deals with them one after the other within microseconds; asking the system for the
//! time at each step takes a few hundred instructions of every query. (PgBouncer reads it once per turn of its loop, too.)

use std::cell::Cell;
use std::time::Duration;

/// A time is good for so many uses, should a turn be long.
const USES: u32 = 12;

thread_local! {
    /// The thread's time, and how often it may still be used.
    static TURN: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// A length of time as it is counted and compared, in microseconds; what is longer than can be told is as long as can be.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The time of this turn, by `read` if it is not known yet.
#[inline]
pub fn in_turn(read: impl FnOnce() -> u64) -> u64 {
    let (time, uses) = TURN.get();
    if uses > 0 {
        TURN.set((time, uses - 1));
        return time;
    }
    let time = read();
    if KEEPS_TURNS.get() {
        TURN.set((time, USES));
    }
    time
}

thread_local! {
    static KEEPS_TURNS: Cell<bool> = const { Cell::new(false) };
}

/// The thread that calls this says when its turns [end](end_turn). On any other the time is always read.
pub fn keep_turns() {
    KEEPS_TURNS.set(true);
}

/// The thread is about to sleep, or has slept: what it knows of the time is no longer true.
#[inline]
pub fn end_turn() {
    TURN.set((0, 0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_turns_always_reads() {
        assert_eq!(in_turn(|| 1), 1);
        assert_eq!(in_turn(|| 2), 2);
    }

    #[test]
    fn a_turn_has_one_time() {
        keep_turns();
        assert_eq!(in_turn(|| 1), 1);
        assert_eq!(in_turn(|| 2), 1);
        end_turn();
        assert_eq!(in_turn(|| 3), 3);
    }

    #[test]
    fn in_a_long_turn_time_goes_on_all_the_same() {
        keep_turns();
        end_turn();
        let mut reads = 0;
        for _ in 0..100 {
            in_turn(|| {
                reads += 1;
                reads
            });
        }
        assert!((5..=20).contains(&reads), "{reads}");
    }
}
