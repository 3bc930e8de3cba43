//! Sessions of several clients, made up at random from a seed, run twice: each client on a connection of its own to
//! PostgreSQL, and through the pooler, which gives every transaction to another server. Every reply must be the same.
//!
//! `PGFERRY_SEEDS=1..200 PGFERRY_STEPS=2000` makes it a long one (`scripts/differential`).

use std::fmt::Write;
use std::ops::Range;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::support::message::Message;
use crate::support::{Pooler, Wire, frontend, postgres, wait_until};

const CLIENTS: usize = 4;

/// So many of a client's last steps are shown when one goes wrong.
const SHOWN: usize = 60;

/// What all scripts find in their database.
const SCHEMA: &str = "
    CREATE SCHEMA a; CREATE SCHEMA b;
    CREATE TABLE a.t (v text); INSERT INTO a.t VALUES ('in a');
    CREATE TABLE b.t (v int); INSERT INTO b.t VALUES (42);
    CREATE FUNCTION public.sets(name text, value text) RETURNS text LANGUAGE plpgsql AS
        $$ BEGIN PERFORM set_config(name, value, false); RETURN 'set'; END $$;
    CREATE FUNCTION public.sets_own() RETURNS text LANGUAGE plpgsql AS
        $$ BEGIN SET work_mem = '3MB'; PERFORM public.sets('app.tenant', 'mine'); RETURN 'set'; END $$;
    CREATE FUNCTION public.locks(key int) RETURNS bool LANGUAGE sql AS $$ SELECT pg_try_advisory_lock(key) $$;
    CREATE TABLE public.log (id serial, who text DEFAULT current_user);
    CREATE SEQUENCE public.s;
    CREATE FUNCTION public.adds() RETURNS bigint LANGUAGE sql AS
        $$ INSERT INTO public.log (id, who) VALUES (DEFAULT, 'x'); SELECT lastval() $$;
    GRANT ALL ON public.s TO PUBLIC;
    GRANT USAGE ON SCHEMA a, b TO PUBLIC; GRANT SELECT ON a.t, b.t TO PUBLIC;
    GRANT ALL ON public.log, public.log_id_seq TO PUBLIC; GRANT CREATE ON SCHEMA public TO PUBLIC;";

/// One step of one client.
#[derive(Debug, Clone)]
enum Step {
    Simple(String),
    /// By the extended protocol, under this name if it is not empty; the values are text.
    Extended(String, String, Vec<String>),
    /// It leaves, by Terminate or without a word, and another comes in its place.
    Leave(bool),
}

/// Makes up what clients do. It knows who is in a transaction only as far as to end one now and then.
struct Script {
    random: StdRng,
    open: [bool; CLIENTS],
    count: usize,
    /// Sequences are drawn from, and asked. Who has drawn stays where it is, so not in all scripts.
    draws: bool,
}

impl Script {
    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from.choose(&mut self.random).unwrap()
    }

    fn setting(&mut self) -> (&'static str, &'static str) {
        let (name, values): (_, &[_]) = *[
            ("work_mem", &["'64MB'", "'128kB'", "1024"][..]),
            (
                "search_path",
                &["a", "b", "b, a", "'a'", "\"$user\", public"],
            ),
            ("app.tenant", &["'one'", "'two'", "'it''s'"]),
            ("App.Other", &["'x'"]),
            ("DateStyle", &["'ISO, DMY'", "'German'", "'SQL, MDY'"]),
            ("TimeZone", &["'UTC'", "'Asia/Tokyo'", "'America/New_York'"]),
            ("IntervalStyle", &["'iso_8601'", "'postgres'"]),
            ("enable_seqscan", &["off", "on"]),
            ("extra_float_digits", &["0", "-5"]),
            ("bytea_output", &["'escape'", "'hex'"]),
            ("lock_timeout", &["'5s'", "0"]),
            ("application_name", &["'me'", "'you'"]),
            (
                "default_transaction_isolation",
                &["'serializable'", "'read committed'"],
            ),
        ]
        .choose(&mut self.random)
        .unwrap();
        (name, self.pick(values))
    }

    fn change_of_setting(&mut self) -> String {
        let (name, value) = self.setting();
        let text = if value.starts_with('\'') {
            value.to_owned()
        } else {
            format!("'{}'", value.replace('\'', "''"))
        };
        match self.random.random_range(0..15) {
            0..4 => format!("SET {name} = {value}"),
            4 => format!("SET SESSION {name} TO {value}"),
            5 => format!("SET LOCAL {name} = {value}"),
            6 => format!("RESET {name}"),
            7 => "RESET ALL".to_owned(),
            8 => format!("SELECT set_config('{name}', {text}, false)"),
            9 => format!("SELECT pg_catalog.set_config('{name}', {text}, true)"),
            10 => format!("DO $$ BEGIN PERFORM set_config('{name}', {text}, false); END $$"),
            11 => format!("SET {name} TO DEFAULT"),
            12 => format!("SELECT public.sets('{name}', {text})"),
            13 => "SELECT public.sets_own()".to_owned(),
            _ => format!("SELECT 1; SET {name} = {value}; SELECT 2"),
        }
    }

    fn look(&mut self) -> String {
        let (name, _) = self.setting();
        match self.random.random_range(0..8) {
            0..3 => format!("SELECT coalesce(current_setting('{name}', true), '')"),
            3 => "SELECT current_user, session_user".to_owned(),
            4 => "SELECT * FROM t".to_owned(),
            5 => "SELECT now() < 'infinity', '01/02/2003'::date, '1 day 2 hours'::interval".to_owned(),
            6 => "SELECT '\\x00ff'::bytea, 1.5::float8, current_schemas(false)".to_owned(),
            _ => "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
                .to_owned(),
        }
    }

    /// State that lives on a server.
    fn belonging(&mut self) -> String {
        let number = self.random.random_range(0..3);
        match self.random.random_range(0..23) {
            0 => format!("CREATE TEMP TABLE tmp{number} (v int)"),
            1 => format!("CREATE TEMPORARY TABLE tmp{number} ON COMMIT DROP AS SELECT 1 AS v"),
            2 => format!("SELECT {number} AS v INTO TEMP tmp{number}"),
            3 => format!("INSERT INTO tmp{number} VALUES (1) RETURNING v"),
            4 => format!("SELECT count(*) FROM tmp{number}"),
            5 => format!("DROP TABLE tmp{number}"),
            6 => self
                .pick(&[
                    "SELECT pg_try_advisory_lock(7)",
                    "SELECT public.locks(7)",
                    "SELECT pg_advisory_unlock(7)",
                ])
                .to_owned(),
            7 => format!(
                "WITH l AS (SELECT pg_try_advisory_lock({number}) AS got) SELECT got FROM l"
            ),
            8 => format!("SELECT pg_advisory_unlock({number})"),
            9 => "SELECT pg_advisory_unlock_all()".to_owned(),
            10 => format!("SELECT pg_try_advisory_xact_lock({number})"),
            11 => format!(
                "DECLARE c{number} CURSOR WITH HOLD FOR SELECT g FROM generate_series(1, 5) g"
            ),
            12 => format!("FETCH 2 FROM c{number}"),
            13 => format!("CLOSE c{number}"),
            14 => format!(
                "PREPARE p{number}(int) AS SELECT $1 + {number}, current_setting('work_mem')"
            ),
            15 => format!("EXECUTE p{number}(10)"),
            16 => format!("DEALLOCATE p{number}"),
            17 => self
                .pick(&["DISCARD ALL", "DISCARD TEMP", "DEALLOCATE ALL", "CLOSE ALL"])
                .to_owned(),
            18 => self
                .pick(&[
                    "SET ROLE other",
                    "RESET ROLE",
                    "SET ROLE NONE",
                    "SET SESSION ROLE other",
                ])
                .to_owned(),
            19 => format!(
                "PREPARE q{number}(text) AS SELECT set_config('work_mem', $1, false) AS set"
            ),
            20 => format!("EXECUTE q{number}('{}MB')", number + 5),
            21 => format!("SELECT 1; PREPARE p{number} AS SELECT $1 || ';' AS v; SELECT 2"),
            _ => "SELECT count(*) FROM pg_prepared_statements WHERE from_sql".to_owned(),
        }
    }

    fn draw(&mut self) -> String {
        self.pick(&[
            "SELECT nextval('public.s')",
            "SELECT setval('public.s', 100)",
            "INSERT INTO public.log (who) VALUES ('y')",
            "INSERT INTO public.log (who) VALUES ('y') RETURNING currval('public.log_id_seq') > 0",
            "SELECT public.adds()",
            "DO $$ BEGIN PERFORM nextval('public.s'); END $$",
            "SELECT lastval()",
            "SELECT lastval()",
            "SELECT currval('public.s')",
            "SELECT currval('public.log_id_seq')",
            "DISCARD SEQUENCES",
            "DISCARD SEQUENCES",
            "DISCARD ALL",
        ])
        .to_owned()
    }

    fn transaction(&mut self, client: usize) -> String {
        if self.open[client] && self.random.random_range(0..2) == 0 {
            self.open[client] = false;
            return self
                .pick(&["COMMIT", "ROLLBACK", "END", "ABORT"])
                .to_owned();
        }
        if self.open[client] {
            return self
                .pick(&["SAVEPOINT s", "ROLLBACK TO s", "RELEASE s", "SELECT 1/0"])
                .to_owned();
        }
        self.open[client] = true;
        self.pick(&["BEGIN", "START TRANSACTION"]).to_owned()
    }

    fn step(&mut self, client: usize) -> Step {
        self.count += 1;
        let sql = match self.random.random_range(0..100) {
            0..25 => self.change_of_setting(),
            25..50 if self.draws && self.random.random_range(0..2) == 0 => self.draw(),
            25..50 => self.look(),
            50..75 => self.belonging(),
            75..97 => self.transaction(client),
            _ => {
                self.open[client] = false;
                return Step::Leave(self.random.random_range(0..2) == 0);
            }
        };
        match self.random.random_range(0..10) {
            0..2 if !sql.contains("SELECT 1; ") => Step::Extended(String::new(), sql, Vec::new()),
            2 => {
                let name = format!("s{}", self.count);
                Step::Extended(name, sql, Vec::new())
            }
            3 => {
                let (name, value) = self.setting();
                Step::Extended(
                    String::new(),
                    "SELECT set_config($1, $2, false)".to_owned(),
                    vec![name.to_owned(), value.trim_matches('\'').to_owned()],
                )
            }
            _ => Step::Simple(sql),
        }
    }
}

/// One side of the comparison.
struct Side<'a> {
    connect: &'a dyn Fn() -> Wire,
    clients: Vec<Wire>,
}

impl<'a> Side<'a> {
    fn new(connect: &'a dyn Fn() -> Wire) -> Self {
        Self {
            clients: (0..CLIENTS).map(|_| connect()).collect(),
            connect,
        }
    }

    fn run(&mut self, client: usize, step: &Step) -> String {
        let wire = &mut self.clients[client];
        let replies = match step {
            Step::Simple(sql) => wire.query(sql),
            Step::Extended(name, sql, values) => {
                let values: Vec<_> = values
                    .iter()
                    .map(|value| Some(value.as_bytes().to_vec()))
                    .collect();
                wire.exchange(&[
                    frontend::parse(name, sql, &[]),
                    frontend::bind("", name, &values),
                    frontend::describe(b'P', ""),
                    frontend::execute("", 0),
                    frontend::sync(),
                ])
            }
            Step::Leave(orderly) => {
                if *orderly {
                    wire.send(&frontend::terminate());
                }
                let old = std::mem::replace(wire, (self.connect)());
                old.abort();
                return "another client".to_owned();
            }
        };
        shown(&replies)
    }
}

/// What must be the same: everything but what a server reports of its parameters, and the lines of its source.
pub fn shown(replies: &[Message]) -> String {
    let mut text = String::new();
    for message in replies {
        match message.tag {
            b'S' | b'N' => continue,
            b'D' => write!(text, "{:?}", message.values()).unwrap(),
            b'T' => write!(text, "{:?}", message.columns()).unwrap(),
            b'E' => write!(
                text,
                "{} {} {}",
                message.field('S').unwrap_or_default(),
                message.sqlstate(),
                message.field('M').unwrap_or_default()
            )
            .unwrap(),
            _ => write!(
                text,
                "{}{}",
                char::from(message.tag),
                String::from_utf8_lossy(&message.body)
            )
            .unwrap(),
        }
        text.push('\n');
    }
    text
}

fn run(seed: u64, steps: usize) {
    let direct = postgres().database("differential");
    let pooled = postgres().database("differential");
    for database in [&direct, &pooled] {
        postgres().sql(database, SCHEMA);
        postgres().sql("postgres", "GRANT other TO app");
    }
    let draws = seed.is_multiple_of(2);
    let pooler = Pooler::start(|ini| {
        ini.set("follow_sequences", if draws { "on" } else { "auto" })
            .set("default_pool_size", CLIENTS + 1)
            .set("server_round_robin", 1)
            .set("server_lifetime", 3600);
    });
    let connect_direct = || Wire::login(postgres().address(), "app", &direct, None).unwrap();
    let connect_pooled = || pooler.connect(&pooled);
    let mut sides = [Side::new(&connect_direct), Side::new(&connect_pooled)];
    let mut script = Script {
        random: StdRng::seed_from_u64(seed),
        open: [false; CLIENTS],
        count: 0,
        draws,
    };
    let mut history = String::new();
    for number in 0..steps {
        let client = script.random.random_range(0..CLIENTS);
        let step = script.step(client);
        writeln!(history, "{number}: client {client}: {step:?}").unwrap();
        let [expected, found] = [0, 1].map(|side| sides[side].run(client, &step));
        assert_eq!(
            expected,
            found,
            "seed {seed}, step {number}, client {client}: {step:?}\nof the client's last steps:\n{}",
            last_of(&history, client)
        );
        if matches!(step, Step::Leave(_)) {
            settled(&direct, &pooled, &pooler);
        }
    }
}

/// What a client that left had is gone when its server has noticed, or the pooler has cleaned it.
fn settled(direct: &str, pooled: &str, pooler: &Pooler) {
    wait_until("PostgreSQL has noticed that a client left", || {
        postgres().sessions(direct, "%") == CLIENTS
    });
    wait_until("the pooler has seen to what a client has left", || {
        let clients = pooler.console("SHOW CLIENTS");
        let database = |row: &usize| clients.get(*row, "database") == pooled;
        (0..clients.rows.len()).filter(database).count() == CLIENTS
    });
}

fn last_of(history: &str, client: usize) -> String {
    let own = format!(": client {client}: ");
    let lines: Vec<&str> = history.lines().filter(|line| line.contains(&own)).collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

fn seeds() -> Range<u64> {
    let text = std::env::var("PGFERRY_SEEDS").unwrap_or_else(|_| "1..4".to_owned());
    let (from, to) = text.split_once("..").expect("PGFERRY_SEEDS is like 1..4");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn sessions_through_the_pooler_are_like_sessions_of_ones_own() {
    let steps = std::env::var("PGFERRY_STEPS").map_or(300, |steps| steps.parse().unwrap());
    for seed in seeds() {
        run(seed, steps);
    }
}
