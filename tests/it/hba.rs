//! `auth_type = hba`: which line is for whom, what it asks for, and what a reload changes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::support::pooler::{Ini, run_once};
use crate::support::postgres::password;
use crate::support::{Message, Pooler, frontend, wait_until};

/// The console's line comes first: the tests ask it.
const CONSOLE: &str = "host pgbouncer postgres 127.0.0.1/32 trust\n";

fn set_rules(ini: &mut Ini, rules: &str) {
    ini.set("auth_type", "hba")
        .set("auth_hba_file", "hba.conf")
        .file("hba.conf", &format!("{CONSOLE}{rules}"));
}

/// "in", or the error that the client was told.
fn outcome(pooler: &Pooler, user: &str, database: &str, secret: &str) -> String {
    match pooler.login(user, database, Some(secret)) {
        Ok(mut client) => {
            assert_eq!(client.value("SELECT 1"), "1");
            "in".to_owned()
        }
        Err(refusal) => refusal.text(),
    }
}

#[test]
fn the_first_line_for_a_client_decides_how_it_logs_in() {
    let pooler = Pooler::start(|ini| {
        let rules = r#"
local   all       all                                  trust
hostssl all       all           all                    trust
host    other_db  all           all                    trust
host    all       app           127.0.0.1/32           trust
host    postgres  scram_user    samehost               scram-sha-256
host    all       @names        127.0.0.0 255.0.0.0    password
host    postgres  "/^md5_"      samenet                md5
host    all       other         all                    reject
host    all       other,/^ghost all                    scram-sha-256
host    all       /^spectre     all                    md5
host    all       spirit        all                    trust
host    all       soul          all                    cert
host    all       postgres      10.0.0.0/8             trust
"#;
        set_rules(ini, rules);
        ini.file("names", "nobody, # and\nplain_user\n");
    });
    let wrong = "password authentication failed";
    let table = [
        ("app", "", "in"),
        ("scram_user", &password("scram_user"), "in"),
        ("scram_user", "wrong", "SASL authentication failed"),
        ("plain_user", &password("plain_user"), "in"),
        ("plain_user", "wrong", wrong),
        ("md5_user", &password("md5_user"), "in"),
        ("md5_user", "wrong", wrong),
        ("other", &password("other"), "login rejected"),
        ("ghost_1", "x", "SASL authentication failed"),
        ("spectre", "x", wrong),
        ("spirit", "x", "\"trust\" authentication failed"),
        ("soul", "x", "certificate authentication failed"),
        ("postgres", "", "no authentication method is found"),
        ("stranger", "", "no authentication method is found"),
    ];
    for (user, secret, expected) in table {
        assert_eq!(
            outcome(&pooler, user, "postgres", secret),
            expected,
            "{user}"
        );
    }
    assert_eq!(
        outcome(&pooler, "scram_user", "template1", "x"),
        "no authentication method is found"
    );
}

#[test]
fn the_console_has_one_name_in_the_rules_however_it_is_called() {
    let pooler = Pooler::start(|ini| {
        let rules = "host pgbouncer other all reject\nhost all all all trust\n";
        set_rules(ini, rules);
        ini.set("stats_users", "other, app");
    });
    for name in ["pgbouncer", "pgferry", "pgcat"] {
        assert_eq!(
            pooler.login("other", name, None).err().unwrap().text(),
            "login rejected",
            "{name}"
        );
    }
    assert!(pooler.login("app", "pgferry", None).is_ok());
    assert_eq!(outcome(&pooler, "other", "postgres", ""), "in");
}

/// Logs in over the Unix socket: "in", or the error that the client was told. No message but the first is sent.
fn by_socket(pooler: &Pooler, user: &str) -> String {
    let mut stream = UnixStream::connect(pooler.socket()).unwrap();
    stream
        .write_all(&frontend::startup(&[
            ("user", user),
            ("database", "postgres"),
        ]))
        .unwrap();
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    let length = u32::from_be_bytes(head[1..].try_into().unwrap());
    let mut body = vec![0; usize::try_from(length).unwrap() - 4];
    stream.read_exact(&mut body).unwrap();
    let message = Message { tag: head[0], body };
    match message.tag {
        b'R' if message.body == [0; 4] => "in".to_owned(),
        b'E' => message.field('M').unwrap(),
        _ => format!("{message:?}"),
    }
}

#[test]
fn peer_lets_in_the_users_of_the_system_that_the_map_names() {
    let system = nix::unistd::User::from_uid(nix::unistd::geteuid())
        .unwrap()
        .unwrap()
        .name;
    let pooler = Pooler::start(|ini| {
        let rules = "
local all app,scram_user,ghost peer map=tests
local all md5_user             peer map=others
local all other                peer
local all plain_user           reject
host  all all      all         peer map=tests
";
        set_rules(ini, rules);
        ini.set("unix_socket_dir", ".")
            .set("auth_ident_file", "ident.conf")
            .file(
                "ident.conf",
                &format!(
                    "tests {system} app\ntests /^({}.*)$ \"ghost\"\nothers {system}x all\n",
                    &system[..1]
                ),
            );
    });
    assert_eq!(by_socket(&pooler, "app"), "in");
    let refused = "unix socket login rejected";
    // Not in the map; in a map that is for somebody else; no map and another name; in the map and nowhere else.
    for user in ["scram_user", "md5_user", "other", "ghost"] {
        assert_eq!(by_socket(&pooler, user), refused, "{user}");
    }
    assert_eq!(by_socket(&pooler, "plain_user"), "login rejected");
    // A TCP client is nobody's peer.
    assert_eq!(outcome(&pooler, "app", "postgres", ""), refused);
    assert!(pooler.log().contains(&format!(
        "the system's user {system} may not log in as scram_user"
    )));
}

#[test]
fn a_reload_reads_the_rules_again_and_a_bad_file_changes_nothing() {
    let mut pooler = Pooler::start(|ini| {
        set_rules(ini, "host all app all trust\n");
    });
    assert_eq!(outcome(&pooler, "app", "postgres", ""), "in");
    pooler.rewrite(|ini| set_rules(ini, "host all app all reject\n"));
    pooler.reload();
    wait_until("the new rules hold", || {
        outcome(&pooler, "app", "postgres", "") == "login rejected"
    });
    assert!(pooler.log().contains("reload: HBA rules"));

    pooler.rewrite(|ini| set_rules(ini, "host all app all trust\nhost all app all trusty\n"));
    pooler.reload();
    wait_until("the file is refused", || {
        pooler
            .log()
            .contains("configuration not reloaded: hba.conf:3: unknown method \"trusty\"")
    });
    assert_eq!(outcome(&pooler, "app", "postgres", ""), "login rejected");
    let mut console = pooler.open_console();
    let replies = console.query("RELOAD");
    assert_eq!(crate::support::wire::error(&replies).sqlstate(), "F0000");

    // What was changed by SET is read at once, or refused.
    std::fs::write(
        pooler.directory().join("open.conf"),
        format!("{CONSOLE}host all all all trust"),
    )
    .unwrap();
    let replies = console.query("SET auth_hba_file = 'gone.conf'");
    let detail = crate::support::wire::error(&replies).field('D').unwrap();
    assert!(detail.contains("cannot read gone.conf"), "{detail}");
    console.rows("SET auth_hba_file = 'open.conf'");
    assert_eq!(outcome(&pooler, "app", "postgres", ""), "in");
}

#[test]
fn a_check_of_the_configuration_reads_the_rules() {
    let (good, said) = run_once("--check", |ini| {
        set_rules(ini, "host all +staff all md5\n");
    });
    assert!(good, "{said}");
    assert!(
        said.contains("warning: hba.conf:2: line skipped: +staff: "),
        "{said}"
    );
    let (good, said) = run_once("--check", |ini| {
        set_rules(ini, "host all all all pam\n");
    });
    assert!(!good);
    assert!(
        said.contains("FATAL hba.conf:2: method pam: there is only auth_type = pam"),
        "{said}"
    );
}
