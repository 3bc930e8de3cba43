"""pgferry with 1, 2, 4 and more workers: the same work, in turns, and what one transaction costs with each number.

There need not be so many cores. What workers do to each other shows in what they ask of the kernel: a lock that two want
is a `futex`, a wake-up of another worker is a `write` to its eventfd. All workers are in use (`min_worker_threads`), and
the pool has four servers for each, which is what one lives on.
"""

import contextlib
import dataclasses
import functools

from .figures import Cell, Column, interleave, print_row, show
from .pgbench import Load, events, system_calls
from .queries import measure
from .targets import Pooler

COLUMNS = [Column("tps", "tps", "{:.0f}"), Column("p50", "p50 ms", "{:.3f}"), Column("p99", "p99 ms", "{:.3f}"),
           Column("cpu", "CPU us"), Column("user", "user us"), Column("system", "system us"),
           Column("calls", "calls"), Column("futex", "futex", "{:.4f}"), Column("wakes", "wake-ups", "{:.4f}"),
           Column("voluntary", "waits", "{:.3f}"), Column("involuntary", "preempted", "{:.3f}")]

SERVERS_PER_WORKER = 4


def label_of(workers):
    """What the target with so many workers is called."""
    return f"{workers} worker{'' if workers == 1 else 's'}"


def setup_for(setup, workers, most):
    """The setup of pgferry with so many workers; the pool is large enough for `most`."""
    lines = [*setup.extra.get("pgferry", ()), f"worker_threads = {workers}", f"min_worker_threads = {workers}"]
    return dataclasses.replace(setup, extra={**setup.extra, "pgferry": lines},
                               pool_size=max(setup.pool_size, SERVERS_PER_WORKER * most))


@contextlib.contextmanager
def running(numbers, setup, access):
    """pgferry once for each number of workers, and PgBouncer beside them if it is there."""
    targets = []
    try:
        for workers in numbers:
            targets.append(Pooler("pgferry", setup_for(setup, workers, max(numbers)), access, label_of(workers)))
        if "pgbouncer" in setup.programs:
            targets.append(Pooler("pgbouncer", setup_for(setup, 1, max(numbers)), access))
        yield targets
    finally:
        for target in targets:
            target.stop()


def run(targets, access, options, report):
    """All cells of one way in."""
    report.head(f"pgferry with several workers, {access.value}: {options.rounds} rounds of {options.seconds} s; "
                "per transaction", COLUMNS)
    for protocol in options.protocols:
        for clients in options.clients:
            load = Load(options.pgbench, clients, options.jobs, ("-S", "-M", protocol))
            cell = Cell("scale", access.value, f"{protocol} {clients}")
            report.attempt(f"scale {cell.label()}", functools.partial(run_cell, targets, load, cell, options, report))


def run_cell(targets, load, cell, options, report):
    """All rounds of all targets of one cell."""
    cell.rounds = interleave(targets, options.rounds, lambda target: measure(target, load, options))
    for target in [] if options.no_syscalls else targets:
        report.attempt(f"{cell.label()}, strace", functools.partial(count_calls, target, load, cell, options.work))
    report.cells.append(cell)
    print_cell(cell)


def print_cell(cell):
    """Medians of each number of workers, then their ratios to the first."""
    names = list(cell.rounds)
    for name in names:
        print_row(f"{cell.label()} {name}", [show(cell.median(name, one.key), one.form) for one in COLUMNS])
    for name in names[1:]:
        print_row(f"    {name} / {names[0]}",
                  [show(cell.ratio(name, names[0], one.key), "{:.2f}") for one in COLUMNS])


def count_calls(target, load, cell, work):
    """Adds the system calls to all rounds of a target. (Sockets of TCP are sent to by `sendto`, so a `write` is a wake-up.)

    By `perf` where it may: under `strace` workers are so slow that clients wait long, and servers cross over to them.
    """
    names = {"calls": "raw_syscalls:sys_enter", "futex": "syscalls:sys_enter_futex", "wakes": "syscalls:sys_enter_write"}
    calls = events(target, load, names.values(), work)
    if not calls:
        calls = system_calls(target, load, work)
        names = {"calls": "total", "futex": "futex", "wakes": "write"}
    if calls:
        for one in cell.rounds[target.name]:
            one.update({key: calls.get(name, 0.0) for key, name in names.items()})
