"""What is measured: pooler processes, each with a configuration of its own, and PostgreSQL itself.

A pooler runs under the account that servers run under and ends with the measurement, whatever becomes of that.
"""

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .access import USER, Access
from .configs import DATABASE, WRITERS, Place, Unsupported
from .readings import Failure, Usage, memory_of, usage_of

#: seconds that a pooler has to begin to listen
START_LIMIT = 20


@dataclass(frozen=True)
class Setup:
    """What all targets of a measurement have in common."""

    work: Path
    server_port: int
    #: (certificate, key), or None where there was no openssl
    certificate: tuple
    pool_size: int
    max_clients: int
    #: by name, the program of a pooler
    programs: dict
    #: by name, lines more in its configuration
    extra: dict
    pgbench: str


class Target:
    """Where clients connect to: a way in, a host (a directory for Unix sockets), a port and a database."""

    def __init__(self, name, access, host, port, database):
        self.name = name
        self.access = access
        self.host = host
        self.port = port
        self.database = database
        self.version = "?"

    def pid(self):
        """The process whose CPU counts, or None of PostgreSQL itself."""
        return None

    def usage(self):
        """What it has used so far: nothing, for PostgreSQL itself."""
        return usage_of(self.pid()) if self.pid() else Usage()

    def stop(self):
        """Ends it."""


class Direct(Target):
    """No pooler at all: clients talk to PostgreSQL."""

    def __init__(self, setup, access):
        if access is Access.SCRAM:
            raise Unsupported("PostgreSQL trusts everybody here")
        host = str(setup.work) if access is Access.UNIX else "127.0.0.1"
        super().__init__("direct", access, host, setup.server_port, "postgres")
        self.version = output([setup.pgbench, "--version"])


class Pooler(Target):
    """A pooler process; `label` is what tables call it if there are several of a kind."""

    def __init__(self, name, setup, access, label=None):
        directory = Path(setup.work) / f"{label or name}-{access.value}".replace(" ", "-")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        super().__init__(label or name, access, str(directory) if access is Access.UNIX else "127.0.0.1",
                         free_port(), DATABASE)
        place = Place(directory, self.port, setup.server_port, str(setup.work), setup.pool_size,
                      setup.max_clients, access, tuple(setup.extra.get(name, ())))
        if access is Access.TLS:
            if not setup.certificate:
                raise Unsupported("there is no certificate: openssl was not found")
            for source, copy in zip(setup.certificate, place.certificate()):
                shutil.copy(source, copy)
                copy.chmod(0o600)
        arguments = WRITERS[name](place)
        program, account = setup.programs[name], {}
        if os.geteuid() == 0:
            program, account = hand_over(directory, program)
        self.version = output([program, "--version"]).splitlines()[0]
        self.log = directory / "log"
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen([program, *arguments], cwd=directory, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=subprocess.STDOUT, **account)
        try:
            self.wait_until_it_listens()
        except BaseException:
            self.stop()
            raise

    def wait_until_it_listens(self):
        """By TCP: all configurations have that, whatever else they have."""
        deadline = time.monotonic() + START_LIMIT
        while not listens(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"{self.name} does not start:\n{self.last_words()}")
            time.sleep(0.05)

    def last_words(self):
        """The end of its log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])

    def pid(self):
        return self.process.pid

    def usage(self):
        if self.process.poll() is not None:
            raise Failure(f"{self.name} has ended:\n{self.last_words()}")
        return super().usage()

    def memory(self):
        """{field: bytes} of its smaps_rollup."""
        return memory_of(self.pid())

    def stop(self):
        self.process.send_signal(signal.SIGQUIT)  # "at once" to PgBouncer and pgferry
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def hand_over(directory, program):
    """As root: a copy of the program that the servers' account can reach, and that account for Popen."""
    entry = pwd.getpwnam(USER)
    copy = shutil.copy(program, directory)
    for path in [directory, *directory.iterdir()]:
        os.chown(path, entry.pw_uid, entry.pw_gid)
    return copy, {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@contextlib.contextmanager
def running(names, setup, access):
    """The targets of these names, started; what cannot come in this way is left out with a word about it."""
    targets = []
    try:
        for name in names:
            try:
                targets.append(Direct(setup, access) if name == "direct" else Pooler(name, setup, access))
            except Unsupported as reason:
                print(f"{name}, {access.value}: left out: {reason}", file=sys.stderr)
        yield targets
    finally:
        for target in targets:
            target.stop()


def free_port():
    """Below the range that the kernel draws outgoing ports from, since thousands follow."""
    while True:
        port = random.randrange(20000, 32000)
        if not listens(port):
            return port


def listens(port):
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def output(command):
    """What a command says, or a question mark."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return result.stdout.strip() or result.stderr.strip() or "?"
