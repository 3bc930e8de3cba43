//! What a console client may say, and what it is answered: the simple and the extended query protocol.
//!
//! Bytes in, bytes out; [`serve`](crate::admin::serve) does the waiting. PgBouncer refuses the extended protocol,
//! which most drivers use for everything, so here it works: commands have no parameters, their answers come
//! in text or in binary, whichever Bind asks for. After an error in it everything up to the next Sync is skipped
//! (`protocol-flow-ext-query`). There are no transactions: ReadyForQuery always says `I`, and portals live until Sync.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::admin::control::{self, Notice, Outcome, Wait};
use crate::admin::parse::{self, Command};
use crate::admin::value::{Cell, Format, Heading};
use crate::admin::{Console, Error, Rights};
use crate::net::connection::Message;
use crate::protocol::backend::{self, ErrorMessage, TxStatus};
use crate::protocol::frontend::{self, Target, tag};
use crate::protocol::sqlstate;

/// Most statements, and most portals, a client may have.
const MOST_NAMES: usize = 1000;
/// Longest name of one, in bytes.
const LONGEST_NAME: usize = 1024;
/// Longest error text, in bytes (PgBouncer's buffer).
const LONGEST_TEXT: usize = 1023;

/// What comes after a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The next message.
    Next,
    /// First this must be over: tell [`Conversation::finish`].
    Wait(Wait),
    /// The end of the connection, once what is to be sent is sent.
    Close,
}

/// A client's statements and portals, and what is to be sent to it.
#[derive(Debug)]
pub struct Conversation<'a> {
    console: &'a Console,
    rights: Rights,
    /// Answers to be sent.
    pub out: Vec<u8>,
    /// It said SUSPEND, which ends with its connection.
    pub gave_suspend: bool,
    /// `None`: an empty query.
    statements: HashMap<Vec<u8>, Command>,
    portals: HashMap<Vec<u8>, Portal>,
    /// An error happened: everything is skipped up to Sync.
    skipping: bool,
    /// The message that waits is a simple query, which ends with ReadyForQuery.
    simple: bool,
}

/// A command about to be executed, or under way.
#[derive(Debug)]
struct Portal {
    command: Command,
    /// Its columns with their formats.
    columns: Option<Vec<(Heading, Format)>>,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    Fresh,
    /// Rows not sent yet.
    Rows(std::vec::IntoIter<Vec<Cell>>),
    Over,
}

impl<'a> Conversation<'a> {
    /// A client that has just logged in.
    pub fn new(console: &'a Console, rights: Rights) -> Self {
        Self {
            console,
            rights,
            out: Vec::new(),
            gave_suspend: false,
            statements: HashMap::new(),
            portals: HashMap::new(),
            skipping: false,
            simple: false,
        }
    }

    /// How many statements it has prepared.
    pub fn statements(&self) -> usize {
        self.statements.len()
    }

    /// Answers a message.
    pub fn handle(&mut self, message: &Message) -> Step {
        if self.skipping && !matches!(message.tag, tag::SYNC | tag::TERMINATE) {
            return Step::Next;
        }
        self.simple = message.tag == tag::QUERY;
        let body = message.body.as_slice();
        let step = match message.tag {
            tag::QUERY => self.query(body),
            tag::PARSE => self.parse(body),
            tag::BIND => self.bind(body),
            tag::DESCRIBE => self.describe(body),
            tag::EXECUTE => self.execute(body),
            tag::CLOSE => self.close(body),
            tag::FLUSH => Ok(Step::Next),
            tag::SYNC => {
                self.skipping = false;
                self.portals.clear();
                self.ready();
                Ok(Step::Next)
            }
            tag::TERMINATE => Ok(Step::Close),
            code => Err(Error::UnexpectedMessage { code }),
        };
        step.unwrap_or_else(|error| self.refuse(&error))
    }

    /// The wait is over.
    pub fn finish(&mut self, result: Result<&str, Error>) -> Step {
        match result {
            Ok(tag) => {
                backend::command_complete(&mut self.out, tag);
                if self.simple {
                    self.ready();
                }
                Step::Next
            }
            Err(error) => self.refuse(&error),
        }
    }

    /// Says good-bye to a client that has to go.
    pub fn farewell(out: &mut Vec<u8>, text: &str) {
        backend::error_response(
            out,
            &ErrorMessage::new("FATAL", sqlstate::PROTOCOL_VIOLATION, text),
        );
    }

    fn ready(&mut self) {
        backend::ready_for_query(&mut self.out, TxStatus::Idle);
    }

    fn refuse(&mut self, error: &Error) -> Step {
        let text = error.to_string();
        let message = ErrorMessage {
            detail: error.detail(),
            ..ErrorMessage::new(
                "ERROR",
                error.sqlstate(),
                text.get(..cut(&text)).unwrap_or(&text),
            )
        };
        backend::error_response(&mut self.out, &message);
        // The text may repeat what was sent, so only as much of it as was answered.
        tracing::error!("{}", message.message);
        if error.is_fatal() {
            // PgBouncer says all this, too.
            self.ready();
            Self::farewell(&mut self.out, &Error::BadPacket.to_string());
            return Step::Close;
        }
        if self.simple {
            self.ready();
        } else {
            self.skipping = true;
        }
        Step::Next
    }

    fn notice(&mut self, notice: &Notice) {
        let message = ErrorMessage {
            detail: notice.detail.as_deref(),
            ..ErrorMessage::new("NOTICE", sqlstate::SUCCESSFUL_COMPLETION, &notice.message)
        };
        backend::notice_response(&mut self.out, &message);
    }

    fn run(&mut self, command: &Command) -> Result<Outcome, Error> {
        self.console.averages.count_query();
        let outcome = control::run(self.console, self.rights, command)?;
        self.gave_suspend |= matches!(command, Command::Suspend);
        Ok(outcome)
    }

    // ---- simple query -----------------------------------------------------------------------

    fn query(&mut self, body: &[u8]) -> Result<Step, Error> {
        let query = frontend::Query::read(body).map_err(|_| Error::BadPacket)?;
        let command = parse::parse(&String::from_utf8_lossy(query.sql))?;
        // As in PostgreSQL, the unnamed portal and statement do not survive a simple query.
        self.portals.clear();
        self.statements.remove(&b""[..]);
        match self.run(&command)? {
            Outcome::Rows(rows) => {
                let columns = columns(&command, Vec::new())?.unwrap_or_default();
                self.row_description(&columns);
                for row in &rows {
                    self.data_row(&columns, row);
                }
                backend::command_complete(&mut self.out, "SHOW");
            }
            outcome => match self.short_outcome(outcome) {
                Step::Next => {}
                step => return Ok(step),
            },
        }
        self.ready();
        Ok(Step::Next)
    }

    /// An outcome that has no rows.
    fn short_outcome(&mut self, outcome: Outcome) -> Step {
        match outcome {
            Outcome::Done { tag, notice } => {
                if let Some(notice) = notice {
                    self.notice(&notice);
                }
                backend::command_complete(&mut self.out, &tag);
                Step::Next
            }
            Outcome::Nothing => {
                backend::empty_query_response(&mut self.out);
                Step::Next
            }
            Outcome::Wait(wait) => Step::Wait(wait),
            Outcome::Rows(_) | Outcome::Close => Step::Close,
        }
    }

    fn row_description(&mut self, columns: &[(Heading, Format)]) {
        let described: Vec<_> = columns
            .iter()
            .map(|(heading, _)| heading.column())
            .collect();
        let is_binary = |at| {
            columns
                .get(at)
                .is_some_and(|(_, format): &(_, Format)| *format == Format::Binary)
        };
        backend::row_description_in(&mut self.out, &described, is_binary);
    }

    fn data_row(&mut self, columns: &[(Heading, Format)], row: &[Cell]) {
        let values: Vec<_> = row
            .iter()
            .zip(columns)
            .map(|(cell, (heading, format))| cell.encode(heading.kind, *format))
            .collect();
        let values: Vec<_> = values.iter().map(Option::as_deref).collect();
        backend::data_row(&mut self.out, &values);
    }

    // ---- extended query ---------------------------------------------------------------------

    fn parse(&mut self, body: &[u8]) -> Result<Step, Error> {
        let message = frontend::Parse::read(body).map_err(|_| Error::BadPacket)?;
        let text = String::from_utf8_lossy(message.sql);
        // PgBouncer's error for an empty text is the simple protocol's; drivers use it here to see whether the
        // connection lives.
        let command = if parse::is_empty(&text) {
            Command::Nothing
        } else {
            parse::parse(&text)?
        };
        match store(&mut self.statements, message.name)? {
            Ok(slot) => {
                slot.insert_entry(command);
            }
            Err(name) => return Err(Error::StatementExists { name }),
        }
        backend::parse_complete(&mut self.out);
        Ok(Step::Next)
    }

    fn bind(&mut self, body: &[u8]) -> Result<Step, Error> {
        let head = frontend::BindHead::read(body)
            .ok()
            .flatten()
            .ok_or(Error::BadPacket)?;
        let formats = result_formats(body.get(head.len..).unwrap_or_default())?;
        let command = self.statement(head.statement)?.clone();
        let columns = columns(&command, formats)?;
        match store(&mut self.portals, head.portal)? {
            Ok(slot) => {
                slot.insert_entry(Portal {
                    command,
                    columns,
                    progress: Progress::Fresh,
                });
            }
            Err(name) => return Err(Error::PortalExists { name }),
        }
        backend::bind_complete(&mut self.out);
        Ok(Step::Next)
    }

    fn statement(&self, name: &[u8]) -> Result<&Command, Error> {
        self.statements
            .get(name)
            .ok_or_else(|| Error::NoSuchStatement { name: shown(name) })
    }

    fn describe(&mut self, body: &[u8]) -> Result<Step, Error> {
        let named = frontend::Named::read(body).map_err(|_| Error::BadPacket)?;
        let columns = match named.target {
            Target::Statement => {
                let columns = columns(self.statement(named.name)?, Vec::new())?;
                backend::parameter_description(&mut self.out, &[]);
                columns
            }
            Target::Portal => {
                let portal = self.portals.get(named.name);
                portal
                    .ok_or_else(|| Error::NoSuchPortal {
                        name: shown(named.name),
                    })?
                    .columns
                    .clone()
            }
        };
        match columns {
            Some(columns) => self.row_description(&columns),
            None => backend::no_data(&mut self.out),
        }
        Ok(Step::Next)
    }

    fn execute(&mut self, body: &[u8]) -> Result<Step, Error> {
        let message = frontend::Execute::read(body).map_err(|_| Error::BadPacket)?;
        let name = message.portal;
        // Taken out while it runs; an error ends it anyway, at Sync.
        let mut portal = self
            .portals
            .remove(name)
            .ok_or_else(|| Error::NoSuchPortal { name: shown(name) })?;
        let step = match std::mem::replace(&mut portal.progress, Progress::Over) {
            Progress::Fresh => match self.run(&portal.command)? {
                Outcome::Rows(rows) => {
                    self.send_rows(&mut portal, rows.into_iter(), message.max_rows)
                }
                outcome => self.short_outcome(outcome),
            },
            Progress::Rows(rows) => self.send_rows(&mut portal, rows, message.max_rows),
            Progress::Over if portal.columns.is_some() => {
                backend::command_complete(&mut self.out, "SHOW");
                Step::Next
            }
            Progress::Over => return Err(Error::PortalUsed { name: shown(name) }),
        };
        self.portals.insert(name.to_vec(), portal);
        Ok(step)
    }

    /// Sends rows up to a limit (0 and below: all). Like PostgreSQL, reaching it is "suspended" even if no row is left.
    fn send_rows(
        &mut self,
        portal: &mut Portal,
        mut rows: std::vec::IntoIter<Vec<Cell>>,
        limit: i32,
    ) -> Step {
        let most = usize::try_from(limit)
            .ok()
            .filter(|&limit| limit > 0)
            .unwrap_or(usize::MAX);
        let columns = portal.columns.as_deref().unwrap_or_default();
        let mut sent = 0;
        for row in rows.by_ref().take(most) {
            self.data_row(columns, &row);
            sent += 1;
        }
        if sent == most {
            backend::portal_suspended(&mut self.out);
            portal.progress = Progress::Rows(rows);
        } else {
            backend::command_complete(&mut self.out, "SHOW");
        }
        Step::Next
    }

    /// Closing what is not there is no error.
    fn close(&mut self, body: &[u8]) -> Result<Step, Error> {
        let named = frontend::Named::read(body).map_err(|_| Error::BadPacket)?;
        match named.target {
            Target::Statement => drop(self.statements.remove(named.name)),
            Target::Portal => drop(self.portals.remove(named.name)),
        }
        backend::close_complete(&mut self.out);
        Ok(Step::Next)
    }
}

/// Where to put a statement or portal; or its name, if it is in use. The unnamed one may be replaced.
fn store<'m, T>(
    map: &'m mut HashMap<Vec<u8>, T>,
    name: &[u8],
) -> Result<Result<Entry<'m, Vec<u8>, T>, String>, Error> {
    if name.len() > LONGEST_NAME || map.len() >= MOST_NAMES {
        return Err(Error::TooManyNames);
    }
    let entry = map.entry(name.to_vec());
    let taken = !name.is_empty() && matches!(entry, Entry::Occupied(_));
    Ok(if taken { Err(shown(name)) } else { Ok(entry) })
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// The last place, within the limit, where a text may be cut.
fn cut(text: &str) -> usize {
    let most = text.len().min(LONGEST_TEXT);
    (0..=most)
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0)
}

/// The columns of a command with the formats that Bind asks for: none is all text, one is for all.
fn columns(
    command: &Command,
    formats: Vec<Format>,
) -> Result<Option<Vec<(Heading, Format)>>, Error> {
    let Some(headings) = control::headings(command) else {
        return Ok(None);
    };
    let formats = match formats.as_slice() {
        [] => vec![Format::Text; headings.len()],
        [all] => vec![*all; headings.len()],
        each if each.len() == headings.len() => formats,
        each => {
            return Err(Error::FormatCount {
                formats: each.len(),
                columns: headings.len(),
            });
        }
    };
    Ok(Some(headings.into_iter().zip(formats).collect()))
}

/// Reads what follows the names in Bind: formats of parameters, no parameters, formats of columns.
fn result_formats(rest: &[u8]) -> Result<Vec<Format>, Error> {
    let (_, rest) = list(rest)?;
    let (count, rest) = number(rest)?;
    if count > 0 {
        return Err(Error::Parameters { count });
    }
    let (codes, rest) = list(rest)?;
    if !rest.is_empty() {
        return Err(Error::BadPacket);
    }
    let format = |code: u16| match code {
        0 => Ok(Format::Text),
        1 => Ok(Format::Binary),
        code => Err(Error::FormatCode { code }),
    };
    codes
        .chunks_exact(2)
        .map(|code| format(number(code)?.0))
        .collect()
}

/// A 16-bit number and what follows.
fn number(bytes: &[u8]) -> Result<(u16, &[u8]), Error> {
    let (number, rest) = bytes.split_first_chunk().ok_or(Error::BadPacket)?;
    Ok((u16::from_be_bytes(*number), rest))
}

/// The 16-bit numbers of a list that begins with their count, and what follows.
fn list(bytes: &[u8]) -> Result<(&[u8], &[u8]), Error> {
    let (count, rest) = number(bytes)?;
    rest.split_at_checked(usize::from(count) * 2)
        .ok_or(Error::BadPacket)
}

#[cfg(test)]
mod tests;
