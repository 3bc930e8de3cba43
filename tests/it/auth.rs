//! Who may come in, on the side of the clients and on that of the servers.

use crate::support::postgres::password;
use crate::support::wire::Refusal;
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

fn pooler(method: &str) -> Pooler {
    Pooler::start(|ini| {
        ini.set("auth_type", method);
    })
}

/// What PostgreSQL keeps of a role's password.
fn stored(role: &str) -> String {
    postgres().value(
        "postgres",
        &format!("SELECT rolpassword FROM pg_authid WHERE rolname = '{role}'"),
    )
}

fn comes_in(pooler: &Pooler, user: &str, secret: &str) {
    let client = pooler.login(user, "postgres", Some(secret));
    let mut client = client.unwrap_or_else(|refusal| panic!("{user}: {refusal:?}"));
    assert_eq!(client.value("SELECT current_user"), user);
}

fn refused(pooler: &Pooler, user: &str, secret: &str) -> String {
    match pooler.login(user, "postgres", Some(secret)) {
        Ok(_) => panic!("{user} came in"),
        Err(Refusal::Closed) => panic!("{user} was told nothing"),
        Err(Refusal::Error(message)) => {
            assert_eq!(message.field('S').as_deref(), Some("FATAL"));
            message.field('M').unwrap()
        }
    }
}

#[test]
fn by_trust_every_known_user_comes_in() {
    let pooler = pooler("trust");
    comes_in(&pooler, "app", "");
    refused(&pooler, "nobody", "");
}

#[test]
fn each_method_knows_the_right_password_and_every_kind_of_server_login() {
    for method in ["plain", "md5", "scram-sha-256"] {
        let pooler = pooler(method);
        for user in ["app", "plain_user", "md5_user", "scram_user"] {
            comes_in(&pooler, user, &password(user));
        }
    }
}

#[test]
fn a_wrong_password_and_an_unknown_user_are_told_the_same() {
    let expected = [
        ("plain", "password authentication failed"),
        ("md5", "password authentication failed"),
        ("scram-sha-256", "SASL authentication failed"),
    ];
    for (method, text) in expected {
        let pooler = pooler(method);
        assert_eq!(refused(&pooler, "app", "wrong"), text, "{method}");
        assert_eq!(refused(&pooler, "nobody", "wrong"), text, "{method}");
        assert_eq!(refused(&pooler, "app", &stored("app")), text, "{method}");
    }
}

#[test]
fn an_empty_secret_lets_nobody_in() {
    for method in ["plain", "md5", "scram-sha-256"] {
        let pooler = Pooler::start(|ini| {
            ini.set("auth_type", method).secret("app", "");
        });
        refused(&pooler, "app", "");
        refused(&pooler, "app", "anything");
    }
}

#[test]
fn a_verifier_alone_is_enough_for_a_server_that_asks_for_scram() {
    let verifier = stored("scram_user");
    assert!(verifier.starts_with("SCRAM-SHA-256$"));
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "scram-sha-256")
            .secret("scram_user", &verifier);
    });
    refused(&pooler, "scram_user", "wrong");
    comes_in(&pooler, "scram_user", &password("scram_user"));
    // And again: the keys that were learned serve the next server connection, too.
    pooler.console("RECONNECT");
    comes_in(&pooler, "scram_user", &password("scram_user"));
}

#[test]
fn an_md5_secret_is_enough_for_a_server_that_asks_for_md5() {
    let secret = stored("md5_user");
    assert!(secret.starts_with("md5"));
    for method in ["plain", "md5"] {
        let pooler = Pooler::start(|ini| {
            ini.set("auth_type", method).secret("md5_user", &secret);
        });
        refused(&pooler, "md5_user", "wrong");
        comes_in(&pooler, "md5_user", &password("md5_user"));
    }
}

#[test]
fn the_method_md5_takes_scram_where_only_a_verifier_is_stored() {
    let verifier = stored("scram_user");
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "md5").secret("scram_user", &verifier);
    });
    refused(&pooler, "scram_user", "wrong");
    comes_in(&pooler, "scram_user", &password("scram_user"));
}

#[test]
fn any_takes_every_name_for_the_user_of_the_database_line() {
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "any")
            .database("forced", "dbname=postgres user=app");
    });
    let mut client = pooler.login("whoever", "forced", None).unwrap();
    assert_eq!(client.value("SELECT current_user"), "app");
    assert!(
        pooler.login("whoever", "postgres", None).is_err(),
        "without a forced user nobody is known"
    );
}

#[test]
fn a_forced_user_logs_in_with_the_password_of_the_line() {
    let pooler = Pooler::start(|ini| {
        let line = format!(
            "dbname=postgres user=scram_user password={}",
            password("scram_user")
        );
        ini.set("auth_type", "md5")
            .secret("scram_user", "")
            .database("forced", &line);
    });
    let mut client = pooler
        .login("app", "forced", Some(&password("app")))
        .unwrap();
    assert_eq!(client.value("SELECT current_user"), "scram_user");
    assert_eq!(client.value("SELECT session_user"), "scram_user");
}

#[test]
fn a_password_that_the_server_refuses_is_answered_with_its_own_error() {
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "plain")
            .secret("scram_user", "not what PostgreSQL knows");
    });
    let refusal = pooler
        .login("scram_user", "postgres", Some("not what PostgreSQL knows"))
        .err()
        .unwrap();
    let Refusal::Error(message) = refusal else {
        panic!("closed without a word")
    };
    assert_eq!(message.sqlstate(), "28P01");
    assert_eq!(
        message.field('M').unwrap(),
        "password authentication failed for user \"scram_user\""
    );
}

#[test]
fn the_console_is_for_admins_and_stats_users() {
    let pooler = Pooler::start(|ini| {
        ini.set("stats_users", "other");
    });
    let refusal = pooler
        .login("app", "pgbouncer", None)
        .err()
        .expect("app is no admin");
    assert_eq!(refusal.text(), "not allowed");
    let mut viewer = pooler.login("other", "pgbouncer", None).unwrap();
    assert!(!viewer.rows("SHOW POOLS").rows.is_empty());
    let replies = viewer.query("PAUSE");
    assert_eq!(
        crate::support::wire::error(&replies).field('M').unwrap(),
        "admin access needed"
    );
}

#[test]
fn requests_for_encryption_are_declined_and_the_login_goes_on() {
    let pooler = pooler("trust");
    let mut client = Wire::connect(pooler.address()).unwrap();
    for code in [80_877_103, 80_877_104] {
        client.send(&frontend::packet(code, &[]));
        assert_eq!(client.read_byte(), Some(b'N'));
    }
    client.send(&frontend::startup(&[
        ("user", "app"),
        ("database", "postgres"),
    ]));
    assert_eq!(client.read_message().unwrap().tag, b'R');
}

#[test]
fn bytes_that_came_with_a_request_for_encryption_are_refused() {
    let pooler = pooler("trust");
    let mut client = Wire::connect(pooler.address()).unwrap();
    let startup = frontend::startup(&[("user", "app"), ("database", "postgres")]);
    client.send(&[frontend::packet(80_877_103, &[]), startup].concat());
    let first = client.read_byte();
    assert_ne!(
        first,
        Some(b'R'),
        "the stuffed bytes were taken for a login"
    );
    assert!(client.ended());
}

#[test]
fn nonsense_instead_of_a_startup_packet_ends_the_connection() {
    let pooler = pooler("trust");
    let startup = frontend::startup(&[("user", "app")]);
    let cases: [&[u8]; 7] = [
        b"GET / HTTP/1.0\r\n\r\n",
        &[0, 0, 0, 4],
        &[0, 0, 0, 0, 0, 0, 0, 0],
        &[0xff; 64],
        &[0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0],
        &frontend::packet(0x0002_0000, &[0; 300]),
        &startup[..startup.len() - 1],
    ];
    for bytes in cases {
        let mut client = Wire::connect(pooler.address()).unwrap();
        let _ = client.try_send(bytes);
        client.finish();
        assert!(client.ended(), "{}", bytes.escape_ascii());
    }
    comes_in(&pooler, "app", "");
}

#[test]
fn no_secret_is_written_to_the_log() {
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "plain").set("verbose", 3);
    });
    comes_in(&pooler, "scram_user", &password("scram_user"));
    refused(&pooler, "app", "a wrong guess");
    let log = pooler.log();
    for secret in [
        password("scram_user"),
        password("app"),
        "a wrong guess".to_owned(),
    ] {
        assert!(!log.contains(&secret), "{secret} is in the log");
    }
}

/// How often a password was turned into keys, which takes thousands of rounds.
fn derivations(pooler: &Pooler) -> usize {
    pooler.log().matches("SCRAM keys derived in ").count()
}

#[test]
fn the_password_for_postgresql_is_turned_into_keys_once_for_all_servers_of_a_pool() {
    let database = postgres().database("auth");
    let mut pooler = Pooler::start(|ini| {
        ini.set("verbose", 1).set("default_pool_size", 6);
    });
    let open = |pooler: &Pooler| {
        let mut clients: Vec<Wire> = (0..6)
            .map(|_| pooler.login("scram_user", &database, None).unwrap())
            .collect();
        for client in &mut clients {
            client.rows("BEGIN");
        }
        assert_eq!(pooler.servers(&database, "scram_user"), 6);
    };
    open(&pooler);
    assert_eq!(derivations(&pooler), 1);
    pooler.console("RECONNECT");
    pooler.reconfigure(|ini| {
        ini.set("query_timeout", 100);
    });
    open(&pooler);
    assert_eq!(derivations(&pooler), 1);

    // Another password comes down to other keys, and those of the old one are not tried.
    pooler.reconfigure(|ini| {
        ini.secret("scram_user", "wrong");
    });
    pooler.console("RECONNECT");
    assert!(pooler.login("scram_user", &database, None).is_err());
    assert!(derivations(&pooler) > 1);
}

#[test]
fn a_users_password_is_turned_into_a_verifier_once_for_all_its_logins() {
    let mut pooler = Pooler::start(|ini| {
        ini.set("verbose", 1)
            .set("auth_type", "scram-sha-256")
            .set("admin_users", "other")
            .secret("other", "one");
    });
    let comes_in = |pooler: &Pooler, password: &str| {
        pooler.login("other", "pgbouncer", Some(password)).is_ok()
    };
    for _ in 0..3 {
        assert!(comes_in(&pooler, "one"));
        assert!(!comes_in(&pooler, "two"));
    }
    assert_eq!(derivations(&pooler), 1);
    let reload = |pooler: &mut Pooler, secret: &str| {
        pooler.rewrite(|ini| {
            ini.secret("other", secret);
        });
        pooler.reload();
    };
    reload(&mut pooler, "two");
    wait_until("the new password holds", || comes_in(&pooler, "two"));
    // A login in the middle of the reload may have needed the old one's keys once more.
    let known = derivations(&pooler);
    assert!((2..=3).contains(&known), "{known}");
    for _ in 0..3 {
        assert!(comes_in(&pooler, "two"));
        assert!(!comes_in(&pooler, "one"));
    }
    assert_eq!(derivations(&pooler), known);
    // The keys of the first one were forgotten.
    reload(&mut pooler, "one");
    wait_until("the old password is the new one", || {
        comes_in(&pooler, "one")
    });
    assert!(derivations(&pooler) > known);
    // The count is a part of it.
    pooler.rewrite(|ini| {
        ini.set("scram_iterations", 5000);
    });
    pooler.reload();
    wait_until("the count is known", || {
        comes_in(&pooler, "one") && pooler.log().contains("derived in 5000 rounds")
    });
}
