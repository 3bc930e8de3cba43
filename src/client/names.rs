//! A map by names. Most clients give none, so an empty one is a pointer and nothing else.

use std::collections::HashMap;

type Map<V> = HashMap<Box<[u8]>, V, ahash::RandomState>;

/// What the names of one client stand for.
#[derive(Debug)]
pub struct Names<V>(Option<Box<Map<V>>>);

impl<V> Default for Names<V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<V> Names<V> {
    /// Are there none?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |map| map.len())
    }

    /// What a name stands for.
    #[inline]
    pub fn get(&self, name: &[u8]) -> Option<&V> {
        self.0.as_ref()?.get(name)
    }

    /// What a name stands for, to be changed.
    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut V> {
        self.0.as_mut()?.get_mut(name)
    }

    /// Gives a name; what it stood for before.
    pub fn insert(&mut self, name: Box<[u8]>, value: V) -> Option<V> {
        self.0.get_or_insert_default().insert(name, value)
    }

    /// Takes a name away; what it stood for.
    pub fn remove(&mut self, name: &[u8]) -> Option<V> {
        self.0.as_mut()?.remove(name)
    }

    /// Takes all away. The room is kept for the next ones.
    pub fn clear(&mut self) {
        if let Some(map) = &mut self.0 {
            map.clear();
        }
    }

    /// All names, with what they stand for.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        let entries = self.0.iter().flat_map(|map| map.iter());
        entries.map(|(name, value)| (&**name, value))
    }
}
