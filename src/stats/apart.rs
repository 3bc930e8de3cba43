//! Keeping what one thread writes away from what others read.

use std::ops::Deref;

/// A value on cache lines that it shares with nothing else. (Two lines of 64 bytes, since processors fetch them in pairs.)
///
/// For what is written by one thread, or seldom, next to what other threads read with every query: without this a
/// write would take the neighbours along to the writer's core, and each reader would have to fetch them from there.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Apart<T>(T);

impl<T> Apart<T> {
    /// Puts a value apart.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Apart<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_on_other_lines() {
        let pair = [Apart::new(1_u8), Apart::new(2)];
        let [first, second] = pair
            .each_ref()
            .map(|apart| std::ptr::from_ref(&**apart).addr());
        assert_eq!((first % 128, second - first), (0, 128));
    }
}
