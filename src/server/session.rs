//! What a session on a server looks like, as far as the server tells: the tracked parameters.
//!
//! Each of these is a setting that PostgreSQL reports whenever it changes (`ParameterStatus`,
//! `protocol-async`), so its value on a server is always known. A client has its own wanted values;
//! the difference is set before it gets the server (PgBouncer, `track_extra_parameters`).

use std::sync::Arc;

use crate::sql::quote::put_literal;

/// Always tracked; `track_extra_parameters` adds more.
const ALWAYS: [&str; 5] = [
    "DateStyle",
    "client_encoding",
    "TimeZone",
    "standard_conforming_strings",
    "application_name",
];

/// Those whose values PostgreSQL reads without regard to case, and may report in other letters than it was given. All
/// others are text: `tenant` is not `Tenant`.
const CASELESS: [&str; 6] = [
    "DateStyle",
    "client_encoding",
    "TimeZone",
    "IntervalStyle",
    "standard_conforming_strings",
    "default_transaction_read_only",
];

/// Which parameters are tracked. Fixed for the life of the process.
#[derive(Debug, Clone)]
pub struct TrackedNames(Arc<[String]>);

impl TrackedNames {
    /// The five that are always tracked and `extra`.
    pub fn new(extra: &[String]) -> Self {
        let mut names: Vec<String> = ALWAYS.iter().map(|&name| name.to_owned()).collect();
        for name in extra {
            if !names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                names.push(name.clone());
            }
        }
        Self(names.into())
    }

    /// The place of a parameter, whose name may be in any case.
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.0
            .iter()
            .position(|known| known.as_bytes().eq_ignore_ascii_case(name))
    }

    /// The names in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The place of `application_name`.
    pub fn application_name(&self) -> Option<usize> {
        self.position(b"application_name")
    }
}

/// Values of the tracked parameters, of a server or as a client wants them. Clones share them.
#[derive(Debug, Clone)]
pub struct Tracked(Arc<Values>);

#[derive(Debug, Clone)]
struct Values {
    names: TrackedNames,
    known: Vec<Option<Box<[u8]>>>,
    /// All values in one string, so that two of these are compared at once: nearly always they are equal.
    flat: Box<[u8]>,
}

impl Tracked {
    /// Nothing known yet.
    pub fn new(names: TrackedNames) -> Self {
        let known = vec![None; names.0.len()];
        let mut values = Values {
            names,
            known,
            flat: Box::default(),
        };
        values.flatten();
        Self(Arc::new(values))
    }

    /// Which parameters are tracked.
    pub fn names(&self) -> &TrackedNames {
        &self.0.names
    }

    /// The value of the parameter at this place.
    pub fn get(&self, position: usize) -> Option<&[u8]> {
        self.0.known.get(position)?.as_deref()
    }

    /// Notes a value; false if the parameter is not tracked.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> bool {
        let Some(at) = self.0.names.position(name) else {
            return false;
        };
        if self.get(at) == Some(value) {
            return true;
        }
        let own = Arc::make_mut(&mut self.0);
        if let Some(slot) = own.known.get_mut(at) {
            *slot = Some(value.into());
        }
        own.flatten();
        true
    }

    /// Takes over the values of `other` where there is none yet.
    pub fn fill_from(&mut self, other: &Self) {
        let own = Arc::make_mut(&mut self.0);
        for (mine, theirs) in own.known.iter_mut().zip(&other.0.known) {
            if mine.is_none() {
                mine.clone_from(theirs);
            }
        }
        own.flatten();
    }

    /// The values that `other` knows nothing of, with their names.
    pub fn unknown_to<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let values = self.0.known.iter().zip(&other.0.known);
        let both = self.0.names.iter().zip(values);
        both.filter_map(|(name, (mine, theirs))| {
            let mine = mine.as_deref()?;
            theirs.is_none().then_some((name, mine))
        })
    }

    /// All but the parameters with these names.
    #[must_use]
    pub fn without(&self, names: &[&[u8]]) -> Self {
        let mut rest = Self::new(self.0.names.clone());
        for (name, value) in self.iter() {
            if !names.contains(&name.as_bytes()) {
                rest.set(name.as_bytes(), value);
            }
        }
        rest
    }

    /// The known values with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0
            .names
            .iter()
            .zip(&self.0.known)
            .filter_map(|(name, value)| Some((name, value.as_deref()?)))
    }

    /// Is every value the same, to the byte?
    #[inline]
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.flat == other.0.flat
    }

    /// Appends what of the values has a say in what a text means: all but `application_name`. The same bytes are the
    /// same values.
    pub fn put_context(&self, out: &mut Vec<u8>) {
        let name = self.0.names.application_name();
        for (at, value) in self.0.known.iter().enumerate() {
            if let Some(value) = value
                && Some(at) != name
            {
                out.push(1);
                out.extend_from_slice(value);
            }
            out.push(0);
        }
    }

    /// The `SET`s that make a server with the values `server` fit for a client that wants these, of the parameters that
    /// are meant; empty if nothing has to change. A value that only one side knows is left alone.
    pub fn difference(&self, server: &Self, is_meant: impl Fn(&str) -> bool) -> Vec<u8> {
        let mut sql = Vec::new();
        let values = self.0.known.iter().zip(&server.0.known);
        for (name, (wanted, has)) in self.0.names.iter().zip(values) {
            if let (Some(wanted), Some(has)) = (wanted, has)
                && is_meant(name)
                && !is_same_value(name, wanted, has)
            {
                put_set(&mut sql, name, wanted);
            }
        }
        sql
    }
}

impl Values {
    fn flatten(&mut self) {
        let lengths = self.known.iter().flatten().map(|value| value.len());
        let mut flat = Vec::with_capacity(lengths.sum::<usize>() + 2 * self.known.len());
        for value in &self.known {
            match value {
                Some(value) => {
                    flat.push(1);
                    flat.extend_from_slice(value);
                }
                None => flat.push(2),
            }
            flat.push(0);
        }
        self.flat = flat.into_boxed_slice();
    }
}

/// Do both texts stand for one value of this parameter?
fn is_same_value(name: &str, one: &[u8], other: &[u8]) -> bool {
    let caseless = || {
        CASELESS
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
    };
    one == other || (one.eq_ignore_ascii_case(other) && caseless())
}

/// Appends `SET name='value';`.
fn put_set(sql: &mut Vec<u8>, name: &str, value: &[u8]) {
    sql.extend_from_slice(b"SET ");
    sql.extend_from_slice(name.as_bytes());
    sql.push(b'=');
    let names = name
        .eq_ignore_ascii_case("search_path")
        .then(|| list(value))
        .flatten();
    // A literal for the whole would make one name of a list.
    if let Some([first, rest @ ..]) = names.as_deref() {
        put_literal(sql, first);
        for name in rest {
            sql.push(b',');
            put_literal(sql, name);
        }
    } else {
        put_literal(sql, value);
    }
    sql.push(b';');
}

/// The names in a list such as `search_path` has it, as PostgreSQL reads them: in quotes as they are, else in
/// lower case. `None`: it is no such list.
fn list(value: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut rest = value.trim_ascii_start();
    loop {
        let (name, after) = match rest.strip_prefix(b"\"") {
            Some(inside) => quoted(inside)?,
            None => {
                let ends = |byte: &u8| *byte == b',' || byte.is_ascii_whitespace();
                let (name, after) = rest.split_at(rest.iter().position(ends).unwrap_or(rest.len()));
                (
                    Some(name.to_ascii_lowercase()).filter(|name| !name.is_empty())?,
                    after,
                )
            }
        };
        names.push(name);
        match after.trim_ascii_start() {
            [] => return Some(names),
            [b',', more @ ..] => rest = more.trim_ascii_start(),
            _ => return None,
        }
    }
}

/// What stands before the closing quote, where two stand for one, and what follows it.
fn quoted(inside: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut name = Vec::new();
    let mut rest = inside;
    loop {
        let end = memchr::memchr(b'"', rest)?;
        let (before, after) = rest.split_at(end);
        name.extend_from_slice(before);
        let after = after.get(1..)?;
        let Some(more) = after.strip_prefix(b"\"") else {
            return Some((name, after));
        };
        name.push(b'"');
        rest = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracked(values: &[(&str, &str)]) -> Tracked {
        let mut tracked = Tracked::new(TrackedNames::new(&[
            "IntervalStyle".to_owned(),
            "search_path".to_owned(),
        ]));
        for (name, value) in values {
            assert!(tracked.set(name.as_bytes(), value.as_bytes()));
        }
        tracked
    }

    #[test]
    fn only_what_differs_is_set() {
        let client = tracked(&[("timezone", "UTC"), ("DateStyle", "iso, mdy")]);
        let server = tracked(&[("TimeZone", "Europe/Berlin"), ("DateStyle", "ISO, MDY")]);
        assert_eq!(client.difference(&server, |_| true), b"SET TimeZone='UTC';");
    }

    #[test]
    fn a_text_that_differs_in_case_is_another_text() {
        let client = tracked(&[("application_name", "tenant"), ("search_path", "\"A\"")]);
        let server = tracked(&[("application_name", "Tenant"), ("search_path", "\"a\"")]);
        let sql = String::from_utf8(client.difference(&server, |_| true)).unwrap();
        assert_eq!(sql, "SET application_name='tenant';SET search_path='A';");
    }

    #[test]
    fn what_one_side_does_not_know_is_left_alone() {
        assert!(
            tracked(&[("TimeZone", "UTC")])
                .difference(&tracked(&[]), |_| true)
                .is_empty()
        );
        assert!(
            tracked(&[])
                .difference(&tracked(&[("TimeZone", "UTC")]), |_| true)
                .is_empty()
        );
    }

    #[test]
    fn the_name_of_an_application_has_no_say_in_what_a_text_means() {
        let context = |values| {
            let mut context = Vec::new();
            tracked(values).put_context(&mut context);
            context
        };
        let one = context(&[("application_name", "a"), ("TimeZone", "UTC")]);
        assert_eq!(one, context(&[("TimeZone", "UTC")]));
        assert_ne!(one, context(&[("TimeZone", "Asia/Tokyo")]));
        assert_ne!(one, context(&[("IntervalStyle", "UTC")]));
        assert_ne!(context(&[("TimeZone", "")]), context(&[]));
    }

    #[test]
    fn quotes_and_backslashes_can_not_leave_the_literal() {
        let client = tracked(&[("application_name", r"a'; drop table t; --\")]);
        let server = tracked(&[("application_name", "")]);
        let sql = String::from_utf8(client.difference(&server, |_| true)).unwrap();
        assert_eq!(sql, r"SET application_name=E'a''; drop table t; --\\';");
    }

    /// How a `search_path` is set.
    fn set_path(value: &str) -> String {
        let server = tracked(&[("search_path", "pg_catalog")]);
        let sql = tracked(&[("search_path", value)]).difference(&server, |_| true);
        String::from_utf8(sql).unwrap()
    }

    #[test]
    fn a_list_is_quoted_name_by_name() {
        let table = [
            ("a, \"B\"", "'a','B'"),
            (" \"$user\" ,PUBLIC ", "'$user','public'"),
            ("$user,user", "'$user','user'"),
            ("\"a\"\"b,'c\"", "'a\"b,''c'"),
            ("\"\"", "''"),
            ("", "''"),
        ];
        for (value, wanted) in table {
            assert_eq!(set_path(value), format!("SET search_path={wanted};"));
        }
    }

    #[test]
    fn what_is_no_list_is_one_literal_and_never_sql() {
        for value in ["a; COMMIT", "a b", "\"open", "a,,b", ",", "a,", "\"a\"b"] {
            assert_eq!(set_path(value), format!("SET search_path='{value}';"));
        }
    }

    #[test]
    fn what_the_other_side_does_not_know_can_be_taken_out() {
        let asked = tracked(&[("TimeZone", "UTC"), ("search_path", "a")]);
        let fresh = tracked(&[("TimeZone", "CET")]);
        let unknown: Vec<_> = asked.unknown_to(&fresh).collect();
        assert_eq!(unknown, [("search_path", &b"a"[..])]);
        let rest = asked.without(&[b"search_path"]);
        assert!(rest.same_as(&tracked(&[("TimeZone", "UTC")])));
    }

    #[test]
    fn known_and_unknown_values_are_not_the_same() {
        assert!(!tracked(&[("TimeZone", "")]).same_as(&tracked(&[])));
        assert!(tracked(&[("TimeZone", "UTC")]).same_as(&tracked(&[("timezone", "UTC")])));
    }
}
