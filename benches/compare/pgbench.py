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
from .readings import Failure, parse_latencies, parse_pgbench, parse_strace, percentile


@dataclass(frozen=True)
class Load:
    """What pgbench is to do: its arguments without the target and without a limit."""

    program: str
    clients: int
    jobs: int
    arguments: tuple

    def run(self, target, limit, log=None):
        """One run; `limit` is -T or -t with its number, `log` a prefix of logs of latencies."""
        command = [self.program, "-h", target.host, "-p", str(target.port), "-U", USER, "-n",
                   "-c", str(self.clients), "-j", str(min(self.jobs, self.clients)), *self.arguments, *limit]
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
    """{p50, p99, p999} in ms of the logs of a run, which are removed."""
    found = []
    for path in glob.glob(f"{glob.escape(prefix)}.*"):
        with open(path, encoding="ascii") as lines:
            found += parse_latencies(lines)
        os.remove(path)
    found.sort()
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    return {key: percentile(found, share) / 1000 for key, share in shares.items() if found}


def system_calls(target, load, work):
    """System calls per transaction less those of one transaction per client, or None where nothing is traced.

    In runs of its own: a traced pooler is slow, so this belongs to no other column.
    """
    if target.pid() is None or not shutil.which("strace"):
        return None
    begin = time.monotonic()
    few = traced(target, load, ["-t", "1"], work)
    logins = time.monotonic() - begin
    many = traced(target, load, ["-T", str(longer(2, logins))], work) if few else None
    if not many or many[1] <= few[1]:
        return None
    return (many[0] - few[0]) / (many[1] - few[1])


def longer(seconds, logins):
    """The limit of a run that is to work for so long when its clients need `logins` seconds to log in.

    pgbench's clock runs from its start, and a thousand clients take seconds with TLS.
    """
    return seconds + round(1.5 * logins)


def traced(target, load, limit, work):
    """(system calls, transactions) of a run under strace, or None."""
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
    return parse_strace(summary.read_text(encoding="utf-8")), run.transactions
