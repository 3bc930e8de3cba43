"""Every pooler's configuration is written for each way in, or refused."""

import tempfile
import tomllib
import unittest
from pathlib import Path

from compare.access import Access
from compare.configs import WRITERS, Place, Unsupported


class Configurations(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def written(self, name, access, extra=()):
        """The text of the first file that the arguments name."""
        place = Place(self.directory, 6432, 5432, "/tmp/server", 20, 1100, access, extra)
        arguments = WRITERS[name](place)
        return Path(next(argument for argument in arguments if argument.startswith("/"))).read_text(encoding="ascii")

    def test_pgferry_and_pgbouncer_read_the_same_file_and_know_every_way_in(self):
        for access in Access:
            self.assertEqual(WRITERS["pgferry"], WRITERS["pgbouncer"])
            self.assertIn("pool_mode = transaction\n", self.written("pgbouncer", access))

    def test_unix_sockets_are_used_on_both_sides(self):
        text = self.written("pgbouncer", Access.UNIX)
        self.assertIn("host=/tmp/server port=5432", text)
        self.assertIn(f"unix_socket_dir = {self.directory}\n", text)

    def test_scram_asks_for_a_proof_and_has_a_verifier(self):
        self.assertIn("auth_type = scram-sha-256\n", self.written("pgbouncer", Access.SCRAM))
        self.assertIn("SCRAM-SHA-256$", (self.directory / "users.txt").read_text(encoding="ascii"))

    def test_lines_of_the_command_line_stand_in_the_file(self):
        self.assertIn("\nworker_threads = 1\n", self.written("pgferry", Access.TCP, ("worker_threads = 1",)))

    def test_toml_is_toml_with_and_without_tls(self):
        for name in ("pgcat", "pg_doorman", "pgdog"):
            for access in (Access.TCP, Access.TLS):
                found = tomllib.loads(self.written(name, access, ("extra = 1",)))["general"]
                self.assertEqual((found["port"], found["extra"]), (6432, 1))
                self.assertEqual("server.crt" in str(found), access is Access.TLS)

    def test_what_is_not_written_down_is_refused(self):
        for name in ("pgcat", "pg_doorman", "odyssey", "pgdog"):
            for access in (Access.UNIX, Access.SCRAM):
                with self.assertRaises(Unsupported):
                    self.written(name, access)

    def test_brackets_of_odysseys_file_are_closed(self):
        text = self.written("odyssey", Access.TLS)
        self.assertEqual(text.count("{"), text.count("}"))
