//! How our settings and keys compare with PgBouncer's: what `docs/compatibility.md` has of them, made from the tables.
//!
//! Owns what is different about a setting that we honour. Which there are, and which have no effect, is
//! the table's, and which keys a line can have that of those who read it.

use std::fmt::Write;

use crate::config::settings::{Setting, Support, TABLE};
use crate::config::{databases, peers, users};

/// What is different about settings that do what PgBouncer documents otherwise.
const DIFFERENCES: &[(&str, &str)] = &[
    ("auth_dbname", UNSET),
    ("auth_file", "A line that can't be read is an error."),
    (
        "auth_hba_file",
        "More can be said, and what can't be understood is an error: see *HBA files*. The same holds for `auth_ident_file`.",
    ),
    ("auth_ident_file", UNSET),
    (
        "auth_ldap_options",
        "What does not go together is an error: see *LDAP and PAM*.",
    ),
    (
        "auth_query",
        "One query serves all logins of a user that come while it runs.",
    ),
    (
        "auth_type",
        "`pam` is refused where pgferry was built without it. See *LDAP and PAM*.",
    ),
    ("auth_user", UNSET),
    ("client_tls13_ciphers", TLS),
    ("client_tls_ciphers", TLS),
    ("client_tls_ecdhcurve", TLS),
    ("client_tls_protocols", TLS),
    ("disable_pqexec", "The console takes queries all the same."),
    ("max_prepared_statements", "See *Prepared statements*."),
    (
        "pool_idle_timeout",
        "What was counted in the pool stays in `SHOW STATS`.",
    ),
    ("query_wait_notify", "May have a fraction."),
    (
        "server_lifetime",
        "Shortened by up to a tenth at random for each server.",
    ),
    (
        "server_login_retry",
        "The longest pause; the first is 100 ms.",
    ),
    ("server_tls13_ciphers", TLS),
    ("server_tls_ciphers", TLS),
    ("server_tls_protocols", TLS),
    (
        "server_tls_sslmode",
        "With `prefer`, a server whose handshake fails is used without TLS.",
    ),
    (
        "stats_period",
        "May have a fraction, and takes effect while running.",
    ),
    (
        "suspend_timeout",
        "Bounds how long `SUSPEND` waits for queries.",
    ),
];

const TLS: &str = "There is less to choose from: see *TLS*.";
const UNSET: &str = "A reload without its line unsets it; PgBouncer keeps it.";

/// Every setting of `[pgbouncer]`: the same, different, without effect, or ours.
pub fn comparison() -> String {
    let difference = |setting: &Setting| {
        let found = DIFFERENCES.iter().find(|(name, _)| *name == setting.name);
        found.map(|(_, text)| *text)
    };
    let mut rows: Vec<&Setting> = TABLE.iter().collect();
    rows.sort_by_key(|setting| setting.name);
    let is_ours = |setting: &Setting| setting.doc.contains("Not in PgBouncer.");
    let (mut same, mut ours) = (Vec::new(), Vec::new());
    let (mut different, mut without) = (Vec::new(), Vec::new());
    for setting in rows {
        match setting.support {
            Support::Full if is_ours(setting) => ours.push(setting.name),
            Support::Full => match difference(setting) {
                Some(text) => different.push((setting.name, text)),
                None => same.push(setting.name),
            },
            Support::AcceptAndWarn(why) => without.push((setting.name, why)),
        }
    }
    let mut text = paragraph("The same", &same);
    text += &table("different", "how", &different);
    text += &table("without effect", "why", &without);
    text + &paragraph("Ours", &ours)
}

/// Every key of a line in the other sections.
pub fn keys() -> String {
    let sections = [
        ("[databases]", databases::KEYS),
        ("[users]", users::KEYS),
        ("[peers]", peers::KEYS),
    ];
    let of = |(name, keys): &(&str, &[&str])| paragraph(&format!("`{name}`"), keys);
    sections.iter().map(of).collect()
}

/// Names in a paragraph of their own, in lines that fit a screen.
pub fn paragraph(title: &str, names: &[&str]) -> String {
    const WIDTH: usize = 118;
    let mut text = format!("\n**{title}.**");
    let mut column = text.len();
    for (at, name) in names.iter().enumerate() {
        let end = if at + 1 == names.len() { '.' } else { ',' };
        let word = format!("`{name}`{end}");
        let between = if column + word.len() > WIDTH {
            column = 0;
            '\n'
        } else {
            ' '
        };
        column += word.len() + 1;
        // Writing to a string does not fail.
        let _ = write!(text, "{between}{word}");
    }
    text + "\n"
}

/// Names with something about each.
pub fn table(title: &str, says: &str, rows: &[(&str, &str)]) -> String {
    let mut text = format!("\n| {title} | {says} |\n|---|---|\n");
    for (name, about) in rows {
        let _ = writeln!(text, "| `{name}` | {about} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_that_are_honoured_have_differences_and_each_once() {
        assert!(DIFFERENCES.is_sorted_by(|one, next| one.0 < next.0));
        for (name, text) in DIFFERENCES {
            let setting = Setting::find(name).unwrap();
            assert_eq!(setting.support, Support::Full, "{name}");
            assert!(text.ends_with('.') && !text.contains('|'), "{name}");
        }
    }
}
