//! What a client asks for at its start, or sets later, holds on whichever server serves it, and only
//! for itself.

use crate::support::scripted::Scripted;
use crate::support::{Pooler, Wire, postgres};

fn pooler(servers: usize) -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", servers);
    });
    (pooler, postgres().database("startup"))
}

fn try_connect(pooler: &Pooler, database: &str, more: &[(&str, &str)]) -> Result<Wire, String> {
    let parameters = [&[("user", "app"), ("database", database)], more].concat();
    Wire::login_with(pooler.address(), &parameters, None).map_err(|refusal| refusal.text())
}

#[test]
fn each_client_sees_its_own_values_on_a_shared_server() {
    let (pooler, database) = pooler(1);
    let mut plain = pooler.connect(&database);
    let mut paris = pooler.connect_with(
        &database,
        &[
            ("TimeZone", "Europe/Paris"),
            ("DateStyle", "German"),
            ("application_name", "paris"),
        ],
    );
    let mut delhi = pooler.connect_with(
        &database,
        &[("timezone", "Asia/Kolkata"), ("client_encoding", "LATIN1")],
    );
    let default = postgres().value(&database, "SHOW timezone");
    for _ in 0..3 {
        assert_eq!(paris.value("SHOW timezone"), "Europe/Paris");
        assert_eq!(paris.value("SELECT date '2026-02-01'"), "01.02.2026");
        assert_eq!(paris.value("SHOW application_name"), "paris");
        assert_eq!(delhi.value("SHOW timezone"), "Asia/Kolkata");
        assert_eq!(delhi.value("SHOW client_encoding"), "LATIN1");
        assert_eq!(plain.value("SHOW timezone"), default);
        assert_eq!(plain.value("SELECT date '2026-02-01'"), "2026-02-01");
        assert_eq!(plain.value("SHOW application_name"), "");
        assert_eq!(plain.value("SHOW client_encoding"), "UTF8");
    }
}

#[test]
fn a_value_goes_along_from_server_to_server() {
    let (pooler, database) = pooler(3);
    let mut holding: Vec<Wire> = (0..2).map(|_| pooler.connect(&database)).collect();
    let mut client = pooler.connect_with(&database, &[("application_name", "wanderer")]);
    let mut servers = Vec::new();
    for turn in 0..3 {
        servers.push(client.value("SELECT pg_backend_pid()"));
        assert_eq!(client.value("SHOW application_name"), "wanderer");
        if let Some(other) = holding.get_mut(turn) {
            other.rows("BEGIN");
        }
    }
    servers.sort();
    servers.dedup();
    assert_eq!(servers.len(), 3, "the client met each server");
    // A SET of a tracked parameter goes along as well.
    client.rows("SET application_name = 'renamed'; SET timezone = 'Asia/Tokyo'");
    for other in &mut holding {
        other.rows("COMMIT");
        assert_eq!(client.value("SHOW application_name"), "renamed");
        assert_eq!(client.value("SHOW timezone"), "Asia/Tokyo");
    }
}

#[test]
fn the_client_is_told_the_values_that_hold_for_it() {
    let (pooler, database) = pooler(1);
    let mut first = pooler.connect_with(
        &database,
        &[("application_name", "first"), ("TimeZone", "Asia/Tokyo")],
    );
    assert_eq!(first.parameter("application_name"), Some("first"));
    assert_eq!(first.parameter("TimeZone"), Some("Asia/Tokyo"));
    assert_eq!(first.parameter("server_encoding"), Some("UTF8"));
    assert!(first.parameter("server_version").is_some());
    first.rows("SET timezone = 'Europe/Rome'");
    assert_eq!(first.parameter("TimeZone"), Some("Europe/Rome"));
    // The next client logs in while the server still has the values of the first.
    let second = pooler.connect(&database);
    assert_eq!(second.parameter("application_name"), Some(""));
    assert_eq!(
        second.parameter("TimeZone"),
        Some(postgres().value(&database, "SHOW timezone").as_str())
    );
    let names = |wire: &Wire| {
        let mut names: Vec<String> = wire
            .parameters
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        names.sort();
        names.dedup();
        names
    };
    let direct = postgres().connect(&database);
    assert_eq!(
        names(&second),
        names(&direct),
        "the same parameters as PostgreSQL reports"
    );
}

#[test]
fn a_rolled_back_set_is_no_set() {
    let (pooler, database) = pooler(2);
    let mut other = pooler.connect(&database);
    let mut client = pooler.connect_with(&database, &[("application_name", "before")]);
    client.rows("BEGIN");
    client.rows("SET application_name = 'undone'");
    client.rows("ROLLBACK");
    assert_eq!(client.value("SHOW application_name"), "before");
    other.rows("BEGIN");
    assert_eq!(client.value("SHOW application_name"), "before");
}

#[test]
fn options_with_c_are_understood() {
    let (pooler, database) = pooler(1);
    let mut plain = pooler.connect(&database);
    for options in [
        "-c TimeZone=Asia/Tokyo",
        "-cTimeZone=Asia/Tokyo",
        "--TimeZone=Asia/Tokyo",
    ] {
        let mut client = pooler.connect_with(&database, &[("options", options)]);
        assert_eq!(client.value("SHOW timezone"), "Asia/Tokyo", "{options}");
        assert_ne!(plain.value("SHOW timezone"), "Asia/Tokyo");
    }
    let mut client = pooler.connect_with(
        &database,
        &[(
            "options",
            "-c application_name=two\\ words -c DateStyle=German",
        )],
    );
    assert_eq!(client.value("SHOW application_name"), "two words");
    assert_eq!(client.value("SELECT date '2026-02-01'"), "01.02.2026");
}

#[test]
fn where_sessions_are_not_followed_settings_are_refused_unless_they_are_to_be_ignored() {
    let database = postgres().database("startup");
    let pooler = Pooler::start(|ini| {
        ini.set("pin_policy", "off");
    });
    let refusal = try_connect(&pooler, &database, &[("extra_float_digits", "3")]).err();
    assert_eq!(
        refusal.as_deref(),
        Some("unsupported startup parameter: extra_float_digits")
    );
    let refusal = try_connect(&pooler, &database, &[("options", "-c geqo=off")]).err();
    assert_eq!(
        refusal.as_deref(),
        Some("unsupported startup parameter in options: geqo")
    );
    let lenient = Pooler::start(|ini| {
        ini.set("ignore_startup_parameters", "extra_float_digits, geqo");
    });
    let more = [("extra_float_digits", "3"), ("options", "-c geqo=off")];
    assert_eq!(
        lenient.connect_with(&database, &more).value("SHOW geqo"),
        "on"
    );
}

#[test]
fn interval_style_and_what_the_setting_names_are_tracked() {
    let (pooler, database) = pooler(1);
    let mut plain = pooler.connect(&database);
    let mut iso = pooler.connect_with(&database, &[("IntervalStyle", "iso_8601")]);
    for _ in 0..2 {
        assert_eq!(iso.value("SELECT interval '1 day'"), "P1D");
        assert_eq!(plain.value("SELECT interval '1 day'"), "1 day");
    }
}

#[test]
fn hostile_values_stay_values() {
    let (pooler, database) = pooler(1);
    let mut plain = pooler.connect(&database);
    for name in [
        "x'; DROP TABLE t; --",
        "back\\slash",
        "",
        "quote''",
        "new\nline",
    ] {
        let mut client = pooler.connect_with(&database, &[("application_name", name)]);
        assert_eq!(
            client.value("SELECT length(current_setting('application_name'))"),
            name.len().to_string()
        );
        assert_eq!(plain.value("SHOW application_name"), "");
    }
}

#[test]
fn the_database_line_gives_values_of_its_own() {
    let database = postgres().database("startup");
    let pooler = Pooler::start(|ini| {
        ini.database(
            "set",
            &format!("dbname={database} timezone=Asia/Tokyo application_name=by_line"),
        );
    });
    let mut client = pooler.connect("set");
    assert_eq!(client.value("SHOW timezone"), "Asia/Tokyo");
}

#[test]
fn values_are_compared_to_the_letter() {
    let (pooler, database) = pooler(1);
    let mut clients: Vec<(Wire, &str)> = ["Tenant", "tenant", "TENANT"]
        .into_iter()
        .map(|name| {
            let more = [("application_name", name)];
            (pooler.connect_with(&database, &more), name)
        })
        .collect();
    for _ in 0..2 {
        for (client, name) in &mut clients {
            assert_eq!(client.value("SHOW application_name"), *name);
            assert_eq!(client.parameter("application_name"), Some(*name));
        }
    }
}

#[test]
fn the_client_is_told_the_spelling_of_the_server() {
    let (pooler, database) = pooler(1);
    let wanted = |letters: fn(&str) -> String| {
        [
            ("DateStyle", letters("German, DMY")),
            ("client_encoding", letters("Latin1")),
            ("TimeZone", letters("Asia/Tokyo")),
            ("IntervalStyle", letters("iso_8601")),
            ("standard_conforming_strings", letters("Off")),
        ]
    };
    let spellings: [fn(&str) -> String; 3] = [
        str::to_owned,
        |text| text.to_lowercase(),
        |text| text.to_uppercase(),
    ];
    let mut seen = Vec::new();
    for letters in spellings {
        let more = wanted(letters);
        let more: Vec<_> = more
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let mut client = pooler.connect_with(&database, &more);
        assert_eq!(client.value("SHOW timezone"), "Asia/Tokyo");
        // The client knows them by the server's spelling from now on.
        let values: Vec<_> = more
            .iter()
            .map(|(name, _)| client.parameter(name).map(str::to_owned))
            .collect();
        seen.push(values);
    }
    let expected = ["German, DMY", "LATIN1", "Asia/Tokyo", "iso_8601", "off"];
    for values in seen {
        assert_eq!(values, expected.map(|value| Some(value.to_owned())));
    }
}

#[test]
fn what_postgresql_reads_without_regard_to_case_is_not_set_for_its_case() {
    // A SET is answered by an error, which ends the client.
    let server = Scripted::start(|_, session| {
        session.accept_login();
        while let Some((_, text)) = session.read_message() {
            if text.starts_with(b"SET") {
                session.error("ERROR", "XX000", "not needed");
            } else {
                session.complete("SELECT 0");
            }
            session.ready(b'I');
        }
    });
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1)
            .target("scripted", &server.target());
    });
    let more = [
        ("DateStyle", "iso, mdy"),
        ("client_encoding", "utf8"),
        ("TimeZone", "Utc"),
        ("IntervalStyle", "POSTGRES"),
        ("standard_conforming_strings", "ON"),
    ];
    let mut client = pooler.connect_with("scripted", &more);
    assert_eq!(client.query("SELECT").last().unwrap().tag, b'Z');
    let mut client = pooler.connect_with("scripted", &[("application_name", "other")]);
    assert_eq!(client.query("SELECT").last().unwrap().tag, b'E');
}
