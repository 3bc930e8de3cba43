//! Tasks that panic: what the log says of them, and how what they had is told why it is dropped.

use std::any::Any;
use std::cell::{Cell, RefCell};

thread_local! {
    /// Where the latest panic of this thread was raised.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
    /// What is dropped now is what a task had that has panicked.
    static UNWINDS: Cell<bool> = const { Cell::new(false) };
}

/// From now on it is noted where panics are raised, for the whole process. They still go to standard error, too, which a
/// process in the background does not have.
pub fn note_places() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if let Some(place) = info.location() {
            // It may be raised while we are about to read it.
            let _ = PLACE.try_with(|last| {
                if let Ok(mut last) = last.try_borrow_mut() {
                    *last = place.to_string();
                }
            });
        }
        before(info);
    }));
}

/// Says in the log that a task has panicked.
pub(super) fn report(panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let place = PLACE.take();
    tracing::error!(
        "a task panicked at {}: {} (a bug: please report it)",
        if place.is_empty() {
            "an unknown place"
        } else {
            &place
        },
        text.unwrap_or("no text")
    );
}

/// Is what a task had being dropped because it has panicked?
pub fn is_unwound() -> bool {
    UNWINDS.get()
}

/// For as long as this lives, it is.
pub(super) struct Unwound;

impl Unwound {
    pub(super) fn begin() -> Self {
        UNWINDS.set(true);
        Self
    }
}

impl Drop for Unwound {
    fn drop(&mut self) {
        UNWINDS.set(false);
    }
}
