"""Several runs: the median of their ratios, and how far they lie apart."""

import contextlib
import io
import json
import unittest

from compare import chart, runs
from compare.figures import Cell, Report, cells_of


def run(cpu):
    """The cells of a run whose pgferry takes so much for what PgBouncer takes 20 for."""
    return [Cell("queries", "tcp", "simple 16", {"pgferry": [{"cpu": cpu}], "pgbouncer": [{"cpu": 20.0}]})]


class Runs(unittest.TestCase):
    def setUp(self):
        self.cells = runs.gathered([run(10.0), run(18.0), run(12.0)])

    def test_the_ratio_is_the_median_of_those_of_the_runs(self):
        self.assertEqual([cell.ratio("pgferry", "pgbouncer", "cpu") for cell in self.cells], [0.6])
        self.assertEqual(self.cells[0].median("pgferry", "cpu"), 12.0)

    def test_the_summary_has_the_least_and_the_greatest(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            runs.print_summary(self.cells, "pgferry", ["pgbouncer", "odyssey"])
        self.assertEqual(said.getvalue().splitlines()[-1].split(),
                         ["queries", "tcp", "simple", "16", "/", "pgbouncer", "0.60", "(0.50..0.90)"])

    def test_nothing_to_compare_is_no_table(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            runs.print_summary(self.cells, "pgferry", ["direct"])
        self.assertEqual(said.getvalue(), "")

    def test_a_target_that_one_run_lacks_is_left_out(self):
        less = run(10.0)
        del less[0].rounds["pgbouncer"]
        self.assertEqual(list(runs.gathered([run(10.0), less])[0].rounds), ["pgferry"])

    def test_the_chart_is_of_the_medians(self):
        self.assertEqual([row.ratios for row in chart.rows_of(self.cells, "pgbouncer")], [{"pgferry": 0.6}])

    def test_json_can_be_read_again(self):
        reports = []
        for cpu in (10.0, 18.0, 12.0):
            reports.append(Report())
            reports[-1].cells = run(cpu)
        document = json.loads(runs.as_json(reports, self.cells, "pgferry", ["pgbouncer"]))
        self.assertEqual(document["summary"][0]["ratios"], {"pgferry/pgbouncer": {"cpu": [0.5, 0.9, 0.6]}})
        again = runs.gathered([cells_of(one) for one in document["runs"]])
        self.assertEqual(again[0].ratio("pgferry", "pgbouncer", "cpu"), 0.6)
