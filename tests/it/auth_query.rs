//! Users that only PostgreSQL knows: `auth_query`.

use std::thread;

use crate::support::pooler::Ini;
use crate::support::postgres::password;
use crate::support::wire::refusal;
use crate::support::{Pooler, postgres, wait_until};

/// SCRAM, and what PostgreSQL keeps of `scram_user`'s password is known to PostgreSQL alone.
fn ask_postgresql(ini: &mut Ini) -> &mut Ini {
    ini.set("auth_type", "scram-sha-256")
        .set("auth_user", "postgres")
        .no_secret("scram_user")
}

#[test]
fn a_user_that_only_postgresql_knows_comes_in_with_its_password() {
    let pooler = Pooler::start(|ini| {
        ask_postgresql(ini);
    });
    let login = |secret: &str| pooler.login("scram_user", "postgres", Some(secret));
    let mut client = login(&password("scram_user")).unwrap();
    assert_eq!(client.value("SELECT session_user"), "scram_user");
    assert_eq!(refusal(login("wrong")), "SASL authentication failed");
    assert_eq!(
        refusal(pooler.login("nobody", "postgres", Some("x"))),
        "no such user"
    );
}

#[test]
fn a_new_password_holds_at_the_next_login() {
    let server = postgres();
    server.sql("postgres", "CREATE ROLE rotating LOGIN PASSWORD 'first'");
    let pooler = Pooler::start(|ini| {
        ask_postgresql(ini);
    });
    let login = |secret: &str| pooler.login("rotating", "postgres", Some(secret));
    assert!(login("first").is_ok());
    server.sql("postgres", "ALTER ROLE rotating PASSWORD 'second'");
    assert_eq!(refusal(login("first")), "SASL authentication failed");
    assert!(login("second").is_ok());
}

#[test]
fn an_expired_password_lets_nobody_in() {
    postgres().sql(
        "postgres",
        "CREATE ROLE expired LOGIN PASSWORD 'x' VALID UNTIL '2001-01-01';
         CREATE ROLE valid LOGIN PASSWORD 'x' VALID UNTIL '2999-01-01'",
    );
    for method in ["plain", "md5", "scram-sha-256"] {
        let pooler = Pooler::start(|ini| {
            ask_postgresql(ini).set("auth_type", method);
        });
        let login = |user: &str| pooler.login(user, "postgres", Some("x"));
        assert!(login("valid").is_ok(), "{method}");
        assert!(
            refusal(login("expired")).ends_with("authentication failed"),
            "{method}"
        );
    }
}

#[test]
fn the_name_that_the_query_returns_is_the_login_name() {
    let pooler = Pooler::start(|ini| {
        ask_postgresql(ini)
            .set(
                "auth_query",
                "SELECT rolname, rolpassword FROM pg_authid WHERE rolname = lower($1)",
            )
            .set("stats_users", "scram_user")
            .set("auth_dbname", "postgres");
    });
    let secret = password("scram_user");
    let mut client = pooler
        .login("SCRAM_User", "postgres", Some(&secret))
        .unwrap();
    assert_eq!(client.value("SELECT session_user"), "scram_user");
    assert_eq!(pooler.servers("postgres", "scram_user"), 1);
    let clients = pooler
        .login("SCRAM_User", "pgbouncer", Some(&secret))
        .unwrap()
        .rows("SHOW CLIENTS");
    assert!(clients.find("user", "SCRAM_User").is_none());
}

#[test]
fn a_row_of_another_shape_is_a_mistake_of_the_configuration() {
    for query in [
        "SELECT $1::text",
        "SELECT $1, 'x', NULL",
        "SELECT NULL, $1",
        "SELECT '', $1",
        "SELECT nonsense",
    ] {
        let pooler = Pooler::start(|ini| {
            ask_postgresql(ini).set("auth_query", query);
        });
        assert_eq!(
            refusal(pooler.login("scram_user", "postgres", Some("x"))),
            "bouncer config error",
            "{query}"
        );
        assert!(pooler.log().contains("S: error in auth_query: "), "{query}");
    }
}

#[test]
fn many_logins_of_one_user_at_once_share_an_answer_and_block_nobody() {
    const CLIENTS: usize = 20;
    let database = postgres().database("look_up");
    postgres().sql(
        &database,
        "CREATE SEQUENCE asked;
         CREATE FUNCTION look_up(text, OUT name text, OUT secret text) LANGUAGE plpgsql AS $$
         BEGIN
           PERFORM nextval('asked');
           PERFORM pg_advisory_lock_shared(7);
           PERFORM pg_advisory_unlock_shared(7);
           SELECT rolname, rolpassword INTO name, secret FROM pg_authid WHERE rolname = $1;
         END $$",
    );
    let pooler = Pooler::start(|ini| {
        ask_postgresql(ini)
            .set("auth_dbname", &database)
            .set("auth_query", "SELECT name, secret FROM look_up($1)");
    });
    let mut holder = postgres().connect(&database);
    holder.rows("SELECT pg_advisory_lock(7)");
    let secret = password("scram_user");
    thread::scope(|scope| {
        let logins: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let client = pooler.login("scram_user", "postgres", Some(&secret));
                    client.unwrap().value("SELECT 1")
                })
            })
            .collect();
        wait_until("all wait for the answer", || {
            let lists = pooler.console("SHOW LISTS");
            lists.get(lists.find("list", "login_clients").unwrap(), "items") == CLIENTS.to_string()
        });
        // Nobody else is held up, on no worker.
        for _ in 0..4 {
            let app = pooler.login("app", "postgres", Some(&password("app")));
            assert_eq!(app.unwrap().value("SELECT 1"), "1");
        }
        holder.rows("SELECT pg_advisory_unlock(7)");
        for login in logins {
            assert_eq!(login.join().unwrap(), "1");
        }
    });
    let asked = postgres().value(&database, "SELECT last_value FROM asked");
    // One for the first, one for those who came meanwhile, one for who was accepted but had not asked yet.
    assert!(
        ["2", "3"].contains(&asked.as_str()),
        "asked {asked} times for {CLIENTS} logins"
    );
}

#[test]
fn the_query_runs_as_auth_user_where_clients_are_somebody_else() {
    let mut pooler = Pooler::start(|ini| {
        ask_postgresql(ini)
            .database("forced", "dbname=postgres user=app auth_user=postgres")
            .set("auth_user", "nobody_in_particular");
    });
    let secret = password("scram_user");
    let login = |pooler: &Pooler| pooler.login("scram_user", "forced", Some(&secret));
    let mut client = login(&pooler).unwrap();
    assert_eq!(client.value("SELECT session_user"), "app");
    assert_eq!(pooler.servers("forced", "postgres"), 1);
    // And with new servers, after a reload.
    pooler.reconfigure(|ini| {
        ini.set("query_timeout", 60);
    });
    pooler.console("RECONNECT");
    assert!(login(&pooler).is_ok());
    assert_eq!(
        refusal(pooler.login("scram_user", "postgres", Some(&secret))),
        "role \"nobody_in_particular\" does not exist"
    );
}

#[test]
fn what_clients_leave_behind_on_a_server_does_not_mislead_the_query() {
    let database = postgres().database("mislead");
    postgres().sql(
        &database,
        "CREATE FUNCTION look_up(text, OUT name text, OUT secret text) LANGUAGE sql AS
           'SELECT rolname::text, rolpassword FROM pg_authid WHERE rolname = $1';
         CREATE SCHEMA chosen;
         CREATE FUNCTION chosen.is_chosen() RETURNS bool LANGUAGE sql AS 'SELECT true'",
    );
    let pooler = Pooler::start(|ini| {
        let line = format!(
            "dbname={database} user=postgres connect_query='SET search_path = public, chosen'"
        );
        // Otherwise it would keep the only server.
        ask_postgresql(ini)
            .set("pin_policy", "off")
            .set("default_pool_size", 1)
            .set(
                "auth_query",
                "SELECT l.name, l.secret FROM look_up($1) AS l, pg_authid WHERE rolname = $1 AND is_chosen()",
            )
            .database("shared", &line);
    });
    let secret = password("scram_user");
    let login = || pooler.login("scram_user", "shared", Some(&secret));
    let mut client = login().unwrap();
    client.rows(
        "CREATE SCHEMA evil;
         CREATE FUNCTION evil.look_up(text, OUT name text, OUT secret text) LANGUAGE sql AS
           'SELECT $1, $x$known$x$';
         CREATE TEMP TABLE pg_authid AS SELECT 'stranger' AS rolname;
         SET search_path = evil, public, chosen; SET ROLE app",
    );
    assert_eq!(
        refusal(pooler.login("stranger", "shared", Some("known"))),
        "no such user"
    );
    // The same server, and what `connect_query` made of it.
    assert!(login().is_ok());
    assert_eq!(pooler.servers("shared", "postgres"), 1);
}

#[test]
fn the_console_asks_where_auth_dbname_says() {
    let mut pooler = Pooler::start(|ini| {
        ask_postgresql(ini).set("stats_users", "scram_user");
    });
    let login =
        |pooler: &Pooler, secret: &str| pooler.login("scram_user", "pgbouncer", Some(secret));
    let secret = password("scram_user");
    assert_eq!(
        refusal(login(&pooler, &secret)),
        "SASL authentication failed"
    );
    pooler.reconfigure(|ini| {
        ini.set("auth_dbname", "postgres");
    });
    assert!(login(&pooler, &secret).is_ok());
    assert_eq!(
        refusal(login(&pooler, "wrong")),
        "SASL authentication failed"
    );
    pooler.console("DISABLE postgres");
    assert_eq!(
        refusal(login(&pooler, &secret)),
        "authentication database \"postgres\" is disabled"
    );
}

#[test]
fn an_authentication_database_that_is_not_there_is_a_mistake_of_the_configuration() {
    let pooler = Pooler::start(|ini| {
        ask_postgresql(ini)
            .set("auth_dbname", "x".repeat(64))
            .database("one", "dbname=postgres");
    });
    assert_eq!(
        refusal(pooler.login("scram_user", "one", Some("x"))),
        "bouncer config error"
    );
    assert!(pooler.log().contains("is not configured."));
}
