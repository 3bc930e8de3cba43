//! A future that is seldom ready, beside one that often is: it is polled when it has woken its task, and not whenever
//! something else has.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// A future that costs next to nothing while it waits, however often its task is polled.
pub struct Rarely<F> {
    future: Pin<Box<F>>,
    bell: Arc<Bell>,
    waker: Waker,
}

/// What the future wakes.
struct Bell {
    /// Since it was last polled; or it never was.
    has_rung: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl<F: Future> Rarely<F> {
    /// This future.
    pub fn new(future: F) -> Self {
        let bell = Arc::new(Bell {
            has_rung: AtomicBool::new(true),
            task: AtomicWaker::new(),
        });
        Self {
            future: Box::pin(future),
            waker: bell.clone().into(),
            bell,
        }
    }
}

impl<F: Future> Future for Rarely<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // Before it is asked whether the bell has rung: what rings after that wakes the task.
        self.bell.task.register(cx.waker());
        if !self.bell.has_rung.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let this = &mut *self;
        this.future
            .as_mut()
            .poll(&mut Context::from_waker(&this.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn it_is_polled_when_it_was_woken_and_not_when_others_were() {
        let polled = Cell::new(0);
        let (tell, mut told) = oneshot::channel();
        let mut rare = Rarely::new(poll_fn(|cx| {
            polled.set(polled.get() + 1);
            Pin::new(&mut told).poll(cx)
        }));
        let mut turns = 0;
        poll_fn(|cx| {
            assert!(Pin::new(&mut rare).poll(cx).is_pending());
            turns += 1;
            if turns < 5 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        assert_eq!(polled.get(), 1);
        tell.send(7).unwrap();
        assert_eq!(rare.await, Ok(7));
        assert_eq!(polled.get(), 2);
    }

    #[tokio::test]
    async fn its_end_wakes_whoever_polled_it_last() {
        let (tell, told) = oneshot::channel();
        let mut rare = Rarely::new(told);
        let mut nobody = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut rare).poll(&mut nobody).is_pending());
        let later = async {
            tokio::task::yield_now().await;
            tell.send(()).unwrap();
        };
        assert_eq!(tokio::join!(rare, later).0, Ok(()));
    }
}
