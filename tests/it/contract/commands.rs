//! What the console answers to each command: tags, and the words of every refusal.

use super::{Findings, end, fatal, fields, shown};
use crate::support::pooler::is_pgbouncer;
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

/// A command and what is answered: `tag …`, or the words of the error.
type Row = (&'static str, &'static str);

const ROWS: &[Row] = &[
    ("SET query_timeout = 7", "tag SET query_timeout=7"),
    ("set query_timeout to '1.5';", "tag SET query_timeout=1.5"),
    (
        "SET \"pool_mode\"='transaction'",
        "tag SET pool_mode=transaction",
    ),
    ("SET listen_port = 7", "tag SET listen_port=7"),
    ("SET query_timeout = 'x'", "SET failed"),
    ("SET no_such_setting = 1", "SET failed"),
    (
        "SET query_timeout = 1.5",
        "invalid command 'SET query_timeout = 1.5', use SHOW HELP;",
    ),
    (
        "SET auth_type = scram-sha-256",
        "invalid command 'SET auth_type = scram-sha-256', use SHOW HELP;",
    ),
    ("RELOAD", "tag RELOAD"),
    ("RELOAD now", "invalid command 'RELOAD now', use SHOW HELP;"),
    ("RESUME", "pooler is not paused/suspended"),
    ("RESUME one", "database one is not paused"),
    ("RESUME nobody", "no such database: nobody"),
    ("PAUSE nobody", "no such database: nobody"),
    ("PAUSE pgbouncer", "cannot pause admin db: pgbouncer"),
    ("PAUSE one", "tag PAUSE"),
    ("SUSPEND", "cannot suspend with paused databases"),
    ("RESUME one", "tag RESUME"),
    ("PAUSE;", "tag PAUSE"),
    ("PAUSE", "already suspended/paused"),
    ("PAUSE one", "already suspended/paused"),
    ("KILL one", "already suspended/paused"),
    ("SUSPEND", "already suspended/paused"),
    ("RESUME", "tag RESUME"),
    ("KILL nobody", "no such database: nobody"),
    ("KILL pgbouncer", "cannot kill admin db: pgbouncer"),
    ("KILL one", "tag KILL"),
    ("RESUME one", "tag RESUME"),
    ("DISABLE", "a database is required"),
    ("DISABLE nobody", "no such database: nobody"),
    ("DISABLE pgbouncer", "cannot disable admin db: pgbouncer"),
    ("DISABLE one", "tag DISABLE"),
    ("ENABLE", "a database is required"),
    ("ENABLE nobody", "no such database: nobody"),
    ("ENABLE pgbouncer", "cannot enable admin db: pgbouncer"),
    ("ENABLE \"one\"", "tag ENABLE"),
    ("RECONNECT", "tag RECONNECT"),
    ("RECONNECT one", "tag RECONNECT"),
    ("RECONNECT nobody", "no such database: nobody"),
    (
        "RECONNECT pgbouncer",
        "cannot reconnect admin db: pgbouncer",
    ),
    ("WAIT_CLOSE", "tag WAIT_CLOSE"),
    ("WAIT_CLOSE one", "tag WAIT_CLOSE"),
    ("WAIT_CLOSE nobody", "no such database: nobody"),
    ("WAIT_CLOSE pgbouncer", "cannot wait in admin db: pgbouncer"),
    ("KILL_CLIENT", "invalid client pointer supplied"),
    ("KILL_CLIENT joe", "invalid client pointer supplied"),
    ("KILL_CLIENT 999999", "client not found"),
    ("SUSPEND", "tag SUSPEND"),
    ("SUSPEND", "already suspended/paused"),
    ("PAUSE", "already suspended/paused"),
    ("RESUME", "tag RESUME"),
    (
        "SHUTDOWN NOW",
        "invalid command 'SHUTDOWN NOW', use SHOW HELP;",
    ),
    (
        "SHOW nothing",
        "invalid command 'SHOW nothing', use SHOW HELP;",
    ),
    ("SHOW", "invalid command 'SHOW', use SHOW HELP;"),
    ("SELECT 1", "invalid command 'SELECT 1', use SHOW HELP;"),
    ("BEGIN", "invalid command 'BEGIN', use SHOW HELP;"),
    ("", "invalid command '', use SHOW HELP;"),
    (";", "invalid command ';', use SHOW HELP;"),
    (
        "SHOW STATE; SHOW STATE",
        "invalid command 'SHOW STATE; SHOW STATE', use SHOW HELP;",
    ),
    ("SHOW\t\"state\"\n;", "tag SHOW"),
    ("abcdefghijklmnop", "bad arguments"),
    (
        "PAUSE a234567890123456789012345678901234567890123456789012345678901234",
        "bad arguments",
    ),
];

fn start() -> Pooler {
    let database = postgres().database("commands");
    Pooler::start(|ini| {
        ini.without_database("*")
            .database("one", &format!("dbname={database}"));
    })
}

/// The tag or the error of a command, which is answered to the end.
fn answer(console: &mut Wire, command: &str) -> String {
    let replies = console.query(command);
    assert_eq!(
        replies.last().map(shown).as_deref(),
        Some("I"),
        "{command}: {replies:?}"
    );
    let found = replies.iter().find_map(|message| match message.tag {
        b'C' => Some(format!("tag {}", shown(message).trim_end_matches("\\0"))),
        // Ours says in a DETAIL why SET and RELOAD have failed.
        b'E' => match (shown(message).split_once("\\0D"), message.field('M')) {
            (Some((head, _)), Some(text)) if text.contains(" failed") => {
                Some(format!("{head}\\0\\0"))
            }
            _ => Some(shown(message)),
        },
        _ => None,
    });
    found.unwrap_or_else(|| format!("{replies:?}"))
}

#[test]
fn every_command_answers_with_its_tag_or_its_words() {
    let pooler = start();
    let mut console = pooler.open_console();
    let mut findings = Findings::default();
    for (command, wanted) in ROWS {
        let wanted = match wanted.strip_prefix("tag ") {
            Some(_) => (*wanted).to_owned(),
            None => fields("ERROR", "08P01", wanted),
        };
        findings.compare(command, answer(&mut console, command), wanted);
    }
    findings.report();
}

#[test]
fn a_failed_reload_is_a_config_file_error() {
    if is_pgbouncer() {
        // It tells since 1.25.
        return;
    }
    let mut pooler = start();
    pooler.rewrite(|ini| {
        ini.set("no_such_setting", 1);
    });
    let found = answer(&mut pooler.open_console(), "RELOAD");
    let text = "RELOAD failed, see logs for additional details";
    assert_eq!(found, fields("ERROR", "F0000", text));
}

#[test]
fn a_message_that_no_console_expects_ends_it_with_its_code() {
    let pooler = start();
    let messages = [frontend::copy_data(b"x"), frontend::function_call(1, &[])];
    for message in messages {
        let mut console = pooler.open_console();
        console.send(&message);
        let text = format!("unsupported packet type for admin console: {}", message[0]);
        let replies = console.read_until(0);
        let told: Vec<_> = replies.iter().map(shown).collect();
        let refusal = fields("ERROR", "08P01", &text);
        assert_eq!(told, [refusal, "I".to_owned(), fatal("bad packet")]);
    }
    let mut console = pooler.open_console();
    console.send(&frontend::terminate());
    assert_eq!(end(&mut console), "closed without a word");
}

#[test]
fn a_cancel_request_of_the_console_ends_a_pause() {
    let pooler = start();
    let mut console = pooler.open_console();
    console.rows("PAUSE");
    let mut cancel = Wire::connect(pooler.address()).unwrap();
    cancel.send(&frontend::cancel(console.pid, &console.key));
    assert_eq!(end(&mut cancel), "closed without a word");
    wait_until("it is resumed", || {
        let rows = console.rows("SHOW STATE");
        rows.get(rows.find("key", "paused").unwrap(), "value") == "no"
    });
}

#[test]
fn shutdown_ends_without_a_word_and_those_that_wait_answer_first() {
    let ends = |command: &str, while_it_waits: &[Row]| {
        let mut pooler = start();
        let mut console = pooler.open_console();
        let mut client = pooler.connect("one");
        client.rows("BEGIN");
        let mut findings = Findings::default();
        findings.compare(
            command,
            answer(&mut console, command),
            "tag SHUTDOWN".to_owned(),
        );
        for (command, text) in while_it_waits {
            findings.compare(
                command,
                answer(&mut console, command),
                fields("ERROR", "08P01", text),
            );
        }
        wait_until("it listens no more", || {
            Wire::connect(pooler.address()).is_err()
        });
        findings.report();
        client.rows("COMMIT");
        drop((client, console));
        assert!(pooler.wait().success());
    };
    ends(
        "SHUTDOWN WAIT_FOR_CLIENTS",
        &[("RESUME", "pooler is shutting down")],
    );
    ends(
        "shutdown wait_for_servers;",
        &[("RESUME", "pooler is shutting down")],
    );
    let mut pooler = start();
    let mut console = pooler.open_console();
    console.send(&frontend::query("SHUTDOWN"));
    assert_eq!(end(&mut console), "closed without a word");
    assert!(pooler.wait().success());
}
