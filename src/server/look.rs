//! A look at a session between two transactions: what is set in it, and what there is that can't be moved to another
//! server. PostgreSQL is asked, not the texts that were sent: a function, a savepoint or an error may have decided otherwise.

use std::sync::LazyLock;

use super::overlay::{Overlay, prepared};
use super::{Error, Server};
use crate::sql::touches::{Setting, Touches, touches};

/// What a look has found.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// What is set, and what SQL's `PREPARE` has made if that can be made elsewhere.
    pub overlay: Overlay,
    /// Tracked parameters that nobody has set since the server was connected, or that were reset.
    pub at_first: Vec<Box<[u8]>>,
    /// What keeps the session on this server.
    pub holds: Touches,
    /// The channels it listens to.
    pub channels: Vec<Box<[u8]>>,
    /// The value of [`MARK`], if it was asked for and is set.
    pub mark: Option<Box<[u8]>>,
}

/// A setting of ours, by which a look finds out whether something of ours was committed.
pub const MARK: &[u8] = b"pgferry.listens";

/// Each kind of state that lives on a server: how the query calls it, and when there is some.
const HOLDS: [(&str, Touches, &str); 3] = [
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
];

/// The query: rows of a kind, a name and a value. Kind `s` is a setting, `c` a channel, `h` something else that holds; `t` and `p` are a
/// statement's. Its parameters are the role that was logged in as, an array of settings that are not of interest, and one of custom settings.
static QUERY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut sql = "SELECT CASE WHEN name OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text[]) THEN 'd' ELSE 's' END, \
        name, setting FROM pg_catalog.pg_show_all_settings() \
        WHERE (name OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text[])) \
        OPERATOR(pg_catalog.<>) (source OPERATOR(pg_catalog.=) 'session') \
        UNION ALL SELECT 's', 'role', pg_catalog.current_setting('role') \
        WHERE pg_catalog.current_setting('role') OPERATOR(pg_catalog.<>) 'none' \
        UNION ALL SELECT 's', 'session_authorization', session_user::pg_catalog.text \
        WHERE session_user::pg_catalog.text OPERATOR(pg_catalog.<>) $1::pg_catalog.text \
        UNION ALL SELECT 's', custom, pg_catalog.current_setting(custom, true) \
        FROM pg_catalog.unnest($3::pg_catalog.text[]) AS custom"
        .to_owned();
    sql.push_str(
        " UNION ALL SELECT 'c', channel, '' FROM pg_catalog.pg_listening_channels() AS channel",
    );
    for (kind, _, condition) in HOLDS {
        sql.push_str(" UNION ALL SELECT 'h', '");
        sql.push_str(kind);
        sql.push_str("', '' WHERE ");
        sql.push_str(condition);
    }
    sql.push_str(" UNION ALL ");
    sql.push_str(&prepared::query());
    sql.into_bytes()
});

/// Settings that PostgreSQL itself sets with each transaction.
const OF_TRANSACTIONS: [&[u8]; 3] = [
    b"transaction_isolation",
    b"transaction_read_only",
    b"transaction_deferrable",
];

/// An array of text, as PostgreSQL reads it.
pub(super) fn array<'a>(items: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut text = vec![b'{'];
    for (at, item) in items.enumerate() {
        if at > 0 {
            text.push(b',');
        }
        text.push(b'"');
        for &byte in item {
            if matches!(byte, b'"' | b'\\') {
                text.push(b'\\');
            }
            text.push(byte);
        }
        text.push(b'"');
    }
    text.push(b'}');
    text
}

impl Server {
    /// Settings that a look does not take for the client's: those that PostgreSQL reports itself, and its own.
    pub(super) fn known(&self) -> impl Iterator<Item = &[u8]> {
        // Some may be tracked in vain: this server does not report them.
        let reported = self.state.tracked.iter().map(|(name, _)| name.as_bytes());
        reported.chain(OF_TRANSACTIONS)
    }

    /// Looks at the session, outside of a transaction. `login` is the role that the server was logged in as, and `names`
    /// are custom settings that may have been set (PostgreSQL does not list these).
    pub async fn look(&mut self, login: &str, names: &[Box<[u8]>]) -> Result<Seen, Error> {
        let known = array(self.known());
        let base = self.state.base.iter().map(|(name, _)| name);
        let base = base.filter(|name| name.contains(&b'.'));
        let custom = array(names.iter().map(|name| &**name).chain(base));
        let rows = self
            .fetch(&QUERY, &[login.as_bytes(), &known, &custom])
            .await?;
        let mut seen = Seen::default();
        let (mut settings, mut statements) = (Vec::new(), prepared::Rows::default());
        for row in rows {
            let mut columns = row.into_iter().flatten();
            let (Some(kind), Some(name), Some(value)) =
                (columns.next(), columns.next(), columns.next())
            else {
                // A custom setting that this server has never heard of, or a text that is too long.
                continue;
            };
            match kind.as_slice() {
                b"h" => {
                    let found = HOLDS.iter().find(|(known, ..)| known.as_bytes() == name);
                    seen.holds = found.map_or(seen.holds, |(_, hold, _)| seen.holds.union(*hold));
                }
                b"c" => {
                    seen.holds = seen.holds.union(Touches::CHANNELS);
                    seen.channels.push(name.into());
                }
                b"t" => statements.has_types(name, value),
                b"p" => statements.has_text(name, value),
                b"d" => seen.at_first.push(name.into()),
                _ if name == MARK => seen.mark = Some(value.into()),
                _ => settings.push((name.into(), value.into())),
            }
        }
        let statements = statements.all().unwrap_or_else(|| {
            seen.holds = seen.holds.union(Touches::STATEMENTS);
            Vec::new()
        });
        seen.overlay = Overlay::with_statements(settings, statements);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_keeps_its_items_apart() {
        let items: [&[u8]; 3] = [b"a.b", br#"",""#, br"\"];
        assert_eq!(array(items.into_iter()), br#"{"a.b","\",\"","\\"}"#);
        assert_eq!(array([].into_iter()), b"{}");
    }
}
