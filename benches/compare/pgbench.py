"""Runs of pgbench against a target, with and without strace at the pooler."""

import glob
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .access import USER
from .readings import Failure, parse_log, parse_perf, parse_pgbench, parse_strace, percentile, steady


#: above this, the start of prepared statements is one thread's, see `Load.threads`
FEW = 200


@dataclass(frozen=True)
class Load:
    """What pgbench is to do: its arguments without the target and without a limit."""

    program: str
    clients: int
    jobs: int
    arguments: tuple

    def threads(self):
        """How many threads pgbench gets.

        With many clients and prepared statements it is one. Of two, one is through with preparing first, and its clients
        keep all servers busy; each statement that the other one still prepares then waits for its turn behind them,
        and nothing of that thread's clients is seen meanwhile (`readings.steady`).
        """
        return 1 if "prepared" in self.arguments and self.clients > FEW else min(self.jobs, self.clients)

    def run(self, target, limit, log=None):
        """One run; `limit` is -T or -t with its number, `log` a prefix of logs of latencies."""
        command = [self.program, "-h", target.host, "-p", str(target.port), "-U", USER, "-n",
                   "-c", str(self.clients), "-j", str(self.threads()), *self.arguments, *limit]
        if log:
            command += ["--log", f"--log-prefix={log}"]
        result = subprocess.run([*command, target.database], capture_output=True, text=True, check=False,
                                env=target.access.environment())
        if result.returncode:
            last = "\n".join((result.stdout + result.stderr).splitlines()[-15:])
            raise Failure(f"{target.name}: pgbench failed\n{last}")
        try:
            run = parse_pgbench(result.stdout)
        except Failure as failure:
            raise Failure(f"{target.name}: {failure}") from failure
        if run.failed:
            raise Failure(f"{target.name}: {run.failed} transactions failed")
        return run


def latencies(prefix):
    """{p50, p99, p999} in ms of the logs of a run, which are removed; without what belongs to its start."""
    found = []
    for path in glob.glob(f"{glob.escape(prefix)}.*"):
        with open(path, encoding="ascii") as lines:
            found += parse_log(lines)
        os.remove(path)
    return shares_of(steady(found))


def shares_of(ordered):
    """{p50, p99, p999} in ms of ascending latencies in us."""
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    return {key: percentile(ordered, share) / 1000 for key, share in shares.items() if ordered}


def system_calls(target, load, work):
    """{system call: per transaction}, with `total`, less those of one transaction per client; None where nothing is traced.

    In runs of its own: a traced pooler is slow, so this belongs to no other column.
    """
    if target.pid() is None or not shutil.which("strace"):
        return None
    return difference(lambda limit: traced(target, load, limit, work))


def events(target, load, names, work):
    """The same for events of `perf stat`, which slows nobody down; None where there is none or it may not."""
    if target.pid() is None or not shutil.which("perf"):
        return None
    return difference(lambda limit: counted(target, load, limit, (names, work)))


def difference(count):
    """What a run costs, per transaction, less what one of a transaction for each client does. `count` makes a run, with
    a limit of pgbench's, and returns ({name: count}, transactions), or None."""
    begin = time.monotonic()
    few = count(["-t", "1"])
    logins = time.monotonic() - begin
    many = count(["-T", str(longer(2, logins))]) if few else None
    if not many or many[1] <= few[1]:
        return None
    return {name: max(0, count - few[0].get(name, 0)) / (many[1] - few[1]) for name, count in many[0].items()}


def longer(seconds, logins):
    """The limit of a run that is to work for so long when its clients need `logins` seconds to log in.

    pgbench's clock runs from its start, and a thousand clients take seconds with TLS.
    """
    return seconds + round(1.5 * logins)


def counted(target, load, limit, what):
    """({event: count}, transactions) of a run under `perf stat`, or None."""
    names, work = what
    summary = Path(work) / "perf"
    counter = subprocess.Popen(["perf", "stat", "-x,", "-o", str(summary), "-e", ",".join(names),
                                "-p", str(target.pid())], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.5)  # it does not say when it has begun
    try:
        run = load.run(target, limit)
    finally:
        counter.send_signal(signal.SIGINT)
        counter.wait()
    found = parse_perf(summary.read_text(encoding="utf-8")) if summary.exists() else {}
    return (found, run.transactions) if found else None


def traced(target, load, limit, work):
    """({system call: count}, transactions) of a run under strace, or None."""
    summary = Path(work) / "strace"
    tracer = subprocess.Popen(["strace", "-c", "-f", "-o", str(summary), "-p", str(target.pid())],
                              stderr=subprocess.PIPE, text=True)
    for line in tracer.stderr:
        if "attached" in line:
            break
    else:
        print(f"strace cannot attach to {target.name}: no system calls are counted", file=sys.stderr)
        tracer.wait()
        return None
    time.sleep(0.3)  # strace says nothing once it has found the last thread
    try:
        run = load.run(target, limit)
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()
    return {"total": 0, **parse_strace(summary.read_text(encoding="utf-8"))}, run.transactions
