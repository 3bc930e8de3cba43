"""Rounds of readings as medians and as ratios: tables for people, JSON for programs."""

import json
import statistics
from dataclasses import dataclass, field

from .readings import Failure

LABEL_WIDTH = 34


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    #: the key in a round
    key: str
    title: str
    form: str = "{:.2f}"


@dataclass
class Cell:
    """One row of a comparison: the same work for every target."""

    mode: str
    #: how clients came in: the value of an `Access`
    access: str
    name: str
    #: by target, oldest first; a round is a dict of columns, and lacks what could not be measured
    rounds: dict = field(default_factory=dict)

    def label(self):
        """What the cell is called in tables and charts."""
        return f"{self.access} {self.name}"

    def median(self, target, key):
        """The median over the rounds of a target, or None."""
        values = [one[key] for one in self.rounds.get(target, []) if one.get(key) is not None]
        return statistics.median(values) if values else None

    def ratio(self, one, other, key):
        """The median of the ratios `one` / `other` of single rounds, or None."""
        pairs = [(first.get(key), second.get(key))
                 for first, second in zip(self.rounds.get(one, []), self.rounds.get(other, []))]
        values = [first / second for first, second in pairs if first is not None and second]
        return statistics.median(values) if values else None


def interleave(targets, rounds, measure):
    """{target: [round]}: every target once in each round, in an order that changes with the round.

    `measure(target)` returns a round, or None where the target has no part in it.
    """
    found = {}
    for turn in range(rounds):
        shift = turn % len(targets)
        for target in targets[shift:] + targets[:shift]:
            row = measure(target)
            if row is not None:
                found.setdefault(target.name, []).append(row)
    return {target.name: found[target.name] for target in targets if target.name in found}


class Report:
    """All that was measured: prints each cell when it is there, and keeps it for JSON and the chart."""

    def __init__(self, subject="pgferry", others=("pgbouncer", "direct")):
        self.subject = subject
        self.others = others
        self.cells = []
        self.failures = []
        #: by target, its version
        self.versions = {}
        #: what was measured on, and with which options
        self.machine = {}
        self.options = {}

    def head(self, title, columns):
        """A title and the line of column names."""
        print(f"\n{title}")
        print_row("", [column.title for column in columns])

    def add(self, cell, columns):
        """Keeps a cell and prints it: medians of every target, then ratios."""
        self.cells.append(cell)
        for target in cell.rounds:
            print_row(f"{cell.label()} {target}",
                      [show(cell.median(target, column.key), column.form) for column in columns])
        for other in self.others:
            if self.subject in cell.rounds and other in cell.rounds:
                print_row(f"    {self.subject} / {other}",
                          [show(cell.ratio(self.subject, other, column.key), "{:.2f}") for column in columns])

    def attempt(self, title, work):
        """Calls `work`; a `Failure` is kept for the end, so that the other cells are measured."""
        try:
            work()
        except Failure as failure:
            self.failures.append(f"{title}: {failure}")
            print(self.failures[-1], flush=True)

    def worst(self, mode, key, other):
        """The largest ratio to `other` in a mode at more than one client, or 0."""
        ratios = [cell.ratio(self.subject, other, key) for cell in self.cells
                  if cell.mode == mode and not cell.name.endswith(" 1")]
        return max([ratio for ratio in ratios if ratio is not None], default=0.0)

    def as_json(self):
        """Everything, as text. Ratios stand beside the rounds so that nobody has to compute them again."""
        return json.dumps({"machine": self.machine, "options": self.options, "versions": self.versions,
                           "failures": self.failures, "cells": [self.cell_as_dict(cell) for cell in self.cells]},
                          indent=1) + "\n"

    def cell_as_dict(self, cell):
        """One cell of the JSON."""
        keys = {target: sorted({key for one in rounds for key in one}) for target, rounds in cell.rounds.items()}
        medians = {target: {key: cell.median(target, key) for key in keys[target]} for target in cell.rounds}
        ratios = {}
        for other in cell.rounds:
            if self.subject in cell.rounds and other != self.subject:
                both = {key: cell.ratio(self.subject, other, key) for key in keys[self.subject] if key in keys[other]}
                ratios[f"{self.subject}/{other}"] = both
        return {"mode": cell.mode, "access": cell.access, "name": cell.name, "medians": medians,
                "ratios": ratios, "rounds": cell.rounds}


def cells_of(document):
    """The cells of what `Report.as_json` has written."""
    return [Cell(cell["mode"], cell["access"], cell["name"], cell["rounds"]) for cell in document["cells"]]


def show(value, form):
    """A number in its form, or a dash where there is none."""
    return "-" if value is None else form.format(value)


def print_row(first, values):
    """One line of a table."""
    print("  ".join([f"{first:<{LABEL_WIDTH}}"] + [f"{value:>9}" for value in values]), flush=True)
