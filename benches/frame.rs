//! What it costs to cut a stream into messages, which is done once for each message in either direction.
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

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pgferry::net::scratch::READ_SIZE;
use pgferry::protocol::backend::{self, TxStatus};
use pgferry::protocol::frame::cut;

/// The limit that holds for messages of a server.
const MAX: usize = i32::MAX as usize;

/// Walks over a read buffer as the relay does: the messages in it, and what is left to come of the last one.
fn walk(buf: &[u8]) -> (usize, usize) {
    let (mut rest, mut messages, mut missing) = (buf, 0, 0);
    while let Some(frame) = cut(rest, MAX).unwrap() {
        messages += usize::from(black_box(frame.tag) != 0);
        missing = frame.missing();
        rest = &rest[frame.bytes.len()..];
    }
    (messages, missing)
}

/// A reply to Parse, Bind, Execute, Sync for one row.
fn reply() -> Vec<u8> {
    let mut out = Vec::new();
    backend::parse_complete(&mut out);
    backend::bind_complete(&mut out);
    backend::data_row(&mut out, &[Some(b"4711"), Some(b"-1250")]);
    backend::command_complete(&mut out, "SELECT 1");
    backend::ready_for_query(&mut out, TxStatus::Idle);
    out
}

/// As many rows as fit into one read.
fn rows(value: &[u8]) -> Vec<u8> {
    let mut row = Vec::new();
    backend::data_row(&mut row, &[Some(b"4711"), Some(value)]);
    row.repeat(READ_SIZE / row.len())
}

fn small(c: &mut Criterion) {
    let mut group = c.benchmark_group("frame");
    let reply = reply();
    assert_eq!(walk(&reply), (5, 0));
    group.throughput(Throughput::Elements(5));
    group.bench_function("reply of 5 messages", |b| {
        b.iter(|| walk(black_box(&reply)));
    });
    for size in [16, 100, 1000] {
        let stream = rows(&vec![b'x'; size]);
        let (messages, _) = walk(&stream);
        group.throughput(Throughput::Elements(messages as u64));
        let id = BenchmarkId::new("rows that fill a read", format!("{size} B"));
        group.bench_function(id, |b| b.iter(|| walk(black_box(&stream))));
    }
    group.finish();
}

/// One message of a megabyte, read by read: its head is cut and the rest only counted, so this should cost next
/// to nothing, whatever its size.
fn large(c: &mut Criterion) {
    let mut message = Vec::new();
    backend::data_row(&mut message, &[Some(&vec![b'x'; 1 << 20])]);
    c.bench_function("frame/large message", |b| {
        b.iter(|| {
            let mut left = 0_usize;
            for read in black_box(&message).chunks(READ_SIZE) {
                let passed = left.min(read.len());
                left -= passed;
                if left == 0 {
                    left = walk(&read[passed..]).1;
                }
            }
            left
        });
    });
}

criterion_group!(benches, small, large);
criterion_main!(benches);
