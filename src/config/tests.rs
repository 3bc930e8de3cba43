//! Tests of loading whole files: the samples, the `auth_file`, a reload.

use std::time::Duration;

use super::*;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn write(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn the_toml_sample_loads_without_warnings() {
    let config = Config::load(&Path::new(ROOT).join("pgcat-like.toml")).unwrap();
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(
        (
            config.settings.listen_addr.join(","),
            config.settings.listen_port
        ),
        ("127.0.0.1".into(), 6432)
    );
    let app = config.database("app").unwrap();
    assert_eq!(
        (app.host.to_string(), app.port),
        ("127.0.0.1".to_owned(), 5432)
    );
    assert_eq!(config.pool_size(&app, "app"), 20);
    assert_eq!(
        config.secret(&app, "app").unwrap().expose(),
        "change me too"
    );
    assert!(!config.admits(&app, "admin"));
}

#[test]
fn every_key_of_the_toml_sample_has_a_comment() {
    let text = std::fs::read_to_string(Path::new(ROOT).join("pgcat-like.toml")).unwrap();
    for paragraph in text
        .split("\n\n")
        .filter(|it| it.lines().any(|line| line.contains(" = ")))
    {
        assert!(
            paragraph.starts_with('#') || paragraph.starts_with("[pools.app.users.0]"),
            "{paragraph}"
        );
    }
}

#[test]
fn the_ini_sample_loads_without_warnings() {
    let sample = std::fs::read_to_string(Path::new(ROOT).join("packaging/pgbouncer.ini")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let sample = sample.replace(
        "/etc/pgferry/userlist.txt",
        &format!("{ROOT}/packaging/userlist.txt"),
    );
    let config = Config::load(&write(&folder, "pgbouncer.ini", &sample)).unwrap();
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(config.settings.pool_mode, PoolMode::Transaction);
    assert_eq!(config.database("anything").unwrap().port, 5432);
}

#[test]
fn the_ini_sample_loads_with_its_comments_taken_away() {
    let sample = std::fs::read_to_string(Path::new(ROOT).join("packaging/pgbouncer.ini")).unwrap();
    let is_example =
        |line: &&str| line.starts_with(';') && !line.starts_with("; ") && line.contains(" = ");
    let examples = sample.lines().filter(is_example).count();
    let text: String = sample
        .lines()
        .map(|line| {
            line.strip_prefix(';')
                .filter(|it| !it.starts_with(' '))
                .unwrap_or(line)
                .to_owned()
                + "\n"
        })
        .collect();
    let draft = ini::read(&text, "pgbouncer.ini").unwrap();
    assert!(
        examples > 5 && draft.warnings.is_empty(),
        "{:?}",
        draft.warnings
    );
    assert_eq!(draft.databases["report"].user.as_deref(), Some("reader"));
    assert_eq!(
        draft.users["batch"].query_timeout,
        Some(Duration::from_secs(600))
    );
}

#[test]
fn the_auth_file_is_read_and_databases_without_host_use_the_socket_directory() {
    let folder = tempfile::tempdir().unwrap();
    let users = write(&folder, "users.txt", "\"bob\" \"pw\"\n");
    let ini = format!(
        "[databases]\napp =\n[pgbouncer]\nunix_socket_dir = /run/pg\nauth_file = {}\n",
        users.display()
    );
    let path = write(&folder, "a.ini", &ini);
    let config = Config::load(&path).unwrap();
    assert_eq!(config.secrets["bob"].expose(), "pw");
    assert_eq!(config.databases["app"].host, Host::Unix("/run/pg".into()));
    assert_eq!(
        config.settings.get("conffile"),
        Some(path.display().to_string())
    );
    assert!(!format!("{config:?}").contains("pw"), "a secret is printed");
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Path::new("/no/such.ini"))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("cannot read /no/such.ini: "), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "a.ini", "[pgbouncer]\nauth_file = /no/users\n");
    let error = Config::load(&path).unwrap_err().to_string();
    assert!(
        error.starts_with("auth_file: cannot read /no/users: "),
        "{error}"
    );
}

#[test]
fn a_database_without_host_or_socket_directory_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::load(&write(
        &folder,
        "a.ini",
        "[databases]\na=\n[pgbouncer]\nunix_socket_dir=\n",
    ))
    .unwrap();
    assert_eq!(config.databases["a"].host, Host::Unix("/tmp".into()));
    assert_eq!(config.warnings.len(), 1);
}

#[test]
fn the_console_is_no_database_for_auth_query() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "a.ini", "[pgbouncer]\nauth_dbname = pgbouncer\n");
    assert!(matches!(
        Config::load(&path).unwrap_err().problem,
        Problem::ReservedName
    ));
}

#[test]
fn a_reload_undoes_set_keeps_what_needs_a_restart_and_names_every_change() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[databases]\napp = host=db\nold =\n[pgbouncer]\nlisten_port = 7000\nunix_socket_dir = /a\n";
    let path = write(&folder, "a.ini", text);
    let mut running = Config::load(&path).unwrap();
    assert_eq!(running.reload().unwrap().1, []);
    running.settings.set("query_timeout", "3").unwrap();
    let text = "[databases]\napp = host=other\nold =\n[pgbouncer]\nlisten_port = 7001\nunix_socket_dir = /b\n";
    write(&folder, "a.ini", text);
    let (new, changes) = running.reload().unwrap();
    assert_eq!(new.settings.query_timeout, Duration::ZERO);
    assert_eq!(new.settings.listen_port, 7000);
    assert_eq!(new.databases["old"].host, Host::Unix("/a".into()));
    let listed: Vec<String> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        listed,
        [
            "listen_port (needs a restart)",
            "unix_socket_dir (needs a restart)",
            "query_timeout",
            "database app (servers reconnect)",
        ]
    );
}

#[test]
fn a_bad_reload_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "a.ini", "[pgbouncer]\n");
    let handle = ConfigHandle::new(Config::load(&path).unwrap());
    write(
        &folder,
        "a.ini",
        "[pgbouncer]\nquery_timeout = 5\nnonsense = 1\n",
    );
    assert!(handle.load().reload().is_err());
    assert_eq!(handle.load().settings.query_timeout, Duration::ZERO);
}

#[test]
fn a_handle_shows_the_new_snapshot_to_every_clone() {
    let handle = ConfigHandle::new(Config::default());
    let clone = handle.clone();
    let before = clone.load();
    let mut config = Config::default();
    config.settings.max_client_conn = 7;
    handle.store(config);
    assert_eq!(
        (
            before.settings.max_client_conn,
            clone.load().settings.max_client_conn
        ),
        (100, 7)
    );
}

#[test]
fn a_configured_database_comes_before_an_alias_and_not_before_the_console() {
    let mut config = Config::default();
    assert!(
        ["pgbouncer", "pgferry", "pgcat"]
            .iter()
            .all(|name| config.is_console(name))
    );
    assert!(!config.is_console("app"));
    for name in ["pgcat", "pgbouncer"] {
        let database = Database::new(name, Host::Tcp("db".into()));
        config.databases.insert(name.into(), Arc::new(database));
    }
    assert!(!config.is_console("pgcat"));
    assert!(config.is_console("pgbouncer"));
}

/// A folder with an ini that wants HBA, and these two files.
fn hba(rules: &str, maps: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let rules = write(&folder, "hba.conf", rules);
    let maps = write(&folder, "ident.conf", maps);
    let ini = format!(
        "[pgbouncer]\nauth_type = hba\nauth_hba_file = {}\nauth_ident_file = {}\n",
        rules.display(),
        maps.display()
    );
    let path = write(&folder, "a.ini", &ini);
    (folder, path)
}

fn refused(path: &Path, folder: &tempfile::TempDir) -> String {
    let error = Config::load(path).unwrap_err().to_string();
    error.replace(&folder.path().display().to_string(), "")
}

#[test]
fn hba_files_are_read_with_their_maps_and_read_again_on_reload() {
    let (folder, path) = hba("local all all peer map=m\nhost all +x all md5\n", "m a b\n");
    let running = Config::load(&path).unwrap();
    assert!(!running.rules.as_ref().unwrap().is_empty());
    assert_eq!(running.warnings.len(), 1);
    assert_eq!(running.reload().unwrap().1, []);
    write(&folder, "ident.conf", "m a c\n");
    let (_, changes) = running.reload().unwrap();
    assert_eq!(changes, [Change::Rules]);
    assert_eq!(changes[0].to_string(), "HBA rules");
}

#[test]
fn a_bad_hba_or_ident_file_is_refused_by_file_and_line() {
    let (folder, path) = hba("\nlocal all all pear\n", "");
    assert_eq!(
        refused(&path, &folder),
        "/hba.conf:2: unknown method \"pear\": expected one of trust, reject, md5, scram-sha-256, password, peer, cert, ldap"
    );
    let (folder, path) = hba("local all all peer\n", "\n\nm a\n");
    assert_eq!(
        refused(&path, &folder),
        "/ident.conf:3: expected the name of a map, a system user and a login user"
    );
    std::fs::remove_file(folder.path().join("hba.conf")).unwrap();
    write(&folder, "ident.conf", "");
    assert!(refused(&path, &folder).starts_with("auth_hba_file: cannot read /hba.conf: "));
    let path = write(&folder, "a.ini", "[pgbouncer]\nauth_type = hba\n");
    assert_eq!(
        refused(&path, &folder),
        "auth_type = hba: auth_hba_file is missing"
    );
}

#[test]
fn without_auth_type_hba_its_files_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let ini = "[pgbouncer]\nauth_hba_file = /no/hba\nauth_ident_file = /no/ident\n";
    let mut config = Config::load(&write(&folder, "a.ini", ini)).unwrap();
    assert!(config.rules.is_none());
    config.settings.set("auth_type", "hba").unwrap();
    assert!(config.read_rules().is_err());
}

#[test]
fn the_auth_file_of_an_environment_is_read_again_on_reload() {
    let folder = tempfile::tempdir().unwrap();
    let users = write(&folder, "users.txt", "\"bob\" \"one\"\n\"app\" \"stale\"\n");
    let variables = [
        ("DATABASE_URL", "postgres://app:own@db/app"),
        ("AUTH_FILE", users.to_str().unwrap()),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let running = super::env::read(variables.into_iter())
        .and_then(|draft| draft.finish(None))
        .unwrap();
    let secret = |config: &Config, name: &str| {
        let secret = config.secrets.get(name);
        secret.map(|secret| secret.expose().to_owned())
    };
    // The URL's own goes before the file's.
    assert_eq!(secret(&running, "app").as_deref(), Some("own"));
    assert_eq!(running.reload().unwrap().1, []);
    write(&folder, "users.txt", "\"eve\" \"two\"\n");
    let (new, changes) = running.reload().unwrap();
    assert_eq!(changes, [Change::Secrets]);
    assert_eq!(secret(&new, "eve").as_deref(), Some("two"));
    assert_eq!(secret(&new, "app").as_deref(), Some("own"));
    assert_eq!(secret(&new, "bob"), None);
    write(&folder, "users.txt", "\"eve\n");
    assert!(new.reload().is_err());
    std::fs::remove_file(&users).unwrap();
    assert!(new.reload().is_err());
}

#[test]
fn a_directory_that_is_to_be_asked_has_to_be_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "a.ini", "[pgbouncer]\nauth_type = ldap\n");
    assert_eq!(
        refused(&path, &folder),
        "auth_type = ldap: auth_ldap_options is missing"
    );
    let options = "auth_ldap_options = ldapserver=h ldapprefix=cn=\n";
    let with = |rest: &str| {
        let text = format!("[pgbouncer]\n{options}{rest}");
        Config::load(&write(&folder, "a.ini", &text)).unwrap()
    };
    assert_eq!(with("").directories().count(), 0);
    let asking = with("auth_type = ldap\n");
    assert_eq!(asking.directories().count(), 1);
    assert_eq!(asking.warnings, Vec::<String>::new());
    let warned = [
        "auth_type = ldap\nauth_user = a\n",
        "auth_type = ldap\n[databases]\nx = auth_user=a\n",
        "auth_type = ldap\n[databases]\n* = auth_user=a\n",
    ];
    for rest in warned {
        assert_eq!(
            with(rest).warnings,
            [
                "auth_type = ldap can't be used together with auth_user: clients of such a database are refused"
            ],
            "{rest}"
        );
    }
}

#[test]
fn a_changed_password_of_a_directory_s_account_is_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let text = |password: &str| {
        let options = "auth_ldap_options = ldapserver=h ldapbasedn=x ldapbinddn=a ldapbindpasswd=";
        write(
            &folder,
            "a.ini",
            &format!("[pgbouncer]\n{options}{password}\n"),
        )
    };
    let running = Config::load(&text("one")).unwrap();
    assert_eq!(running.reload().unwrap().1, []);
    text("two");
    let (_, changes) = running.reload().unwrap();
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(changes[0].to_string(), "auth_ldap_options");
}
