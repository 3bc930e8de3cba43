//! `docs/settings.md`, made from the table. Owns the page's words around the rows and nothing of the rows.

use std::fmt::Write;

use crate::config::settings::{Reload, Scope, Setting, Support, TABLE};

/// The text of `docs/settings.md`.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Settings\n\n\
         Generated from the table in `src/config/settings.rs`; `UPDATE_DOCS=1 cargo test settings` rewrites it.\n\n\
         Names, kinds and defaults are PgBouncer's. In `pgbouncer.ini` they stand in `[pgbouncer]`, in a\n\
         TOML file in `[general]`, and in the environment in upper case (but `user`). Times are in seconds with an\n\
         optional decimal fraction unless a row says otherwise.\n\n\
         *Reload* says when a changed value takes effect: at once (*live*), for connections made after the\n\
         change (*new connections*), or only after a *restart*.\n",
    );
    for (scope, title) in Scope::ALL {
        let rows = || TABLE.iter().filter(|setting| setting.scope == scope);
        if rows().any(|setting| setting.support == Support::Full) {
            let _ = write!(
                text,
                "\n## {title}\n\n| name | value | default | reload | meaning |\n|---|---|---|---|---|\n"
            );
        }
        for row in rows().filter(|setting| setting.support == Support::Full) {
            let reload = match row.reload {
                Reload::Live => "live",
                Reload::NewConnections => "new connections",
                Reload::Restart => "restart",
            };
            let (kind, default) = (row.kind.describe(), default_cell(row));
            let _ = writeln!(
                text,
                "| `{}` | {kind} | {default} | {reload} | {} |",
                row.name, row.doc
            );
        }
    }
    text.push_str(
        "\n## Accepted without effect\n\n\
         These are valid, so that an existing file still loads. A value other than the default gives a warning.\n\n\
         | name | default | meaning in PgBouncer | why not here |\n|---|---|---|---|\n",
    );
    for row in TABLE {
        if let Support::AcceptAndWarn(why) = row.support {
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {why} |",
                row.name,
                default_cell(row),
                row.doc
            );
        }
    }
    text
}

fn default_cell(setting: &Setting) -> String {
    match setting.default {
        None => "unset".to_owned(),
        Some("") => "empty".to_owned(),
        Some(text) => format!("`{text}`"),
    }
}
