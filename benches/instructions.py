#!/usr/bin/env python3
"""What one transaction costs: the difference of two runs under callgrind, by function and by source line.

`scripts/instructions` makes the runs and calls this file once for each protocol. Both runs log in the
same number of clients, unless that is what is counted (`connect`); what start, logins and the first Parse cost
is in both and drops out.
"""

import argparse
import re
import sys
from collections import Counter

# Entrances of the allocators: mimalloc's, and the libc's where mimalloc is switched off.
ALLOCATES = re.compile(r"^(mi_|mi_heap_|mi_theap_|__libc_)?(malloc|zalloc|calloc|realloc|memalign|aligned_alloc|"
                       r"posix_memalign)(_\w+)?$")
FREES = re.compile(r"^(mi_|__libc_|c)?free(_\w+)?$")
# Calls from one of them to another are the same allocation.
INSIDE = re.compile(r"^_?mi_|^(__libc_)?(malloc|calloc|realloc|free)|^_int_")
# The hash that rustc appends to a path, and what callgrind appends to recursive functions.
NOISE = re.compile(r"::h[0-9a-f]{16}|'\d+$")


class Profile:
    """The sums of one callgrind.out file."""

    def __init__(self, path):
        self.functions = Counter()
        self.lines = Counter()
        self.allocations = Counter()
        self.frees = 0
        self.read(path)

    def read(self, path):
        names = {}
        function, file, called, line, skip = "?", "?", "?", 0, False

        def full(text):
            """`(7) name` says what (7) means from now on, `(7)` uses it."""
            number, _, name = text.partition(" ")
            if name:
                names[number] = name
            return names.get(number, text)

        with open(path, encoding="utf-8", errors="replace") as records:
            for record in records:
                record = record.rstrip("\n")
                first = record[:1]
                if first.isdigit() or first in ("+", "-", "*"):
                    position, *costs = record.split()
                    if first == "+":
                        line += int(position[1:])
                    elif first == "-":
                        line -= int(position[1:])
                    elif first != "*":
                        line = int(position)
                    # After calls= stands what the callee and its callees cost: they count it themselves.
                    if not skip and costs:
                        self.functions[function] += int(costs[0])
                        self.lines[function, file, line] += int(costs[0])
                    skip = False
                    continue
                key, _, value = record.partition("=")
                # Files, functions and objects have numbers of their own.
                if key in ("fl", "fi", "fe"):
                    file = full("file" + value)
                elif key == "fn":
                    function = NOISE.sub("", full("fn" + value))
                elif key in ("cfi", "cfl"):
                    full("file" + value)
                elif key == "cfn":
                    called = NOISE.sub("", full("fn" + value))
                elif key == "calls":
                    skip = True
                    self.call(function, called, int(value.split()[0]))

    def call(self, caller, callee, count):
        if INSIDE.match(caller):
            return
        if ALLOCATES.match(callee):
            self.allocations[caller] += count
        elif FREES.match(callee):
            self.frees += count

    def less(self, other, by):
        """What this run has more than the other, for each of `by` transactions."""
        for name in ("functions", "lines", "allocations"):
            mine = getattr(self, name)
            mine.subtract(getattr(other, name))
            for key in mine:
                mine[key] /= by
        self.frees = (self.frees - other.frees) / by
        return self


def short(path):
    """A source path from its crate on."""
    path = re.sub(r"^.*/registry/src/[^/]*/", "", path)
    return re.sub(r"^.*/rustc/[0-9a-f]{40}/library/|^.*/lib/rustlib/src/rust/library/", "std:", path)


def print_top(title, counter, count, name):
    print(f"\n{title}")
    for key, cost in counter.most_common(count):
        if cost >= 0.05:
            print(f"{cost:9.1f}  {name(key)}")


def budget_of(path, protocol):
    """(instructions, allocations) that a transaction may cost."""
    if path is None:
        return float("inf"), float("inf")
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            words = line.split("#")[0].split()
            if words[:1] == [protocol]:
                return float(words[1]), float(words[2])
    sys.exit(f"{path} has no line for {protocol}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("protocol")
    parser.add_argument("few", help="callgrind.out of the run with fewer transactions")
    parser.add_argument("many", help="callgrind.out of the run with more")
    parser.add_argument("transactions", type=int, help="how many more")
    parser.add_argument("--budget", help="file: protocol, instructions, allocations; none: nothing is too much")
    parser.add_argument("--top", type=int, default=0, help="print so many functions and source lines")
    return parser.parse_args()


def main():
    options = arguments()
    profile = Profile(options.many).less(Profile(options.few), options.transactions)
    instructions, allocations = sum(profile.functions.values()), sum(profile.allocations.values())
    most, most_allocations = budget_of(options.budget, options.protocol)
    over = instructions > most or allocations > most_allocations
    print(f"{options.protocol:<10}{instructions:14.0f}{most:10.0f}{allocations:14.2f}{most_allocations:10.2f}"
          f"{profile.frees:10.2f}{'  OVER' if over else ''}", flush=True)
    if options.top:
        print_top(f"{options.protocol}: instructions of functions (inlined ones included)", profile.functions,
                  options.top, str)
        print_top(f"{options.protocol}: by source file", by_file(profile), options.top, str)
        print_top(f"{options.protocol}: by source line", by_line(profile), 2 * options.top, str)
        print_top(f"{options.protocol}: allocations by caller", profile.allocations, options.top, str)
        print()
    sys.exit(1 if over else 0)


def by_file(profile):
    files = Counter()
    for (_, file, _), cost in profile.lines.items():
        files[short(file)] += cost
    return files


def by_line(profile):
    lines = Counter()
    for (function, file, line), cost in profile.lines.items():
        lines[f"{short(file)}:{line}  in {function}"] += cost
    return lines


if __name__ == "__main__":
    main()
