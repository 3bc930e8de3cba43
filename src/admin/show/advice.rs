//! SHOW ADVICE: settings that should be looked at.

use crate::admin::advice::{Advice, advise};
use crate::admin::show::{Column, View, text};

pub(super) static COLUMNS: &[Column<Advice>] = &[
    text("setting", |row| row.setting.into()),
    text("database", |row| row.database.as_str().into()),
    text("user", |row| row.user.as_str().into()),
    text("advice", |row| row.text.as_str().into()),
];

pub(super) fn rows(view: &View<'_>) -> Vec<Advice> {
    advise(view.console)
}
