//! The fuzz targets under `cargo test`: each on its corpus in `fuzz/corpus`, and on mutations of it that are the
//! same in every run. `scripts/fuzz` looks for new inputs with libFuzzer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets what it did not expect has failed"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

#[path = "../fuzz/bodies/mod.rs"]
mod bodies;

/// Mutations of each target's corpus.
const MUTATIONS: u64 = 5_000;

/// Most CPU time of one input; a hundred times what any takes.
const SLOW: Duration = Duration::from_secs(2);

/// Longest input that is made.
const LONGEST: usize = 4096;

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let mut folders: Vec<String> = std::fs::read_dir(corpus())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    folders.sort();
    let mut targets: Vec<&str> = bodies::TARGETS.iter().map(|(name, _)| *name).collect();
    targets.sort_unstable();
    assert_eq!(folders, targets);
    for target in targets {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/fuzz_targets")
            .join(target);
        assert!(source.with_extension("rs").exists(), "{target}");
    }
}

macro_rules! targets {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            keeps_its_promises(stringify!($name));
        }
    )* };
}

targets! {
    startup frontend backend client_login server_login pipeline parameters
    ldap_reply ldap_filter ldap_options
    ini toml hba userlist connection_string url console sql touches normalized traceparent
}

fn corpus() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

fn keeps_its_promises(target: &str) {
    let mut inputs: Vec<(String, Vec<u8>)> = std::fs::read_dir(corpus().join(target))
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.display().to_string(), std::fs::read(path).unwrap())
        })
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty());
    for (name, input) in &inputs {
        check(target, name, input);
    }
    let inputs: Vec<&[u8]> = inputs.iter().map(|(_, input)| input.as_slice()).collect();
    for seed in 1..=MUTATIONS {
        let mut random = Random(seed);
        let input = mutated(&inputs, &mut random);
        check(target, &format!("mutation {seed}"), &input);
    }
}

fn check(target: &str, name: &str, input: &[u8]) {
    let before = cpu_time();
    let result = catch_unwind(AssertUnwindSafe(|| bodies::run(target, input)));
    if result.is_err() {
        let path =
            std::env::temp_dir().join(format!("pgferry-fuzz-{target}-{}", std::process::id()));
        let _ = std::fs::write(&path, input);
        panic!(
            "{name}: {:?}, written to {}",
            String::from_utf8_lossy(input),
            path.display()
        );
    }
    let taken = cpu_time().saturating_sub(before);
    assert!(
        taken < SLOW,
        "{name} took {taken:?}: {:?}",
        String::from_utf8_lossy(input)
    );
}

/// Of this thread: how long others held it up does not count.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let time = usage.user_time();
    Duration::from_secs(time.tv_sec().try_into().unwrap())
        + Duration::from_micros(time.tv_usec().try_into().unwrap())
}

/// One to four changes of the kinds that libFuzzer makes.
fn mutated(inputs: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut input = inputs[random.below(inputs.len())].to_vec();
    for _ in 0..=random.below(4) {
        let other = inputs[random.below(inputs.len())];
        let at = random.below(input.len() + 1);
        let end = (at + random.below(32)).min(input.len());
        match random.below(9) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.byte(),
            2 => input.truncate(at),
            3 => drop(input.drain(at..end)),
            4 => input.insert(at, random.byte()),
            // Something twice.
            5 => {
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            // The beginning of one with the end of another.
            6 => {
                let from = random.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            // A piece of another in the middle.
            7 => {
                let from = random.below(other.len() + 1);
                let to = (from + random.below(32)).min(other.len());
                input.splice(at..at, other[from..to].iter().copied());
            }
            _ => {
                let interesting: [&[u8]; 8] = [
                    b"\0",
                    b"\xff\xff\xff\xff",
                    b"\x7f\xff\xff\xff",
                    b"\0\0\0\x04",
                    b"\n",
                    b"'",
                    b"\"",
                    b"\\",
                ];
                let piece = interesting[random.below(interesting.len())];
                input.splice(at..end.min(at + piece.len()), piece.iter().copied());
            }
        }
    }
    input.truncate(LONGEST);
    input
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).unwrap();
        usize::try_from(self.next() % limit).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}
