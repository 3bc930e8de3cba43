//! `auth_type = ldap` and the HBA method `ldap`, against OpenLDAP.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::support::directory::{ACCOUNT, ACCOUNT_SECRET, NOT_CERTIFIED, PEOPLE, STRANGE};
use crate::support::pooler::Ini;
use crate::support::ports::free_port;
use crate::support::postgres::password;
use crate::support::{Message, Pooler, Wire, directory, frontend, postgres};

/// Names are made, without a search.
const NAMED: &str = r#"ldapprefix="uid=" ldapsuffix=",ou=people,dc=example,dc=net""#;

/// Names are searched for.
const FOUND: &str = r#"ldapbasedn="dc=example,dc=net""#;

const FAILED: &str = "LDAP authentication failed";

/// A pooler that asks the directory of this run, in this way.
fn asking(options: &str, change: impl FnOnce(&mut Ini)) -> Pooler {
    let options = format!(
        "ldapserver=127.0.0.1 ldapport={} {options}",
        directory().port()
    );
    asking_at(&options, change)
}

fn asking_at(options: &str, change: impl FnOnce(&mut Ini)) -> Pooler {
    Pooler::start(|ini| {
        ini.set("auth_type", "ldap")
            .set("auth_ldap_options", options)
            .set("verbose", 1);
        change(ini);
    })
}

fn admits(pooler: &Pooler, user: &str) {
    assert_eq!(pooler.outcome(user, &password(user)), "in", "{user}");
}

fn refuses(pooler: &Pooler, user: &str, secret: &str) {
    assert_eq!(pooler.outcome(user, secret), FAILED, "{user}/{secret}");
}

#[test]
fn who_knows_the_password_of_an_entry_comes_in_and_nobody_else() {
    for options in [NAMED, FOUND] {
        // What is in the auth file does not matter.
        let pooler = asking(options, |ini| {
            ini.secret("app", "another").no_secret("other");
        });
        admits(&pooler, "app");
        admits(&pooler, "other");
        refuses(&pooler, "app", "another");
        refuses(&pooler, "app", "wrong");
        refuses(&pooler, "nobody", "wrong");
        refuses(&pooler, "md5_user", &password("md5_user"));
    }
}

#[test]
fn a_refusal_is_fatal_and_no_password_is_in_the_log() {
    let pooler = asking(FOUND, |ini| {
        ini.set("verbose", 3);
    });
    let refusal = pooler.login("app", "postgres", Some("a guess")).err();
    let text = refusal.as_ref().unwrap().text();
    let crate::support::wire::Refusal::Error(message) = refusal.unwrap() else {
        panic!("told nothing");
    };
    assert_eq!(text, FAILED);
    assert_eq!(message.field('S').as_deref(), Some("FATAL"));
    assert_eq!(message.field('C').as_deref(), Some("08P01"));
    admits(&pooler, "app");
    let log = pooler.log();
    assert!(log.contains("LDAP: bind as \"uid="), "{log}");
    assert!(log.contains("invalid credentials (49)"), "{log}");
    assert!(!log.contains("a guess") && !log.contains("app-secret"));
}

#[test]
fn the_password_that_the_client_gave_logs_in_to_the_server() {
    let pooler = asking(NAMED, |ini| {
        ini.no_secret("scram_user").secret("plain_user", "outdated");
    });
    admits(&pooler, "scram_user");
    admits(&pooler, "plain_user");
    pooler.console("RECONNECT");
    admits(&pooler, "plain_user");
    // The files have no say in it, on a reload either.
    pooler.console("RELOAD");
    pooler.console("RECONNECT");
    admits(&pooler, "plain_user");
}

#[test]
fn an_empty_password_never_gets_to_the_directory() {
    for options in [NAMED, FOUND] {
        let pooler = asking(options, |_| ());
        assert_eq!(
            pooler.outcome("app", ""),
            "empty password returned by client"
        );
    }
}

#[test]
fn a_name_with_every_special_character_is_just_a_name() {
    assert!(PEOPLE.contains(&STRANGE));
    for options in [NAMED, FOUND, &format!("{FOUND} ldapsearchattribute=uid")] {
        let pooler = asking(options, |_| ());
        admits(&pooler, STRANGE);
        refuses(&pooler, STRANGE, "wrong");
    }
}

#[test]
fn no_name_turns_into_another_entry() {
    // Unescaped, these would be the entry of `app`.
    let pooler = asking(
        r#"ldapprefix="uid=" ldapsuffix=",dc=example,dc=net""#,
        |_| (),
    );
    refuses(&pooler, "app,ou=people", &password("app"));
    let pooler = asking(r#"ldapsuffix=",dc=example,dc=net""#, |_| ());
    refuses(&pooler, "uid=app,ou=people", &password("app"));
    let pooler = asking(NAMED, |_| ());
    refuses(&pooler, "app+sn=x", &password("app"));
    refuses(&pooler, "\\61pp", &password("app"));
    // And these would find it.
    let filter = r#"ldapsearchfilter="(&(objectClass=inetOrgPerson)(uid=$username))""#;
    for options in [FOUND, &format!("{FOUND} {filter}")] {
        let pooler = asking(options, |_| ());
        for name in [
            "a*p",
            "*",
            "\\61pp",
            "app)(uid=*",
            "nobody)(|(uid=app",
            "app))(&(uid=app",
            "*)(uid=app",
        ] {
            refuses(&pooler, name, &password("app"));
        }
    }
}

#[test]
fn an_entry_is_searched_for_by_an_attribute_or_a_filter() {
    let mail = |user: &str| format!("{user}@example.net");
    for options in [
        "ldapsearchattribute=mail",
        r#"ldapsearchfilter="(|(uid=$username)(mail=$username))""#,
        r#"ldapsearchfilter="(&(objectClass=inetOrgPerson)(!(uid=other))(mail=$username))""#,
    ] {
        let pooler = asking(&format!("{FOUND} {options}"), |ini| {
            ini.database("forced", "dbname=postgres user=app");
        });
        let login = |user: &str, secret: &str| pooler.login(user, "forced", Some(secret));
        let mut client = login(&mail("app"), &password("app")).unwrap();
        assert_eq!(client.value("SELECT current_user"), "app");
        assert!(login(&mail("app"), &password("other")).is_err());
        let excludes = options.contains("!(uid=other)");
        assert_eq!(login(&mail("other"), &password("other")).is_err(), excludes);
    }
}

#[test]
fn what_is_found_must_be_the_only_one() {
    let pooler = asking(FOUND, |_| ());
    refuses(&pooler, "twin", &password("twin"));
    assert!(pooler.log().contains("more than one entry is found"));
    let pooler = asking(
        r#"ldapurl="ldap:///ou=people,dc=example,dc=net?uid?one""#,
        |ini| {
            ini.database("forced", "dbname=postgres user=app");
        },
    );
    let client = pooler.login("twin", "forced", Some(&password("twin")));
    assert!(client.is_ok(), "one level below there is one");
}

#[test]
fn a_search_may_need_an_account() {
    let line = |name: &str, secret: &str| {
        format!(r#"{FOUND} ldapbinddn="{name}" ldapbindpasswd="{secret}""#)
    };
    let comes_in = |options: &str| {
        let pooler = asking(options, |ini| {
            ini.database("forced", "dbname=postgres user=app");
        });
        let client = pooler.login("hidden", "forced", Some("hidden-secret"));
        let config = pooler
            .login("postgres", "pgbouncer", Some(&password("postgres")))
            .map(|mut console| {
                let rows = console.rows("SHOW CONFIG");
                let row = rows.find("key", "auth_ldap_options").unwrap();
                rows.get(row, "value")
            });
        (client.is_ok(), config.unwrap_or_default(), pooler.log())
    };
    let (is_in, config, log) = comes_in(&line(ACCOUNT, ACCOUNT_SECRET));
    assert!(is_in, "{log}");
    assert!(config.ends_with("ldapbindpasswd=(..)"), "{config}");
    assert!(!log.contains(ACCOUNT_SECRET));
    let (is_in, _, log) = comes_in(FOUND);
    assert!(
        !is_in && log.contains("no such user in the directory"),
        "{log}"
    );
    let (is_in, _, log) = comes_in(&line(ACCOUNT, "wrong"));
    assert!(!is_in && log.contains("bind of the account that searches: invalid credentials"));
}

#[test]
fn options_can_be_a_url() {
    let url = |scope: &str| {
        let port = directory().port();
        format!(r#"ldapurl="ldap://127.0.0.1:{port}/dc=example,dc=net?uid?{scope}""#)
    };
    admits(&asking_at(&url("sub"), |_| ()), "app");
    refuses(&asking_at(&url("one"), |_| ()), "app", &password("app"));
}

/// How TLS is asked for, with a host by which the directory is called.
fn with_tls(how: &str, host: &str) -> String {
    let port = match how {
        "ldaptls=1" => directory().port(),
        _ => directory().tls_port(),
    };
    format!("ldapserver={host} ldapport={port} {how} {NAMED}")
}

#[test]
fn the_connection_may_be_encrypted_and_then_the_certificate_counts() {
    for how in ["ldaptls=1", "ldapscheme=ldaps"] {
        let trusting = |ini: &mut Ini| {
            ini.variable("LDAPTLS_CACERT", directory().authority());
        };
        for host in ["127.0.0.1", "localhost"] {
            let pooler = asking_at(&with_tls(how, host), trusting);
            admits(&pooler, "app");
            refuses(&pooler, "app", "wrong");
        }
        // It listens there as well, but the certificate does not say so.
        let pooler = asking_at(&with_tls(how, NOT_CERTIFIED), trusting);
        refuses(&pooler, "app", &password("app"));
        assert!(pooler.log().contains("certificate verify failed"));
        // An authority that has nothing to do with it.
        let stranger = crate::support::tls::Authority::new("a stranger");
        let file = postgres().directory().join("stranger.crt");
        stranger.write(&file);
        let pooler = asking_at(&with_tls(how, "127.0.0.1"), |ini| {
            ini.variable("LDAPTLS_CACERT", &file);
        });
        refuses(&pooler, "app", &password("app"));
        assert!(pooler.log().contains("certificate verify failed"));
    }
}

#[test]
fn plain_text_is_not_spoken_where_tls_is_asked_for() {
    // A server that refuses StartTLS, and would take the password without.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let seen = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = server.accept().unwrap();
        let mut buffer = [0; 1024];
        let length = stream.read(&mut buffer).unwrap();
        stream
            .write_all(b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x02\x04\x00\x04\x00")
            .unwrap();
        let mut all = buffer[..length].to_vec();
        stream.read_to_end(&mut all).unwrap();
        all
    });
    let pooler = asking_at(
        &format!("ldapserver=127.0.0.1 ldapport={port} ldaptls=1 {NAMED}"),
        |ini| {
            ini.variable("LDAPTLS_CACERT", directory().authority());
        },
    );
    refuses(&pooler, "app", &password("app"));
    let seen = seen.join().unwrap();
    assert!(!String::from_utf8_lossy(&seen).contains("secret"));
    assert!(pooler.log().contains("StartTLS: protocol error (2)"));
}

#[test]
fn a_server_that_is_down_lets_nobody_in() {
    let port = free_port();
    let pooler = asking_at(
        &format!("ldapserver=127.0.0.1 ldapport={port} {NAMED}"),
        |_| (),
    );
    refuses(&pooler, "app", &password("app"));
    let log = pooler.log();
    assert!(
        log.contains(&format!("LDAP: 127.0.0.1:{port}: connect failed")),
        "{log}"
    );
}

#[test]
fn the_next_server_is_asked_when_one_is_down_or_says_nothing() {
    let port = directory().port();
    // It takes connections, for the kernel does, and never says a word.
    let silent = TcpListener::bind(("127.0.0.3", port)).unwrap();
    let options = format!(r#"ldapserver="127.0.0.2 127.0.0.3 127.0.0.1" ldapport={port} {NAMED}"#);
    let pooler = asking_at(&options, |ini| {
        ini.set("client_login_timeout", 4);
    });
    admits(&pooler, "app");
    drop(silent);
    let log = pooler.log();
    assert!(
        log.contains(&format!("127.0.0.2:{port}: connect failed")),
        "{log}"
    );
    assert!(
        log.contains(&format!("127.0.0.3:{port}: no answer in time")),
        "{log}"
    );
    // A verdict is final: the other servers would say the same, and each try costs the user one of a few.
    let before = pooler.log().matches("LDAP: bind as").count();
    refuses(&pooler, "app", "wrong");
    assert_eq!(pooler.log().matches("LDAP: bind as").count(), before + 1);
}

/// A client that has sent its password.
fn waiting(pooler: &Pooler) -> Wire {
    let mut client = Wire::connect(pooler.address()).unwrap();
    client.send(&frontend::startup(&[
        ("user", "app"),
        ("database", "postgres"),
    ]));
    assert_eq!(client.read_message().map(|request| request.tag), Some(b'R'));
    client.send(&frontend::password("whatever"));
    client
}

#[test]
fn a_login_that_waits_for_the_directory_holds_up_nobody_and_ends_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let rules = format!(
        "host all other all trust\nhost all all all ldap ldapserver=127.0.0.1 ldapport={port} {NAMED}\n"
    );
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "hba")
            .set("auth_hba_file", "hba.conf")
            .file("hba.conf", &rules)
            .set("worker_threads", 1)
            .set("min_worker_threads", 1)
            .set("client_login_timeout", 2);
    });
    let begin = Instant::now();
    let mut clients: Vec<Wire> = (0..20).map(|_| waiting(&pooler)).collect();
    let _asked = silent.accept().unwrap();
    let mut other = pooler.login("other", "postgres", None).unwrap();
    assert_eq!(other.value("SELECT 1"), "1");
    assert!(begin.elapsed() < Duration::from_secs(2), "nobody waited");
    for client in &mut clients {
        let last: Option<Message> = client.read_message();
        let text = last.and_then(|message| message.field('M'));
        assert_eq!(text.as_deref(), Some("client_login_timeout"));
    }
}

#[test]
fn a_line_of_the_rules_may_name_a_directory() {
    let port = directory().port();
    let pooler = Pooler::start(|ini| {
        let rules = format!(
            "host pgbouncer postgres all trust\n\
             host all app,nobody all ldap ldapserver=127.0.0.1 ldapport={port} {NAMED}\n\
             host all scram_user all ldap ldapurl=\"ldap://127.0.0.1:{port}/dc=example,dc=net?uid?sub\"\n\
             host all all all md5\n"
        );
        ini.set("auth_type", "hba")
            .set("auth_hba_file", "hba.conf")
            .file("hba.conf", &rules)
            .secret("app", "outdated")
            .no_secret("scram_user");
    });
    admits(&pooler, "app");
    admits(&pooler, "scram_user");
    refuses(&pooler, "app", "outdated");
    refuses(&pooler, "nobody", "x");
    assert_eq!(pooler.outcome("other", &password("other")), "in");
}

#[test]
fn the_console_is_entered_in_the_same_way() {
    let pooler = asking(NAMED, |_| ());
    let login = |user: &str, secret: &str| pooler.login(user, "pgbouncer", Some(secret));
    assert!(login("postgres", &password("postgres")).is_ok());
    let refused = |user: &str, secret: &str| login(user, secret).err().unwrap().text();
    assert_eq!(refused("postgres", "wrong"), FAILED);
    assert_eq!(refused("app", &password("app")), "not allowed");
}

#[test]
fn a_database_that_is_not_there_is_told_to_those_who_may_know() {
    let pooler = asking(NAMED, |ini| {
        ini.without_database("*").database("postgres", "");
    });
    let refused = |secret: &str| {
        let login = pooler.login("app", "elsewhere", Some(secret));
        login.err().unwrap().text()
    };
    assert_eq!(refused("wrong"), FAILED);
    assert_eq!(refused(&password("app")), "no such database: elsewhere");
}

#[test]
fn together_with_auth_user_it_is_an_error_of_the_configuration() {
    let pooler = asking(NAMED, |ini| {
        ini.database("asking", "dbname=postgres auth_user=postgres");
    });
    let text = "can't be used together with auth_user";
    assert!(pooler.log().contains(text), "the administrator is warned");
    let login = pooler.login("app", "asking", Some(&password("app")));
    assert_eq!(login.err().unwrap().text(), "bouncer config error");
    admits(&pooler, "app");
}

#[test]
fn settings_change_while_it_runs_or_not_at_all() {
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "plain");
    });
    let set = |line: &str| {
        let mut console = pooler
            .login("postgres", "pgbouncer", Some(&password("postgres")))
            .unwrap();
        let replies = console.query(line);
        replies.iter().all(|reply| reply.tag != b'E')
    };
    assert!(!set("SET auth_type = 'ldap'"), "there is no directory");
    assert!(!set("SET auth_ldap_options = 'ldapserver=h'"));
    let port = directory().port();
    let options = format!("ldapserver=127.0.0.1 ldapport={port} {FOUND} ldapbinddn=\"{ACCOUNT}\"");
    assert!(set(&format!(
        "SET auth_ldap_options = '{options} ldapbindpasswd=\"finder''s secret\"'"
    )));
    assert!(set("SET auth_type = 'ldap'"));
    refuses(&pooler, "app", "wrong");
    admits(&pooler, "app");
    let log = pooler.log();
    assert!(!log.contains("s secret"), "{log}");
}
