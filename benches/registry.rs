//! What a Parse costs in the map that all workers share: to find a statement, to make one and to let it go.
#![allow(
    missing_docs,
    reason = "criterion's macro makes undocumented functions"
)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a bench may fail so"
)]

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use pgferry::prepared::{Registry, Statement};
use tokio::time::Instant;

// Both make and free memory, so the allocator is the one of the command.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Bytes of SQL text.
const SIZES: [usize; 3] = [60, 500, 4 * 1024];

/// Never reached.
const LIMIT: usize = 1 << 30;

/// Statements that are held besides those that are looked for.
const OTHERS: usize = 1000;

/// What follows the name in a Parse: a text of `size` bytes that differs by `number` at its end, as texts of one
/// application often do, and one parameter type.
fn definition(size: usize, number: usize) -> Vec<u8> {
    let mut definition = format!("select {number:>width$}", width = size - 7).into_bytes();
    definition.extend_from_slice(b"\0\0\x01\0\0\0\x17");
    definition
}

/// As a client does whose settings are those of all others.
fn intern(registry: &Registry, definition: &[u8]) -> Arc<Statement> {
    registry
        .intern(definition, &registry.context(b"ISO"), LIMIT)
        .unwrap()
}

/// A registry in use, and what keeps its statements.
fn filled(size: usize) -> (Registry, Vec<Arc<Statement>>) {
    let registry = Registry::new();
    let held = (0..OTHERS)
        .map(|number| intern(&registry, &definition(size, number)))
        .collect();
    (registry, held)
}

/// `iters` times on each of as many threads as there are definitions; the time of the slowest thread.
fn on_threads(registry: &Registry, definitions: &[Vec<u8>], iters: u64) -> Duration {
    let together = Barrier::new(definitions.len());
    let context = registry.context(b"ISO");
    let run = |definition: &[u8]| {
        together.wait();
        let begin = Instant::now();
        for _ in 0..iters {
            drop(black_box(
                registry
                    .intern(black_box(definition), &context, LIMIT)
                    .unwrap(),
            ));
        }
        begin.elapsed()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = definitions
            .iter()
            .map(|definition| scope.spawn(|| run(definition)))
            .collect();
        let times = threads.into_iter().map(|thread| thread.join().unwrap());
        times.max().unwrap_or_default()
    })
}

fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    registry: &Registry,
    definitions: &[Vec<u8>],
) {
    group.bench_function(id, |b| {
        b.iter_custom(|iters| on_threads(registry, definitions, iters));
    });
}

/// Somebody has the statement already: the usual Parse of an application's second connection and later.
fn lookup(c: &mut Criterion) {
    let mut group = c.benchmark_group("registry/lookup");
    for size in SIZES {
        let (registry, held) = filled(size);
        let (one, other) = (definition(size, 0), definition(size, 1));
        for (who, definitions) in [
            ("1 thread", &[one.clone()][..]),
            ("2 threads, a statement each", &[one.clone(), other]),
            ("2 threads, one statement", &[one.clone(), one]),
        ] {
            measure(
                &mut group,
                BenchmarkId::new(who, size),
                &registry,
                definitions,
            );
        }
        assert_eq!(registry.len(), held.len());
    }
    group.finish();
}

/// Nobody has it, and the one who asked lets go at once.
fn insert_and_free(c: &mut Criterion) {
    let mut group = c.benchmark_group("registry/insert and free");
    for size in SIZES {
        let (registry, held) = filled(size);
        let (one, other) = (definition(size, OTHERS), definition(size, OTHERS + 1));
        for (who, definitions) in [
            ("1 thread", &[one.clone()][..]),
            ("2 threads", &[one.clone(), other]),
        ] {
            measure(
                &mut group,
                BenchmarkId::new(who, size),
                &registry,
                definitions,
            );
        }
        assert_eq!(registry.len(), held.len());
    }
    group.finish();
}

criterion_group!(benches, lookup, insert_and_free);
criterion_main!(benches);
