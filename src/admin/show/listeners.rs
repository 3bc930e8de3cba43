//! SHOW LISTENERS: what clients listen to by their pools' shared connections.

use crate::admin::show::{Column, View, int8, text};
use crate::pool::listener::ChannelInfo;

/// A channel of a pool.
#[derive(Debug)]
pub(super) struct Row {
    database: String,
    user: String,
    info: ChannelInfo,
}

pub(super) static COLUMNS: &[Column<Row>] = &[
    text("database", |row| row.database.as_str().into()),
    text("user", |row| row.user.as_str().into()),
    text("channel", |row| {
        String::from_utf8_lossy(&row.info.channel)
            .into_owned()
            .into()
    }),
    int8("clients", |row| (row.info.clients as u64).into()),
    int8("received", |row| row.info.received.into()),
    int8("delivered", |row| row.info.delivered.into()),
    int8("lost", |row| row.info.lost.into()),
    int8("server", |row| row.info.server.into()),
];

/// By database, user and channel.
pub(super) fn rows(view: &View<'_>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for pool in view.console.manager.pools() {
        rows.extend(pool.listener().channels().into_iter().map(|info| Row {
            database: pool.database.clone(),
            user: pool.user.clone(),
            info,
        }));
    }
    rows.sort_by(|one, other| {
        let key = |row: &Row| {
            (
                row.database.clone(),
                row.user.clone(),
                row.info.channel.clone(),
            )
        };
        key(one).cmp(&key(other))
    });
    rows
}
