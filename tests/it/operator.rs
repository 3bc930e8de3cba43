//! The operator's commands: `pgferry show`, `check`, `health` and `top`.

use std::path::Path;
use std::process::{Command, Output};

use nix::sys::signal::Signal;

use crate::support::pooler::Ini;
use crate::support::ports::free_port;
use crate::support::postgres::password;
use crate::support::process;
use crate::support::tls::authority;
use crate::support::{Pooler, postgres, wait_until};

/// Runs the program as whoever runs the tests: a command is no pooler, so root may.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgferry"));
    for name in ["PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "HTTP_LISTEN"] {
        command.env_remove(name);
    }
    command
        .args(arguments)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// The exit code, and what was said on both outputs.
fn said(output: &Output) -> (i32, String) {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(text).unwrap(),
    )
}

fn pooler(change: impl FnOnce(&mut Ini)) -> (Pooler, String) {
    let pooler = Pooler::start(change);
    let file = pooler.directory().join("pooler.ini").display().to_string();
    (pooler, file)
}

#[test]
fn show_prints_what_the_console_says_in_three_forms() {
    let (pooler, file) = pooler(|_| ());
    let database = postgres().database("operator");
    let _client = pooler.connect(&database);
    let port = pooler.address().port().to_string();
    let options = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
    let (code, text) = said(&run(&[&["show", "pools"][..], &options].concat(), &[]));
    assert_eq!(code, 0, "{text}");
    assert!(
        text.starts_with("database") && text.contains(&database),
        "{text}"
    );
    let (code, text) = said(&run(&["show", "POOLS", "-c", &file, "-f", "json"], &[]));
    assert_eq!(code, 0, "{text}");
    let wanted = format!("{{\"database\": \"{database}\", \"user\": \"app\", \"cl_active\": ");
    assert!(text.starts_with("[\n") && text.contains(&wanted), "{text}");
    let url = pooler.url("pgbouncer").replace("app@", "postgres@");
    let (code, text) = said(&run(&["show", "VERSION", "--url", &url, "-f", "csv"], &[]));
    assert_eq!(code, 0, "{text}");
    assert!(text.starts_with("version\r\npgferry "), "{text}");
}

#[test]
fn show_logs_in_by_password_md5_and_scram() {
    for method in ["plain", "md5", "scram-sha-256"] {
        let (pooler, file) = pooler(|ini| {
            ini.set("auth_type", method);
        });
        let port = pooler.address().port().to_string();
        let options = ["show", "state", "-p", &port, "-U", "postgres"];
        let right = password("postgres");
        let (code, text) = said(&run(&options, &[("PGPASSWORD", &right)]));
        assert_eq!(code, 0, "{method}: {text}");
        // Name and secret from the pooler's own files.
        let (code, text) = said(&run(&["show", "state", "--config", &file], &[]));
        assert_eq!(code, 0, "{method}: {text}");
        let (code, text) = said(&run(&options, &[("PGPASSWORD", "wrong")]));
        assert_eq!(code, 1);
        assert!(text.starts_with("pgferry: FATAL: "), "{method}: {text}");
        assert!(!text.contains("wrong"), "{text}");
    }
}

#[test]
fn show_comes_in_by_the_unix_socket_and_by_tls() {
    let (pooler, file) = pooler(|ini| {
        ini.set("unix_socket_dir", ".")
            .set("auth_type", "scram-sha-256");
    });
    let folder = pooler.directory().display().to_string();
    let port = pooler.address().port().to_string();
    let options = [
        "show", "state", "-h", &folder, "-p", &port, "-U", "postgres",
    ];
    let right = password("postgres");
    let (code, text) = said(&run(&options, &[("PGPASSWORD", &right)]));
    assert_eq!(code, 0, "{text}");
    drop((pooler, file));

    let files = process::directory();
    let hosts = ["localhost", "127.0.0.1"];
    authority()
        .issue("a pooler", &hosts)
        .write(&files, "pooler");
    authority().write(&files.join("root.crt"));
    let path = |name: &str| files.join(name).display().to_string();
    let pooler = Pooler::start(|ini| {
        ini.set("client_tls_sslmode", "require")
            .set("client_tls_key_file", path("pooler.key"))
            .set("client_tls_cert_file", path("pooler.crt"))
            .set("auth_type", "scram-sha-256");
    });
    let port = pooler.address().port();
    let url = |mode: &str, root: &str| {
        let user = format!("postgres:{right}");
        format!("postgres://{user}@localhost:{port}/pgbouncer?sslmode={mode}&sslrootcert={root}")
    };
    for mode in ["prefer", "require", "verify-full"] {
        let (code, text) = said(&run(
            &["show", "state", "--url", &url(mode, &path("root.crt"))],
            &[],
        ));
        assert_eq!(code, 0, "{mode}: {text}");
    }
    let (code, text) = said(&run(&["show", "state", "--url", &url("disable", "")], &[]));
    assert_eq!((code, text.as_str()), (1, "pgferry: FATAL: SSL required\n"));
    let _ = std::fs::remove_dir_all(files);
}

#[test]
fn what_fails_is_one_line_and_1() {
    let (pooler, _) = pooler(|_| ());
    let port = pooler.address().port().to_string();
    let options = ["-p", &port, "-U", "postgres"];
    let (code, text) = said(&run(&[&["show", "nothing"][..], &options].concat(), &[]));
    assert_eq!(code, 1);
    assert!(text.starts_with("pgferry: ERROR: "), "{text}");
    let free = free_port().to_string();
    let (code, text) = said(&run(&["show", "pools", "-p", &free, "-U", "x"], &[]));
    assert_eq!(code, 1);
    let wanted = format!("pgferry: could not connect to 127.0.0.1:{free}: ");
    assert!(
        text.starts_with(&wanted) && text.lines().count() == 1,
        "{text}"
    );
}

#[test]
fn check_tells_the_file_the_line_and_the_setting() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.ini");
    let check = || said(&run(&["check", file.to_str().unwrap()], &[]));
    std::fs::write(&file, "[pgbouncer]\nlisten_addr = *\n").unwrap();
    assert_eq!(check(), (0, "configuration is valid\n".to_owned()));
    std::fs::write(&file, "[pgbouncer]\npool_mode = x\n").unwrap();
    let (code, text) = check();
    assert_eq!(code, 1);
    let place = format!("{}:2: [pgbouncer] pool_mode = x: ", file.display());
    assert!(text.contains(&place), "{text}");
}

#[test]
fn a_file_of_that_name_is_the_poolers_configuration() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("show"), "[nothing]\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pgferry"))
        .arg("show")
        .current_dir(folder.path())
        .output()
        .unwrap();
    let (code, text) = said(&output);
    assert_eq!(code, 1);
    assert!(text.starts_with("FATAL show:1: "), "{text}");
}

#[test]
fn health_is_readiness() {
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let (pooler, file) = pooler(|ini| {
        ini.set("http_listen", &address);
    });
    let database = postgres().database("operator");
    let mut client = pooler.connect(&database);
    client.rows("SELECT 1");
    let url = format!("http://{address}/readyz");
    for arguments in [&["health", &url][..], &["health", "--config", &file]] {
        assert_eq!(said(&run(arguments, &[])), (0, String::new()));
    }
    let listen = format!(":{port}");
    assert_eq!(said(&run(&["health"], &[("HTTP_LISTEN", &listen)])).0, 0);
    pooler.signal(Signal::SIGTERM);
    wait_until("it is not ready any more", || {
        said(&run(&["health", &url], &[])).0 == 1
    });
    let (code, text) = said(&run(&["health", &url], &[]));
    assert_eq!(code, 1);
    assert!(
        text.starts_with("pgferry: not ready: HTTP/1.1 503"),
        "{text}"
    );
    let (code, text) = said(&run(&["health"], &[]));
    assert_eq!(code, 1);
    assert!(text.contains("http_listen is not set"), "{text}");
}

#[test]
fn top_is_looked_for_beside_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("pgferry");
    std::fs::copy(env!("CARGO_BIN_EXE_pgferry"), &alone).unwrap();
    let (code, text) = said(&Command::new(&alone).arg("top").output().unwrap());
    assert_eq!(code, 1);
    let beside = folder.path().join("pgferry-top");
    assert!(
        text.contains(&format!("could not run {}", beside.display())),
        "{text}"
    );
    script(&beside, "#!/bin/sh\necho \"$@\"; exit 7\n");
    let output = Command::new(&alone)
        .args(["top", "-p", "7"])
        .output()
        .unwrap();
    assert_eq!(said(&output), (7, "-p 7\n".to_owned()));
}

fn script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}
