//! A trial of the settings that a client asks for at its login: does PostgreSQL take them, and how does it spell them?
//!
//! They are set in a transaction that is rolled back, so the server is afterwards what it was before. Who may set
//! what, which values there are, and the words of a refusal are PostgreSQL's.

use super::look::array;
use super::overlay::{Overlay, Setting};
use super::{Error, Server};
use crate::protocol::backend::{ErrorFields, TxStatus};
use crate::sql::quote::put_literal;

/// PostgreSQL does not take a setting: its own words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// SQLSTATE.
    pub sqlstate: String,
    /// The message field.
    pub message: String,
    /// Second part of the story.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Refusal {
    fn read(body: &[u8]) -> Result<Self, Error> {
        let fields = ErrorFields::read(body)?;
        let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        Ok(Self {
            sqlstate: fields.sqlstate().map(text).unwrap_or_default(),
            message: fields.message().map(text).unwrap_or_default(),
            detail: fields.get(b'D').map(text),
            hint: fields.get(b'H').map(text),
        })
    }
}

/// What a session is in which the settings are set.
#[derive(Debug, Clone, Default)]
pub struct Tried {
    /// All that is set then: these, and what `connect_query` has set.
    pub all: Overlay,
    /// These, as PostgreSQL spells them.
    pub own: Overlay,
    /// Those of them that PostgreSQL does not list: custom ones.
    pub customs: Vec<Box<[u8]>>,
}

impl Server {
    /// Finds out what comes of these settings, by any spelling of their names, none of which is there twice.
    pub async fn try_settings(
        &mut self,
        asked: &[Setting],
    ) -> Result<Result<Tried, Refusal>, Error> {
        let mut sql = b"BEGIN;".to_vec();
        sql.extend_from_slice(&Overlay::default().difference(&self.state.overlay));
        let customs: Vec<Box<[u8]>> = asked
            .iter()
            .filter(|(name, _)| name.contains(&b'.'))
            .map(|(name, _)| name.to_ascii_lowercase().into())
            .collect();
        put_trial(&mut sql, asked, &array(self.known()), &customs);
        // In the same message: between two there may be less time than a limit among them allows.
        sql.extend_from_slice(b";ROLLBACK");
        let (mut listed, mut custom, mut is_whole) = (Vec::new(), Vec::new(), false);
        let refusal = self.try_query(&sql, |row| {
            let mut columns = row.into_iter().flatten();
            if let (Some(kind), Some(name), Some(value)) =
                (columns.next(), columns.next(), columns.next())
            {
                let setting = (name.into_boxed_slice(), value.into_boxed_slice());
                match kind.as_slice() {
                    b"c" => custom.push(setting),
                    b"s" => listed.push(setting),
                    _ => is_whole = true,
                }
            }
        });
        let refusal = refusal.await?;
        // A time limit among them may hit that, too; once the transaction has failed, none of them is set any more.
        for _ in 0..2 {
            if self.state.status != TxStatus::Idle {
                self.try_query(b"ROLLBACK", |_| {}).await?;
            }
        }
        if let Some(body) = refusal
            && !is_whole
        {
            return Ok(Err(Refusal::read(&body)?));
        }
        Ok(Ok(tried((listed, custom), asked, &self.state.base)))
    }
}

/// Appends the query that sets them, and then shows what is set. It is one statement, since a `statement_timeout` among
/// them is for the next.
fn put_trial(sql: &mut Vec<u8>, asked: &[Setting], known: &[u8], customs: &[Box<[u8]>]) {
    sql.extend_from_slice(b"SELECT seen.kind, seen.name, seen.setting FROM (SELECT ");
    for (at, (name, value)) in asked.iter().enumerate() {
        sql.extend_from_slice(if at == 0 { b"" } else { b", " });
        sql.extend_from_slice(b"pg_catalog.set_config(");
        put_literal(sql, name);
        sql.push(b',');
        put_literal(sql, value);
        sql.extend_from_slice(b",false)");
        if at == 0 {
            sql.extend_from_slice(b" AS first");
        }
    }
    // What is shown depends on what was set, or it might be shown before.
    sql.extend_from_slice(
        b" OFFSET 0) AS made, LATERAL (\
          SELECT 's' AS kind, name, setting FROM pg_catalog.pg_show_all_settings() \
          WHERE made.first IS NOT NULL AND source OPERATOR(pg_catalog.=) 'session' \
          AND name OPERATOR(pg_catalog.<>) ALL (",
    );
    put_literal(sql, known);
    sql.extend_from_slice(
        b"::pg_catalog.text[]) UNION ALL SELECT 'c', name, pg_catalog.current_setting(name) FROM pg_catalog.unnest(",
    );
    put_literal(sql, &array(customs.iter().map(|name| &**name)));
    sql.extend_from_slice(
        b"::pg_catalog.text[]) AS name WHERE made.first IS NOT NULL \
          UNION ALL SELECT 'end', '', '' WHERE made.first IS NOT NULL OFFSET 0) AS seen",
    );
}

/// What these rows come to, where `base` is set anyway.
fn tried(
    (listed, custom): (Vec<Setting>, Vec<Setting>),
    asked: &[Setting],
    base: &Overlay,
) -> Tried {
    let is_listed = |name: &[u8]| listed.iter().any(|(known, _)| **known == *name);
    let customs = custom.iter().map(|(name, _)| name);
    let customs: Vec<_> = customs.filter(|name| !is_listed(name)).cloned().collect();
    let all = Overlay::new(listed.into_iter().chain(custom).collect());
    let is_asked = |name: &[u8]| {
        asked
            .iter()
            .any(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    let own = all.iter().filter(|(name, _)| is_asked(name));
    let own = own.map(|(name, value)| (name.into(), value.into()));
    Tried {
        own: Overlay::new(own.collect()),
        all: all.filled_from(base),
        customs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::overlay::settings;

    #[test]
    fn names_and_values_can_not_leave_their_quotes() {
        let mut sql = Vec::new();
        let asked = settings(&[("a'", "1'; DROP TABLE t; --"), ("b", r"\'")]);
        put_trial(&mut sql, &asked, b"{}", &[b"x.'y".as_slice().into()]);
        let sql = String::from_utf8(sql).unwrap();
        for part in [
            "(SELECT pg_catalog.set_config('a''','1''; DROP TABLE t; --',false) AS first, ",
            r"pg_catalog.set_config('b',E'\\''',false) OFFSET 0)",
            r#"unnest('{"x.''y"}'::"#,
        ] {
            assert!(sql.contains(part), "{part}: {sql}");
        }
    }

    #[test]
    fn what_is_listed_is_not_custom_and_what_was_set_anyway_is_not_asked_for() {
        let asked = settings(&[("Work_Mem", "1MB"), ("App.T", "1"), ("ext.listed", "on")]);
        let base = Overlay::new(settings(&[("work_mem", "2"), ("base.x", "3")]));
        let rows = (
            settings(&[("work_mem", "1024"), ("ext.listed", "on")]),
            settings(&[("app.t", "1"), ("ext.listed", "on")]),
        );
        let tried = tried(rows, &asked, &base);
        assert_eq!(
            tried.customs,
            [b"app.t".as_slice().into()] as [Box<[u8]>; 1]
        );
        let own = settings(&[("app.t", "1"), ("ext.listed", "on"), ("work_mem", "1024")]);
        assert!(tried.own.same_as(&Overlay::new(own.clone())));
        let all = [own, settings(&[("base.x", "3")])].concat();
        assert!(tried.all.same_as(&Overlay::new(all)));
    }
}
