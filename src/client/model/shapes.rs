//! Tables change, and nobody takes the new columns for the old ones.
//!
//! What the model shows of each answer is how often the tables had changed by then. A client notes what it is told of each of its
//! statements, and holds the rows it gets against that.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::script::{Batch, Say};
use crate::protocol::backend::{self, ErrorFields, tag};
use crate::protocol::frame::{Frame, cut};

fn one_of(words: &[&'static str]) -> impl Strategy<Value = &'static str> + use<> {
    prop::sample::select(words.to_vec())
}

/// Clients that ask for the columns once, each time, or never, in and out of transactions. They wait for each answer.
pub fn script() -> impl Strategy<Value = Vec<Batch>> {
    let selects = || one_of(&["select 1", "select 2", "select 5 rows", "wrong"]);
    let run = |name, describes: bool, binary: bool| {
        let bind = if binary {
            Say::BindBinary("", name)
        } else {
            Say::Bind("", name)
        };
        let describe = describes.then_some(Say::DescribePortal(""));
        let says = [bind].into_iter().chain(describe);
        says.chain([Say::Execute("", 0)]).collect::<Vec<_>>()
    };
    let every = || one_of(&["a", "b", ""]);
    let runs = (every(), prop::bool::weighted(0.3), any::<bool>())
        .prop_map(move |(name, describes, binary)| run(name, describes, binary));
    // Nobody has asked for a portal of the unnamed statement in vain: only what it was told of the statement itself counts.
    let unnamed = selects().prop_map(|text| vec![Say::Parse("", text), Say::DescribeStatement("")]);
    let prepares = (every(), selects(), any::<bool>(), any::<bool>()).prop_map(
        |(name, text, closes, describes)| {
            let close = closes.then_some(Say::CloseStatement(name));
            let describe = describes.then_some(Say::DescribeStatement(name));
            let parse = [Say::Parse(name, text)];
            close.into_iter().chain(parse).chain(describe).collect()
        },
    );
    let asks = every().prop_map(|name| vec![Say::DescribeStatement(name)]);
    let part = prop_oneof![6 => runs, 3 => prepares, 1 => unnamed, 1 => asks];
    let extended = prop::collection::vec(part, 1..3).prop_map(|parts| {
        let mut says = parts.concat();
        says.push(Say::Sync);
        says
    });
    let simple = one_of(&["begin", "commit", "rollback"]).prop_map(|text| vec![Say::Query(text)]);
    let batch = prop_oneof![5 => extended, 1 => simple];
    let batch = batch.prop_map(|says| Batch { says, waits: true });
    prop::collection::vec(batch, 1..20)
}

/// How many times the server was ready.
pub fn readies(got: &[u8]) -> usize {
    let is_ready = |frame: &Frame<'_>| frame.tag == tag::READY_FOR_QUERY;
    frames(got).filter(is_ready).count()
}

fn frames(mut bytes: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    std::iter::from_fn(move || {
        let frame = cut(bytes, 1 << 24).unwrap().filter(Frame::is_complete)?;
        bytes = &bytes[frame.len..];
        Some(frame)
    })
}

/// The version of the columns that a RowDescription tells.
fn described(body: &[u8]) -> u32 {
    backend::read_row_description(body).unwrap()[0].1 - 25
}

/// The version of a row.
fn version(body: &[u8]) -> u32 {
    let columns = backend::read_data_row(body).unwrap();
    let text = String::from_utf8(columns[0].clone().unwrap()).unwrap();
    text.rsplit_once(" version ")
        .map_or(0, |(_, version)| version.parse().unwrap())
}

/// What a client believes of its statements.
#[derive(Debug, Default)]
struct Beliefs {
    columns: BTreeMap<&'static str, u32>,
    bound: &'static str,
}

impl Beliefs {
    /// The message is answered by this. An error ends the batch.
    fn answered(&mut self, say: &Say, answer: &[Frame<'_>]) {
        let told = answer
            .iter()
            .find(|frame| frame.tag == tag::ROW_DESCRIPTION);
        let told = told.map(|frame| described(frame.body()));
        match *say {
            Say::Parse(name, _) | Say::CloseStatement(name) => drop(self.columns.remove(name)),
            Say::Bind(_, name) | Say::BindBinary(_, name) => self.bound = name,
            Say::DescribeStatement(name) => drop(self.columns.insert(name, told.unwrap())),
            Say::DescribePortal(_) if self.bound.is_empty() => {
                // PostgreSQL does not let it change, told or not. Where nobody was told by then, nobody knows.
                let known = self.columns.get(self.bound);
                assert!(
                    known.is_none_or(|known| Some(*known) == told),
                    "other columns"
                );
            }
            Say::DescribePortal(_) => drop(self.columns.insert(self.bound, told.unwrap())),
            Say::Execute(..) => {
                for row in answer.iter().filter(|frame| frame.tag == tag::DATA_ROW) {
                    if let Some(columns) = self.columns.get(self.bound) {
                        assert_eq!(version(row.body()), *columns, "the wrong columns");
                    }
                }
            }
            _ => {}
        }
    }
}

/// Is this the last message of the answer to that?
fn is_end(say: &Say, found: u8) -> bool {
    match say {
        Say::Parse(..) => found == tag::PARSE_COMPLETE,
        Say::Bind(..) | Say::BindBinary(..) => found == tag::BIND_COMPLETE,
        Say::DescribeStatement(_) | Say::DescribePortal(_) => found == tag::ROW_DESCRIPTION,
        Say::Execute(..) => found == tag::COMMAND_COMPLETE,
        Say::CloseStatement(_) | Say::ClosePortal(_) => found == tag::CLOSE_COMPLETE,
        _ => found == tag::READY_FOR_QUERY,
    }
}

/// Holds all that a client got against what it was told. `versions`: the least and the greatest number of changes while
/// each batch was under way.
pub fn check(script: &[Batch], got: &[u8], versions: &[(u32, u32)]) {
    let mut replies = frames(got);
    let mut beliefs = Beliefs::default();
    for (batch, &(first, last)) in script.iter().zip(versions) {
        for say in &batch.says {
            let mut answer = Vec::new();
            loop {
                let reply = replies.next().expect("an answer");
                answer.push(reply);
                if reply.tag == tag::ERROR_RESPONSE || is_end(say, reply.tag) {
                    break;
                }
            }
            let Some(error) = answer.iter().find(|frame| frame.tag == tag::ERROR_RESPONSE) else {
                beliefs.answered(say, &answer);
                continue;
            };
            let fields = ErrorFields::read(error.body()).unwrap();
            if fields.sqlstate() == Some(b"0A000") && first == last {
                assert_needed(&beliefs, batch, say, last);
            }
            let ready = replies.next().unwrap();
            assert_eq!(ready.tag, tag::READY_FOR_QUERY, "after an error");
            break;
        }
    }
    assert!(replies.next().is_none(), "more than was asked for");
}

/// Who knows the columns as they are, and goes by that, is not told that they are others.
fn assert_needed(beliefs: &Beliefs, batch: &Batch, say: &Say, now: u32) {
    let name = match say {
        Say::Bind(_, name) | Say::BindBinary(_, name) => name,
        Say::DescribeStatement(name) if name.is_empty() => name,
        _ => return,
    };
    let asks_portal = |say: &Say| matches!(say, Say::DescribePortal(_));
    let asks = !name.is_empty() && batch.says.iter().any(asks_portal);
    let known = beliefs.columns.get(name);
    assert!(asks || known != Some(&now), "refused for nothing");
}
