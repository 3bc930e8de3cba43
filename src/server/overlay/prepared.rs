//! Statements that a client has made by SQL's `PREPARE`, so that another server can be given the same.

use std::collections::HashMap;

use crate::sql::quote::put_identifier;
use crate::sql::touches::prepared_body;

/// So many of a client's go along with it; with more of them it keeps its server.
const MOST: usize = 64;

/// So many bytes a text may have in which such a statement came, and so many all of a client's together.
const LONGEST: usize = 16 << 10;
const LONGEST_OF_ALL: usize = 64 << 10;

/// One statement of SQL's `PREPARE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Its name, as the server has it.
    pub name: Box<[u8]>,
    /// The types of its parameters as SQL has them, with commas in between; the server has found out those that the client did
    /// not name, and so they stay.
    pub types: Box<[u8]>,
    /// What is run.
    pub body: Box<[u8]>,
}

impl Prepared {
    /// Appends the text that makes it.
    pub fn put_prepare(&self, sql: &mut Vec<u8>) {
        sql.extend_from_slice(b"PREPARE ");
        put_identifier(sql, &self.name);
        if !self.types.is_empty() {
            sql.extend_from_slice(b" (");
            sql.extend_from_slice(&self.types);
            sql.push(b')');
        }
        sql.extend_from_slice(b" AS ");
        sql.extend_from_slice(&self.body);
    }

    /// Appends the text that takes it away.
    pub fn put_deallocate(&self, sql: &mut Vec<u8>) {
        sql.extend_from_slice(b"DEALLOCATE ");
        put_identifier(sql, &self.name);
        sql.push(b';');
    }

    fn size(&self) -> usize {
        self.name.len() + self.types.len() + self.body.len()
    }
}

/// The part of a look that finds them: rows of a kind, a name and a value. Kind `t` has the types, kind `p` the text in which the
/// statement came, or NULL if that is too long.
pub(in crate::server) fn query() -> String {
    format!(
        "SELECT part.kind, made.name, part.value FROM (SELECT name, statement, parameter_types \
         FROM pg_catalog.pg_prepared_statement() WHERE from_sql LIMIT {MOST} + 1) AS made, \
         LATERAL (VALUES ('t', pg_catalog.array_to_string(made.parameter_types, ',')), \
         ('p', CASE WHEN pg_catalog.octet_length(made.statement) OPERATOR(pg_catalog.<=) {LONGEST} \
         THEN made.statement END)) AS part(kind, value)"
    )
}

/// What a look finds of them, row by row.
#[derive(Debug, Default)]
pub(in crate::server) struct Rows {
    types: HashMap<Vec<u8>, Vec<u8>>,
    texts: HashMap<Vec<u8>, Vec<u8>>,
}

impl Rows {
    /// A row of kind `t`.
    pub fn has_types(&mut self, name: Vec<u8>, types: Vec<u8>) {
        self.types.insert(name, types);
    }

    /// A row of kind `p`.
    pub fn has_text(&mut self, name: Vec<u8>, text: Vec<u8>) {
        self.texts.insert(name, text);
    }

    /// The statements, if all of them can be made elsewhere.
    pub fn all(mut self) -> Option<Vec<Prepared>> {
        if self.types.len() > MOST {
            return None;
        }
        let mut all = Vec::with_capacity(self.types.len());
        for (name, types) in self.types {
            let text = self.texts.remove(&name)?;
            all.push(Prepared {
                body: prepared_body(&text, &name)?.into(),
                name: name.into(),
                types: types.into(),
            });
        }
        let size: usize = all.iter().map(Prepared::size).sum();
        (size <= LONGEST_OF_ALL).then_some(all)
    }
}

/// A statement for tests.
#[cfg(test)]
pub(crate) fn prepared(name: &str, types: &str, body: &str) -> Prepared {
    let owned = |text: &str| text.as_bytes().into();
    Prepared {
        name: owned(name),
        types: owned(types),
        body: owned(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(found: &[(&str, &str, Option<&str>)]) -> Rows {
        let mut rows = Rows::default();
        for (name, types, text) in found {
            rows.has_types(name.as_bytes().to_vec(), types.as_bytes().to_vec());
            if let Some(text) = text {
                rows.has_text(name.as_bytes().to_vec(), text.as_bytes().to_vec());
            }
        }
        rows
    }

    #[test]
    fn a_statement_is_made_with_the_types_that_the_server_has_found() {
        let found = rows(&[(
            "P q",
            "integer,\"a,b\"",
            Some("prepare \"P q\" as select $1;"),
        )]);
        let all = found.all().unwrap();
        let mut sql = Vec::new();
        all[0].put_prepare(&mut sql);
        assert_eq!(
            String::from_utf8(sql).unwrap(),
            "PREPARE \"P q\" (integer,\"a,b\") AS select $1"
        );
    }

    #[test]
    fn all_of_them_or_none_go_along() {
        assert!(rows(&[]).all().unwrap().is_empty());
        let long = "x".repeat(LONGEST_OF_ALL);
        let text = format!("PREPARE a AS SELECT '{long}'");
        assert!(rows(&[("a", "", Some(&text))]).all().is_none());
        let fine = Some("PREPARE a AS SELECT 1");
        assert!(rows(&[("a", "", fine), ("b", "", None)]).all().is_none());
        assert!(rows(&[("a", "", fine), ("b", "", fine)]).all().is_none());
        assert_eq!(rows(&[("a", "", fine)]).all().unwrap().len(), 1);
    }

    #[test]
    fn too_many_stay_where_they_are() {
        let mut found = Rows::default();
        for number in 0..=MOST {
            let name = format!("p{number}");
            found.has_text(
                name.clone().into(),
                format!("PREPARE {name} AS SELECT 1").into(),
            );
            found.has_types(name.into(), Vec::new());
        }
        assert!(found.all().is_none());
    }
}
