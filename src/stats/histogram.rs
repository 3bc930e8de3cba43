//! Times in buckets, so that percentiles can be told afterwards.
//!
//! The bounds are those of Prometheus' native histograms with schema 3: each is 2^(1/8) of the one before, so that whatever is
//! read out of a bucket is at most 9 % from the truth. A value costs a few instructions and one counter. Like
//! [`counters`](super::counters) it is written by one thread and read by any.

use super::counters::Counter;

/// Buckets to a factor of two.
const PER_OCTAVE: usize = 8;

/// Powers of two that are told apart: from 2^-20 s, a little less than a microsecond, to 2^12 s, more than an hour. What is
/// longer counts there.
const OCTAVES: usize = 32;

/// The power of two, in seconds, at which the first bucket begins.
const FIRST: i32 = -20;

/// 2^20 units are a second: a microsecond has so many of them, in 2^20ths.
const UNITS: u64 = 1_099_512;

/// Longer times count as this one, so that nothing overflows.
const LONGEST: u64 = 1 << 40;

/// How many buckets there are.
pub const BUCKETS: usize = OCTAVES * PER_OCTAVE;

/// 2^(k/8) for k = 1 to 7, in 256ths above 1: a value is compared with its eight bits behind the leading one.
const STEPS: [u8; PER_OCTAVE - 1] = [23, 48, 75, 106, 138, 174, 214];

/// Which of an octave's buckets a value is in, by the eight bits behind its leading one.
static WITHIN: [u8; 256] = {
    let mut table = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut step = 0;
        while step < STEPS.len() {
            #[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
            if bits > STEPS[step] as usize {
                #[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
                {
                    table[bits] += 1;
                }
            }
            step += 1;
        }
        bits += 1;
    }
    table
};

/// Counts of values by their size, in microseconds.
#[derive(Debug)]
pub struct Histogram {
    counts: [Counter; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [const { Counter::new() }; BUCKETS],
        }
    }
}

impl Histogram {
    /// Counts a time. Only the thread that owns it may call this.
    #[inline]
    pub fn add(&self, micros: u64) {
        self.count(Bucket::of(micros));
    }

    /// The same for a time whose bucket is known.
    #[inline]
    pub fn count(&self, bucket: Bucket) {
        if let Some(count) = self.counts.get(bucket.0) {
            count.add(1);
        }
    }
}

/// Where a time is counted.
#[derive(Debug, Clone, Copy)]
pub struct Bucket(usize);

impl Bucket {
    /// That of so many microseconds.
    #[inline]
    pub fn of(micros: u64) -> Self {
        Self(bucket(micros))
    }
}

/// The bucket of a value. Zero counts as one.
#[inline]
fn bucket(micros: u64) -> usize {
    let units = ((micros.clamp(1, LONGEST)) * UNITS) >> 20;
    let octave = units.ilog2();
    // The leading one is shifted out at the top.
    let bits = (units << (63 - octave) << 1) >> 56;
    let within = WITHIN
        .get(usize::try_from(bits).unwrap_or_default())
        .map_or(0, |within| usize::from(*within));
    (octave as usize * PER_OCTAVE + within).min(BUCKETS - 1)
}

/// The upper bound of a bucket, in seconds: 2^(1/8) to the power of [`power`].
pub fn bound(bucket: usize) -> f64 {
    (f64::from(power(bucket)) / 8.0).exp2()
}

/// Which bucket of a native histogram it is.
pub fn power(bucket: usize) -> i32 {
    let above_first = i32::try_from(bucket + 1).unwrap_or(i32::MAX);
    FIRST * 8 + above_first
}

/// What is in a histogram at a moment, or in several together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    /// How many values each bucket has.
    pub counts: Vec<u64>,
    /// All values added up, in microseconds. It is counted apart ([`Totals`](super::Totals)).
    pub sum: u64,
}

impl Default for Distribution {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            sum: 0,
        }
    }
}

impl Distribution {
    /// Adds the counts of a histogram.
    pub fn add(&mut self, histogram: &Histogram) {
        for (sum, count) in self.counts.iter_mut().zip(&histogram.counts) {
            *sum += count.get();
        }
    }

    /// Adds another one.
    pub fn merge(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time, in seconds, that this share (0 to 1) of the values does not exceed; `None` if there are none.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let total = self.count();
        #[allow(clippy::cast_precision_loss, reason = "an estimate")]
        let wanted = share * total as f64;
        let mut seen = 0;
        let reaches = |count: &u64| {
            seen += count;
            #[allow(clippy::cast_precision_loss, reason = "an estimate")]
            let reached = seen as f64 >= wanted;
            reached && *count > 0
        };
        self.counts.iter().position(reaches).map(bound)
    }
}

/// The times of one pool's clients, on one worker.
#[derive(Debug, Default)]
pub struct Times {
    /// What clients waited for a server, if they did.
    pub wait: Histogram,
    /// Transactions, from the first message to a server to its release.
    pub transaction: Histogram,
    /// Queries, from the first message to the last ReadyForQuery.
    pub query: Histogram,
    /// Connections to PostgreSQL, from dialling to the end of the login.
    pub connect: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_within_the_bounds_of_its_bucket() {
        let mut micros = 1_u64;
        while micros < 1 << 31 {
            for value in [micros, micros + 1, micros + micros / 3] {
                let at = bucket(value);
                if value < 64 {
                    // These have fewer bits.
                    continue;
                }
                #[allow(clippy::cast_precision_loss)]
                let seconds = value as f64 * 1e-6;
                // The table knows eight bits of a value.
                assert!(seconds <= bound(at) * 1.004, "{value}");
                assert!(at == 0 || seconds >= bound(at - 1) * 0.996, "{value}");
            }
            micros += micros / 7 + 1;
        }
    }

    #[test]
    fn buckets_never_go_down_and_the_last_takes_all_that_is_longer() {
        let values = (0..64).flat_map(|octave| (0..8).map(move |part| (1_u64 << octave) | part));
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        let buckets: Vec<usize> = values.into_iter().map(bucket).collect();
        assert!(buckets.is_sorted());
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_near_the_truth() {
        let histogram = Histogram::default();
        (1..=1000).for_each(|value| histogram.add(value));
        let mut seen = Distribution::default();
        seen.add(&histogram);
        assert_eq!(seen.count(), 1000);
        for (share, wanted) in [(0.5, 500e-6), (0.99, 990e-6)] {
            let found = seen.quantile(share).unwrap();
            assert!((0.99..1.1).contains(&(found / wanted)), "{share}: {found}");
        }
        assert_eq!(Distribution::default().quantile(0.5), None);
    }
}
