"""Django through the pooler at SESSIONS_URL, whose servers take turns: migrations, the ORM, time zones, transactions and
cursors WITH HOLD, in two programs of different settings. Nothing here knows of a pooler: DISABLE_SERVER_SIDE_CURSORS is
not set.

Prints a line per check and the sum of them; the exit status tells whether all passed.
"""

import os
import sys
import threading
import time
import traceback
import urllib.parse

import django
from django.conf import settings

URL = urllib.parse.urlparse(os.environ["SESSIONS_URL"])
THREADS = 4


def database(zone, **options):
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": URL.path[1:], "USER": URL.username, "HOST": URL.hostname, "PORT": URL.port,
        "TIME_ZONE": zone, "CONN_MAX_AGE": None,
        "OPTIONS": {"sslmode": "disable", **options},
    }


# One of them binds on the server and prepares what it says; both do it as different applications.
settings.configure(
    DATABASES={
        "default": database("Asia/Tokyo", application_name="shop"),
        "bank": database("America/Lima", application_name="bank", server_side_binding=True, prepare_threshold=0),
    },
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()

# They want the settings to be there.
from django.contrib.auth.models import Group, Permission, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import IntegrityError, connections, models, transaction  # noqa: E402
from django.db.backends.signals import connection_created  # noqa: E402
from django.db.models.functions import TruncHour  # noqa: E402

ZONES = {"default": "Asia/Tokyo", "bank": "America/Lima"}
SCHEMAS = {"default": "shop", "bank": "bank"}


def set_up(connection, **_):
    """As projects with a schema per tenant do it."""
    with connection.cursor() as cursor:
        cursor.execute(f"set search_path = {SCHEMAS[connection.alias]}, public")
        cursor.execute(f"set statement_timeout = '{20 + len(connection.alias)}s'")


def check(condition, *seen):
    if not condition:
        raise AssertionError(seen)


def run(alias, sql, parameters=None):
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, parameters)


def value(alias, sql, parameters=None):
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchone()[0]


def roams(alias):
    """Whether the connection meets a second server, which it does not while something keeps it at one."""
    first = value(alias, "select pg_backend_pid()")
    return any(value(alias, "select pg_backend_pid()") != first for _ in range(100))


def together(work, threads=THREADS):
    """Runs work(alias, number) in so many threads of each program, each with a connection of its own."""
    failures = []

    def in_thread(alias, number):
        try:
            work(alias, number)
            with connections[alias].cursor() as cursor:
                cursor.execute("select current_setting('timezone'), current_setting('search_path'),"
                               " current_setting('application_name'), current_setting('statement_timeout')")
                check(cursor.fetchone() == (ZONES[alias], f"{SCHEMAS[alias]}, public", SCHEMAS[alias],
                                            f"{20 + len(alias)}s"), alias)
        except Exception:
            failures.append(traceback.format_exc())
        finally:
            connections.close_all()

    all_threads = [threading.Thread(target=in_thread, args=(alias, number)) for alias in ZONES for number in range(threads)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    if failures:
        raise AssertionError(f"{len(failures)} threads failed, the first: {failures[0]}")


def migrations_of_two_programs_at_a_time():
    for schema in SCHEMAS.values():
        run("default", f"drop schema if exists {schema} cascade; create schema {schema}")
    connections.close_all()
    connection_created.connect(set_up)
    together(lambda alias, number: call_command("migrate", database=alias, verbosity=0), threads=1)
    for alias in ZONES:
        check(value(alias, "select count(*) from django_migrations") > 10)
        check(Permission.objects.using(alias).count() > 10)


def models_in_their_schemas():
    def work(alias, number):
        users = User.objects.using(alias)
        for turn in range(10):
            user = users.create(username=f"{alias} {number} {turn}", email=f"{turn}@{alias}")
            check(users.get(pk=user.pk).email == f"{turn}@{alias}")
        check(users.filter(username__startswith=f"{alias} {number} ").update(first_name="F") == 10)
        group = Group.objects.using(alias).create(name=f"{alias} {number}")
        group.user_set.set(users.filter(first_name="F", username__startswith=f"{alias} {number} "))
        check(users.filter(groups=group).aggregate(n=models.Count("id"))["n"] == 10)
        check(users.filter(email__endswith="@bank" if alias == "default" else "@default").count() == 0)

    together(work)


def times_are_cut_in_the_zone_of_the_program():
    def work(alias, number):
        for _ in range(10):
            midnight = value(alias, "select '2026-02-01 00:00'::timestamp::timestamptz at time zone 'UTC'")
            check(midnight.hour == {"default": 15, "bank": 5}[alias], midnight)
            user = User.objects.using(alias).annotate(hour=TruncHour("date_joined")).first()
            check(user.hour.minute == 0)

    together(work)


def transactions_and_savepoints():
    def work(alias, number):
        groups = Group.objects.using(alias)
        for turn in range(5):
            name = f"in transaction {alias} {number} {turn}"
            with transaction.atomic(using=alias):
                kept = groups.create(name=name)
                try:
                    with transaction.atomic(using=alias):
                        groups.create(name=name)
                    check(False, "no error")
                except IntegrityError:
                    pass
                check(groups.select_for_update().get(pk=kept.pk).name == name)
            try:
                with transaction.atomic(using=alias):
                    groups.create(name=f"{name} undone")
                    raise KeyError
            except KeyError:
                pass
            check(groups.filter(name__startswith=name).count() == 1)

    together(work)


def iterators_read_from_cursors_with_hold():
    def work(alias, number):
        ids = set()
        for user in User.objects.using(alias).order_by("id").iterator(chunk_size=7):
            # Other statements of the same connection come in between.
            check(User.objects.using(alias).filter(pk=user.pk).exists())
            ids.add(user.pk)
        check(len(ids) == User.objects.using(alias).count(), len(ids))
        # One that is given up half-way.
        for _ in User.objects.using(alias).iterator(chunk_size=2):
            break
        check(roams(alias), "still kept")
        with transaction.atomic(using=alias):
            check(sum(1 for _ in User.objects.using(alias).iterator(chunk_size=9)) == len(ids))

    # Each keeps a server while it reads, and there are three.
    together(work, threads=1)


def more_iterators_than_servers_take_turns():
    def work(alias, number):
        for _ in range(3):
            users = User.objects.using(alias).order_by("id")
            check(sum(1 for _ in users.iterator(chunk_size=10)) == users.count())

    together(work)


def locks_and_temporary_tables_of_a_job():
    def work(alias, number):
        check(value(alias, "select pg_try_advisory_lock(hashtext(%s))", [alias]))
        run(alias, "create temporary table totals (alias text)")
        for _ in range(5):
            run(alias, "insert into totals values (%s)", [alias])
        check(value(alias, "select pg_advisory_unlock(hashtext(%s))", [alias]))
        check(value(alias, "select count(*) from totals where alias = %s", [alias]) == 5)
        run(alias, "drop table totals")
        check(roams(alias), "still kept")

    together(work, threads=1)


def main():
    checks = [
        migrations_of_two_programs_at_a_time, models_in_their_schemas, times_are_cut_in_the_zone_of_the_program,
        transactions_and_savepoints, iterators_read_from_cursors_with_hold, more_iterators_than_servers_take_turns,
        locks_and_temporary_tables_of_a_job,
    ]
    failed = 0
    for one in checks:
        name = one.__name__.replace("_", " ")
        begin = time.monotonic()
        try:
            one()
            print(f"ok     {name} ({(time.monotonic() - begin) * 1000:.0f} ms)", flush=True)
        except Exception as failure:
            failed += 1
            print(f"FAILED {name}: {failure!r}\n{failure}", flush=True)
    print(f"django: {len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
