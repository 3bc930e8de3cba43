//! SHOW RELOADS: the last reloads of the configuration.

use crate::admin::Rights;
use crate::admin::show::connections::moment;
use crate::admin::show::{Column, View, text};
use crate::stats::reloads::{Outcome, Reload};

/// A reload, and whether it may be seen what was wrong with it.
pub(super) type Row = (Reload, bool);

pub(super) static COLUMNS: &[Column<Row>] = &[
    text("time", |row| moment(row.0.at).into()),
    text("result", |row| {
        match row.0.outcome {
            Outcome::Done { .. } => "ok",
            Outcome::Rejected(_) => "rejected",
        }
        .into()
    }),
    text("applied", |row| match &row.0.outcome {
        Outcome::Done { applied, .. } => applied.as_str().into(),
        Outcome::Rejected(_) => "".into(),
    }),
    text("needs_restart", |row| match &row.0.outcome {
        Outcome::Done { needs_restart, .. } => needs_restart.as_str().into(),
        Outcome::Rejected(_) => "".into(),
    }),
    text("error", |row| match &row.0.outcome {
        Outcome::Done { .. } => "".into(),
        Outcome::Rejected(error) => row.1.then(|| error.clone()).into(),
    }),
];

pub(super) fn rows(view: &View<'_>) -> Vec<Row> {
    let sees_errors = view.rights == Rights::Admin;
    let reloads = view.console.manager.parts().registry.reloads.last();
    reloads.into_iter().map(|it| (it, sees_errors)).collect()
}
