//! TLS: with clients as psql and others come, with a PostgreSQL that has it, and what goes wrong on either side.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use rustls::ClientConfig;

use crate::support::postgres::{password, tls_postgres};
use crate::support::scripted::Scripted;
use crate::support::tls::{Authority, authority};
use crate::support::wire::{Refusal, error};
use crate::support::{Pooler, Wire, frontend, pooler::Ini, process, wait_until};

/// A pooler with files of TLS beside it.
struct Secured {
    pooler: Pooler,
    directory: PathBuf,
}

impl Secured {
    /// TLS on both sides, unless `change` has it otherwise.
    fn start(change: impl FnOnce(&mut Ini)) -> Self {
        let directory = process::directory();
        authority()
            .issue("a pooler", &["localhost", "127.0.0.1"])
            .write(&directory, "pooler");
        authority().write(&directory.join("root.crt"));
        let file = |name: &str| directory.join(name).display().to_string();
        let pooler = Pooler::start(|ini| {
            ini.target("*", &tls_target())
                .set("client_tls_sslmode", "require")
                .set("client_tls_key_file", file("pooler.key"))
                .set("client_tls_cert_file", file("pooler.crt"))
                .set("client_tls_ca_file", file("root.crt"))
                .set("server_tls_sslmode", "verify-full")
                .set("server_tls_ca_file", file("root.crt"));
            change(ini);
        });
        Self { pooler, directory }
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn login(&self, user: &str, database: &str) -> Result<Wire, Refusal> {
        Wire::login_encrypted(self.pooler.address(), &trusting(), user, database)
    }

    fn connect(&self, database: &str) -> Wire {
        self.login("app", database)
            .unwrap_or_else(|refusal| panic!("login: {refusal:?}\n{}", self.pooler.log()))
    }

    /// What psql answers to a query over this connection string; host, port and user are put before.
    fn psql(&self, user: &str, more: &str) -> Output {
        let port = self.pooler.address().port();
        Command::new("psql")
            .arg(format!(
                "host=localhost hostaddr=127.0.0.1 port={port} user={user} dbname=postgres \
                 sslrootcert={} sslcert=/nonexistent {more}",
                self.file("root.crt")
            ))
            .args([
                "-XAtc",
                "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
            ])
            .env("PGPASSWORD", password(user))
            .output()
            .unwrap()
    }

    fn psql_comes_in(&self, user: &str, more: &str) {
        let output = self.psql(user, more);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.stdout, b"t\n", "{more}: {text}{}", self.pooler.log());
    }

    fn psql_fails(&self, user: &str, more: &str) -> String {
        let output = self.psql(user, more);
        assert!(!output.status.success(), "{more}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

fn tls_target() -> String {
    format!("host=localhost port={}", tls_postgres().port())
}

fn trusting() -> Arc<ClientConfig> {
    authority().client(None)
}

#[test]
fn psql_comes_in_in_every_mode_and_the_server_is_encrypted_too() {
    let secured = Secured::start(|_| ());
    for mode in ["require", "verify-ca", "verify-full"] {
        secured.psql_comes_in("app", &format!("sslmode={mode}"));
    }
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        secured.psql_comes_in(
            "app",
            &format!("sslmode=verify-full ssl_min_protocol_version={protocol} ssl_max_protocol_version={protocol}"),
        );
    }
    let other = Authority::new("another authority");
    other.write(&secured.directory.join("other.crt"));
    let text = secured.psql_fails(
        "app",
        &format!(
            "sslmode=verify-ca sslrootcert={}",
            secured.file("other.crt")
        ),
    );
    assert!(text.contains("certificate verify failed"), "{text}");
}

#[test]
fn a_plain_login_is_refused_where_tls_is_required_and_not_where_it_is_preferred() {
    let mut secured = Secured::start(|_| ());
    let refusal = secured.pooler.login("app", "postgres", None).err().unwrap();
    assert_eq!(refusal.text(), "SSL required");
    secured.pooler.rewrite(|ini| {
        ini.set("client_tls_sslmode", "prefer");
    });
    secured.pooler.reload();
    wait_until("plain logins are let in", || {
        secured.pooler.login("app", "postgres", None).is_ok()
    });
    secured.psql_comes_in("app", "sslmode=require");
    assert_eq!(secured.connect("postgres").value("SELECT 1"), "1");
}

#[test]
fn tls_without_a_request_is_understood_with_its_protocol_name() {
    let secured = Secured::start(|_| ());
    let mut wire = Wire::connect(secured.pooler.address()).unwrap();
    wire.encrypt_at_once(&trusting()).unwrap();
    assert_eq!(wire.application_protocol(), Some(&b"postgresql"[..]));
    wire.enter("app", "postgres").unwrap();
    assert_eq!(wire.value("SELECT 'direct'"), "direct");
    let mut nameless = (*trusting()).clone();
    nameless.alpn_protocols.clear();
    let mut wire = Wire::connect(secured.pooler.address()).unwrap();
    wire.encrypt_at_once(&Arc::new(nameless)).unwrap();
    wire.enter("app", "postgres").unwrap();
}

#[test]
fn bytes_stuffed_in_before_the_handshake_are_refused() {
    let secured = Secured::start(|ini| {
        ini.set("client_tls_sslmode", "prefer");
    });
    let startup = frontend::startup(&[("user", "app"), ("database", "postgres")]);
    let mut client = Wire::connect(secured.pooler.address()).unwrap();
    client.send(&[frontend::packet(80_877_103, &[]), startup].concat());
    let reply = client.read_message().unwrap();
    assert_eq!(
        reply.field('M').unwrap(),
        "received unencrypted data after SSL request"
    );
    assert!(client.ended());
}

#[test]
fn a_request_inside_of_tls_ends_the_connection() {
    let secured = Secured::start(|_| ());
    for code in [80_877_103, 80_877_104] {
        let mut wire = Wire::connect(secured.pooler.address()).unwrap();
        wire.encrypt(&trusting()).unwrap();
        wire.send(&frontend::packet(code, &[]));
        assert_eq!(wire.read_byte(), None);
    }
}

#[test]
fn clients_show_certificates_where_they_must() {
    let secured = Secured::start(|ini| {
        ini.set("client_tls_sslmode", "verify-full");
    });
    let ours = authority().issue("app", &[]);
    let [certificate, key] = ours.files(&secured.directory, "app");
    secured.psql_comes_in(
        "app",
        &format!(
            "sslmode=verify-full sslcert={} sslkey={}",
            certificate.display(),
            key.display()
        ),
    );
    assert!(secured.login("app", "postgres").is_err(), "without any");
    let stranger = Authority::new("a stranger").issue("app", &[]);
    let config = authority().client(Some(&stranger));
    assert!(Wire::login_encrypted(secured.pooler.address(), &config, "app", "postgres").is_err());
    wait_until("the log says why", || {
        let log = secured.pooler.log();
        log.contains("TLS handshake error: certificate verify failed")
            && log.contains("TLS handshake error: peer sent no certificates")
    });
}

#[test]
fn a_certificate_in_the_users_name_is_a_login() {
    let secured = Secured::start(|ini| {
        ini.set("client_tls_sslmode", "verify-full")
            .set("auth_type", "cert");
    });
    let login = |common_name: &str, user: &str| {
        let identity = authority().issue(common_name, &[]);
        let config = authority().client(Some(&identity));
        Wire::login_encrypted(secured.pooler.address(), &config, user, "postgres")
    };
    assert_eq!(
        login("app", "app").unwrap().value("SELECT current_user"),
        "app"
    );
    for (common_name, user) in [("app", "other"), ("App", "app"), ("nobody", "nobody")] {
        let refusal = login(common_name, user).err().unwrap();
        assert_eq!(refusal.text(), "certificate authentication failed");
    }
}

#[test]
fn scram_binds_to_the_connection_on_both_sides() {
    let secured = Secured::start(|ini| {
        ini.set("auth_type", "scram-sha-256");
    });
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        secured.psql_comes_in(
            "scram_user",
            &format!("sslmode=require channel_binding=require ssl_max_protocol_version={protocol}"),
        );
    }
    secured.psql_comes_in("scram_user", "sslmode=require channel_binding=disable");
    // By hand, without binding.
    assert!(secured.login("scram_user", "postgres").is_ok());
}

#[test]
fn a_login_with_the_clients_own_keys_reaches_the_server() {
    // The pooler knows the verifier only; PostgreSQL offers SCRAM-SHA-256-PLUS on its side.
    let verifier = tls_postgres().value(
        "postgres",
        "SELECT rolpassword FROM pg_authid WHERE rolname = 'scram_user'",
    );
    let secured = Secured::start(|ini| {
        ini.set("auth_type", "scram-sha-256")
            .secret("scram_user", &verifier);
    });
    secured.psql_comes_in("scram_user", "sslmode=require channel_binding=require");
}

#[test]
fn a_cancel_request_goes_through_tls_on_both_sides() {
    let secured = Secured::start(|_| ());
    let database = tls_postgres().database("cancel");
    let mut client = secured.connect(&database);
    for encrypted in [true, false] {
        client.send(&frontend::query("SELECT pg_sleep(60)"));
        wait_until("the query runs", || {
            tls_postgres().sessions(&database, "active") == 1
        });
        let mut wire = Wire::connect(secured.pooler.address()).unwrap();
        // Old clients send it in clear, whatever else they do.
        if encrypted {
            wire.encrypt(&trusting()).unwrap();
        }
        wire.send(&frontend::cancel(client.pid, &client.key));
        assert!(wire.ended());
        assert_eq!(error(&client.read_until_ready()).sqlstate(), "57014");
    }
    assert_eq!(client.value("SELECT 'goes on'"), "goes on");
}

#[test]
fn large_values_pass_both_ways() {
    const SIZE: usize = 24 << 20;
    let secured = Secured::start(|_| ());
    let mut client = secured.connect("postgres");
    let replies = client.query(&format!("SELECT repeat('x', {SIZE})"));
    assert_eq!(replies[1].body.len(), SIZE + 6);
    assert!(replies[1].body[6..].iter().all(|byte| *byte == b'x'));
    let value = vec![b'y'; SIZE];
    client.send_all(&[
        frontend::parse("", "SELECT length($1), md5($1)", &[25]),
        frontend::bind("", "", &[Some(value)]),
        frontend::execute("", 0),
        frontend::sync(),
    ]);
    let replies = client.read_until_ready();
    let row = replies.iter().find(|message| message.tag == b'D').unwrap();
    assert_eq!(row.values()[0], Some(SIZE.to_string()));
    // Many small rows, which are many small messages in few records.
    let rows = client.rows("SELECT generate_series(1, 200000)").rows;
    assert_eq!(rows.len(), 200_000);
    assert_eq!(rows[199_999][0].as_deref(), Some("200000"));
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody_and_gets_all_in_the_end() {
    let secured = Secured::start(|ini| {
        ini.set("default_pool_size", 2);
    });
    let mut slow = secured.connect("postgres");
    slow.send(&frontend::query(
        "SELECT repeat('z', 1000) FROM generate_series(1, 30000)",
    ));
    let mut quick = secured.connect("postgres");
    for _ in 0..50 {
        assert_eq!(quick.value("SELECT 1"), "1");
    }
    let replies = slow.read_until_ready();
    assert_eq!(
        replies.iter().filter(|reply| reply.tag == b'D').count(),
        30_000
    );
}

#[test]
fn many_clients_share_encrypted_servers() {
    let secured = Secured::start(|ini| {
        ini.set("default_pool_size", 2);
    });
    std::thread::scope(|scope| {
        for number in 0..8 {
            let secured = &secured;
            scope.spawn(move || {
                let mut client = secured.connect("postgres");
                for round in 0..50 {
                    let text = format!("{number}-{round}");
                    client.send_all(&[
                        frontend::parse("name", "SELECT $1::text", &[]),
                        frontend::bind("", "name", &[Some(text.clone().into_bytes())]),
                        frontend::execute("", 0),
                        frontend::close(b'S', "name"),
                        frontend::sync(),
                    ]);
                    let replies = client.read_until_ready();
                    let row = replies.iter().find(|message| message.tag == b'D').unwrap();
                    assert_eq!(row.values(), [Some(text)]);
                }
            });
        }
    });
    assert!(tls_postgres().sessions("postgres", "idle") >= 1);
}

#[test]
fn the_console_and_the_log_say_what_is_encrypted_and_how() {
    let secured = Secured::start(|ini| {
        ini.set("client_tls_protocols", "tlsv1.3")
            .set("server_tls_protocols", "tlsv1.2");
    });
    let _client = {
        let mut client = secured.connect("postgres");
        client.rows("SELECT 1");
        client
    };
    let mut console = secured.login("postgres", "pgbouncer").unwrap();
    let clients = console.rows("SHOW CLIENTS");
    let row = clients.find("database", "postgres").unwrap();
    let tls = clients.get(row, "tls");
    assert!(tls.starts_with("TLSv1.3/TLS_AES_"), "{tls}");
    let servers = console.rows("SHOW SERVERS");
    let server_tls = servers.get(0, "tls");
    assert!(
        server_tls.starts_with("TLSv1.2/ECDHE-ECDSA-"),
        "{server_tls}"
    );
    let log = secured.pooler.log();
    assert!(
        log.contains(&format!("login attempt: db=postgres user=app tls={tls} ")),
        "{log}"
    );
    assert!(
        log.contains(&format!("SSL established: {server_tls}")),
        "{log}"
    );
}

#[test]
fn new_certificates_hold_for_new_connections() {
    let secured = Secured::start(|_| ());
    let mut old = secured.connect("postgres");
    old.rows("SELECT 1");
    let next = Authority::new("the next authority");
    next.issue("a pooler", &["localhost"])
        .write(&secured.directory, "pooler");
    secured.pooler.reload();
    let address = secured.pooler.address();
    wait_until("the new certificate is shown", || {
        Wire::login_encrypted(address, &next.client(None), "app", "postgres").is_ok()
    });
    assert!(
        secured.login("app", "postgres").is_err(),
        "it is another one now"
    );
    assert_eq!(old.value("SELECT 'still here'"), "still here");
}

#[test]
fn files_that_make_no_sense_change_nothing() {
    let mut secured = Secured::start(|_| ());
    let mut client = secured.connect("postgres");
    std::fs::write(secured.directory.join("pooler.key"), "no key").unwrap();
    secured.pooler.rewrite(|ini| {
        ini.set("query_wait_timeout", 7);
    });
    let mut console = secured.login("postgres", "pgbouncer").unwrap();
    let replies = console.query("RELOAD");
    assert_eq!(error(&replies).sqlstate(), "F0000");
    wait_until("the log says why", || {
        secured
            .pooler
            .log()
            .contains("TLS setup failed: client_tls_key_file = ")
    });
    let rows = console.rows("SHOW CONFIG");
    assert_eq!(
        rows.get(rows.find("key", "query_wait_timeout").unwrap(), "value"),
        "120"
    );
    assert_eq!(client.value("SELECT 1"), "1");
    assert_eq!(secured.connect("postgres").value("SELECT 2"), "2");
}

#[test]
fn a_process_whose_files_make_no_sense_does_not_start() {
    let mut pooler = Pooler::launch(|ini| {
        ini.set("client_tls_sslmode", "require")
            .set("client_tls_key_file", "/nonexistent.key")
            .set("client_tls_cert_file", "/nonexistent.crt");
    });
    assert!(!pooler.wait().success());
    assert!(
        pooler
            .log()
            .contains("TLS setup failed: client_tls_key_file = /nonexistent.key: No such file"),
        "{}",
        pooler.log()
    );
}

/// The error of a query over servers that can't be had.
fn refused_server(change: impl FnOnce(&mut Ini)) -> String {
    let pooler = Pooler::start(|ini| {
        ini.target("*", &tls_target()).set("query_wait_timeout", 2);
        change(ini);
    });
    let refusal = pooler.login("app", "postgres", None).err().unwrap();
    format!("{}\n{}", refusal.text(), pooler.log())
}

fn root_file() -> String {
    let path = process::directory().join("root.crt");
    authority().write(&path);
    path.display().to_string()
}

#[test]
fn a_server_must_be_who_it_should_be() {
    let verifies = |mode: &str, host: &str, authority: &str| {
        let pooler = Pooler::start(|ini| {
            let target = format!("host={host} port={}", tls_postgres().port());
            ini.target("*", &target)
                .set("server_tls_sslmode", mode)
                .set("server_tls_ca_file", authority)
                .set("query_wait_timeout", 2);
        });
        let came_in = pooler.login("app", "postgres", None).is_ok();
        (came_in, pooler.log())
    };
    let (ours, directory) = (root_file(), process::directory());
    Authority::new("a stranger").write(&directory.join("root.crt"));
    let strangers = directory.join("root.crt").display().to_string();
    assert!(verifies("verify-full", "localhost", &ours).0);
    assert!(verifies("verify-ca", "127.0.0.1", &ours).0);
    assert!(verifies("require", "127.0.0.1", &strangers).0);
    for (mode, host, file) in [
        ("verify-full", "127.0.0.1", &ours),
        ("verify-ca", "localhost", &strangers),
    ] {
        let (came_in, log) = verifies(mode, host, file);
        assert!(!came_in, "{mode} {host}");
        assert!(log.contains("certificate verify failed"), "{log}");
    }
}

#[test]
fn a_server_may_be_its_own_authority() {
    let certificate = tls_postgres().directory().join("data/server.crt");
    let copy = process::directory().join("server.crt");
    std::fs::copy(certificate, &copy).unwrap();
    process::hand_over(&copy);
    let pooler = Pooler::start(|ini| {
        ini.target("*", &tls_target())
            .set("server_tls_sslmode", "verify-full")
            .set("server_tls_ca_file", copy.display());
    });
    assert_eq!(pooler.connect("postgres").value("SELECT 1"), "1");
}

#[test]
fn a_server_without_tls_is_used_where_it_is_preferred_only() {
    let plain = format!("host=localhost port={}", crate::support::postgres().port());
    for mode in ["allow", "prefer"] {
        let pooler = Pooler::start(|ini| {
            ini.target("*", &plain).set("server_tls_sslmode", mode);
        });
        let mut client = pooler.connect("postgres");
        assert_eq!(
            client.value("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"),
            "f"
        );
    }
    let text = refused_server(|ini| {
        ini.target("*", &plain).set("server_tls_sslmode", "require");
    });
    assert!(text.contains("server refused SSL"), "{text}");
}

#[test]
fn a_server_that_can_is_preferred_with_tls_and_disabled_without() {
    for (mode, ssl) in [
        ("disable", "f"),
        ("allow", "t"),
        ("prefer", "t"),
        ("require", "t"),
    ] {
        let pooler = Pooler::start(|ini| {
            ini.target("*", &tls_target())
                .set("server_tls_sslmode", mode);
        });
        let mut client = pooler.connect("postgres");
        let query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        assert_eq!(client.value(query), ssl, "{mode}");
    }
}

#[test]
fn bytes_stuffed_in_by_a_server_before_the_handshake_are_refused() {
    let server = Scripted::start(|_, session| {
        session.read_request();
        session.send(b"SR\0\0\0\x08\0\0\0\0");
        session.hang();
    });
    let text = refused_server(|ini| {
        ini.target("*", &server.target())
            .set("server_tls_sslmode", "require");
    });
    assert!(
        text.contains("received unencrypted data after SSL response"),
        "{text}"
    );
}

#[test]
fn the_pooler_shows_its_certificate_to_the_server() {
    let directory = process::directory();
    authority().issue("other", &[]).write(&directory, "us");
    let pooler = Pooler::start(|ini| {
        ini.target("*", &tls_target())
            .set("server_tls_sslmode", "require")
            .set("server_tls_key_file", directory.join("us.key").display())
            .set("server_tls_cert_file", directory.join("us.crt").display());
    });
    let mut client = pooler.login("other", "postgres", None).unwrap();
    assert_eq!(client.value("SELECT current_user"), "other");
}

#[test]
fn another_setup_towards_servers_replaces_them_when_they_are_free() {
    let mut pooler = Pooler::start(|ini| {
        ini.target("*", &tls_target())
            .set("server_tls_sslmode", "disable");
    });
    let query = "SELECT ssl, pg_backend_pid() FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let mut client = pooler.connect("postgres");
    let mut inside = pooler.connect("postgres");
    let before = client.rows(query).rows;
    inside.rows("BEGIN");
    assert_eq!(inside.rows(query).get(0, "ssl"), "f");
    pooler.reconfigure(|ini| {
        ini.set("server_tls_sslmode", "require");
    });
    assert_eq!(inside.rows(query).get(0, "ssl"), "f", "a transaction stays");
    inside.rows("COMMIT");
    assert_eq!(client.rows(query).get(0, "ssl"), "t");
    let after = client.rows(query).rows;
    assert_ne!(before, after);
    // The same again changes nothing.
    pooler.console("RELOAD");
    assert_eq!(client.rows(query).rows, after);
}

#[test]
fn a_server_whose_handshake_fails_is_used_without_tls_where_it_is_only_preferred() {
    let server = Scripted::start(|number, session| {
        if number == 0 {
            session.read_request();
            session.send(b"S");
            session.read_exact(5);
            session.send(b"this is no TLS at all");
            session.hang();
        } else {
            session.accept_login();
            session.hang();
        }
    });
    let pooler = Pooler::start(|ini| {
        ini.set("follow_functions", 0).target("*", &server.target());
    });
    assert!(pooler.login("app", "postgres", None).is_ok());
    assert!(
        pooler.log().contains("going on without TLS"),
        "{}",
        pooler.log()
    );
}

#[test]
fn settings_that_do_not_fit_together_yet_are_set_all_the_same() {
    let secured = Secured::start(|ini| {
        ini.set("client_tls_sslmode", "prefer");
    });
    let mut console = secured.login("postgres", "pgbouncer").unwrap();
    let replies = console.query("SET client_tls_key_file = '/nonexistent'");
    let notice = replies.iter().find(|reply| reply.tag == b'N').unwrap();
    assert_eq!(
        notice.field('M').unwrap(),
        "TLS settings could not be applied, still using old configuration"
    );
    assert!(replies.iter().all(|reply| reply.tag != b'E'), "{replies:?}");
    assert_eq!(secured.connect("postgres").value("SELECT 1"), "1");
    let key = secured.file("pooler.key");
    console.query(&format!("SET client_tls_key_file = '{key}'"));
    let replies = console.query("SET client_tls_sslmode = 'require'");
    assert!(replies.iter().all(|reply| reply.tag != b'E'), "{replies:?}");
    let refusal = secured.pooler.login("app", "postgres", None).err().unwrap();
    assert_eq!(refusal.text(), "SSL required");
    // Certificates would have to be verified for this one.
    let replies = console.query("SET auth_type = 'cert'");
    error(&replies);
}
