"""pgferry beside PgBouncer, other poolers and PostgreSQL itself: the same work for each, in turns, as ratios.

What is measured, all of it with --all:

  --queries     pgbench -S, each protocol with each number of clients (this one if none is named)
  --connects    connect, SELECT 1, leave: trusted, with SCRAM, with TLS
  --transfers   rows of 1 KB and of 6 bytes, one large value, COPY out and in, large parameters
  --idle N      memory of N idle clients, plain and with TLS, and 100 active ones beside them
  --workers N,… pgferry with that many threads, and what they ask of the kernel (not part of --all)

Queries and transfers come in by TCP, or by --tls and --unix, each of which makes a table of its own.

Only compare inside one table: absolute numbers move with whatever else the machine does. Within each cell the
targets take turns, in an order that changes with the round, and ratios are medians of the ratios of single rounds. With
--runs 3 everything is done three times, with poolers and PostgreSQL's connections made anew, and a last table has the
medians of the ratios of the runs, and the least and the greatest.

  tps, p50, p99, p99.9   pgbench's rate without the first connections, and the latencies it logs per transaction
  CPU us                 time on a CPU of all threads of the pooler (schedstat) per transaction or connection
  user us, system us     the same, divided as the clock ticks of user and system time are
  calls                  system calls per transaction, by strace in runs of their own
  waits, preempted       voluntary and involuntary context switches per transaction
  CPU s/GB               CPU seconds per 10^9 bytes between client and pooler
  KB/client              anonymous memory per idle client (smaps_rollup)
  futex, wake-ups        system calls per transaction by which one thread waits for, or wakes, another

What logins and the first Parse cost is deducted from queries. docs/performance.md says more.

Poolers are found on PATH, or by PGFERRY, PGBOUNCER, PGCAT, PG_DOORMAN, ODYSSEY and PGDOG: paths of programs.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import signal
import sys
from pathlib import Path

from . import chart, connects, idle, queries, runs, scale, transfers
from .access import Access
from .configs import WRITERS
from .figures import Report, cells_of
from .targets import Setup, running

#: what pgferry is compared with
OTHERS = [*(name for name in WRITERS if name != "pgferry"), "direct"]


def words(text):
    """A list with commas."""
    return [word for word in text.split(",") if word]


def numbers(text):
    """A list of numbers with commas."""
    return [int(word) for word in words(text)]


def arguments():
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_argument_group("what is measured")
    what.add_argument("--queries", action="store_true", help="pgbench -S")
    what.add_argument("--connects", action="store_true", help="connections")
    what.add_argument("--transfers", action="store_true", help="large results and parameters")
    what.add_argument("--idle", type=int, metavar="N", help="idle clients")
    what.add_argument("--workers", type=numbers, metavar="N,...", help="pgferry with so many workers, by pgbench -S")
    what.add_argument("--all", action="store_true",
                      help="all of it, with 5000 idle clients, by TCP, TLS and Unix socket")
    what.add_argument("--tls", action="store_true", help="queries and transfers with sslmode=require")
    what.add_argument("--unix", action="store_true", help="queries and transfers by Unix socket, on both sides")
    what.add_argument("--targets", type=words, metavar="NAME,...", default=["direct", *WRITERS],
                      help=f"of direct, {', '.join(WRITERS)}; what is not found is left out (all)")
    how = parser.add_argument_group("how much of it")
    how.add_argument("-c", "--clients", default="1,16,100,1000", type=numbers, metavar="N,...",
                     help="clients of queries (%(default)s)")
    how.add_argument("-M", "--protocols", default="simple,extended,prepared", type=words, metavar="NAME,...",
                     help="pgbench's protocols (%(default)s)")
    how.add_argument("-T", "--seconds", default=4, type=int, help="length of a run (%(default)s)")
    how.add_argument("-r", "--rounds", default=3, type=int, help="rounds of each cell (%(default)s)")
    how.add_argument("--runs", default=1, type=int, help="how often all of it is done (%(default)s)")
    how.add_argument("-j", "--jobs", default=2, type=int, help="threads of pgbench (%(default)s)")
    how.add_argument("--connect-clients", default=50, type=int, metavar="N", help="clients that connect (%(default)s)")
    how.add_argument("--megabytes", default=100, type=int, metavar="N", help="size of a transfer (%(default)s)")
    how.add_argument("--active", default=100, type=int, metavar="N",
                     help="active clients beside idle ones; 0: none (%(default)s)")
    how.add_argument("--direct-clients", default=100, type=int, metavar="N",
                     help="most clients of a direct run (%(default)s)")
    how.add_argument("--no-syscalls", action="store_true", help="no runs under strace")
    poolers = parser.add_argument_group("the poolers")
    poolers.add_argument("--pool-size", default=20, type=int, metavar="N", help="servers of each pooler (%(default)s)")
    poolers.add_argument("--set", action="append", default=[], metavar="[NAME:]KEY=VALUE",
                         help="a line more in a pooler's settings, pgferry's if none is named: worker_threads=1")
    out = parser.add_argument_group("what comes of it")
    out.add_argument("--json", metavar="FILE", help="everything, for programs")
    out.add_argument("--svg", metavar="FILE", help="the CPU ratios as bars")
    out.add_argument("--from", dest="sources", type=words, default=[], metavar="FILE,...",
                     help="measure nothing, but make the table of --runs and the chart of what --json has written")
    out.add_argument("--reference", default="pgbouncer", metavar="NAME", help="what is 1 in the chart (%(default)s)")
    out.add_argument("--max-cpu-ratio", type=float, metavar="X",
                     help="fail if pgferry's CPU for queries is above X times PgBouncer's, at more than one client")
    for name in ("--server-port", "--work", "--pgbench"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    complete(parser, options)
    return options


def complete(parser, options):
    """What follows from other options."""
    if options.all:
        options.queries = options.connects = options.transfers = options.tls = options.unix = True
        options.idle = options.idle or 5000
    if not (options.connects or options.transfers or options.idle or options.workers):
        options.queries = True
    unknown = [name for name in options.targets if name != "direct" and name not in WRITERS]
    counts = [options.rounds, options.seconds, options.runs, *options.clients, *(options.workers or [])]
    if unknown or min(counts) < 1:
        parser.error(f"not a target: {', '.join(unknown)}" if unknown
                     else "rounds, seconds, runs, clients, workers: at least 1")
    options.ways = [way for way, wanted in ((Access.TCP, options.all or not (options.tls or options.unix)),
                                            (Access.TLS, options.tls), (Access.UNIX, options.unix)) if wanted]


def setup_of(options):
    """What targets need to know, with the programs that are there."""
    found = {}
    for name in WRITERS:
        program = os.environ.get(name.upper()) or shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")
        if program and os.access(program, os.X_OK):
            found[name] = os.path.abspath(program)
    missing = [name for name in options.targets if name != "direct" and name not in found]
    if missing:
        print(f"not found, left out: {', '.join(missing)}", file=sys.stderr)
    options.targets = [name for name in options.targets if name not in missing]
    extra = {}
    for setting in options.set:
        name, colon, line = setting.partition(":")
        if not colon or name not in WRITERS:
            name, line = "pgferry", setting
        extra.setdefault(name, []).append(line)
    certificate = (Path(options.work, "server.crt"), Path(options.work, "server.key"))
    most = max(*options.clients, options.connect_clients, (options.idle or 0) + options.active)
    return Setup(Path(options.work), int(options.server_port), certificate if certificate[0].exists() else None,
                 options.pool_size, most + 100, found, extra, options.pgbench)


def plan(options):
    """[(mode, way in)], in the order of the tables."""
    steps = [(scale, way) for way in options.ways] if options.workers else []
    if options.queries:
        steps += [(queries, way) for way in options.ways]
    if options.connects:
        steps += [(connects, way) for way in (Access.TCP, Access.SCRAM, Access.TLS)]
    if options.transfers:
        steps += [(transfers, way) for way in options.ways]
    if options.idle:
        steps += [(idle, way) for way in (Access.TCP, Access.TLS)]
    return steps


def describe(report, options):
    """Keeps and prints what is measured on, and with what."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    report.machine = {"cpus": os.cpu_count(), "model": models[0] if models else platform.machine(),
                      "kernel": platform.release(), "load": round(os.getloadavg()[0], 1),
                      "tcp_congestion_control": congestion.read_text().strip() if congestion.exists() else "?"}
    report.options = {key: value for key, value in vars(options).items()
                      if isinstance(value, (int, float, str, list)) and key not in ("work", "server_port", "ways")}
    print("machine: {cpus} x {model}, kernel {kernel}, load {load}, {tcp_congestion_control}".format(**report.machine))


def write(reports, options):
    """The files that were asked for, whatever became of single cells, and the summary if there are several runs."""
    cells = runs.gathered([report.cells for report in reports])
    if len(reports) > 1:
        runs.print_summary(cells, reports[0].subject, reports[0].others)
    if options.json:
        text = (reports[0].as_json() if len(reports) == 1
                else runs.as_json(reports, cells, reports[0].subject, reports[0].others))
        Path(options.json).write_text(text, encoding="utf-8")
    draw(cells, options)


def draw(cells, options):
    """The chart, if it was asked for."""
    if options.svg:
        rows = chart.rows_of(cells, options.reference)
        Path(options.svg).write_text(chart.svg(rows, options.reference), encoding="utf-8")


def again(options):
    """What earlier measurements have written, as a table and as a chart."""
    found = []
    for source in options.sources:
        document = json.loads(Path(source).read_text(encoding="utf-8"))
        found += [cells_of(one) for one in document.get("runs", [document])]
    cells = runs.gathered(found)
    runs.print_summary(cells, "pgferry", OTHERS)
    draw(cells, options)


def main():
    """Measures, and ends with an error if anything could not be."""
    options = arguments()
    if options.sources:
        again(options)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # poolers end in `finally`
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    setup = setup_of(options)
    reports = []
    for number in range(options.runs):
        if options.runs > 1:
            print(f"\nrun {number + 1} of {options.runs}")
        reports.append(measure(setup, options))
    write(reports, options)
    failures = [failure for report in reports for failure in report.failures]
    worst = max(report.worst("queries", "cpu", "pgbouncer") for report in reports)
    if options.max_cpu_ratio and worst > options.max_cpu_ratio:
        failures.append(f"CPU per transaction is {worst:.2f} x PgBouncer's, more than {options.max_cpu_ratio}")
    if failures:
        sys.exit("\n".join(["", *failures]))


def started(mode, way, setup, options):
    """The targets of a mode, as a context."""
    return scale.running(options.workers, setup, way) if mode is scale else running(options.targets, setup, way)


def measure(setup, options):
    """One run of all that was asked for."""
    report = Report(others=OTHERS)
    describe(report, options)
    for mode, way in plan(options):
        def step(mode=mode, way=way):
            with started(mode, way, setup, options) as targets:
                for target in targets:
                    if target.name not in report.versions:
                        report.versions[target.name] = target.version
                        print(f"{target.name}: {target.version}")
                mode.run(targets, way, options, report)

        report.attempt(f"{mode.__name__.rpartition('.')[2]} {way.value}", step)
    return report


if __name__ == "__main__":
    main()
