//! SHOW PINS: the clients that keep their servers outside of session pooling.

use std::time::Duration;

use crate::admin::show::{Column, View, int4, int8, text};
use crate::stats::registry::Pin;

/// A client that keeps its server.
#[derive(Debug)]
pub(super) struct Row {
    pin: Pin,
    age: Duration,
    /// Only administrators see texts.
    query: Option<String>,
}

pub(super) static COLUMNS: &[Column<Row>] = &[
    int8("client", |row| row.pin.client.id.into()),
    text("user", |row| row.pin.client.user.as_str().into()),
    text("database", |row| row.pin.client.database.as_str().into()),
    text("pool_user", |row| row.pin.client.pool_user.as_str().into()),
    int8("server", |row| row.pin.info.server.into()),
    text("reason", |row| row.pin.info.holds.to_string().into()),
    int8("age", |row| row.age.as_secs().into()),
    int4("age_us", |row| row.age.subsec_micros().into()),
    text("query", |row| row.query.clone().into()),
];

/// By age, the oldest first.
pub(super) fn rows(view: &View<'_>) -> Vec<Row> {
    let registry = &view.console.manager.parts().registry;
    let now = registry.now();
    let mut pins = registry.pins();
    pins.sort_by_key(|pin| (pin.info.since, pin.client.id));
    let sees_texts = view.rights == crate::admin::Rights::Admin;
    pins.into_iter()
        .map(|pin| Row {
            age: Duration::from_micros(now.saturating_sub(pin.info.since)),
            query: sees_texts.then(|| pin.info.text.clone()),
            pin,
        })
        .collect()
}
