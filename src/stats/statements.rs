//! Which statements take the time (`track_statements`): what was counted of each text, in each pool.
//!
//! A worker counts in a table of its own, under a lock that nobody else wants but who asks. A table is bounded: where it is full the
//! texts that were used least go, and what was counted of them is the others'. Texts are kept without their data
//! (`sql::normalize`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Apart;
use super::errors::OTHERS;
use crate::sql::normalize::normalize;

/// As many tables; workers beyond share them.
const TABLES: usize = 16;

/// The most texts as they come that are known to be the same as one that is kept.
const MOST_RECENT: usize = 4096;

/// This share of a full table goes at a time.
const SHARE: usize = 16;

/// What was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// How often it was run.
    pub calls: u64,
    /// How many of these failed, or were broken off.
    pub errors: u64,
    /// What they took on the server, microseconds.
    pub time: u64,
    /// The longest of these times.
    pub longest: u64,
    /// What clients have waited for a server to run it, microseconds.
    pub wait: u64,
    /// Rows that were returned, inserted, changed or deleted, as PostgreSQL says at the end of a command.
    pub rows: u64,
    /// Bytes that the servers have answered.
    pub bytes: u64,
    /// When it was last over, microseconds after the live list's epoch.
    pub last: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.time += other.time;
        self.longest = self.longest.max(other.longest);
        self.wait += other.wait;
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.last = self.last.max(other.last);
    }
}

/// A text in a pool, or the others.
#[derive(Debug, Clone)]
pub struct Row {
    /// The pool's database.
    pub database: Arc<str>,
    /// The pool's user.
    pub user: Arc<str>,
    /// The text without its data.
    pub text: Arc<str>,
    /// What was counted of it.
    pub sums: Sums,
}

impl Row {
    fn new((database, user): (&str, &str), text: &str) -> Self {
        Self {
            database: database.into(),
            user: user.into(),
            text: text.into(),
            sums: Sums::default(),
        }
    }

    fn names(&self) -> (&str, &str, &str) {
        (&self.database, &self.user, &self.text)
    }

    fn is_of(&self, (database, user): (&str, &str), text: &str) -> bool {
        &*self.text == text && &*self.database == database && &*self.user == user
    }
}

/// All tables of the process.
#[derive(Debug, Default)]
pub struct Statements {
    tables: [Apart<Mutex<Table>>; TABLES],
    hasher: ahash::RandomState,
}

impl Statements {
    /// A text as it came was run in a pool (its database and user), on this worker: a table keeps at most so many of them.
    pub fn note(
        &self,
        (worker, most): (usize, usize),
        pool: (&str, &str),
        text: &[u8],
        sums: &Sums,
    ) {
        let Some(table) = self.tables.get(worker % TABLES) else {
            return;
        };
        // That two texts have the same number is beyond chance, as its keys are random; and nothing rests on it but these sums.
        let number = self.hasher.hash_one((pool, text));
        let mut table = table.lock();
        if table.add_known(number, sums) {
            return;
        }
        let shown = normalize(text);
        let key = self.hasher.hash_one((pool, shown.as_str()));
        table.add((key, number), most, (pool, &shown), sums);
    }

    /// All texts, and the sums of the others if there are any; those that took most time come first.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let mut others = Sums::default();
        for table in &self.tables {
            let table = table.lock();
            rows.extend(table.rows.values().map(|kept| kept.row.clone()));
            others.add(&table.others);
        }
        rows.sort_by(|one, other| one.names().cmp(&other.names()));
        rows.dedup_by(|later, first| {
            let is_same = first.is_of((&later.database, &later.user), &later.text);
            if is_same {
                first.sums.add(&later.sums);
            }
            is_same
        });
        if others.calls > 0 {
            rows.push(Row {
                sums: others,
                ..Row::new((OTHERS, OTHERS), OTHERS)
            });
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.sums.time));
        rows
    }

    /// Forgets everything.
    pub fn clear(&self) {
        for table in &self.tables {
            *table.lock() = Table::default();
        }
    }
}

/// A text that is kept.
#[derive(Debug)]
struct Kept {
    row: Row,
    /// How often it was used, of late more than before.
    uses: u64,
}

impl Kept {
    fn add(&mut self, sums: &Sums) {
        self.row.sums.add(sums);
        self.uses += 1;
    }
}

/// What one worker has counted.
#[derive(Debug, Default)]
struct Table {
    /// By the numbers of pool and text.
    rows: HashMap<u64, Kept, ahash::RandomState>,
    /// The numbers of texts as they came, and of what is kept of them: the last for each place.
    recent: Vec<(u64, u64)>,
    others: Sums,
}

impl Table {
    /// Adds to a text that was seen like this before.
    fn add_known(&mut self, number: u64, sums: &Sums) -> bool {
        let place = place(number, self.recent.len());
        let Some(&(known, key)) = self.recent.get(place) else {
            return false;
        };
        let kept = self.rows.get_mut(&key).filter(|_| known == number);
        kept.map(|kept| kept.add(sums)).is_some()
    }

    fn add(
        &mut self,
        (key, number): (u64, u64),
        most: usize,
        (pool, text): ((&str, &str), &str),
        sums: &Sums,
    ) {
        if self.rows.len() >= most && !self.rows.contains_key(&key) {
            self.make_room(most);
        }
        match self.rows.entry(key) {
            Entry::Occupied(mut kept) => {
                if kept.get().row.is_of(pool, text) {
                    kept.get_mut().add(sums);
                } else {
                    self.others.add(sums);
                    return;
                }
            }
            Entry::Vacant(room) => {
                let row = Row::new(pool, text);
                room.insert(Kept { row, uses: 0 }).add(sums);
            }
        }
        if self.recent.is_empty() {
            let places = (2 * most).next_power_of_two().min(MOST_RECENT);
            self.recent = vec![(0, 0); places];
        }
        let place = place(number, self.recent.len());
        if let Some(recent) = self.recent.get_mut(place) {
            *recent = (number, key);
        }
    }

    /// Those that were used least go, so that one more is not too many. (A reload may have lowered the limit.)
    fn make_room(&mut self, most: usize) {
        let surplus = (self.rows.len() + 1).saturating_sub(most);
        let leave = surplus.max(most / SHARE);
        let mut uses: Vec<u64> = self.rows.values().map(|kept| kept.uses).collect();
        let at = leave.min(uses.len()).saturating_sub(1);
        if uses.is_empty() {
            return;
        }
        let (_, &mut limit, _) = uses.select_nth_unstable(at);
        let (mut left, others) = (leave, &mut self.others);
        self.rows.retain(|_, kept| {
            let goes = left > 0 && kept.uses <= limit;
            if goes {
                left -= 1;
                others.add(&kept.row.sums);
            }
            kept.uses /= 2;
            !goes
        });
    }
}

/// Where a number stands among so many places, which are a power of two.
fn place(number: u64, places: usize) -> usize {
    let mask = u64::try_from(places).unwrap_or_default().wrapping_sub(1);
    usize::try_from(number & mask).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: (&str, &str) = ("app", "joe");

    fn ran(time: u64) -> Sums {
        Sums {
            calls: 1,
            time,
            longest: time,
            last: time,
            ..Sums::default()
        }
    }

    fn seen(statements: &Statements) -> Vec<(String, u64, u64)> {
        let rows = statements.rows();
        rows.iter()
            .map(|row| (row.text.to_string(), row.sums.calls, row.sums.time))
            .collect()
    }

    #[test]
    fn texts_that_differ_in_their_data_are_one_whichever_worker_has_run_them() {
        let statements = Statements::default();
        for (worker, text) in ["SELECT 1", "SELECT 2", "SELECT 1", "SELECT  '3'"]
            .iter()
            .enumerate()
        {
            statements.note((worker / 2, 10), POOL, text.as_bytes(), &ran(5));
        }
        statements.note((0, 10), POOL, b"COMMIT", &ran(40));
        statements.note((0, 10), ("app", "ann"), b"COMMIT", &ran(1));
        let expected = [("COMMIT", 1, 40), ("SELECT ?", 4, 20), ("COMMIT", 1, 1)];
        assert_eq!(
            seen(&statements),
            expected.map(|(text, calls, time)| (text.to_owned(), calls, time))
        );
        assert_eq!(statements.rows()[1].sums.longest, 5);
        statements.clear();
        assert!(statements.rows().is_empty());
    }

    #[test]
    fn a_full_table_keeps_what_is_used_and_loses_no_count() {
        let statements = Statements::default();
        for number in 0..500 {
            let text = format!("SELECT * FROM t{number}");
            statements.note((3, 50), POOL, text.as_bytes(), &ran(1));
            statements.note((3, 50), POOL, b"SELECT a FROM used", &ran(1));
        }
        let rows = seen(&statements);
        assert!(rows.len() <= 51, "{rows:?}");
        let calls = |text: &str| rows.iter().find(|row| row.0 == text).map(|row| row.1);
        assert_eq!(calls("SELECT a FROM used"), Some(500));
        assert!(calls(OTHERS).unwrap() >= 450);
        assert_eq!(rows.iter().map(|row| row.1).sum::<u64>(), 1000);
    }

    #[test]
    fn a_lower_limit_holds_with_the_next_new_text() {
        let statements = Statements::default();
        for number in 0..100 {
            let text = format!("SELECT * FROM t{number}");
            statements.note((0, 100), POOL, text.as_bytes(), &ran(1));
        }
        statements.note((0, 1), POOL, b"SELECT b", &ran(1));
        let rows = seen(&statements);
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert_eq!(rows.iter().map(|row| row.1).sum::<u64>(), 101);
    }
}
