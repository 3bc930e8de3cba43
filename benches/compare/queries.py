"""pgbench -S in each protocol, with few and with many clients."""

import functools
import os
import time

from .figures import Cell, Column, interleave
from .pgbench import Load, latencies, longer, system_calls

COLUMNS = [Column("tps", "tps", "{:.0f}"), Column("p50", "p50 ms", "{:.3f}"), Column("p99", "p99 ms", "{:.3f}"),
           Column("p999", "p99.9 ms", "{:.3f}"), Column("cpu", "CPU us"), Column("user", "user us"),
           Column("system", "system us"), Column("calls", "calls"), Column("voluntary", "waits", "{:.3f}"),
           Column("involuntary", "preempted", "{:.3f}")]


def measure(target, load, options):
    """One round of one target. What a run of one transaction per client costs (logins, first Parse) is deducted."""
    before, begin = target.usage(), time.monotonic()
    first = load.run(target, ["-t", "1"])
    between = target.usage()
    seconds = longer(options.seconds, time.monotonic() - begin)
    prefix = os.path.join(options.work, "latency")
    run = load.run(target, ["-T", str(seconds)], prefix)
    used = (target.usage() - between) - (between - before)
    row = {"tps": run.tps, **latencies(prefix)}
    if target.pid():
        row.update(used.per(run.transactions - first.transactions, 1e6))
    return row


def run(targets, access, options, report):
    """All cells of one way in."""
    report.head(f"pgbench -S, {access.value}: pool {options.pool_size}, {options.rounds} rounds of "
                f"{options.seconds} s", COLUMNS)
    for protocol in options.protocols:
        for clients in options.clients:
            load = Load(options.pgbench, clients, options.jobs, ("-S", "-M", protocol))
            taking_part = [target for target in targets if target.pid() or clients <= options.direct_clients]
            cell = Cell("queries", access.value, f"{protocol} {clients}")
            report.attempt(cell.label(), functools.partial(run_cell, taking_part, load, cell, options, report))


def run_cell(targets, load, cell, options, report):
    """All rounds of all targets of one cell."""
    if not targets:
        return
    cell.rounds = interleave(targets, options.rounds, lambda target: measure(target, load, options))
    for target in [] if options.no_syscalls else targets:
        report.attempt(f"{cell.label()}, strace", functools.partial(count_calls, target, load, cell, options.work))
    report.add(cell, COLUMNS)


def count_calls(target, load, cell, work):
    """Adds the system calls to all rounds of a target."""
    calls = system_calls(target, load, work)
    if calls is not None:
        for one in cell.rounds[target.name]:
            one["calls"] = calls["total"]
