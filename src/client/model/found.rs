//! Scripts that once went wrong, as small as they get.

use super::script::{Batch, Say};
use super::{Case, Event};

/// Everything a client says is on its way before the first answer.
fn pipelined(batches: &[&[Say]]) -> Case {
    let batch = |says: &&[Say]| Batch {
        says: says.to_vec(),
        waits: false,
    };
    let last = Batch {
        says: vec![Say::Sync],
        waits: true,
    };
    Case {
        scripts: vec![batches.iter().map(batch).chain([last]).collect()],
        servers: 1,
        limit: 1,
        promotes: 0,
        adopt_every: usize::MAX,
        events: batches.iter().map(|_| (0, Event::Say(10_000))).collect(),
    }
}

const COPY: [Say; 4] = [
    Say::CloseStatement("c"),
    Say::Parse("c", "copy t from stdin"),
    Say::Bind("", "c"),
    Say::Execute("", 0),
];

#[test]
fn no_statement_is_closed_in_the_middle_of_copy_data() {
    let copy = [&COPY[..], &[Say::Sync, Say::CopyDone, Say::Sync]].concat();
    pipelined(&[&[Say::Parse("a", "select 1"), Say::Sync], &copy]).run();
}

#[test]
fn a_message_that_waits_for_an_earlier_batch_does_not_wait_for_its_own_sync() {
    pipelined(&[
        &[Say::Parse("b", "select 1"), Say::Sync],
        &[
            Say::Parse("a", "select 2"),
            Say::DescribeStatement("b"),
            Say::Sync,
        ],
    ])
    .run();
}

#[test]
fn a_failed_batch_does_not_let_the_next_one_run_another_clients_unnamed_statement() {
    let mut case = pipelined(&[
        &[Say::Bind("", "a"), Say::Bind("", ""), Say::Sync],
        &[Say::Bind("", ""), Say::Execute("", 0), Say::Sync],
    ]);
    let other = pipelined(&[&[Say::Parse("", "select 1"), Say::Sync]]);
    case.scripts.extend(other.scripts);
    let first = [Event::Say(100), Event::Serve(100), Event::Answer(100)].map(|event| (1, event));
    case.events.splice(0..0, first);
    case.run();
}

#[test]
fn an_answer_of_the_poolers_own_is_not_put_into_the_middle_of_a_message() {
    let mut case = pipelined(&[
        &[Say::Parse("a", "select 1"), Say::Sync],
        &[
            Say::DescribeStatement("a"),
            Say::CloseStatement("a"),
            Say::Sync,
        ],
    ]);
    for most in [10_000, 22, 10_000] {
        let around = [Event::Say(100), Event::Serve(10_000), Event::Answer(most)];
        case.events.extend(around.map(|event| (0, event)));
    }
    case.run();
}

#[test]
fn a_statement_whose_close_is_skipped_can_be_prepared_again() {
    pipelined(&[
        &[
            Say::Parse("a", "select 1"),
            Say::Parse("b", "select 2"),
            Say::Sync,
        ],
        &[
            Say::Parse("a", "select 1"),
            Say::DescribeStatement("a"),
            Say::Sync,
        ],
        &[Say::Bind("", "b"), Say::Sync],
    ])
    .run();
}

#[test]
fn a_deallocate_behind_a_batch_that_fails_finds_what_that_has_left() {
    pipelined(&[
        &[
            Say::Bind("", "a"),
            Say::CloseStatement("b"),
            Say::Parse("b", "select 1"),
            Say::Sync,
        ],
        &[Say::Query("commit; deallocate b; select 2")],
    ])
    .run();
}

#[test]
fn a_deallocate_that_is_bound_drops_what_there_is_when_it_is_run() {
    pipelined(&[
        &[
            Say::Parse("a", "select 1"),
            Say::Parse("", "deallocate a"),
            Say::Bind("", ""),
            Say::CloseStatement("a"),
            Say::Execute("", 0),
            Say::Sync,
        ],
        &[
            Say::Bind("", ""),
            Say::Parse("a", "select 2"),
            Say::Execute("", 0),
            Say::Sync,
        ],
    ])
    .run();
}

#[test]
fn a_rollback_with_a_deallocate_behind_it_works_in_a_failed_transaction() {
    pipelined(&[
        &[Say::Parse("b", "select 1"), Say::Sync],
        &[Say::Query("begin")],
        &[Say::Query("wrong")],
        &[Say::Query("rollback; deallocate b")],
    ])
    .run();
}

#[test]
fn a_server_is_brought_back_from_a_copy_that_its_client_leaves() {
    let copies = [&[][..], &[Say::Sync], &[Say::Sync, Say::CopyDone]];
    for rest in copies {
        let copy = [&COPY[..], rest].concat();
        let mut case = pipelined(&[&copy]);
        case.events.push((0, Event::Leave));
        case.run();
    }
}

#[test]
fn a_server_is_brought_back_from_a_transaction_begun_in_a_batch_that_fails() {
    let mut case = pipelined(&[&[
        Say::Parse("", "begin"),
        Say::Bind("", ""),
        Say::Execute("", 0),
        Say::Bind("", "a"),
    ]]);
    case.events.push((0, Event::Leave));
    case.run();
}

#[test]
fn a_deallocate_does_not_wait_for_what_only_the_pooler_has_to_say() {
    let mut case = pipelined(&[
        &[Say::Parse("a", "select 1"), Say::Sync],
        &[Say::CloseStatement("a"), Say::Query("deallocate b")],
    ]);
    case.scripts[0][0].waits = true;
    case.run();
}

#[test]
fn a_bind_that_can_only_fail_is_answered_without_a_sync() {
    let mut case = pipelined(&[
        &[Say::Parse("a", "select 3"), Say::Sync],
        &[Say::Query("begin")],
        &[Say::Bind("", "b"), Say::Sync],
        &[
            Say::Parse("b", "select 3"),
            Say::DescribeStatement("b"),
            Say::Bind("", "b"),
            Say::Execute("", 0),
            Say::Sync,
        ],
        &[Say::Bind("", "a")],
    ]);
    case.scripts[0][4].waits = true;
    case.run();
}

#[test]
fn what_is_read_behind_a_set_that_is_taken_back_is_read_again() {
    pipelined(&[
        &[
            Say::Parse("b", "select 1"),
            Say::CloseStatement(""),
            Say::Parse("", "set x 1"),
            Say::Sync,
        ],
        &[
            Say::Bind("", ""),
            Say::Execute("", 0),
            Say::Bind("", "b"),
            Say::Execute("", 0),
            Say::DescribeStatement("a"),
            Say::Sync,
        ],
        &[Say::Bind("", "b"), Say::Execute("", 0), Say::Sync],
    ])
    .run();
}

#[test]
fn a_copy_that_nobody_has_described_is_read_anew_before_its_columns_are_asked_for() {
    let waits = |batches: &[&[Say]]| {
        let batch = |says: &&[Say]| Batch {
            says: says.to_vec(),
            waits: true,
        };
        batches.iter().map(batch).collect::<Vec<_>>()
    };
    let first = waits(&[
        &[
            Say::Parse("b", "select 1"),
            Say::Parse("a", "select 1"),
            Say::Sync,
        ],
        // The Describe is refused, and so is the Bind when the batch is run again.
        &[
            Say::DescribeStatement("b"),
            Say::Bind("", "a"),
            Say::Execute("", 0),
            Say::Sync,
        ],
    ]);
    let second = waits(&[
        &[Say::Query("begin")],
        &[Say::Query("commit")],
        &[
            Say::Parse("b", "select 1"),
            Say::DescribeStatement("b"),
            Say::Sync,
        ],
        // On the server of the first.
        &[Say::Bind("", "b"), Say::Execute("", 0), Say::Sync],
    ]);
    let all = [
        Event::Say(10_000),
        Event::Serve(10_000),
        Event::Answer(10_000),
    ];
    let both = [(0, all), (1, all)].map(|(at, events)| events.map(|event| (at, event)));
    let refused = [all[0], Event::Change]
        .into_iter()
        .chain([all[1], all[2]].repeat(3));
    let mut events = both.concat();
    events.extend(refused.map(|event| (0, event)));
    events.push((0, Event::Change));
    Case {
        scripts: vec![first, second],
        servers: 2,
        limit: 1,
        promotes: 0,
        adopt_every: usize::MAX,
        events,
    }
    .run_with_changes();
}
