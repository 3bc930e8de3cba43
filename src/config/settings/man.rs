//! The manual page `packaging/man/pgferry.ini.5`, made from the table for the tests that write and compare it. Owns the
//! page's words around the rows and nothing of the rows.

use std::fmt::Write;

use crate::config::settings::{Reload, Scope, Setting, Support, TABLE};

const HEAD: &str = r#".\" Made from the table in src/config/settings.rs by: UPDATE_DOCS=1 cargo test --lib settings
.TH PGFERRY.INI 5 "" "pgferry" "File formats"
.SH NAME
pgferry.ini \- configuration of the PostgreSQL connection pooler pgferry
.SH DESCRIPTION
The format is that of
.BR pgbouncer.ini :
sections in brackets, a line
.I key = value
for each setting, whole lines of comments that begin with
.B ;
or
.BR # ,
and
.BI %include " FILE"
for another file.
.TP
.B [databases]
.I name = host=... port=... dbname=... user=... password=... pool_size=... pool_mode=...
.br
The databases that clients may ask for;
.B *
stands for any other name.
.TP
.B [users]
.I name = pool_mode=... pool_size=... max_user_connections=... query_timeout=...
.br
Limits of single users.
.TP
.B [peers]
.I number = host=... port=...
.br
Other processes behind the same address, to which cancel requests are passed on.
.TP
.B [pgbouncer]
The settings below.
.PP
Times are in seconds, with an optional decimal fraction, unless a setting says otherwise. A changed value takes effect
after a reload (signal HUP): at once (live), for connections made later (new connections), or only after a restart.
"#;

const TAIL: &str = r".SH SEE ALSO
.BR pgferry (1)
";

/// The text of the page.
pub(super) fn page() -> String {
    let mut text = String::from(HEAD);
    for (scope, title) in Scope::ALL {
        let rows = || {
            TABLE
                .iter()
                .filter(|row| row.scope == scope && row.support == Support::Full)
        };
        if rows().next().is_some() {
            let _ = writeln!(text, ".SH {}", title.to_uppercase());
        }
        for row in rows() {
            entry(&mut text, row);
        }
    }
    text.push_str(".SH ACCEPTED WITHOUT EFFECT\n");
    for row in TABLE {
        if let Support::AcceptAndWarn(why) = row.support {
            let _ = writeln!(text, ".TP\n.B {}\n{}", row.name, roff(why));
        }
    }
    text.push_str(TAIL);
    text
}

fn entry(text: &mut String, row: &Setting) {
    let reload = match row.reload {
        Reload::Live => "live",
        Reload::NewConnections => "new connections",
        Reload::Restart => "restart",
    };
    let default = match row.default {
        None => "unset",
        Some("") => "empty",
        Some(value) => value,
    };
    let _ = writeln!(
        text,
        ".TP\n.B {}\n{}\n.br\nValue: {}. Default: {}. Reload: {reload}.",
        row.name,
        roff(row.doc),
        roff(&row.kind.describe().replace('`', "")),
        roff(default),
    );
}

/// Markdown's code spans become bold; what roff would take for a request or an escape does not.
fn roff(markdown: &str) -> String {
    let mut text = String::new();
    for (at, part) in markdown.split('`').enumerate() {
        let part = part.replace('\\', r"\e").replace('-', r"\-");
        let marks = if at % 2 == 1 {
            (r"\fB", r"\fR")
        } else {
            ("", "")
        };
        let _ = write!(text, "{}{part}{}", marks.0, marks.1);
    }
    if text.starts_with(['.', '\'']) {
        text.insert_str(0, r"\&");
    }
    text
}
