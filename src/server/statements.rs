//! Which statements are prepared on *this* server, and in what order they were last used.
//!
//! The list runs ahead of the server: a statement is entered when its Parse is sent, and taken
//! out again if the reply says that it was not done. It may stand over its limit while a batch
//! is being sent, since a statement the batch still names must not be closed under it; the
//! surplus is closed just before the Sync.

use std::sync::Arc;

use lru::LruCache;

use crate::prepared::Statement;

/// The least-recently-used list of one server.
#[derive(Debug)]
pub struct Statements {
    prepared: LruCache<u64, Arc<Statement>, ahash::RandomState>,
}

impl Default for Statements {
    fn default() -> Self {
        Self { prepared: LruCache::unbounded_with_hasher(ahash::RandomState::new()) }
    }
}

impl Statements {
    /// Is the statement prepared here? Marks it as just used.
    pub fn touch(&mut self, statement: &Statement) -> bool {
        self.prepared.get(&statement.id()).is_some()
    }

    /// Enters a statement whose Parse is being sent.
    pub fn insert(&mut self, statement: Arc<Statement>) {
        self.prepared.put(statement.id(), statement);
    }

    /// Takes out a statement that is not prepared here after all, or not any more.
    pub fn remove(&mut self, id: u64) {
        self.prepared.pop(&id);
    }

    /// Puts back a statement whose Close was skipped; it is the first to go next time.
    pub fn restore(&mut self, statement: Arc<Statement>) {
        let id = statement.id();
        self.prepared.put(id, statement);
        self.prepared.demote(&id);
    }

    /// Takes out the statement used longest ago if there are more than `limit`.
    pub fn evict_over(&mut self, limit: usize) -> Option<Arc<Statement>> {
        if self.prepared.len() <= limit {
            return None;
        }
        self.prepared.pop_lru().map(|(_, statement)| statement)
    }

    /// Forgets everything: the server said `DEALLOCATE ALL` or `DISCARD ALL`.
    pub fn clear(&mut self) {
        self.prepared.clear();
    }

    /// How many are prepared here.
    pub fn len(&self) -> usize {
        self.prepared.len()
    }

    /// Is nothing prepared here?
    pub fn is_empty(&self) -> bool {
        self.prepared.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepared::Registry;

    fn statements(count: usize) -> Vec<Arc<Statement>> {
        let registry = Registry::new();
        (0..count)
            .map(|i| registry.intern(format!("select {i}\0\0\0").as_bytes(), 1 << 20).unwrap())
            .collect()
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let [a, b, c] = statements(3).try_into().unwrap();
        let mut list = Statements::default();
        for statement in [&a, &b, &c] {
            list.insert(statement.clone());
        }
        assert!(list.touch(&a));
        assert_eq!(list.evict_over(2).unwrap().id(), b.id());
        assert!(list.evict_over(2).is_none());
    }

    #[test]
    fn a_restored_statement_is_the_next_to_go() {
        let [a, b] = statements(2).try_into().unwrap();
        let mut list = Statements::default();
        list.insert(a.clone());
        list.insert(b);
        let evicted = list.evict_over(1).unwrap();
        list.restore(evicted);
        assert_eq!(list.evict_over(1).unwrap().id(), a.id());
    }
}
