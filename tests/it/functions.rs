//! Which functions, and what else, a real server says may touch the session.

use pgferry::sql::functions::STATEFUL;

use crate::support::postgres;

const MADE: &str = r#"
CREATE TABLE t (a int, b text);
CREATE SEQUENCE s;
CREATE FUNCTION sets() RETURNS void LANGUAGE plpgsql AS $$ BEGIN SET work_mem = '1MB'; END $$;
CREATE FUNCTION uses_sets() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM Sets(); END $$;
CREATE FUNCTION uses_it_again() RETURNS void LANGUAGE sql AS $$ SELECT public.uses_sets() $$;
CREATE FUNCTION after_lock() RETURNS void LANGUAGE plpgsql AS $$ DECLARE r record; BEGIN
    FOR r IN SELECT * FROM t FOR UPDATE LOOP SET work_mem = '1MB'; END LOOP; END $$;
CREATE FUNCTION dynamic(s text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE s; END $$;
CREATE FUNCTION "odd name"() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_lock(1)';
CREATE FUNCTION uses_odd() RETURNS void LANGUAGE sql AS 'SELECT "odd name"()';
CREATE PROCEDURE locks() LANGUAGE sql AS 'SELECT pg_advisory_lock(1)';
CREATE FUNCTION step(int, int) RETURNS int LANGUAGE sql AS 'SELECT currval(''s'')::int';
CREATE AGGREGATE collects(int) (sfunc = step, stype = int);
CREATE OPERATOR ### (leftarg = int, rightarg = int, function = step);
CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM set_config('a.b', '', false); RETURN new; END $$;
CREATE TRIGGER fired BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fires();
CREATE VIEW seen AS SELECT set_config('a.b', '', false);
CREATE TABLE d (a int DEFAULT step(1, 2), CONSTRAINT checked CHECK (a <> step(1, 1)));
CREATE POLICY guard ON t USING (pg_try_advisory_lock(1));

CREATE FUNCTION adds() RETURNS void LANGUAGE sql AS 'INSERT INTO t VALUES (1)';
CREATE FUNCTION uses_adds() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM adds(); END $$;
CREATE FUNCTION adds_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM adds(); RETURN new; END $$;
CREATE TRIGGER added AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION adds_row();
CREATE VIEW asks AS SELECT lastval();

CREATE FUNCTION quiet(n int) RETURNS int LANGUAGE plpgsql AS $$ DECLARE x int; BEGIN
    UPDATE t SET a = n WHERE a = 1; UPDATE ONLY public.t AS u SET a = 2;
    SET LOCAL work_mem = '1MB'; RETURN n; END $$;
CREATE FUNCTION quiet_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN new; END $$;
CREATE TRIGGER quiet BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION quiet_trigger();
CREATE AGGREGATE quiet_sum(int) (sfunc = int4pl, stype = int);
CREATE VIEW quiet_view AS SELECT a, quiet(a) FROM t;
"#;

#[test]
fn the_server_lists_what_may_touch_the_session() {
    let database = postgres().database("functions");
    postgres().sql(&database, MADE);
    let mut expected = vec![
        "constraint checked",
        "default d",
        "draws adds",
        "draws adds_row",
        "draws dynamic",
        "draws uses_adds",
        "fires added",
        "function after_lock",
        "function collects",
        "function dynamic",
        "function fires",
        "function locks",
        "function odd name",
        "function sets",
        "function step",
        "function uses_it_again",
        "function uses_odd",
        "function uses_sets",
        "hidden asks",
        "operator ###",
        "policy guard",
        "reads collects",
        "reads step",
        "rule asks",
        "rule seen",
        "setting a.b",
        "trigger fired",
    ];
    let parsed = postgres().value(&database, "SHOW server_version_num");
    if parsed.parse::<u32>().unwrap() >= 140_000 {
        let sql = "CREATE FUNCTION parsed() RETURNS text LANGUAGE sql
                BEGIN ATOMIC SELECT set_config('a.b', '', false); END;
            CREATE FUNCTION quiet_parsed(n int DEFAULT 3) RETURNS int LANGUAGE sql RETURN n + 1";
        postgres().sql(&database, sql);
        expected.push("function parsed");
    }
    expected.sort_unstable();
    let rows = postgres().sql(&database, STATEFUL);
    assert_eq!(rows.columns, ["kind", "name"]);
    let mut found: Vec<String> = (0..rows.rows.len())
        .map(|row| format!("{} {}", rows.get(row, "kind"), rows.get(row, "name")))
        .collect();
    found.sort();
    assert_eq!(found, expected);
}
