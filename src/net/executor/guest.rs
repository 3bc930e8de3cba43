//! Tests on a runtime of tokio's have workers and sockets too: the runtime takes the place of the worker.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::Worker;
use crate::net::reactor::{Events, Reactor};

thread_local! {
    static GUEST: RefCell<Option<Arc<Reactor>>> = const { RefCell::new(None) };
}

/// Forgets the reactor together with the runtime that turns it.
struct Leaves;

impl Drop for Leaves {
    fn drop(&mut self) {
        let _ = GUEST.try_with(RefCell::take);
    }
}

impl Worker {
    /// One whose tasks run on the runtime of the caller.
    #[allow(clippy::missing_panics_doc, reason = "it is for tests")]
    pub fn guest() -> Self {
        let mut worker = Self::new().unwrap();
        Arc::get_mut(&mut worker.0).unwrap().host = Some(Handle::current());
        worker
    }
}

/// The reactor of this thread's runtime.
#[allow(
    deprecated,
    reason = "what it may be misused for needs a descriptor that does not stay: this one is owned"
)]
pub(super) fn reactor() -> Option<Arc<Reactor>> {
    let tokio = Handle::try_current().ok()?;
    if let Some(reactor) = GUEST.with_borrow(Clone::clone) {
        return Some(reactor);
    }
    let reactor = Arc::new(Reactor::new().ok()?);
    let epoll = AsyncFd::with_interest(reactor.descriptor().ok()?, Interest::READABLE).ok()?;
    let turned = reactor.clone();
    tokio.spawn(async move {
        let _leaves = Leaves;
        let mut events = Events::new();
        while let Ok(mut ready) = epoll.readable().await {
            ready.clear_ready();
            turned.turn(&mut events, false);
        }
    });
    GUEST.set(Some(reactor.clone()));
    Some(reactor)
}
