//! The names a client has given to statements. Owned by its task, so that looking one up takes no lock.
//!
//! Like the list of what a server has, this runs ahead of the server: a name is entered when its Parse is
//! sent and taken out again if the Parse fails or is skipped.
//!
//! The unnamed statement is kept by its text, in versions: the newest is what the client will get if all that it
//! sent is done; older ones are kept until it is known that they were replaced
//! (`protocol-flow-ext-query`: it lasts until the next unnamed Parse or simple Query).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::names::Names;
use crate::prepared::Statement;
use crate::protocol::shape::Shape;
use crate::server::{Forget, Named, StatementRef};
use crate::sql::touches::Found;
use crate::stats::Apart;

/// What the unnamed statement is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnnamedText {
    /// What follows the name in its Parse.
    pub definition: Vec<u8>,
    /// What running it does to the client's names and settings.
    pub forget: Option<Forget>,
    /// What running it may do to the session.
    pub found: Option<Arc<Found>>,
    /// What it was where it was parsed, if somebody has asked. It stays so, as in PostgreSQL.
    pub shape: Shape,
}

#[derive(Debug)]
struct Version {
    number: u64,
    text: Text,
}

#[derive(Debug)]
enum Text {
    /// There is no unnamed statement.
    Gone,
    /// It was too long to be kept: only the server that got it has it.
    NotKept,
    Kept(UnnamedText),
}

/// Bytes a name takes besides its own: the map slot and the pointers.
const NAME_OVERHEAD: usize = 96;

/// Bytes that all clients' names take together; part of `prepared_statements_memory`.
#[derive(Debug, Clone, Default)]
pub struct NamesHeld(Arc<Apart<AtomicUsize>>);

impl NamesHeld {
    /// Bytes held now.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// One client's statements.
#[derive(Debug, Default)]
pub struct Statements {
    names: Names<Named>,
    held: NamesHeld,
    versions: VecDeque<Version>,
    last_number: u64,
    /// A buffer of an old version, to be used again.
    spare: Vec<u8>,
}

impl Statements {
    /// No statements; their names will be counted in `held`.
    pub fn new(held: NamesHeld) -> Self {
        let mut statements = Self::default();
        statements.held = held;
        statements
    }

    /// Bytes that the names of all clients take.
    pub fn names_held(&self) -> usize {
        self.held.get()
    }

    /// What a name stands for.
    #[inline]
    pub fn get(&self, name: &[u8]) -> Option<&Named> {
        self.names.get(name)
    }

    /// All names, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Named)> {
        self.names.iter()
    }

    /// Is there an unnamed statement whose text is not known?
    pub fn has_unknown(&self) -> bool {
        let is_lost = |version: &Version| matches!(version.text, Text::NotKept);
        self.versions.iter().any(is_lost)
    }

    /// How many names there are.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// A name stands for this statement from now on; nothing if there is no such name. What the client knows it knows all the same.
    pub fn exchange(&mut self, name: &[u8], statement: Arc<Statement>) {
        if let Some(named) = self.names.get_mut(name) {
            named.statement = StatementRef(statement);
        }
    }

    /// This is what the client knows of the statement of this name, if the name still stands for it, or for one that nothing is known of.
    pub fn learn(&mut self, name: &[u8], id: u64, shape: Shape) {
        if let Some(named) = self.names.get_mut(name)
            && (named.statement.0.id() == id || !named.shape.is_known())
        {
            named.shape = shape;
        }
    }

    /// Whatever the client knows of this statement it is about to be told.
    pub fn unlearn(&mut self, name: &[u8]) {
        if let Some(named) = self.names.get_mut(name) {
            named.shape = Shape::UNKNOWN;
        }
    }

    /// Gives a name to a statement.
    pub fn insert(&mut self, name: Box<[u8]>, named: Named) {
        let cost = name.len() + NAME_OVERHEAD;
        if self.names.insert(name, named).is_none() {
            self.held.0.fetch_add(cost, Ordering::Relaxed);
        }
    }

    /// Takes a name away.
    pub fn remove(&mut self, name: &[u8]) -> Option<Named> {
        let named = self.names.remove(name)?;
        self.held
            .0
            .fetch_sub(name.len() + NAME_OVERHEAD, Ordering::Relaxed);
        Some(named)
    }

    /// Takes all names away.
    pub fn clear(&mut self) {
        let held: usize = self
            .names
            .iter()
            .map(|(name, _)| name.len() + NAME_OVERHEAD)
            .sum();
        self.held.0.fetch_sub(held, Ordering::Relaxed);
        self.names = Names::default();
    }

    /// The client's name for a statement known by its global name: for the text of an error.
    pub fn name_of(&self, global: &[u8]) -> Option<&[u8]> {
        self.names
            .iter()
            .find(|(_, named)| named.statement.0.name() == global)
            .map(|(name, _)| name)
    }

    /// The unnamed statement as the client last made it, with its version number.
    #[inline]
    pub fn unnamed(&self) -> Option<(u64, &UnnamedText)> {
        let version = self.versions.back()?;
        match &version.text {
            Text::Kept(text) => Some((version.number, text)),
            Text::Gone | Text::NotKept => None,
        }
    }

    /// A new unnamed statement is on its way. Returns its version number.
    pub fn replace_unnamed(
        &mut self,
        definition: &[u8],
        forget: Option<Forget>,
        found: Option<Arc<Found>>,
    ) -> u64 {
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.clear();
        buffer.extend_from_slice(definition);
        self.push_version(Text::Kept(UnnamedText {
            definition: buffer,
            forget,
            found,
            shape: Shape::UNKNOWN,
        }))
    }

    /// The unnamed statement is read on another server, and nobody knows what it was: it is what it is there, and where it was parsed it
    /// is of no use any more. Returns its new version number.
    #[cold]
    pub fn renew_unnamed(&mut self) -> u64 {
        self.last_number += 1;
        if let Some(version) = self.versions.back_mut() {
            version.number = self.last_number;
        }
        self.last_number
    }

    /// This is what the unnamed statement of this version is.
    #[cold]
    pub fn learn_unnamed(&mut self, number: u64, shape: Shape) {
        let version = self.versions.iter_mut().find(|it| it.number == number);
        if let Some(Version {
            text: Text::Kept(text),
            ..
        }) = version
        {
            text.shape = shape;
        }
    }

    /// A new unnamed statement is on its way whose text is too long to be kept: only the server that gets it has
    /// it. Returns its version number.
    pub fn pass_unnamed(&mut self) -> u64 {
        self.push_version(Text::NotKept)
    }

    /// The number of the newest version, whether or not there is a text to it.
    pub fn newest_unnamed(&self) -> Option<u64> {
        self.versions.back().map(|version| version.number)
    }

    /// The unnamed statement is about to go. `None` if there is none anyway, whatever becomes of what is under way.
    #[inline]
    pub fn drop_unnamed(&mut self) -> Option<u64> {
        self.versions.back()?;
        Some(self.push_version(Text::Gone))
    }

    fn push_version(&mut self, text: Text) -> u64 {
        self.last_number += 1;
        self.versions.push_back(Version {
            number: self.last_number,
            text,
        });
        self.last_number
    }

    /// This version is in force on the server: older ones can't come back.
    pub fn confirm_unnamed(&mut self, number: u64) {
        while self
            .versions
            .front()
            .is_some_and(|version| version.number < number)
        {
            if let Some(Text::Kept(UnnamedText { definition, .. })) =
                self.versions.pop_front().map(|version| version.text)
                && definition.capacity() <= SPARE_CAPACITY
            {
                self.spare = definition;
            }
        }
        if self.versions.len() == 1
            && self
                .versions
                .front()
                .is_some_and(|version| matches!(version.text, Text::Gone))
        {
            self.versions.clear();
        }
    }

    /// The server skipped what would have made this version: what was before is still there.
    pub fn skip_unnamed(&mut self, number: u64) {
        self.versions.retain(|version| version.number != number);
    }

    /// The Parse of this version failed: PostgreSQL has dropped the one before all the same.
    pub fn fail_unnamed(&mut self, number: u64) {
        if let Some(version) = self
            .versions
            .iter_mut()
            .find(|version| version.number == number)
        {
            version.text = Text::Gone;
        }
        self.confirm_unnamed(number);
    }
}

/// A longer text's buffer is not kept for the next.
const SPARE_CAPACITY: usize = 4096;

impl Drop for Statements {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A named statement that does nothing to other names.
pub fn plain(statement: Arc<Statement>) -> Named {
    Named {
        shape: Shape::UNKNOWN,
        statement: StatementRef(statement),
        forget: None,
        found: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepared::Registry;

    fn unnamed(statements: &Statements) -> Option<&[u8]> {
        statements
            .unnamed()
            .map(|(_, text)| text.definition.as_slice())
    }

    #[test]
    fn a_skipped_parse_leaves_the_unnamed_statement_as_it_was() {
        let mut statements = Statements::default();
        let first = statements.replace_unnamed(b"a", None, None);
        statements.confirm_unnamed(first);
        let second = statements.replace_unnamed(b"b", None, None);
        assert_eq!(unnamed(&statements), Some(&b"b"[..]));
        statements.skip_unnamed(second);
        assert_eq!(unnamed(&statements), Some(&b"a"[..]));
    }

    #[test]
    fn a_failed_parse_leaves_no_unnamed_statement() {
        let mut statements = Statements::default();
        statements.replace_unnamed(b"a", None, None);
        let second = statements.replace_unnamed(b"b", None, None);
        statements.fail_unnamed(second);
        assert_eq!(unnamed(&statements), None);
    }

    #[test]
    fn of_several_in_flight_the_skipped_ones_go_and_the_done_one_stays() {
        let mut statements = Statements::default();
        let [a, b, c] = [b"a", b"b", b"c"].map(|text| statements.replace_unnamed(text, None, None));
        statements.confirm_unnamed(a);
        statements.skip_unnamed(c);
        statements.skip_unnamed(b);
        assert_eq!(unnamed(&statements), Some(&b"a"[..]));
    }

    #[test]
    fn a_simple_query_drops_it() {
        let mut statements = Statements::default();
        assert_eq!(statements.drop_unnamed(), None);
        statements.replace_unnamed(b"a", None, None);
        let dropped = statements.drop_unnamed().unwrap();
        assert_eq!(unnamed(&statements), None);
        statements.skip_unnamed(dropped);
        assert_eq!(unnamed(&statements), Some(&b"a"[..]));
    }

    #[test]
    fn a_query_drops_what_a_skipped_close_has_left() {
        let mut statements = Statements::default();
        let first = statements.replace_unnamed(b"a", None, None);
        let close = statements.drop_unnamed().unwrap();
        let query = statements.drop_unnamed().unwrap();
        statements.confirm_unnamed(first);
        statements.skip_unnamed(close);
        statements.confirm_unnamed(query);
        assert_eq!(unnamed(&statements), None);
    }

    #[test]
    fn names_are_counted_while_they_are_held() {
        let held = NamesHeld::default();
        let registry = Registry::new();
        let statement = registry
            .intern(b"select 1\0\0\0", &registry.context(b""), 1 << 20)
            .unwrap();
        let mut statements = Statements::new(held.clone());
        statements.insert(b"s1".as_slice().into(), plain(statement.clone()));
        statements.insert(b"s2".as_slice().into(), plain(statement));
        assert_eq!(held.get(), 2 * (2 + NAME_OVERHEAD));
        statements.remove(b"s1");
        drop(statements);
        assert_eq!(held.get(), 0);
    }
}
