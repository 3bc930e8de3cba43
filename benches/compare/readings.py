"""What pgbench, strace and /proc say, as numbers.

Owns the parsing, and the arithmetic on what a process has used. Starts nothing and prints nothing.
"""

import glob
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Failure(Exception):
    """A run that did not do its work."""


@dataclass(frozen=True)
class Run:
    """What pgbench says at its end."""

    transactions: int
    failed: int
    #: transactions per second, without the first connections; with `-C` connections count
    tps: float


def parse_pgbench(text):
    """pgbench's summary. A run that processed nothing is a `Failure`."""
    done = re.search(r"^number of transactions actually processed: (\d+)", text, re.M)
    failed = re.search(r"^number of failed transactions: (\d+)", text, re.M)
    rates = dict(reversed(pair) for pair in re.findall(r"^tps = ([\d.]+) \((\w+)", text, re.M))
    if not done or int(done[1]) == 0:
        raise Failure("pgbench processed nothing\n" + "\n".join(text.splitlines()[-15:]))
    tps = rates.get("without") or rates.get("including") or 0.0
    return Run(int(done[1]), int(failed[1]) if failed else 0, float(tps))


@dataclass(frozen=True)
class Transaction:
    """A line of a log of pgbench; times in us."""

    #: the client's how-manieth it was
    number: int
    begin: int
    latency: int


def parse_log(lines):
    """The transactions of a log of pgbench: client, number, latency, script, seconds, microseconds of the end."""
    found = []
    for line in lines:
        _, number, latency, _, seconds, micros = line.split(" ", 6)[:6]
        latency = int(latency)
        found.append(Transaction(int(number), int(seconds) * 1_000_000 + int(micros) - latency, latency))
    return found


def steady(transactions):
    """Ascending latencies in us, without what belongs to the start.

    pgbench prepares a client's statements when it is first that client's turn, and waits for the answer: its thread
    looks at no other client meanwhile. Clients whose turn came first have their answers long before it looks, and for a
    thousand clients this takes up to seconds, through any pooler. So the start lasts until the last client has begun, and
    first transactions are no part of what is measured.
    """
    begun = max([one.begin for one in transactions if one.number == 1], default=0)
    return sorted(one.latency for one in transactions if one.number > 1 and one.begin >= begun)


def percentile(ordered, share):
    """The value below which `share` of an ascending list lies; None of an empty one."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def parse_schedstat(text):
    """Nanoseconds that a thread has been on a CPU: the first of three numbers of /proc/*/schedstat."""
    return int(text.split()[0])


def parse_stat(text):
    """(user, system) in clock ticks of /proc/*/stat. The name in brackets may hold spaces and brackets."""
    values = text[text.rindex(")") + 2:].split()
    return int(values[11]), int(values[12])


def parse_switches(text):
    """(voluntary, involuntary) context switches of /proc/*/status; only the latter where a thread was preempted."""
    found = dict(re.findall(r"^(voluntary|nonvoluntary)_ctxt_switches:\s*(\d+)", text, re.M))
    return int(found.get("voluntary", 0)), int(found.get("nonvoluntary", 0))


def parse_memory(text):
    """{field: bytes} of /proc/*/smaps_rollup."""
    return {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s*(\d+) kB", text, re.M)}


def parse_strace(text):
    """{system call: count} of the summary of `strace -c`, with `total`: `100.00  0.012  1  1234  [errors]  read`."""
    lines = [line.split() for line in text.splitlines()]
    return {words[-1]: int(words[3]) for words in lines if len(words) >= 5 and words[3].isdigit()}


def parse_perf(text):
    """{event: count} of `perf stat -x,`: `1234,,syscalls:sys_enter_write,…`. What could not be counted is left out."""
    lines = [line.split(",") for line in text.splitlines()]
    return {words[2]: int(words[0]) for words in lines if len(words) > 2 and words[0].isdigit()}


@dataclass(frozen=True)
class Usage:
    """What all threads of a process have used. The difference of two is what happened in between."""

    #: seconds on a CPU, from schedstat: exact
    cpu: float = 0.0
    #: seconds in user space and in the kernel, from the clock ticks of stat: their proportion is what is used
    user: float = 0.0
    system: float = 0.0
    #: times that a thread waited, and times that it was made to
    voluntary: float = 0.0
    involuntary: float = 0.0

    def __sub__(self, other):
        return Usage(*(getattr(self, one.name) - getattr(other, one.name) for one in fields(self)))

    def per(self, count, scale=1.0):
        """The columns of a table: CPU by `count` in units of 1/`scale` seconds, switches by `count`."""
        if count <= 0 or self.cpu <= 0:
            return {}
        row = {"cpu": self.cpu / count * scale,
               "voluntary": max(0.0, self.voluntary / count),
               "involuntary": max(0.0, self.involuntary / count)}
        ticks = self.user + self.system
        if ticks > 0 and self.user >= 0 and self.system >= 0:
            row["user"] = row["cpu"] * self.user / ticks
            row["system"] = row["cpu"] * self.system / ticks
        return row


def usage_of(pid):
    """The usage of a living process so far. Threads that have ended count in user and system only."""
    nanoseconds, voluntary, involuntary = 0, 0, 0
    for thread in glob.glob(f"/proc/{pid}/task/*"):
        try:
            on_cpu = parse_schedstat(Path(thread, "schedstat").read_text(encoding="ascii"))
            switches = parse_switches(Path(thread, "status").read_text(encoding="utf-8"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has just ended
        nanoseconds += on_cpu
        voluntary += switches[0]
        involuntary += switches[1]
    user, system = parse_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8"))
    return Usage(nanoseconds / 1e9, user / TICKS_PER_SECOND, system / TICKS_PER_SECOND, voluntary, involuntary)


def memory_of(pid):
    """{field: bytes} of a living process: `Rss`, `Anonymous` and others."""
    return parse_memory(Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii"))
