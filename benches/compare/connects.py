"""Clients that connect, ask `SELECT 1` and leave: what a connection costs."""

import os
from pathlib import Path

from .figures import Cell, Column, interleave
from .pgbench import Load, latencies

COLUMNS = [Column("tps", "conn/s", "{:.0f}"), Column("p50", "p50 ms", "{:.3f}"), Column("p99", "p99 ms", "{:.3f}"),
           Column("cpu", "CPU us"), Column("user", "user us"), Column("system", "system us"),
           Column("voluntary", "waits", "{:.3f}"), Column("involuntary", "preempted", "{:.3f}")]


def measure(target, load, options):
    """One round of one target. A run of one connection per client goes first: servers are there then."""
    load.run(target, ["-t", "1"])
    before = target.usage()
    prefix = os.path.join(options.work, "latency")
    run = load.run(target, ["-T", str(options.seconds)], prefix)
    used = target.usage() - before
    row = {"tps": run.tps, **latencies(prefix)}
    if target.pid():
        row.update(used.per(run.transactions, 1e6))
    return row


def run(targets, access, options, report):
    """The one cell of a way in. All targets, so that PostgreSQL's own cost of a connection stands beside it."""
    report.head(f"connect, SELECT 1, leave, {access.value}: {options.connect_clients} clients, "
                f"{options.rounds} rounds of {options.seconds} s", COLUMNS)
    script = Path(options.work) / "select-1.sql"
    script.write_text("SELECT 1;\n", encoding="ascii")
    load = Load(options.pgbench, options.connect_clients, options.jobs, ("-C", "-f", str(script)))
    cell = Cell("connects", access.value, "connect")

    def work():
        cell.rounds = interleave(targets, options.rounds, lambda target: measure(target, load, options))
        report.add(cell, COLUMNS)

    report.attempt(f"connects {access.value}", work)
