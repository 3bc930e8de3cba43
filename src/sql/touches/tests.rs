use super::*;
use proptest::prelude::*;

fn is_stateful(name: &[u8]) -> bool {
    matches!(name, b"mine" | b"Mine" | b"m") || name == "é".repeat(31).as_bytes()
}

/// What is found in short: the kinds, and the settings behind a colon.
fn short(found: Option<Box<Found>>) -> String {
    let Some(found) = found else {
        return String::new();
    };
    let touches = match found.touches {
        Touches::ALL => "ALL".to_owned(),
        Touches::BODY => "BODY".to_owned(),
        touches if touches == Touches::BODY.union(Touches::UNKNOWN_NAME) => "BODY ?".to_owned(),
        touches => format!("{touches:?}")
            .replace("UNKNOWN_NAME", "?")
            .replace(" |", ""),
    };
    let settings = found.settings.iter().map(|setting| match setting {
        Setting::Named(name) => format!(" {}", String::from_utf8_lossy(name)),
        Setting::Parameter(number) => format!(" ${number}"),
    });
    let settings: String = settings.collect();
    if settings.is_empty() {
        touches
    } else {
        format!("{touches}:{settings}")
    }
}

fn all_say(table: &[(&str, &str)]) {
    for (sql, expected) in table {
        let found = touches(sql.as_bytes(), &is_stateful);
        assert_eq!(&short(found), expected, "{sql}");
        let found = look_closely(sql.as_bytes(), &is_stateful);
        assert_eq!(&short(found), expected, "looked at closely: {sql}");
    }
}

#[test]
fn settings_are_found_with_the_names_that_have_a_dot() {
    all_say(&[
        ("SET work_mem = '1MB'", "SETTINGS"),
        ("set app.tenant = 'a.b'", "SETTINGS: app.tenant"),
        ("SET SESSION App.Tenant TO 1", "SETTINGS: app.tenant"),
        (
            "SET \"App\" . /* x */ \"Ten\"\"ant\".x TO 1",
            "SETTINGS: app.ten\"ant.x",
        ),
        (
            "set session.x = 1; set local.x to 1",
            "SETTINGS: session.x local.x",
        ),
        (
            "set transaction.x = 1; set constraints.x to 1",
            "SETTINGS: transaction.x constraints.x",
        ),
        ("set session session.x = 1", "SETTINGS: session.x"),
        ("set u&\"a.b\".c = 1", "SETTINGS: a.b.c"),
        (r#"set u&"a\0062".c = 1"#, "SETTINGS ?"),
        ("set u&\"a!0062\" uescape '!' = 1", "SETTINGS ?"),
        ("SET ROLE app", "SETTINGS"),
        ("SET SESSION AUTHORIZATION DEFAULT", "SETTINGS"),
        (
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
            "SETTINGS",
        ),
        ("SET TIME ZONE 'Europe/Rome'", "SETTINGS"),
        ("SET NAMES 'utf8'", "SETTINGS"),
        ("RESET app.tenant", "SETTINGS: app.tenant"),
        ("reset all", "SETTINGS"),
        (
            "update pg_settings set setting = 'x' where name = 'y'",
            "SETTINGS",
        ),
        (
            "update only pg_catalog . pg_settings set setting = 'x'",
            "SETTINGS",
        ),
        ("update \"pg_settings\" set setting = 'x'", "SETTINGS"),
        (
            "explain analyze update pg_settings set setting = 'x'",
            "SETTINGS",
        ),
        (
            "with x as (update pg_settings set setting = 1) select",
            "SETTINGS",
        ),
        (
            "begin; set a.b = 1; set A.B = 2; set c.d = 1",
            "SETTINGS: a.b c.d",
        ),
    ]);
}

#[test]
fn set_config_is_found_with_the_setting_it_names() {
    all_say(&[
        ("select set_config('app.x', $1, false)", "SETTINGS: app.x"),
        (
            "select pg_catalog.set_config('App.X', '1', false)",
            "SETTINGS: app.x",
        ),
        ("select \"set_config\" ('a.b', '1', $1)", "SETTINGS: a.b"),
        (
            "select pg_catalog . SET_CONFIG -- (\n /* x */ ('a.b', '1', $1)",
            "SETTINGS: a.b",
        ),
        ("select set_config -- x\n ('a.b', '1', $1)", "SETTINGS: a.b"),
        ("select set_config/**/('a.b', '1', $1)", "SETTINGS: a.b"),
        ("select\n set_config\n(\n'a.b', '1', $1)", "SETTINGS: a.b"),
        ("select 1set_config('a.b', '1', $1)", "SETTINGS: a.b"),
        ("select $$x$$set_config('a.b', '1', $1)", "SETTINGS: a.b"),
        ("select U&\"set_config\"('a.b', '1', $1)", "SETTINGS: a.b"),
        (r#"select U&"set\005fconfig"('a.b', '1', $1)"#, "ALL"),
        (
            "select U&\"set!005fconfig\" UESCAPE '!' ('a.b', '1', $1)",
            "ALL",
        ),
        (
            "select U&\"set!005fconfig\" UESCAPE $$!$$ ('a.b', '1', $1)",
            "ALL",
        ),
        ("select set_config('work_mem', '1', false)", "SETTINGS"),
        ("select set_config($1, $2, false)", "SETTINGS: $1"),
        (
            "select set_config($2::text, $1, $3), set_config($2, '', false)",
            "SETTINGS: $2",
        ),
        ("select set_config($70000, $2, false)", "SETTINGS ?"),
        ("select set_config($0, $2, false)", "SETTINGS ?"),
        ("select set_config(name, v, false) from t", "SETTINGS ?"),
        ("select set_config('a.' || 'b', v, false)", "SETTINGS ?"),
        ("select set_config('a.'\n 'b', v, false)", "SETTINGS ?"),
        (r"select set_config(E'a\x2eb', v, false)", "SETTINGS ?"),
        ("select set_config(E'a.b', v, false)", "SETTINGS: a.b"),
        (
            "select set_config($q$a.b$q$::text, v, false)",
            "SETTINGS: a.b",
        ),
        ("select set_config(u&'a.b', v, false)", "SETTINGS ?"),
    ]);
}

#[test]
fn what_is_surely_local_does_not_count() {
    all_say(&[
        ("select set_config('a.b', v, true)", ""),
        ("select set_config('a.b', f(v, 1), TRUE)", ""),
        (
            "select set_config('a.b', v, 'on'), set_config($1, $2, 't'::bool)",
            "",
        ),
        ("select set_config('a.b', v, not true)", "SETTINGS: a.b"),
        (
            "select set_config('a.b', v, true and false)",
            "SETTINGS: a.b",
        ),
        ("select set_config('a.b', v, false)", "SETTINGS: a.b"),
        ("select set_config('a.b', v, \"true\")", "SETTINGS: a.b"),
        ("select set_config('a.b', v)", "SETTINGS: a.b"),
        ("select set_config(", "SETTINGS ?"),
        (
            "select set_config('a.b', set_config('c.d', '', false), true)",
            "SETTINGS: c.d",
        ),
        (
            "prepare p as select set_config($1, $2, false)",
            "SETTINGS STATEMENTS ?",
        ),
        (
            "copy (select set_config('a.b', '', false)) to stdout",
            "SETTINGS: a.b",
        ),
        (
            "insert into t values (set_config('a.b', '', false))",
            "SETTINGS: a.b",
        ),
        (
            "select 'set_config(1)', $$set_config(1)$$ -- set_config(1)",
            "",
        ),
        ("select \"SET_CONFIG\"(1), set_configs(1), set_config", ""),
    ]);
}

#[test]
fn more_settings_than_are_kept_may_be_any() {
    let statements: Vec<_> = (0..100).map(|at| format!("set a.b{at} = 1")).collect();
    let sql = statements.join(";");
    let found = touches(sql.as_bytes(), &is_stateful).unwrap();
    assert_eq!(found.settings.len(), 64);
    assert!(found.touches.contains(Touches::UNKNOWN_NAME));
    let long = format!("set a.{} = 1", "b.".repeat(2000));
    let found = touches(long.as_bytes(), &is_stateful).unwrap();
    assert!(found.touches.contains(Touches::UNKNOWN_NAME));
}

#[test]
fn temporary_objects_are_found() {
    all_say(&[
        ("CREATE TEMP TABLE t ()", "TEMPORARY"),
        (
            "create or replace local temporary view v as select 1",
            "TEMPORARY",
        ),
        ("create table pg_temp.t ()", "TEMPORARY"),
        ("create table t ()", "TEMPORARY"),
        (
            "create function pg_temp.f() returns int language sql as ''",
            "TEMPORARY",
        ),
        (
            "create function \"pg_temp\".f() returns int language sql as ''",
            "TEMPORARY",
        ),
        ("create sequence s", "TEMPORARY"),
        ("drop table t", "TEMPORARY"),
        ("alter table pg_temp_3.t rename to u", "TEMPORARY"),
        ("select 1 into t", "TEMPORARY"),
        ("(select 1 INTO temp t)", "TEMPORARY"),
        (
            "with x as (insert into t values (1)) select 1 as a\ninto b",
            "TEMPORARY",
        ),
        ("explain (analyze, verbose) select 1 into t", "TEMPORARY"),
        (
            "explain analyze verbose create table t as select 1",
            "TEMPORARY",
        ),
        ("create table t as execute p", "BODY"),
        (
            "select pg_create_physical_replication_slot('x', true, true)",
            "TEMPORARY",
        ),
        ("with x as (insert /* a */ into t values (1)) select 1", ""),
        ("insert into t select a from b", ""),
        (
            "merge into t using s on (true) when matched then do nothing",
            "",
        ),
        ("select a as \"into\", 'x into y' from b", ""),
        ("alter table t add column c int", ""),
        ("create index on t (a)", ""),
        ("create role r", ""),
    ]);
}

#[test]
fn calls_are_found_wherever_they_stand() {
    all_say(&[
        ("select pg_advisory_lock(1)", "LOCKS"),
        ("SELECT PG_TRY_ADVISORY_LOCK_SHARED (1, 2)", "LOCKS"),
        ("select pg_advisory_unlock_all()", "LOCKS"),
        ("select other.take_advisory(1)", "LOCKS"),
        ("with x as (select pg_advisory_lock(1)) select 1", "LOCKS"),
        (
            "delete from t where \"pg_advisory_lock\"(1) is null",
            "LOCKS",
        ),
        (
            "select pg_advisory_xact_lock(1), pg_try_advisory_xact_lock_shared(1)",
            "",
        ),
        ("select currval('s'), lastval()", "SEQUENCES"),
        ("SELECT Pg_Catalog . \"currval\" ('s')", "SEQUENCES"),
        ("values (LASTVAL ())", "SEQUENCES"),
        ("select \"LASTVAL\"(), currvals(1)", ""),
        ("select nextval('s'), setval('s', 1)", ""),
        ("select query_to_xml('select 1', true, true, '')", "BODY ?"),
        ("select mine(1)", "BODY"),
        ("select public . Mine(1)", "BODY"),
        ("select public.\"Mine\"(1)", "BODY"),
        ("insert into t values ((m()))", "BODY"),
        ("select \"MINE\"(1), my(1), mines(1)", ""),
        ("create view v as select mine()", "BODY"),
        ("fetch 1 from c", ""),
    ]);
    let long = format!("select {}(1)", "é".repeat(40));
    assert_eq!(
        short(touches(long.as_bytes(), &is_stateful)),
        "BODY",
        "names are cut"
    );
}

#[test]
fn statements_that_touch_by_themselves_are_found() {
    all_say(&[
        ("declare c cursor with hold for select 1", "CURSORS"),
        ("declare c cursor without hold for select 1", ""),
        ("declare c cursor for select pg_advisory_lock(1)", "LOCKS"),
        ("close c", "CURSORS"),
        ("PREPARE p AS select 1", "STATEMENTS"),
        ("prepare transaction (int) as select 1", "STATEMENTS"),
        ("prepare transaction 'x'", ""),
        ("execute p('app.x', 'y z')", "BODY: app.x"),
        ("deallocate p", "STATEMENTS"),
        ("deallocate all", "STATEMENTS"),
        ("listen c", "CHANNELS"),
        ("UNLISTEN *", "CHANNELS"),
        ("notify c", ""),
        ("load 'x'", "LIBRARY"),
        ("call p('App.x', $1)", "BODY: app.x"),
        ("discard all", "BODY"),
        ("discard plans", "BODY"),
        ("listen c; load 'x';; close c", "CURSORS CHANNELS LIBRARY"),
        ("select ';'; /* x */ listen c", "CHANNELS"),
        ("explain execute p", "BODY"),
        ("\u{b}/* x */ -- y\n listen c", "CHANNELS"),
        (
            "set local a.b = 1; SET TRANSACTION READ ONLY; set constraints all deferred",
            "",
        ),
        (
            "create function f() returns int language sql as $$ set a.b = 1 $$",
            "",
        ),
        (
            "create or replace procedure f() begin atomic select set_config('a', '', false)",
            "",
        ),
    ]);
}

#[test]
fn blocks_are_read_for_the_settings_they_name() {
    all_say(&[
        ("do $$ begin null; end $$", "BODY"),
        (
            "do language plpgsql 'begin set a.b = ''c d''; end'",
            "BODY: a.b",
        ),
        (
            "DO $x$ begin perform set_config('a.b', $q$c.d$q$, true); reset e.f; end $x$",
            "BODY: a.b c.d e.f",
        ),
        (
            "do $$ begin perform set_config(name, '', false); end $$",
            "BODY ?",
        ),
        (
            "do $$ begin perform set_config($1, '', false); end $$",
            "BODY ?",
        ),
        ("do $$ begin execute 'set a.b = 1'; end $$", "BODY: a.b"),
        ("do $$ begin execute 'deallocate all'; end $$", "BODY"),
        (
            "do $$ begin execute 'select $1' into x using y; end $$",
            "BODY",
        ),
        ("do $$ begin execute 'set ' || name; end $$", "BODY ?"),
        ("do $$ begin execute statement; end $$", "BODY ?"),
        (
            "do $$ begin execute format('create table %I (v text default %L)', t, d); end $$",
            "BODY",
        ),
        (
            "do $$ begin execute format('set %I = 1', t); end $$",
            "BODY ?",
        ),
        ("do $$ begin execute format('%s', t); end $$", "BODY ?"),
        (
            "do $$ begin execute format('select set_config(%L, %L, false)', a, b); end $$",
            "BODY ?",
        ),
        (
            "do $$ begin load 'x'; end $$",
            "SETTINGS TEMPORARY LOCKS CURSORS STATEMENTS CHANNELS LIBRARY",
        ),
        (
            "do $$ begin perform lastval(); end $$",
            "SETTINGS TEMPORARY LOCKS CURSORS STATEMENTS CHANNELS SEQUENCES",
        ),
        (r"do E'begin null;\nend'", "BODY ?"),
        ("do 'begin '\n'end'", "BODY"),
        ("do language plperl $$ x $$", "BODY ?"),
        ("do $$ x $$ language 'plpython3u'", "BODY ?"),
        ("do $$ x $$ language 'plpgsql'", "BODY"),
        ("do $$ begin 'x", "BODY ?"),
    ]);
}

#[test]
fn ordinary_texts_do_not_get_past_the_first_look() {
    for sql in [
        "",
        " ",
        "-- x",
        "SELECT abalance FROM pgbench_accounts WHERE aid = 123;",
        "BEGIN",
        "COMMIT;",
        "END;",
        "rollback to savepoint x",
        "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = 5;",
        "INSERT INTO h (a,b) VALUES ($1, CURRENT_TIMESTAMP)",
        "INSERT INTO \"users\" (\"id\", \"name\") VALUES ($1, $2) RETURNING \"id\"",
        "select count(*), coalesce(max(a), 0) from t where a in (1, 2) and (b or c);\n",
        "SELECT x\nFROM t\nWHERE a IN\n(\n  SELECT 1\n)",
        "/* app */ select pg_advisory_xact_lock(1)",
        "with x as (select 1) select * from x",
        "select * from pg_settings where x ilike 'y'",
        "copy t from stdin",
        "show all",
    ] {
        assert!(touches_nothing(sql.as_bytes(), &is_stateful), "{sql}");
    }
    for sql in [
        "select ';' from t;",
        "set x = 1",
        "select 1 -- x\n(",
        "alter table t",
    ] {
        assert!(!touches_nothing(sql.as_bytes(), &is_stateful), "{sql}");
    }
}

#[test]
fn kinds_are_shown_by_their_names() {
    assert_eq!(format!("{:?}", Touches::NONE), "NONE");
    let both = Touches::LOCKS.union(Touches::SETTINGS);
    assert_eq!(format!("{both:?}"), "SETTINGS | LOCKS");
    assert!(both.contains(Touches::LOCKS) && !both.contains(Touches::ALL));
    assert!(Touches::ALL.contains(Touches::BODY) && !Touches::BODY.is_empty());
}

#[test]
fn hostile_texts_take_linear_time_and_memory() {
    for piece in [
        "set_config(",
        "(",
        "\n(",
        "\"(",
        "\"\"(",
        "x--\n(",
        "'a.b',",
        "i",
        "update ",
        "set a.",
    ] {
        for before in ["select ", "do $$ ", "call f(", "with "] {
            let sql = format!("{before}{}", piece.repeat(20_000));
            touches(sql.as_bytes(), &is_stateful);
        }
    }
}

const PIECES: &[&str] = &[
    "select ",
    "with ",
    "x as ",
    "update ",
    "only ",
    "pg_settings",
    "pg_catalog",
    ".",
    "insert ",
    "into ",
    "set ",
    "local ",
    "session ",
    "to ",
    "a.b",
    " = 1",
    "set_config",
    "\"set_config\"",
    "SET_CONFIG",
    "mine",
    "m",
    "(",
    ")",
    ",",
    "'a.b'",
    "true",
    "false",
    "$1",
    "$$",
    "$q$",
    "'",
    "\"",
    "U&\"",
    "u&",
    "\\0061",
    " uescape '!'",
    "e'",
    "--",
    "\n",
    "\r",
    " ",
    "\t",
    "\u{b}",
    "/*",
    "*/",
    "/",
    ";",
    "1",
    "1.",
    "é",
    "do ",
    "call ",
    "execute ",
    "prepare ",
    "explain ",
    "analyze ",
    "create ",
    "temp ",
    "table ",
    "function ",
    "alter ",
    "pg_temp",
    "drop ",
    "declare ",
    "with hold ",
    "listen ",
    "load ",
    "copy ",
    "values",
    "end",
    "begin",
    "merge ",
    "pg_advisory_lock",
    "currval",
    "transaction ",
    "language ",
    "in",
    "::text",
    "delete ",
    "i",
    "u",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn any_bytes_are_read_without_a_panic(sql: Vec<u8>) {
        touches(&sql, &is_stateful);
        look_closely(&sql, &is_stateful);
        look_closely(&[b"do $$", &sql[..]].concat(), &is_stateful);
    }

    #[test]
    fn the_first_look_never_hides_anything(
        first in 0..10usize, rest in prop::collection::vec(prop::sample::select(PIECES), 0..14)
    ) {
        let first = ["select ", "with ", "update ", "insert ", "end ", "copy ", "", "(", "merge ", "SELECT "][first];
        let sql = format!("{first}{}", rest.concat());
        prop_assert_eq!(
            touches(sql.as_bytes(), &is_stateful),
            look_closely(sql.as_bytes(), &is_stateful),
            "{}", sql
        );
    }
}
