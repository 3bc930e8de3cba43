//! Sends in batches, through sockets as their tasks see them, on a runtime like a worker's. Where the kernel has no
//! io_uring they check the same of single sends.

use std::future::poll_fn;
use std::io::Read;
use std::os::unix::net::UnixStream;

use std::task::Poll;

use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::net::socket::{Raw, Socket};

fn worker() -> Runtime {
    if let Err(error) = start() {
        eprintln!("BATCHES NOT TESTED, no io_uring here: {error}");
    }
    Builder::new_current_thread()
        .enable_all()
        .on_thread_park(flush)
        .build()
        .unwrap()
}

fn pair() -> (Socket, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Socket::new(Raw::Unix(ours).into()).unwrap(), theirs)
}

async fn write(socket: &Socket, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = poll_fn(|cx| socket.poll_write(cx, bytes)).await?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Bytes that show where they belong.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect()
}

fn read(theirs: &mut UnixStream, len: usize) -> Vec<u8> {
    let mut got = vec![0; len];
    theirs.read_exact(&mut got).unwrap();
    got
}

#[test]
fn what_is_sent_in_one_turn_has_arrived_when_the_thread_sleeps() {
    worker().block_on(async {
        let mut pairs: Vec<_> = (0..SOCKETS + 7).map(|_| pair()).collect();
        for (number, (ours, _)) in pairs.iter().enumerate() {
            write(ours, format!("to {number:3}").as_bytes())
                .await
                .unwrap();
        }
        for (ours, _) in &pairs {
            write(ours, b", more").await.unwrap();
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        for (number, (ours, theirs)) in pairs.iter_mut().enumerate() {
            theirs.set_nonblocking(true).unwrap();
            let got = read(theirs, 12);
            assert_eq!(got, format!("to {number:3}, more").as_bytes());
            assert!(!ours.is_staged());
        }
    });
}

#[test]
fn small_and_large_sends_to_one_socket_keep_their_order() {
    worker().block_on(async {
        let (ours, mut theirs) = pair();
        let (other, _theirs) = pair();
        let bytes = pattern(1 << 20);
        let expected = bytes.clone();
        let reader = std::thread::spawn(move || assert!(read(&mut theirs, 1 << 20) == expected));
        let mut rest = bytes.as_slice();
        for size in [1, 100, LIMIT, LIMIT + 1, 10, 70_000, 3].iter().cycle() {
            let (now, later) = rest.split_at((*size).min(rest.len()));
            write(&ours, now).await.unwrap();
            write(&other, b"x").await.unwrap();
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        poll_fn(|cx| ours.poll_flush(cx)).await.unwrap();
        ours.settle();
        tokio::task::spawn_blocking(|| reader.join().unwrap())
            .await
            .unwrap();
    });
}

#[test]
fn what_finds_no_room_is_sent_before_what_comes_later() {
    worker().block_on(async {
        let (ours, mut theirs) = pair();
        let (other, mut others) = pair();
        let bytes = pattern(4 << 20);
        // Small pieces, so that each is staged and taken, until the socket is full and says so.
        let mut sent = 0;
        while !ours.wants_write() {
            let piece = &bytes[sent..sent + LIMIT];
            let taken = poll_fn(|cx| Poll::Ready(ours.poll_write(cx, piece))).await;
            assert!(matches!(taken, Poll::Ready(Ok(LIMIT))), "{taken:?}");
            write(&other, b"x").await.unwrap();
            sent += LIMIT;
            flush();
        }
        let reader = std::thread::spawn(move || {
            let got = read(&mut theirs, sent + 5);
            (theirs, got)
        });
        write(&ours, b"later").await.unwrap();
        ours.settle();
        let (_theirs, got) = tokio::task::spawn_blocking(|| reader.join().unwrap())
            .await
            .unwrap();
        assert!(got[..sent] == bytes[..sent]);
        assert_eq!(&got[sent..], b"later");
        assert_eq!(read(&mut others, sent / LIMIT).len(), sent / LIMIT);
    });
}

#[test]
fn a_socket_that_is_dropped_has_sent_what_it_took() {
    worker().block_on(async {
        let (ours, mut theirs) = pair();
        let (other, mut others) = pair();
        write(&ours, b"goodbye").await.unwrap();
        write(&other, b"x").await.unwrap();
        drop(ours);
        // Would get the number of the one that was dropped, were that closed already.
        let (third, mut thirds) = pair();
        write(&third, b"third").await.unwrap();
        flush();
        drop((other, third));
        let mut all = String::new();
        for theirs in [&mut theirs, &mut others, &mut thirds] {
            theirs.read_to_string(&mut all).unwrap();
            all.push('.');
        }
        assert_eq!(all, "goodbye.x.third.");
    });
}

#[test]
fn a_send_that_fails_wakes_its_task_and_is_told_to_it_alone() {
    worker().block_on(async {
        let (ours, theirs) = pair();
        let (other, mut others) = pair();
        drop(theirs);
        // Alone it would fail at once.
        write(&other, b"x").await.unwrap();
        let told = tokio::runtime::Handle::current().spawn(async move {
            let mut attempts = 0;
            poll_fn(|cx| {
                attempts += 1;
                match ours.poll_write(cx, b"nobody reads it") {
                    Poll::Ready(Ok(_)) => Poll::Pending,
                    other => other,
                }
            })
            .await
            .map_err(|error| (attempts, error.kind()))
        });
        let (attempts, kind) = told.await.unwrap().unwrap_err();
        assert_eq!(kind, io::ErrorKind::BrokenPipe);
        assert!(attempts <= 2, "{attempts}");
        assert_eq!(read(&mut others, 1), b"x");
    });
}

#[test]
fn a_socket_moves_with_what_found_no_room() {
    worker().block_on(async {
        let (ours, mut theirs) = pair();
        let bytes = pattern(4 << 20);
        let mut sent = 0;
        while !ours.wants_write() {
            write(&ours, &bytes[sent..sent + LIMIT]).await.unwrap();
            sent += LIMIT;
            ours.settle();
        }
        let loose = ours.loosen().unwrap();
        let reader = std::thread::spawn(move || read(&mut theirs, sent));
        let elsewhere = std::thread::spawn(move || {
            worker().block_on(async {
                let ours = Socket::new(loose).unwrap();
                poll_fn(|cx| ours.poll_flush(cx)).await.unwrap();
            });
        });
        elsewhere.join().unwrap();
        assert!(reader.join().unwrap() == bytes[..sent]);
    });
}

#[test]
fn a_socket_in_the_batch_of_another_thread_does_not_move() {
    worker().block_on(async {
        let (ours, _theirs) = pair();
        write(&ours, b"x").await.unwrap();
        if !ours.is_staged() {
            return; // No batches here; `worker` has said so.
        }
        let moved = std::thread::spawn(move || ours.loosen().map(drop));
        let error = moved.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    });
}
