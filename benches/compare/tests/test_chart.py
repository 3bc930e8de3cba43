"""The chart is well-formed, has a bar for each ratio, and can be read in the dark."""

import unittest
from xml.etree import ElementTree

from compare import chart
from compare.figures import Cell

SVG = "{http://www.w3.org/2000/svg}"


def cells():
    return [Cell("queries", "tcp", "simple 16", {"pgferry": [{"cpu": 10.0}], "pgbouncer": [{"cpu": 20.0}],
                                                 "odyssey": [{"cpu": 44.0}], "direct": [{"tps": 5.0}]}),
            Cell("queries", "tcp", "simple <b> & co", {"pgferry": [{"cpu": 30.0}], "pgbouncer": [{"cpu": 20.0}]}),
            Cell("idle", "tls", "idle 5000", {"pgferry": [{"rss": 1.0}], "pgbouncer": [{"rss": 2.0}]})]


def bars(root):
    """{what a bar says: its width}."""
    return {rect.find(f"{SVG}title").text: float(rect.get("width"))
            for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None}


class Chart(unittest.TestCase):
    def setUp(self):
        self.rows = chart.rows_of(cells(), "pgbouncer")
        self.text = chart.svg(self.rows, "pgbouncer")
        self.root = ElementTree.fromstring(self.text)

    def test_rows_have_what_has_cpu_beside_the_reference(self):
        self.assertEqual([(row.label, row.ratios) for row in self.rows],
                         [("simple 16", {"pgferry": 0.5, "odyssey": 2.2}), ("simple <b> & co", {"pgferry": 1.5})])

    def test_a_bar_is_as_long_as_its_ratio(self):
        found = bars(self.root)
        self.assertEqual(list(found), ["pgferry: 0.50", "odyssey: 2.20", "pgferry: 1.50"])
        self.assertAlmostEqual(found["pgferry: 1.50"], 3 * found["pgferry: 0.50"], delta=0.2)

    def test_every_bar_is_inside_the_picture(self):
        for width in bars(self.root).values():
            self.assertLessEqual(chart.LEFT + width, chart.WIDTH - chart.RIGHT)

    def test_there_are_colours_for_the_dark(self):
        self.assertIn("prefers-color-scheme: dark", self.text)

    def test_nothing_to_compare_is_a_picture_that_says_so(self):
        root = ElementTree.fromstring(chart.svg([], "pgbouncer"))
        self.assertIn("nothing to compare with pgbouncer", [text.text for text in root.iter(f"{SVG}text")])
