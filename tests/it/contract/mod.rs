//! What a drop-in replacement for PgBouncer has to honour, as tables written from PgBouncer 1.25's documentation
//! and behaviour, not from our own: settings, what the console shows and answers, and the errors that clients get.
//!
//! `PGFERRY_TEST_BINARY=/path/to/pgbouncer` holds the original against the same tables. A test reports all that
//! differs at once, so that the differences between its versions, and those that we want, can be told apart.

mod commands;
mod entries;
mod linked;
mod login;
mod settings;
mod shows;
mod waiting;

use std::fmt::{Debug, Display, Write as _};

use crate::support::{Message, Pooler, Wire};

/// What was found to differ from a table.
#[derive(Default)]
struct Findings(Vec<String>);

impl Findings {
    /// Notes it if what was found is not what the table has.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "reads better with what was just made"
    )]
    fn compare<F: PartialEq<W> + Debug, W: Debug>(
        &mut self,
        what: impl Display,
        found: F,
        wanted: W,
    ) {
        if found != wanted {
            self.0
                .push(format!("{what}: {found:?}, and not {wanted:?}"));
        }
    }

    /// Fails if anything differs.
    fn report(self) {
        assert!(self.0.is_empty(), "\n{}\n", self.0.join("\n"));
    }
}

/// The body of an ErrorResponse or NoticeResponse in PgBouncer's shape: three fields and no more.
fn fields(severity: &str, sqlstate: &str, text: &str) -> String {
    format!("S{severity}\\0C{sqlstate}\\0M{text}\\0\\0")
}

/// The body of a message in the same form.
fn shown(message: &Message) -> String {
    String::from_utf8_lossy(&message.body).replace('\0', "\\0")
}

/// How a client's connection ends: the error it is told, byte by byte, which nothing may follow; or nothing.
fn end(client: &mut Wire) -> String {
    while let Some(message) = client.read_message() {
        if message.tag == b'E' {
            let mut told = shown(&message);
            while let Some(more) = client.read_message() {
                write!(told, " and then {more:?}").unwrap();
            }
            return told;
        }
    }
    "closed without a word".to_owned()
}

/// What [`end`] says of PgBouncer's own errors.
fn fatal(text: &str) -> String {
    fields("FATAL", "08P01", text)
}

/// A connection on which this was said.
fn said(pooler: &Pooler, bytes: &[u8]) -> Wire {
    let mut client = Wire::connect(pooler.address()).unwrap();
    let _ = client.try_send(bytes);
    client
}
