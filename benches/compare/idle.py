"""Clients that do nothing: the memory they take, and what they cost those that work.

Memory is measured in a fresh process: before any client, and with all of them there, each after one query. The
active clients run in the same process while the idle ones stay.
"""

import contextlib
import time

from .figures import Cell, Column, interleave
from .pgbench import Load
from .queries import COLUMNS as QUERY_COLUMNS
from .queries import measure as measure_queries
from .readings import Failure
from .wire import Client

COLUMNS = [Column("rss", "RSS MB", "{:.1f}"), Column("anonymous", "anon MB", "{:.1f}"),
           Column("client", "KB/client"), Column("full_rss", "RSS full", "{:.1f}")]
ACTIVE_COLUMNS = [column for column in QUERY_COLUMNS if column.key != "calls"]

#: seconds after the last login in which buffers may go back to the system
SETTLE = 2
MEGA = 1 << 20


def connect(target, count, clients):
    """Adds `count` idle clients to an ExitStack; each has asked one query."""
    for number in range(count):
        try:
            client = clients.enter_context(contextlib.closing(Client(target)))
            client.ask("SELECT 1", "SELECT 1")
            client.buffer = None
        except (Failure, OSError) as error:
            raise Failure(f"{target.name}, idle client {number + 1}: {error}") from error


def memory(target, count, clients):
    """A round of the table of memory: in MB, and in KB per client."""
    before = target.memory()
    connect(target, count, clients)
    time.sleep(SETTLE)
    full = target.memory()
    return {"rss": before["Rss"] / MEGA, "anonymous": before["Anonymous"] / MEGA, "full_rss": full["Rss"] / MEGA,
            "client": (full["Anonymous"] - before["Anonymous"]) / count / 1024}


def run(targets, access, options, report):
    """Memory of one way in, and active clients beside the idle ones. The targets have to be fresh."""
    poolers = [target for target in targets if target.pid()]
    report.head(f"{options.idle} idle clients, {access.value}: memory of the process alone, of each client, of all",
                COLUMNS)
    cell = Cell("idle", access.value, f"idle {options.idle}")
    with contextlib.ExitStack() as clients:
        def fill():
            for target in poolers:
                cell.rounds[target.name] = [memory(target, options.idle, clients)]
            report.add(cell, COLUMNS)

        def load():
            cell = Cell("active", access.value, f"{options.idle} idle + {options.active}")
            work = Load(options.pgbench, options.active, options.jobs, ("-S", "-M", "prepared"))
            cell.rounds = interleave(poolers, options.rounds, lambda target: measure_queries(target, work, options))
            report.add(cell, ACTIVE_COLUMNS)

        report.attempt(f"idle {access.value}", fill)
        if options.active and poolers:
            report.head(f"{options.active} active clients beside {options.idle} idle ones, {access.value}, "
                        f"-M prepared: {options.rounds} rounds of {options.seconds} s", ACTIVE_COLUMNS)
            report.attempt(f"active {access.value}", load)
