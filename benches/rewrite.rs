//! What it costs to rename the statement in a client's message: to find the name and write the message anew.
#![allow(
    missing_docs,
    reason = "criterion's macro makes undocumented functions"
)]
#![allow(clippy::unwrap_used, reason = "a bench may fail so")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pgferry::protocol::frame::{HEADER_LEN, cut};
use pgferry::protocol::frontend::{self, BindHead, Named, Parse, Target, tag};
use pgferry::protocol::rewrite;

/// A name as drivers give it, and one as the pooler does.
const LOCAL: &[u8] = b"__asyncpg_stmt_17__";
const GLOBAL: &[u8] = b"pgferry_0123456789abcdef_1234";

/// Bytes of SQL text in a Parse, of the value in a Bind.
const SIZES: [usize; 3] = [100, 8 * 1024, 64 * 1024];

/// Longer than any message here.
const MAX: usize = 1 << 20;

/// The whole Parse is copied: its cost grows with the text.
fn parse(c: &mut Criterion) {
    let mut group = c.benchmark_group("rewrite/parse");
    for size in SIZES {
        let mut rest = vec![b'x'; size];
        rest.extend_from_slice(b"\0\0\x01\0\0\0\x17");
        let mut message = Vec::new();
        frontend::parse(&mut message, LOCAL, &rest);
        let mut out = Vec::new();
        group.throughput(Throughput::Bytes(message.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                out.clear();
                let frame = cut(black_box(&message), MAX).unwrap().unwrap();
                let parse = Parse::read(frame.body()).unwrap();
                rewrite::parse(&mut out, GLOBAL, parse.rest).unwrap();
                out.len()
            });
        });
    }
    group.finish();
}

/// Only the beginning of a Bind is written: its cost must not grow with the values.
fn bind(c: &mut Criterion) {
    let mut group = c.benchmark_group("rewrite/bind");
    for size in SIZES {
        let mut rest = b"\0\0\0\x01".to_vec();
        rest.extend_from_slice(&u32::try_from(size).unwrap().to_be_bytes());
        rest.resize(rest.len() + size, b'x');
        rest.extend_from_slice(b"\0\0");
        let mut message = Vec::new();
        frontend::bind(&mut message, b"", LOCAL, &rest);
        let mut out = Vec::new();
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                out.clear();
                let frame = cut(black_box(&message), MAX).unwrap().unwrap();
                let head = BindHead::read(frame.body()).unwrap().unwrap();
                let length = u32::try_from(frame.len - 1).unwrap();
                rewrite::bind_head(&mut out, &head, GLOBAL, length).unwrap();
                // From here on the client's own bytes go out as they are.
                HEADER_LEN + head.len + out.len()
            });
        });
    }
    group.finish();
}

/// A Describe or Close is nothing but the name, so there is one size of it.
fn named(c: &mut Criterion) {
    let mut group = c.benchmark_group("rewrite");
    for (id, tag) in [("describe", tag::DESCRIBE), ("close", tag::CLOSE)] {
        let mut message = Vec::new();
        rewrite::named(&mut message, tag, Target::Statement, LOCAL);
        let mut out = Vec::new();
        group.bench_function(id, |b| {
            b.iter(|| {
                out.clear();
                let frame = cut(black_box(&message), MAX).unwrap().unwrap();
                let named = Named::read(frame.body()).unwrap();
                black_box(named.name);
                rewrite::named(&mut out, frame.tag, named.target, GLOBAL);
                out.len()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, parse, bind, named);
criterion_main!(benches);
