//! The pipeline against a server that does as `protocol-flow` says, one message after the other, and knows which message
//! each of its replies answers.

use proptest::prelude::*;
use std::collections::VecDeque;

use super::*;

/// What a client or the pooler does next.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// One message, and does the server fail at it?
    Send(Expect, bool),
    Sync(bool),
    /// Execute or Query of a COPY FROM STDIN.
    CopyIn(Request),
    CopyData {
        bad: bool,
    },
    CopyEnd {
        fail: bool,
    },
    /// So many replies arrive.
    Deliver(usize),
}

/// A reply and the number of the message that it answers.
#[derive(Debug, Clone, Copy)]
struct Answer {
    tag: u8,
    to: usize,
    /// Does it complete the message's answer?
    last: bool,
}

/// A server that reads each message when it is sent; its replies arrive when they are delivered.
#[derive(Debug, Default)]
struct Model {
    /// By number: the message, its effect, and whether the server skips it.
    sent: Vec<(Expect, Option<usize>, bool)>,
    answers: VecDeque<Answer>,
    skipping: bool,
    in_batch: bool,
    copy: Option<(usize, Request)>,
    /// Numbers below this are dealt with.
    seen: usize,
}

impl Model {
    fn say(&mut self, to: usize, tags: &[u8]) {
        let is_whole = self.copy.is_none();
        let answers = tags.iter().enumerate().map(|(at, &tag)| Answer {
            tag,
            to,
            last: is_whole && at + 1 == tags.len(),
        });
        self.answers.extend(answers);
    }

    fn note(&mut self, expect: Expect, effect: Option<usize>) -> usize {
        self.sent.push((expect, effect, self.skipping));
        self.sent.len() - 1
    }

    fn fail(&mut self, at: usize, request: Request) {
        if request.ends_with_ready() {
            self.in_batch = false;
            self.say(at, &[tag::ERROR_RESPONSE, tag::READY_FOR_QUERY]);
        } else {
            self.skipping = true;
            self.say(at, &[tag::ERROR_RESPONSE]);
        }
    }

    fn send(&mut self, expect: Expect, effect: Option<usize>, fails: bool) {
        let at = self.note(expect, effect);
        let request = expect.request();
        if self.skipping || matches!(expect, Expect::Synthesize(_)) {
            return;
        }
        self.in_batch = !request.ends_with_ready();
        if fails {
            return self.fail(at, request);
        }
        let tags: &[u8] = match request {
            Request::Query => &[
                tag::ROW_DESCRIPTION,
                tag::DATA_ROW,
                tag::COMMAND_COMPLETE,
                tag::READY_FOR_QUERY,
            ],
            Request::FunctionCall => &[tag::FUNCTION_CALL_RESPONSE, tag::READY_FOR_QUERY],
            Request::Parse => &[tag::PARSE_COMPLETE],
            Request::Bind => &[tag::BIND_COMPLETE],
            Request::DescribeStatement => &[tag::PARAMETER_DESCRIPTION, tag::NO_DATA],
            Request::DescribePortal => &[tag::ROW_DESCRIPTION],
            Request::Execute => &[tag::DATA_ROW, tag::PORTAL_SUSPENDED],
            Request::Close => &[tag::CLOSE_COMPLETE],
            Request::Sync | Request::CopyEnd => &[],
        };
        self.say(at, tags);
    }

    fn sync(&mut self, expect: Expect) {
        let at = self.note(expect, None);
        if self.copy.is_none() {
            (self.skipping, self.in_batch) = (false, false);
            self.say(at, &[tag::READY_FOR_QUERY]);
        }
    }

    fn copy_in(&mut self, request: Request) {
        let at = self.note(Expect::Forward(request), None);
        if !self.skipping {
            self.in_batch = !request.ends_with_ready();
            self.copy = Some((at, request));
            self.say(at, &[tag::COPY_IN_RESPONSE]);
        }
    }

    fn end_copy(&mut self, fails: bool) {
        let Some((at, request)) = self.copy.take() else {
            return;
        };
        if fails {
            return self.fail(at, request);
        }
        if request.ends_with_ready() {
            self.in_batch = false;
            self.say(at, &[tag::COMMAND_COMPLETE, tag::READY_FOR_QUERY]);
        } else {
            self.say(at, &[tag::COMMAND_COMPLETE]);
        }
    }

    fn is_idle(&self) -> bool {
        !self.skipping && !self.in_batch && self.copy.is_none() && self.answers.is_empty()
    }

    /// What was noted for the messages from `seen` up to (not with) the next Sync that is answered.
    fn skipped_from(&self, from: usize) -> Vec<usize> {
        let mut skipped: Vec<usize> = self.sent[from..]
            .iter()
            .take_while(|(expect, ..)| expect.request() != Request::Sync)
            .filter_map(|(_, effect, _)| *effect)
            .collect();
        skipped.reverse();
        skipped
    }
}

/// Both side by side.
#[derive(Debug, Default)]
struct Pair {
    real: Pipeline<usize>,
    model: Model,
    effects: usize,
}

impl Pair {
    fn run(&mut self, op: Op) {
        match op {
            Op::Deliver(count) => (0..count).for_each(|_| self.deliver()),
            Op::Sync(ours) => {
                let expect = if ours {
                    Expect::Swallow(Request::Sync)
                } else {
                    Expect::Forward(Request::Sync)
                };
                self.real.push_sync(expect);
                self.model.sync(expect);
            }
            Op::CopyData { bad } => {
                if self.real.wants_copy_data() && bad {
                    self.model.end_copy(true);
                }
            }
            Op::CopyEnd { fail } => {
                if self.real.end_copy() {
                    self.model.end_copy(fail);
                }
            }
            // The relay sends nothing else while the server is known to skip.
            Op::Send(..) | Op::CopyIn(_) if self.real.is_skipping() => {}
            // Any other message breaks a COPY, and with it the connection.
            Op::Send(..) | Op::CopyIn(_) if self.model.copy.is_some() => {}
            Op::CopyIn(request) => {
                self.real.push(Expect::Forward(request), None);
                self.model.copy_in(request);
            }
            Op::Send(expect, fails) => {
                self.effects += 1;
                let effect = (!self.effects.is_multiple_of(3)).then_some(self.effects);
                self.real.push(expect, effect);
                self.model.send(expect, effect, fails);
                self.synthesize();
            }
        }
    }

    /// Held-back answers whose turn it is come out, each once, and none that the server skips.
    fn synthesize(&mut self) {
        let due = match self.model.answers.front() {
            Some(answer) => answer.to,
            None => self.model.sent.len(),
        };
        while self.model.seen < due {
            let (expect, _, skipped) = self.model.sent[self.model.seen];
            self.model.seen += 1;
            if let (Expect::Synthesize(request), false) = (expect, skipped) {
                assert_eq!(self.real.take_synthesized(), Some(request));
            }
        }
        assert_eq!(self.real.take_synthesized(), None);
    }

    fn deliver(&mut self) {
        if self.real.is_unsure() {
            return;
        }
        let Some(Answer { tag, to, last }) = self.model.answers.pop_front() else {
            return;
        };
        let (expect, effect, _) = self.model.sent[to];
        let forward = matches!(expect, Expect::Forward(_));
        if tag == tag::ERROR_RESPONSE {
            let expected = if expect.request().ends_with_ready() {
                Failure::Aside
            } else {
                self.model.seen = to + 1;
                Failure::Failed {
                    skipped: self.model.skipped_from(to + 1),
                    failed: effect,
                    in_copy: false,
                }
            };
            let mut real = self.real.error(false);
            if let Failure::Failed { in_copy, .. } = &mut real {
                *in_copy = false;
            }
            if !self.real.is_unsure() {
                assert_eq!(real, expected);
            }
        } else {
            let noted = effect.filter(|_| last);
            if last {
                self.model.seen = to + 1;
            }
            let expected = Reply {
                forward,
                completes: last.then(|| expect.request()),
                has_effect: noted.is_some(),
            };
            if self.real.is_usual() && self.real.passes(tag) {
                assert!(forward && noted.is_none());
                assert!(self.real.is_usual());
            } else {
                assert_eq!(self.real.reply(tag), Ok(expected));
            }
            if noted.is_some() {
                assert_eq!(self.real.take_effect(), noted);
            }
        }
        if !self.real.is_unsure() {
            self.synthesize();
        }
    }
}

/// What is asked for, but for what ends a batch or a COPY.
pub(super) const REQUESTS: [Request; 8] = [
    Request::Query,
    Request::Parse,
    Request::Bind,
    Request::DescribeStatement,
    Request::DescribePortal,
    Request::Execute,
    Request::Close,
    Request::FunctionCall,
];

fn request() -> impl Strategy<Value = Request> {
    prop::sample::select(&REQUESTS[..])
}

fn send() -> impl Strategy<Value = Op> {
    let synthesized = prop::sample::select(vec![Request::Parse, Request::Close]);
    let expect = prop_oneof![
        4 => request().prop_map(Expect::Forward),
        2 => prop::sample::select(vec![Request::Parse, Request::Close]).prop_map(Expect::Swallow),
        2 => synthesized.prop_map(Expect::Synthesize),
    ];
    (expect, prop::bool::weighted(0.2)).prop_map(|(expect, fails)| Op::Send(expect, fails))
}

/// A COPY as clients send it, with replies arriving in between.
fn copy() -> impl Strategy<Value = Vec<Op>> {
    let copy = prop::sample::select(vec![Request::Execute, Request::Query]);
    let data = prop::collection::vec(prop::bool::weighted(0.2), 0..3);
    (
        copy,
        any::<bool>(),
        data,
        any::<bool>(),
        prop::collection::vec(0usize..4, 5),
    )
        .prop_map(|(request, early_sync, data, fail, delivered)| {
            let mut ops = vec![Op::CopyIn(request)];
            ops.extend((early_sync && request == Request::Execute).then_some(Op::Sync(false)));
            ops.extend(data.into_iter().map(|bad| Op::CopyData { bad }));
            ops.push(Op::CopyEnd { fail });
            ops.extend((request == Request::Execute).then_some(Op::Sync(false)));
            let mut delivered = delivered.into_iter();
            ops.into_iter()
                .flat_map(|op| [op, Op::Deliver(delivered.next().unwrap_or(0))])
                .collect()
        })
}

fn script() -> impl Strategy<Value = Vec<Op>> {
    let step = prop_oneof![
        6 => send().prop_map(|op| vec![op]),
        2 => prop::bool::weighted(0.2).prop_map(|ours| vec![Op::Sync(ours)]),
        3 => (0usize..6).prop_map(|count| vec![Op::Deliver(count)]),
        1 => copy(),
    ];
    prop::collection::vec(step, 0..24).prop_map(|steps| steps.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_reply_is_for_whom_the_model_says(script in script()) {
        let mut pair = Pair::default();
        for op in script {
            pair.run(op);
            if pair.real.is_unsure() {
                // Not to be used any more: nothing is promised.
                return Ok(());
            }
        }
        pair.run(Op::Deliver(200));
        if pair.real.is_unsure() {
            return Ok(());
        }
        prop_assert_eq!(pair.real.is_idle(), pair.model.is_idle());
        pair.run(Op::CopyEnd { fail: false });
        pair.run(Op::Sync(false));
        pair.run(Op::Deliver(200));
        prop_assert!(pair.real.is_idle() && pair.model.is_idle());
    }
}
