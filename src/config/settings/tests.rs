//! Tests of the table itself and of what reads and prints it.

use super::*;

#[test]
fn every_default_is_a_valid_value_of_its_row_and_prints_back() {
    for setting in TABLE {
        let mut settings = Settings::default();
        let default = setting.default.unwrap_or_default();
        assert_eq!(
            settings.assign(setting.name, default).unwrap(),
            None,
            "{}",
            setting.name
        );
        assert_eq!(
            settings.get(setting.name),
            Settings::default().get(setting.name),
            "{}",
            setting.name
        );
        if let Some(default) = setting.default {
            assert_eq!(
                settings.get(setting.name),
                Some(setting.kind.normalise(default).unwrap())
            );
        }
    }
}

#[test]
fn names_are_unique_and_grouped_for_the_documentation() {
    let names: std::collections::HashSet<_> = TABLE.iter().map(|setting| setting.name).collect();
    assert_eq!(names.len(), TABLE.len());
    for setting in TABLE {
        assert!(Scope::ALL.iter().any(|(scope, _)| *scope == setting.scope));
        assert!(
            setting.doc.ends_with('.') && !setting.doc.contains('|'),
            "{}",
            setting.name
        );
    }
}

#[test]
fn the_typed_view_starts_with_pgbouncers_defaults() {
    let settings = Settings::default();
    assert_eq!(settings.listen_port, 6432);
    assert_eq!(settings.pool_mode, PoolMode::Session);
    assert_eq!(settings.auth_type, AuthType::Md5);
    assert_eq!(settings.query_wait_timeout, Duration::from_secs(120));
    assert_eq!(settings.unix_socket_mode, Mode(0o777));
    assert_eq!(settings.unix_socket_dir, Some(PathBuf::from("/tmp")));
    assert_eq!(settings.prepared_statements_memory, ByteSize(256 << 20));
    assert!(settings.tcp_keepalive);
    assert_eq!(settings.client_tls_sslmode, SslMode::Disable);
    assert_eq!(settings.server_tls_sslmode, SslMode::Prefer);
}

#[test]
fn show_config_prints_null_only_where_there_is_no_default() {
    let mut settings = Settings::default();
    assert_eq!(settings.get("auth_file"), None);
    assert_eq!(settings.get("logfile").as_deref(), Some(""));
    assert_eq!(settings.get("unix_socket_mode").as_deref(), Some("511"));
    assert_eq!(settings.get("no_such_setting"), None);
    settings.assign("auth_file", "/etc/users").unwrap();
    assert_eq!(settings.get("auth_file").as_deref(), Some("/etc/users"));
    settings.assign("pkt_buf", "0x2000").unwrap();
    assert_eq!(settings.get("pkt_buf").as_deref(), Some("8192"));
}

#[test]
fn set_says_when_the_value_takes_effect() {
    let mut settings = Settings::default();
    assert_eq!(settings.set("query_timeout", "1.5").unwrap(), Applied::Now);
    assert_eq!(settings.query_timeout, Duration::from_millis(1500));
    assert_eq!(
        settings.set("tcp_keepalive", "0").unwrap(),
        Applied::NewConnections
    );
    assert_eq!(
        settings.set("listen_port", "7000").unwrap(),
        Applied::NeedsRestart
    );
    assert_eq!(settings.listen_port, 6432);
    assert!(matches!(
        settings.set("sbuf_loopcnt", "1").unwrap(),
        Applied::NoEffect(_)
    ));
    assert!(settings.set("listen_port", "x").is_err());
    assert!(settings.set("pool_mode", "x").is_err());
}

#[test]
fn a_setting_without_meaning_here_is_taken_with_its_reason() {
    let mut settings = Settings::default();
    assert_eq!(settings.assign("auth_hba_file", "").unwrap(), None);
    assert_eq!(settings.assign("server_fast_close", "0").unwrap(), None);
    assert_eq!(
        settings.assign("sbuf_loopcnt", "1").unwrap(),
        Some(ONE_THREADED)
    );
}

#[test]
fn a_secret_in_a_value_is_neither_shown_nor_in_an_error() {
    let mut settings = Settings::default();
    let good = "ldapserver=h ldapbasedn=dc=x ldapbinddn=cn=a ldapbindpasswd=s3cret";
    settings.assign("auth_ldap_options", good).unwrap();
    let shown = settings.get("auth_ldap_options").unwrap();
    assert!(shown.ends_with("ldapbindpasswd=(..)"), "{shown}");
    assert!(!format!("{settings:?}").contains("s3cret"));
    let bad = good.replace("ldapbinddn=cn=a", "");
    let error = settings.assign("auth_ldap_options", &bad).unwrap_err();
    assert_eq!(
        error.to_string(),
        "auth_ldap_options: ldapbinddn and ldapbindpasswd need each other"
    );
    let mut other = settings.clone();
    let another = good.replace("s3cret", "t4cret");
    other.assign("auth_ldap_options", &another).unwrap();
    assert!(settings.differs("auth_ldap_options", &other));
}

#[test]
fn what_is_not_built_in_is_refused_with_the_feature_that_brings_it() {
    let refused = Settings::default()
        .assign("auth_type", "pam")
        .map_err(|error| error.to_string());
    if cfg!(feature = "pam") {
        assert_eq!(refused, Ok(None));
    } else {
        let text = "auth_type = pam: pgferry was built without PAM (cargo feature \"pam\")";
        assert_eq!(refused, Err(text.to_owned()));
    }
    let fault = Fault::NotBuiltIn("PAM", "pam");
    assert_eq!(
        Problem::fault("auth_type", "pam", fault).to_string(),
        "auth_type = pam: pgferry was built without PAM (cargo feature \"pam\")"
    );
}

#[test]
fn a_restart_setting_is_kept_from_the_running_settings() {
    let mut running = Settings::default();
    running.assign("listen_port", "7000").unwrap();
    running.assign("pool_mode", "statement").unwrap();
    let mut new = Settings::default();
    new.keep_restart_settings(&running);
    assert_eq!((new.listen_port, new.pool_mode), (7000, PoolMode::Session));
}

#[test]
fn the_documentation_is_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/settings.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).unwrap();
        std::fs::write(path, markdown()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == markdown(),
        "docs/settings.md is stale: UPDATE_DOCS=1 cargo test settings"
    );
}

#[test]
fn the_manual_page_of_the_file_is_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/man/pgferry.ini.5");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, man::page()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == man::page(),
        "packaging/man/pgferry.ini.5 is stale: UPDATE_DOCS=1 cargo test --lib settings"
    );
}
