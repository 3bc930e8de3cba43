//! Is a statement that is prepared slower than the same text read each time?
//!
//! PostgreSQL may go over to one plan for all values after five runs of a prepared statement (`sql-prepare`), and that plan may be bad
//! for some of them; an unnamed one gets a plan for its values each time. Pure: it is told how long runs took.
//!
//! Runs that had to prepare the statement first tell what is to be expected. If the others take much longer, so many runs
//! are made as if it were not prepared, and the two are compared: either it is trusted again, by what these took, or it is over.

/// How a text was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// By a statement that was prepared for it, so with a plan for its values.
    Fresh,
    /// By one that was there already.
    Reused,
    /// As an unnamed statement.
    Plain,
}

/// What has become of the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It seems to be slow, and is compared.
    Doubted,
    /// It is as good as the other way.
    Trusted,
    /// It is worse, and is not used again.
    Over,
}

/// So many runs are put together, and compared with so many others.
const WINDOW: u64 = 64;
const COMPARED: u64 = 16;

/// So many runs at least, however slow, make it doubtful: one may have waited for a lock.
const FEWEST: u64 = 4;

/// A run counts as no slower than so many times the limit.
const SLOWEST: u64 = 16;

/// Microseconds that are not worth bothering about.
const SLACK: u64 = 1000;

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    runs: u64,
    time: u64,
}

impl Sum {
    fn add(&mut self, took: u64, weight: u64) {
        self.runs += weight;
        self.time = self.time.saturating_add(took.saturating_mul(weight));
    }

    fn mean(self) -> Option<u64> {
        self.time.checked_div(self.runs)
    }
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Trusted,
    /// What its runs took in the mean, and what others take.
    Compared(u64, Sum),
    Over,
}

/// What is known of one statement. All times are in microseconds.
#[derive(Debug, Default)]
pub struct Watch {
    stage: Stage,
    expected: Sum,
    window: Sum,
}

/// What runs may take where `mean` is to be expected.
fn limit(mean: u64) -> u64 {
    (2 * mean).max(mean + SLACK)
}

impl Watch {
    /// What a run may take without being worth a look.
    pub fn limit(&self) -> u64 {
        self.expected.mean().map_or(u64::MAX, limit)
    }

    /// Is the statement to be used?
    pub fn is_trusted(&self) -> bool {
        matches!(self.stage, Stage::Trusted)
    }

    /// Is it not to be used again?
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// A run took so long; it stands for `weight` of its kind.
    pub fn ran(&mut self, run: Run, took: u64, weight: u64) -> Option<Verdict> {
        match (run, &mut self.stage) {
            (Run::Fresh, Stage::Trusted) => {
                // The latest count most.
                if self.expected.runs >= COMPARED {
                    self.expected.runs /= 2;
                    self.expected.time /= 2;
                }
                self.expected.add(took, 1);
                None
            }
            (Run::Reused, Stage::Trusted) => {
                let limit = limit(self.expected.mean()?);
                self.window
                    .add(took.min(limit.saturating_mul(SLOWEST)), weight);
                let is_full = self.window.runs >= WINDOW;
                let is_slow = self.window.runs >= FEWEST
                    && self.window.time > limit.saturating_mul(self.window.runs.max(WINDOW));
                if is_slow {
                    let mean = self.window.mean().unwrap_or_default();
                    self.stage = Stage::Compared(mean, Sum::default());
                }
                if is_slow || is_full {
                    self.window = Sum::default();
                }
                is_slow.then_some(Verdict::Doubted)
            }
            (Run::Plain, Stage::Compared(mean, others)) => {
                others.add(took, 1);
                if others.runs < COMPARED {
                    return None;
                }
                let expected = others.mean().unwrap_or_default();
                if *mean > limit(expected) {
                    self.stage = Stage::Over;
                    return Some(Verdict::Over);
                }
                self.expected = *others;
                self.stage = Stage::Trusted;
                Some(Verdict::Trusted)
            }
            (Run::Plain, _) | (_, Stage::Compared(..) | Stage::Over) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(watch: &mut Watch, run: Run, took: u64, times: usize) -> Vec<Verdict> {
        (0..times).filter_map(|_| watch.ran(run, took, 1)).collect()
    }

    #[test]
    fn what_is_as_fast_as_expected_stays() {
        let mut watch = Watch::default();
        run(&mut watch, Run::Fresh, 300, 3);
        assert_eq!(run(&mut watch, Run::Reused, 1200, 1000), []);
        assert!(watch.is_trusted());
    }

    #[test]
    fn nothing_is_judged_before_anything_is_to_be_expected() {
        let mut watch = Watch::default();
        assert_eq!(run(&mut watch, Run::Reused, 1_000_000, 100), []);
    }

    #[test]
    fn a_much_slower_one_is_over_after_few_runs_and_a_comparison() {
        let mut watch = Watch::default();
        run(&mut watch, Run::Fresh, 200, 1);
        assert_eq!(run(&mut watch, Run::Reused, 50_000, 5), [Verdict::Doubted]);
        assert!(!watch.is_trusted());
        assert_eq!(run(&mut watch, Run::Plain, 200, 16), [Verdict::Over]);
        assert!(watch.is_over());
        assert_eq!(run(&mut watch, Run::Fresh, 1, 100), []);
    }

    #[test]
    fn a_somewhat_slower_one_is_over_after_a_whole_window() {
        let mut watch = Watch::default();
        run(&mut watch, Run::Fresh, 1000, 1);
        assert_eq!(run(&mut watch, Run::Reused, 2050, 62), []);
        assert_eq!(run(&mut watch, Run::Reused, 2050, 1), [Verdict::Doubted]);
        assert_eq!(run(&mut watch, Run::Plain, 1000, 16), [Verdict::Over]);
    }

    #[test]
    fn where_all_has_become_slower_it_is_trusted_again() {
        let mut watch = Watch::default();
        run(&mut watch, Run::Fresh, 200, 1);
        assert_eq!(run(&mut watch, Run::Reused, 50_000, 5), [Verdict::Doubted]);
        assert_eq!(run(&mut watch, Run::Plain, 50_000, 16), [Verdict::Trusted]);
        assert_eq!(run(&mut watch, Run::Reused, 50_000, 1000), []);
    }

    #[test]
    fn three_that_waited_for_a_lock_do_not_matter() {
        let mut watch = Watch::default();
        run(&mut watch, Run::Fresh, 200, 1);
        for _ in 0..10 {
            assert_eq!(run(&mut watch, Run::Reused, 10_000_000, 3), []);
            assert_eq!(run(&mut watch, Run::Reused, 200, 61), []);
        }
    }
}
