//! A client's place in the queue: made once for each client and used for every wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::{Pooled, WaitError};

/// What a client waits with.
#[derive(Debug, Default)]
pub struct Waiter {
    state: Mutex<State>,
    /// Something was given: it is to be looked for.
    is_given: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
enum State {
    /// In no queue, or taken out of it: nothing can be given.
    #[default]
    Away,
    /// In a queue.
    Queued,
    /// Something was given and not looked at yet.
    Given(Result<Pooled, WaitError>),
}

impl Waiter {
    /// Begins to wait.
    pub(super) fn queue(&self) {
        *self.state.lock() = State::Queued;
    }

    /// Gives it what it waits for. A server comes back if the client waits no more.
    pub(super) fn give(&self, outcome: Result<Pooled, WaitError>) -> Option<Pooled> {
        let mut state = self.state.lock();
        match *state {
            State::Queued => {
                *state = State::Given(outcome);
                self.is_given.store(true, Ordering::Release);
                drop(state);
                self.waker.wake();
                None
            }
            State::Away | State::Given(_) => outcome.ok(),
        }
    }

    /// Has it been given something?
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Pooled, WaitError>> {
        if let Some(outcome) = self.take() {
            return Poll::Ready(outcome);
        }
        self.waker.register(cx.waker());
        // It may have been given between the look and the registration.
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    #[inline]
    fn take(&self) -> Option<Result<Pooled, WaitError>> {
        if !self.is_given.load(Ordering::Acquire) {
            return None;
        }
        self.is_given.store(false, Ordering::Relaxed);
        match std::mem::take(&mut *self.state.lock()) {
            State::Given(outcome) => Some(outcome),
            State::Away | State::Queued => None,
        }
    }

    /// Stops waiting. What was given meanwhile comes back, and must not be lost.
    pub(super) fn leave(&self) -> Option<Pooled> {
        let mut state = self.state.lock();
        self.is_given.store(false, Ordering::Relaxed);
        match std::mem::take(&mut *state) {
            State::Given(outcome) => outcome.ok(),
            State::Away | State::Queued => None,
        }
    }
}
