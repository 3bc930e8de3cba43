//! Configuration from the environment, the habit of container images: one database, one user.
//!
//! Owns `DATABASE_URL` (a connection URI: PostgreSQL docs, `libpq-connstring-uris`) or, in its place, `DB_HOST`
//! and its like, and every setting of the table under its name in upper case. An empty variable is an unset
//! one. With `AUTH_TYPE=any` the URL's user is everybody. Never prints a value of the URL, which holds a password.

use std::collections::HashMap;

use crate::config::Draft;
use crate::config::databases::{self, Database, Host};
use crate::config::error::{Error, Place, Problem};
use crate::config::kind::AuthType;
use crate::config::settings::TABLE;
use crate::config::users::SecretText;

/// Settings whose names mean something else in an environment: `USER` is there always.
const NOT_OURS: [&str; 4] = ["user", "conffile", "job_name", "service_name"];

/// Reads the variables. Those that are no names of ours are other programs' business.
pub(crate) fn read(variables: impl Iterator<Item = (String, String)>) -> Result<Draft, Error> {
    let variables: HashMap<String, String> =
        variables.filter(|(_, value)| !value.is_empty()).collect();
    let mut draft = Draft::default();
    // Inside the machine only, unless LISTEN_ADDR opens it.
    draft.settings.listen_addr = vec!["127.0.0.1".to_owned()];
    for row in TABLE.iter().filter(|row| !NOT_OURS.contains(&row.name)) {
        let name = row.name.to_uppercase();
        if let Some(value) = variables.get(&name) {
            draft.assign(row.name, value, &place())?;
        }
    }
    let (variable, target) = match (variables.get("DATABASE_URL"), variables.get("DB_HOST")) {
        (Some(url), _) => ("DATABASE_URL", parse_url(url, &mut draft.warnings)),
        (None, Some(host)) => ("DB_HOST", Ok(from_parts(host, &variables))),
        (None, None) => {
            return Err(Problem::Missing {
                key: "DATABASE_URL",
            }
            .at(place()));
        }
    };
    let at = || place().about(variable);
    let target = target.map_err(|problem| problem.at(at()))?;
    for (setting, value) in &target.tls {
        // The variable of that very name says it more clearly.
        if !variables.contains_key(&setting.to_uppercase()) {
            let assigned = draft.settings.assign(setting, value);
            assigned.map_err(|problem| problem.at(at()))?;
        }
    }
    let name = target.dbname.as_deref().unwrap_or("*");
    let mut database = Database::new(name, Host::socket_dir());
    for (key, value) in [
        ("host", target.host),
        ("port", target.port),
        ("application_name", target.application_name),
    ] {
        if let Some(value) = value {
            let set = databases::set(&mut database, key, value);
            set.map_err(|problem| hidden(key, problem).at(at()))?;
        }
    }
    databases::check_name(name).map_err(|problem| problem.at(at()))?;
    if draft.settings.auth_type == AuthType::Any {
        // Nobody proves a name, so there is one for all: without it no client could get a server.
        let needed = || Problem::Conflict("AUTH_TYPE=any needs a user, whom everybody is".into());
        database.user = Some(target.user.clone().ok_or_else(|| needed().at(at()))?);
        database.password = target.password.clone().map(SecretText::new);
    }
    draft.databases.insert(name.to_owned(), database);
    if let Some((user, password)) = target.user.zip(target.password) {
        draft.secrets.insert(user, SecretText::new(password));
    }
    Ok(draft)
}

/// What is wrong with a value, without the value: in an address that is mistaken it may be a part of the password.
fn hidden(key: &str, problem: Problem) -> Problem {
    match key {
        "port" => {
            bad("expected a port, 1 to 65535; a / ? or # in the password is written %2F %3F %23")
        }
        "host" => bad("expected a host between commas"),
        _ => problem,
    }
}

fn place() -> Place {
    Place::line("environment", 0)
}

/// What a URL says; `None`: not in it.
#[derive(Default)]
struct Target {
    user: Option<String>,
    password: Option<String>,
    host: Option<String>,
    port: Option<String>,
    dbname: Option<String>,
    application_name: Option<String>,
    /// Settings of TLS with the server.
    tls: Vec<(&'static str, String)>,
}

fn from_parts(host: &str, variables: &HashMap<String, String>) -> Target {
    let get = |name: &str| variables.get(name).cloned();
    Target {
        user: get("DB_USER"),
        password: get("DB_PASSWORD"),
        host: Some(host.to_owned()),
        port: get("DB_PORT"),
        dbname: get("DB_NAME"),
        application_name: None,
        tls: Vec::new(),
    }
}

/// `postgres://user:password@host:port/dbname?key=value`, every part of it optional.
fn parse_url(url: &str, warnings: &mut Vec<String>) -> Result<Target, Problem> {
    let rest = url
        .strip_prefix("postgres://")
        .or_else(|| url.strip_prefix("postgresql://"))
        .ok_or_else(|| bad("expected postgres://user:password@host:port/dbname"))?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, address) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    if address.contains(',') {
        return Err(Problem::not_yet("several hosts"));
    }
    let (host, port) = match address.strip_prefix('[') {
        Some(v6) => {
            let (host, after) = v6
                .split_once(']')
                .ok_or_else(|| bad("expected ] after the address"))?;
            (host, after.strip_prefix(':').unwrap_or(after))
        }
        None => address.split_once(':').unwrap_or((address, "")),
    };
    let mut target = Target {
        user: decode(user)?,
        password: decode(password)?,
        host: decode(host)?,
        port: decode(port)?,
        dbname: decode(path)?,
        application_name: None,
        tls: Vec::new(),
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value)?;
        match key {
            "user" => target.user = value,
            "password" => target.password = value,
            "host" => target.host = value,
            "port" => target.port = value,
            "dbname" => target.dbname = value,
            "application_name" => target.application_name = value,
            "sslmode" | "sslrootcert" | "sslkey" | "sslcert" => {
                let setting = match key {
                    "sslmode" => "server_tls_sslmode",
                    "sslrootcert" => "server_tls_ca_file",
                    "sslkey" => "server_tls_key_file",
                    _ => "server_tls_cert_file",
                };
                target.tls.extend(value.map(|value| (setting, value)));
            }
            _ => {
                // What is no name may be the rest of a password with a `?` in it.
                let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
                let shown = if pair.contains('=') && key.bytes().all(is_name) {
                    key
                } else {
                    "what follows the ?"
                };
                warnings.push(format!(
                    "environment: DATABASE_URL: {shown} has no effect: it is the client's to ask for"
                ));
            }
        }
    }
    Ok(target)
}

fn bad(what: &str) -> Problem {
    Problem::Syntax(what.to_owned())
}

/// Undoes percent encoding (RFC 3986, section 2.1); an empty text is nothing.
fn decode(text: &str) -> Result<Option<String>, Problem> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let value = digit()
            .zip(digit())
            .and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(value.ok_or_else(|| bad("expected two hexadecimal digits after %"))?);
    }
    let text = String::from_utf8(bytes).map_err(|_| bad("not UTF-8"))?;
    if text.contains('\0') {
        return Err(bad("a zero byte"));
    }
    Ok((!text.is_empty()).then_some(text))
}

#[cfg(test)]
mod tests {
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
            url("postgres://db/app?sslmode=verify-full&sslrootcert=%2Froot&sslkey=&sslcert=c")
                .settings;
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
}
