//! SHOW STATEMENTS: which statements take the time.

use std::time::SystemTime;

use crate::admin::show::connections::moment;
use crate::admin::show::{Column, View, int8, text};
use crate::stats::statements;

/// So many are shown.
const MOST: usize = 100;

/// A text in a pool, and when it was last run.
pub(in crate::admin) type Row = (statements::Row, SystemTime);

pub(super) static COLUMNS: &[Column<Row>] = &[
    text("database", |row| (&*row.0.database).into()),
    text("user", |row| (&*row.0.user).into()),
    int8("calls", |row| row.0.sums.calls.into()),
    int8("errors", |row| row.0.sums.errors.into()),
    int8("total_time", |row| row.0.sums.time.into()),
    int8("mean_time", |row| mean(&row.0.sums).into()),
    int8("max_time", |row| row.0.sums.longest.into()),
    int8("wait_time", |row| row.0.sums.wait.into()),
    int8("rows", |row| row.0.sums.rows.into()),
    int8("bytes", |row| row.0.sums.bytes.into()),
    text("last", |row| moment(row.1).into()),
    text("query", |row| (&*row.0.text).into()),
];

/// Those that took most time together, the first of them first.
pub(in crate::admin) fn rows(view: &View<'_>) -> Vec<Row> {
    if view.config.settings.track_statements == 0 {
        // A transaction that was under way may have been counted since.
        return Vec::new();
    }
    let registry = &view.console.manager.parts().registry;
    let rows = registry.statements.rows().into_iter().take(MOST);
    rows.map(|row| {
        let last = registry.epoch.wall(row.sums.last);
        (row, last)
    })
    .collect()
}

/// What one took, microseconds.
pub(in crate::admin) fn mean(sums: &statements::Sums) -> u64 {
    sums.time.checked_div(sums.calls).unwrap_or_default()
}
