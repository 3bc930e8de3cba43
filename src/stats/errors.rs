//! Which errors there were: how many of which SQLSTATE, whose fault, in which database and of which user, and the last
//! text of each.
//!
//! Errors are rare beside queries, so one lock is enough. The table is bounded: names come from clients, and whoever can
//! make up names must not make it grow.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::SystemTime;

use parking_lot::Mutex;

/// Who is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The client sent what it should not have, or went away.
    Client,
    /// PostgreSQL failed or refused.
    Server,
    /// A limit or a decision of the pooler.
    Pooler,
}

impl Fault {
    /// In the log, in SHOW ERRORS and in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Pooler => "pooler",
        }
    }

    /// Whose an error is that PostgreSQL has raised, by its class (docs: errcodes-appendix): the server's where it lacks something,
    /// is about to end or is broken, else it is about what the client has sent.
    pub fn of_sqlstate(sqlstate: &str) -> Self {
        let is_servers = ["08", "53", "57P", "58", "F0", "XX"]
            .iter()
            .any(|class| sqlstate.starts_with(class));
        if is_servers {
            Self::Server
        } else {
            Self::Client
        }
    }
}

/// The name of what has no row of its own, and of names that nobody has vouched for.
pub const OTHERS: &str = "(others)";

/// The most rows, besides those of the others.
const MOST: usize = 256;

/// How much of a text is kept, bytes.
const LONGEST: usize = 240;

/// What is known of errors that are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Five letters and digits (docs: errcodes-appendix).
    pub sqlstate: String,
    /// Whose they are.
    pub fault: Fault,
    /// As clients call it.
    pub database: String,
    /// Whose they were.
    pub user: String,
    /// How many there were.
    pub count: u64,
    /// When the last of them was.
    pub last: SystemTime,
    /// The beginning of its primary message. It may hold data of the client's.
    pub message: String,
}

/// One error.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Its code, as it was sent.
    pub sqlstate: &'a [u8],
    /// Whose it is; `None`: the code tells.
    pub fault: Option<Fault>,
    /// As clients call it.
    pub database: &'a str,
    /// Whose session.
    pub user: &'a str,
    /// The primary message.
    pub message: &'a [u8],
}

/// All that there were since the process began.
#[derive(Debug, Default)]
pub struct Errors {
    kinds: Mutex<Kinds>,
}

#[derive(Debug, Default)]
struct Kinds {
    /// By their code, so that nothing is allocated to find a row. There are few with the same.
    rows: HashMap<[u8; 5], Vec<Row>, ahash::RandomState>,
    count: usize,
    others: HashMap<Fault, Row, ahash::RandomState>,
}

impl Errors {
    /// Another one, just now.
    #[cold]
    pub fn note(&self, seen: Seen<'_>) {
        let code = code(seen.sqlstate);
        let sqlstate = str::from_utf8(&code).unwrap_or_default();
        let fault = seen.fault.unwrap_or_else(|| Fault::of_sqlstate(sqlstate));
        let mut kinds = self.kinds.lock();
        let row = kinds.row(code, fault, (seen.database, seen.user));
        row.count += 1;
        row.last = SystemTime::now();
        row.message.clear();
        let message = seen.message.get(..LONGEST).unwrap_or(seen.message);
        // A letter that was cut in two does not count.
        for chunk in message.utf8_chunks() {
            row.message.push_str(chunk.valid());
        }
    }

    /// All rows, the last error first.
    pub fn rows(&self) -> Vec<Row> {
        let kinds = self.kinds.lock();
        let mut rows: Vec<Row> = kinds.rows.values().flatten().cloned().collect();
        rows.extend(kinds.others.values().cloned());
        drop(kinds);
        rows.sort_by_key(|row| Reverse(row.last));
        rows
    }
}

impl Kinds {
    /// The row of such errors, which is that of the others if there is no room for one of their own.
    fn row(&mut self, code: [u8; 5], fault: Fault, names: (&str, &str)) -> &mut Row {
        let alike =
            |row: &Row| row.fault == fault && (row.database.as_str(), row.user.as_str()) == names;
        let known = self.rows.get(&code);
        let at = known.and_then(|rows| rows.iter().position(alike));
        if at.is_none() && self.count >= MOST {
            let others = self.others.entry(fault);
            return others.or_insert_with(|| Row::new(OTHERS, fault, (OTHERS, OTHERS)));
        }
        let rows = self.rows.entry(code).or_default();
        let at = at.unwrap_or(rows.len());
        if at == rows.len() {
            self.count += 1;
            rows.push(Row::new(&String::from_utf8_lossy(&code), fault, names));
        }
        #[allow(clippy::indexing_slicing, reason = "found, or just put there")]
        &mut rows[at]
    }
}

impl Row {
    fn new(sqlstate: &str, fault: Fault, (database, user): (&str, &str)) -> Self {
        Self {
            sqlstate: sqlstate.to_owned(),
            fault,
            database: database.to_owned(),
            user: user.to_owned(),
            count: 0,
            last: SystemTime::UNIX_EPOCH,
            message: String::new(),
        }
    }
}

/// A code, if it is one: a server may send what it likes.
fn code(sent: &[u8]) -> [u8; 5] {
    match sent.first_chunk() {
        Some(code) if sent.len() == 5 && code.iter().all(u8::is_ascii_alphanumeric) => *code,
        _ => *b"?????",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(errors: &Errors, sqlstate: &str, user: &str, message: &[u8]) {
        errors.note(Seen {
            sqlstate: sqlstate.as_bytes(),
            fault: None,
            database: "app",
            user,
            message,
        });
    }

    #[test]
    fn errors_that_are_alike_are_counted_together_and_the_last_text_stays() {
        let errors = Errors::default();
        note(&errors, "23505", "joe", b"first");
        note(&errors, "23505", "joe", b"second");
        note(&errors, "57P01", "joe", b"third");
        let mut rows = errors.rows();
        rows.sort_by(|one, other| one.sqlstate.cmp(&other.sqlstate));
        let seen: Vec<_> = rows
            .iter()
            .map(|row| (row.sqlstate.as_str(), row.fault, row.count, &*row.message))
            .collect();
        assert_eq!(
            seen,
            [
                ("23505", Fault::Client, 2, "second"),
                ("57P01", Fault::Server, 1, "third"),
            ]
        );
    }

    #[test]
    fn names_that_are_made_up_do_not_make_it_grow() {
        let errors = Errors::default();
        for number in 0..1000 {
            note(&errors, "42601", &number.to_string(), b"");
            note(&errors, "53100", &number.to_string(), b"");
        }
        let rows = errors.rows();
        assert_eq!(rows.len(), MOST + 2);
        assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), 2000);
        let others: Vec<_> = rows.iter().filter(|row| row.user == OTHERS).collect();
        assert!(
            others
                .iter()
                .all(|row| row.sqlstate == OTHERS && row.count == 1000 - 128)
        );
        note(&errors, "42601", "5", b"known");
        assert!(
            errors
                .rows()
                .iter()
                .any(|row| row.user == "5" && row.count == 2)
        );
    }

    #[test]
    fn what_is_no_code_is_not_taken_for_one_and_texts_are_cut() {
        let errors = Errors::default();
        note(&errors, "<b>!!", "joe", &[b'x'; 5000]);
        note(&errors, "123456", "joe", "é".repeat(500).as_bytes());
        note(&errors, "", "joe", &[0xff, b'a']);
        let rows = errors.rows();
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (rows[0].sqlstate.as_str(), rows[0].message.as_str()),
            ("?????", "a")
        );
    }
}
