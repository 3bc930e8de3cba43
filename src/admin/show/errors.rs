//! SHOW ERRORS: what went wrong for clients, by SQLSTATE.

use crate::admin::Rights;
use crate::admin::show::connections::moment;
use crate::admin::show::{Column, View, int8, text};
use crate::stats::errors;

/// Errors that are alike, and whether their text may be seen.
pub(super) type Row = (errors::Row, bool);

pub(super) static COLUMNS: &[Column<Row>] = &[
    text("sqlstate", |row| row.0.sqlstate.as_str().into()),
    text("fault", |row| row.0.fault.word().into()),
    text("database", |row| row.0.database.as_str().into()),
    text("user", |row| row.0.user.as_str().into()),
    int8("count", |row| row.0.count.into()),
    text("last", |row| moment(row.0.last).into()),
    text("message", |row| row.1.then(|| row.0.message.clone()).into()),
];

pub(super) fn rows(view: &View<'_>) -> Vec<Row> {
    let sees_texts = view.rights == Rights::Admin;
    let rows = view.console.manager.parts().registry.errors.rows();
    rows.into_iter().map(|row| (row, sees_texts)).collect()
}
