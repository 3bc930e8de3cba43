"""Targets that differ in the number of their workers."""

import unittest

from compare import scale
from compare.pgbench import Load
from compare.targets import Setup


class Scale(unittest.TestCase):
    def test_all_workers_are_in_use_and_the_pool_feeds_them(self):
        setup = Setup("/w", 1, None, 20, 100, {}, {"pgferry": ["verbose = 1"], "odyssey": ["x"]}, "pgbench")
        found = scale.setup_for(setup, 2, 8)
        self.assertEqual(found.extra, {"pgferry": ["verbose = 1", "worker_threads = 2", "min_worker_threads = 2"],
                                       "odyssey": ["x"]})
        self.assertEqual((found.pool_size, setup.extra["pgferry"]), (32, ["verbose = 1"]))

    def test_a_small_number_leaves_the_pool_as_it_was_asked_for(self):
        setup = Setup("/w", 1, None, 20, 100, {}, {}, "pgbench")
        self.assertEqual(scale.setup_for(setup, 1, 4).pool_size, 20)

    def test_labels(self):
        self.assertEqual([scale.label_of(workers) for workers in (1, 2)], ["1 worker", "2 workers"])


class Threads(unittest.TestCase):
    def test_many_clients_with_prepared_statements_begin_on_one_thread(self):
        counts = {(clients, protocol): Load("pgbench", clients, 2, ("-S", "-M", protocol)).threads()
                  for clients in (1, 100, 1000) for protocol in ("simple", "prepared")}
        self.assertEqual(counts, {(1, "simple"): 1, (1, "prepared"): 1, (100, "simple"): 2, (100, "prepared"): 2,
                                  (1000, "simple"): 2, (1000, "prepared"): 1})
