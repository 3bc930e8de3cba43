//! A PostgreSQL backend in memory: what the protocol says of statements, portals, transactions and errors
//! (`protocol-flow`), for a handful of texts. A query answers with its own text, so that a mix-up shows.
//!
//! Replies are held until Flush, Sync or the end of a Query, as PostgreSQL's own buffer may.

use std::collections::BTreeMap;

use crate::protocol::backend::{self, Column, ErrorMessage, TxStatus};
use crate::protocol::frame::{HEADER_LEN, cut};
use crate::protocol::frontend::{BindHead, Execute, Named, Parse, Query, Target, tag};

const MAX: usize = 1 << 24;

/// What a text does.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Empty,
    /// So many rows.
    Select(usize),
    /// Fails when it is run.
    Fail,
    Begin,
    Commit,
    Rollback,
    Deallocate(Vec<u8>),
    DeallocateAll,
    DiscardAll,
    /// Other settings, by which texts are read.
    Set(u8),
    CopyIn,
    CopyOut,
}

impl Kind {
    /// `None`: a syntax error.
    fn of(sql: &[u8]) -> Option<Self> {
        let sql = std::str::from_utf8(sql).unwrap().to_ascii_lowercase();
        let words: Vec<&str> = sql.split_whitespace().collect();
        Some(match words.as_slice() {
            [] => Self::Empty,
            ["select", "fail()"] => Self::Fail,
            ["select", .., "rows"] => Self::Select(3),
            ["select", ..] => Self::Select(1),
            ["begin"] => Self::Begin,
            ["commit"] => Self::Commit,
            ["rollback"] => Self::Rollback,
            ["deallocate", "all"] => Self::DeallocateAll,
            ["deallocate", name] => Self::Deallocate(name.as_bytes().to_vec()),
            ["discard", "all"] => Self::DiscardAll,
            ["set", "x", value] => Self::Set(value.parse().unwrap()),
            ["copy", "t", "from", "stdin"] => Self::CopyIn,
            ["copy", "t", "to", "stdout"] => Self::CopyOut,
            _ => return None,
        })
    }

    fn ends_transaction(&self) -> bool {
        matches!(self, Self::Commit | Self::Rollback)
    }

    fn returns_rows(&self) -> bool {
        matches!(self, Self::Select(_) | Self::Fail)
    }
}

#[derive(Debug, Clone)]
struct Statement {
    sql: Vec<u8>,
    kind: Kind,
    /// Its result is not what it was when it was prepared.
    outdated: bool,
    /// How often the tables had changed then.
    version: u32,
    /// The settings under which it was read.
    setting: u8,
}

#[derive(Debug)]
struct Portal {
    statement: Statement,
    fetched: usize,
    done: bool,
    /// Its transaction failed: it is there, and can't be run.
    failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    None,
    In,
    Failed,
}

/// SQLSTATE and text.
type Failure = (&'static str, String);

fn aborted() -> Failure {
    let text = "current transaction is aborted, commands ignored until end of transaction block";
    ("25P02", text.to_owned())
}

const OUTDATED: &str = "cached plan must not change result type";

fn outdated() -> Failure {
    ("0A000", OUTDATED.to_owned())
}

fn quoted(before: &str, name: &[u8], after: &str) -> String {
    format!("{before} \"{}\" {after}", String::from_utf8_lossy(name))
}

fn no_statement(name: &[u8]) -> Failure {
    let text = if name.is_empty() {
        "unnamed prepared statement does not exist".to_owned()
    } else {
        quoted("prepared statement", name, "does not exist")
    };
    ("26000", text)
}

#[allow(
    clippy::struct_excessive_bools,
    reason = "independent conditions, each with its own life"
)]
#[derive(Debug)]
pub struct Backend {
    input: Vec<u8>,
    held: Vec<u8>,
    /// What it has sent and nobody has read.
    pub sent: Vec<u8>,
    statements: BTreeMap<Vec<u8>, Statement>,
    unnamed: Option<Statement>,
    portals: BTreeMap<Vec<u8>, Portal>,
    block: Block,
    /// Something was run in the transaction that the next Sync ends.
    pipelined: bool,
    /// Something of the extended protocol came since the last Sync or Query.
    in_batch: bool,
    skipping: bool,
    /// COPY data come in; by the extended protocol?
    copy: Option<bool>,
    copied: usize,
    /// In force; as the transaction found them; as the client knows them.
    setting: u8,
    before: u8,
    reported: u8,
    /// How often the tables have changed; seen in the columns if it is not 0.
    pub version: u32,
    /// Are statements read again when they are used under other settings? That is what clients of a pooler get.
    pub reads_anew: bool,
}

impl Default for Backend {
    fn default() -> Self {
        Self {
            input: Vec::new(),
            held: Vec::new(),
            sent: Vec::new(),
            statements: BTreeMap::new(),
            unnamed: None,
            portals: BTreeMap::new(),
            block: Block::None,
            pipelined: false,
            in_batch: false,
            skipping: false,
            copy: None,
            copied: 0,
            setting: 0,
            before: 0,
            reported: 0,
            version: 0,
            reads_anew: false,
        }
    }
}

impl Backend {
    /// May another client have it?
    pub fn is_idle(&self) -> bool {
        self.input.is_empty()
            && self.held.is_empty()
            && self.sent.is_empty()
            && self.block == Block::None
            && !self.in_batch
            && !self.skipping
            && self.copy.is_none()
    }

    /// How many named statements it has.
    pub fn prepared(&self) -> usize {
        self.statements.len()
    }

    /// The columns of all tables are others now. Not in the middle of a batch: a second time, nobody runs it again.
    pub fn migrate(&mut self) {
        if !self.in_batch {
            let unnamed = self.unnamed.iter_mut();
            for statement in self.statements.values_mut().chain(unnamed) {
                statement.outdated = statement.kind.returns_rows();
            }
        }
    }

    /// The tables can't change under a batch that may have used them.
    pub fn is_in_batch(&self) -> bool {
        self.in_batch
    }

    /// The same as [`migrate`](Self::migrate), and it is seen in the columns.
    pub fn change(&mut self) {
        self.migrate();
        self.version += 1;
    }

    /// Somebody else's settings, which everybody knows.
    pub fn adopt(&mut self, setting: u8) {
        (self.setting, self.before, self.reported) = (setting, setting, setting);
    }

    /// Bytes from the other side.
    pub fn read(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while let Some(frame) = cut(&self.input, MAX).unwrap() {
            if !frame.is_complete() {
                break;
            }
            let (tag, message) = (frame.tag, frame.bytes.to_vec());
            self.input.drain(..message.len());
            self.message(tag, &message[HEADER_LEN..]);
        }
    }

    fn flush(&mut self) {
        self.sent.append(&mut self.held);
    }

    fn ready(&mut self) {
        self.in_batch = false;
        let status = match self.block {
            Block::None => TxStatus::Idle,
            Block::In => TxStatus::InTransaction,
            Block::Failed => TxStatus::Failed,
        };
        if self.reported != self.setting {
            self.reported = self.setting;
            let value = self.setting.to_string();
            backend::parameter_status(&mut self.held, b"DateStyle", value.as_bytes());
        }
        backend::ready_for_query(&mut self.held, status);
        self.flush();
    }

    fn message(&mut self, tag: u8, body: &[u8]) {
        if let Some(extended) = self.copy {
            return self.copy_message(extended, tag, body);
        }
        if self.skipping && tag != tag::SYNC {
            return;
        }
        let result = match tag {
            tag::SYNC => {
                self.skipping = false;
                self.finish_transaction();
                return self.ready();
            }
            tag::FLUSH => return self.flush(),
            tag::COPY_DATA | tag::COPY_DONE | tag::COPY_FAIL => return,
            tag::QUERY => return self.query(Query::read(body).unwrap().sql),
            tag::PARSE => self.parse(&Parse::read(body).unwrap()),
            tag::BIND => self.bind(&BindHead::read(body).unwrap().unwrap()),
            tag::DESCRIBE => self.describe(&Named::read(body).unwrap()),
            tag::EXECUTE => self.execute(&Execute::read(body).unwrap()),
            tag::CLOSE => {
                self.close(&Named::read(body).unwrap());
                Ok(())
            }
            other => panic!("unknown message {other}"),
        };
        self.in_batch = true;
        if let Err(failure) = result {
            self.fail(failure);
            self.skipping = true;
            // PostgreSQL sends an error off at once.
            self.flush();
        }
    }

    fn fail(&mut self, (sqlstate, message): Failure) {
        let error = ErrorMessage {
            with_v: true,
            ..ErrorMessage::new("ERROR", sqlstate, &message)
        };
        let from = self.held.len();
        backend::error_response(&mut self.held, &error);
        if message == OUTDATED {
            // The routine, which the pooler itself never says.
            self.held.pop();
            self.held.extend_from_slice(b"RRevalidateCachedQuery\0\0");
            let length = u32::try_from(self.held.len() - from - 1).unwrap();
            self.held[from + 1..from + 5].copy_from_slice(&length.to_be_bytes());
        }
        self.pipelined = false;
        self.setting = self.before;
        if self.block == Block::None {
            self.portals.clear();
        } else {
            self.block = Block::Failed;
            self.portals
                .values_mut()
                .for_each(|portal| portal.failed = true);
        }
    }

    /// The implicit transaction is committed.
    fn finish_transaction(&mut self) {
        if self.block == Block::None {
            self.portals.clear();
            self.pipelined = false;
            self.before = self.setting;
        }
    }

    fn parse(&mut self, parse: &Parse<'_>) -> Result<(), Failure> {
        if parse.name.is_empty() {
            self.unnamed = None;
        }
        let statement = self.analyse(parse.sql)?;
        if parse.name.is_empty() {
            self.unnamed = Some(statement);
        } else if self.statements.contains_key(parse.name) {
            let text = quoted("prepared statement", parse.name, "already exists");
            return Err(("42P05", text));
        } else {
            self.statements.insert(parse.name.to_vec(), statement);
        }
        backend::parse_complete(&mut self.held);
        Ok(())
    }

    fn analyse(&self, sql: &[u8]) -> Result<Statement, Failure> {
        let mut parts = split(sql)?;
        let kind = match parts.len() {
            0 => Kind::Empty,
            1 => parts.remove(0).kind,
            _ => {
                let text = "cannot insert multiple commands into a prepared statement";
                return Err(("42601", text.to_owned()));
            }
        };
        if self.block == Block::Failed && kind != Kind::Empty && !kind.ends_transaction() {
            return Err(aborted());
        }
        let sql = sql.to_vec();
        Ok(Statement {
            sql,
            kind,
            outdated: false,
            version: self.version,
            setting: self.setting,
        })
    }

    fn statement(&self, name: &[u8]) -> Result<Statement, Failure> {
        let found = if name.is_empty() {
            self.unnamed.as_ref()
        } else {
            self.statements.get(name)
        };
        found.cloned().ok_or_else(|| no_statement(name))
    }

    fn portal(&mut self, name: &[u8]) -> Result<&mut Portal, Failure> {
        self.portals
            .get_mut(name)
            .ok_or_else(|| ("34000", quoted("portal", name, "does not exist")))
    }

    fn bind(&mut self, head: &BindHead<'_>) -> Result<(), Failure> {
        let mut statement = self.statement(head.statement)?;
        if head.statement.is_empty() {
            // Which settings it was read under depends on whether it had to follow its client to another server.
            statement.setting = 0;
        } else if self.reads_anew {
            statement.setting = self.setting;
        }
        if self.block == Block::Failed && !statement.kind.ends_transaction() {
            return Err(aborted());
        }
        if !head.portal.is_empty() && self.portals.contains_key(head.portal) {
            return Err(("42P03", quoted("cursor", head.portal, "already exists")));
        }
        if statement.outdated {
            return Err(outdated());
        }
        let portal = Portal {
            statement,
            fetched: 0,
            done: false,
            failed: false,
        };
        self.portals.insert(head.portal.to_vec(), portal);
        backend::bind_complete(&mut self.held);
        Ok(())
    }

    fn describe(&mut self, named: &Named<'_>) -> Result<(), Failure> {
        let statement = match named.target {
            Target::Statement => self.statement(named.name)?,
            Target::Portal => self.portal(named.name)?.statement.clone(),
        };
        // PostgreSQL itself still describes a statement without rows in a failed transaction. A pooler can't prepare
        // one there that the server has not got, save those that PostgreSQL lets be prepared there, so this one difference is left out.
        let is_prepared_anywhere =
            statement.kind == Kind::Empty || statement.kind.ends_transaction();
        if self.block == Block::Failed
            && (statement.kind.returns_rows()
                || named.target == Target::Statement && !is_prepared_anywhere)
        {
            return Err(aborted());
        }
        if named.target == Target::Statement {
            backend::parameter_description(&mut self.held, &[]);
            if statement.outdated {
                return Err(outdated());
            }
        }
        if statement.kind.returns_rows() {
            self.row_description(&statement);
        } else {
            backend::no_data(&mut self.held);
        }
        Ok(())
    }

    fn row_description(&mut self, statement: &Statement) {
        let column = Column {
            name: std::str::from_utf8(&statement.sql).unwrap(),
            type_oid: 25 + statement.version,
            type_len: -1,
        };
        backend::row_description(&mut self.held, &[column]);
    }

    fn execute(&mut self, execute: &Execute<'_>) -> Result<(), Failure> {
        let failed = self.block == Block::Failed;
        let portal = self.portal(execute.portal)?;
        let (statement, done) = (portal.statement.clone(), portal.done);
        if statement.kind == Kind::Empty {
            backend::empty_query_response(&mut self.held);
            return Ok(());
        }
        if failed && (portal.failed || !statement.kind.ends_transaction()) {
            return Err(aborted());
        }
        if let Kind::Select(rows) = statement.kind {
            let left = rows - portal.fetched;
            let limit = usize::try_from(execute.max_rows).unwrap_or(0);
            let count = if done {
                0
            } else if limit == 0 {
                left
            } else {
                left.min(limit)
            };
            portal.fetched += count;
            let suspended = !done && limit > 0 && count == limit;
            portal.done = !suspended;
            self.rows(&statement, count);
            self.pipelined = true;
            if suspended {
                backend::portal_suspended(&mut self.held);
            } else {
                backend::command_complete(&mut self.held, &format!("SELECT {count}"));
            }
            return Ok(());
        }
        if done {
            return Err(("55000", quoted("portal", execute.portal, "cannot be run")));
        }
        portal.done = true;
        let command = self.run(&statement, false)?;
        if self.copy.is_some() {
            self.copy = Some(true);
            return Ok(());
        }
        match statement.kind {
            Kind::Begin | Kind::Commit | Kind::Rollback | Kind::DiscardAll => {
                self.finish_transaction();
            }
            _ => self.pipelined = true,
        }
        backend::command_complete(&mut self.held, &command);
        Ok(())
    }

    fn rows(&mut self, statement: &Statement, count: usize) {
        let mut text = statement.sql.clone();
        if statement.setting != 0 {
            text.extend_from_slice(format!(" under {}", statement.setting).as_bytes());
        }
        if statement.version != 0 {
            text.extend_from_slice(format!(" version {}", statement.version).as_bytes());
        }
        (0..count).for_each(|_| backend::data_row(&mut self.held, &[Some(&text)]));
    }

    fn warn(&mut self, sqlstate: &str, message: &str) {
        let notice = ErrorMessage {
            with_v: true,
            ..ErrorMessage::new("WARNING", sqlstate, message)
        };
        backend::notice_response(&mut self.held, &notice);
    }

    fn end_block(&mut self) -> bool {
        if self.block == Block::None {
            self.warn("25P01", "there is no transaction in progress");
        }
        let failed = self.block == Block::Failed;
        self.block = Block::None;
        self.finish_transaction();
        failed
    }

    /// Runs what is no plain query; gives its command tag.
    fn run(&mut self, statement: &Statement, several: bool) -> Result<String, Failure> {
        let command = match &statement.kind {
            Kind::Empty | Kind::Select(_) => unreachable!(),
            Kind::Fail => return Err(("P0001", "fail".to_owned())),
            Kind::Begin => {
                if self.block == Block::In {
                    self.warn("25001", "there is already a transaction in progress");
                }
                self.block = Block::In;
                "BEGIN"
            }
            Kind::Commit => {
                if self.end_block() {
                    "ROLLBACK"
                } else {
                    "COMMIT"
                }
            }
            Kind::Rollback => {
                self.setting = self.before;
                self.end_block();
                "ROLLBACK"
            }
            Kind::Deallocate(name) => {
                self.statements
                    .remove(name)
                    .ok_or_else(|| no_statement(name))?;
                "DEALLOCATE"
            }
            Kind::DeallocateAll => {
                self.statements.clear();
                "DEALLOCATE ALL"
            }
            Kind::Set(setting) => {
                self.setting = *setting;
                "SET"
            }
            Kind::DiscardAll => {
                if several || self.block == Block::In {
                    let text = "DISCARD ALL cannot run inside a transaction block";
                    return Err(("25001", text.to_owned()));
                }
                if self.pipelined {
                    let text = "DISCARD ALL cannot be executed within a pipeline";
                    return Err(("25001", text.to_owned()));
                }
                self.statements.clear();
                "DISCARD ALL"
            }
            Kind::CopyIn => {
                self.copy_response(tag_of_copy::IN);
                self.flush();
                (self.copy, self.copied) = (Some(false), 0);
                ""
            }
            Kind::CopyOut => {
                self.copy_response(tag_of_copy::OUT);
                self.held.extend_from_slice(b"d\0\0\0\x06a\nc\0\0\0\x04");
                "COPY 1"
            }
        };
        Ok(command.to_owned())
    }

    fn copy_response(&mut self, tag: u8) {
        self.held.push(tag);
        self.held.extend_from_slice(b"\0\0\0\x09\0\0\x01\0\0");
    }

    fn close(&mut self, named: &Named<'_>) {
        match named.target {
            Target::Statement if named.name.is_empty() => self.unnamed = None,
            Target::Statement => {
                self.statements.remove(named.name);
            }
            Target::Portal => {
                self.portals.remove(named.name);
            }
        }
        backend::close_complete(&mut self.held);
    }

    fn query(&mut self, sql: &[u8]) {
        self.unnamed = None;
        let result = self.statements_of_query(sql);
        if let Err(failure) = result {
            self.fail(failure);
        } else if self.copy.is_some() {
            return;
        } else {
            self.finish_transaction();
        }
        self.ready();
    }

    fn statements_of_query(&mut self, sql: &[u8]) -> Result<(), Failure> {
        let parts = split(sql)?;
        if parts.is_empty() {
            backend::empty_query_response(&mut self.held);
            return Ok(());
        }
        let several = parts.len() > 1;
        for statement in parts {
            if self.block == Block::Failed && !statement.kind.ends_transaction() {
                return Err(aborted());
            }
            self.portals.remove(&b""[..]);
            if let Kind::Select(count) = statement.kind {
                self.row_description(&statement);
                self.rows(&statement, count);
                backend::command_complete(&mut self.held, &format!("SELECT {count}"));
                continue;
            }
            if statement.kind == Kind::Fail {
                self.row_description(&statement);
            }
            let command = self.run(&statement, several)?;
            if self.copy.is_some() {
                assert!(!several, "a COPY among several statements");
                return Ok(());
            }
            backend::command_complete(&mut self.held, &command);
        }
        Ok(())
    }

    fn copy_message(&mut self, extended: bool, tag: u8, body: &[u8]) {
        match tag {
            tag::SYNC | tag::FLUSH => {}
            tag::COPY_DATA if body.starts_with(b"bad") => {
                self.copy_fails(extended, ("22P04", "bad data".to_owned()));
            }
            tag::COPY_DATA => self.copied += 1,
            tag::COPY_FAIL => {
                self.copy_fails(extended, ("57014", "COPY from stdin failed".to_owned()));
            }
            tag::COPY_DONE => {
                self.copy = None;
                backend::command_complete(&mut self.held, &format!("COPY {}", self.copied));
                if extended {
                    self.pipelined = true;
                } else {
                    self.finish_transaction();
                    self.ready();
                }
            }
            other => panic!("message {other} during COPY"),
        }
    }

    fn copy_fails(&mut self, extended: bool, failure: Failure) {
        self.copy = None;
        self.fail(failure);
        if extended {
            self.skipping = true;
            self.flush();
        } else {
            self.ready();
        }
    }
}

mod tag_of_copy {
    pub use crate::protocol::backend::tag::{COPY_IN_RESPONSE as IN, COPY_OUT_RESPONSE as OUT};
}

/// The statements of a text; none if it is empty.
fn split(sql: &[u8]) -> Result<Vec<Statement>, Failure> {
    let mut parts = Vec::new();
    for part in sql.split(|&byte| byte == b';') {
        match Kind::of(part) {
            Some(Kind::Empty) => {}
            Some(kind) => parts.push(Statement {
                sql: part.to_vec(),
                kind,
                outdated: false,
                version: 0,
                setting: 0,
            }),
            None => return Err(("42601", "syntax error".to_owned())),
        }
    }
    Ok(parts)
}
