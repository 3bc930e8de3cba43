//! PostgreSQL is the oracle: each transcript of `tests/transcripts` is played directly and through the
//! pooler, and the replies must be equal, types and bytes and order. Through the pooler three times: with one
//! server, with three that take turns, and with unnamed statements prepared (twice then, one client after the other).

use std::path::PathBuf;

use crate::support::transcript::Transcript;
use crate::support::{Message, Pooler, Wire, postgres, wait_until};

macro_rules! transcripts {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                equals_the_oracle(stringify!($name));
            }
        )*
    };
}

transcripts! {
    a_batch_that_rests_on_one_not_answered
    binary_formats
    close_of_known_and_unknown_statements
    close_then_parse_the_name_again
    copy_both_ways_by_extended_protocol
    copy_both_ways_by_simple_protocol
    copy_from_then_sync_right_after_execute
    copy_that_fails_early_gets_late_data
    copy_that_fails_inside_a_transaction
    copy_that_the_client_gives_up
    deallocate_all
    deallocate_by_extended_protocol
    deallocate_by_simple_protocol
    describe_in_one_sync_bind_in_the_next
    describe_portal_between_execute_and_sync
    discard_all_and_parse_in_one_pipeline
    empty_query
    error_at_commit
    error_at_sync
    error_in_the_middle_of_a_pipeline
    explicit_transactions_with_errors
    extended_named
    extended_unnamed
    failed_parse_leaves_the_name_free
    flush_without_sync
    function_call
    large_parameter
    large_rows
    many_syncs_in_flight
    multi_statement_simple_query
    name_already_in_use
    named_portals_in_a_transaction
    notices
    parse_again_in_a_failed_transaction
    portal_suspended
    query_and_extended_in_one_write
    query_instead_of_copy_data
    same_text_under_two_names
    same_text_with_other_types
    set_and_show
    simple_query
    two_unnamed_statements_in_one_sync
    unknown_name
    unnamed_statement_outlives_a_query_of_another_name
}

#[test]
fn every_transcript_is_played() {
    let mut files: Vec<String> = std::fs::read_dir(directory())
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    files.sort();
    assert_eq!(files, NAMES);
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts")
}

fn equals_the_oracle(name: &str) {
    let text = std::fs::read_to_string(directory().join(name).with_extension("txt")).unwrap();
    let transcript = Transcript::parse(&text);
    let oracle = play_directly(&transcript);
    assert!(!oracle.is_empty(), "the transcript asks for no reply");
    compare("one server", &oracle, &play_pooled(&transcript, 1));
    compare(
        "three servers in turn",
        &oracle,
        &play_pooled(&transcript, 3),
    );
    compare(
        "unnamed statements prepared",
        &play_directly_twice(&transcript),
        &play_promoted_twice(&transcript),
    );
}

fn play_directly_twice(transcript: &Transcript) -> Vec<Message> {
    let database = fresh_database(transcript);
    let play = |_| {
        let mut wire = Wire::login(postgres().address(), "app", &database, None).unwrap();
        transcript.play(&mut wire, || {})
    };
    (0..2).flat_map(play).collect()
}

fn play_promoted_twice(transcript: &Transcript) -> Vec<Message> {
    let database = fresh_database(transcript);
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1)
            .set("prepare_unnamed_after", 1)
            .set("prepare_unnamed_texts", "all");
    });
    let play = |_| transcript.play(&mut pooler.connect(&database), || {});
    let replies = (0..2).flat_map(play).collect();
    leaves_usable_servers(&pooler, &database);
    replies
}

fn compare(setting: &str, oracle: &[Message], pooled: &[Message]) {
    let lines = |messages: &[Message]| -> Vec<String> {
        messages
            .iter()
            .map(|message| format!("{message:?}"))
            .collect()
    };
    if oracle == pooled {
        return;
    }
    let at = oracle
        .iter()
        .zip(pooled)
        .take_while(|(one, other)| one == other)
        .count();
    panic!(
        "{setting}: reply {} differs\n-- PostgreSQL --\n{}\n-- through the pooler --\n{}\n",
        at + 1,
        lines(oracle).join("\n"),
        lines(pooled).join("\n"),
    );
}

fn fresh_database(transcript: &Transcript) -> String {
    let database = postgres().database("oracle");
    let mut direct = Wire::login(postgres().address(), "app", &database, None).unwrap();
    for sql in transcript.setup() {
        direct.rows(sql);
    }
    database
}

fn play_directly(transcript: &Transcript) -> Vec<Message> {
    let database = fresh_database(transcript);
    let mut wire = Wire::login(postgres().address(), "app", &database, None).unwrap();
    transcript.play(&mut wire, || {})
}

fn play_pooled(transcript: &Transcript, servers: usize) -> Vec<Message> {
    let database = fresh_database(transcript);
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", servers);
        // Both ways to send.
        ini.set("io_uring", u8::from(servers > 1));
    });
    let mut rotation = Rotation::new(&pooler, &database, servers - 1);
    let mut wire = pooler.connect(&database);
    let replies = transcript.play(&mut wire, || rotation.turn());
    drop(wire);
    drop(rotation);
    leaves_usable_servers(&pooler, &database);
    replies
}

fn leaves_usable_servers(pooler: &Pooler, database: &str) {
    assert_eq!(pooler.connect(database).value("SELECT 'usable'"), "usable");
    wait_until("no server is inside a transaction", || {
        postgres().sessions(database, "idle in transaction%") == 0
    });
}

/// Other clients that hold a changing number of servers, so that the one under test meets them all.
struct Rotation {
    others: Vec<Wire>,
    turn: usize,
}

impl Rotation {
    fn new(pooler: &Pooler, database: &str, others: usize) -> Self {
        let others = (0..others).map(|_| pooler.connect(database)).collect();
        Self { others, turn: 0 }
    }

    fn turn(&mut self) {
        let holding = self.turn % (self.others.len() + 1);
        for (number, other) in self.others.iter_mut().enumerate() {
            let inside = other.status == b'T';
            if inside != (number < holding) {
                other.rows(if inside { "COMMIT" } else { "BEGIN" });
            }
        }
        self.turn += 1;
    }
}
