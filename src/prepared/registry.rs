//! The one map that all workers share, touched when a client sends Parse and at no other time.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use dashmap::DashMap;

use super::context::{Context, Contexts};

/// What can go wrong at Parse time in the registry itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The texts already held use up `prepared_statements_memory`.
    #[error(
        "out of memory for prepared statements: {held} of {limit} bytes are in use (prepared_statements_memory)"
    )]
    OverBudget {
        /// Bytes held at the moment.
        held: usize,
        /// The setting.
        limit: usize,
    },
}

/// A prepared statement as every server may come to know it.
///
/// On a cache line of its own: every Bind reads it, on all workers, and every Parse counts a share of it in.
#[repr(align(64))]
pub struct Statement {
    id: u64,
    name: Box<[u8]>,
    definition: Bytes,
    context: Context,
    /// How often it was outdated.
    edition: AtomicU32,
    registry: Weak<Shared>,
}

impl Statement {
    /// The number behind the name; never used twice in a process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The name under which servers know it.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Everything that follows the name in its Parse message: the SQL text with its NUL, then
    /// the parameter types (`protocol-message-formats`, Parse).
    pub fn definition(&self) -> &[u8] {
        &self.definition
    }

    /// The settings under which it is prepared: what it means under others is another statement's.
    #[inline]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Which edition of it is in force: what a server has of an older one is not to be used.
    #[inline]
    pub fn edition(&self) -> u32 {
        self.edition.load(Ordering::Relaxed)
    }

    /// What servers have prepared so far is not to be used any more: the tables are others now.
    pub fn outdate(&self) {
        self.edition.fetch_add(1, Ordering::Relaxed);
    }

    /// What the entry costs, for the budget: text, name and bookkeeping.
    fn cost(&self) -> usize {
        self.definition.len() + self.name.len() + ENTRY_OVERHEAD
    }
}

impl std::fmt::Debug for Statement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the text: it is a client's, and not for logs.
        write!(f, "Statement({})", self.id)
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        if let Some(shared) = self.registry.upgrade() {
            shared.held.fetch_sub(self.cost(), Ordering::Relaxed);
            // A new entry of the same text may have taken the place meanwhile: it stays.
            shared
                .statements
                .remove_if(self as &dyn Meaning, |_, entry| entry.strong_count() == 0);
        }
    }
}

/// What makes two statements one.
trait Meaning {
    fn parts(&self) -> (u64, &[u8]);
}

impl Meaning for Statement {
    fn parts(&self) -> (u64, &[u8]) {
        (self.context.number(), &self.definition)
    }
}

impl Meaning for (u64, &[u8]) {
    fn parts(&self) -> (u64, &[u8]) {
        *self
    }
}

struct Key {
    context: u64,
    definition: Bytes,
}

impl Meaning for Key {
    fn parts(&self) -> (u64, &[u8]) {
        (self.context, &self.definition)
    }
}

impl Hash for dyn Meaning + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl PartialEq for dyn Meaning + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn Meaning + '_ {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Key {}

impl<'a> Borrow<dyn Meaning + 'a> for Key {
    fn borrow(&self) -> &(dyn Meaning + 'a) {
        self
    }
}

/// Bytes an entry takes besides its text and name: the `Arc`, the map slot and two `Weak`s.
const ENTRY_OVERHEAD: usize = 160;

struct Shared {
    /// By the whole definition: a bare hash as the key would let a crafted text run another client's statement.
    statements: DashMap<Key, Weak<Statement>, ahash::RandomState>,
    contexts: Contexts,
    prefix: String,
    next_id: AtomicU64,
    held: AtomicUsize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the texts: they are clients'.
        write!(f, "Shared({} statements)", self.statements.len())
    }
}

/// The shared map from (SQL text, parameter types, settings) to a statement.
#[derive(Debug, Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// An empty registry. The names it will give carry a random mark, so that no client can
    /// name another's statement by counting.
    pub fn new() -> Self {
        Self::with_prefix(format!("pgferry_{:016x}_", rand::random::<u64>()))
    }

    /// An empty registry whose names begin like those of the process whose place this one takes: texts of its clients may
    /// have such names in them.
    pub fn with_prefix(prefix: String) -> Self {
        Self {
            shared: Arc::new(Shared {
                statements: DashMap::with_hasher(ahash::RandomState::new()),
                contexts: Contexts::default(),
                prefix,
                next_id: AtomicU64::new(1),
                held: AtomicUsize::new(0),
            }),
        }
    }

    /// What every global name begins with, and no client's name may.
    pub fn prefix(&self) -> &str {
        &self.shared.prefix
    }

    /// The context of these settings, written in any way that is the same for the same settings only.
    pub fn context(&self, settings: &[u8]) -> Context {
        self.shared.contexts.of(settings)
    }

    /// A context that is like no other, for a statement whose settings nobody knows yet.
    pub fn unknown_context(&self) -> Context {
        self.shared.contexts.unknown()
    }

    /// A context that is like no other, for statements that are shared by other ways than their settings.
    pub fn context_apart(&self) -> Context {
        self.shared.contexts.apart()
    }

    /// The statement of this definition under these settings, made if nobody holds one.
    ///
    /// `definition` is what follows the name in Parse. `limit` is `prepared_statements_memory`
    /// in bytes; a statement that somebody holds already is found even when it is reached.
    pub fn intern(
        &self,
        definition: &[u8],
        context: &Context,
        limit: usize,
    ) -> Result<Arc<Statement>, Error> {
        self.find_or_insert(definition, context, limit, Bytes::copy_from_slice)
    }

    /// What the text of `statement` is under other settings, as [`intern`](Self::intern).
    pub fn intern_under(
        &self,
        statement: &Statement,
        context: &Context,
        limit: usize,
    ) -> Result<Arc<Statement>, Error> {
        let definition = &statement.definition;
        self.find_or_insert(definition, context, limit, |_| definition.clone())
    }

    fn find_or_insert(
        &self,
        definition: &[u8],
        context: &Context,
        limit: usize,
        own: impl FnOnce(&[u8]) -> Bytes,
    ) -> Result<Arc<Statement>, Error> {
        let meaning = (context.number(), definition);
        let found = self.shared.statements.get(&meaning as &dyn Meaning);
        if let Some(found) = found.and_then(|weak| weak.upgrade()) {
            return Ok(found);
        }
        let held = self.shared.held.load(Ordering::Relaxed);
        if held.saturating_add(definition.len()) > limit {
            return Err(Error::OverBudget { held, limit });
        }
        Ok(self.insert(own(definition), context.clone()))
    }

    fn insert(&self, definition: Bytes, context: Context) -> Arc<Statement> {
        let key = Key {
            context: context.number(),
            definition: definition.clone(),
        };
        let mut slot = self.shared.statements.entry(key).or_default();
        // Another worker may have been quicker.
        if let Some(found) = slot.upgrade() {
            return found;
        }
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let statement = Arc::new(Statement {
            id,
            name: format!("{}{id}", self.shared.prefix)
                .into_bytes()
                .into_boxed_slice(),
            definition,
            context,
            edition: AtomicU32::new(0),
            registry: Arc::downgrade(&self.shared),
        });
        self.shared
            .held
            .fetch_add(statement.cost(), Ordering::Relaxed);
        *slot = Arc::downgrade(&statement);
        statement
    }

    /// How many statements are held.
    pub fn len(&self) -> usize {
        self.shared.statements.len()
    }

    /// Is nothing held?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of text and bookkeeping held.
    pub fn held_bytes(&self) -> usize {
        self.shared.held.load(Ordering::Relaxed)
    }

    /// Every statement held at this moment, for `SHOW PREPARED`.
    pub fn snapshot(&self) -> Vec<Arc<Statement>> {
        // Upgrading inside the iteration could drop the last `Arc` under the shard's lock; the
        // vector keeps each one alive until the iteration is over.
        self.shared
            .statements
            .iter()
            .filter_map(|entry| entry.value().upgrade())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1 << 20;

    fn intern(
        registry: &Registry,
        definition: &[u8],
        limit: usize,
    ) -> Result<Arc<Statement>, Error> {
        registry.intern(definition, &registry.context(b""), limit)
    }

    #[test]
    fn under_other_settings_the_same_text_is_another_statement() {
        let registry = Registry::new();
        let german = registry.context(b"German");
        let one = intern(&registry, b"select 1\0\0\0", LIMIT).unwrap();
        let other = registry.intern_under(&one, &german, LIMIT).unwrap();
        assert_ne!(one.name(), other.name());
        assert_eq!(one.definition(), other.definition());
        let same = registry.intern(b"select 1\0\0\0", &german, LIMIT).unwrap();
        assert!(Arc::ptr_eq(&other, &same));
        let held = registry.held_bytes();
        drop((other, same));
        assert!(registry.held_bytes() < held && registry.len() == 1);
    }

    #[test]
    fn the_same_text_and_types_are_one_statement() {
        let registry = Registry::new();
        let first = intern(&registry, b"select 1\0\0\0", LIMIT).unwrap();
        let second = intern(&registry, b"select 1\0\0\0", LIMIT).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert!(first.name().starts_with(registry.prefix().as_bytes()));
    }

    #[test]
    fn other_types_are_another_statement() {
        let registry = Registry::new();
        let untyped = intern(&registry, b"select $1\0\0\0", LIMIT).unwrap();
        let typed = intern(&registry, b"select $1\0\0\x01\0\0\0\x17", LIMIT).unwrap();
        assert_ne!(untyped.name(), typed.name());
    }

    #[test]
    fn what_nobody_holds_is_forgotten() {
        let registry = Registry::new();
        drop(intern(&registry, b"select 1\0\0\0", LIMIT).unwrap());
        assert!(registry.is_empty());
        assert_eq!(registry.held_bytes(), 0);
    }

    #[test]
    fn a_name_is_never_given_twice() {
        let registry = Registry::new();
        let first = intern(&registry, b"a\0\0\0", LIMIT).unwrap().id();
        let again = intern(&registry, b"a\0\0\0", LIMIT).unwrap().id();
        assert_ne!(first, again);
    }

    #[test]
    fn the_budget_refuses_new_texts_and_not_held_ones() {
        let registry = Registry::new();
        let held = intern(&registry, b"select 1\0\0\0", LIMIT).unwrap();
        let limit = registry.held_bytes();
        assert!(matches!(
            intern(&registry, b"select 2\0\0\0", limit),
            Err(Error::OverBudget { .. })
        ));
        assert!(Arc::ptr_eq(
            &held,
            &intern(&registry, b"select 1\0\0\0", limit).unwrap()
        ));
    }

    #[test]
    fn many_threads_agree_on_one_name() {
        let registry = Registry::new();
        let names: Vec<_> = std::thread::scope(|scope| {
            let tasks: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| intern(&registry, b"select 1\0\0\0", LIMIT).unwrap()))
                .collect();
            tasks.into_iter().map(|task| task.join().unwrap()).collect()
        });
        assert!(names.windows(2).all(|pair| Arc::ptr_eq(&pair[0], &pair[1])));
    }
}
