// Node-postgres through the pooler at SESSIONS_URL, whose servers take turns, used as web frameworks use a
// connection: settings at connect, named statements, a worker that listens, advisory locks, temporary tables.
// Nothing here knows of a pooler. Prints a line per check and the sum of them.

import assert from "node:assert/strict";
import pg from "pg";

const URL = process.env.SESSIONS_URL;

/** A pool of an application, which sets its connections up the way Active Record does. */
function application(settings, max = 8) {
  const onConnect = async (client) => {
    await client.query("SET client_min_messages TO 'warning'");
    await client.query("SET standard_conforming_strings = on");
    await client.query("SET intervalstyle = iso_8601");
    await client.query(`SET SESSION statement_timeout TO '${settings.timeout}'`);
    await client.query(`SET TIME ZONE '${settings.zone}'`);
    await client.query(`SET search_path TO ${settings.schema}, public`);
  };
  return new pg.Pool({ connectionString: URL, max, application_name: settings.name, onConnect });
}

const SHOP = { name: "shop", timeout: "20s", zone: "Asia/Tokyo", schema: "shop" };
const BANK = { name: "bank", timeout: "30s", zone: "America/Lima", schema: "bank" };

/** Runs work with a pool per application, all at the same time. */
async function together(applications, work) {
  const pools = applications.map((settings) => application(settings));
  try {
    await Promise.all(pools.map((pool, at) => work(pool, applications[at])));
  } finally {
    await Promise.all(pools.map((pool) => pool.end()));
  }
}

/** Runs work with a connection of its own. */
async function connected(work, options = {}) {
  const client = new pg.Client({ connectionString: URL, ...options });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

/** A connection's work in each of so many at a time. */
async function each(pool, count, work) {
  const run = async (number) => {
    const client = await pool.connect();
    try {
      await work(client, number);
    } finally {
      client.release();
    }
  };
  await Promise.all(Array.from({ length: count }, (_, number) => run(number)));
}

const value = async (client, text, values) => Object.values((await client.query(text, values)).rows[0])[0];

/** Whether the connection meets a second server, which it does not while something keeps it at one. */
async function roams(client, turns = 100) {
  const seen = new Set();
  for (let turn = 0; turn < turns && seen.size < 2; turn++) seen.add(await value(client, "select pg_backend_pid()"));
  return seen.size > 1;
}

async function prepareDatabase() {
  await connected(async (client) => {
    await client.query("drop schema if exists shop cascade; drop schema if exists bank cascade");
    await client.query("create schema shop; create schema bank");
    await client.query("create table shop.things (id int primary key, thing text)");
    await client.query("create table bank.things (id int primary key, thing numeric, owner text)");
    await client.query("insert into shop.things select n, 'shop ' || n from generate_series(1, 50) n");
    await client.query("insert into bank.things select n, n * 1.5, 'me' from generate_series(1, 50) n");
    await client.query("create table shop.jobs (id int primary key, done_by text)");
  });
}

async function whatIsSetAtConnectHoldsOnEveryServer() {
  const look = `select current_setting('client_min_messages') || ' ' || current_setting('intervalstyle') || ' '
    || current_setting('statement_timeout') || ' ' || current_setting('timezone') || ' '
    || current_setting('search_path') || ' ' || current_setting('application_name') as seen, pg_backend_pid() as pid`;
  await together([SHOP, BANK], async (pool, own) => {
    const pids = new Set();
    await each(pool, 8, async (client) => {
      for (let turn = 0; turn < 20; turn++) {
        const { seen, pid } = (await client.query(look)).rows[0];
        assert.equal(seen, `warning iso_8601 ${own.timeout} ${own.zone} ${own.schema}, public ${own.name}`);
        pids.add(pid);
      }
    });
    assert.ok(pids.size > 1, "one server only");
  });
}

async function oneNamedStatementReadsTheTablesOfItsApplication() {
  await together([SHOP, BANK], async (pool, own) => {
    await each(pool, 8, async (client, number) => {
      for (let turn = 0; turn < 20; turn++) {
        const id = ((number + turn) % 50) + 1;
        const { rows } = await client.query({ name: "a1", text: "select * from things where id = $1", values: [id] });
        const wanted = own === SHOP ? { id, thing: `shop ${id}` } : { id, thing: (id * 1.5).toFixed(1), owner: "me" };
        assert.deepEqual(rows, [wanted]);
      }
    });
  });
}

async function aMigrationGoesUnnoticed() {
  await connected((client) => client.query("create table shop.growing (id int); insert into shop.growing values (1)"));
  await together([SHOP], async (pool) => {
    const columns = async (client) =>
      (await client.query({ name: "grown", text: "select * from growing where id = $1", values: [1] })).fields.length;
    for (let wanted = 1; wanted < 4; wanted++) {
      await each(pool, 8, async (client) => {
        for (let turn = 0; turn < 5; turn++) assert.equal(await columns(client), wanted);
      });
      await connected((client) => client.query(`alter table shop.growing add column more${wanted} text`));
    }
  });
}

async function aTimeoutEndsTheStatementsOfItsApplicationOnly() {
  const hasty = { ...SHOP, timeout: "100ms" };
  await together([hasty, BANK], async (pool, own) => {
    await each(pool, 3, async (client) => {
      for (let turn = 0; turn < 2; turn++) {
        const slept = client.query("select pg_sleep(0.3)");
        if (own === hasty) await assert.rejects(slept, { code: "57014" });
        else await slept;
      }
    });
  });
}

async function aWorkerListensWhileJobsAreDoneBesideIt() {
  await connected(async (listener) => {
    const heard = [];
    const all = new Promise((resolve) => {
      listener.on("notification", ({ channel, payload }) => {
        assert.equal(channel, "jobs");
        if (heard.push(payload) === 30) resolve();
      });
    });
    await listener.query("LISTEN jobs");
    await together([SHOP], async (pool) => {
      const locked = `with job as (select id from jobs where done_by is null order by id limit 1 for update skip locked)
        update jobs set done_by = $1 from job where jobs.id = job.id and pg_try_advisory_xact_lock(job.id) returning jobs.id`;
      await each(pool, 6, async (client, number) => {
        for (let turn = 0; turn < 5; turn++) {
          const id = number * 5 + turn;
          await client.query("begin");
          await client.query({ name: "insert", text: "insert into jobs values ($1)", values: [id] });
          await client.query("select pg_notify('jobs', $1)", [String(id)]);
          await client.query("commit");
        }
      });
      // Polling, as workers do beside listening.
      assert.equal(await value(listener, "select count(*)::int from shop.jobs where done_by is null"), 30);
      const done = [];
      await each(pool, 6, async (client, number) => {
        for (;;) {
          const { rows } = await client.query({ name: "take", text: locked, values: [`worker ${number}`] });
          if (rows.length === 0) break;
          done.push(rows[0].id);
        }
      });
      assert.deepEqual(done.sort((a, b) => a - b), Array.from({ length: 30 }, (_, id) => id));
    });
    await all;
    assert.equal(new Set(heard).size, 30);
    // A connection of the pool's hears it: the client goes from server to server like any other.
    assert.ok(await roams(listener), "kept");
    await listener.query("UNLISTEN *");
    assert.ok(await roams(listener), "still kept");
  });
}

async function aMigrationHoldsItsLockAndThenLetsGo() {
  let inside = 0;
  let refused = 0;
  const migrate = async (client) => {
    for (let turn = 0; turn < 3; turn++) {
      while (!(await value(client, "select pg_try_advisory_lock($1)", [4711]))) {
        refused++;
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      assert.equal(++inside, 1, "two migrations at a time");
      await client.query("begin");
      await client.query("create table if not exists migrated (id int)");
      await client.query("commit");
      await client.query("drop table migrated");
      inside--;
      assert.equal(await value(client, "select pg_advisory_unlock($1)", [4711]), true);
    }
    assert.ok(await roams(client), "still kept");
  };
  await Promise.all([connected(migrate), connected(migrate)]);
  assert.ok(refused > 0, "they never met");
}

async function temporaryTablesAndPreparedStatementsOfSqlStay() {
  await together([SHOP, BANK], async (pool, own) => {
    // Fewer than there are servers, as each keeps one.
    await each(pool, 1, async (client) => {
      await client.query("create temporary table basket (owner text)");
      await client.query(`prepare fill(text) as insert into basket values ($1 || ' ${own.name}')`);
      for (let turn = 0; turn < 5; turn++) await client.query(`execute fill('${turn}')`);
      assert.equal(await value(client, "select string_agg(owner, ',' order by owner) from basket"),
        [0, 1, 2, 3, 4].map((turn) => `${turn} ${own.name}`).join());
      await client.query("deallocate fill");
      await client.query("drop table basket");
      assert.ok(await roams(client), "still kept");
      assert.equal(await value(client, "show search_path"), `${own.schema}, public`);
    });
  });
}

async function resetAndDiscardGoBackToTheBeginning() {
  await connected(async (client) => {
    const fresh = await value(client, "show timezone");
    for (const text of ["reset all", "discard all", "set time zone default", "reset time zone"]) {
      await client.query("set time zone 'Asia/Tokyo'");
      for (let turn = 0; turn < 4; turn++) assert.equal(await value(client, "show timezone"), "Asia/Tokyo");
      await client.query(text);
      for (let turn = 0; turn < 4; turn++) assert.equal(await value(client, "show timezone"), fresh, text);
    }
  });
}

async function whatTheStartupMessageAsksForHoldsOnEveryServer() {
  const options = { statement_timeout: 300, lock_timeout: 11000, options: "-c search_path=shop" };
  await connected(async (plain) => {
    await connected(async (client) => {
      for (let turn = 0; turn < 10; turn++) {
        assert.equal(await value(client, "select thing from things where id = 1"), "shop 1");
        assert.equal(await value(client, "show lock_timeout"), "11s");
        assert.equal(await value(plain, "show lock_timeout"), "0");
        await client.query("reset all");
      }
      await assert.rejects(client.query("select pg_sleep(20)"), { code: "57014" });
      assert.ok(await roams(client));
    }, options);
  });
  await assert.rejects(connected(() => {}, { options: "-c no_such_setting=1" }), { code: "42704" });
}

async function main() {
  await prepareDatabase();
  const checks = [
    whatIsSetAtConnectHoldsOnEveryServer, oneNamedStatementReadsTheTablesOfItsApplication, aMigrationGoesUnnoticed,
    aTimeoutEndsTheStatementsOfItsApplicationOnly, aWorkerListensWhileJobsAreDoneBesideIt,
    aMigrationHoldsItsLockAndThenLetsGo, temporaryTablesAndPreparedStatementsOfSqlStay,
    resetAndDiscardGoBackToTheBeginning, whatTheStartupMessageAsksForHoldsOnEveryServer,
  ];
  let failed = 0;
  for (const check of checks) {
    const name = check.name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
    const begin = Date.now();
    const late = setTimeout(() => {
      console.log(`FAILED ${name}: not done in 30 s`);
      process.exit(1);
    }, 30000);
    try {
      await check();
      console.log(`ok     ${name} (${Date.now() - begin} ms)`);
    } catch (failure) {
      failed++;
      console.log(`FAILED ${name}: ${failure.stack}`);
    }
    clearTimeout(late);
  }
  console.log(`node-postgres: ${checks.length - failed} passed, ${failed} failed`);
  process.exit(failed > 0 ? 1 : 0);
}

await main();
