//! A migration, and then a server that has never had the statement: it reads the text as the tables are now, and has no reason to refuse
//! it. A client that knows the columns, or the types of the parameters, from before must not take the new ones for the old ones.

mod unnamed;

use crate::support::frontend::{
    bind, bind_with_formats, close, describe, execute, flush, parse, query, sync,
};
use crate::support::wire::{error, names, rows};
use crate::support::{Message, Pooler, Wire, postgres};

const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, a text, b int); INSERT INTO t VALUES (1, 'a1', 11); \
                     GRANT ALL ON t TO PUBLIC";

/// A text, what happens to its table, and whether PostgreSQL refuses it to who has prepared it before that.
struct Case {
    name: &'static str,
    text: &'static str,
    change: &'static str,
    refused: bool,
}

const CASES: &[Case] = &[
    Case {
        name: "a column that was added",
        text: "SELECT * FROM t WHERE id = $1::text::int",
        change: "ALTER TABLE t ADD c int DEFAULT 5",
        refused: true,
    },
    Case {
        name: "a column of another type",
        text: "SELECT id, b FROM t WHERE id = $1::text::int",
        change: "ALTER TABLE t ALTER b TYPE real",
        refused: true,
    },
    Case {
        name: "a column of another length",
        text: "SELECT id, a FROM t WHERE id = $1::text::int",
        change: "ALTER TABLE t ALTER a TYPE varchar(20)",
        refused: true,
    },
    Case {
        name: "a column that was dropped",
        text: "SELECT * FROM t WHERE id = $1::text::int",
        change: "ALTER TABLE t DROP a",
        refused: true,
    },
    Case {
        name: "columns that have changed places",
        text: "SELECT * FROM t WHERE id = $1::text::int",
        change: "DROP TABLE t; CREATE TABLE t (b int, a text, id int); INSERT INTO t VALUES (11, 'a1', 1); GRANT ALL ON t TO PUBLIC",
        refused: true,
    },
    Case {
        name: "a column of another name",
        text: "SELECT * FROM t WHERE id = $1::text::int",
        change: "ALTER TABLE t RENAME b TO c",
        refused: true,
    },
    Case {
        name: "what is returned",
        text: "UPDATE t SET b = b + 1 WHERE id = $1::text::int RETURNING *",
        change: "ALTER TABLE t ADD c int DEFAULT 5",
        refused: true,
    },
    Case {
        name: "a table that is another one with the same columns",
        text: "SELECT * FROM t WHERE id = $1::text::int",
        change: "ALTER TABLE t RENAME TO u; CREATE TABLE t AS SELECT * FROM u; GRANT ALL ON t TO PUBLIC",
        refused: false,
    },
    Case {
        name: "a column that nobody asks for",
        text: "SELECT id, a FROM t WHERE id = $1::text::int",
        change: "ALTER TABLE t ADD c int; ALTER TABLE t DROP b; CREATE INDEX ON t (a)",
        refused: false,
    },
    Case {
        name: "nothing is returned",
        text: "UPDATE t SET a = 'x' WHERE id = $1::text::int",
        change: "ALTER TABLE t ADD c int; ALTER TABLE t DROP b",
        refused: false,
    },
];

fn one() -> Vec<Option<Vec<u8>>> {
    vec![Some(b"1".to_vec())]
}

/// Runs the statement of this name.
fn undescribed(name: &str) -> Vec<Vec<u8>> {
    vec![bind("", name, &one()), execute("", 0), sync()]
}

/// The same, and asks for the columns.
fn described(name: &str) -> Vec<Vec<u8>> {
    vec![
        bind("", name, &one()),
        describe(b'P', ""),
        execute("", 0),
        sync(),
    ]
}

fn directly(database: &str) -> Wire {
    Wire::login(postgres().address(), "app", database, None).unwrap()
}

fn pooler() -> Pooler {
    Pooler::start(|ini| {
        ini.set("default_pool_size", 2);
    })
}

/// A client has prepared the text by `prepares`, then the table has changed. The one server that has the statement is another
/// client's now, so that the next is a new one.
struct Changed {
    client: Wire,
    holder: Wire,
    place: Place,
}

/// A database that goes with its test: each of the cases has several, and each of them would stay on the disk.
struct Place(String);

impl Place {
    fn new() -> Self {
        let database = postgres().database("shapes");
        postgres().sql(&database, TABLE);
        Self(database)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let drop = format!("DROP DATABASE {} WITH (FORCE)", self.0);
            postgres().sql("postgres", &drop);
        }
    }
}

impl Changed {
    fn new(pooler: &Pooler, case: &Case, prepares: &[Vec<u8>]) -> Self {
        let place = Place::new();
        let database = &place.0;
        let mut client = pooler.connect(database);
        for batch in prepares.split_inclusive(|message| *message == sync()) {
            succeeds(&client.exchange(batch), case.name);
        }
        postgres().sql(database, case.change);
        let mut holder = pooler.connect(database);
        holder.rows("begin");
        Self {
            client,
            holder,
            place,
        }
    }
}

/// The same without a pooler.
fn changed_directly(case: &Case, prepares: &[Vec<u8>]) -> (Wire, Place) {
    let place = Place::new();
    let mut client = directly(&place.0);
    succeeds(&client.exchange(prepares), case.name);
    postgres().sql(&place.0, case.change);
    (client, place)
}

fn succeeds(replies: &[Message], place: &str) {
    assert!(
        replies.iter().all(|message| message.tag != b'E'),
        "{place}: {replies:?}"
    );
}

fn is_refused(replies: &[Message], place: &str) {
    assert_eq!(error(replies).sqlstate(), "0A000", "{place}: {replies:?}");
    assert_eq!(
        error(replies).field('R').as_deref(),
        Some("RevalidateCachedQuery"),
        "{place}"
    );
}

fn prepared_and_described(text: &str) -> Vec<Vec<u8>> {
    vec![parse("s", text, &[]), describe(b'S', "s"), sync()]
}

#[test]
fn who_knows_the_columns_gets_from_a_new_server_what_its_own_postgresql_would_say() {
    let pooler = pooler();
    for case in CASES {
        let prepares = prepared_and_described(case.text);
        let (mut direct, _place) = changed_directly(case, &prepares);
        let mut changed = Changed::new(&pooler, case, &prepares);
        for _ in 0..3 {
            let wanted = direct.exchange(&undescribed("s"));
            let replies = changed.client.exchange(&undescribed("s"));
            if case.refused {
                is_refused(&wanted, case.name);
                is_refused(&replies, case.name);
                assert_eq!(names(&replies), names(&wanted), "{}", case.name);
            } else {
                assert_eq!(replies, wanted, "{}", case.name);
            }
        }
        // It learns by asking. (PostgreSQL itself refuses that, too, and only Parse helps.)
        let told = changed.client.exchange(&[describe(b'S', "s"), sync()]);
        succeeds(&told, case.name);
        succeeds(&changed.client.exchange(&undescribed("s")), case.name);
        for client in [&mut direct, &mut changed.client] {
            let again = [vec![close(b'S', "s")], prepares.clone()].concat();
            succeeds(&client.exchange(&again), case.name);
        }
        // From the other server as well.
        changed.holder.rows("commit");
        let mut both = [pooler.connect(&changed.place.0), changed.holder];
        both[0].rows("begin");
        let wanted = direct.exchange(&undescribed("s"));
        for turn in 0..2 {
            let replies = changed.client.exchange(&undescribed("s"));
            let (wanted, replies) = (values(&wanted, case.name), values(&replies, case.name));
            if case.name != "what is returned" {
                assert_eq!(replies, wanted, "{}", case.name);
            }
            if turn == 0 {
                both[1].rows("begin");
                both[0].rows("commit");
            }
        }
    }
}

fn values(replies: &[Message], place: &str) -> Vec<Vec<Option<String>>> {
    succeeds(replies, place);
    let rows = replies.iter().filter(|message| message.tag == b'D');
    rows.map(Message::values).collect()
}

#[test]
fn in_a_transaction_too() {
    let pooler = pooler();
    for case in CASES {
        let prepares = prepared_and_described(case.text);
        let (mut direct, _place) = changed_directly(case, &prepares);
        let mut changed = Changed::new(&pooler, case, &prepares);
        for messages in [
            vec![query("begin")],
            undescribed("s"),
            undescribed("s"),
            vec![query("rollback")],
            undescribed("s"),
        ] {
            let wanted = direct.exchange(&messages);
            let replies = changed.client.exchange(&messages);
            assert_eq!(names(&replies), names(&wanted), "{}", case.name);
            let code = |replies: &[Message]| {
                let found = replies.iter().find(|message| message.tag == b'E');
                found.map(Message::sqlstate)
            };
            assert_eq!(code(&replies), code(&wanted), "{}", case.name);
            assert_eq!(changed.client.status, direct.status, "{}", case.name);
        }
    }
}

#[test]
fn what_is_known_from_a_portal_is_known() {
    let pooler = pooler();
    // As the JDBC driver does it; in two batches; and PostgreSQL goes by what was there at the time of Parse, told or not.
    let ways = [
        described("s"),
        [vec![sync()], described("s")].concat(),
        [vec![flush()], undescribed("s")].concat(),
    ];
    for case in CASES {
        for (number, way) in ways.iter().enumerate() {
            let place = format!("{}, {number}", case.name);
            let prepares = [vec![parse("s", case.text, &[])], way.clone()].concat();
            let mut changed = Changed::new(&pooler, case, &prepares);
            let replies = changed.client.exchange(&undescribed("s"));
            if case.refused {
                is_refused(&replies, &place);
            } else {
                succeeds(&replies, &place);
            }
        }
    }
}

#[test]
fn who_asks_each_time_does_not_notice() {
    let pooler = pooler();
    for case in CASES {
        let prepares = prepared_and_described(case.text);
        let mut changed = Changed::new(&pooler, case, &prepares);
        let replies = changed.client.exchange(&described("s"));
        succeeds(&replies, case.name);
        let width = replies
            .iter()
            .any(|message| message.tag == b'T')
            .then(|| rows(&replies).unwrap().rows[0].len());
        // And knows it from then on, whichever server it is.
        changed.holder.rows("rollback");
        let mut other = pooler.connect(&changed.place.0);
        let mut servers = [changed.holder, pooler.connect(&changed.place.0)];
        servers[0].rows("begin");
        for turn in 0..2 {
            let replies = changed.client.exchange(&undescribed("s"));
            let row = values(&replies, case.name).first().map(Vec::len);
            assert_eq!(row, width, "{}", case.name);
            if turn == 0 {
                servers[1].rows("begin");
                servers[0].rows("commit");
            }
        }
        servers[1].rows("commit");
        succeeds(&other.query("select 1"), case.name);
    }
}

#[test]
fn binary_values_are_not_taken_for_those_of_another_type() {
    let case = Case {
        name: "a parameter of another type",
        text: "INSERT INTO t (id, b) VALUES (2, $1)",
        change: "ALTER TABLE t ALTER b TYPE real",
        refused: false,
    };
    let pooler = pooler();
    let three = vec![Some(vec![0, 0, 0, 3])];
    let bind = || bind_with_formats("", "s", &[1], &three, &[]);
    for asks in [false, true] {
        let prepares = prepared_and_described(case.text);
        let mut changed = Changed::new(&pooler, &case, &prepares);
        let mut batch = vec![bind(), execute("", 0), sync()];
        if asks {
            batch.insert(1, describe(b'P', ""));
        }
        is_refused(&changed.client.exchange(&batch), case.name);
        let text = vec![Some(b"3".to_vec())];
        let batch = [
            crate::support::frontend::bind("", "s", &text),
            execute("", 0),
            sync(),
        ];
        succeeds(&changed.client.exchange(&batch), case.name);
        changed.holder.rows("commit");
        assert_eq!(changed.client.value("select b from t where id = 2"), "3");
    }
}

#[test]
fn a_server_that_another_client_has_prepared_it_on_is_no_better() {
    let pooler = pooler();
    for case in CASES {
        let prepares = prepared_and_described(case.text);
        let mut changed = Changed::new(&pooler, case, &prepares);
        let mut other = pooler.connect(&changed.place.0);
        succeeds(
            &other.exchange(&[parse("mine", case.text, &[]), sync()]),
            case.name,
        );
        let replies = changed.client.exchange(&undescribed("s"));
        if case.refused {
            is_refused(&replies, case.name);
        } else {
            succeeds(&replies, case.name);
        }
        // The other one has come after the change.
        let batch = [bind("", "mine", &one()), execute("", 0), sync()];
        succeeds(&other.exchange(&batch), case.name);
    }
}

#[test]
fn tables_of_one_name_in_two_databases_are_none_of_each_others_affair() {
    let pooler = pooler();
    let databases = [postgres().database("shapes"), postgres().database("shapes")];
    postgres().sql(&databases[0], TABLE);
    let other = "CREATE TABLE t (id int, x date); INSERT INTO t VALUES (1, '2000-01-01'); GRANT ALL ON t TO PUBLIC";
    postgres().sql(&databases[1], other);
    let mut clients = databases
        .each_ref()
        .map(|database| pooler.connect(database));
    for client in &mut clients {
        succeeds(
            &client.exchange(&prepared_and_described(CASES[0].text)),
            "two databases",
        );
    }
    for (client, columns) in clients.iter_mut().zip([3, 2]) {
        let replies = client.exchange(&undescribed("s"));
        assert_eq!(values(&replies, "two databases")[0].len(), columns);
    }
    postgres().sql(&databases[0], CASES[0].change);
    is_refused(&clients[0].exchange(&undescribed("s")), "the one");
    succeeds(&clients[1].exchange(&undescribed("s")), "the other");
}

#[test]
fn columns_that_take_more_than_a_buffer_to_describe_are_compared_as_well() {
    let columns: Vec<String> = (0..1500)
        .map(|n| format!("{}{n} int", "c".repeat(50)))
        .collect();
    let setup = format!(
        "CREATE TABLE t ({}); GRANT ALL ON t TO PUBLIC",
        columns.join(", ")
    );
    let pooler = pooler();
    let database = postgres().database("shapes");
    postgres().sql(&database, &setup);
    let mut client = pooler.connect(&database);
    let batch = [bind("", "s", &[]), execute("", 0), sync()];
    let mut holder = pooler.connect(&database);
    for change in ["SELECT 1", "ALTER TABLE t RENAME cc TO c"] {
        let change = change.replace("cc", &format!("{}1499", "c".repeat(50)));
        client.exchange(&[close(b'S', "s"), sync()]);
        let told = client.exchange(&prepared_and_described("SELECT * FROM t"));
        succeeds(&told, &change);
        assert_eq!(told[2].name(), "RowDescription");
        succeeds(&client.exchange(&batch), &change);
        postgres().sql(&database, &change);
        holder.rows("begin");
        let replies = client.exchange(&batch);
        if change == "SELECT 1" {
            succeeds(&replies, &change);
        } else {
            is_refused(&replies, &change);
        }
        holder.rows("commit");
    }
}
