//! Tests of configurations from the environment.

use super::*;
use crate::config::{PoolMode, SslMode};

fn draft(variables: &[(&str, &str)]) -> Result<Draft, Error> {
    read(
        variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    )
}

fn url(url: &str) -> Draft {
    draft(&[("DATABASE_URL", url)]).unwrap()
}

fn refused(variables: &[(&str, &str)]) -> String {
    draft(variables).unwrap_err().to_string()
}

#[test]
fn a_url_gives_one_database_and_one_secret() {
    let draft = url("postgres://al%40ice:p%3As%20w@db.example:5433/my%2Fapp");
    let app = &draft.databases["my/app"];
    assert_eq!(
        (&app.host, app.port),
        (&Host::Tcp("db.example".into()), 5433)
    );
    assert_eq!(draft.secrets["al@ice"].expose(), "p:s w");
    assert_eq!(draft.settings.listen_addr, ["127.0.0.1"]);
    assert!(draft.warnings.is_empty());
}

#[test]
fn a_url_says_how_the_server_is_reached_unless_a_variable_does() {
    let settings =
        url("postgres://db/app?sslmode=verify-full&sslrootcert=%2Froot&sslkey=&sslcert=c").settings;
    assert_eq!(settings.server_tls_sslmode, SslMode::VerifyFull);
    assert_eq!(settings.server_tls_ca_file, Some("/root".into()));
    assert_eq!(settings.server_tls_cert_file, Some("c".into()));
    assert_eq!(settings.server_tls_key_file, None);
    let settings = draft(&[
        ("DATABASE_URL", "postgres://db/app?sslmode=disable"),
        ("SERVER_TLS_SSLMODE", "require"),
    ]);
    assert_eq!(
        settings.unwrap().settings.server_tls_sslmode,
        SslMode::Require
    );
}

#[test]
fn every_part_of_a_url_may_be_missing() {
    let draft = url("postgresql://db");
    assert_eq!((draft.databases["*"].port, draft.secrets.len()), (5432, 0));
    assert_eq!(
        url("postgres:///app").databases["app"].host,
        Host::socket_dir()
    );
    assert_eq!(
        url("postgres://[::1]:7/app").databases["app"].host,
        Host::Tcp("::1".into())
    );
    assert_eq!(
        url("postgres:///app?host=%2Frun&user=u&password=p").databases["app"].host,
        Host::Unix("/run".into())
    );
    assert_eq!(
        url("postgres://%2Frun/app").databases["app"].host,
        Host::Unix("/run".into())
    );
}

#[test]
fn settings_are_read_in_upper_case_and_others_variables_are_left_alone() {
    let draft = draft(&[
        ("DATABASE_URL", "postgres://db/app?sslmode=prefer&schema=x"),
        ("POOL_MODE", "transaction"),
        ("DEFAULT_POOL_SIZE", "7"),
        ("MAX_CLIENT_CONN", "500"),
        ("LISTEN_ADDR", "0.0.0.0"),
        ("QUERY_TIMEOUT", ""),
        ("USER", "root"),
        ("SERVICE_NAME", "web"),
        ("PATH", "/bin"),
    ])
    .unwrap();
    assert_eq!(draft.settings.pool_mode, PoolMode::Transaction);
    assert_eq!(
        (
            draft.settings.default_pool_size,
            draft.settings.max_client_conn
        ),
        (7, 500)
    );
    assert_eq!(draft.settings.listen_addr, ["0.0.0.0"]);
    assert_eq!(draft.settings.user, None);
    assert_eq!(draft.warnings.len(), 1);
}

#[test]
fn separate_variables_stand_in_for_the_url() {
    let draft = draft(&[
        ("DB_HOST", "db"),
        ("DB_USER", "u"),
        ("DB_PASSWORD", "p"),
        ("DB_NAME", "app"),
    ])
    .unwrap();
    assert_eq!(draft.databases["app"].host, Host::Tcp("db".into()));
    assert_eq!(draft.secrets["u"].expose(), "p");
}

#[test]
fn with_auth_type_any_everybody_is_the_user_of_the_url() {
    let url = ("DATABASE_URL", "postgres://u:p@db/app");
    let any = draft(&[url, ("AUTH_TYPE", "any")]).unwrap();
    let app = &any.databases["app"];
    assert_eq!(app.user.as_deref(), Some("u"));
    assert_eq!(app.password.as_ref().map(SecretText::expose), Some("p"));
    let md5 = draft(&[url]).unwrap();
    assert_eq!(md5.databases["app"].user, None);
    let parts = [("DB_HOST", "db"), ("DB_USER", "u"), ("AUTH_TYPE", "any")];
    let any = draft(&parts).unwrap();
    assert_eq!(any.databases["*"].user.as_deref(), Some("u"));
    assert_eq!(
        refused(&[("DATABASE_URL", "postgres://db/app"), ("AUTH_TYPE", "any")]),
        "environment: DATABASE_URL: AUTH_TYPE=any needs a user, whom everybody is"
    );
}

#[test]
fn a_warning_shows_no_rest_of_a_password() {
    assert_eq!(
        url("postgres://h/d?x=y&2nd=1&s3cret").warnings[2],
        "environment: DATABASE_URL: what follows the ? has no effect: it is the client's to ask for"
    );
    assert!(url("postgres://h/d?schema=x").warnings[0].contains(" schema has no effect"));
}

#[test]
fn a_warning_names_the_variable() {
    let urls = draft(&[("DATABASE_URLS", "postgres://h/d?schema=x")]).unwrap();
    assert!(urls.warnings[0].starts_with("environment: DATABASE_URLS: schema "));
}

#[test]
fn a_refusal_names_the_variable_and_not_the_password() {
    assert_eq!(refused(&[]), "environment: DATABASE_URL is missing");
    assert_eq!(
        refused(&[("POOL_MODE", "x")]),
        "environment: pool_mode = x: expected one of session, transaction, statement"
    );
    for bad in [
        "mysql://u:s3cret@h/d",
        "postgres://u:s3cret%zz@h/d",
        "postgres://u:s3cret@[::1/d",
        "postgres://u:s3cret@h,i/d",
        "postgres://u:s3cret@h:x/d",
        "postgres://u:s3cret/more@h/d",
        "postgres://u:s3cret?more@h/d",
        "postgres://u?host=s3cret@h,,i/d",
        "postgres://u:s3cret@h/d?sslmode=always",
        "postgres://u:s3cret@h/pgbouncer",
        "postgres://u:s3cret%00@h/d",
        "postgres://u:s3cret%ff@h/d",
    ] {
        let text = refused(&[("DATABASE_URL", bad)]);
        assert!(
            text.starts_with("environment: DATABASE_URL: ") && !text.contains("s3cret"),
            "{text}"
        );
    }
}

/// A folder with one file in it, and its path.
fn file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn a_secret_may_stand_in_a_file_of_its_own() {
    let (_folder, path) = file("p:\n");
    let parts = [
        ("DB_HOST", "db"),
        ("DB_USER", "u"),
        ("DB_PASSWORD_FILE", &path),
    ];
    assert_eq!(draft(&parts).unwrap().secrets["u"].expose(), "p:");
    let (_folder, path) = file("postgres://u:p@db/app\r\n");
    let draft_of_url = draft(&[("DATABASE_URL_FILE", &path)]).unwrap();
    assert_eq!(draft_of_url.secrets["u"].expose(), "p");
    let (_folder, path) = file("transaction\n");
    let both = [("DB_HOST", "db"), ("POOL_MODE_FILE", &path)];
    assert_eq!(
        draft(&both).unwrap().settings.pool_mode,
        PoolMode::Transaction
    );
}

#[test]
fn a_file_that_is_not_there_or_one_too_many_is_refused_by_name() {
    let text = refused(&[("DATABASE_URL_FILE", "/no/such/file")]);
    assert!(
        text.starts_with("environment: DATABASE_URL_FILE: ") && text.contains("/no/such/file"),
        "{text}"
    );
    let (_folder, path) = file("s3cret");
    let both = [
        ("DB_HOST", "db"),
        ("DB_PASSWORD", "p"),
        ("DB_PASSWORD_FILE", &path),
    ];
    assert_eq!(
        refused(&both),
        "environment: DB_PASSWORD_FILE: DB_PASSWORD is set, too"
    );
}

#[test]
fn settings_that_name_a_file_are_no_files_of_values() {
    let draft = draft(&[
        ("DB_HOST", "db"),
        ("AUTH_FILE", "/etc/users"),
        ("SERVER_TLS_CA_FILE", "/etc/ca"),
        ("SOMEBODYS_FILE", "/no/such/file"),
    ]);
    let settings = draft.unwrap().settings;
    assert_eq!(settings.auth_file, Some("/etc/users".into()));
    assert_eq!(settings.server_tls_ca_file, Some("/etc/ca".into()));
}

#[test]
fn several_urls_are_several_databases() {
    let urls = "postgres://u:p@one/a, postgres://u:p@two/b,postgres://v:q@two/c";
    let draft = draft(&[("DATABASE_URLS", urls)]).unwrap();
    let names: Vec<_> = draft.databases.keys().collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(draft.databases["b"].host, Host::Tcp("two".into()));
    assert_eq!(draft.secrets["v"].expose(), "q");
    for (urls, problem) in [
        ("postgres://h/a,postgres://i/a", "a database is there twice"),
        (
            "postgres://u:s3cret@h/a,postgres://u:s4cret@h/b",
            "a user has two passwords",
        ),
        (
            "postgres://h/a?sslmode=require,postgres://h/b",
            "sslmode and its like have to be equal in all",
        ),
    ] {
        assert_eq!(
            refused(&[("DATABASE_URLS", urls)]),
            format!("environment: DATABASE_URLS: {problem}")
        );
    }
    assert_eq!(
        refused(&[("DATABASE_URLS", " , ")]),
        "environment: DATABASE_URL is missing"
    );
}

#[test]
fn other_images_variables_mean_the_same_here() {
    let bitnami = draft(&[
        ("POSTGRESQL_HOST", "db"),
        ("POSTGRESQL_PORT", "5433"),
        ("POSTGRESQL_USERNAME", "u"),
        ("POSTGRESQL_PASSWORD", "p"),
        ("POSTGRESQL_DATABASE", "real"),
        ("PGBOUNCER_DATABASE", "app"),
        ("PGBOUNCER_PORT", "7000"),
        ("PGBOUNCER_BIND_ADDRESS", "0.0.0.0"),
        ("PGBOUNCER_POOL_MODE", "transaction"),
    ])
    .unwrap();
    let app = &bitnami.databases["app"];
    assert_eq!((&app.host, app.port), (&Host::Tcp("db".into()), 5433));
    assert_eq!(app.dbname.as_deref(), Some("real"));
    assert_eq!(bitnami.secrets["u"].expose(), "p");
    assert_eq!(bitnami.settings.listen_port, 7000);
    assert_eq!(bitnami.settings.listen_addr, ["0.0.0.0"]);
    assert_eq!(bitnami.settings.pool_mode, PoolMode::Transaction);
    let other = draft(&[
        ("DATABASES_HOST", "db"),
        ("DATABASES_USER", "u"),
        ("DATABASES_PASSWORD", "p"),
        ("DATABASES_DBNAME", "app"),
        ("PGBOUNCER_DEFAULT_POOL_SIZE", "7"),
        ("DEFAULT_POOL_SIZE", "8"),
    ])
    .unwrap();
    assert_eq!(other.databases["app"].host, Host::Tcp("db".into()));
    assert_eq!(other.settings.default_pool_size, 8);
}

#[test]
fn a_password_does_not_go_to_another_images_host() {
    let draft = draft(&[
        ("POSTGRESQL_HOST", "db"),
        ("POSTGRESQL_USERNAME", "u"),
        ("DB_PASSWORD", "s3cret"),
        ("DATABASES_PASSWORD", "s4cret"),
    ]);
    assert!(draft.unwrap().secrets.is_empty());
}

#[test]
fn what_kubernetes_says_of_a_service_is_no_port() {
    let draft = draft(&[
        ("DB_HOST", "db"),
        ("DB_PORT", "tcp://10.0.0.7:5432"),
        ("LISTEN_PORT", "tcp://10.0.0.8:6432"),
        ("PGBOUNCER_PORT", "tcp://10.0.0.8:6432"),
    ])
    .unwrap();
    assert_eq!(draft.databases["*"].port, 5432);
    assert_eq!(draft.settings.listen_port, 6432);
}

#[test]
fn a_configuration_is_known_by_its_names() {
    for name in ["DATABASE_URL", "DATABASE_URLS_FILE", "POSTGRESQL_HOST"] {
        assert!(names_a_database(name), "{name}");
    }
    assert!(!names_a_database("DB_NAME") && !names_a_database("PATH"));
}

#[test]
fn the_variables_that_all_of_opentelemetry_has_are_heeded_unless_they_are_not_for_us() {
    let database = ("DATABASE_URL", "postgres://db/app");
    let theirs = [
        database,
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret"),
        ("OTEL_SERVICE_NAME", "pooler"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=shop"),
    ];
    let with = |more: &[(&str, &str)]| draft(&[&theirs[..], more].concat()).unwrap().settings;
    let settings = with(&[]);
    let host = |settings: &crate::config::Settings| {
        let url = settings.otlp_endpoint.0.clone();
        url.map(|url| url.host).unwrap_or_default()
    };
    assert_eq!(host(&settings), "collector");
    assert_eq!(settings.otlp_service_name, "pooler");
    assert_eq!(settings.otlp_headers.iter().count(), 1);
    assert_eq!(settings.otlp_resource_attributes.0[0].1, "shop");
    for ours in ["OTLP_ENDPOINT", "PGBOUNCER_OTLP_ENDPOINT"] {
        assert_eq!(host(&with(&[(ours, "http://other")])), "other", "{ours}");
    }
    for off in [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ] {
        assert_eq!(host(&with(&[off])), "", "{off:?}");
    }
    let message = refused(&[database, ("OTLP_HEADERS", "secret")]);
    assert!(!message.contains("secret"), "{message}");
}
