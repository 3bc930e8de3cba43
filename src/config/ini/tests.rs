//! Tests of PgBouncer's ini rules, one each.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::config::PoolMode;

fn load(text: &str) -> Draft {
    read(text, "t.ini").unwrap()
}

fn refused(text: &str) -> String {
    read(text, "t.ini").unwrap_err().to_string()
}

/// Parses with included files taken from a map.
fn parse_with(files: &[(&str, &str)]) -> Result<Vec<(Place, Item)>, Error> {
    let files: HashMap<&str, &str> = files.iter().copied().collect();
    let mut lines = Vec::new();
    let mut include = |name: &str| match files.get(name) {
        Some(text) => Ok((*text).to_owned()),
        None => Err(Problem::Unreadable {
            file: name.to_owned(),
            reason: std::io::ErrorKind::NotFound.into(),
        }),
    };
    parse(files["main"], "main", &mut include, &mut lines)?;
    Ok(lines)
}

#[test]
fn sections_keys_and_comments_are_read() {
    let draft = load(
        "; a comment\n# another\n\n[databases]\napp = host=db port=5433\n* = host=other\n\
         [users]\nbob = pool_size=3\n  [pgbouncer]\n\tpool_mode = Transaction  \nlisten_port=7000\r\n",
    );
    assert_eq!(draft.settings.pool_mode, PoolMode::Transaction);
    assert_eq!(draft.settings.listen_port, 7000);
    assert_eq!(draft.databases["app"].port, 5433);
    assert_eq!(draft.databases["*"].name, "*");
    assert_eq!(draft.users["bob"].pool_size, Some(3));
    assert!(draft.warnings.is_empty());
}

#[test]
fn a_value_is_the_rest_of_the_line_without_quoting_or_inline_comments() {
    let draft = load("[pgbouncer]\nserver_check_query = select 'a' ; # no comment  \nlogfile = \n");
    assert_eq!(
        draft.settings.server_check_query,
        "select 'a' ; # no comment"
    );
    assert_eq!(draft.settings.logfile, None);
}

#[test]
fn a_comment_after_a_number_is_part_of_the_number() {
    assert_eq!(
        refused("[pgbouncer]\ndefault_pool_size = 20 ; servers\n"),
        "t.ini:2: [pgbouncer] default_pool_size = 20 ; servers: expected a whole number, 0 or more"
    );
}

#[test]
fn a_key_is_bare_or_in_either_quotes() {
    let draft =
        load("[databases]\na.b-c_1* =\n'my db' =\n\"your db\" = port=1\n'it''s' =\n[pgbouncer]");
    let names: Vec<&str> = draft.databases.keys().map(String::as_str).collect();
    assert_eq!(names, ["a.b-c_1*", "it's", "my db", "your db"]);
}

#[test]
fn more_may_follow_a_section_on_its_line() {
    assert_eq!(
        load("[databases] app = port=7 \n[pgbouncer]").databases["app"].port,
        7
    );
}

#[test]
fn sections_may_repeat_and_the_later_value_wins() {
    let draft = load(
        "[databases]\na = port=1\n[pgbouncer]\nverbose=1\nverbose=2\n[databases]\na = port=2\nb =\n",
    );
    assert_eq!(draft.databases["a"].port, 2);
    assert_eq!((draft.databases.len(), draft.settings.verbose), (2, 2));
}

#[test]
fn a_second_main_section_puts_reloadable_settings_back_and_says_so() {
    let draft = load(
        "[pgbouncer]\nquery_timeout=5\nlisten_port=7\nauth_user=a\n[databases]\n[pgbouncer]\nverbose=1",
    );
    assert_eq!(draft.settings.query_timeout, Duration::ZERO);
    assert_eq!(draft.settings.listen_port, 7);
    assert_eq!(draft.settings.auth_user.as_deref(), Some("a"));
    assert_eq!(
        draft.warnings,
        ["t.ini:6: [pgbouncer] begins again, which undoes: query_timeout"]
    );
}

#[test]
fn an_included_file_stands_in_its_place_and_may_change_the_section() {
    let lines = parse_with(&[
        ("main", "[pgbouncer]\n%include one\nb = 2\n"),
        ("one", "a = 1\n[users]\n%include\ttwo"),
        ("two", "u = 3"),
    ])
    .unwrap();
    let seen: Vec<String> = lines
        .iter()
        .map(|(place, item)| match item {
            Item::Section { name } => format!("{place}[{name}]"),
            Item::Value { key, value } => format!("{place}{key}={value}"),
        })
        .collect();
    assert_eq!(
        seen,
        [
            "main:1: [pgbouncer]",
            "one:1: a=1",
            "one:2: [users]",
            "two:1: u=3",
            "main:3: b=2"
        ]
    );
}

#[test]
fn includes_nest_ten_deep_and_no_deeper() {
    let error = parse_with(&[("main", "%include main")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "main:1: %include is nested more than 10 deep"
    );
    let names: Vec<String> = (0..=10)
        .map(|n| {
            if n == 0 {
                "main".into()
            } else {
                format!("f{n}")
            }
        })
        .collect();
    let texts: Vec<String> = (1..=10)
        .map(|n| format!("%include f{n}"))
        .chain(["k = v".into()])
        .collect();
    let files: Vec<(&str, &str)> = names
        .iter()
        .zip(&texts)
        .map(|(n, t)| (n.as_str(), t.as_str()))
        .collect();
    assert_eq!(parse_with(&files).unwrap().len(), 1);
}

#[test]
fn an_included_file_is_relative_to_the_working_directory_and_must_exist() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let name = folder.path().join("extra.ini");
    std::fs::write(&name, "[pgbouncer]\nverbose = 3\n").unwrap();
    let name: PathBuf = name
        .components()
        .skip_while(|c| c.as_os_str() == ".")
        .collect();
    let draft = read(
        &format!("%include {}\n", name.display()),
        "/elsewhere/t.ini",
    )
    .unwrap();
    assert_eq!(draft.settings.verbose, 3);
    assert!(
        refused("%include no/such/file\n[pgbouncer]")
            .starts_with("t.ini:1: cannot read no/such/file: ")
    );
}

#[test]
fn every_refusal_names_file_line_section_and_key() {
    let texts = [
        "",
        "[databases]\napp =\n",
        "verbose = 1\n[pgbouncer]\n",
        "[pgbouncers]\n",
        "[pgbouncer\n",
        "[pgbouncer]\npool_mod = session\n",
        "[pgbouncer]\npool_mode = sometimes\n",
        "[pgbouncer]\nlog_stats = yes\n",
        "[pgbouncer]\n\nlisten_port = 70000\n",
        "[pgbouncer]\nauth_type = kerberos\n",
        "[pgbouncer]\nauth_ldap_options = ldapprefix=x\n",
        "[pgbouncer]\nverbose 1\n",
        "[pgbouncer]\n= 1\n",
        "[pgbouncer]\n'verbose = 1\n",
        "[pgbouncer]\n%includefile\n",
        "[databases]\napp = prot=5432\n",
        "[databases]\npgbouncer = port=5432\n",
        "[databases]\napp = host=a,,b\n",
        "[users]\nbob = pool_size=x\n",
        "[peers]\n1 = port=7\n",
    ];
    let messages: Vec<String> = texts.into_iter().map(refused).collect();
    insta::assert_snapshot!(messages.join("\n"), @r#"
    t.ini: main section missing: [pgbouncer]
    t.ini: main section missing: [pgbouncer]
    t.ini:1: value "verbose" before any section
    t.ini:1: unknown section "pgbouncers"; did you mean "pgbouncer"?
    t.ini:1: syntax error: expected ] after the section
    t.ini:2: [pgbouncer] unknown key "pool_mod"; did you mean "pool_mode"?
    t.ini:2: [pgbouncer] pool_mode = sometimes: expected one of session, transaction, statement
    t.ini:2: [pgbouncer] log_stats = yes: expected 0 or 1
    t.ini:3: [pgbouncer] listen_port = 70000: expected a port, 0 to 65535
    t.ini:2: [pgbouncer] auth_type = kerberos: expected one of any, trust, plain, md5, cert, hba, ldap, pam, scram-sha-256
    t.ini:2: [pgbouncer] auth_ldap_options: ldapserver is missing
    t.ini:2: syntax error: expected = after the key
    t.ini:2: syntax error: expected key = value
    t.ini:2: syntax error: unterminated quote in the key
    t.ini:2: syntax error: expected a file after %include
    t.ini:2: [databases] app: unknown key "prot"; did you mean "port"?
    t.ini:2: [databases] pgbouncer: the name "pgbouncer" is reserved for the console
    t.ini:2: [databases] app: host = a,,b: expected a host between commas
    t.ini:2: [users] bob: pool_size = x: expected a whole number
    t.ini:2: [peers] 1: host is missing
    "#);
}

#[test]
fn a_setting_without_meaning_here_is_a_warning() {
    let draft = load("[pgbouncer]\ndns_max_ttl = 15\npkt_buf = 8192\n");
    assert_eq!(
        draft.warnings,
        ["t.ini:3: [pgbouncer] pkt_buf has no effect: buffers grow as needed"]
    );
    assert_eq!(draft.settings.get("pkt_buf").as_deref(), Some("8192"));
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "(?s).{0,200}") {
        let _ = read(&text.replace("%include", ""), "t.ini");
    }

    #[test]
    fn no_line_of_ini_like_text_makes_the_parser_panic(
        text in "(\\[(pgbouncer|databases|users|x)?\\]?|[a-z*'\"]{0,4} ?=? ?|[a-z_]{1,8}=|[0-9x.-]{1,9}|[ \t\n'\"=;#%é]|port=1|host='a''b'){0,30}",
    ) {
        let _ = read(&text, "t.ini");
    }
}
