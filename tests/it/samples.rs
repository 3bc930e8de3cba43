//! Configurations that images, operators and packages of PgBouncer make, in `tests/samples`: pgferry starts with
//! them as they are, without a complaint, and their users come in as they do there.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::User;

use crate::support::pooler::binary;
use crate::support::ports::free_port;
use crate::support::postgres::{Postgres, password, tls_postgres};
use crate::support::process::{account, directory, hand_over};
use crate::support::tls::authority;
use crate::support::{Pooler, Wire, postgres};

/// A sample in a directory of its own, which stands for `/`.
struct Sample {
    root: PathBuf,
    port: u16,
}

impl Sample {
    /// Copies the sample and makes these folders beside its own. Paths to any of them are put below the directory,
    /// `listen` becomes a free port and `target` the address of the server; more texts may be replaced.
    fn new(
        (name, folders): (&str, &[&str]),
        (listen, (target, server)): (&str, (&str, &Postgres)),
        more: &[(&str, &str)],
    ) -> Self {
        let (root, port) = (directory(), free_port());
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/samples")
            .join(name);
        let mut texts = Vec::new();
        read_all(&source, &source, &mut texts);
        let own = [
            (
                listen,
                listen
                    .trim_end_matches(|c: char| c.is_ascii_digit())
                    .to_owned()
                    + "PORT",
            ),
            (target, address(target, server)),
        ];
        let more = more.iter().map(|(from, to)| (*from, (*to).to_owned()));
        for (from, to) in own.into_iter().chain(more) {
            let to = to.replace("PORT", &port.to_string());
            assert!(
                texts.iter().any(|(_, text)| text.contains(from)),
                "{name} has no {from}"
            );
            for (_, text) in &mut texts {
                *text = text.replace(from, &to);
            }
        }
        let of_files = texts
            .iter()
            .filter_map(|(place, _)| place.parent()?.to_str());
        let mut folders: Vec<String> = of_files
            .chain(folders.iter().copied())
            .map(str::to_owned)
            .collect();
        // The longest first, since one may be within another.
        folders.sort_by_key(|folder| (Reverse(folder.len()), folder.clone()));
        folders.dedup();
        for folder in &folders {
            fs::create_dir_all(root.join(folder)).unwrap();
            // Those above it, too: who may not write there can't remove them either.
            let above = root.join(folder);
            let inside = above.ancestors().take_while(|path| *path != root);
            inside.for_each(hand_over);
        }
        for (place, mut text) in texts {
            for folder in &folders {
                // Marked, so that what has been replaced is not replaced again.
                let here = root.join(folder).display().to_string().replace('/', "\0");
                text = text.replace(&format!("/{folder}"), &here);
            }
            fs::write(root.join(&place), text.replace('\0', "/")).unwrap();
            hand_over(&root.join(&place));
        }
        Self { root, port }
    }

    fn certificate(&self, folder: &str, name: &str) {
        let identity = authority().issue("localhost", &["localhost", "127.0.0.1"]);
        identity.write(&self.root.join(folder), name);
    }

    fn authority(&self, file: &str) {
        authority().write(&self.root.join(file));
    }

    /// Starts the pooler with this file; it may complain about nothing.
    fn start(self, file: &str) -> Pooler {
        let file = self.root.join(file);
        let arguments = [binary().to_str().unwrap(), file.to_str().unwrap()];
        let pooler = Pooler::start_in(self.root, self.port, &arguments);
        let log = pooler.log();
        let complains = |line: &&str| {
            ["WARNING", "ERROR", "FATAL"]
                .iter()
                .any(|level| line.contains(&format!("] {level} ")))
        };
        assert_eq!(log.lines().find(complains), None, "{log}");
        pooler
    }
}

fn read_all(folder: &Path, source: &Path, texts: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, source, texts);
        } else {
            let place = path.strip_prefix(source).unwrap().to_owned();
            texts.push((place, fs::read_to_string(path).unwrap()));
        }
    }
}

/// The server's address in the place of this one; a name stays one, for the sake of certificates.
fn address(target: &str, server: &Postgres) -> String {
    let host = if target.contains("127.0.0.1") {
        "127.0.0.1"
    } else {
        "localhost"
    };
    format!("host={host} port={}", server.port())
}

/// A role that has to show its password, `name` with `-secret` behind it.
fn role(server: &Postgres, name: &str, encryption: &str) {
    let sql = format!(
        "BEGIN; SET LOCAL password_encryption = '{encryption}';
         CREATE ROLE {name} LOGIN PASSWORD '{}' IN ROLE with_password; COMMIT",
        password(name)
    );
    server.sql("postgres", &sql);
}

/// A query with the right password, and none with another.
fn query_as(pooler: &Pooler, user: &str, database: &str) {
    let client = pooler.login(user, database, Some(&password(user)));
    check(client.unwrap_or_else(|refusal| panic!("{refusal:?}")), user);
    let refusal = pooler.login(user, database, Some("wrong")).err().unwrap();
    assert!(
        refusal.text().ends_with("authentication failed"),
        "{refusal:?}"
    );
}

fn encrypted(pooler: &Pooler, user: &str, database: &str) -> Wire {
    let client = Wire::login_encrypted(pooler.address(), &authority().client(None), user, database);
    client.unwrap_or_else(|refusal| panic!("{refusal:?}\n{}", pooler.log()))
}

fn check(mut client: Wire, user: &str) {
    for _ in 0..3 {
        assert_eq!(client.value("SELECT session_user"), user);
    }
}

fn refused_without_tls(pooler: &Pooler, user: &str) {
    let refusal = pooler
        .login(user, "postgres", Some(&password(user)))
        .err()
        .unwrap();
    assert_eq!(refusal.text(), "SSL required");
}

#[test]
fn bitnami() {
    let server = postgres();
    role(server, "customuser", "scram-sha-256");
    server.sql("postgres", "CREATE DATABASE customdatabase");
    let folder = "opt/bitnami/pgbouncer";
    let sample = Sample::new(
        (
            "bitnami",
            &[&format!("{folder}/tmp"), &format!("{folder}/logs"), "tmp"],
        ),
        ("listen_port=6432", ("host=postgresql port=5432", server)),
        &[],
    );
    let pooler = sample.start(&format!("{folder}/conf/pgbouncer.ini"));
    query_as(&pooler, "customuser", "customdatabase");
    let file = |name: &str| fs::read_to_string(pooler.directory().join(folder).join(name)).unwrap();
    assert!(file("logs/pgbouncer.log").contains("process up"));
    assert!(file("tmp/pgbouncer.pid").trim().parse::<u32>().is_ok());
    let console = pooler.login("customuser", "pgbouncer", Some(&password("customuser")));
    let pools = console.unwrap().rows("SHOW POOLS");
    assert!(pools.find("database", "customdatabase").is_some());
}

#[test]
fn edoburu() {
    let server = postgres();
    role(server, "edouser", "md5");
    server.sql("postgres", "CREATE DATABASE edodb");
    let account = User::from_uid(account().0).unwrap().unwrap().name;
    let sample = Sample::new(
        ("edoburu", &[]),
        ("listen_port = 5432", ("host=postgres port=5432", server)),
        &[("user = postgres", &format!("user = {account}"))],
    );
    query_as(
        &sample.start("etc/pgbouncer/pgbouncer.ini"),
        "edouser",
        "edodb",
    );
}

#[test]
fn the_variables_of_edoburus_image_do_what_its_file_does() {
    let server = postgres();
    role(server, "envuser", "scram-sha-256");
    server.sql("postgres", "CREATE DATABASE envdb");
    let (root, port) = (directory(), free_port());
    let variables = [
        ("DB_HOST", "127.0.0.1"),
        ("DB_PORT", &server.port().to_string()),
        ("DB_USER", "envuser"),
        ("DB_PASSWORD", &password("envuser")),
        ("DB_NAME", "envdb"),
        ("LISTEN_PORT", &port.to_string()),
        ("AUTH_TYPE", "scram-sha-256"),
        ("POOL_MODE", "transaction"),
        ("MAX_CLIENT_CONN", "1000"),
        ("DEFAULT_POOL_SIZE", "50"),
        ("IGNORE_STARTUP_PARAMETERS", "extra_float_digits"),
        ("ADMIN_USERS", "postgres,envuser"),
        ("SERVER_RESET_QUERY", "DISCARD ALL"),
        ("SERVER_TLS_SSLMODE", "prefer"),
        ("UNIX_SOCKET_DIR", ""),
    ];
    let variables = variables.map(|(name, value)| format!("{name}={value}"));
    let arguments: Vec<&str> = ["env"]
        .into_iter()
        .chain(variables.iter().map(String::as_str))
        .chain([binary().to_str().unwrap()])
        .collect();
    let pooler = Pooler::start_in(root, port, &arguments);
    query_as(&pooler, "envuser", "envdb");
    let console = pooler.login("envuser", "pgbouncer", Some(&password("envuser")));
    let config = console.unwrap().rows("SHOW CONFIG");
    let row = config.find("key", "default_pool_size").unwrap();
    assert_eq!(config.get(row, "value"), "50");
}

#[test]
fn cloudnativepg() {
    let server = tls_postgres();
    role(server, "cnpgapp", "scram-sha-256");
    server.sql(
        "postgres",
        "CREATE ROLE cnpg_pooler_pgbouncer LOGIN IN ROLE with_certificate;
         CREATE FUNCTION public.user_search(uname TEXT) RETURNS TABLE (usename name, passwd text) LANGUAGE sql
         SECURITY DEFINER AS 'SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename=$1';
         REVOKE ALL ON FUNCTION public.user_search(text) FROM public;
         GRANT EXECUTE ON FUNCTION public.user_search(text) TO cnpg_pooler_pgbouncer",
    );
    let folder = "controller/configs";
    let parts = ["client-ca", "client-tls", "server-ca", "server-tls"]
        .map(|part| format!("{folder}/{part}"));
    let mut folders: Vec<&str> = parts.iter().map(String::as_str).collect();
    folders.push("controller/run");
    let sample = Sample::new(
        ("cloudnativepg", &folders),
        ("listen_port = 5432", ("host=cluster-example-rw", server)),
        &[],
    );
    sample.authority(&format!("{folder}/client-ca/ca.crt"));
    sample.authority(&format!("{folder}/server-ca/ca.crt"));
    sample.certificate(&format!("{folder}/client-tls"), "tls");
    authority()
        .issue("cnpg_pooler_pgbouncer", &[])
        .write(&sample.root.join(folder).join("server-tls"), "tls");
    let pooler = sample.start(&format!("{folder}/pgbouncer.ini"));
    query_as(&pooler, "cnpgapp", "postgres");
    check(encrypted(&pooler, "cnpgapp", "postgres"), "cnpgapp");
    let socket = pooler.directory().join(format!(
        "controller/run/.s.PGSQL.{}",
        pooler.address().port()
    ));
    assert!(socket.exists());
}

#[test]
fn zalando() {
    let server = tls_postgres();
    role(server, "zalandoapp", "md5");
    role(server, "robot_zmon", "scram-sha-256");
    role(server, "pooler", "scram-sha-256");
    server.sql(
        "postgres",
        "CREATE SCHEMA pooler;
         CREATE FUNCTION pooler.user_lookup(in i_username text, out uname text, out phash text) RETURNS record AS $$
         BEGIN
             SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename = i_username INTO uname, phash;
             RETURN;
         END; $$ LANGUAGE plpgsql SECURITY DEFINER;
         REVOKE ALL ON FUNCTION pooler.user_lookup(text) FROM public, pooler;
         GRANT EXECUTE ON FUNCTION pooler.user_lookup(text) TO pooler;
         GRANT USAGE ON SCHEMA pooler TO pooler",
    );
    let folders = ["etc/ssl/certs", "var/log/pgbouncer", "var/run/pgbouncer"];
    let sample = Sample::new(
        ("zalando", &folders),
        (
            "listen_port = 5432",
            ("host=acid-minimal-cluster port=5432", server),
        ),
        &[],
    );
    sample.certificate("etc/ssl/certs", "pgbouncer");
    let pooler = sample.start("etc/pgbouncer/pgbouncer.ini");
    check(encrypted(&pooler, "zalandoapp", "postgres"), "zalandoapp");
    refused_without_tls(&pooler, "zalandoapp");
    let mut robot = encrypted(&pooler, "robot_zmon", "pgbouncer");
    assert!(
        robot
            .rows("SHOW POOLS")
            .find("user", "zalandoapp")
            .is_some()
    );
}

#[test]
fn crunchy() {
    let server = tls_postgres();
    role(server, "hippo", "scram-sha-256");
    role(server, "_crunchypgbouncer", "scram-sha-256");
    server.sql(
        "postgres",
        "CREATE SCHEMA pgbouncer;
         CREATE FUNCTION pgbouncer.get_auth(username TEXT) RETURNS TABLE(username TEXT, password TEXT) AS '
             SELECT rolname::TEXT, rolpassword::TEXT FROM pg_catalog.pg_authid
             WHERE pg_authid.rolname = $1 AND pg_authid.rolcanlogin AND NOT pg_authid.rolsuper
               AND NOT pg_authid.rolreplication AND pg_authid.rolname <> ''_crunchypgbouncer''
               AND (pg_authid.rolvaliduntil IS NULL OR pg_authid.rolvaliduntil >= CURRENT_TIMESTAMP)
         ' LANGUAGE SQL STABLE SECURITY DEFINER;
         REVOKE ALL ON FUNCTION pgbouncer.get_auth(TEXT) FROM public;
         GRANT USAGE ON SCHEMA pgbouncer TO _crunchypgbouncer;
         GRANT EXECUTE ON FUNCTION pgbouncer.get_auth(TEXT) TO _crunchypgbouncer",
    );
    let folder = "etc/pgbouncer/~postgres-operator";
    let sample = Sample::new(
        ("crunchy", &[]),
        (
            "listen_port = 5432",
            ("host=hippo-primary port=5432", server),
        ),
        &[],
    );
    sample.authority(&format!("{folder}/frontend-ca.crt"));
    sample.authority(&format!("{folder}/backend-ca.crt"));
    sample.certificate(folder, "frontend-tls");
    let pooler = sample.start(&format!("{folder}.ini"));
    check(encrypted(&pooler, "hippo", "postgres"), "hippo");
    refused_without_tls(&pooler, "hippo");
}

#[test]
fn stackgres() {
    let server = postgres();
    role(server, "stackapp", "scram-sha-256");
    role(server, "authenticator", "scram-sha-256");
    server.sql("postgres", "ALTER ROLE authenticator SUPERUSER");
    let sample = Sample::new(
        ("stackgres", &["var/run/postgresql"]),
        ("listen_port = 5433", ("host=127.0.0.1 port=5434", server)),
        &[],
    );
    query_as(
        &sample.start("etc/pgbouncer/pgbouncer.ini"),
        "stackapp",
        "postgres",
    );
}

#[test]
fn debian() {
    let server = postgres();
    role(server, "shopuser", "md5");
    server.sql("postgres", "CREATE DATABASE shop");
    let sample = Sample::new(
        ("debian", &["var/log/postgresql", "var/run/postgresql"]),
        ("listen_port = 6432", ("host=localhost port=5432", server)),
        &[],
    );
    let pooler = sample.start("etc/pgbouncer/pgbouncer.ini");
    query_as(&pooler, "shopuser", "shop");
}

#[test]
fn rpm_of_postgresqls_repository() {
    let server = postgres();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/samples/pgdg-rpm/etc/pgbouncer/userlist.txt");
    let list = fs::read_to_string(source).unwrap();
    let verifier = list.split('"').nth(3).unwrap();
    let sql = format!("CREATE ROLE rpmuser LOGIN PASSWORD '{verifier}' IN ROLE with_password");
    server.sql("postgres", &sql);
    server.sql("postgres", "CREATE DATABASE rpmshop");
    let sample = Sample::new(
        ("pgdg-rpm", &["var/log/pgbouncer", "var/run/pgbouncer"]),
        ("listen_port = 6432", ("host=127.0.0.1 port=5432", server)),
        &[],
    );
    query_as(
        &sample.start("etc/pgbouncer/pgbouncer.ini"),
        "rpmuser",
        "rpmshop",
    );
}
