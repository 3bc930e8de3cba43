//! The settings under which a text is read, as far as they are known: part of what a statement is.
//!
//! Parse turns a text into tables, functions and constants, and what they are is up to the session: `'01/02/2003'::date` is
//! another day in another `DateStyle`, and `t` another table in another `search_path`. So a statement is shared
//! only by sessions whose settings are the same. Each set of settings is there once, so that two are
//! compared by their address; what they are made of is the client's (`client::reading`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use dashmap::DashMap;

/// Settings under which statements are prepared. Two are equal if they are the same one.
#[derive(Clone)]
pub struct Context(Arc<Settings>);

struct Settings {
    /// Never used twice in a process.
    number: u64,
    /// Nothing for one that nobody else can have.
    known_as: Option<(Box<[u8]>, Weak<Known>)>,
    /// Whoever has it knows what they are.
    is_known: bool,
}

#[derive(Default)]
struct Known {
    by_settings: DashMap<Box<[u8]>, Weak<Settings>, ahash::RandomState>,
    last: AtomicU64,
}

impl Context {
    pub(super) fn number(&self) -> u64 {
        self.0.number
    }

    /// Does anybody know what the settings are?
    pub fn is_known(&self) -> bool {
        self.0.is_known
    }
}

impl PartialEq for Context {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Context {}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the values: they are a client's, and not for logs.
        write!(f, "Context({})", self.0.number)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        if let Some((settings, known)) = &self.known_as
            && let Some(known) = known.upgrade()
        {
            // A new one of the same settings may have taken the place meanwhile: it stays.
            known
                .by_settings
                .remove_if(settings, |_, entry| entry.strong_count() == 0);
        }
    }
}

/// All that somebody holds.
#[derive(Clone, Default)]
pub(super) struct Contexts(Arc<Known>);

impl Contexts {
    /// The one of these settings.
    pub(super) fn of(&self, settings: &[u8]) -> Context {
        let found = self.0.by_settings.get(settings);
        if let Some(found) = found.and_then(|weak| weak.upgrade()) {
            return Context(found);
        }
        let mut slot = self.0.by_settings.entry(settings.into()).or_default();
        // Another worker may have been quicker.
        if let Some(found) = slot.upgrade() {
            return Context(found);
        }
        let known_as = Some((settings.into(), Arc::downgrade(&self.0)));
        let made = self.new_one(known_as, true);
        *slot = Arc::downgrade(&made);
        Context(made)
    }

    /// One that is like no other: nobody knows what the settings are.
    pub(super) fn unknown(&self) -> Context {
        Context(self.new_one(None, false))
    }

    /// One that is like no other, of somebody who knows what they are.
    pub(super) fn apart(&self) -> Context {
        Context(self.new_one(None, true))
    }

    fn new_one(&self, known_as: Option<(Box<[u8]>, Weak<Known>)>, is_known: bool) -> Arc<Settings> {
        let number = self.0.last.fetch_add(1, Ordering::Relaxed);
        Arc::new(Settings {
            number,
            known_as,
            is_known,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_settings_are_one_context_while_somebody_holds_it() {
        let contexts = Contexts::default();
        let (one, same) = (contexts.of(b"ISO"), contexts.of(b"ISO"));
        assert_eq!(one, same);
        assert_ne!(one, contexts.of(b"German"));
        assert_eq!(contexts.0.by_settings.len(), 1);
        drop((one, same));
        assert!(contexts.0.by_settings.is_empty());
    }

    #[test]
    fn unknown_settings_are_like_no_others() {
        let contexts = Contexts::default();
        assert_ne!(contexts.unknown(), contexts.unknown());
        assert_ne!(contexts.unknown(), contexts.of(b""));
        assert!(!contexts.unknown().is_known() && contexts.of(b"").is_known());
        assert!(contexts.apart().is_known() && contexts.apart() != contexts.apart());
    }
}
