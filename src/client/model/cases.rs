//! Random scripts, and random orders in which things happen.

use proptest::prelude::*;

use super::script::{Batch, script, settings, unhurried};
use super::{Case, Event, shapes};

fn event() -> impl Strategy<Value = Event> {
    let size = || prop_oneof![3 => 1usize..12, 2 => 12usize..200, 1 => Just(10_000)];
    prop_oneof![
        40 => size().prop_map(Event::Say),
        40 => size().prop_map(Event::Serve),
        40 => size().prop_map(Event::Answer),
        1 => Just(Event::Leave),
    ]
}

/// These clients, over a few servers of any limits; fewer than `most` of these events happen.
fn cases(
    scripts: impl Strategy<Value = Vec<Vec<Batch>>>,
    adopt_every: impl Strategy<Value = usize>,
    (event, most): (impl Strategy<Value = Event>, usize),
) -> impl Strategy<Value = Case> {
    let case = (
        scripts,
        1usize..4,
        (1usize..4, 0usize..3),
        adopt_every,
        prop::collection::vec((0usize..3, event), 0..most),
    );
    case.prop_map(
        |(scripts, servers, (limit, promotes), adopt_every, events)| Case {
            scripts,
            servers,
            limit,
            promotes,
            adopt_every,
            events,
        },
    )
}

/// At every how many leases the server has to be adopted; mostly at none.
fn adopts() -> impl Strategy<Value = usize> {
    prop_oneof![Just(usize::MAX), 1usize..5]
}

pub fn case(clients: std::ops::Range<usize>) -> impl Strategy<Value = Case> {
    let scripts = prop::collection::vec(script(), clients);
    cases(scripts, adopts(), (event(), 120))
}

/// Clients that change settings, and say more before the answer is in.
pub fn set_cases() -> impl Strategy<Value = Case> {
    let scripts = prop::collection::vec(settings(), 1..4);
    cases(scripts, Just(usize::MAX), (event(), 120))
}

/// Tables change again and again. A client's batch is there at once, for that is what it takes.
pub fn migrations() -> impl Strategy<Value = Case> {
    let size = || prop_oneof![1usize..12, 12usize..200, Just(10_000)];
    let event = prop_oneof![
        4 => Just(Event::Say(10_000)),
        6 => size().prop_map(Event::Serve),
        6 => size().prop_map(Event::Answer),
        1 => Just(Event::Migrate),
    ];
    // A few of the clients vanish.
    let event = prop_oneof![100 => event, 1 => Just(Event::Leave)];
    let scripts = prop::collection::vec(unhurried(), 1..4);
    cases(scripts, adopts(), (event, 300))
}

/// Tables change, and clients go by what they know.
pub fn changes() -> impl Strategy<Value = Case> {
    let size = || prop_oneof![1usize..12, 12usize..200, Just(10_000)];
    let event = prop_oneof![
        2 => Just(Event::Say(10_000)),
        2 => size().prop_map(Event::Say),
        6 => size().prop_map(Event::Serve),
        6 => size().prop_map(Event::Answer),
        1 => Just(Event::Change),
    ];
    let event = prop_oneof![200 => event, 1 => Just(Event::Leave)];
    let scripts = prop::collection::vec(shapes::script(), 1..4);
    cases(scripts, adopts(), (event, 300))
}
