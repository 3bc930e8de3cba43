//! Places of sockets: what becomes known when, and who hears of it.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::net::executor::Worker;
use crate::net::socket::{Loose, Raw, Socket};

/// Counts how often it was woken.
#[derive(Default)]
struct Counter(AtomicUsize);

impl std::task::Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Counter {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn counter() -> (Arc<Counter>, Waker) {
    let counter = Arc::new(Counter::default());
    (counter.clone(), Waker::from(counter))
}

struct Fixture {
    reactor: Arc<Reactor>,
    events: Events,
}

impl Fixture {
    fn new() -> Self {
        Self {
            reactor: Arc::new(Reactor::new().unwrap()),
            events: Events::new(),
        }
    }

    fn socket(&self) -> (UnixStream, UnixStream, Place) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let place = self.reactor.register(&ours).unwrap();
        (ours, theirs, place)
    }

    fn turn(&mut self) {
        self.reactor.turn(&mut self.events, false);
    }
}

fn seen(place: &Place, waker: &Waker) -> Option<Seen> {
    let mut cx = Context::from_waker(waker);
    // As its user does it.
    if place.waits_already(&cx) {
        return None;
    }
    match place.poll_readable(&mut cx) {
        Poll::Ready(seen) => Some(seen),
        Poll::Pending => None,
    }
}

#[test]
fn what_comes_is_noticed_at_the_next_turn_and_told_to_who_waits() {
    let mut fixture = Fixture::new();
    let (ours, mut theirs, place) = fixture.socket();
    let (woken, waker) = counter();
    assert!(seen(&place, &waker).is_none());
    theirs.write_all(b"x").unwrap();
    assert!(seen(&place, &waker).is_none());
    assert_eq!(woken.count(), 0);
    fixture.turn();
    assert_eq!(woken.count(), 1);
    let it = seen(&place, &waker).unwrap();
    assert_eq!((&ours).read(&mut [0; 10]).unwrap(), 1);
    place.was_short(it);
    assert!(seen(&place, &waker).is_none());
    fixture.turn();
    assert_eq!(woken.count(), 1);
    // Registered still, without being asked to.
    theirs.write_all(b"x").unwrap();
    fixture.turn();
    assert_eq!(woken.count(), 2);
}

#[test]
fn what_becomes_known_between_a_read_and_its_report_is_not_forgotten() {
    let mut fixture = Fixture::new();
    let (ours, mut theirs, place) = fixture.socket();
    let (_, waker) = counter();
    theirs.write_all(b"x").unwrap();
    fixture.turn();
    let it = seen(&place, &waker).unwrap();
    assert_eq!((&ours).read(&mut [0; 10]).unwrap(), 1);
    theirs.write_all(b"y").unwrap();
    fixture.turn();
    place.was_short(it);
    let it = seen(&place, &waker).unwrap();
    assert_eq!((&ours).read(&mut [0; 10]).unwrap(), 1);
    assert!((&ours).read(&mut [0; 10]).is_err());
    theirs.write_all(b"z").unwrap();
    fixture.turn();
    place.is_empty(it);
    assert!(seen(&place, &waker).is_some());
}

#[test]
fn an_end_that_came_with_the_last_bytes_is_not_forgotten_when_these_are_read() {
    let mut fixture = Fixture::new();
    let (ours, mut theirs, place) = fixture.socket();
    let (_, waker) = counter();
    theirs.write_all(b"x").unwrap();
    drop(theirs);
    fixture.turn();
    let it = seen(&place, &waker).unwrap();
    assert_eq!((&ours).read(&mut [0; 10]).unwrap(), 1);
    place.was_short(it);
    assert!(seen(&place, &waker).is_some());
    assert_eq!((&ours).read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn who_waits_now_is_woken_instead_of_who_waited_before() {
    let mut fixture = Fixture::new();
    let (_ours, mut theirs, place) = fixture.socket();
    let ((first, early), (second, late)) = (counter(), counter());
    assert!(seen(&place, &early).is_none());
    assert!(seen(&place, &late).is_none());
    theirs.write_all(b"x").unwrap();
    fixture.turn();
    assert_eq!((first.count(), second.count()), (0, 1));
}

#[test]
fn room_is_noticed_once_the_socket_was_full() {
    let mut fixture = Fixture::new();
    let (ours, mut theirs, place) = fixture.socket();
    let (woken, waker) = counter();
    let mut cx = Context::from_waker(&waker);
    let mut sent = 0;
    let block = vec![0; 1 << 16];
    for _ in 0..3 {
        loop {
            match (&ours).write(&block) {
                Ok(written) => sent += written,
                Err(_) if place.poll_room(&mut cx, &ours).is_pending() => break,
                Err(_) => {}
            }
        }
        let before = woken.count();
        fixture.turn();
        assert_eq!(woken.count(), before);
        let mut rest = vec![0; sent];
        theirs.read_exact(&mut rest).unwrap();
        sent = 0;
        fixture.turn();
        assert!(woken.count() > before);
        assert!(place.poll_room(&mut cx, &ours).is_ready());
    }
}

#[test]
fn a_peer_that_reads_wakes_nobody_while_there_was_room_all_the_time() {
    let mut fixture = Fixture::new();
    let (ours, mut theirs, place) = fixture.socket();
    let (woken, waker) = counter();
    assert!(seen(&place, &waker).is_none());
    for _ in 0..10 {
        (&ours).write_all(b"x").unwrap();
        theirs.read_exact(&mut [0]).unwrap();
        fixture.turn();
    }
    assert_eq!(woken.count(), 0);
    assert!(place.is_readable().is_none());
}

#[test]
fn places_are_used_again_and_know_nothing_of_who_had_them_before() {
    let mut fixture = Fixture::new();
    let (woken, waker) = counter();
    let (ours, mut theirs, place) = fixture.socket();
    let number = place.number;
    assert!(seen(&place, &waker).is_none());
    theirs.write_all(b"x").unwrap();
    fixture.turn();
    drop(ours);
    drop(place);
    let (_ours, mut theirs, place) = fixture.socket();
    assert_eq!(place.number, number);
    fixture.turn();
    assert!(place.is_readable().is_none());
    theirs.write_all(b"x").unwrap();
    fixture.turn();
    assert!(place.is_readable().is_some());
    assert_eq!(woken.count(), 1);
    assert_eq!(Arc::strong_count(&woken), 2);
}

#[test]
fn a_late_event_for_who_had_the_place_before_does_no_harm() {
    let mut fixture = Fixture::new();
    let (_ours, mut theirs, place) = fixture.socket();
    let (_, waker) = counter();
    place
        .slot()
        .notice(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP);
    let it = seen(&place, &waker).unwrap();
    // The read finds nothing.
    place.is_empty(it);
    assert!(seen(&place, &waker).is_none());
    theirs.write_all(b"x").unwrap();
    fixture.turn();
    assert!(seen(&place, &waker).is_some());
}

#[test]
fn there_are_places_for_more_sockets_than_a_piece_has() {
    let mut fixture = Fixture::new();
    let (woken, waker) = counter();
    let mut sockets: Vec<_> = (0..3 * PIECE + 5).map(|_| fixture.socket()).collect();
    for (_, theirs, place) in &mut sockets {
        assert!(seen(place, &waker).is_none());
        theirs.write_all(b"x").unwrap();
    }
    // More than are taken at a time are left for the next.
    let turns = sockets.len().div_ceil(EVENTS) + 1;
    (0..turns).for_each(|_| fixture.turn());
    assert_eq!(woken.count(), sockets.len());
    assert!(
        sockets
            .iter()
            .all(|(_, _, place)| place.is_readable().is_some())
    );
}

#[test]
fn a_socket_that_was_removed_is_heard_of_by_its_next_worker_only() {
    let (mut first, mut second) = (Fixture::new(), Fixture::new());
    let (ours, mut theirs, place) = first.socket();
    let (early, waker) = counter();
    assert!(seen(&place, &waker).is_none());
    place.remove(&ours).unwrap();
    let place = second.reactor.register(&ours).unwrap();
    let (late, waker) = counter();
    assert!(seen(&place, &waker).is_none());
    theirs.write_all(b"x").unwrap();
    first.turn();
    second.turn();
    assert_eq!((early.count(), late.count()), (0, 1));
}

/// So often each socket moves.
const MOVES: u32 = 300;

/// Waits for one number, and sends the socket on to the next worker.
fn visit(socket: Loose, workers: Vec<Worker>, at: usize, next: u32, done: mpsc::Sender<()>) {
    let worker = workers[at % workers.len()].clone();
    worker.spawn(async move {
        let socket = Socket::new(socket).unwrap();
        let mut got = [0; 4];
        for byte in &mut got {
            let mut one = [0];
            poll_fn(|cx| socket.poll_read(cx, &mut one)).await.unwrap();
            *byte = one[0];
        }
        assert_eq!(u32::from_be_bytes(got), next);
        if next.is_multiple_of(3) {
            poll_fn(|cx| socket.poll_write(cx, b"k")).await.unwrap();
        }
        if next + 1 == MOVES {
            done.send(()).unwrap();
            return;
        }
        visit(socket.loosen().unwrap(), workers, at + 1, next + 1, done);
    });
}

/// Sockets go round between workers while their peers write: every byte arrives, in order.
#[test]
fn nothing_is_lost_while_sockets_move() {
    let workers: Vec<_> = (0..3).map(|_| Worker::new().unwrap()).collect();
    let stop = Arc::new(tokio::sync::Notify::new());
    let threads: Vec<_> = workers
        .iter()
        .map(|worker| {
            let (worker, stop) = (worker.clone(), stop.clone());
            thread::spawn(move || worker.run(stop.notified()))
        })
        .collect();
    let (done, is_done) = mpsc::channel();
    let mut peers = Vec::new();
    for number in 0..8 {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        visit(
            Raw::Unix(ours).into(),
            workers.clone(),
            number,
            0,
            done.clone(),
        );
        peers.push(thread::spawn(move || {
            for byte in 0..MOVES {
                theirs.write_all(&byte.to_be_bytes()).unwrap();
                // Sometimes it has moved on by then, sometimes not.
                if byte.is_multiple_of(3) {
                    theirs.read_exact(&mut [0]).unwrap();
                }
            }
        }));
    }
    for _ in 0..8 {
        is_done.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    for peer in peers {
        peer.join().unwrap();
    }
    for _ in &workers {
        stop.notify_one();
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

/// What may happen between a socket, its peer and its task.
#[derive(Debug, Clone, Copy)]
enum Happens {
    PeerWrites(u8),
    PeerLeaves,
    Turn,
    /// The task runs if it was woken, and reads into a buffer of this size until it is told to wait.
    Task(u8),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => (1..9_u8).prop_map(Happens::PeerWrites),
        1 => Just(Happens::PeerLeaves),
        4 => Just(Happens::Turn),
        4 => (1..6_u8).prop_map(Happens::Task),
    ]
}

proptest! {
    /// A task that runs only when it is woken misses nothing, whatever the order.
    #[test]
    fn who_is_polled_only_when_woken_reads_everything(script in prop::collection::vec(happens(), 1..60)) {
        let mut fixture = Fixture::new();
        let (ours, theirs, place) = fixture.socket();
        let mut theirs = Some(theirs);
        let (woken, waker) = counter();
        let (mut polled_at, mut first) = (0, true);
        let (mut sent, mut got, mut ended) = (0, 0, false);
        let task = |size: u8, woken: &Counter, polled_at: &mut usize, first: &mut bool, got: &mut usize, ended: &mut bool| {
            if !std::mem::take(first) && woken.count() == *polled_at {
                return;
            }
            *polled_at = woken.count();
            let mut buffer = vec![0; size.into()];
            while let Some(it) = seen(&place, &waker) {
                match (&ours).read(&mut buffer) {
                    Ok(0) => {
                        *ended = true;
                        return;
                    }
                    Ok(read) => {
                        *got += read;
                        if read < buffer.len() {
                            place.was_short(it);
                        }
                    }
                    Err(_) => place.is_empty(it),
                }
            }
        };
        for step in script {
            match step {
                Happens::PeerWrites(count) => {
                    if let Some(theirs) = &mut theirs {
                        theirs.write_all(&vec![0; count.into()]).unwrap();
                        sent += usize::from(count);
                    }
                }
                Happens::PeerLeaves => drop(theirs.take()),
                Happens::Turn => fixture.turn(),
                Happens::Task(size) => task(size, &woken, &mut polled_at, &mut first, &mut got, &mut ended),
            }
        }
        drop(theirs);
        fixture.turn();
        task(3, &woken, &mut polled_at, &mut first, &mut got, &mut ended);
        prop_assert_eq!(got, sent);
        prop_assert!(ended);
    }
}
