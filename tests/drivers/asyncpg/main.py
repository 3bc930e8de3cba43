"""asyncpg through the pooler at DATABASE_URL, with its statement cache as it comes: Parse and Describe
with Flush, fixed names on every connection, binary formats. Prints a line per check and the sum of them.
"""

import asyncio
import io
import os
import sys

import asyncpg

URL = os.environ["DATABASE_URL"]
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


async def run():
    checks = [
        fifty_tasks_with_the_default_cache, no_cache_at_all, a_small_cache_that_closes_statements,
        explicit_prepare, errors_and_transactions, cursors_fetch_in_parts, executemany_and_copy,
        a_timeout_cancels_only_its_own_query, a_pool_that_resets_its_connections,
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
