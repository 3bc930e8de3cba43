"""Large results and large parameters: CPU seconds per gigabyte, of one client that reads as fast as it can.

A gigabyte is 10^9 bytes between client and pooler, headers of messages included, before TLS. Answers are checked by
their end and by their size, which must be the same through every target.
"""

import functools
import time

from .figures import Cell, Column, interleave
from .pgbench import shares_of
from .readings import Failure
from .wire import READY, Client, complete, message, query, with_parameter

COLUMNS = [Column("rate", "MB/s", "{:.0f}"), Column("cpu", "CPU s/GB", "{:.3f}"), Column("user", "user", "{:.3f}"),
           Column("system", "system", "{:.3f}"), Column("voluntary", "waits/MB", "{:.2f}"),
           Column("involuntary", "preempt/MB", "{:.2f}"), Column("p50", "p50 ms", "{:.3f}"),
           Column("p99", "p99 ms", "{:.3f}"), Column("p999", "p99.9 ms", "{:.3f}")]

#: bytes of a DataRow or CopyData around its value
ROW_HEADER = 5 + 2 + 4
COPY_HEADER = 5
TABLE = "bench_copy"


def rows(client, size, total):
    """A SELECT of rows of one value of `size` bytes. Returns the bytes of the answer."""
    count = max(1, total // (size + ROW_HEADER))
    client.send(query(f"SELECT repeat('x', {size}) FROM generate_series(1, {count})"))
    return client.receive(complete(f"SELECT {count}"))


def copy_out(client, size, total):
    """COPY TO STDOUT of lines of `size` bytes."""
    count = max(1, total // (size + COPY_HEADER))
    client.send(query(f"COPY (SELECT repeat('x', {size - 1}) FROM generate_series(1, {count})) TO STDOUT"))
    return client.receive(complete(f"COPY {count}"))


def copy_in(client, size, total):
    """COPY FROM STDIN, a CopyData a line, 64 of them in a write."""
    blocks = max(1, total // (size + COPY_HEADER) // 64)
    block = message(b"d", b"x" * (size - 1) + b"\n") * 64
    client.send(query(f"COPY {TABLE} FROM STDIN"))
    tag, body = client.read_message()
    if tag != b"G":
        raise Failure(f"{client.name}: no CopyInResponse but {tag + body[:200]!r}")
    for _ in range(blocks):
        client.send(block)
    client.send(message(b"c"))
    client.receive(complete(f"COPY {blocks * 64}"))
    return blocks * len(block)


def parameters(client, size, total):
    """Queries one after the other, each with a parameter of `size` bytes that the server measures.

    What each of them took is left with the client.
    """
    request = with_parameter("SELECT length($1)", b"x" * size)
    count = max(1, total // len(request))
    value = str(size).encode()
    end = message(b"D", b"\0\x01" + len(value).to_bytes(4, "big") + value) + complete("SELECT 1")
    for _ in range(count):
        begin = time.monotonic_ns()
        client.send(request)
        client.receive(end)
        client.latencies.append((time.monotonic_ns() - begin) / 1000)
    return count * len(request)


def one_value(client, total):
    """A result of a single value."""
    client.send(query(f"SELECT repeat('x', {total})"))
    return client.receive(complete("SELECT 1"))


def works(total):
    """{name: work}; a work takes a client and returns the bytes that it moved."""
    return {
        "rows of 1 KB": functools.partial(rows, size=1024, total=total),
        "rows of 6 bytes": functools.partial(rows, size=6, total=total),
        f"one value of {total // 1_000_000} MB": functools.partial(one_value, total=total),
        "COPY out": functools.partial(copy_out, size=1024, total=total),
        "COPY in": functools.partial(copy_in, size=1024, total=total),
        "parameters of 10 KB": functools.partial(parameters, size=10_000, total=total),
        "parameters of 1 MB": functools.partial(parameters, size=1_000_000, total=total),
    }


def measure(target, work, sizes):
    """One round of one target: the connection and a first query are not counted."""
    with Client(target) as client:
        try:
            client.ask("SELECT 1", "SELECT 1")
            before, begin = target.usage(), time.monotonic()
            size = work(client)
            seconds, used = time.monotonic() - begin, target.usage() - before
            sizes.setdefault(size, target.name)
            if len(sizes) > 1:
                raise Failure(f"{target.name} moved {size} bytes; others: {sizes}")
        except OSError as error:
            raise Failure(f"{target.name}: {error}") from error
    row = {"rate": size / seconds / 1e6, **shares_of(sorted(client.latencies))}
    if target.pid():
        row.update(used.per(size / 1e9))
        for key in ("voluntary", "involuntary"):
            if key in row:
                row[key] /= 1000  # by megabyte
    return row


def prepare(target):
    """The table that COPY writes to, empty."""
    with Client(target) as client:
        client.send(query(f"DROP TABLE IF EXISTS {TABLE}; CREATE UNLOGGED TABLE {TABLE} (line text)"))
        client.receive(message(b"C", b"CREATE TABLE\0") + READY)


def run(targets, access, options, report):
    """All transfers of one way in."""
    report.head(f"transfers of {options.megabytes} MB, {access.value}: one client, {options.rounds} rounds; per GB",
                COLUMNS)
    for name, work in works(options.megabytes * 1_000_000).items():
        cell = Cell("transfers", access.value, name)
        report.attempt(f"transfers {access.value} {name}",
                       functools.partial(run_cell, targets, work, cell, options.rounds, report))


def run_cell(targets, work, cell, rounds, report):
    """All rounds of all targets of one cell, each with an empty table and the same number of bytes."""
    sizes = {}

    def one_round(target):
        prepare(target)
        return measure(target, work, sizes)

    if targets:
        cell.rounds = interleave(targets, rounds, one_round)
        report.add(cell, COLUMNS)
