//! How our commands compare with PgBouncer's: what `docs/compatibility.md` has of them, made from the tables.
//!
//! Owns what is different about a command. Which there are is `parse`'s and `show`'s.

use crate::admin::parse::VERBS;
use crate::admin::show::SHOWS;
use crate::config::settings::comparison::{paragraph, table};

/// What is different about commands that PgBouncer has.
const DIFFERENCES: &[(&str, &str)] = &[
    (
        "KILL",
        "A server that was busy is brought to a clean end first, which may take up to 10 seconds.",
    ),
    ("KILL_CLIENT", "Takes the `ptr` of SHOW CLIENTS, too."),
    (
        "PAUSE",
        "Waits for itself only; in PgBouncer it may answer for a `WAIT_CLOSE`.",
    ),
    (
        "RELOAD",
        "Changes nothing if there is an error, and says in the DETAIL where.",
    ),
    (
        "RESUME",
        "Without a name it also resumes databases that were paused by theirs.",
    ),
    (
        "SET",
        "What takes a restart, or has no effect, is said in a notice, and why it failed in the DETAIL.",
    ),
    (
        "SHOW ACTIVE_SOCKETS",
        "The connections that work or wait. The columns about buffers are 0.",
    ),
    ("SHOW CONFIG", "Our settings are rows as well."),
    ("SHOW DNS_ZONES", "Has no rows."),
    ("SHOW FDS", "Has no rows."),
    ("SHOW MEM", "Other rows: there are other uses."),
    (
        "SHOW POOLS",
        "Then `prepare_cache_hit`, `prepare_cache_miss`. `cl_waiting_cancel_req` is always 0: cancel requests do not queue for a place in the pool.",
    ),
    (
        "SHOW SERVERS",
        "Then `prepare_cache_hit`, `prepare_cache_miss`.",
    ),
    ("SHOW SOCKETS", "The columns about buffers are 0."),
    (
        "SHOW STATS",
        "Then `total_prepare_cache_hit`, `total_prepare_cache_miss`, `total_session_look_count`, `total_pin_count`, `total_replan_count`, `total_slow_listener_count`, `total_unnamed_reuse_count`, `total_unnamed_demotion_count`.",
    ),
    (
        "SHOW STATS_TOTALS",
        "Then `prepare_cache_hit`, `prepare_cache_miss`, `session_look_count`, `pin_count`, `replan_count`, `slow_listener_count`.",
    ),
    (
        "SHOW TOTALS",
        "Then rows for the same sums of ours as in `SHOW STATS`.",
    ),
    ("SHOW VERSION", "PgBouncer's number first, then pgferry's."),
    (
        "SUSPEND",
        "Hands nothing over, for there is no online restart. Clients rest, new ones wait in the kernel's queue, and servers stay.",
    ),
];

/// The commands that are ours.
const OURS: &[&str] = &[
    "RESET",
    "SHOW ADVICE",
    "SHOW ERRORS",
    "SHOW LISTENERS",
    "SHOW PINS",
    "SHOW PREPARED",
    "SHOW RELOADS",
    "SHOW STATEMENTS",
    "UPGRADE",
];

/// Every command: as it is written, without arguments.
pub fn commands() -> Vec<String> {
    let shows = SHOWS
        .iter()
        .map(|show| format!("SHOW {}", show.name.to_ascii_uppercase()));
    let verbs = VERBS.iter().map(|verb| verb.word.to_ascii_uppercase());
    let others = ["SET", "SHOW HELP"].map(str::to_owned);
    let mut commands: Vec<_> = shows.chain(verbs).chain(others).collect();
    commands.sort();
    commands
}

/// Every command: the same, different, or ours.
pub fn comparison() -> String {
    let commands = commands();
    let differs = |name: &str| DIFFERENCES.iter().any(|(other, _)| *other == name);
    let names = commands.iter().map(String::as_str);
    let same: Vec<&str> = names
        .filter(|name| !differs(name) && !OURS.contains(name))
        .collect();
    paragraph("The same", &same)
        + &table("different", "how", DIFFERENCES)
        + &paragraph("Ours", OURS)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::config::settings::{TABLE, comparison as settings};

    const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/compatibility.md");

    fn document() -> String {
        std::fs::read_to_string(DOCUMENT).unwrap()
    }

    /// The part of PgBouncer.
    fn about_pgbouncer(document: &str) -> &str {
        document.split("\n## PgCat").next().unwrap()
    }

    #[test]
    fn only_commands_that_there_are_have_differences_and_each_once() {
        assert!(DIFFERENCES.is_sorted_by(|one, next| one.0 < next.0));
        let commands = commands();
        let known = |name: &str| commands.iter().any(|command| command == name);
        for (name, text) in DIFFERENCES {
            assert!(known(name), "{name}");
            assert!(text.ends_with('.') && !text.contains('|'), "{name}");
        }
        assert!(OURS.iter().all(|name| known(name)));
    }

    /// Puts `text` between the marks of a part.
    fn put(document: &str, part: &str, text: &str) -> String {
        let begin = format!("<!-- {part}: made by UPDATE_DOCS=1 cargo test --lib comparison -->\n");
        let end = format!("\n<!-- end of {part} -->");
        let (before, rest) = document.split_once(&begin).unwrap();
        let (_, after) = rest.split_once(&end).unwrap();
        format!("{before}{begin}{text}{end}{after}")
    }

    #[test]
    fn the_document_has_what_the_tables_say() {
        let written = document();
        let parts = [
            ("settings", settings::comparison()),
            ("keys", settings::keys()),
            ("commands", comparison()),
        ];
        let made = parts
            .iter()
            .fold(written.clone(), |text, (part, made)| put(&text, part, made));
        if std::env::var_os("UPDATE_DOCS").is_some() && made != written {
            // At one stroke: another test reads it.
            let beside = format!("{DOCUMENT}.new");
            std::fs::write(&beside, &made).unwrap();
            std::fs::rename(&beside, DOCUMENT).unwrap();
        }
        assert!(
            document() == made,
            "docs/compatibility.md is stale: UPDATE_DOCS=1 cargo test --lib comparison"
        );
    }

    /// What looks like a setting or a command in the document and is something else.
    const OTHER_WORDS: &[&str] = &[
        "DATABASE_URL",
        "DB_HOST",
        "LDAPTLS_CACERT",
        "MONOTONIC_USEC",
        "TLS_CACERT",
        "TLS_REQCERT",
        "channel_binding",
        "include_dir",
        "include_if_exists",
        "search_path",
        "total_prepare_cache_hit",
        "total_prepare_cache_miss",
        "pin_count",
        "replan_count",
        "slow_listener_count",
        "session_look_count",
        "total_pin_count",
        "total_replan_count",
        "total_slow_listener_count",
        "total_session_look_count",
        "total_unnamed_demotion_count",
        "total_unnamed_reuse_count",
        "unnamed_demotion_count",
        "unnamed_reuse_count",
    ];

    /// The first words of what stands between backquotes, if they are two with an underscore between them.
    fn names(document: &str) -> Vec<&str> {
        let quoted = about_pgbouncer(document).split('`').skip(1).step_by(2);
        let words = quoted.filter_map(|words| words.split(['=', ' ', ':']).next());
        let is_name = |word: &&str| {
            let is_lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            let mut letters = word.bytes().filter(|byte| *byte != b'_');
            let one_case =
                letters.clone().all(is_lower) || letters.all(|it| it.is_ascii_uppercase());
            word.contains('_') && one_case
        };
        words.filter(is_name).collect()
    }

    #[test]
    fn the_document_names_nothing_that_there_is_not() {
        let document = document();
        let settings = TABLE.iter().map(|setting| setting.name.to_owned());
        let columns = SHOWS.iter().flat_map(|show| (show.headings)());
        let columns = columns.map(|heading| heading.name.to_owned());
        let keys = settings::keys();
        let keys = keys.split('`').map(str::to_owned);
        let known: HashSet<String> = settings
            .chain(columns)
            .chain(keys)
            .chain(commands())
            .chain(OTHER_WORDS.iter().map(|word| (*word).to_owned()))
            .collect();
        let names = names(&document);
        assert!(!names.is_empty());
        for name in names {
            assert!(known.contains(name), "there is no {name}");
        }
        for show in about_pgbouncer(&document).split("`SHOW ").skip(1) {
            let what = show.split('`').next().unwrap();
            assert!(
                known.contains(&format!("SHOW {what}")),
                "there is no SHOW {what}"
            );
        }
    }
}
