"""psycopg 3 through the pooler at DATABASE_URL: server-side prepared statements, pipeline mode, COPY.

Prints a line per check and the sum of them; the exit status tells whether all passed.
"""

import logging
import os
import sys
import threading
import time
import traceback

import psycopg
from psycopg import errors

URL = os.environ["DATABASE_URL"]
THREADS = 20


def connect(**options):
    return psycopg.connect(URL, **options)


def check(condition, *seen):
    if not condition:
        raise AssertionError(seen)


def in_threads(work):
    """Runs work(number, connection) in many threads, each with a connection of its own."""
    failures = []

    def run(number):
        try:
            with connect(autocommit=True, prepare_threshold=0) as conn:
                work(number, conn)
        except Exception:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise AssertionError(f"{len(failures)} threads failed, the first: {failures[0]}")


def prepared_at_once_by_many_connections():
    servers = {}

    def work(number, conn):
        seen = servers[number] = set()
        for turn in range(60):
            text = f"select %s::int + {turn % 7}, pg_backend_pid()"
            total, pid = conn.execute(text, (number,)).fetchone()
            check(total == number + turn % 7, total, number, turn)
            seen.add(pid)

    in_threads(work)
    check(max(len(seen) for seen in servers.values()) > 1, "no connection met more than one server")


def prepared_after_a_threshold():
    with connect(autocommit=True, prepare_threshold=3) as conn:
        for turn in range(20):
            check(conn.execute("select %s::int * 2", (turn,)).fetchone() == (turn * 2,), turn)


def many_statements_over_a_small_cache():
    def work(number, conn):
        conn.prepared_max = 3  # psycopg deallocates what it drops
        for turn in range(60):
            value = conn.execute(f"select %s::int + {turn % 8}", (number,)).fetchone()
            check(value == (number + turn % 8,), value)

    in_threads(work)


def an_error_leaves_the_statement_usable():
    def work(number, conn):
        for turn in range(10):
            try:
                conn.execute("select 100 / %s::int", (turn % 2,))
                check(turn % 2 == 1, "no error")
            except errors.DivisionByZero:
                check(turn % 2 == 0, "an error")
            try:
                conn.execute("select * from nowhere where id = %s", (number,))
                check(False, "no error")
            except errors.UndefinedTable:
                pass

    in_threads(work)


def transactions_commit_and_roll_back():
    with connect() as conn:
        conn.execute("drop table if exists psycopg_kept")
        conn.execute("create table psycopg_kept (id int primary key)")
    try:
        def work(number, conn):
            with conn.transaction():
                conn.execute("insert into psycopg_kept values (%s)", (number,))
            with conn.transaction(force_rollback=True):
                conn.execute("insert into psycopg_kept values (%s)", (number + 1000,))
            try:
                with conn.transaction():
                    conn.execute("insert into psycopg_kept values (%s)", (number,))
                check(False, "no error")
            except errors.UniqueViolation:
                pass

        in_threads(work)
        with connect() as conn:
            check(conn.execute("select count(*) from psycopg_kept").fetchone() == (THREADS,))
    finally:
        with connect() as conn:
            conn.execute("drop table psycopg_kept")


def pipeline_of_many_statements():
    def work(number, conn):
        with conn.pipeline():
            cursors = [conn.execute(f"select %s::int + {item}", (number,)) for item in range(50)]
            for item, cursor in enumerate(cursors):
                check(cursor.fetchone() == (number + item,), item)

    in_threads(work)


def pipeline_with_an_error_in_the_middle():
    def work(number, conn):
        for _ in range(5):
            try:
                with conn.pipeline():
                    conn.execute("select %s::int as before", (number,))
                    conn.execute("select 1 / %s::int", (0,))
                    conn.execute("select %s::int as after", (number,))
                check(False, "no error")
            except errors.DivisionByZero:
                pass
            # Each of the three, again, also the one that was skipped.
            check(conn.execute("select %s::int as before", (number,)).fetchone() == (number,))
            check(conn.execute("select %s::int as after", (number,)).fetchone() == (number,))
            check(conn.execute("select 1 / %s::int", (1,)).fetchone() == (1,))
            try:
                with conn.pipeline():
                    conn.execute("select 'good', %s::int", (number,))
                    conn.execute("selekt %s::int", (number,))
                    conn.execute("select 'named a', %s::int", (number,))
                check(False, "no error")
            except errors.SyntaxError:
                pass
            check(conn.execute("select 'named a', %s::int", (number,)).fetchone() == ("named a", number))

    in_threads(work)


def pipeline_with_several_syncs():
    with connect(autocommit=True, prepare_threshold=0) as conn, conn.pipeline() as pipeline:
        first = conn.execute("select %s::int", (1,))
        pipeline.sync()
        failed = False
        try:
            conn.execute("select 1 / %s::int", (0,))
        except errors.DivisionByZero:
            # The server's answer was quicker than our Sync.
            failed = True
        try:
            pipeline.sync()
        except errors.DivisionByZero:
            failed = True
        check(failed, "no error")
        check(first.fetchone() == (1,))
        check(conn.execute("select %s::int", (3,)).fetchone() == (3,))


def executemany_in_a_pipeline():
    with connect(autocommit=True) as conn, conn.cursor() as cursor:
        cursor.execute("drop table if exists psycopg_many")
        cursor.execute("create table psycopg_many (id int, word text)")
        try:
            cursor.executemany("insert into psycopg_many values (%s, %s)", [(i, str(i)) for i in range(2000)])
            check(cursor.execute("select count(*), sum(id) from psycopg_many").fetchone() == (2000, 1999000))
        finally:
            cursor.execute("drop table psycopg_many")


def copy_both_ways():
    with connect(autocommit=True) as conn, conn.cursor() as cursor:
        cursor.execute("drop table if exists psycopg_copied")
        cursor.execute("create table psycopg_copied (id int primary key, word text)")
        try:
            with cursor.copy("copy psycopg_copied from stdin") as copy:
                for row in range(5000):
                    copy.write_row((row, f"row {row}"))
            with cursor.copy("copy (select * from psycopg_copied order by id) to stdout") as copy:
                rows = sum(1 for _ in copy.rows())
            check(rows == 5000, rows)
            try:
                with cursor.copy("copy psycopg_copied from stdin") as copy:
                    for row in range(50000):
                        copy.write_row((row, "again"))
                check(False, "no error")
            except errors.UniqueViolation:
                pass
            try:
                with cursor.copy("copy psycopg_copied from stdin") as copy:
                    copy.write_row((100000, "given up"))
                    raise RuntimeError("given up")
            except RuntimeError:
                pass
            check(cursor.execute("select count(*) from psycopg_copied").fetchone() == (5000,))
        finally:
            cursor.execute("drop table psycopg_copied")


def server_side_cursors():
    with connect() as conn, conn.cursor(name="far") as cursor:
        cursor.execute("select generate_series(1, 1000)")
        check(sum(len(cursor.fetchmany(100)) for _ in range(10)) == 1000)


def deallocate_all_then_prepare_again():
    def work(number, conn):
        for _ in range(5):
            check(conn.execute("select %s::int - 1", (number,)).fetchone() == (number - 1,))
            conn.execute("deallocate all")  # psycopg notices, and forgets its statements

    in_threads(work)


def cancel_ends_the_query_of_the_one_who_asked():
    with connect(autocommit=True) as conn:
        timer = threading.Timer(0.5, conn.cancel_safe)
        timer.start()
        begin = time.monotonic()
        try:
            conn.execute("select pg_sleep(30)")
            check(False, "not cancelled")
        except errors.QueryCanceled:
            pass
        finally:
            timer.join()
        check(time.monotonic() - begin < 20, "late")
        check(conn.execute("select 1").fetchone() == (1,))


def options_hold_on_every_server():
    asked = "-c search_path=nowhere,pg_catalog -c statement_timeout=17s"
    with connect(autocommit=True, options=asked) as conn, connect(autocommit=True) as plain:
        for _ in range(10):
            check(conn.execute("show statement_timeout").fetchone() == ("17s",))
            check(conn.execute("show search_path").fetchone() == ("nowhere,pg_catalog",))
            check(plain.execute("show statement_timeout").fetchone() == ("0",))
            conn.execute("reset all")
    try:
        connect(options="-c statement_timeout=soon").close()
        check(False, "taken")
    except psycopg.OperationalError as failure:
        check("invalid value for parameter" in str(failure), failure)


def main():
    checks = [
        prepared_at_once_by_many_connections, prepared_after_a_threshold,
        many_statements_over_a_small_cache, an_error_leaves_the_statement_usable,
        transactions_commit_and_roll_back, pipeline_of_many_statements,
        pipeline_with_an_error_in_the_middle, pipeline_with_several_syncs,
        executemany_in_a_pipeline, copy_both_ways, server_side_cursors,
        deallocate_all_then_prepare_again, cancel_ends_the_query_of_the_one_who_asked,
        options_hold_on_every_server,
    ]
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of pipelines that end in an error
    failed = 0
    for one in checks:
        name = one.__name__.replace("_", " ")
        try:
            one()
            print(f"ok     {name}", flush=True)
        except Exception as failure:
            failed += 1
            print(f"FAILED {name}: {failure!r}", flush=True)
    print(f"psycopg: {len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
