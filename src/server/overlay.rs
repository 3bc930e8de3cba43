//! What a client has set in its session beyond what the session began with, so that another server can be made the same.
//!
//! The parameters that PostgreSQL reports are [`session`](super::session)'s; these are all others, as a look at the server
//! ([`look`](super::look)) finds them: `pg_settings` with `source = 'session'`, custom settings by name, and two that are not
//! listed there, `role` and `session_authorization`.

use std::sync::Arc;

use crate::sql::quote::{put_identifier, put_literal};

/// SET ROLE.
pub const ROLE: &[u8] = b"role";

/// SET SESSION AUTHORIZATION.
pub const AUTHORIZATION: &[u8] = b"session_authorization";

/// A setting's name and its value.
pub type Setting = (Box<[u8]>, Box<[u8]>);

/// Settings of a session with their values, by name. Nearly all are empty, and an empty one is a null pointer.
#[derive(Debug, Clone, Default)]
pub struct Overlay(Option<Arc<Vec<Setting>>>);

impl Overlay {
    /// These settings; of one that is named twice the first counts.
    pub fn new(mut settings: Vec<Setting>) -> Self {
        settings.sort_by(|one, other| one.0.cmp(&other.0));
        settings.dedup_by(|one, other| one.0 == other.0);
        Self((!settings.is_empty()).then(|| Arc::new(settings)))
    }

    /// Is nothing set?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Are the same settings set to the same values?
    #[inline]
    pub fn same_as(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
            _ => false,
        }
    }

    /// The settings, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let settings = self.0.iter().flat_map(|settings| settings.iter());
        settings.map(|(name, value)| (&**name, &**value))
    }

    /// These settings, and those of `other` besides that are not among them.
    #[must_use]
    pub fn filled_from(&self, other: &Self) -> Self {
        let both = self.0.iter().chain(other.0.iter());
        Self::new(both.flat_map(|settings| settings.iter().cloned()).collect())
    }

    /// What a setting is set to; its name to the letter.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let settings = self.0.as_deref()?;
        let at = settings
            .binary_search_by(|(known, _)| (**known).cmp(name))
            .ok()?;
        settings.get(at).map(|(_, value)| &**value)
    }

    /// The statements that make a session with the settings `has` one with these; empty if nothing has to change.
    ///
    /// Who the session is comes last and goes first: what a role may not set was set by somebody else.
    pub fn difference(&self, has: &Self) -> Vec<u8> {
        let mut sql = Vec::new();
        if self.same_as(has) {
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
    fn names_and_values_can_not_leave_their_quotes() {
        assert_eq!(
            difference(&[("a", r"';\")], &[("x\".y", "")]),
            "RESET \"x\"\"\".\"y\";SELECT pg_catalog.set_config('a',E''';\\\\',false);"
        );
    }
}
