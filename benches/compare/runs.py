"""Whole measurements, made again: the medians of their ratios, and how far these lie apart.

The ratios of one run say how alike its rounds were. What differs from run to run (where the kernel has put the threads and
the memory of a process, what the machine did in that quarter of an hour) is seen only if everything starts anew.
"""

import json
import statistics

#: what may stand in the summary, in its order
KEYS = {"cpu": "CPU", "calls": "calls", "tps": "tps", "rate": "MB/s", "p50": "p50", "p99": "p99", "p999": "p99.9",
        "rss": "RSS", "client": "KB/client"}
WIDTH = 20
TITLE_WIDTH = 46


class Repeated:
    """One cell of several runs. Medians and ratios are medians of those of the runs."""

    def __init__(self, cells):
        self.cells = cells
        self.mode, self.access, self.name = cells[0].mode, cells[0].access, cells[0].name
        #: the targets that all runs have
        self.rounds = {target: cells[0].rounds[target] for target in cells[0].rounds
                       if all(target in cell.rounds for cell in cells)}

    def label(self):
        """What the cell is called in tables and charts."""
        return self.cells[0].label()

    def ratios(self, one, other, key):
        """The ratio of each run that has it."""
        found = [cell.ratio(one, other, key) for cell in self.cells]
        return [ratio for ratio in found if ratio is not None]

    def ratio(self, one, other, key):
        """The median of the runs' ratios, or None."""
        found = self.ratios(one, other, key)
        return statistics.median(found) if found else None

    def median(self, target, key):
        """The median of the runs' medians, or None."""
        found = [cell.median(target, key) for cell in self.cells]
        found = [value for value in found if value is not None]
        return statistics.median(found) if found else None


def gathered(cells_of_runs):
    """[Repeated] of lists of cells, one list for each run, in the order of the first."""
    groups = {}
    for cells in cells_of_runs:
        for cell in cells:
            groups.setdefault((cell.mode, cell.access, cell.name), []).append(cell)
    return [Repeated(cells) for cells in groups.values()]


def spread(values):
    """Median, least and greatest, as a table has them."""
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def print_summary(cells, subject, others):
    """The table of ratios: a line for each cell and each other target."""
    keys = [key for key in KEYS if any(cell.ratio(subject, other, key) is not None for cell in cells for other in others)]
    if not keys:
        return
    print(f"\nthe median of {max(len(cell.cells) for cell in cells)} runs, and the least and the greatest of them")
    print(" " * TITLE_WIDTH + "".join(f"{KEYS[key]:>{WIDTH}}" for key in keys))
    for cell in cells:
        for other in others:
            if subject in cell.rounds and other in cell.rounds:
                title = f"{cell.mode} {cell.label()} / {other}"
                print(f"{title:<{TITLE_WIDTH}}"
                      + "".join(f"{spread(cell.ratios(subject, other, key)):>{WIDTH}}" for key in keys), flush=True)


def as_json(reports, cells, subject, others):
    """All runs as they are, and the summary, as text."""
    summary = []
    for cell in cells:
        ratios = {f"{subject}/{other}": {key: cell.ratios(subject, other, key) for key in KEYS
                                         if cell.ratios(subject, other, key)}
                  for other in others if subject in cell.rounds and other in cell.rounds}
        medians = {target: {key: cell.median(target, key) for key in KEYS if cell.median(target, key) is not None}
                   for target in cell.rounds}
        summary.append({"mode": cell.mode, "access": cell.access, "name": cell.name, "medians": medians,
                        "ratios": ratios})
    return json.dumps({"runs": [json.loads(report.as_json()) for report in reports], "summary": summary}, indent=1) + "\n"
