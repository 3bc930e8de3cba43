//! So many lines of a kind in a second, and not more: a log that fills the disk helps nobody.

use parking_lot::Mutex;

const SECOND: u64 = 1_000_000;

/// What has been said in this second.
#[derive(Debug, Default)]
pub struct Throttle {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    began: u64,
    said: u32,
    left_out: u64,
}

impl Throttle {
    /// May another line be said at this time (microseconds)? `Some`: yes, and so many were left out since the last.
    pub fn admit(&self, now: u64, most: u32) -> Option<u64> {
        let mut inner = self.inner.lock();
        if now.saturating_sub(inner.began) >= SECOND {
            inner.began = now;
            inner.said = 0;
        }
        if inner.said >= most {
            inner.left_out += 1;
            return None;
        }
        inner.said += 1;
        Some(std::mem::take(&mut inner.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted_and_told_in_the_next_second() {
        let throttle = Throttle::default();
        let start = 5 * SECOND;
        let said: Vec<_> = (0..5).map(|at| throttle.admit(start + at, 2)).collect();
        assert_eq!(said, [Some(0), Some(0), None, None, None]);
        assert_eq!(throttle.admit(start + SECOND, 2), Some(3));
        assert_eq!(throttle.admit(start + SECOND, 2), Some(0));
    }
}
