//! Which statements are prepared on *this* server, and in what order they were last used.
//!
//! The list runs ahead of the server: a statement is entered when its Parse is sent. Until the reply is in it counts
//! only for the rest of the same batch (if the Parse is skipped, so are they), and one whose Parse or
//! Close was not done is in doubt: it is closed and prepared again before its next use, which is right
//! whatever the server has.
//!
//! The list may stand over its limit while a batch is being sent, since a statement the batch still
//! names must not be closed under it; the surplus is closed by a later batch.

use std::cell::Cell;
use std::sync::Arc;

use lru::LruCache;

use crate::prepared::Statement;
use crate::protocol::shape::Shape;

/// What is known of a statement on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// It is prepared there, or will be by the time the server gets there.
    Yes,
    /// It is not.
    No,
    /// It may be.
    InDoubt,
    /// It is, but who prepares it next is to get what PostgreSQL makes of the text now.
    Suspect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Prepared,
    /// A value did not fit the type that one of its parameters has.
    Suspect,
    /// So many Parses are on their way, the last one in this batch; none: it is there for this batch only.
    Sent {
        count: u32,
        batch: u64,
    },
    InDoubt,
}

#[derive(Debug)]
struct Entry {
    statement: Arc<Statement>,
    standing: Standing,
    /// The batch that used it last.
    used: Cell<u64>,
    /// The batch that had its last Parse.
    sent: u64,
    /// The edition of the statement that the server has.
    edition: u32,
    /// What Describe says of it here. It stays so: PostgreSQL refuses to run what has another result, rather than to give it.
    shape: Shape,
}

/// The least-recently-used list of one server.
#[derive(Debug)]
pub struct Statements {
    entries: LruCache<u64, Entry, ahash::RandomState>,
    /// Those whose Close is on its way. It may be skipped, so a Parse of one of these is not safe without another.
    closing: Vec<u64>,
}

impl Default for Statements {
    fn default() -> Self {
        Self {
            entries: LruCache::unbounded_with_hasher(ahash::RandomState::new()),
            closing: Vec::new(),
        }
    }
}

impl Statements {
    /// Is the statement prepared here, for a message of this batch (the number of Syncs sent before)? And what is its
    /// shape, if that is known already? Marks it as just used.
    #[inline]
    pub fn touch(&mut self, statement: &Statement, batch: u64) -> (Known, Shape) {
        // The one that was used last is where it belongs in the order, and need not be looked for.
        let latest = self.entries.peek_mru();
        let entry = match latest.filter(|(id, _)| **id == statement.id()) {
            Some((_, entry)) => entry,
            None => match self.entries.get(&statement.id()) {
                Some(entry) => entry,
                None if self.closing.contains(&statement.id()) => {
                    return (Known::InDoubt, Shape::UNKNOWN);
                }
                None => return (Known::No, Shape::UNKNOWN),
            },
        };
        entry.used.set(batch);
        if entry.edition != statement.edition() {
            return (Known::InDoubt, Shape::UNKNOWN);
        }
        match entry.standing {
            Standing::Prepared => (Known::Yes, entry.shape),
            Standing::Suspect => (Known::Suspect, entry.shape),
            Standing::Sent { batch: sent, .. } if sent == batch => (Known::Yes, entry.shape),
            Standing::Sent { .. } | Standing::InDoubt => (Known::InDoubt, Shape::UNKNOWN),
        }
    }

    /// The server has described it. Not what counts, if there is another Parse on its way.
    pub fn described(&mut self, id: u64, shape: Shape) {
        if let Some(entry) = self.entries.peek_mut(&id)
            && matches!(
                entry.standing,
                Standing::Prepared | Standing::Suspect | Standing::Sent { count: 0, .. }
            )
        {
            entry.shape = shape;
        }
    }

    /// What the server has said of it.
    pub fn shape(&self, id: u64) -> Shape {
        self.entries
            .peek(&id)
            .map_or(Shape::UNKNOWN, |entry| entry.shape)
    }

    /// Its Parse is being sent.
    pub fn sent(&mut self, statement: &Arc<Statement>, batch: u64) {
        let standing = match self
            .entries
            .peek(&statement.id())
            .map(|entry| entry.standing)
        {
            Some(Standing::Sent { count, .. }) => Standing::Sent {
                count: count + 1,
                batch,
            },
            _ => Standing::Sent { count: 1, batch },
        };
        let edition = statement.edition();
        self.entries.put(
            statement.id(),
            Entry {
                edition,
                shape: Shape::UNKNOWN,
                statement: statement.clone(),
                standing,
                used: Cell::new(batch),
                sent: batch,
            },
        );
    }

    /// A Parse of it is done. If nobody knows under which settings, it counts for the same batch only all the same: at the end of that,
    /// the settings may be others again.
    pub fn confirm(&mut self, id: u64) {
        if let Some(entry) = self.entries.peek_mut(&id) {
            let lasts = entry.statement.context().is_known();
            entry.standing = match entry.standing {
                Standing::Sent { count: 0 | 1, .. } if lasts => Standing::Prepared,
                Standing::Sent { count: 0, batch } => Standing::Sent { count: 0, batch },
                Standing::Sent { count, batch } => Standing::Sent {
                    count: count - 1,
                    batch,
                },
                known @ (Standing::Prepared | Standing::Suspect | Standing::InDoubt) => known,
            };
        }
    }

    /// A Parse of it was not done.
    pub fn doubt(&mut self, id: u64) {
        if let Some(entry) = self.entries.peek_mut(&id) {
            entry.standing = Standing::InDoubt;
        }
    }

    /// The settings have changed since this batch began: what was prepared since then was read nobody knows how.
    pub fn doubt_sent_since(&mut self, batch: u64) {
        for (_, entry) in &mut self.entries {
            if entry.sent >= batch {
                entry.standing = Standing::InDoubt;
            }
        }
    }

    /// One of those that were used since this batch began is outdated, on all servers. Nearly always there is but one.
    pub fn outdate_used_since(&mut self, batch: u64) {
        for (_, entry) in &self.entries {
            if entry.used.get() >= batch {
                entry.statement.outdate();
            }
        }
    }

    /// PostgreSQL may make something else of the text now than when it was prepared here, though it still serves.
    pub fn suspect(&mut self, id: u64) {
        if let Some(entry) = self.entries.peek_mut(&id)
            && entry.standing == Standing::Prepared
        {
            entry.standing = Standing::Suspect;
        }
    }

    /// Was it prepared here before this batch began?
    pub fn is_older(&self, id: u64, batch: u64) -> bool {
        self.entries.peek(&id).is_some_and(|it| it.sent < batch)
    }

    /// One of those that were used since this batch began may be read otherwise now.
    pub fn doubt_used_since(&mut self, batch: u64) {
        for (_, entry) in &mut self.entries {
            if entry.used.get() >= batch && entry.sent < batch {
                entry.standing = Standing::InDoubt;
            }
        }
    }

    /// Something has dropped statements here, nobody knows which.
    pub fn doubt_all(&mut self) {
        for (_, entry) in &mut self.entries {
            entry.standing = Standing::InDoubt;
        }
    }

    /// Its Close was done, or will never be.
    pub fn closed(&mut self, id: u64) {
        if let Some(at) = self.closing.iter().position(|&closing| closing == id) {
            self.closing.swap_remove(at);
        }
    }

    /// Its Close was not done. It is the first to go next time.
    pub fn restore(&mut self, statement: Arc<Statement>) {
        let id = statement.id();
        self.closed(id);
        self.entries.put(
            id,
            Entry {
                edition: statement.edition(),
                shape: Shape::UNKNOWN,
                statement,
                standing: Standing::InDoubt,
                used: Cell::new(0),
                sent: 0,
            },
        );
        self.entries.demote(&id);
    }

    /// Takes out the statement used longest ago, to be closed, if there are more than `limit`, but none that this batch has used.
    #[inline]
    pub fn evict_over(&mut self, limit: usize, batch: u64) -> Option<Arc<Statement>> {
        if self.entries.len() <= limit || self.entries.peek_lru()?.1.used.get() >= batch {
            return None;
        }
        let (id, entry) = self.entries.pop_lru()?;
        self.closing.push(id);
        Some(entry.statement)
    }

    /// Forgets everything: the server said `DEALLOCATE ALL` or `DISCARD ALL`.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// All that may be prepared here, in no order that matters.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Statement>> {
        self.entries.iter().map(|(_, entry)| &entry.statement)
    }

    /// How many are prepared here.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Is nothing prepared here?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepared::Registry;

    fn touch(list: &mut Statements, statement: &Statement, batch: u64) -> Known {
        list.touch(statement, batch).0
    }

    fn statements(count: usize) -> Vec<Arc<Statement>> {
        let registry = Registry::new();
        (0..count)
            .map(|i| {
                registry
                    .intern(
                        format!("select {i}\0\0\0").as_bytes(),
                        &registry.context(b""),
                        1 << 20,
                    )
                    .unwrap()
            })
            .collect()
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let [a, b, c] = statements(3).try_into().unwrap();
        let mut list = Statements::default();
        for statement in [&a, &b, &c] {
            list.sent(statement, 0);
        }
        assert_eq!(touch(&mut list, &a, 0), Known::Yes);
        assert_eq!(list.evict_over(2, 1).unwrap().id(), b.id());
        assert!(list.evict_over(2, 1).is_none());
    }

    #[test]
    fn an_evicted_statement_is_in_doubt_until_its_close_is_done() {
        let [a] = statements(1).try_into().unwrap();
        let mut list = Statements::default();
        list.sent(&a, 0);
        list.evict_over(0, 1).unwrap();
        assert_eq!(touch(&mut list, &a, 2), Known::InDoubt);
        list.closed(a.id());
        assert_eq!(touch(&mut list, &a, 2), Known::No);
    }

    #[test]
    fn what_is_outdated_is_in_doubt_on_every_server() {
        let [a, b] = statements(2).try_into().unwrap();
        let mut lists = [Statements::default(), Statements::default()];
        for list in &mut lists {
            for (batch, statement) in [&a, &b].into_iter().enumerate() {
                list.sent(statement, batch as u64);
                list.confirm(statement.id());
            }
        }
        lists[0].outdate_used_since(1);
        for list in &mut lists {
            assert_eq!(touch(list, &b, 2), Known::InDoubt);
            assert_eq!(touch(list, &a, 2), Known::Yes);
            list.sent(&b, 2);
            list.confirm(b.id());
            assert_eq!(touch(list, &b, 2), Known::Yes);
        }
    }

    #[test]
    fn a_suspect_is_used_until_it_is_prepared_again() {
        let [a] = statements(1).try_into().unwrap();
        let mut list = Statements::default();
        list.sent(&a, 0);
        list.suspect(a.id());
        assert_eq!(touch(&mut list, &a, 0), Known::Yes, "it is being prepared");
        list.confirm(a.id());
        list.suspect(a.id());
        assert_eq!(touch(&mut list, &a, 1), Known::Suspect);
        list.sent(&a, 1);
        list.confirm(a.id());
        assert_eq!(touch(&mut list, &a, 2), Known::Yes);
    }

    #[test]
    fn what_was_just_read_is_not_read_again() {
        let [a, b, c] = statements(3).try_into().unwrap();
        let mut list = Statements::default();
        for (batch, statement) in [(0, &a), (0, &b), (1, &c)] {
            list.sent(statement, batch);
            list.confirm(statement.id());
        }
        assert!(list.is_older(a.id(), 1) && !list.is_older(c.id(), 1));
        assert_eq!(touch(&mut list, &b, 1), Known::Yes);
        list.doubt_used_since(1);
        assert_eq!(
            [&a, &b, &c].map(|it| touch(&mut list, it, 1)),
            [Known::Yes, Known::InDoubt, Known::Yes]
        );
    }

    #[test]
    fn what_the_batch_has_used_stays() {
        let [a, b] = statements(2).try_into().unwrap();
        let mut list = Statements::default();
        list.sent(&a, 0);
        list.sent(&b, 1);
        assert_eq!(list.evict_over(0, 1).unwrap().id(), a.id());
        assert!(list.evict_over(0, 1).is_none());
    }

    #[test]
    fn a_restored_statement_is_the_next_to_go() {
        let [a, b] = statements(2).try_into().unwrap();
        let mut list = Statements::default();
        list.sent(&a, 0);
        list.sent(&b, 0);
        let evicted = list.evict_over(1, 1).unwrap();
        list.restore(evicted);
        assert_eq!(list.evict_over(1, 1).unwrap().id(), a.id());
    }

    #[test]
    fn a_statement_on_its_way_counts_for_its_own_batch_only() {
        let [a] = statements(1).try_into().unwrap();
        let mut list = Statements::default();
        assert_eq!(touch(&mut list, &a, 0), Known::No);
        list.sent(&a, 0);
        assert_eq!(
            (touch(&mut list, &a, 0), touch(&mut list, &a, 1)),
            (Known::Yes, Known::InDoubt)
        );
        list.confirm(a.id());
        assert_eq!(touch(&mut list, &a, 1), Known::Yes);
    }

    #[test]
    fn a_statement_whose_parse_was_not_done_is_in_doubt_until_it_is() {
        let [a] = statements(1).try_into().unwrap();
        let mut list = Statements::default();
        list.sent(&a, 0);
        list.doubt(a.id());
        assert_eq!(touch(&mut list, &a, 1), Known::InDoubt);
        list.sent(&a, 1);
        list.confirm(a.id());
        assert_eq!(touch(&mut list, &a, 2), Known::Yes);
    }

    #[test]
    fn a_shape_is_known_until_another_parse_is_sent() {
        let [a] = statements(1).try_into().unwrap();
        let (old, new) = (Shape::new(1, 2), Shape::new(1, 3));
        let mut list = Statements::default();
        list.sent(&a, 0);
        list.confirm(a.id());
        list.described(a.id(), old);
        assert_eq!(list.touch(&a, 1), (Known::Yes, old));
        a.outdate();
        assert_eq!(list.touch(&a, 1), (Known::InDoubt, Shape::UNKNOWN));
        // The answer to the first Parse may come after the third was sent.
        list.sent(&a, 1);
        list.sent(&a, 2);
        list.confirm(a.id());
        list.described(a.id(), old);
        assert_eq!(list.touch(&a, 2), (Known::Yes, Shape::UNKNOWN));
        list.confirm(a.id());
        list.described(a.id(), new);
        assert_eq!(list.touch(&a, 3), (Known::Yes, new));
        assert_eq!(list.shape(a.id()), new);
    }

    #[test]
    fn what_was_read_under_settings_that_nobody_knows_counts_for_its_own_batch_only() {
        let registry = Registry::new();
        let context = registry.unknown_context();
        let a = registry.intern(b"select 1\0\0\0", &context, 1 << 20);
        let (a, shape) = (a.unwrap(), Shape::new(1, 2));
        let mut list = Statements::default();
        list.sent(&a, 0);
        list.confirm(a.id());
        list.described(a.id(), shape);
        assert_eq!(list.touch(&a, 0), (Known::Yes, shape));
        assert_eq!(list.touch(&a, 1), (Known::InDoubt, Shape::UNKNOWN));
    }
}
