//! What random clients say.

use proptest::prelude::*;

use crate::protocol::frontend::{self, Target};

/// One message.
#[derive(Debug, Clone)]
pub enum Say {
    Parse(&'static str, &'static str),
    /// Portal, statement.
    Bind(&'static str, &'static str),
    /// The same; values would be binary ones.
    BindBinary(&'static str, &'static str),
    DescribeStatement(&'static str),
    DescribePortal(&'static str),
    Execute(&'static str, i32),
    CloseStatement(&'static str),
    ClosePortal(&'static str),
    Sync,
    Flush,
    Query(&'static str),
    CopyData(&'static str),
    CopyDone,
    CopyFail,
}

impl Say {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Parse(name, sql) => {
                let rest = [sql.as_bytes(), &[0, 0, 0]].concat();
                frontend::parse(out, name.as_bytes(), &rest);
            }
            Self::Bind(portal, statement) => {
                frontend::bind(out, portal.as_bytes(), statement.as_bytes(), &[0; 6]);
            }
            Self::BindBinary(portal, statement) => {
                let values = [0, 1, 0, 1, 0, 0, 0, 0];
                frontend::bind(out, portal.as_bytes(), statement.as_bytes(), &values);
            }
            Self::DescribeStatement(name) => {
                frontend::describe(out, Target::Statement, name.as_bytes());
            }
            Self::DescribePortal(name) => {
                frontend::describe(out, Target::Portal, name.as_bytes());
            }
            Self::Execute(portal, rows) => frontend::execute(out, portal.as_bytes(), rows),
            Self::CloseStatement(name) => {
                frontend::close(out, Target::Statement, name.as_bytes());
            }
            Self::ClosePortal(name) => frontend::close(out, Target::Portal, name.as_bytes()),
            Self::Sync => frontend::sync(out),
            Self::Flush => frontend::flush(out),
            Self::Query(sql) => frontend::query(out, sql.as_bytes()),
            Self::CopyData(line) => {
                let length = u32::try_from(line.len() + 4).unwrap();
                out.push(b'd');
                out.extend_from_slice(&length.to_be_bytes());
                out.extend_from_slice(line.as_bytes());
            }
            Self::CopyDone => frontend::copy_done(out),
            Self::CopyFail => frontend::copy_fail(out, b"no"),
        }
    }
}

/// Messages that are sent together.
#[derive(Debug, Clone)]
pub struct Batch {
    pub says: Vec<Say>,
    /// Does the client wait for the answers to all it has sent so far?
    pub waits: bool,
}

fn one_of(words: &[&'static str]) -> impl Strategy<Value = &'static str> + use<> {
    prop::sample::select(words.to_vec())
}

fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![3 => one_of(&["a", "b"]), 2 => Just("")]
}

fn portal() -> impl Strategy<Value = &'static str> {
    prop_oneof![4 => Just(""), 1 => Just("p")]
}

fn text() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        8 => one_of(&["select 1", "select 2", "select 3", "select 4", "select 5 rows"]),
        3 => one_of(&["begin", "commit", "rollback"]),
        1 => one_of(&["wrong", "select fail()", "", "copy t to stdout"]),
        1 => one_of(&["deallocate a", "deallocate b", "deallocate all", "discard all"]),
    ]
}

fn query() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        4 => text(),
        1 => one_of(&[
            "select 1; select 2", "begin; select 3", "select 1; wrong", "select 1; select fail(); select 2",
            "deallocate a; deallocate b", "deallocate a; deallocate a", "begin; deallocate a",
            "select 1; deallocate all", "rollback; begin", "commit; deallocate b; select 2", ";",
        ]),
    ]
}

fn extended() -> impl Strategy<Value = Say> {
    prop_oneof![
        4 => (name(), text()).prop_map(|(name, text)| Say::Parse(name, text)),
        5 => (portal(), name()).prop_map(|(portal, name)| Say::Bind(portal, name)),
        2 => name().prop_map(Say::DescribeStatement),
        1 => portal().prop_map(Say::DescribePortal),
        5 => (portal(), 0i32..3).prop_map(|(portal, rows)| Say::Execute(portal, rows)),
        2 => name().prop_map(Say::CloseStatement),
        1 => portal().prop_map(Say::ClosePortal),
        1 => Just(Say::Flush),
    ]
}

/// The usual ways of drivers.
fn usual() -> impl Strategy<Value = Vec<Say>> {
    let whole = (name(), text(), 0i32..2).prop_map(|(name, text, rows)| {
        vec![
            Say::Parse(name, text),
            Say::DescribeStatement(name),
            Say::Bind("", name),
            Say::Execute("", rows),
        ]
    });
    let prepared = name().prop_map(|name| vec![Say::Bind("", name), Say::Execute("", 0)]);
    let only_parse = (name(), text()).prop_map(|(name, text)| vec![Say::Parse(name, text)]);
    let again = (name(), text())
        .prop_map(|(name, text)| vec![Say::CloseStatement(name), Say::Parse(name, text)]);
    let unnamed = (text(), any::<bool>(), 0i32..2).prop_map(|(text, describes, rows)| {
        let describe = describes.then_some(Say::DescribePortal(""));
        let says = [Say::Parse("", text), Say::Bind("", "")].into_iter();
        says.chain(describe)
            .chain([Say::Execute("", rows)])
            .collect()
    });
    prop_oneof![1 => whole, 1 => prepared, 1 => only_parse, 1 => again, 2 => unnamed]
}

fn copy() -> impl Strategy<Value = Vec<Say>> {
    const COPY: &str = "copy t from stdin";
    let data = prop::collection::vec(prop::bool::weighted(0.15), 0..3);
    (any::<bool>(), any::<bool>(), data, any::<bool>()).prop_map(
        |(extended, early_sync, data, gives_up)| {
            let fails = gives_up || data.contains(&true);
            let mut says = if extended {
                vec![
                    Say::CloseStatement("c"),
                    Say::Parse("c", COPY),
                    Say::Bind("", "c"),
                    Say::Execute("", 0),
                ]
            } else {
                vec![Say::Query(COPY)]
            };
            // With a failure to come, nobody can tell whether such a Sync is read before or after it.
            says.extend((extended && early_sync && !fails).then_some(Say::Sync));
            let line = |bad| if bad { "bad" } else { "good" };
            says.extend(data.into_iter().map(|bad| Say::CopyData(line(bad))));
            says.push(if gives_up {
                Say::CopyFail
            } else {
                Say::CopyDone
            });
            says.extend(extended.then_some(Say::Sync));
            says
        },
    )
}

fn batch() -> impl Strategy<Value = Vec<Say>> {
    let end =
        prop_oneof![12 => Just(Some(Say::Sync)), 1 => Just(Some(Say::Flush)), 1 => Just(None)];
    let mixed = (prop::collection::vec(extended(), 0..6), end.clone());
    let usual = (prop::collection::vec(usual(), 1..3), end);
    prop_oneof![
        4 => mixed.prop_map(|(says, end)| says.into_iter().chain(end).collect()),
        5 => usual.prop_map(|(says, end)| says.concat().into_iter().chain(end).collect()),
        3 => query().prop_map(|text| vec![Say::Query(text)]),
        1 => copy(),
    ]
}

/// A client's whole life; the last batch makes sure that nothing is held back.
pub fn script() -> impl Strategy<Value = Vec<Batch>> {
    let batch = (batch(), prop::bool::weighted(0.5));
    prop::collection::vec(batch, 1..10).prop_map(|batches| {
        let last = (vec![Say::Sync], true);
        batches
            .into_iter()
            .chain([last])
            .map(|(says, waits)| Batch { says, waits })
            .collect()
    })
}

/// Texts, and settings under which they are read.
pub fn settings() -> impl Strategy<Value = Vec<Batch>> {
    let text = || {
        prop_oneof![
            5 => one_of(&["select 1", "select 2", "select 3"]),
            2 => one_of(&["set x 0", "set x 1", "set x 2"]),
            1 => one_of(&["wrong", "select fail()"]),
        ]
    };
    let whole = (name(), text()).prop_map(|(name, text)| {
        let says = [Say::Parse(name, text), Say::Bind("", name)];
        [&says[..], &[Say::Execute("", 0)]].concat()
    });
    let prepared = name().prop_map(|name| vec![Say::Bind("", name), Say::Execute("", 0)]);
    let again = (name(), text())
        .prop_map(|(name, text)| vec![Say::CloseStatement(name), Say::Parse(name, text)]);
    let described = name().prop_map(|name| vec![Say::DescribeStatement(name)]);
    let part = prop_oneof![2 => whole, 4 => prepared, 3 => again, 1 => described];
    let extended = prop::collection::vec(part, 1..4).prop_map(|parts| {
        let mut says = parts.concat();
        says.push(Say::Sync);
        says
    });
    let both = prop_oneof![
        text(),
        one_of(&[
            "set x 1; select 2",
            "select 1; set x 2",
            "set x 2; select fail()"
        ])
    ];
    let simple = both.prop_map(|text| vec![Say::Query(text)]);
    let batch = (prop_oneof![3 => extended, 1 => simple], any::<bool>());
    let batch = batch.prop_map(|(says, waits)| Batch { says, waits });
    prop::collection::vec(batch, 1..10)
}

/// What may be run again wherever a statement is outdated: batches of one statement, none sent before the answer to the one
/// before.
pub fn unhurried() -> impl Strategy<Value = Vec<Batch>> {
    let selects = || one_of(&["select 1", "select 2", "select 3", "select 5 rows", "wrong"]);
    let named = || one_of(&["a", "b"]);
    let run = |portal, name, describes: bool| {
        let describe = describes.then_some(Say::DescribePortal(portal));
        let says = [Say::Bind(portal, name)].into_iter().chain(describe);
        says.chain([Say::Execute(portal, 0)]).collect::<Vec<_>>()
    };
    let prepare = (named(), selects(), any::<bool>(), any::<bool>()).prop_map(
        move |(name, text, describes, runs)| {
            let describe = describes.then_some(Say::DescribeStatement(name));
            let runs = if runs {
                run("", name, false)
            } else {
                Vec::new()
            };
            let says = [Say::Parse(name, text)].into_iter().chain(describe);
            says.chain(runs).collect()
        },
    );
    // Who does not ask what the columns are has to be told that they are others.
    let execute = (portal(), named()).prop_map(move |(portal, name)| run(portal, name, true));
    let and_close = named().prop_map(move |name| {
        let mut says = run("", name, true);
        says.extend([Say::Flush, Say::CloseStatement(name)]);
        says
    });
    let describe = named().prop_map(|name| vec![Say::DescribeStatement(name)]);
    let close = named().prop_map(|name| vec![Say::CloseStatement(name)]);
    let unnamed = selects().prop_map(move |text| {
        let mut says = vec![Say::Parse("", text)];
        says.extend(run("", "", true));
        says
    });
    let simple = selects().prop_map(|text| vec![Say::Query(text)]);
    let batch = prop_oneof![
        4 => prepare,
        6 => execute,
        1 => and_close,
        1 => describe,
        1 => close,
        4 => unnamed,
        1 => simple,
    ];
    let batch = batch.prop_map(|mut says| {
        if !matches!(says[..], [Say::Query(_)]) {
            says.push(Say::Sync);
        }
        Batch { says, waits: true }
    });
    prop::collection::vec(batch, 1..20)
}
