//! What servers and clients say once they are logged in: a server that answers whatever it likes confuses nothing
//! but its own connection, and a client's parameters are values and no SQL.

use std::collections::BTreeSet;

use pgferry::protocol::backend::tag;
use pgferry::server::pipeline::{Expect, Failure, Pipeline, Request};
use pgferry::server::session::{Tracked, TrackedNames};
use pgferry::sql::lexer::{Lexer, TokenKind};

use super::Input;

const REQUESTS: [Request; 8] = [
    Request::Query,
    Request::FunctionCall,
    Request::Parse,
    Request::Bind,
    Request::DescribeStatement,
    Request::DescribePortal,
    Request::Execute,
    Request::Close,
];

const TAGS: [u8; 20] = [
    tag::READY_FOR_QUERY,
    tag::COMMAND_COMPLETE,
    tag::PARSE_COMPLETE,
    tag::BIND_COMPLETE,
    tag::CLOSE_COMPLETE,
    tag::ROW_DESCRIPTION,
    tag::PARAMETER_DESCRIPTION,
    tag::NO_DATA,
    tag::DATA_ROW,
    tag::EMPTY_QUERY_RESPONSE,
    tag::PORTAL_SUSPENDED,
    tag::COPY_IN_RESPONSE,
    tag::COPY_OUT_RESPONSE,
    tag::COPY_BOTH_RESPONSE,
    tag::COPY_DATA,
    tag::COPY_DONE,
    tag::FUNCTION_CALL_RESPONSE,
    tag::PARAMETER_STATUS,
    tag::AUTHENTICATION,
    b'?',
];

/// Requests and replies in any order: what was noted with a request comes back once, in order.
pub fn pipeline(input: &[u8]) {
    let mut input = Input(input);
    let mut pipeline = Pipeline::default();
    let (mut noted, mut next) = (BTreeSet::new(), 0_u32);
    while !input.0.is_empty() {
        let (what, which) = (input.byte(), usize::from(input.byte()));
        let request = REQUESTS[which % REQUESTS.len()];
        match what % 8 {
            0..=2 => {
                let effect = (which & 0x40 != 0 && what % 8 != 2).then(|| {
                    next += 1;
                    noted.insert(next);
                    next
                });
                let expect = [Expect::Forward, Expect::Swallow, Expect::Synthesize];
                pipeline.push(expect[usize::from(what % 8)](request), effect);
            }
            3 => pipeline.push_sync(Expect::Forward(Request::Sync)),
            4 => {
                let wanted = pipeline.wants_copy_data();
                assert_eq!(pipeline.end_copy(), wanted);
            }
            5 => match pipeline.error(which & 1 == 1) {
                Failure::Aside => {}
                Failure::Failed {
                    skipped, failed, ..
                } => {
                    assert!(skipped.is_sorted_by(|newer, older| newer > older));
                    for effect in skipped.into_iter().chain(failed) {
                        assert!(noted.remove(&effect), "given back twice");
                    }
                }
            },
            6 => {
                pipeline.take_synthesized();
            }
            _ => match pipeline.reply(TAGS[which % TAGS.len()]) {
                Ok(reply) if reply.has_effect => {
                    assert!(reply.completes.is_some());
                    let effect = pipeline.take_effect().expect("it has one");
                    assert_eq!(noted.pop_first(), Some(effect), "the oldest");
                }
                Ok(_) => {}
                // The connection is closed.
                Err(_) => return,
            },
        }
        agrees_with_itself(&mut pipeline, &noted);
    }
}

fn agrees_with_itself(pipeline: &mut Pipeline<u32>, noted: &BTreeSet<u32>) {
    let nothing = pipeline.owes_nothing();
    assert_eq!(nothing, pipeline.current().is_none());
    assert!(
        !nothing || noted.is_empty(),
        "nobody will give these back: {noted:?}"
    );
    assert!(!nothing || !pipeline.owes_ready() && !pipeline.awaits_server());
    assert!(!nothing || !pipeline.has_synthesized());
    assert_eq!(pipeline.is_idle(), nothing && !pipeline.needs_sync());
    assert!(!pipeline.takes_copy_data() || pipeline.wants_copy_data());
    if let Some(effect) = pipeline.current_effect() {
        assert_eq!(noted.first(), Some(&*effect));
    }
}

/// The values that a client wants and those that its server has, by turns; each piece with its length before it.
pub fn parameters(input: &[u8]) {
    let mut input = Input(input);
    let names = TrackedNames::new(&["search_path".to_owned(), "role".to_owned()]);
    let (mut wanted, mut has) = (Tracked::new(names.clone()), Tracked::new(names.clone()));
    for name in names.iter() {
        for tracked in [&mut wanted, &mut has] {
            let length = usize::from(input.byte());
            let (value, rest) = input.0.split_at(length.min(input.0.len()));
            input.0 = rest;
            // No message has a string with a zero byte in it.
            if !value.contains(&0) {
                assert!(tracked.set(name.to_uppercase().as_bytes(), value));
            }
        }
    }
    let sql = wanted.difference(&has, |_| true);
    assert!(wanted.same_as(&wanted) && wanted.difference(&wanted, |_| true).is_empty());
    assert!(!wanted.same_as(&has) || sql.is_empty());
    let mut names = names.iter();
    let tokens: Vec<_> = Lexer::new(&sql).significant().collect();
    for statement in tokens.split_inclusive(|token| token.kind == TokenKind::Semicolon) {
        let shown = String::from_utf8_lossy(&sql);
        let [set, name, equals, values @ .., _] = statement else {
            panic!("{shown}");
        };
        assert_eq!(
            (set.of(&sql), equals.of(&sql)),
            (&b"SET"[..], &b"="[..]),
            "{shown}"
        );
        assert!(
            names.any(|known| known.as_bytes() == name.of(&sql)),
            "{shown}"
        );
        for (at, value) in values.iter().enumerate() {
            let wanted = if at % 2 == 0 {
                TokenKind::Text
            } else {
                TokenKind::Other
            };
            assert_eq!(value.kind, wanted, "{shown}");
            assert!(
                wanted == TokenKind::Text || value.of(&sql) == b",",
                "{shown}"
            );
        }
        assert!(values.len() % 2 == 1 && (values.len() == 1 || name.of(&sql) == b"search_path"));
    }
    let doubled = 2
        * (0..7)
            .filter_map(|at| wanted.get(at))
            .map(<[u8]>::len)
            .sum::<usize>();
    assert!(sql.len() <= 2 * doubled + 500);
}
