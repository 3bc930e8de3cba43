//! Unnamed statements that are seen again and again are prepared once (`prepare_unnamed_after`), and nobody can tell:
//! what is said to a PostgreSQL of the same tables directly and through the pooler is answered the same.

use crate::support::frontend::{bind, close, describe, execute, parse, query, sync};
use crate::support::{Message, Pooler, Wire, postgres};

const INT4: u32 = 23;

const SETUP: &str = "CREATE TABLE t (id int PRIMARY KEY, a text); \
     INSERT INTO t SELECT n, 'a' || n FROM generate_series(1, 10) n; \
     CREATE SCHEMA other; CREATE TABLE other.t (id int, b int, c int); INSERT INTO other.t VALUES (1, 2, 3); \
     CREATE VIEW v AS SELECT id FROM t; \
     CREATE FUNCTION f(bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'big' $$; \
     GRANT ALL ON t, v, other.t TO PUBLIC; GRANT ALL ON SCHEMA other, public TO PUBLIC";

/// The same conversation with a PostgreSQL of its own and through the pooler.
struct Both {
    pooler: Pooler,
    databases: [String; 2],
    wires: [Wire; 2],
    tables: [Vec<[u8; 4]>; 2],
}

impl Both {
    fn new(after: usize, texts: &str, servers: usize) -> Self {
        let pooler = Pooler::start(|ini| {
            ini.set("default_pool_size", servers)
                .set("prepare_unnamed_after", after)
                .set("prepare_unnamed_texts", texts);
        });
        let databases = [0, 1].map(|_| postgres().database("adaptive"));
        for database in &databases {
            postgres().sql(database, SETUP);
        }
        let direct = Wire::login(postgres().address(), "app", &databases[0], None).unwrap();
        let wires = [direct, pooler.connect(&databases[1])];
        Self {
            pooler,
            databases,
            wires,
            tables: Default::default(),
        }
    }

    fn say(&mut self, messages: &[Vec<u8>]) -> Vec<Message> {
        let [direct, pooled] = [0, 1].map(|at| {
            let replies = self.wires[at].exchange(messages);
            let tables = &mut self.tables[at];
            let same = |message: &Message| message.comparable(tables);
            (replies.iter().map(same).collect::<Vec<_>>(), replies)
        });
        assert_eq!(direct.0, pooled.0);
        pooled.1
    }

    /// Says it several times, so that what is prepared is used.
    fn repeat(&mut self, messages: &[Vec<u8>]) {
        for _ in 0..3 {
            self.say(messages);
        }
    }

    fn query(&mut self, sql: &str) {
        self.say(&[query(sql)]);
    }

    fn migrate(&self, sql: &str) {
        for database in &self.databases {
            postgres().sql(database, sql);
        }
    }

    fn stat(&self, column: &str) -> u64 {
        self.pooler.stat(&self.databases[1], column)
    }

    fn reuses(&self) -> u64 {
        self.stat("total_unnamed_reuse_count")
    }
}

/// The batch of a driver that uses the unnamed statement.
fn batch(sql: &str, types: &[u32], values: &[&str]) -> Vec<Vec<u8>> {
    let values: Vec<_> = values
        .iter()
        .map(|value| Some(value.as_bytes().to_vec()))
        .collect();
    vec![
        parse("", sql, types),
        bind("", "", &values),
        describe(b'P', ""),
        execute("", 0),
        sync(),
    ]
}

fn by_id() -> Vec<Vec<u8>> {
    batch("SELECT * FROM t WHERE id = $1", &[INT4], &["1"])
}

#[test]
fn it_is_off_by_default() {
    let mut both = Both::new(0, "all", 1);
    both.repeat(&by_id());
    assert_eq!(both.reuses(), 0);
}

#[test]
fn after_so_many_uses_by_all_clients_it_is_prepared_once_on_each_server() {
    let mut both = Both::new(3, "proven", 1);
    let mut others: Vec<_> = (0..2)
        .map(|_| both.pooler.connect(&both.databases[1]))
        .collect();
    for other in &mut others {
        other.exchange(&by_id());
    }
    assert_eq!(both.stat("total_server_parse_count"), 0);
    for _ in 0..5 {
        both.say(&by_id());
    }
    for other in &mut others {
        other.exchange(&by_id());
    }
    assert_eq!(both.stat("total_server_parse_count"), 1);
    assert_eq!(both.reuses(), 6);
}

#[test]
fn a_migration_is_seen_by_the_next_batch() {
    let mut both = Both::new(1, "proven", 1);
    let by_view = batch("SELECT * FROM v", &[], &[]);
    for sql in [
        "ALTER TABLE t ADD COLUMN b int DEFAULT 7",
        "ALTER TABLE t RENAME COLUMN b TO c",
        "ALTER TABLE t ALTER COLUMN c TYPE text",
        "ALTER TABLE t DROP COLUMN c",
        "DROP VIEW v; DROP TABLE t",
        "CREATE TABLE t (a text, id int); CREATE VIEW v AS SELECT a FROM t; GRANT ALL ON t, v TO PUBLIC",
        "REVOKE ALL ON t FROM PUBLIC",
        "GRANT ALL ON t TO PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC",
        "GRANT ALL ON SCHEMA public TO PUBLIC; ALTER TABLE t RENAME TO u",
        "ALTER TABLE u RENAME TO t; CREATE OR REPLACE VIEW v AS SELECT a, id FROM t",
    ] {
        both.repeat(&by_id());
        both.repeat(&by_view);
        both.migrate(sql);
        both.say(&by_view);
        both.say(&by_id());
    }
    assert!(both.reuses() > 30);
}

#[test]
fn errors_come_where_they_would() {
    let mut both = Both::new(1, "all", 1);
    let text = "SELECT 10 / $1, 'x' WHERE $2::text <> ''";
    for (types, values) in [
        (&[INT4][..], &["2", "a"][..]),
        (&[INT4], &["0", "a"]),
        (&[INT4], &["2", "a"]),
        (&[INT4], &["two", "a"]),
        (&[INT4], &["2"]),
        (&[INT4], &["2", "a", "b"]),
        (&[], &["2", "a"]),
        (&[], &["2.5", "a"]),
    ] {
        both.repeat(&batch(text, types, values));
    }
    for text in [
        "SELECT wrong",
        "SELEC 1",
        "SELECT * FROM nowhere WHERE id = $1",
        "SELECT 1; SELECT 2",
        "",
    ] {
        both.repeat(&batch(text, &[], &[]));
    }
    assert!(both.reuses() > 6);
    // Errors do not make it forget.
    let before = both.reuses();
    both.repeat(&batch(text, &[INT4], &["2", "a"]));
    assert!(both.reuses() >= before + 2);
}

#[test]
fn the_unnamed_statement_lives_as_long_as_it_would() {
    let mut both = Both::new(1, "proven", 1);
    let again = [bind("", "", &[Some(b"2".to_vec())]), execute("", 0), sync()];
    let described = [describe(b'S', ""), sync()];
    let ends: [Vec<Vec<u8>>; 10] = [
        vec![sync()],
        vec![query("SELECT 1")],
        vec![close(b'S', ""), sync()],
        vec![query("DEALLOCATE ALL")],
        vec![query("DISCARD ALL")],
        vec![parse("", "SELECT wrong", &[]), sync()],
        batch("SELECT 1", &[], &[]),
        batch("SELECT wrong FROM t", &[], &[]),
        vec![parse("s", "SELECT 1", &[]), close(b'S', "s"), sync()],
        vec![query("BEGIN"), query("ROLLBACK")],
    ];
    for end in ends {
        both.repeat(&by_id());
        both.say(&again);
        both.say(&described);
        both.repeat(&by_id());
        // Each message that is answered by ReadyForQuery for itself.
        let (queries, rest): (Vec<_>, Vec<_>) = end.into_iter().partition(|it| it[0] == b'Q');
        for message in queries {
            both.say(&[message]);
        }
        if !rest.is_empty() {
            both.say(&rest);
        }
        both.say(&described);
        both.say(&again);
    }
    assert!(both.reuses() > 30);
}

#[test]
fn a_text_is_read_under_the_settings_of_its_client() {
    let mut both = Both::new(1, "proven", 1);
    let date = batch(
        "SELECT '01/02/2003'::date + 0, to_char('2020-01-01'::date, '9')",
        &[],
        &[],
    );
    let date = [date, batch("SELECT '01/02/2003'::date + 0", &[], &[])];
    for setting in [
        "SET search_path = other",
        "SET DateStyle = 'German'",
        "SET search_path = public",
        "SET DateStyle = 'ISO, DMY'",
        "RESET ALL",
    ] {
        for batch in [by_id(), date[0].clone(), date[1].clone()] {
            both.repeat(&batch);
        }
        both.query(setting);
        for batch in [by_id(), date[0].clone(), date[1].clone()] {
            both.repeat(&batch);
        }
    }
    assert!(both.reuses() > 20);
}

#[test]
fn transactions_are_left_alone() {
    let mut both = Both::new(1, "proven", 1);
    both.repeat(&by_id());
    let before = both.reuses();
    both.query("BEGIN");
    both.repeat(&by_id());
    both.query("ALTER TABLE other.t ADD COLUMN d int");
    both.repeat(&by_id());
    both.migrate("ALTER TABLE t ADD COLUMN b int");
    both.repeat(&by_id());
    both.query("COMMIT");
    assert_eq!(both.reuses(), before);
    both.repeat(&by_id());
    assert!(both.reuses() > before);
}

#[test]
fn a_clients_own_temporary_table_is_in_front() {
    let mut both = Both::new(1, "proven", 1);
    both.query("CREATE TEMP TABLE first (x int)");
    both.repeat(&by_id());
    both.query("CREATE TEMP TABLE t (id int, mine int)");
    both.repeat(&by_id());
    both.query("DROP TABLE first, pg_temp.t");
    both.repeat(&by_id());
    let before = both.reuses();
    both.repeat(&by_id());
    assert!(both.reuses() > before);
}

#[test]
fn what_postgresql_would_not_notice_is_never_prepared() {
    let mut both = Both::new(1, "proven", 1);
    for (text, values) in [
        ("SELECT * FROM t WHERE id = $1", &["1"][..]),
        ("SELECT * FROM t WHERE a = 'a1'", &[]),
        ("SELECT id FROM t WHERE 'now'::timestamptz IS NULL", &[]),
        ("BEGIN", &[]),
        ("ROLLBACK", &[]),
        ("SET work_mem = 1000", &[]),
        ("EXPLAIN (COSTS OFF) SELECT 1", &[]),
        ("SELECT set_config('a.b', '1', false)", &[]),
    ] {
        both.repeat(&batch(text, &[], values));
        assert_eq!(both.reuses(), 0, "{text}");
    }
    let mut both = Both::new(1, "all", 1);
    both.repeat(&batch("SELECT * FROM t WHERE id = $1", &[], &["1"]));
    both.repeat(&batch("SELECT * FROM t WHERE a = 'a1'", &[], &[]));
    assert_eq!(both.reuses(), 4);
    both.repeat(&batch(
        "SELECT id FROM t WHERE 'now'::timestamptz IS NULL",
        &[],
        &[],
    ));
    assert_eq!(both.reuses(), 4);
}

#[test]
fn one_that_something_has_dropped_is_prepared_again() {
    let mut both = Both::new(1, "proven", 1);
    for drop in [
        "DEALLOCATE ALL",
        "DISCARD ALL",
        "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$",
    ] {
        both.repeat(&by_id());
        both.query(drop);
        let before = both.reuses();
        for _ in 0..4 {
            both.repeat(&by_id());
        }
        assert!(both.reuses() > before + 8, "{drop}");
    }
}

#[test]
fn batches_that_follow_at_once_wait_for_the_answer() {
    let mut both = Both::new(1, "proven", 2);
    both.repeat(&by_id());
    for sql in [
        "SELECT 1",
        "ALTER TABLE t ADD COLUMN b int",
        "DROP VIEW v; DROP TABLE t",
    ] {
        both.migrate(sql);
        for wire in &mut both.wires {
            wire.send_all(&by_id());
            wire.send_all(&by_id());
            wire.send_all(&[bind("", "", &[Some(b"3".to_vec())]), execute("", 0), sync()]);
        }
        for _ in 0..3 {
            let [direct, pooled] = [0, 1].map(|at| {
                let replies = both.wires[at].read_until_ready();
                let tables = &mut both.tables[at];
                let same = |message: &Message| message.comparable(tables);
                replies.iter().map(same).collect::<Vec<_>>()
            });
            assert_eq!(direct, pooled, "{sql}");
        }
    }
}

#[test]
fn a_plan_that_is_bad_for_some_values_is_given_up() {
    let database = postgres().database("adaptive");
    let setup = "CREATE TABLE skewed AS SELECT n AS id, CASE WHEN n > 499990 THEN n ELSE n % 2 END AS v \
                 FROM generate_series(1, 500000) n; \
                 ALTER TABLE skewed ADD PRIMARY KEY (id); CREATE INDEX ON skewed (v); \
                 ALTER TABLE skewed ALTER COLUMN v SET STATISTICS 100; ANALYZE skewed; \
                 GRANT ALL ON skewed TO PUBLIC";
    postgres().sql(&database, setup);
    let pooler = Pooler::start(|ini| {
        ini.set("default_pool_size", 1)
            .set("prepare_unnamed_after", 1);
    });
    let mut client = pooler.connect(&database);
    let mut run = |value: &str| {
        let text = "SELECT id FROM skewed WHERE v = $1 ORDER BY id LIMIT 1";
        let replies = client.exchange(&batch(text, &[INT4], &[value]));
        assert!(
            replies.iter().any(|message| message.tag == b'D'),
            "{replies:?}"
        );
    };
    let count = |column| pooler.stat(&database, column);
    // For the frequent values the primary key is the best way, and the mean of all values looks like that.
    (0..8).for_each(|_| run("1"));
    // For the rare ones that reads the whole table.
    let demoted = (0..300).any(|_| {
        run("500000");
        count("total_unnamed_demotion_count") == 1
    });
    assert!(demoted);
    let before = count("total_unnamed_reuse_count");
    (0..20).for_each(|_| run("500000"));
    assert_eq!(count("total_unnamed_reuse_count"), before);
    // Until the settings are read again.
    pooler.reload();
    (0..20).for_each(|_| run("1"));
    assert!(count("total_unnamed_reuse_count") > before);
}
