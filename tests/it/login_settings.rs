//! Settings in the start-up message, with PostgreSQL as the oracle: they belong to their client on whichever server it gets, and
//! what is reset goes back to them.

use crate::support::pooler::Ini;
use crate::support::wire::Refusal;
use crate::support::{Message, Pooler, Wire, postgres};

type Asked<'a> = &'a [(&'a str, &'a str)];

fn pooler(servers: usize, change: impl FnOnce(&mut Ini)) -> (Pooler, String) {
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", servers)
            .set("server_round_robin", 1);
        change(ini);
    });
    (pooler, postgres().database("asked"))
}

fn with<'a>(database: &'a str, more: Asked<'a>) -> Vec<(&'a str, &'a str)> {
    [&[("user", "app"), ("database", database)], more].concat()
}

fn direct(database: &str, more: Asked<'_>) -> Wire {
    Wire::login_with(postgres().address(), &with(database, more), None)
        .unwrap_or_else(|refusal| panic!("{more:?}: {}", refusal.text()))
}

/// What logins ask for, and the settings that this is about.
const LOGINS: &[(Asked<'static>, &[&str])] = &[
    (
        &[("search_path", "shop, \"Odd one\", public")],
        &["search_path"],
    ),
    (&[("options", "-c search_path=bank")], &["search_path"]),
    (&[("STATEMENT_timeout", "5000")], &["statement_timeout"]),
    (
        &[
            ("options", "--statement-timeout=7s -clock_timeout=1min"),
            ("lock_timeout", "2s"),
        ],
        &["statement_timeout", "lock_timeout"],
    ),
    (
        &[
            ("extra_float_digits", "3"),
            ("geqo", "off"),
            ("work_mem", "1024"),
        ],
        &["extra_float_digits", "geqo", "work_mem"],
    ),
    (
        &[("default_transaction_read_only", "ON")],
        &["default_transaction_read_only", "transaction_read_only"],
    ),
    (
        &[(
            "options",
            "-c default_transaction_isolation=serializable -c TimeZone=Asia/Tokyo",
        )],
        &[
            "default_transaction_isolation",
            "transaction_isolation",
            "timezone",
        ],
    ),
];

/// What is done to a setting, each a transaction or more.
const DEEDS: &[&[&str]] = &[
    &["SELECT 1"],
    &["RESET {}"],
    &["SET {} TO DEFAULT"],
    &["BEGIN", "RESET {}", "ROLLBACK"],
    &["BEGIN", "RESET {}", "COMMIT"],
    &["RESET ALL"],
    &["DISCARD ALL"],
    &["SELECT set_config('{}', boot_val, false) FROM pg_settings WHERE name = lower('{}')"],
    &["SELECT 1"],
    &["RESET {}"],
    &[
        "BEGIN",
        "SELECT set_config('{}', boot_val, true) FROM pg_settings WHERE name = lower('{}')",
        "COMMIT",
    ],
    &["SELECT set_config('{}', boot_val, false) FROM pg_settings WHERE name = lower('{}')"],
    &["DISCARD ALL"],
    &[
        "DO $$ BEGIN PERFORM set_config('{}', boot_val, false) FROM pg_settings WHERE name = lower('{}'); END $$",
    ],
    &["RESET ALL"],
];

#[test]
fn what_is_asked_for_holds_on_every_server_and_comes_back_when_it_is_reset() {
    for servers in [1, 3] {
        let (pooler, database) = pooler(servers, |_| ());
        let mut plain = pooler.connect(&database);
        let mut other = pooler.connect_with(&database, &[("search_path", "other"), ("jit", "off")]);
        for (asked, names) in LOGINS {
            let mut clients = [
                pooler.connect_with(&database, asked),
                direct(&database, asked),
            ];
            for name in *names {
                let mut fresh = direct(&database, &[]);
                let show = format!("SHOW {name}");
                let default = fresh.value(&show);
                if name.starts_with("transaction") {
                    let [pooled, oracle] = clients.each_mut().map(|client| client.value(&show));
                    assert_eq!(pooled, oracle, "{asked:?}: {name}");
                    continue;
                }
                for deeds in DEEDS {
                    for deed in *deeds {
                        for client in &mut clients {
                            client.query(&deed.replace("{}", name));
                        }
                    }
                    let [pooled, oracle] = clients.each_mut().map(|client| client.value(&show));
                    assert_eq!(pooled, oracle, "{asked:?}: {name} after {deeds:?}");
                    assert_eq!(plain.value(&show), default, "{name}");
                    assert_eq!(other.value("SHOW search_path"), "other");
                    assert_eq!(other.value("SHOW jit"), "off");
                }
                let [pooled, oracle] = clients.each_mut().map(|client| {
                    let known = client.parameter(name);
                    known.map(str::to_owned)
                });
                assert_eq!(pooled, oracle, "{asked:?}: {name} as reported");
            }
        }
        assert_eq!(pooler.console("SHOW PINS").rows.len(), 0);
    }
}

#[test]
fn what_postgresql_reports_is_in_the_welcome_as_it_holds() {
    let (pooler, database) = pooler(1, |_| ());
    let asked = [("default_transaction_read_only", "1"), ("search_path", "x")];
    let mut client = pooler.connect_with(&database, &asked);
    let oracle = direct(&database, &asked);
    let of = |wire: &Wire| {
        let mut told = wire.parameters.clone();
        told.retain(|(name, _)| name != "application_name");
        told.sort();
        told
    };
    assert_eq!(of(&client), of(&oracle));
    assert_eq!(
        client.parameter("default_transaction_read_only"),
        Some("on")
    );
    assert_eq!(
        pooler
            .connect(&database)
            .parameter("default_transaction_read_only"),
        Some("off")
    );
    client.rows("SET default_transaction_read_only = off");
    assert_eq!(
        client.parameter("default_transaction_read_only"),
        Some("off")
    );
    client.rows("DISCARD ALL");
    assert_eq!(client.value("SHOW default_transaction_read_only"), "on");
    assert_eq!(
        client.parameter("default_transaction_read_only"),
        Some("on")
    );
}

#[test]
fn custom_settings_are_the_clients_own() {
    let (pooler, database) = pooler(2, |_| ());
    let mut plain = pooler.connect(&database);
    let asked = [
        ("options", "-c App.tenant=one -c app.empty="),
        ("app.other", "it's \\"),
    ];
    let mut clients = [
        pooler.connect_with(&database, &asked),
        direct(&database, &asked),
    ];
    let deeds: &[&str] = &[
        "SELECT 1",
        "RESET app.tenant",
        "SET app.tenant = 'two'",
        "RESET ALL",
        "SET app.tenant = ''",
        "SELECT 2",
        "SET app.tenant = 'three'",
        "DISCARD ALL",
        "SET app.tenant TO DEFAULT",
        "SET app.other = 'x'",
        "BEGIN; SET LOCAL app.tenant = 'four'; RESET app.other; COMMIT",
    ];
    for deed in deeds {
        for turn in 0..3 {
            let [pooled, oracle] = clients.each_mut().map(|client| {
                if turn == 0 {
                    client.rows(deed);
                }
                ["app.tenant", "app.empty", "app.other"]
                    .map(|name| client.value(&format!("SHOW {name}")))
            });
            assert_eq!(pooled, oracle, "{deed}");
            let tenant = plain.value("SELECT coalesce(current_setting('app.tenant', true), '')");
            assert_eq!(tenant, "");
        }
    }
}

/// The fields of an ErrorResponse but for where in PostgreSQL's source it comes from.
fn told(refusal: Result<Wire, Refusal>) -> Vec<String> {
    let message: Message = match refusal {
        Ok(_) => return vec!["in".to_owned()],
        Err(Refusal::Closed) => return Vec::new(),
        Err(Refusal::Error(message)) => message,
    };
    let fields = message.body.split(|&byte| byte == 0);
    let fields = fields.map(|field| String::from_utf8_lossy(field).into_owned());
    fields
        .filter(|field| !field.is_empty() && !field.starts_with(['F', 'L', 'R']))
        .collect()
}

#[test]
fn what_postgresql_does_not_take_is_refused_in_its_own_words() {
    let (pooler, database) = pooler(1, |_| ());
    let mut plain = pooler.connect(&database);
    let logins: &[Asked<'_>] = &[
        &[("Nonsense", "1")],
        &[("options", "-c no_such=1")],
        &[("statement_timeout", "soon")],
        &[("statement_timeout", "-5")],
        &[("statement_timeout", "10 fortnights")],
        &[("geqo", "maybe")],
        &[("default_transaction_isolation", "dirty")],
        &[("search_path", "a,,b")],
        &[("default_tablespace", "nowhere")],
        &[("log_statement", "all")],
        &[("shared_buffers", "1GB")],
        &[("server_version", "19")],
        &[("log_line_prefix", "x")],
        &[("1.2", "x")],
        &[("work_mem", "1MB"), ("temp_buffers", "none")],
    ];
    for asked in logins {
        let parameters = with(&database, asked);
        let [pooled, oracle] = [pooler.address(), postgres().address()]
            .map(|address| told(Wire::login_with(address, &parameters, None)));
        assert_eq!(pooled, oracle, "{asked:?}");
        assert_eq!(plain.value("SHOW work_mem"), "4MB");
    }
    assert_eq!(pooler.servers(&database, "app"), 1);
    // Accepted at the beginning of a session only.
    let parameters = with(&database, &[("ignore_system_indexes", "on")]);
    let refusal = told(Wire::login_with(pooler.address(), &parameters, None));
    assert!(refusal.contains(&"C55P02".to_owned()), "{refusal:?}");
}

#[test]
fn values_that_hamper_the_question_itself_are_taken() {
    let (pooler, database) = pooler(1, |_| ());
    let mut plain = pooler.connect(&database);
    for (name, value, shown) in [
        ("statement_timeout", "1", "1ms"),
        ("lock_timeout", "1", "1ms"),
        ("idle_in_transaction_session_timeout", "1", "1ms"),
        ("search_path", "evil, pg_catalog", "evil, pg_catalog"),
        ("bytea_output", "escape", "escape"),
        ("default_transaction_deferrable", "on", "on"),
        ("quote_all_identifiers", "on", "on"),
        ("backslash_quote", "off", "off"),
        ("row_security", "off", "off"),
    ] {
        for _ in 0..3 {
            let mut client = pooler.connect_with(&database, &[(name, value)]);
            assert_eq!(client.value(&format!("SHOW {name}")), shown);
            assert_ne!(plain.value(&format!("SHOW {name}")), shown);
        }
    }
}

#[test]
fn names_and_values_are_never_sql() {
    let (pooler, database) = pooler(1, |_| ());
    let asked = [
        ("app.x", "'; DROP TABLE t; --"),
        ("app.y", "\\'); SELECT 1; --"),
    ];
    let mut client = pooler.connect_with(&database, &asked);
    for (name, value) in asked {
        assert_eq!(client.value(&format!("SHOW {name}")), value);
    }
    let asked = [("work_mem'); SELECT pg_sleep(60); --", "1")];
    let parameters = with(&database, &asked);
    let [pooled, oracle] = [pooler.address(), postgres().address()]
        .map(|address| told(Wire::login_with(address, &parameters, None)));
    assert_eq!(pooled, oracle);
}

#[test]
fn a_set_that_was_taken_before_needs_no_server_at_login() {
    let (pooler, database) = pooler(1, |ini| {
        ini.set("query_wait_timeout", 1);
    });
    let mut holder = pooler.connect_with(&database, &[("geqo", "off")]);
    holder.rows("BEGIN");
    let mut client = pooler.connect_with(&database, &[("geqo", "off")]);
    let parameters = with(&database, &[("geqo", "on")]);
    let refusal = told(Wire::login_with(pooler.address(), &parameters, None));
    assert!(
        refusal.contains(&"Mquery_wait_timeout".to_owned()),
        "{refusal:?}"
    );
    holder.rows("COMMIT");
    assert_eq!(client.value("SHOW geqo"), "off");
    // RECONNECT makes it a question again.
    pooler.console("RECONNECT");
    assert_eq!(
        pooler
            .connect_with(&database, &[("geqo", "off")])
            .value("SHOW geqo"),
        "off"
    );
}

#[test]
fn a_crowd_that_asks_for_the_same_at_once_gets_it() {
    let (pooler, database) = pooler(2, |_| ());
    std::thread::scope(|scope| {
        for number in 0..30 {
            let (pooler, database) = (&pooler, &database);
            scope.spawn(move || {
                let value = (number % 3 + 10).to_string();
                let mut client = pooler.connect_with(
                    database,
                    &[("app.number", &value), ("geqo_threshold", &value)],
                );
                for _ in 0..10 {
                    assert_eq!(client.value("SHOW app.number"), value);
                    assert_eq!(client.value("SHOW geqo_threshold"), value);
                }
            });
        }
    });
}

#[test]
fn only_who_has_proved_who_it_is_is_told_about_settings() {
    let (pooler, database) = pooler(1, |ini| {
        ini.set("auth_type", "scram-sha-256")
            .secret("app", "app-secret");
    });
    let parameters = with(&database, &[("nonsense", "1")]);
    let login = |secret| {
        told(Wire::login_with(
            pooler.address(),
            &parameters,
            Some(secret),
        ))
    };
    assert!(login("wrong").contains(&"C08P01".to_owned()));
    assert!(login("app-secret").contains(&"C42704".to_owned()));
}

#[test]
fn statements_are_read_under_the_settings_of_the_login() {
    let (pooler, database) = pooler(1, |_| ());
    postgres().sql(&database, "CREATE SCHEMA one; CREATE SCHEMA two; CREATE TABLE one.t AS SELECT 1 AS n; \
                               CREATE TABLE two.t AS SELECT 2 AS n; GRANT USAGE ON SCHEMA one, two TO app; \
                               GRANT SELECT ON one.t, two.t TO app");
    let mut one = pooler.connect_with(&database, &[("search_path", "one")]);
    let mut two = pooler.connect_with(&database, &[("options", "-c search_path=two")]);
    for _ in 0..3 {
        for (client, wanted) in [(&mut one, "1"), (&mut two, "2")] {
            let replies = client.exchange(&[
                crate::support::frontend::parse("", "SELECT n FROM t", &[]),
                crate::support::frontend::bind("", "", &[]),
                crate::support::frontend::execute("", 0),
                crate::support::frontend::sync(),
            ]);
            assert_eq!(crate::support::wire::rows(&replies).unwrap().only(), wanted);
        }
    }
}

#[test]
fn what_connect_query_has_set_stays_beside_what_is_asked_for() {
    let database = postgres().database("asked");
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1).database(
            "line",
            &format!("dbname={database} connect_query='SET work_mem=''8MB''; SET app.base=''b''; SET jit=off'"),
        );
    });
    let look = "SELECT current_setting('work_mem') || current_setting('app.base') || current_setting('jit') || current_setting('geqo')";
    let mut plain = pooler.connect("line");
    let mut client = pooler.connect_with("line", &[("geqo", "off"), ("WORK_MEM", "1MB")]);
    for _ in 0..2 {
        assert_eq!(plain.value(look), "8MBboffon");
        assert_eq!(client.value(look), "1MBboffoff");
        client.rows("SET geqo = on");
        assert_eq!(client.value(look), "1MBboffon");
        client.rows("RESET geqo");
    }
}

#[test]
fn a_reset_query_at_each_release_takes_nothing_away() {
    for query in ["DISCARD ALL", "RESET ALL", "RESET geqo", "SELECT 1"] {
        let (pooler, database) = pooler(1, |ini| {
            ini.set("server_reset_query", query)
                .set("server_reset_query_always", 1);
        });
        let mut plain = pooler.connect(&database);
        let asked = [("geqo", "off"), ("app.a", "1")];
        let mut client = pooler.connect_with(&database, &asked);
        let look = "SELECT current_setting('geqo') || current_setting('app.a', true) || current_setting('jit')";
        for jit in ["on", "off", "on"] {
            client.rows(&format!("SET jit = {jit}"));
            assert_eq!(client.value(look), format!("off1{jit}"), "{query}");
            assert_eq!(client.value(look), format!("off1{jit}"), "{query}");
            assert_eq!(plain.value("SHOW geqo"), "on");
        }
    }
}

#[test]
fn what_is_tracked_in_vain_is_carried_all_the_same() {
    let (pooler, database) = pooler(1, |ini| {
        ini.set(
            "track_extra_parameters",
            "IntervalStyle, work_mem, app.tenant",
        );
    });
    let mut plain = pooler.connect(&database);
    let asked = [("work_mem", "1MB"), ("app.tenant", "t")];
    let mut client = pooler.connect_with(&database, &asked);
    assert_eq!(client.parameter("work_mem"), None);
    for _ in 0..2 {
        assert_eq!(client.value("SHOW work_mem"), "1MB");
        assert_eq!(client.value("SHOW app.tenant"), "t");
        assert_eq!(plain.value("SHOW work_mem"), "4MB");
    }
    client.rows("SET work_mem = '2MB'");
    assert_eq!(plain.value("SHOW work_mem"), "4MB");
    assert_eq!(client.value("SHOW work_mem"), "2MB");
    client.rows("RESET work_mem");
    assert_eq!(client.value("SHOW work_mem"), "1MB");
    let refusal = told(Wire::login_with(
        pooler.address(),
        &with(&database, &[("work_mem", "x")]),
        None,
    ));
    assert!(refusal.contains(&"C22023".to_owned()), "{refusal:?}");
}

#[test]
fn a_client_that_keeps_its_server_goes_back_to_its_own_there() {
    let (pooler, database) = pooler(1, |_| ());
    let mut client = pooler.connect_with(&database, &[("work_mem", "1MB")]);
    client.rows("CREATE TEMPORARY TABLE t (n int)");
    client.rows("SET work_mem = '2MB'");
    assert_eq!(client.value("SHOW work_mem"), "2MB");
    client.rows("RESET work_mem");
    assert_eq!(client.value("SHOW work_mem"), "1MB");
    client.rows("DISCARD ALL");
    assert_eq!(client.value("SHOW work_mem"), "1MB");
    drop(client);
    assert_eq!(pooler.connect(&database).value("SHOW work_mem"), "4MB");
}

#[test]
fn what_is_no_mere_value_is_refused() {
    let (pooler, database) = pooler(1, |_| ());
    for name in [
        "role",
        "session_authorization",
        "transaction_read_only",
        "seed",
    ] {
        let asked = [(name, "off")];
        let parameters = with(&database, &asked);
        let refusal = told(Wire::login_with(pooler.address(), &parameters, None));
        let words = format!("Munsupported startup parameter: {name}");
        assert_eq!(refusal, ["SFATAL".to_owned(), "C08P01".to_owned(), words]);
    }
}

#[test]
fn it_is_the_same_in_statement_mode_and_where_nobody_may_keep_a_server() {
    for (setting, value) in [("pool_mode", "statement"), ("pin_policy", "refuse")] {
        let (pooler, database) = pooler(1, |ini| {
            ini.set(setting, value);
        });
        let mut plain = pooler.connect(&database);
        let mut client = pooler.connect_with(&database, &[("geqo", "off")]);
        for _ in 0..2 {
            assert_eq!(client.value("SHOW geqo"), "off");
            assert_eq!(plain.value("SHOW geqo"), "on");
            client.rows("RESET geqo");
        }
    }
}
