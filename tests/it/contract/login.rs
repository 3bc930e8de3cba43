//! Errors before and during the login.

use super::{Findings, end, fatal, fields, said, shown};
use crate::support::pooler::{Ini, is_pgbouncer};
use crate::support::scripted::Scripted;
use crate::support::tls::authority;
use crate::support::wire::Refusal;
use crate::support::{Pooler, Wire, eventually, frontend, postgres};

/// What a connection is told that ends without a word.
const NOTHING: &str = "closed without a word";

fn startup(more: &[(&str, &str)]) -> Vec<u8> {
    frontend::startup(&[&[("user", "app"), ("database", "postgres")], more].concat())
}

/// What is sent first, and how that ends.
type First = (&'static str, Vec<u8>, String);

/// Startup messages that ask for what is not there.
fn startup_messages() -> Vec<First> {
    let (long, many) = ("x".repeat(200), "d".repeat(80));
    let of =
        |user: &str, database: &str| frontend::startup(&[("user", user), ("database", database)]);
    let parameter = "unsupported startup parameter: ";
    let options = "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed";
    let rows = vec![
        (
            "no user",
            frontend::startup(&[("database", "x")]),
            "no username supplied".to_owned(),
        ),
        (
            "an empty user",
            of("", "postgres"),
            "no username supplied".to_owned(),
        ),
        (
            "a long user",
            of(&long[..128], "postgres"),
            "username too long".to_owned(),
        ),
        (
            "an unknown user",
            of("nobody", "postgres"),
            "\"trust\" authentication failed".to_owned(),
        ),
        (
            "no such database",
            of("app", "nowhere"),
            "no such database: nowhere".to_owned(),
        ),
        // Names have 63 bytes.
        (
            "a long database",
            of("app", &many),
            format!("no such database: {}", &many[..63]),
        ),
        (
            "no database",
            frontend::startup(&[("user", "app")]),
            "no such database: app".to_owned(),
        ),
        (
            "the console",
            of("app", "pgbouncer"),
            "not allowed".to_owned(),
        ),
        (
            "a parameter",
            startup(&[("geqo", "on")]),
            format!("{parameter}geqo"),
        ),
        // Texts have 127 bytes.
        (
            "a long parameter",
            startup(&[(&long, "3")]),
            format!("{parameter}{}", &long[..96]),
        ),
        (
            "a parameter in options",
            startup(&[("options", "-c geqo=off")]),
            "unsupported startup parameter in options: geqo".to_owned(),
        ),
        (
            "no setting in options",
            startup(&[("options", "-d")]),
            options.to_owned(),
        ),
        (
            "no value in options",
            startup(&[("options", "-c geqo")]),
            options.to_owned(),
        ),
    ];
    rows.into_iter()
        .map(|(what, bytes, text)| (what, bytes, fatal(&text)))
        .collect()
}

/// What is no startup message.
fn other_packets() -> Vec<First> {
    let (packet, again) = (frontend::packet, startup(&[]));
    let encrypted = |code: u32| [packet(code, &[]), again.clone()].concat();
    let layout = "invalid startup packet layout: expected terminator as last byte";
    let rows = vec![
        ("no terminator", packet(0x0003_0000, b"user\0app\0"), layout),
        (
            "bytes behind it",
            packet(0x0003_0000, b"user\0app\0\0x\0"),
            layout,
        ),
        (
            "version 2",
            packet(0x0002_0000, &[0; 292]),
            "old V2 protocol not supported",
        ),
        (
            "version 4",
            packet(0x0004_0000, &[]),
            "bad packet header: '0000000800040000'",
        ),
        (
            "nothing but zeros",
            vec![0; 8],
            "bad packet header: '0000000000000000'",
        ),
        (
            "a length without bounds",
            vec![0xff; 64],
            "bad packet header: 'ffffffffffffffff'",
        ),
        (
            "a password",
            frontend::password("x"),
            "client password pkt before startup packet",
        ),
        (
            "more than SSLRequest",
            encrypted(80_877_103),
            "received unencrypted data after SSL request",
        ),
        (
            "more than GSSENCRequest",
            encrypted(80_877_104),
            "received unencrypted data after GSSAPI encryption request",
        ),
    ];
    let told = rows
        .into_iter()
        .map(|(what, bytes, text)| (what, bytes, fatal(text)));
    let silent = [
        (
            "a cancel request for nobody",
            frontend::cancel(1, &[0; 4]),
            NOTHING.to_owned(),
        ),
        (
            "a cancel request without key",
            frontend::cancel(1, &[]),
            NOTHING.to_owned(),
        ),
    ];
    told.chain(silent).collect()
}

/// PgBouncer takes these for a startup message since 1.25 only, if at all.
const LAX: &[&str] = &["no terminator", "bytes behind it"];

#[test]
fn what_comes_first_is_refused_in_pgbouncers_words() {
    let pooler = Pooler::start(|ini| {
        ini.without_database("*").database("postgres", "");
        if !is_pgbouncer() {
            // Where sessions are followed, settings are taken.
            ini.set("pin_policy", "off");
        }
    });
    let mut findings = Findings::default();
    for (what, bytes, wanted) in startup_messages().into_iter().chain(other_packets()) {
        if is_pgbouncer() && LAX.contains(&what) {
            continue;
        }
        let mut client = said(&pooler, &bytes);
        findings.compare(what, end(&mut client), wanted);
    }
    findings.report();
}

/// Rules by user, so that one pooler has all methods.
const RULES: &str = "
host  postgres app          all trust
host  postgres ghost        all trust
host  all      plain_user   all password
host  all      md5_user     all md5
host  all      scram_user   all scram-sha-256
host  all      other        all reject
local all      all              peer map=nobody
";

fn with_rules(ini: &mut Ini) {
    ini.set("auth_type", "hba")
        .set("auth_hba_file", "hba.conf")
        .set("auth_ident_file", "ident.conf")
        .file("hba.conf", RULES)
        .file("ident.conf", "nobody nobody all\n");
}

fn refusal(result: Result<Wire, Refusal>) -> String {
    match result {
        Ok(_) => "in".to_owned(),
        Err(Refusal::Closed) => NOTHING.to_owned(),
        Err(Refusal::Error(message)) => shown(&message),
    }
}

/// A login of which the client says this when it is asked for its password.
fn answering(pooler: &Pooler, user: &str, answer: &[u8]) -> String {
    let mut client = said(
        pooler,
        &frontend::startup(&[("user", user), ("database", "postgres")]),
    );
    let request = client.read_message().unwrap();
    assert_eq!(request.tag, b'R', "{request:?}");
    client.send(answer);
    end(&mut client)
}

/// The same when a SCRAM exchange has begun and the server has said its part.
fn answering_late(pooler: &Pooler, answer: &[u8]) -> String {
    let mut client = said(
        pooler,
        &frontend::startup(&[("user", "scram_user"), ("database", "postgres")]),
    );
    client.read_message().unwrap();
    client.send(&frontend::sasl_initial(
        "SCRAM-SHA-256",
        b"n,,n=,r=abcdefgh",
    ));
    let challenge = client.read_message().unwrap();
    assert_eq!(challenge.tag, b'R', "{challenge:?}");
    client.send(answer);
    end(&mut client)
}

#[test]
fn who_does_not_prove_itself_is_refused_in_pgbouncers_words() {
    let pooler = Pooler::start(with_rules);
    let mut findings = Findings::default();
    let logins = [
        (
            "plain_user",
            "postgres",
            "wrong",
            "password authentication failed",
        ),
        (
            "md5_user",
            "postgres",
            "wrong",
            "password authentication failed",
        ),
        (
            "scram_user",
            "postgres",
            "wrong",
            "SASL authentication failed",
        ),
        ("ghost", "postgres", "", "\"trust\" authentication failed"),
        ("other", "postgres", "", "login rejected"),
        ("app", "elsewhere", "", "no authentication method is found"),
    ];
    for (user, database, password, text) in logins {
        let told = refusal(pooler.login(user, database, Some(password)));
        findings.compare(format!("{user}@{database}"), told, fatal(text));
    }
    let empty = answering(&pooler, "plain_user", &frontend::password(""));
    findings.compare(
        "no password",
        empty,
        fatal("empty password returned by client"),
    );
    let mechanism = frontend::sasl_initial("SCRAM-SHA-1", b"n,,n=,r=abc");
    let text = "client selected an invalid SASL authentication mechanism";
    findings.compare(
        "mechanism",
        answering(&pooler, "scram_user", &mechanism),
        fatal(text),
    );
    let broken = frontend::sasl_initial("SCRAM-SHA-256", b"gibberish");
    findings.compare(
        "broken first message",
        answering(&pooler, "scram_user", &broken),
        fatal("SASL authentication failed"),
    );
    let broken = frontend::message(b'p', b"c=biws,r=wrong,p=AAAA");
    findings.compare(
        "broken last message",
        answering_late(&pooler, &broken),
        fatal("SASL authentication failed"),
    );
    let again = startup(&[]);
    for user in ["plain_user", "md5_user", "scram_user"] {
        let told = answering(&pooler, user, &again);
        findings.compare(
            format!("{user} begins again"),
            told,
            fatal("client re-sent startup pkt"),
        );
        let told = answering(&pooler, user, &frontend::query("SELECT 1"));
        findings.compare(format!("{user} asks something"), told, NOTHING.to_owned());
    }
    findings.compare(
        "late",
        answering_late(&pooler, &again),
        fatal("client re-sent startup pkt"),
    );
    findings.report();
}

#[test]
fn who_is_no_user_of_the_system_is_refused_on_the_unix_socket() {
    let pooler = Pooler::start(|ini| {
        with_rules(ini);
        ini.set("unix_socket_dir", ".");
    });
    let told = pooler.by_socket(&startup(&[]));
    assert_eq!(shown(&told[0]), fatal("unix socket login rejected"));
}

#[test]
fn tls_that_is_asked_for_has_pgbouncers_words() {
    let start = |auth_type: &str, mode: &str| {
        Pooler::start(|ini| {
            let identity = authority().issue("pooler", &["localhost"]);
            ini.file("pooler.key", &identity.key)
                .file("pooler.crt", &identity.certificate)
                .file("root.crt", authority().certificate())
                .set("client_tls_key_file", "pooler.key")
                .set("client_tls_cert_file", "pooler.crt")
                .set("client_tls_ca_file", "root.crt")
                .set("client_tls_sslmode", mode)
                .set("auth_type", auth_type);
        })
    };
    let pooler = start("trust", "require");
    assert_eq!(
        end(&mut said(&pooler, &startup(&[]))),
        fatal("SSL required")
    );
    // A request inside of TLS, and a handshake that fails.
    let mut client = Wire::connect(pooler.address()).unwrap();
    client.encrypt(&authority().client(None)).unwrap();
    client.send(&frontend::packet(80_877_103, &[]));
    assert_eq!(end(&mut client), NOTHING);
    let mut client = said(&pooler, &frontend::packet(80_877_103, &[]));
    assert_eq!(client.read_byte(), Some(b'S'));
    client.send(b"no handshake at all, but long enough to be taken for one");
    while client.read_byte().is_some() {}
    let pooler = start("cert", "verify-full");
    let stranger = authority().issue("app", &[]);
    let mut client = Wire::connect(pooler.address()).unwrap();
    client
        .encrypt(&authority().client(Some(&stranger)))
        .unwrap();
    client.send(&frontend::startup(&[
        ("user", "other"),
        ("database", "postgres"),
    ]));
    assert_eq!(end(&mut client), fatal("certificate authentication failed"));
}

#[test]
fn who_is_asked_for_in_postgresql_has_pgbouncers_words() {
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "md5")
            .set("auth_user", "postgres")
            .database("asked", "dbname=postgres")
            .database("broken", "dbname=postgres auth_query='select 1'")
            .database("elsewhere", "dbname=postgres auth_dbname=nowhere")
            .database("disabled", "dbname=postgres auth_dbname=asked")
            .without_database("*");
    });
    let console = |command: &str| {
        let password = Some("postgres-secret");
        pooler
            .login("postgres", "pgbouncer", password)
            .unwrap()
            .rows(command);
    };
    let login = |database: &str| refusal(pooler.login("stranger", database, Some("x")));
    let mut findings = Findings::default();
    findings.compare("nobody", login("asked"), fatal("no such user"));
    findings.compare(
        "a wrong answer",
        login("broken"),
        fatal("bouncer config error"),
    );
    findings.compare(
        "no such database",
        login("elsewhere"),
        fatal("bouncer config error"),
    );
    console("DISABLE asked");
    let text = "authentication database \"asked\" is disabled";
    findings.compare("a disabled one", login("disabled"), fatal(text));
    let told = refusal(pooler.login("app", "asked", Some("app-secret")));
    findings.compare("disabled", told, fatal("database \"asked\" is disabled"));
    findings.report();
    let pooler = Pooler::start(|ini| {
        ini.set("auth_type", "any");
    });
    assert_eq!(
        refusal(pooler.login("app", "postgres", None)),
        fatal("bouncer config error")
    );
}

#[test]
fn one_client_too_many_is_told_by_which_limit() {
    let one = |setting: &str| {
        let pooler = Pooler::start(|ini| {
            ini.set(setting, 1);
        });
        // The connection that found the pooler listening may still count.
        let first = eventually("the first comes in", || {
            pooler.login("app", "postgres", None).ok()
        });
        let told = refusal(pooler.login("app", "postgres", None));
        drop(first);
        (told, pooler)
    };
    let mut findings = Findings::default();
    let limits = [
        (
            "max_client_conn",
            "no more connections allowed (max_client_conn)",
        ),
        (
            "max_db_client_connections",
            "client connections exceeded (max_db_client_connections)",
        ),
        (
            "max_user_client_connections",
            "client connections exceeded (max_user_client_connections)",
        ),
    ];
    for (setting, text) in limits {
        let (told, pooler) = one(setting);
        findings.compare(setting, told, fatal(text));
        // Who commands is exempt on the console, and nowhere else.
        let admins = |database: &str| {
            let logins: Vec<_> = (0..2)
                .map(|_| pooler.login("postgres", database, None))
                .collect();
            logins.iter().filter(|login| login.is_ok()).count()
        };
        findings.compare(format!("{setting}: consoles"), admins("pgbouncer"), 2);
        findings.compare(format!("{setting}: others"), admins("postgres") < 2, true);
    }
    findings.report();
}

#[test]
fn a_login_that_takes_too_long_is_told_why() {
    let silent = Scripted::start(|_, session| session.hang());
    let pooler = Pooler::start(|ini| {
        ini.set("client_login_timeout", 1)
            .target("down", &silent.target());
    });
    // A part of its first packet: the kernel may keep those who say nothing to itself.
    let mut waiting = said(&pooler, &startup(&[])[..9]);
    let mut cold = said(
        &pooler,
        &frontend::startup(&[("user", "app"), ("database", "down")]),
    );
    assert_eq!(end(&mut waiting), fatal("client_login_timeout"));
    assert_eq!(end(&mut cold), fatal("client_login_timeout (server down)"));
}

#[test]
fn a_server_that_refuses_the_login_is_heard() {
    let refusing = Scripted::start(|_, session| {
        session.read_startup();
        session.error("FATAL", "28000", "not in these parts");
    });
    let pooler = Pooler::start(|ini| {
        ini.target("refusing", &refusing.target())
            .database("missing", "dbname=no_such_database");
    });
    let told = refusal(pooler.login("app", "refusing", None));
    assert_eq!(told, fields("FATAL", "28000", "not in these parts"));
    let told = refusal(pooler.login("app", "missing", None));
    let text = "database \"no_such_database\" does not exist";
    assert_eq!(told, fields("FATAL", "3D000", text));
    let parameters = [
        ("user", "app"),
        ("database", "refusing"),
        ("replication", "true"),
    ];
    let told = end(&mut said(&pooler, &frontend::startup(&parameters)));
    assert_eq!(told, fatal("login failed"));
    postgres();
}
