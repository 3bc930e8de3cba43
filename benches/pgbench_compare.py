#!/usr/bin/env python3
"""pgbench -S directly, through pgferry and through PgBouncer, in turns, printed as ratios.

Needs a running PostgreSQL with pgbench's tables: `scripts/bench` makes one and calls this file.

Only compare inside one table: absolute numbers move with whatever else the machine does. Within each
cell (protocol x clients) the targets take turns, in an order that changes with the round, and the
ratios are medians of the ratios of single rounds. What is counted:

  tps        pgbench's, without the time of the first connections
  p50, p99   of the latencies that pgbench logs per transaction, in ms
  CPU us     time on a CPU of all threads of the pooler (schedstat) over the exact number of
             transactions, less what a run of one transaction per client costs (logins, first Parse)
  calls      system calls per transaction, by strace -c in a run of its own, less the same
"""

import argparse
import glob
import os
import platform
import pwd
import random
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

DATABASE = "bench"

INI = """\
[databases]
{database} = host=127.0.0.1 port={server} dbname=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
admin_users = postgres
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 5000
max_prepared_statements = 200
log_connections = 0
log_disconnections = 0
{extra}
"""


class Failure(Exception):
    """A run that did not do its work."""


class Pooler:
    """A pooler process under the account that servers run under."""

    def __init__(self, name, program, options):
        self.name = name
        self.directory = Path(options.work) / name
        self.directory.mkdir(exist_ok=True)
        self.port = free_port()
        users = self.directory / "users.txt"
        users.write_text('"postgres" ""\n')
        extra = "\n".join(options.set) if name == "pgferry" else ""
        config = self.directory / "pooler.ini"
        config.write_text(INI.format(database=DATABASE, server=options.server_port, port=self.port,
                                     users=users, pool=options.pool_size, extra=extra))
        account = {}
        if os.geteuid() == 0:
            entry = pwd.getpwnam("postgres")
            account = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            # A copy that the account can reach.
            program = shutil.copy(program, self.directory)
            for path in [self.directory, *self.directory.iterdir()]:
                os.chown(path, entry.pw_uid, entry.pw_gid)
        self.version = output([program, "--version"]).splitlines()[0]
        self.log = self.directory / "log"
        self.process = subprocess.Popen([program, str(config)], cwd=self.directory, stdin=subprocess.DEVNULL,
                                        stdout=self.log.open("w"), stderr=subprocess.STDOUT, **account)
        deadline = time.monotonic() + 20
        while not listens(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"{name} does not start:\n{self.log.read_text()}")
            time.sleep(0.05)

    def cpu(self):
        """Seconds that its threads have been on a CPU."""
        total = 0
        for path in glob.glob(f"/proc/{self.process.pid}/task/*/schedstat"):
            try:
                total += int(Path(path).read_text().split()[0])
            except FileNotFoundError:
                pass  # a thread that has just ended
        return total / 1e9

    def stop(self):
        self.process.send_signal(signal.SIGQUIT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Direct:
    """No pooler at all: pgbench talks to PostgreSQL."""

    name = "direct"
    version = ""

    def __init__(self, options):
        self.port = options.server_port
        self.version = output([options.pgbench, "--version"])

    def cpu(self):
        return 0.0

    def stop(self):
        pass


def free_port():
    """Below the range that the kernel draws outgoing ports from, since thousands follow."""
    while True:
        port = random.randrange(20000, 32000)
        if not listens(port):
            return port


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def output(command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "?"


def pgbench(target, protocol, clients, limit, options, log=None):
    """Runs pgbench; returns (transactions, tps). `limit` is -T or -t with its number."""
    database = "postgres" if target.name == "direct" else DATABASE
    command = [options.pgbench, "-h", "127.0.0.1", "-p", str(target.port), "-U", "postgres", "-S", "-n",
               "-M", protocol, "-c", str(clients), "-j", str(min(options.jobs, clients)), *limit]
    if log:
        command += ["--log", f"--log-prefix={log}"]
    result = subprocess.run([*command, database], capture_output=True, text=True, check=False)
    done = re.search(r"transactions actually processed: (\d+)", result.stdout)
    failed = re.search(r"number of failed transactions: (\d+)", result.stdout)
    tps = re.search(r"tps = ([\d.]+) \(without", result.stdout)
    if result.returncode or not done or (failed and int(failed[1])):
        last = "\n".join((result.stdout + result.stderr).splitlines()[-15:])
        raise Failure(f"{target.name}, {protocol}, {clients} clients: pgbench failed\n{last}")
    return int(done[1]), float(tps[1]) if tps else 0.0


def percentiles(prefix):
    """p50 and p99 in ms, of the per-transaction logs, which are removed."""
    latencies = []
    for path in glob.glob(f"{prefix}.*"):
        with open(path, encoding="ascii") as lines:
            latencies += [int(line.split(" ", 3)[2]) for line in lines]
        os.remove(path)
    latencies.sort()
    if not latencies:
        return 0.0, 0.0
    return (latencies[len(latencies) // 2] / 1000,
            latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)] / 1000)


def measure(target, protocol, clients, options):
    """One round of one target: a dict of the columns."""
    before = target.cpu()
    first, _ = pgbench(target, protocol, clients, ["-t", "1"], options)
    between = target.cpu()
    prefix = os.path.join(options.work, "latency")
    done, tps = pgbench(target, protocol, clients, ["-T", str(options.seconds)], options, prefix)
    after = target.cpu()
    p50, p99 = percentiles(prefix)
    result = {"tps": tps, "p50": p50, "p99": p99}
    if target.name != "direct" and done > first:
        result["cpu"] = ((after - between) - (between - before)) / (done - first) * 1e6
    return result


def system_calls(target, protocol, clients, options):
    """System calls per transaction, or None where strace cannot be had."""
    if target.name == "direct" or options.no_syscalls or not shutil.which("strace"):
        return None
    few = traced(target, protocol, clients, ["-t", "1"], options)
    many = traced(target, protocol, clients, ["-T", "2"], options)
    if not few or not many or many[1] <= few[1]:
        return None
    return (many[0] - few[0]) / (many[1] - few[1])


def traced(target, protocol, clients, limit, options):
    """(system calls, transactions) of a run under strace, or None."""
    summary = os.path.join(options.work, "strace")
    tracer = subprocess.Popen(["strace", "-c", "-f", "-o", summary, "-p", str(target.process.pid)],
                              stderr=subprocess.PIPE, text=True)
    for line in tracer.stderr:
        if "attached" in line:
            break
    else:
        print(f"strace cannot attach to {target.name}: no system calls are counted", file=sys.stderr)
        options.no_syscalls = True
        tracer.wait()
        return None
    time.sleep(0.3)  # strace says nothing once it has found the last thread
    try:
        done, _ = pgbench(target, protocol, clients, limit, options)
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()
    total = [line.split() for line in open(summary, encoding="utf-8") if line.rstrip().endswith(" total")]
    # "100.00  0.012  1  1234  [errors]  total"
    return int(total[-1][3]), done


COLUMNS = [("tps", "tps", "{:.0f}"), ("p50", "p50 ms", "{:.3f}"), ("p99", "p99 ms", "{:.3f}"),
           ("cpu", "CPU us", "{:.2f}"), ("calls", "calls", "{:.2f}")]


def cell(values, form):
    return form.format(statistics.median(values)) if values else "-"


def print_row(first, cells):
    print("  ".join([f"{first:<28}"] + [f"{value:>10}" for value in cells]), flush=True)


def ratios(rounds, other):
    """Medians of the ratios pgferry / other of single rounds."""
    row = []
    for key, _, _ in COLUMNS:
        pairs = [(one.get(key), two.get(key)) for one, two in zip(rounds["pgferry"], rounds[other])]
        row.append(cell([one / two for one, two in pairs if one and two], "{:.2f}"))
    return row


def run_cell(targets, protocol, clients, options):
    """All rounds of all targets for one protocol and number of clients; prints its rows."""
    rounds = {target.name: [] for target in targets}
    for turn in range(options.rounds):
        shift = turn % len(targets)
        for target in targets[shift:] + targets[:shift]:
            if target.name == "direct" and clients > options.direct_clients:
                continue
            rounds[target.name].append(measure(target, protocol, clients, options))
    for target in targets:
        if rounds[target.name]:
            calls = system_calls(target, protocol, clients, options)
            if calls:
                for one in rounds[target.name]:
                    one["calls"] = calls
            values = {key: [one[key] for one in rounds[target.name] if key in one] for key, _, _ in COLUMNS}
            print_row(f"{protocol} {clients} {target.name}",
                      [cell(values[key], form) for key, _, form in COLUMNS])
    for other in ("pgbouncer", "direct"):
        if rounds.get("pgferry") and rounds.get(other):
            print_row(f"    pgferry / {other}", ratios(rounds, other))
    return rounds


def describe_machine(targets, options):
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    print(f"machine: {os.cpu_count()} x {models[0] if models else platform.machine()}, "
          f"kernel {platform.release()}, load {os.getloadavg()[0]:.1f}")
    for target in targets:
        print(f"{target.name}: {target.version}")
    print(f"pgbench -S -j {options.jobs}, pool {options.pool_size}, {options.rounds} rounds of "
          f"{options.seconds} s; medians\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = lambda text: [word for word in text.split(",") if word]
    parser.add_argument("-c", "--clients", default="1,16,100", help="numbers of clients (%(default)s)",
                        type=lambda text: [int(word) for word in words(text)])
    parser.add_argument("-M", "--protocols", default="simple,extended,prepared", type=words,
                        help="pgbench's protocols (%(default)s)")
    parser.add_argument("-T", "--seconds", default=4, type=int, help="length of a run (%(default)s)")
    parser.add_argument("-r", "--rounds", default=3, type=int, help="rounds of each cell (%(default)s)")
    parser.add_argument("-j", "--jobs", default=2, type=int, help="threads of pgbench (%(default)s)")
    parser.add_argument("--targets", default="direct,pgferry,pgbouncer", type=words,
                        help="what to measure (%(default)s); what is not found is left out")
    parser.add_argument("--pool-size", default=20, type=int, help="servers of each pooler (%(default)s)")
    parser.add_argument("--direct-clients", default=100, type=int,
                        help="most clients of a direct run (%(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="a line more in pgferry's settings, such as worker_threads=1")
    parser.add_argument("--no-syscalls", action="store_true", help="no runs under strace")
    parser.add_argument("--max-cpu-ratio", type=float,
                        help="fail if the CPU ratio to PgBouncer is above this, at more than one client")
    hidden = {"help": argparse.SUPPRESS}
    parser.add_argument("--server-port", type=int, required=True, **hidden)
    parser.add_argument("--work", required=True, **hidden)
    parser.add_argument("--pgbench", default="pgbench", **hidden)
    parser.add_argument("--pgferry", default="", **hidden)
    parser.add_argument("--pgbouncer", default="", **hidden)
    return parser.parse_args()


def start_targets(options, targets):
    """Starts what is wanted and found, into `targets`, so that a failure leaves none behind."""
    for name in options.targets:
        program = getattr(options, name, "")
        if name == "direct":
            targets.append(Direct(options))
        elif program and os.access(program, os.X_OK):
            targets.append(Pooler(name, program, options))
        else:
            print(f"{name}: not found, left out", file=sys.stderr)


def main():
    options = arguments()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    targets, failures, worst = [], [], 0.0
    try:
        start_targets(options, targets)
        describe_machine(targets, options)
        print_row("", [title for _, title, _ in COLUMNS])
        for protocol in options.protocols:
            for clients in options.clients:
                try:
                    rounds = run_cell(targets, protocol, clients, options)
                except Failure as failure:
                    failures.append(str(failure))
                    print(failure, file=sys.stderr)
                    continue
                if clients > 1 and rounds.get("pgferry") and rounds.get("pgbouncer"):
                    worst = max(worst, float(ratios(rounds, "pgbouncer")[3]))
    finally:
        for target in targets:
            target.stop()
    if options.max_cpu_ratio and worst > options.max_cpu_ratio:
        failures.append(f"CPU per transaction is {worst:.2f} x PgBouncer's, more than {options.max_cpu_ratio}")
    if failures:
        sys.exit("\n".join(["", *failures]))


if __name__ == "__main__":
    main()
