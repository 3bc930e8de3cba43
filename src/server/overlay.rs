//! What a client has set in its session beyond what the session began with, so that another server can be made the same.
//!
//! The parameters that PostgreSQL reports are [`session`](super::session)'s; these are all others, as a look at the server
//! ([`look`](super::look)) finds them: `pg_settings` with `source = 'session'`, custom settings by name, and two that are not
//! listed there, `role` and `session_authorization`. Beside the settings there are the statements of SQL's `PREPARE`.

pub mod prepared;

use std::sync::Arc;

use crate::sql::quote::{put_identifier, put_literal};
use prepared::Prepared;

/// SET ROLE.
pub const ROLE: &[u8] = b"role";

/// SET SESSION AUTHORIZATION.
pub const AUTHORIZATION: &[u8] = b"session_authorization";

/// A setting's name and its value.
pub type Setting = (Box<[u8]>, Box<[u8]>);

/// Settings of a session with their values, by name, and its statements. Nearly all are empty, and an empty one is a null pointer.
#[derive(Debug, Clone, Default)]
pub struct Overlay(Option<Arc<Set>>);

#[derive(Debug, PartialEq, Eq)]
struct Set {
    settings: Vec<Setting>,
    statements: Vec<Prepared>,
}

impl Overlay {
    /// These settings; of one that is named twice the first counts.
    pub fn new(settings: Vec<Setting>) -> Self {
        Self::with_statements(settings, Vec::new())
    }

    /// These settings and statements of SQL's `PREPARE`; of what is named twice the first counts.
    pub fn with_statements(mut settings: Vec<Setting>, mut statements: Vec<Prepared>) -> Self {
        settings.sort_by(|one, other| one.0.cmp(&other.0));
        settings.dedup_by(|one, other| one.0 == other.0);
        statements.sort_by(|one, other| one.name.cmp(&other.name));
        statements.dedup_by(|one, other| one.name == other.name);
        let is_empty = settings.is_empty() && statements.is_empty();
        let set = || {
            Arc::new(Set {
                settings,
                statements,
            })
        };
        Self((!is_empty).then(set))
    }

    /// Is nothing set, and nothing prepared?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Are the same settings set to the same values, and the same statements prepared?
    #[inline]
    pub fn same_as(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
            _ => false,
        }
    }

    fn settings(&self) -> &[Setting] {
        self.0.as_ref().map_or(&[], |set| &set.settings)
    }

    /// The settings, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let settings = self.settings().iter();
        settings.map(|(name, value)| (&**name, &**value))
    }

    /// The statements of SQL's `PREPARE`, ordered by name.
    pub fn statements(&self) -> &[Prepared] {
        self.0.as_ref().map_or(&[], |set| &set.statements)
    }

    /// These settings, and those of `other` besides that are not among them; likewise the statements.
    #[must_use]
    pub fn filled_from(&self, other: &Self) -> Self {
        let settings = self.settings().iter().chain(other.settings());
        let statements = self.statements().iter().chain(other.statements());
        Self::with_statements(settings.cloned().collect(), statements.cloned().collect())
    }

    /// These settings, with the statements of `other`.
    #[must_use]
    pub fn with_statements_of(&self, other: &Self) -> Self {
        if self.statements() == other.statements() {
            return self.clone();
        }
        Self::with_statements(self.settings().to_vec(), other.statements().to_vec())
    }

    /// These settings, and the statements but for these.
    #[must_use]
    pub fn without_statements(&self, lost: &[&Prepared]) -> Self {
        if lost.is_empty() {
            return self.clone();
        }
        let left = self.statements().iter().filter(|it| !lost.contains(it));
        Self::with_statements(self.settings().to_vec(), left.cloned().collect())
    }

    /// What a setting is set to; its name to the letter.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let settings = self.settings();
        let at = settings
            .binary_search_by(|(known, _)| (**known).cmp(name))
            .ok()?;
        settings.get(at).map(|(_, value)| &**value)
    }

    /// The statements that a session with those of `has` lacks.
    pub fn missing(&self, has: &Self) -> Vec<&Prepared> {
        let statements = self.statements().iter();
        statements
            .filter(|it| !has.statements().contains(it))
            .collect()
    }

    /// The statements that take away what a session with those of `has` has too much; empty if there is nothing.
    pub fn deallocation(&self, has: &Self) -> Vec<u8> {
        let mut sql = Vec::new();
        for extra in has.missing(self) {
            extra.put_deallocate(&mut sql);
        }
        sql
    }

    /// The text that makes a session with the settings of `has` one with these; empty if nothing has to change.
    ///
    /// Who the session is comes last and goes first: what a role may not set was set by somebody else.
    pub fn difference(&self, has: &Self) -> Vec<u8> {
        let mut sql = Vec::new();
        if self.settings() == has.settings() {
            return sql;
        }
        if has.get(AUTHORIZATION).is_some() {
            sql.extend_from_slice(b"RESET SESSION AUTHORIZATION;");
        } else if has.get(ROLE).is_some() {
            sql.extend_from_slice(b"RESET ROLE;");
        }
        let identity = |name: &[u8]| name == ROLE || name == AUTHORIZATION;
        for (name, _) in has.iter().filter(|(name, _)| !identity(name)) {
            if self.get(name).is_none() {
                sql.extend_from_slice(b"RESET ");
                put_name(&mut sql, name);
                sql.push(b';');
            }
        }
        for (name, value) in self.iter().filter(|(name, _)| !identity(name)) {
            if has.get(name) != Some(value) {
                // Not SET: this takes a list as it is printed.
                sql.extend_from_slice(b"SELECT pg_catalog.set_config(");
                put_literal(&mut sql, name);
                sql.push(b',');
                put_literal(&mut sql, value);
                sql.extend_from_slice(b",false);");
            }
        }
        for (name, set) in [
            (AUTHORIZATION, &b"SET SESSION AUTHORIZATION "[..]),
            (ROLE, b"SET ROLE "),
        ] {
            if let Some(value) = self.get(name) {
                sql.extend_from_slice(set);
                put_literal(&mut sql, value);
                sql.push(b';');
            }
        }
        sql
    }
}

/// Appends a setting's name as SQL has it: the parts of a custom one are names of their own.
fn put_name(sql: &mut Vec<u8>, name: &[u8]) {
    for (at, part) in name.split(|&byte| byte == b'.').enumerate() {
        if at > 0 {
            sql.push(b'.');
        }
        put_identifier(sql, part);
    }
}

/// Settings for tests.
#[cfg(test)]
pub(crate) fn settings(pairs: &[(&str, &str)]) -> Vec<Setting> {
    let owned = |text: &str| text.as_bytes().into();
    pairs
        .iter()
        .map(|(name, value)| (owned(name), owned(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::prepared::prepared;
    use super::*;

    fn overlay(pairs: &[(&str, &str)]) -> Overlay {
        Overlay::new(settings(pairs))
    }

    fn difference(wanted: &[(&str, &str)], has: &[(&str, &str)]) -> String {
        String::from_utf8(overlay(wanted).difference(&overlay(has))).unwrap()
    }

    #[test]
    fn what_is_the_same_costs_nothing() {
        assert_eq!(difference(&[], &[]), "");
        assert_eq!(difference(&[("a", "1")], &[("a", "1")]), "");
    }

    #[test]
    fn what_is_filled_in_replaces_nothing() {
        let filled = overlay(&[("b", "1")]).filled_from(&overlay(&[("a", "2"), ("b", "2")]));
        assert!(filled.same_as(&overlay(&[("a", "2"), ("b", "1")])));
    }

    #[test]
    fn only_what_differs_is_set_and_what_is_left_over_is_reset() {
        assert_eq!(
            difference(&[("a", "1"), ("b", "2")], &[("a", "1"), ("x.y", "3")]),
            "RESET \"x\".\"y\";SELECT pg_catalog.set_config('b','2',false);"
        );
    }

    #[test]
    fn settings_are_made_as_the_one_who_logged_in() {
        assert_eq!(
            difference(
                &[("role", "r"), ("session_authorization", "s"), ("b", "2")],
                &[("role", "q")]
            ),
            "RESET ROLE;SELECT pg_catalog.set_config('b','2',false);\
             SET SESSION AUTHORIZATION 's';SET ROLE 'r';"
        );
        assert_eq!(
            difference(&[], &[("role", "q"), ("session_authorization", "s")]),
            "RESET SESSION AUTHORIZATION;"
        );
    }

    #[test]
    fn a_role_that_stays_is_set_again_if_anything_else_changes() {
        assert_eq!(
            difference(&[("role", "q")], &[("role", "q"), ("a", "1")]),
            "RESET ROLE;RESET \"a\";SET ROLE 'q';"
        );
    }

    #[test]
    fn statements_are_prepared_and_deallocated_where_they_differ() {
        let with = |statements: &[(&str, &str)]| {
            let statements = statements
                .iter()
                .map(|(name, body)| prepared(name, "", body));
            Overlay::with_statements(settings(&[("a", "1")]), statements.collect())
        };
        let wanted = with(&[("q", "SELECT 2"), ("p", "SELECT 1"), ("r", "SELECT 3")]);
        let has = with(&[("p", "SELECT 1"), ("q", "SELECT 0"), ("x\"", "SELECT 4")]);
        assert!(!wanted.same_as(&has));
        assert_eq!(wanted.difference(&has), b"");
        assert_eq!(
            String::from_utf8(wanted.deallocation(&has)).unwrap(),
            "DEALLOCATE \"q\";DEALLOCATE \"x\"\"\";"
        );
        let missing = wanted.missing(&has);
        let names: Vec<_> = missing.iter().map(|it| &*it.name).collect();
        assert_eq!(names, [b"q", b"r"]);
        assert!(
            wanted
                .without_statements(&missing)
                .same_as(&with(&[("p", "SELECT 1")]))
        );
        assert!(wanted.with_statements_of(&has).same_as(&has));
        assert!(
            with(&[("p", "SELECT 1")])
                .filled_from(&wanted)
                .same_as(&wanted)
        );
    }

    #[test]
    fn names_and_values_can_not_leave_their_quotes() {
        assert_eq!(
            difference(&[("a", r"';\")], &[("x\".y", "")]),
            "RESET \"x\"\"\".\"y\";SELECT pg_catalog.set_config('a',E''';\\\\',false);"
        );
    }
}
