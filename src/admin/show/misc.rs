//! The smaller SHOWs: CONFIG, LISTS, MEM, STATE, VERSION, PREPARED.

use std::sync::Arc;

use crate::admin::Rights;
use crate::admin::show::{Column, View, int4, int8, named, text};
use crate::admin::value::Cell;
use crate::config::Setting;
use crate::config::settings::TABLE;
use crate::prepared::Statement;
use crate::stats::{ClientEntry, ServerEntry};

/// A setting and its value.
pub(super) type ConfigRow = (&'static Setting, Option<String>);

pub(super) static CONFIG: &[Column<ConfigRow>] = &[
    text("key", |row| row.0.name.into()),
    text("value", |row| row.1.as_deref().into()),
    // PgBouncer's `verbose` has none, so that `-v` outlives a reload, which it does here in another way.
    text("default", |row| {
        row.0.default.filter(|_| row.0.name != "verbose").into()
    }),
    text("changeable", |row| yes_no(row.0.changeable())),
];

pub(super) fn config(view: &View<'_>) -> Vec<ConfigRow> {
    let settings = &view.config.settings;
    let mut rows: Vec<ConfigRow> = TABLE
        .iter()
        .map(|setting| (setting, settings.get(setting.name)))
        .collect();
    rows.sort_by_key(|row| row.0.name);
    rows
}

fn yes_no(value: bool) -> Cell {
    if value { "yes" } else { "no" }.into()
}

/// A name and a number.
pub(super) type Item = (&'static str, usize);

pub(super) static LISTS: &[Column<Item>] = &[
    text("list", |item| item.0.into()),
    int4("items", |item| item.1.into()),
];

pub(super) fn lists(view: &View<'_>) -> Vec<Item> {
    let manager = &view.console.manager;
    let parts = manager.parts();
    let (registry, (names, looking_up)) = (&parts.registry, parts.names.counts());
    let clients = registry.clients().len();
    vec![
        ("databases", named::databases(view).len()),
        ("users", named::users(view).len()),
        ("peers", view.config.peers.len()),
        // The console has one, too.
        ("pools", manager.pools().len() + 1),
        ("peer_pools", parts.peers.counts().len()),
        // PgBouncer keeps the memory of clients and servers that left; here there is none.
        ("free_clients", 0),
        ("used_clients", clients),
        (
            "login_clients",
            manager.active_clients().saturating_sub(clients),
        ),
        ("free_servers", 0),
        ("used_servers", registry.servers().len()),
        ("dns_names", names),
        ("dns_zones", 0),
        ("dns_queries", looking_up),
        ("dns_pending", 0),
    ]
}

/// A use of memory: name, bytes of one, how many, bytes in all.
pub(super) type MemRow = (&'static str, usize, usize, usize);

pub(super) static MEM: &[Column<MemRow>] = &[
    text("name", |row| row.0.into()),
    int4("size", |row| row.1.into()),
    int4("used", |row| row.2.into()),
    int4("free", |_| Cell::Number(0)),
    int4("memtotal", |row| row.3.into()),
];

pub(super) fn mem(view: &View<'_>) -> Vec<MemRow> {
    let parts = view.console.manager.parts();
    let row = |name, size: usize, used: usize| (name, size, used, size.saturating_mul(used));
    let (statements, held) = (parts.statements.len(), parts.statements.held_bytes());
    vec![
        row(
            "client_entries",
            size_of::<ClientEntry>(),
            parts.registry.clients().len(),
        ),
        row(
            "server_entries",
            size_of::<ServerEntry>(),
            parts.registry.servers().len(),
        ),
        (
            "prepared_statements",
            held.checked_div(statements).unwrap_or(0),
            statements,
            held,
        ),
    ]
}

/// A state and whether it holds.
pub(super) type StateRow = (&'static str, bool);

pub(super) static STATE: &[Column<StateRow>] = &[
    text("key", |row| row.0.into()),
    text("value", |row| yes_no(row.1)),
];

pub(super) fn state(view: &View<'_>) -> Vec<StateRow> {
    let manager = &view.console.manager;
    let (paused, suspended) = (manager.is_all_paused(), manager.is_suspended());
    vec![
        ("active", !paused && !suspended),
        ("paused", paused),
        ("suspended", suspended),
    ]
}

pub(super) static VERSION: &[Column<&'static str>] =
    &[text("version", |version| (*version).into())];

pub(super) fn version(view: &View<'_>) -> Vec<&'static str> {
    vec![view.console.version]
}

/// A statement, how many hold it, and whether its text may be seen.
pub(super) type PreparedRow = (Arc<Statement>, usize, bool);

pub(super) static PREPARED: &[Column<PreparedRow>] = &[
    int8("id", |row| row.0.id().into()),
    text("name", |row| {
        String::from_utf8_lossy(row.0.name()).into_owned().into()
    }),
    int8("holders", |row| row.1.into()),
    int8("bytes", |row| row.0.definition().len().into()),
    text("query", |row| {
        row.2.then(|| beginning(row.0.definition())).into()
    }),
];

/// How much of a statement's text is shown, in characters.
const SHOWN: usize = 200;

/// The beginning of the text, which a NUL ends.
fn beginning(definition: &[u8]) -> String {
    let text = definition
        .split(|&byte| byte == 0)
        .next()
        .unwrap_or_default();
    // Enough bytes for any so many characters, so that a megabyte is not decoded for its first line.
    let text = text.get(..SHOWN * 4).unwrap_or(text);
    String::from_utf8_lossy(text).chars().take(SHOWN).collect()
}

pub(super) fn prepared(view: &View<'_>) -> Vec<PreparedRow> {
    let may_see = match view.rights {
        Rights::Admin => true,
        Rights::Stats => false,
    };
    let statements = view.console.manager.parts().statements.snapshot();
    // One of those that hold it is the snapshot.
    let row =
        |statement: Arc<Statement>| (Arc::strong_count(&statement).saturating_sub(1), statement);
    let mut rows: Vec<PreparedRow> = statements
        .into_iter()
        .map(row)
        .map(|(holders, statement)| (statement, holders, may_see))
        .collect();
    rows.sort_by_key(|row| row.0.id());
    rows
}
