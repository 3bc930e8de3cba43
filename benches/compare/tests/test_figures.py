"""Medians, ratios, turns and JSON."""

import contextlib
import io
import json
import types
import unittest

from compare.figures import Cell, Column, Report, interleave
from compare.readings import Failure


def cell():
    """A cell of three rounds whose medians' ratio is not the median of its ratios."""
    return Cell("queries", "tcp", "simple 16", {
        "pgferry": [{"cpu": 10.0}, {"cpu": 20.0}, {"cpu": 90.0}],
        "pgbouncer": [{"cpu": 20.0}, {"cpu": 80.0}, {"cpu": 60.0}]})


class Ratios(unittest.TestCase):
    def test_the_median_is_of_the_ratios_of_single_rounds(self):
        self.assertEqual(cell().median("pgferry", "cpu"), 20.0)
        self.assertEqual(cell().ratio("pgferry", "pgbouncer", "cpu"), 0.5)

    def test_a_round_that_lacks_a_value_is_left_out_of_both(self):
        one = cell()
        del one.rounds["pgbouncer"][0]["cpu"]
        self.assertEqual(one.ratio("pgferry", "pgbouncer", "cpu"), (0.25 + 1.5) / 2)

    def test_nothing_is_divided_by_zero(self):
        one = Cell("m", "tcp", "n", {"a": [{"cpu": 1.0}], "b": [{"cpu": 0.0}]})
        self.assertIsNone(one.ratio("a", "b", "cpu"))
        self.assertEqual(one.ratio("b", "a", "cpu"), 0.0)

    def test_who_was_not_measured_has_no_figures(self):
        self.assertIsNone(cell().median("odyssey", "cpu"))
        self.assertIsNone(cell().ratio("pgferry", "odyssey", "cpu"))


class Turns(unittest.TestCase):
    def test_the_order_changes_with_the_round(self):
        order = []
        targets = [types.SimpleNamespace(name=name) for name in "abc"]
        interleave(targets, 3, lambda target: order.append(target.name) or {})
        self.assertEqual("".join(order), "abcbcacab")

    def test_rounds_stand_in_the_order_of_the_targets(self):
        targets = [types.SimpleNamespace(name=name) for name in "ab"]
        found = interleave(targets, 2, lambda target: {"x": 1} if target.name == "b" else {"x": 2})
        self.assertEqual(found, {"a": [{"x": 2}, {"x": 2}], "b": [{"x": 1}, {"x": 1}]})

    def test_who_has_no_part_in_a_cell_is_not_in_it(self):
        targets = [types.SimpleNamespace(name=name) for name in "ab"]
        self.assertEqual(list(interleave(targets, 1, lambda target: None if target.name == "a" else {})), ["b"])


class Reports(unittest.TestCase):
    def setUp(self):
        self.report = Report()
        self.said = io.StringIO()
        with contextlib.redirect_stdout(self.said):
            self.report.head("title", [Column("cpu", "CPU us")])
            self.report.add(cell(), [Column("cpu", "CPU us")])

    def test_a_cell_is_a_row_for_each_target_and_one_of_ratios(self):
        rows = [line.split() for line in self.said.getvalue().splitlines()[3:]]
        self.assertEqual(rows, [["tcp", "simple", "16", "pgferry", "20.00"],
                                ["tcp", "simple", "16", "pgbouncer", "60.00"],
                                ["pgferry", "/", "pgbouncer", "0.50"]])

    def test_json_has_rounds_medians_and_ratios(self):
        found = json.loads(self.report.as_json())["cells"][0]
        self.assertEqual(found["medians"], {"pgferry": {"cpu": 20.0}, "pgbouncer": {"cpu": 60.0}})
        self.assertEqual(found["ratios"], {"pgferry/pgbouncer": {"cpu": 0.5}})
        self.assertEqual(len(found["rounds"]["pgferry"]), 3)

    def test_the_worst_ratio_is_that_of_many_clients(self):
        single = cell()
        single.name = "simple 1"
        single.rounds["pgferry"] = [{"cpu": 1000.0}]
        self.report.cells.append(single)
        self.assertEqual(self.report.worst("queries", "cpu", "pgbouncer"), 0.5)
        self.assertEqual(self.report.worst("transfers", "cpu", "pgbouncer"), 0.0)

    def test_a_failure_is_kept_and_the_rest_goes_on(self):
        def fails():
            raise Failure("no")

        with contextlib.redirect_stdout(io.StringIO()):
            self.report.attempt("this", fails)
        self.assertEqual(self.report.failures, ["this: no"])
