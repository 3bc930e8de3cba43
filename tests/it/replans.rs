//! A migration while statements are prepared: PostgreSQL refuses to run one whose result has other columns now, and who has a pooler
//! between is not to notice where that can be helped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crate::support::frontend::{
    bind, bind_with_formats, close, describe, execute, flush, parse, query, sync,
};
use crate::support::wire::{error, names, rows};
use crate::support::{Message, Pooler, Wire, postgres};

const ALL: &str = "SELECT * FROM t WHERE id = $1::text::int";

struct Setting {
    pooler: Pooler,
    database: String,
}

impl Setting {
    fn new(servers: usize) -> Self {
        let pooler = Pooler::start(|ini| {
            ini.set("default_pool_size", servers)
                .set("max_prepared_statements", 100);
        });
        let database = postgres().database("replans");
        let setup = "CREATE TABLE t (id int PRIMARY KEY, a text); \
                     INSERT INTO t SELECT n, 'a' || n FROM generate_series(1, 10) n; GRANT ALL ON t TO PUBLIC";
        postgres().sql(&database, setup);
        Self { pooler, database }
    }

    fn client(&self) -> Wire {
        self.pooler.connect(&self.database)
    }

    fn prepared(&self) -> Wire {
        let mut client = self.client();
        let replies = client.exchange(&[parse("s", ALL, &[]), describe(b'S', "s"), sync()]);
        assert!(
            replies.iter().all(|message| message.tag != b'E'),
            "{replies:?}"
        );
        client
    }

    fn migrate(&self, number: usize) {
        let sql = format!("ALTER TABLE t ADD COLUMN c{number} int");
        postgres().sql(&self.database, &sql);
    }

    fn replans(&self) -> u64 {
        self.pooler.stat(&self.database, "total_replan_count")
    }
}

fn one() -> Vec<Option<Vec<u8>>> {
    vec![Some(b"1".to_vec())]
}

/// The usual batch of a driver.
fn batch() -> Vec<Vec<u8>> {
    vec![
        bind("", "s", &one()),
        describe(b'P', ""),
        execute("", 0),
        sync(),
    ]
}

/// How many columns there are.
fn columns(replies: &[Message]) -> usize {
    assert!(
        replies.iter().all(|message| message.tag != b'E'),
        "{replies:?}"
    );
    assert_eq!(replies.last().unwrap().name(), "ReadyForQuery");
    rows(replies).unwrap().rows[0].len()
}

/// The same where the columns are not described.
fn values(replies: &[Message]) -> usize {
    let row = replies.iter().find(|message| message.tag == b'D');
    row.unwrap_or_else(|| panic!("{replies:?}")).values().len()
}

fn is_outdated(replies: &[Message]) {
    assert_eq!(error(replies).sqlstate(), "0A000", "{replies:?}");
    assert_eq!(
        error(replies).field('R').as_deref(),
        Some("RevalidateCachedQuery")
    );
    assert_eq!(
        replies.iter().filter(|message| message.tag == b'E').count(),
        1
    );
}

#[test]
fn many_clients_do_not_notice_a_migration() {
    let setting = Arc::new(Setting::new(3));
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (setting, stop, done) = (setting.clone(), stop.clone(), done.clone());
            std::thread::spawn(move || {
                let mut client = setting.prepared();
                let mut most = 0;
                while !stop.load(Ordering::Relaxed) {
                    let seen = columns(&client.exchange(&batch()));
                    assert!(seen >= most, "back to fewer columns");
                    most = seen;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                columns(&client.exchange(&batch()))
            })
        })
        .collect();
    for number in 0..3 {
        let before = done.load(Ordering::Relaxed);
        crate::support::wait_until("all clients are at work", || {
            done.load(Ordering::Relaxed) > before + 200 || tasks.iter().any(JoinHandle::is_finished)
        });
        setting.migrate(number);
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        assert_eq!(task.join().unwrap(), 5);
    }
    assert!(setting.replans() >= 3);
}

#[test]
fn a_batch_that_stands_alone_is_run_again() {
    let ways: [(&str, Vec<Vec<u8>>); 5] = [
        ("as libpq does", batch()),
        (
            "with binary values",
            vec![
                bind_with_formats("", "s", &[1], &one(), &[]),
                describe(b'P', ""),
                execute("", 0),
                sync(),
            ],
        ),
        (
            "with a portal",
            vec![
                bind("p", "s", &one()),
                describe(b'P', "p"),
                execute("p", 0),
                close(b'P', "p"),
                flush(),
                sync(),
            ],
        ),
        (
            "described first",
            vec![
                describe(b'S', "s"),
                bind("", "s", &one()),
                execute("", 0),
                sync(),
            ],
        ),
        (
            "and closed",
            vec![
                bind("", "s", &one()),
                describe(b'P', ""),
                execute("", 0),
                close(b'S', "s"),
                sync(),
            ],
        ),
    ];
    for (way, messages) in ways {
        let setting = Setting::new(1);
        let (mut client, mut other) = (setting.prepared(), setting.prepared());
        let expected = names(&client.exchange(&messages));
        if way == "and closed" {
            client.exchange(&[parse("s", ALL, &[]), sync()]);
        }
        setting.migrate(1);
        let replies = client.exchange(&messages);
        assert_eq!(names(&replies), expected, "{way}");
        let row = replies.iter().find(|message| message.tag == b'D').unwrap();
        assert_eq!(row.values().len(), 3, "{way}");
        assert_eq!(setting.replans(), 1, "{way}");
        // Once for all clients of the server.
        assert_eq!(columns(&other.exchange(&batch())), 3, "{way}");
        assert_eq!(setting.replans(), 1, "{way}");
    }
}

#[test]
fn in_pieces_too() {
    let setting = Setting::new(1);
    let mut client = setting.prepared();
    setting.migrate(1);
    let bytes = batch().concat();
    for piece in bytes.chunks(7) {
        client.send(piece);
    }
    let replies = client.read_until_ready();
    // Whether the Sync was there before the error is up to the network.
    if replies.iter().any(|message| message.tag == b'E') {
        is_outdated(&replies);
    }
    assert_eq!(columns(&client.exchange(&batch())), 3);
}

#[test]
fn a_client_that_comes_after_the_migration_meets_no_statement_of_before() {
    let setting = Setting::new(1);
    setting.prepared();
    setting.migrate(1);
    let mut client = setting.client();
    let replies = client.exchange(&[
        parse("mine", ALL, &[]),
        describe(b'S', "mine"),
        bind("", "mine", &one()),
        execute("", 0),
        sync(),
    ]);
    let wanted = [
        "ParseComplete",
        "ParameterDescription",
        "RowDescription",
        "BindComplete",
        "DataRow",
        "CommandComplete",
        "ReadyForQuery",
    ];
    assert_eq!(names(&replies), wanted);
    assert_eq!(columns(&replies), 3);
    assert_eq!(setting.replans(), 1);
}

#[test]
fn in_a_transaction_there_is_one_honest_error_for_all_servers() {
    let setting = Setting::new(3);
    let mut clients: Vec<_> = (0..3).map(|_| setting.prepared()).collect();
    // All three servers have it.
    for turn in ["begin", "", "commit"] {
        for client in &mut clients {
            match turn {
                "" => assert_eq!(columns(&client.exchange(&batch())), 2),
                _ => drop(client.rows(turn)),
            }
        }
    }
    setting.migrate(1);
    clients[0].rows("begin");
    is_outdated(&clients[0].exchange(&batch()));
    assert_eq!(clients[0].status, b'E');
    assert_eq!(error(&clients[0].exchange(&batch())).sqlstate(), "25P02");
    clients[0].rows("rollback");
    for client in &mut clients {
        client.rows("begin");
    }
    for client in &mut clients {
        assert_eq!(columns(&client.exchange(&batch())), 3);
    }
    for client in &mut clients {
        client.rows("commit");
    }
    assert_eq!(setting.replans(), 0);
}

#[test]
fn what_is_not_alone_is_not_run_again() {
    let setting = Setting::new(1);
    let mut client = setting.prepared();
    // Something was done before it in the same batch.
    let prepared = [parse("n", "select $1::text", &[]), sync()];
    client.exchange(&prepared);
    setting.migrate(1);
    let replies =
        client.exchange(&[&[bind("", "n", &one()), execute("", 0)], &batch()[..]].concat());
    is_outdated(&replies);
    assert_eq!(columns(&client.exchange(&batch())), 3);
    // Another batch is on its way behind it.
    setting.migrate(2);
    client.send_all(&[batch(), vec![bind("", "n", &one()), execute("", 0), sync()]].concat());
    is_outdated(&client.read_until_ready());
    assert_eq!(rows(&client.read_until_ready()).unwrap().only(), "1");
    assert_eq!(columns(&client.exchange(&batch())), 4);
    // A query is.
    setting.migrate(3);
    client.send_all(&[batch(), vec![query("select 'simple'")]].concat());
    is_outdated(&client.read_until_ready());
    assert_eq!(rows(&client.read_until_ready()).unwrap().only(), "simple");
    assert_eq!(columns(&client.exchange(&batch())), 5);
    // It is longer than what is kept.
    setting.migrate(4);
    let long = vec![Some([vec![b' '; 20_000], b"1".to_vec()].concat())];
    let long = [
        bind("", "s", &long),
        describe(b'P', ""),
        execute("", 0),
        sync(),
    ];
    is_outdated(&client.exchange(&long));
    assert_eq!(columns(&client.exchange(&long)), 6);
    assert_eq!(setting.replans(), 0);
}

#[test]
fn who_goes_by_what_it_was_told_of_the_columns_is_told_that_they_are_others() {
    let setting = Setting::new(2);
    let undescribed = [bind("", "s", &one()), execute("", 0), sync()];
    let (mut one, mut other) = (setting.prepared(), setting.prepared());
    // On both servers.
    for client in [&mut one, &mut other] {
        client.rows("begin");
    }
    for client in [&mut one, &mut other] {
        assert_eq!(columns(&client.exchange(&batch())), 2);
        client.rows("commit");
    }
    postgres().sql(
        &setting.database,
        "ALTER TABLE t ALTER COLUMN id TYPE bigint",
    );
    // One after the other, however often, and whatever others have done on the server meanwhile.
    for _ in 0..3 {
        is_outdated(&one.exchange(&undescribed));
        is_outdated(&other.exchange(&undescribed));
    }
    assert_eq!(setting.replans(), 0);
    // Until it asks, or prepares it again.
    assert_eq!(columns(&one.exchange(&batch())), 2);
    is_outdated(&other.exchange(&undescribed));
    assert_eq!(values(&one.exchange(&undescribed)), 2);
    other.exchange(&[close(b'S', "s"), parse("s", ALL, &[]), sync()]);
    assert_eq!(values(&other.exchange(&undescribed)), 2);
}

#[test]
fn an_error_of_the_second_run_goes_to_the_client_once() {
    let setting = Setting::new(1);
    let mut client = setting.prepared();
    postgres().sql(&setting.database, "ALTER TABLE t RENAME TO u");
    let replies = client.exchange(&batch());
    // PostgreSQL itself finds that there is no such table; nothing is run again for that.
    assert_eq!(names(&replies), ["ErrorResponse", "ReadyForQuery"]);
    assert_eq!(error(&replies).sqlstate(), "42P01");
    postgres().sql(
        &setting.database,
        "ALTER TABLE u RENAME TO t; ALTER TABLE t ADD COLUMN b int",
    );
    let bad = vec![Some(b"none".to_vec())];
    let replies = client.exchange(&[
        bind("", "s", &bad),
        describe(b'P', ""),
        execute("", 0),
        sync(),
    ]);
    assert_eq!(
        names(&replies)
            .iter()
            .filter(|name| **name == "ErrorResponse")
            .count(),
        1,
        "{replies:?}"
    );
    assert_eq!(error(&replies).sqlstate(), "22P02");
    assert_eq!(setting.replans(), 1);
    assert_eq!(columns(&client.exchange(&batch())), 3);
}

#[test]
fn sql_prepare_is_the_clients_own_affair() {
    let database = postgres().database("replans");
    postgres().sql(
        &database,
        "CREATE TABLE t (id int); GRANT ALL ON t TO PUBLIC",
    );
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1);
    });
    let mut client = pooler.connect(&database);
    client.rows("begin; prepare p as select * from t; execute p; commit");
    postgres().sql(&database, "ALTER TABLE t ADD COLUMN b int");
    for messages in [
        vec![query("execute p")],
        vec![bind("", "p", &[]), execute("", 0), sync()],
    ] {
        is_outdated(&client.exchange(&messages));
    }
    assert_eq!(client.value("select 1"), "1");
}
