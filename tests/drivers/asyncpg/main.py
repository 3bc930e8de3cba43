"""asyncpg through the pooler at DATABASE_URL, with its statement cache as it comes: Parse and Describe
with Flush, fixed names on every connection, binary formats. And at SESSIONS_URL, whose servers take turns, with settings,
types of users' own, channels, and the query that resets a connection. Prints a line per check and the sum of them.
"""

import asyncio
import io
import os
import sys

import asyncpg

URL = os.environ["DATABASE_URL"]
SESSIONS = os.environ["SESSIONS_URL"]
TASKS = 50


def check(condition, *seen):
    if not condition:
        raise AssertionError(seen)


async def in_tasks(work, tasks=TASKS, **options):
    """Runs work(number, connection) in many tasks, each with a connection of its own."""
    async def run(number):
        conn = await asyncpg.connect(URL, **options)
        try:
            return await work(number, conn)
        finally:
            await conn.close()

    results = await asyncio.gather(*[run(number) for number in range(tasks)], return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise AssertionError(f"{len(failures)} tasks failed, the first: {failures[0]!r}") from failures[0]
    return results


async def fifty_tasks_with_the_default_cache():
    async def work(number, conn):
        servers = set()
        for turn in range(60):
            row = await conn.fetchrow(f"select $1::int + {turn % 7}, $2::text, pg_backend_pid()", number, f"{turn}")
            check(row[0] == number + turn % 7 and row[1] == str(turn), tuple(row), number, turn)
            servers.add(row[2])
        return len(servers)

    check(max(await in_tasks(work)) > 1, "no connection met more than one server")


async def no_cache_at_all():
    async def work(number, conn):
        for turn in range(20):
            check(await conn.fetchval("select $1::int + $2::int", number, turn) == number + turn)

    await in_tasks(work, statement_cache_size=0)


async def a_small_cache_that_closes_statements():
    async def work(number, conn):
        for turn in range(60):
            check(await conn.fetchval(f"select $1::int + {turn % 8}", number) == number + turn % 8)

    await in_tasks(work, tasks=20, statement_cache_size=3)


async def explicit_prepare():
    async def work(number, conn):
        statement = await conn.prepare("select $1::int * 3")
        for turn in range(20):
            check(await statement.fetchval(turn) == turn * 3, turn)
        check(len(statement.get_attributes()) == 1)

    await in_tasks(work)


async def errors_and_transactions():
    conn = await asyncpg.connect(URL)
    await conn.execute("drop table if exists asyncpg_kept; create table asyncpg_kept (id int primary key)")
    try:
        async def work(number, conn):
            async with conn.transaction():
                await conn.execute("insert into asyncpg_kept values ($1)", number)
            for _ in range(3):
                try:
                    async with conn.transaction():
                        await conn.execute("insert into asyncpg_kept values ($1)", number)
                    check(False, "no error")
                except asyncpg.UniqueViolationError:
                    pass
                try:
                    await conn.fetch("select * from nowhere where id = $1", number)
                    check(False, "no error")
                except asyncpg.UndefinedTableError:
                    pass
                try:
                    await conn.fetchval("select 1 / $1::int", 0)
                    check(False, "no error")
                except asyncpg.DivisionByZeroError:
                    check(await conn.fetchval("select 1 / $1::int", 1) == 1)

        await in_tasks(work)
        check(await conn.fetchval("select count(*) from asyncpg_kept") == TASKS)
    finally:
        await conn.execute("drop table asyncpg_kept")
        await conn.close()


async def cursors_fetch_in_parts():
    async def work(number, conn):
        async with conn.transaction():
            total = 0
            async for row in conn.cursor("select generate_series(1, $1::int) as n", 200 + number, prefetch=30):
                total += row["n"]
        check(total == sum(range(1, 201 + number)), total)

    await in_tasks(work, tasks=20)


async def executemany_and_copy():
    conn = await asyncpg.connect(URL)
    await conn.execute("drop table if exists asyncpg_many; create table asyncpg_many (id int, word text)")
    try:
        await conn.executemany("insert into asyncpg_many values ($1, $2)", [(i, str(i)) for i in range(3000)])
        records = [(i, "copied") for i in range(3000)]
        await conn.copy_records_to_table("asyncpg_many", records=records)
        check(await conn.fetchval("select count(*) from asyncpg_many") == 6000)
        target = io.BytesIO()
        await conn.copy_from_query("select * from asyncpg_many", output=target)
        check(target.getvalue().count(b"\n") == 6000)
    finally:
        await conn.execute("drop table asyncpg_many")
        await conn.close()


async def a_timeout_cancels_only_its_own_query():
    conn = await asyncpg.connect(URL)
    other = await asyncpg.connect(URL)
    try:
        for _ in range(3):
            try:
                await conn.fetchval("select pg_sleep(30)", timeout=0.2)
                check(False, "no timeout")
            except asyncio.TimeoutError:
                pass
            check(await conn.fetchval("select 1") == 1)
            check(await other.fetchval("select 2") == 2)
    finally:
        await conn.close()
        await other.close()


async def a_pool_that_resets_its_connections():
    # On release asyncpg sends several statements, RESET ALL among them, in one simple query.
    async with asyncpg.create_pool(URL, min_size=5, max_size=20) as pool:
        async def one(number):
            async with pool.acquire() as conn:
                check(await conn.fetchval("select $1::int + 1", number) == number + 1)

        await asyncio.gather(*[one(number) for number in range(200)])


def more_than_one(pids):
    check(len(set(pids)) > 1, "one server only")


async def meet(conn, turns=20):
    """The servers that a few transactions meet."""
    return [await conn.fetchval("select pg_backend_pid()") for _ in range(turns)]


async def two_programs_with_settings_of_their_own():
    # What a literal means is decided when it is prepared, and both programs say the same.
    midnight = "select extract(hour from '2026-02-01 00:00'::timestamptz at time zone 'UTC')::int"
    look = "select current_setting('timezone'), current_setting('work_mem'), current_setting('search_path')," \
           " current_setting('jit'), current_setting('application_name')"

    async def program(name, zone, memory, hour):
        # Said for each acquire, as each release says RESET ALL.
        async def setup(conn):
            await conn.execute(f"set application_name = '{name}'; set time zone '{zone}'; set work_mem = '{memory}'")
            await conn.execute(f"set search_path = {name}, public; set jit = off")

        async with asyncpg.create_pool(SESSIONS, min_size=4, max_size=4, setup=setup) as pool:
            async def one(number):
                async with pool.acquire() as conn:
                    for _ in range(5):
                        row = tuple(await conn.fetchrow(look))
                        check(row == (zone, memory, f"{name}, public", "off", name), row)
                        check(await conn.fetchval(midnight) == hour)
                    return await meet(conn, 2)

            more_than_one(sum(await asyncio.gather(*[one(number) for number in range(30)]), []))

    await asyncio.gather(program("shop", "Asia/Tokyo", "5MB", 15), program("bank", "America/Lima", "6MB", 5))


async def types_of_users_are_looked_up_on_any_server():
    conn = await asyncpg.connect(SESSIONS)
    await conn.execute("""
        drop schema if exists kinds cascade; create schema kinds;
        create type kinds.mood as enum ('glad', 'sad');
        create domain kinds.small as int check (value < 10);
        create type kinds.pair as (left_one kinds.small, moods kinds.mood[]);
    """)
    try:
        async def work(number):
            conn = await asyncpg.connect(SESSIONS)
            try:
                # asyncpg looks types up with jit off, and then sets it as it was.
                await conn.execute(f"set jit = {'on' if number % 2 else 'off'}")
                for turn in range(5):
                    pair = (turn, ["glad", "sad"])
                    got = await conn.fetchval("select $1::kinds.pair", pair)
                    check(tuple(got) == pair, got)
                    got = await conn.fetch("select array_agg(p) from unnest($1::kinds.pair[]) p", [pair, pair])
                    check([tuple(one) for one in got[0][0]] == [pair, pair], got)
                    check(await conn.fetchval("show jit") == ("on" if number % 2 else "off"))
                await conn.reload_schema_state()
                await conn.set_type_codec("mood", schema="kinds", encoder=str.lower, decoder=str.upper)
                check(await conn.fetchval("select $1::kinds.mood", "GLAD") == "GLAD")
            finally:
                await conn.close()

        await asyncio.gather(*[work(number) for number in range(10)])
    finally:
        await conn.execute("drop schema kinds cascade")
        await conn.close()


async def a_listener_hears_everything_while_it_works():
    heard, wanted = {"a": [], "b": []}, [str(number) for number in range(100)]
    listener, other = await asyncpg.connect(SESSIONS), await asyncpg.connect(SESSIONS)
    try:
        def hear(_, pid, channel, payload):
            heard[channel].append(payload)

        await listener.add_listener("a", hear)
        await listener.add_listener("b", hear)

        async def speak():
            for payload in wanted:
                async with other.transaction():
                    await other.execute("select pg_notify('a', $1)", payload)
                    await other.execute("select pg_notify('b', $1)", payload)

        async def work():
            for turn in range(100):
                # A setting, at which the pooler looks at the session.
                check(await listener.fetchval("select set_config('app.turn', $1, false)", str(turn)) == str(turn))

        await asyncio.gather(speak(), work())
        for _ in range(200):
            if heard["b"][-1:] == wanted[-1:]:
                break
            await asyncio.sleep(0.05)
        check(heard == {"a": wanted, "b": wanted}, heard)
        # What it listens to is heard by a connection of the pool's; it goes from server to server like any other.
        check(len(set(await meet(listener))) > 1, "kept")
        await listener.remove_listener("a", hear)
        await listener.remove_listener("b", hear)
        more_than_one(await meet(listener))
    finally:
        await listener.close()
        await other.close()


async def a_reset_ends_all_that_kept_the_server():
    conn, other = await asyncpg.connect(SESSIONS), await asyncpg.connect(SESSIONS)
    try:
        fresh = await conn.fetchval("show work_mem")
        for _ in range(3):
            await conn.execute("set work_mem = '7MB'")
            await conn.add_listener("news", lambda *_: None)
            check(await conn.fetchval("select pg_try_advisory_lock(4713)"))
            check(not await other.fetchval("select pg_try_advisory_lock(4713)"))
            async with conn.transaction():
                await conn.execute("declare kept cursor with hold for select generate_series(1, 100)")
            check(len(await conn.fetch("fetch 10 from kept")) == 10)
            check(await conn.fetchval("show work_mem") == "7MB")
            check(len(set(await meet(conn))) == 1, "not kept")
            await conn.remove_listener("news", lambda *_: None)
            await conn.reset()
            more_than_one(await meet(conn))
            check(await conn.fetchval("show work_mem") == fresh)
            check(await other.fetchval("select pg_try_advisory_xact_lock(4713)"))
    finally:
        await conn.close()
        await other.close()


async def rows_are_copied_into_a_temporary_table():
    async def work(number):
        conn = await asyncpg.connect(SESSIONS)
        try:
            await conn.execute("create temporary table stage (id int, word text)")
            await conn.copy_records_to_table("stage", records=[(row, f"{number}") for row in range(500)])
            check(await conn.fetchval("select count(*) from stage where word = $1", f"{number}") == 500)
            await conn.execute("drop table stage")
        finally:
            await conn.close()

    # More than there are servers: each waits until one is free.
    await asyncio.gather(*[work(number) for number in range(8)])


async def run():
    checks = [
        fifty_tasks_with_the_default_cache, no_cache_at_all, a_small_cache_that_closes_statements,
        explicit_prepare, errors_and_transactions, cursors_fetch_in_parts, executemany_and_copy,
        a_timeout_cancels_only_its_own_query, a_pool_that_resets_its_connections,
        two_programs_with_settings_of_their_own, types_of_users_are_looked_up_on_any_server,
        a_listener_hears_everything_while_it_works, a_reset_ends_all_that_kept_the_server,
        rows_are_copied_into_a_temporary_table,
    ]
    failed = 0
    for one in checks:
        name = one.__name__.replace("_", " ")
        try:
            await asyncio.wait_for(one(), 60)
            print(f"ok     {name}", flush=True)
        except Exception as failure:
            failed += 1
            print(f"FAILED {name}: {failure!r}", flush=True)
    print(f"asyncpg: {len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run()))
