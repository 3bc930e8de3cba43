//! A worker's tasks: who is polled when, who is woken from where, and what ends.

use std::future::{pending, poll_fn};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::*;
use crate::net::socket::{Raw, Socket};

/// Runs `main` on a worker of this thread, with tokio's services from another.
fn on_worker<F: Future>(main: impl FnOnce(Worker) -> F) -> F::Output {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let _entered = tokio.enter();
    let worker = Worker::new().unwrap();
    worker.run(main(worker.clone()))
}

/// A worker on a thread of its own.
struct Elsewhere {
    worker: Worker,
    thread: Option<thread::JoinHandle<()>>,
    stop: Arc<Notify>,
}

impl Elsewhere {
    fn start() -> Self {
        let (worker, stop) = (Worker::new().unwrap(), Arc::new(Notify::new()));
        let (runs, stops) = (worker.clone(), stop.clone());
        let thread = thread::spawn(move || runs.run(stops.notified()));
        Self {
            worker,
            thread: Some(thread),
            stop,
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Lets others have their turn.
async fn give_way() {
    let mut given = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn pair() -> (Socket, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Socket::new(Raw::Unix(ours).into()).unwrap(), theirs)
}

async fn read(socket: &Socket) -> Vec<u8> {
    let mut buffer = [0; 100];
    let read = poll_fn(|cx| socket.poll_read(cx, &mut buffer))
        .await
        .unwrap();
    buffer[..read].to_vec()
}

#[test]
fn tasks_run_in_the_order_in_which_they_were_started() {
    let order = Arc::new(Mutex::new(Vec::new()));
    on_worker(|worker| {
        let order = order.clone();
        async move {
            for number in 0..5 {
                let order = order.clone();
                worker.spawn(async move { order.lock().push(number) });
            }
            give_way().await;
        }
    });
    assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_task_woken_twice_is_polled_once() {
    on_worker(|worker| async move {
        let polls = Arc::new(AtomicUsize::new(0));
        let (counted, (tell, told)) = (polls.clone(), mpsc::channel());
        worker.spawn(poll_fn(move |cx| {
            counted.fetch_add(1, Ordering::Relaxed);
            tell.send(cx.waker().clone()).unwrap();
            Poll::Pending
        }));
        give_way().await;
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        let waker = told.recv().unwrap();
        for _ in 0..3 {
            waker.wake_by_ref();
        }
        give_way().await;
        give_way().await;
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_task_that_is_woken_while_it_is_polled_is_polled_again() {
    on_worker(|worker| async move {
        let (done, is_done) = oneshot::channel();
        worker.spawn(async move {
            for _ in 0..1000 {
                give_way().await;
            }
            done.send(()).unwrap();
        });
        is_done.await.unwrap();
    });
}

#[test]
fn a_waker_may_outlive_its_task_and_wakes_nobody_else_for_long() {
    on_worker(|worker| async move {
        let (tell, told) = mpsc::channel();
        worker.spawn(poll_fn(move |cx| {
            tell.send(cx.waker().clone()).unwrap();
            Poll::Ready(())
        }));
        give_way().await;
        let old = told.recv().unwrap();
        // It has the number of the one that has ended.
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = polls.clone();
        worker.spawn(poll_fn(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Poll::Pending
        }));
        for _ in 0..10 {
            old.wake_by_ref();
            give_way().await;
        }
        assert_eq!(polls.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_panic_ends_its_task_alone_and_drops_what_it_had() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    on_worker(|worker| async move {
        let counted = worker.clone();
        let is_dropped = Arc::new(AtomicBool::new(false));
        let had = Dropped(is_dropped.clone());
        worker.spawn(async move {
            let _had = had;
            give_way().await;
            panic!("one of the tasks");
        });
        let (done, is_done) = oneshot::channel();
        worker.spawn(async move {
            for _ in 0..10 {
                give_way().await;
            }
            done.send(()).unwrap();
        });
        is_done.await.unwrap();
        assert!(is_dropped.load(Ordering::Relaxed));
        assert!(!panics::is_unwound());
        assert_eq!(counted.panics(), 1);
    });
}

#[test]
fn what_a_task_had_knows_that_it_has_panicked() {
    struct Asks(Arc<AtomicBool>);
    impl Drop for Asks {
        fn drop(&mut self) {
            self.0.store(panics::is_unwound(), Ordering::Relaxed);
        }
    }
    on_worker(|worker| async move {
        let (after_panic, after_end) = (Arc::<AtomicBool>::default(), Arc::default());
        let had = Asks(Arc::clone(&after_panic));
        worker.spawn(poll_fn(move |_| {
            let _had = &had;
            panic!("one of the tasks");
        }));
        let had = Asks(Arc::clone(&after_end));
        worker.spawn(poll_fn(move |_| {
            let _had = &had;
            Poll::Ready(())
        }));
        give_way().await;
        give_way().await;
        assert!(after_panic.load(Ordering::Relaxed));
        assert!(!after_end.load(Ordering::Relaxed));
    });
}

#[test]
fn tasks_that_still_run_are_dropped_at_the_end_and_none_is_started_after_it() {
    struct StartsAnother(Worker, Arc<()>);
    impl Drop for StartsAnother {
        fn drop(&mut self) {
            let kept = self.1.clone();
            self.0.spawn(async move { drop(kept) });
        }
    }
    let alive = Arc::new(());
    let worker = on_worker(|worker| {
        let alive = alive.clone();
        async move {
            for _ in 0..3 {
                let last = StartsAnother(worker.clone(), alive.clone());
                worker.spawn(async move {
                    let _last = last;
                    pending::<()>().await;
                });
            }
            give_way().await;
            worker
        }
    });
    assert_eq!(Arc::strong_count(&alive), 1);
    let late = alive.clone();
    worker.spawn(async move { drop(late) });
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_worker_that_sleeps_is_woken_from_other_threads() {
    let elsewhere = Elsewhere::start();
    for _ in 0..2000 {
        let (tell, told) = mpsc::channel();
        elsewhere
            .worker
            .spawn(async move { tell.send(()).unwrap() });
        told.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}

#[test]
fn no_wake_is_lost_between_two_workers() {
    let (left, right) = (Elsewhere::start(), Elsewhere::start());
    let (ball, (done, is_done)) = (Arc::new((Notify::new(), Notify::new())), mpsc::channel());
    let (ours, theirs) = (ball.clone(), ball);
    left.worker.spawn(async move {
        for _ in 0..20_000 {
            ours.0.notify_one();
            ours.1.notified().await;
        }
        done.send(()).unwrap();
    });
    right.worker.spawn(async move {
        loop {
            theirs.0.notified().await;
            theirs.1.notify_one();
        }
    });
    is_done.recv_timeout(Duration::from_secs(60)).unwrap();
}

#[test]
fn many_threads_may_wake_and_start_at_once() {
    const EACH: usize = 500;
    let elsewhere = Elsewhere::start();
    let (wakes, count) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (done, is_done) = mpsc::channel();
    let (woken, counted) = (wakes.clone(), count.clone());
    elsewhere.worker.spawn(async move {
        while counted.load(Ordering::Relaxed) < 4 * EACH {
            woken.notified().await;
        }
        done.send(()).unwrap();
    });
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let (count, tells) = (count.clone(), wakes.clone());
                    elsewhere.worker.spawn(async move {
                        count.fetch_add(1, Ordering::Relaxed);
                        tells.notify_one();
                    });
                    wakes.notify_one();
                }
            });
        }
    });
    is_done.recv_timeout(Duration::from_secs(60)).unwrap();
}

#[test]
fn a_task_that_never_rests_does_not_keep_sockets_and_notes_from_others() {
    let elsewhere = Elsewhere::start();
    elsewhere.worker.spawn(async {
        loop {
            give_way().await;
        }
    });
    let (far, mut theirs) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let (tell, told) = mpsc::channel();
    elsewhere.worker.spawn(async move {
        let ours = Socket::new(Raw::Unix(far).into()).unwrap();
        loop {
            tell.send(read(&ours).await).unwrap();
        }
    });
    for _ in 0..50 {
        theirs.write_all(b"x").unwrap();
        let got = told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(got, b"x");
    }
}

#[test]
fn a_socket_that_always_has_something_does_not_keep_others_from_their_turn() {
    on_worker(|worker| async move {
        let (ours, mut theirs) = pair();
        // Ends when the socket does, with its task.
        thread::spawn(move || {
            let block = vec![0; 1 << 16];
            while theirs.write_all(&block).is_ok() {}
        });
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = turns.clone();
        worker.spawn(async move {
            // A little at a time, so that it is never empty.
            let mut byte = [0];
            poll_fn(|cx| {
                counted.fetch_add(1, Ordering::Relaxed);
                loop {
                    if ours.poll_read(cx, &mut byte).is_pending() {
                        return Poll::<()>::Pending;
                    }
                }
            })
            .await;
        });
        while turns.load(Ordering::Relaxed) < 100 {
            give_way().await;
        }
    });
}

#[test]
fn timers_of_tokio_wake_a_worker_that_sleeps() {
    on_worker(|_| async {
        let limit = Duration::from_millis(2);
        for _ in 0..20 {
            let late = tokio::time::timeout(limit, pending::<()>()).await;
            assert!(late.is_err());
        }
    });
}

#[test]
fn what_is_staged_is_sent_before_the_worker_sleeps() {
    let elsewhere = Elsewhere::start();
    let (far, mut theirs) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    elsewhere.worker.spawn(async move {
        // Where the kernel forbids it nothing is staged, and it is sent at once.
        let _ = batch::start();
        let ours = Socket::new(Raw::Unix(far).into()).unwrap();
        let sent = poll_fn(|cx| ours.poll_write(cx, b"hello")).await.unwrap();
        assert_eq!(sent, 5);
        pending::<()>().await;
    });
    let mut got = [0; 5];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
}

#[test]
fn a_thread_that_is_no_worker_has_no_sockets() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    assert!(Socket::new(Raw::Unix(ours).into()).is_err());
}

#[test]
fn a_worker_whose_future_panics_leaves_its_thread_as_it_was() {
    let panicked = catch_unwind(|| {
        on_worker(|worker| async move {
            worker.spawn(pending());
            give_way().await;
            panic!("main");
        });
    });
    assert!(panicked.is_err());
    on_worker(|_| async {
        let (ours, mut theirs) = pair();
        theirs.write_all(b"x").unwrap();
        assert_eq!(read(&ours).await, b"x");
    });
}
