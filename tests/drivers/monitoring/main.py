"""What watches a pooler, on the console at CONSOLE_URL: an exporter of metrics as its users run it, agents that
speak by psycopg2, and psql.

Prints a line per check and the sum of them; the exit status tells whether all passed.
"""

import contextlib
import datetime
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

import psycopg2
import psycopg2.extras

URL = os.environ["CONSOLE_URL"]
HERE = pathlib.Path(__file__).parent


def check(condition, *seen):
    if not condition:
        raise AssertionError(seen)


# ---- prometheus-pgbouncer-exporter ----------------------------------------------------------------


@contextlib.contextmanager
def exporter():
    """Runs the exporter; yields the address of its metrics and the file it logs to, a JSON object a line."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        config = pathlib.Path(directory, "config.yml")
        log = pathlib.Path(directory, "log")
        config.write_text(
            f"exporter_host: 127.0.0.1\nexporter_port: {port}\npgbouncers:\n"
            f"  - dsn: {json.dumps(URL)}\n    connect_timeout: 5\n"
        )
        command = [sys.executable, "-W", "ignore", "-c", "from prometheus_pgbouncer_exporter.cli import main; main()"]
        process = subprocess.Popen([*command, "--config", config, "--log-file", log, "--log-level", "INFO"])
        try:
            yield f"http://127.0.0.1:{port}/metrics", log
        finally:
            # It would take four seconds to end in peace.
            process.kill()
            process.wait(20)


def scrape(address):
    """The samples there are, as name{label,label}, and the value of pgbouncer_up."""
    for turn in range(200):
        with contextlib.suppress(OSError):
            text = urllib.request.urlopen(address, timeout=20).read().decode()
            break
        time.sleep(0.1)
    samples, up = set(), None
    for line in text.splitlines():
        name, labels, value = re.fullmatch(r"(#.*|\w+)(?:\{(.*)\})?(?: (\S+))?", line).groups()
        if name.startswith("pgbouncer_"):
            keys = ",".join(sorted(re.findall(r'(\w+)="', labels or "")))
            samples.add(f"{name}{{{keys}}}")
            up = value if name == "pgbouncer_up" else up
    return samples, up


def the_exporter_exports_what_it_does_of_pgbouncer():
    expected = set((HERE / "metrics.txt").read_text().split())
    with exporter() as (address, log):
        samples, up = scrape(address)
        check(up == "1.0", up, log.read_text())
        check(samples == expected, "missing", expected - samples, "new", samples - expected)
        levels = {json.loads(line)["levelname"] for line in log.read_text().splitlines()}
        check(levels == {"INFO"}, log.read_text())


# ---- agents ---------------------------------------------------------------------------------------


def agent():
    """A connection as monitoring agents have it: without transactions, which a console does not know."""
    connection = psycopg2.connect(URL, connect_timeout=5)
    connection.set_isolation_level(psycopg2.extensions.ISOLATION_LEVEL_AUTOCOMMIT)
    return contextlib.closing(connection)


def show(connection, what):
    with connection.cursor(cursor_factory=psycopg2.extras.DictCursor) as cursor:
        cursor.execute(f"SHOW {what};")
        return [dict(row) for row in cursor.fetchall()]


NUMBERS = {
    "STATS": "total_xact_count total_query_count total_received total_sent total_xact_time total_query_time"
    " total_wait_time avg_xact_count avg_query_count avg_recv avg_sent avg_xact_time avg_query_time avg_wait_time",
    "POOLS": "cl_active cl_waiting sv_active sv_idle sv_used sv_tested sv_login maxwait maxwait_us",
    "DATABASES": "pool_size min_pool_size reserve_pool_size max_connections current_connections paused disabled",
    "CLIENTS": "port wait wait_us close_needed remote_pid",
    "LISTS": "items",
}


def an_agent_reads_numbers_as_numbers():
    with agent() as connection:
        for what, columns in NUMBERS.items():
            rows = show(connection, what)
            check(rows, what)
            for row in rows:
                for column in columns.split():
                    check(isinstance(row[column] + 0, int) or row[column] % 1 == 0, what, column, row[column])


def an_agent_reads_times_and_states():
    with agent() as connection:
        [me] = [row for row in show(connection, "CLIENTS") if row["database"] == "pgbouncer"]
        for column in ("connect_time", "request_time"):
            when = datetime.datetime.strptime(me[column], "%Y-%m-%d %H:%M:%S %Z")
            check(abs((datetime.datetime.now() - when).total_seconds()) < 86400 + 60, me[column])
        check((me["type"], me["state"], me["link"]) == ("C", "active", ""), me)


def an_agent_reads_settings_and_the_version():
    with agent() as connection:
        settings = {row["key"]: row["value"] for row in show(connection, "CONFIG")}
        check(int(settings["max_client_conn"]) == 1000, settings)
        check(settings["pool_mode"] == "transaction", settings)
        [[version]] = [row.values() for row in show(connection, "VERSION")]
        check(re.search(r"PgBouncer 1\.\d+\.\d+", version), version)


def a_command_that_is_not_there_is_an_error_and_the_next_one_works():
    with agent() as connection:
        for command in ("SELECT 1", "SHOW NOTHING", "SELECT version()"):
            try:
                with connection.cursor() as cursor:
                    cursor.execute(command)
            except psycopg2.Error as error:
                check(error.pgcode == "08P01", error.pgcode)
                check(error.diag.message_primary == f"invalid command '{command}', use SHOW HELP;", str(error))
            else:
                raise AssertionError(command)
        check(show(connection, "STATE"))


# ---- psql -----------------------------------------------------------------------------------------


def psql(*arguments, status=0, text=None):
    command = ["psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", URL, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    check(done.returncode == status, arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def psql_shows_tables_and_records():
    table, _ = psql("-c", "SHOW POOLS")
    check(re.match(r" *database *\| *user *\| cl_active \|", table), table)
    records, _ = psql("-x", "-c", "SHOW POOLS;")
    check(re.search(r"^maxwait +\| 0$", records, re.M), records)
    values, _ = psql("-Atc", "show lists")
    check(re.search(r"^used_clients\|[1-9]", values, re.M), values)


def psql_gives_several_commands_and_repeats_one():
    both, _ = psql("-At", "-c", "SHOW TIMEZONE", "-c", "SHOW CLIENT_ENCODING")
    check(both == "GMT\nUTF-8\n", both)
    lines, notices = psql("-At", text="\\conninfo\n\\encoding\nSHOW STATE;\nSHOW DATESTYLE\n;\nSHOW HELP;\n")
    check('database "pgbouncer"' in lines and "active|yes\n" in lines and lines.endswith("ISO\nSHOW\n"), lines)
    check("Console usage" in notices and "RECONNECT" in notices, notices)
    again = subprocess.Popen(["psql", "-XAt", "-d", URL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    again.stdin.write("SHOW DATESTYLE \\watch 0.1\n")
    again.stdin.flush()
    for turn in range(3):
        while again.stdout.readline() != "ISO\n":
            pass
    again.terminate()
    again.communicate()


def psql_is_refused_what_pgbouncer_refuses():
    for command in ("SHOW STATE; SHOW TIMEZONE", "\\l", "SELECT 1"):
        _, error = psql("-c", command, status=1)
        check("use SHOW HELP;" in error, error)


CHECKS = [
    the_exporter_exports_what_it_does_of_pgbouncer,
    an_agent_reads_numbers_as_numbers,
    an_agent_reads_times_and_states,
    an_agent_reads_settings_and_the_version,
    a_command_that_is_not_there_is_an_error_and_the_next_one_works,
    psql_shows_tables_and_records,
    psql_gives_several_commands_and_repeats_one,
    psql_is_refused_what_pgbouncer_refuses,
]


def main():
    failed = 0
    for run in CHECKS:
        name = run.__name__.replace("_", " ")
        begin = time.monotonic()
        try:
            run()
            print(f"ok     {name} ({(time.monotonic() - begin) * 1000:.0f} ms)")
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}")
    print(f"monitoring: {len(CHECKS) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
