use super::model::REQUESTS;
use super::*;

type Plain = Pipeline<&'static str>;

fn sent(requests: &[Request]) -> Plain {
    let mut pipeline = Plain::default();
    for &request in requests {
        match request {
            Request::Sync => pipeline.push_sync(Expect::Forward(request)),
            _ => pipeline.push(Expect::Forward(request), None),
        }
    }
    pipeline
}

#[test]
fn what_passes_is_what_a_reply_would_have_been() {
    for request in REQUESTS
        .into_iter()
        .chain([Request::Sync, Request::CopyEnd])
    {
        for (expect, effect) in [
            (Expect::Forward(request), None),
            (Expect::Forward(request), Some("noted")),
            (Expect::Swallow(request), None),
        ] {
            let next = || {
                let mut pipeline = Plain::default();
                pipeline.push(expect, effect);
                pipeline.push_sync(Expect::Forward(Request::Sync));
                pipeline
            };
            for tag in 0..=u8::MAX {
                let (mut quick, mut asked) = (next(), next());
                if quick.passes(tag) {
                    let reply = asked.reply(tag).unwrap();
                    assert!(reply.forward && !reply.has_effect, "{expect:?} {tag}");
                    assert!(quick.is_usual() && asked.is_usual());
                }
                assert_eq!(format!("{quick:?}"), format!("{asked:?}"));
            }
        }
    }
}

#[test]
fn only_the_last_sync_frees_the_server() {
    let mut pipeline = sent(&[Request::Sync, Request::Sync]);
    pipeline.reply(tag::READY_FOR_QUERY).unwrap();
    assert!(!pipeline.is_idle());
    pipeline.reply(tag::READY_FOR_QUERY).unwrap();
    assert!(pipeline.is_idle());
}

#[test]
fn an_error_gives_back_what_was_noted_newest_first() {
    let mut pipeline = Plain::default();
    pipeline.push(Expect::Forward(Request::Parse), Some("a"));
    pipeline.push(Expect::Synthesize(Request::Parse), Some("b"));
    pipeline.push(Expect::Forward(Request::Close), Some("c"));
    pipeline.push_sync(Expect::Forward(Request::Sync));
    pipeline.push(Expect::Forward(Request::Parse), Some("after"));
    let expected = Failure::Failed {
        skipped: vec!["c", "b"],
        failed: Some("a"),
        in_copy: false,
    };
    assert_eq!(pipeline.error(false), expected);
    assert_eq!(pipeline.current(), Some(Request::Sync));
}

#[test]
fn an_error_before_its_sync_was_sent_skips_until_it_is() {
    let mut pipeline = sent(&[Request::Bind]);
    pipeline.error(false);
    assert!(pipeline.is_skipping() && !pipeline.is_idle());
    pipeline.push_sync(Expect::Forward(Request::Sync));
    pipeline.reply(tag::READY_FOR_QUERY).unwrap();
    assert!(pipeline.is_idle());
}

#[test]
fn an_error_in_a_simple_query_is_ended_by_ready_for_query() {
    let mut pipeline = sent(&[Request::Query]);
    assert_eq!(pipeline.error(false), Failure::Aside);
    assert!(!pipeline.is_idle());
    pipeline.reply(tag::READY_FOR_QUERY).unwrap();
    assert!(pipeline.is_idle());
}

#[test]
fn a_sync_sent_with_the_execute_of_a_copy_is_ignored_by_the_server() {
    let mut pipeline = sent(&[Request::Execute, Request::Sync]);
    pipeline.reply(tag::COPY_IN_RESPONSE).unwrap();
    assert!(pipeline.end_copy());
    pipeline.push_sync(Expect::Forward(Request::Sync));
    pipeline.reply(tag::COMMAND_COMPLETE).unwrap();
    pipeline.reply(tag::READY_FOR_QUERY).unwrap();
    assert!(pipeline.is_idle());
}

#[test]
fn the_end_of_copy_data_sent_ahead_saves_the_sync_behind_it() {
    let mut pipeline = sent(&[Request::Execute, Request::Sync]);
    assert!(pipeline.wants_copy_data() && pipeline.end_copy());
    pipeline.push_sync(Expect::Forward(Request::Sync));
    pipeline.reply(tag::COPY_IN_RESPONSE).unwrap();
    pipeline.reply(tag::COMMAND_COMPLETE).unwrap();
    pipeline.reply(tag::READY_FOR_QUERY).unwrap();
    assert!(pipeline.is_idle());
}

#[test]
fn copy_data_after_the_copy_failed_is_not_wanted() {
    let mut pipeline = sent(&[Request::Query]);
    pipeline.reply(tag::COPY_IN_RESPONSE).unwrap();
    assert!(pipeline.wants_copy_data());
    pipeline.error(false);
    pipeline.reply(tag::READY_FOR_QUERY).unwrap();
    assert!(!pipeline.wants_copy_data() && !pipeline.end_copy());
}

#[test]
fn a_sync_in_the_middle_of_failing_copy_data_makes_the_stream_unsure() {
    let mut pipeline = sent(&[Request::Execute]);
    pipeline.reply(tag::COPY_IN_RESPONSE).unwrap();
    pipeline.push_sync(Expect::Forward(Request::Sync));
    pipeline.error(false);
    assert!(pipeline.is_unsure());
    assert!(pipeline.reply(tag::READY_FOR_QUERY).is_ok());
}

#[test]
fn a_reply_nobody_asked_for_is_a_desync() {
    assert!(Plain::default().reply(tag::READY_FOR_QUERY).is_err());
    assert!(sent(&[Request::Bind]).reply(tag::PARSE_COMPLETE).is_err());
}

#[test]
fn a_batch_without_its_sync_keeps_the_server_though_it_owes_nothing() {
    let mut pipeline = sent(&[Request::Parse, Request::Execute]);
    pipeline.reply(tag::PARSE_COMPLETE).unwrap();
    pipeline.reply(tag::COMMAND_COMPLETE).unwrap();
    assert!(pipeline.owes_nothing() && pipeline.needs_sync() && !pipeline.is_idle());
    pipeline.push_sync(Expect::Forward(Request::Sync));
    pipeline.reply(tag::READY_FOR_QUERY).unwrap();
    assert!(pipeline.is_idle());
}

#[test]
fn a_sync_that_was_ignored_leaves_the_batch_open() {
    let mut pipeline = sent(&[Request::Execute, Request::Sync]);
    pipeline.reply(tag::COPY_IN_RESPONSE).unwrap();
    pipeline.end_copy();
    pipeline.reply(tag::COMMAND_COMPLETE).unwrap();
    assert!(!pipeline.is_idle());
}

#[test]
fn what_stands_behind_a_copy_sent_ahead_keeps_its_batch_open() {
    let mut pipeline = sent(&[Request::Execute]);
    assert!(pipeline.end_copy());
    pipeline.push_sync(Expect::Forward(Request::Sync));
    pipeline.push(Expect::Forward(Request::Parse), None);
    for tag in [
        tag::COPY_IN_RESPONSE,
        tag::COMMAND_COMPLETE,
        tag::READY_FOR_QUERY,
        tag::PARSE_COMPLETE,
    ] {
        pipeline.reply(tag).unwrap();
    }
    assert!(pipeline.owes_nothing() && !pipeline.is_idle());
}

#[test]
fn an_end_of_copy_data_behind_a_query_that_is_no_copy_opens_no_batch() {
    let mut pipeline = sent(&[Request::Query]);
    assert!(pipeline.end_copy());
    pipeline.reply(tag::COMMAND_COMPLETE).unwrap();
    pipeline.reply(tag::READY_FOR_QUERY).unwrap();
    assert!(pipeline.is_idle());
}

#[test]
fn a_second_copy_sent_ahead_gets_its_data_while_the_first_one_ends() {
    let mut pipeline = sent(&[Request::Query]);
    assert!(pipeline.end_copy());
    pipeline.push(Expect::Forward(Request::Query), None);
    pipeline.reply(tag::COPY_IN_RESPONSE).unwrap();
    assert!(pipeline.wants_copy_data() && pipeline.end_copy());
    for _ in 0..2 {
        pipeline.reply(tag::COMMAND_COMPLETE).unwrap();
        pipeline.reply(tag::READY_FOR_QUERY).unwrap();
        let _ = pipeline.reply(tag::COPY_IN_RESPONSE);
    }
    assert!(pipeline.is_idle());
}

#[test]
fn a_copy_that_is_cancelled_may_have_left_an_early_sync_unread() {
    for (interrupted, unsure) in [(false, false), (true, true)] {
        let mut pipeline = sent(&[Request::Execute, Request::Sync]);
        pipeline.reply(tag::COPY_IN_RESPONSE).unwrap();
        pipeline.error(interrupted);
        assert_eq!(pipeline.is_unsure(), unsure);
    }
}
