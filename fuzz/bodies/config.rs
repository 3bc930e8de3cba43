//! Configuration: what is accepted says the same again when it is printed, what is refused shows no secret, and
//! what should mean nothing (a comment, the way a line ends) means nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pgferry::config::hba::{Attempt, Origin, Rules};
use pgferry::config::settings::TABLE;
use pgferry::config::{Config, Database, Settings, diff, text};

use super::texts;

/// The file that every other may include.
const MORE: &str = "more";

pub fn ini(input: &[u8]) {
    let [main, more] = texts(input);
    let included = |name: &str| (name == MORE).then(|| more.clone());
    let read = |main: &str| text::ini(main, &included);
    match read(&main) {
        Ok(config) => {
            holds_together(&config, &format!("{main}{more}"));
            settings_are_read_again(&config);
            let same = [
                format!("\n ; x\n{main}"),
                format!("{main}\n# x\n\n"),
                main.replace('\n', " \r\n"),
            ];
            for same in same {
                let again = read(&same).unwrap_or_else(|error| panic!("{error}: {same:?}"));
                assert_eq!(values(&again.settings), values(&config.settings));
                assert_eq!(diff::diff(&config, &again), []);
            }
        }
        Err(error) => {
            assert!(error.to_string().len() < 1000 + 4 * input.len());
            assert!(read(&format!("{main}\n; x\n")).is_err());
        }
    }
}

pub fn toml(input: &[u8]) {
    let [main] = texts(input);
    match text::toml(&main) {
        Ok(config) => {
            holds_together(&config, &main);
            settings_are_read_again(&config);
            let again = text::toml(&format!("# x\n{main}\n# x\n")).expect("a comment is nothing");
            assert_eq!(diff::diff(&config, &again), []);
        }
        Err(error) => assert!(error.to_string().len() < 1000 + 4 * input.len()),
    }
}

/// Asks whatever pools and logins ask of a configuration.
fn holds_together(config: &Config, source: &str) {
    shows_no_secret(config, source);
    assert_eq!(diff::diff(config, config), []);
    let names: Vec<&str> = config.databases.keys().map(String::as_str).collect();
    for name in names.iter().copied().chain(["app", "pgbouncer", ""]) {
        let Some(database) = config.database(name) else {
            continue;
        };
        for user in config.users.keys().map(String::as_str).chain(["joe", ""]) {
            config.admits(&database, user);
            let server = config.server_user(&database, user);
            config.secret(&database, user);
            config.pool_size(&database, server);
            config.min_pool_size(&database, server);
            config.pool_mode(&database, server);
            config.server_lifetime(&database, server);
            config.query_timeout(&database, server);
            config.query_wait_timeout(&database, user);
            config.max_user_client_connections(user);
        }
        assert!(database.hosts().count() > 0);
    }
}

/// A password that stands in the source once, as a password, is not printed.
fn shows_no_secret(config: &Config, source: &str) {
    let shown = format!("{config:?}{:?}", config.warnings);
    let databases = || config.databases.values().chain(&config.fallback);
    for password in databases().filter_map(|database| database.password.as_ref()) {
        let password = password.expose();
        // In a URL it may stand twice in two ways of writing.
        let names = |database: &Database| {
            let Database {
                name, host, user, ..
            } = database;
            format!("{name} {host:?} {user:?}").contains(password)
        };
        if password.contains("s3cret")
            && source.matches(password).count() < 2
            && !databases().any(|database| names(database))
        {
            assert!(!shown.contains(password), "{shown}");
        }
    }
}

fn values(settings: &Settings) -> Vec<(&'static str, String)> {
    let value = |name| settings.get(name).map(|value| (name, value));
    TABLE.iter().filter_map(|row| value(row.name)).collect()
}

/// What SHOW CONFIG prints may be put into a file.
fn settings_are_read_again(config: &Config) {
    let values = values(&config.settings);
    let mut settings = Settings::default();
    for (name, value) in &values {
        settings
            .assign(name, value)
            .unwrap_or_else(|problem| panic!("{name} = {value}: {problem}"));
    }
    assert_eq!(self::values(&settings), values);
}

pub fn hba(input: &[u8]) {
    let [hba, ident, more] = texts(input);
    let included = |name: &str| (name == MORE).then(|| more.clone());
    let read = |hba: &str| text::rules(hba, &ident, &included);
    match read(&hba) {
        Ok(rules) => {
            decide(&rules);
            let again = read(&format!("{hba}\n\n# x\n")).expect("a comment is nothing");
            assert_eq!(again, rules);
        }
        Err(error) => assert!(error.to_string().len() < 2000 + 4 * input.len()),
    }
}

fn decide(rules: &Rules) {
    let addresses = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
        IpAddr::V6("2001:db8::7".parse().unwrap()),
    ];
    let hosts = addresses
        .into_iter()
        .flat_map(|address| [true, false].map(|tls| Origin::Host { address, tls }));
    for origin in hosts.chain([Origin::Local]) {
        for (database, user) in [
            ("app", "joe"),
            ("joe", "joe"),
            ("é", ""),
            ("replication", "all"),
        ] {
            for physical_replication in [true, false] {
                let attempt = Attempt {
                    origin,
                    database,
                    user,
                    physical_replication,
                };
                if let Some(record) = rules.decide(&attempt, &Vec::new) {
                    assert!(!record.method.as_str().is_empty());
                    record.admits("joe", user);
                    record.admits("root", "joe");
                }
            }
        }
    }
}

pub fn userlist(input: &[u8]) {
    let [list] = texts(input);
    let Ok(secrets) = text::auth_file(&list) else {
        return;
    };
    let mut again = String::from("; x\r\n\n");
    for (user, secret) in &secrets {
        let quoted = |text: &str| text.replace('"', "\"\"");
        let line = format!(
            "\"{}\" \"{}\" \"\"\r\n",
            quoted(user),
            quoted(secret.expose())
        );
        again.push_str(&line);
    }
    let read = text::auth_file(&again).expect("it is in order");
    assert_eq!(read.len(), secrets.len());
    for (user, secret) in &secrets {
        assert_eq!(read[user].expose(), secret.expose(), "{user}");
    }
}

pub fn connection_string(input: &[u8]) {
    let [line] = texts(input);
    let _ = text::user(&line);
    let database = text::database("app", &line);
    let Ok(pairs) = text::pairs(&line) else {
        assert!(database.is_err());
        return;
    };
    let rendered: Vec<String> = pairs
        .iter()
        .map(|(key, value)| format!("{key} =  '{}'", value.replace('\'', "''")))
        .collect();
    let rendered = rendered.join("  ");
    assert_eq!(
        text::pairs(&rendered).as_ref().ok(),
        Some(&pairs),
        "{rendered:?}"
    );
    let shown = match &database {
        Ok(database) => {
            assert_eq!(
                text::database("app", &rendered).as_ref().ok(),
                Some(database)
            );
            format!("{database:?}")
        }
        Err(problem) => problem.to_string(),
    };
    for (_, secret) in pairs.iter().filter(|(key, _)| key == "password") {
        let has = |(key, value): &(String, String)| {
            key.contains(secret.as_str()) || (key != "password" && value.contains(secret.as_str()))
        };
        let elsewhere = pairs.iter().any(has);
        // A short one is in any text by chance.
        assert!(
            secret.len() < 8 || elsewhere || !shown.contains(secret.as_str()),
            "{shown}"
        );
    }
}

pub fn url(input: &[u8]) {
    let [url] = texts(input);
    let variables = [
        ("DATABASE_URL", url.clone()),
        ("AUTH_TYPE", "any".to_owned()),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value));
    for count in 1..=2 {
        match text::environment(variables.iter().take(count).cloned()) {
            Ok(config) => {
                holds_together(&config, &url);
                settings_are_read_again(&config);
                for warning in &config.warnings {
                    let words = warning.strip_prefix("environment: DATABASE_URL: ");
                    let (shown, _) = words
                        .and_then(|words| words.split_once(" has no effect"))
                        .unwrap();
                    assert!(
                        shown == "what follows the ?" || url.contains(&format!("{shown}=")),
                        "{warning}"
                    );
                }
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.len() < 1000 + 4 * input.len());
                // A password may have a / or a ? in it that ought to be written otherwise.
                let login = url.rsplit_once('@').map_or("", |(login, _)| login);
                let login = login.split_once("//").map_or("", |(_, login)| login);
                let password = login.split_once(':').map_or("", |(_, password)| password);
                // A wrong sslmode is shown; other texts may be in the error by chance.
                let parts = password
                    .split(['/', '?', '@'])
                    .filter(|part| part.contains("s3cret"));
                for part in parts.filter(|_| !url.contains("sslmode=")) {
                    assert!(
                        url.matches(part).count() > 1 || !error.contains(part),
                        "{error}"
                    );
                }
            }
        }
    }
}
