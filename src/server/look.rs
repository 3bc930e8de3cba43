//! A look at a session between two transactions: what is set in it, and what there is that can't be moved to another
//! server. PostgreSQL is asked, not the texts that were sent: a function, a savepoint or an error may have decided otherwise.

use super::overlay::Overlay;
use super::session::{TrackedNames, put_literal};
use super::{Error, Server};
use crate::sql::touches::{Setting, Touches, touches};

/// What a look has found.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// What is set.
    pub overlay: Overlay,
    /// What keeps the session on this server.
    pub holds: Touches,
}

/// Each kind of state that lives on a server: how the query calls it, and when there is some.
const HOLDS: [(&str, Touches, &str); 5] = [
    (
        "temporary",
        Touches::TEMPORARY,
        "pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.<>) 0::pg_catalog.oid AND (\
         EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema()) OR \
         EXISTS (SELECT FROM pg_catalog.pg_proc WHERE pronamespace OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema()) OR \
         EXISTS (SELECT FROM pg_catalog.pg_type WHERE typnamespace OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema()))",
    ),
    (
        "locks",
        Touches::LOCKS,
        "EXISTS (SELECT FROM pg_catalog.pg_lock_status() WHERE locktype OPERATOR(pg_catalog.=) 'advisory' \
         AND pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid())",
    ),
    (
        "cursors",
        Touches::CURSORS,
        "EXISTS (SELECT FROM pg_catalog.pg_cursor() WHERE is_holdable)",
    ),
    (
        "statements",
        Touches::STATEMENTS,
        "EXISTS (SELECT FROM pg_catalog.pg_prepared_statement() WHERE from_sql)",
    ),
    (
        "channels",
        Touches::CHANNELS,
        "EXISTS (SELECT FROM pg_catalog.pg_listening_channels())",
    ),
];

/// The query: rows of a kind, a name and a value. Kind `s` is a setting, `h` something that holds.
fn query(login: &str, tracked: &TrackedNames, names: &[Box<[u8]>]) -> Vec<u8> {
    let mut sql = b"SELECT 's', name, setting FROM pg_catalog.pg_show_all_settings() \
        WHERE source OPERATOR(pg_catalog.=) 'session' AND name OPERATOR(pg_catalog.<>) ALL ('{\
        transaction_isolation,transaction_read_only,transaction_deferrable"
        .to_vec();
    for name in tracked.iter() {
        sql.push(b',');
        // Names of settings need no quotes here; what is not like one matches nothing anyway.
        sql.extend(
            name.bytes()
                .filter(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.')),
        );
    }
    sql.extend_from_slice(
        b"}'::pg_catalog.text[]) UNION ALL SELECT 's', 'role', pg_catalog.current_setting('role') \
          WHERE pg_catalog.current_setting('role') OPERATOR(pg_catalog.<>) 'none' \
          UNION ALL SELECT 's', 'session_authorization', session_user WHERE session_user OPERATOR(pg_catalog.<>) ",
    );
    put_literal(&mut sql, login.as_bytes());
    for name in names {
        for part in [
            &b" UNION ALL SELECT 's', "[..],
            b", pg_catalog.current_setting(",
        ] {
            sql.extend_from_slice(part);
            put_literal(&mut sql, name);
        }
        sql.extend_from_slice(b", true)");
    }
    for (kind, _, condition) in HOLDS {
        sql.extend_from_slice(b" UNION ALL SELECT 'h', '");
        sql.extend_from_slice(kind.as_bytes());
        sql.extend_from_slice(b"', '' WHERE ");
        sql.extend_from_slice(condition.as_bytes());
    }
    sql
}

impl Server {
    /// Looks at the session, outside of a transaction. `login` is the role that the server was logged in as, and `names`
    /// are custom settings that may have been set (PostgreSQL does not list these).
    pub async fn look(&mut self, login: &str, names: &[Box<[u8]>]) -> Result<Seen, Error> {
        let rows = self
            .fetch(&query(login, self.state.tracked.names(), names))
            .await?;
        let mut seen = Seen::default();
        let mut settings = Vec::new();
        for row in rows {
            let mut columns = row.into_iter().map(Option::unwrap_or_default);
            let (Some(kind), Some(name), Some(value)) =
                (columns.next(), columns.next(), columns.next())
            else {
                continue;
            };
            if kind == b"h" {
                let found = HOLDS.iter().find(|(known, ..)| known.as_bytes() == name);
                seen.holds = found.map_or(seen.holds, |(_, hold, _)| seen.holds.union(*hold));
            } else if !names.iter().any(|known| **known == *name) || !value.is_empty() {
                // A custom setting that is gone reads as empty.
                settings.push((name.into(), value.into()));
            }
        }
        seen.overlay = Overlay::new(settings);
        Ok(seen)
    }

    /// Finds out what `connect_query` has set.
    pub(super) async fn look_at_base(
        &mut self,
        login: &str,
        connect_query: &str,
    ) -> Result<(), Error> {
        let found = touches(connect_query.as_bytes(), &|_| true);
        let names = found.iter().flat_map(|found| &found.settings);
        let names: Vec<Box<[u8]>> = names
            .filter_map(|setting| match setting {
                Setting::Named(name) if name.contains(&b'.') => Some(name.clone()),
                Setting::Named(_) | Setting::Parameter(_) => None,
            })
            .collect();
        match self.look(login, &names).await {
            Ok(seen) => {
                self.state.base = seen.overlay;
                self.state.overlay = self.state.base.clone();
                Ok(())
            }
            Err(Error::Query(text)) => {
                tracing::warn!(
                    server = self.entry.id,
                    "what connect_query has set can't be found out: {text}"
                );
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
