"""CPU ratios as SVG: a row for each cell, a bar for each pooler, a line where the reference stands.

Written by hand so that nothing has to be installed. Colours come from a style sheet with a light and a dark half.
"""

from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 860
LEFT = 250
RIGHT = 70
TOP = 64
BAR = 13
GAP = 9
HEADING = 30

STYLE = """\
  svg { font: 13px system-ui, "Segoe UI", sans-serif }
  .page { fill: #ffffff } text { fill: #1f2328 } .faint { fill: #59636e }
  .grid { stroke: #d1d9e0 } .line { stroke: #59636e; stroke-width: 1.5 }
  .value { stroke: #ffffff; stroke-width: 4; paint-order: stroke }
  .c0 { fill: #1f6feb } .c1 { fill: #8250df } .c2 { fill: #bf8700 } .c3 { fill: #1a7f37 } .c4 { fill: #bc4c00 }
  text.right { text-anchor: end } text.middle { text-anchor: middle } text.bold { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } text { fill: #f0f6fc } .faint { fill: #9198a1 }
    .grid { stroke: #3d444d } .line { stroke: #9198a1 } .value { stroke: #0d1117 }
    .c0 { fill: #4493f8 } .c1 { fill: #ab7df8 } .c2 { fill: #d29922 } .c3 { fill: #3fb950 } .c4 { fill: #f0883e }
  }
"""


@dataclass(frozen=True)
class Row:
    """The bars of one cell."""

    group: str
    label: str
    #: by pooler, its CPU divided by the reference's
    ratios: dict


def rows_of(cells, reference):
    """The rows of all cells in which the reference and somebody else have CPU times."""
    rows = []
    for cell in cells:
        ratios = {target: cell.ratio(target, reference, "cpu") for target in cell.rounds if target != reference}
        ratios = {target: ratio for target, ratio in ratios.items() if ratio is not None}
        if ratios:
            rows.append(Row(f"{cell.mode}, {cell.access}", cell.name, ratios))
    return rows


def nice_limit(rows):
    """Where the axis ends: the next half above the longest bar, and at least 1.5."""
    longest = max([ratio for row in rows for ratio in row.ratios.values()], default=0)
    limit = 1.5
    while limit < longest:
        limit += 0.5
    return limit


def svg(rows, reference, unit="CPU of the pooler for the same work"):
    """The chart as text. With no rows it says so."""
    poolers = list(dict.fromkeys(name for row in rows for name in row.ratios))
    limit = nice_limit(rows)
    scale = (WIDTH - LEFT - RIGHT) / limit
    body, y = draw_rows(rows, poolers, scale)
    height = y + 40
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
             f'viewBox="0 0 {WIDTH} {height}" role="img">',
             f"<title>{escape(unit)}, {escape(reference)} = 1</title>",
             f"<style>\n{STYLE}</style>",
             f'<rect class="page" width="{WIDTH}" height="{height}"/>',
             f'<text class="bold" x="16" y="24">{escape(unit)}, {escape(reference)} = 1; shorter is better</text>',
             *legend(poolers), *axis(limit, scale, y), *body]
    if not rows:
        parts.append(f'<text x="16" y="{TOP}">nothing to compare with {escape(reference)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def legend(poolers):
    """A square and a name for each pooler."""
    parts, x = [], 16
    for number, name in enumerate(poolers):
        parts.append(f'<rect class="c{number % 5}" x="{x}" y="36" width="12" height="12" rx="2"/>')
        parts.append(f'<text x="{x + 18}" y="47">{escape(name)}</text>')
        x += 40 + 8 * len(name)
    return parts


def axis(limit, scale, bottom):
    """Lines at every half, a strong one at 1."""
    parts = []
    for half in range(int(limit * 2) + 1):
        x = LEFT + half / 2 * scale
        kind = "line" if half == 2 else "grid"
        parts.append(f'<line class="{kind}" x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text class="faint middle" x="{x:.1f}" y="{bottom + 18}">{half / 2:g}</text>')
    return parts


def draw_rows(rows, poolers, scale):
    """(parts, the y below the last bar)."""
    parts, y, group = [], TOP, None
    for row in rows:
        if row.group != group:
            group = row.group
            parts.append(f'<text class="bold" x="16" y="{y + 18}">{escape(group)}</text>')
            y += HEADING
        middle = y + len(row.ratios) * BAR / 2 + 4
        parts.append(f'<text class="right" x="{LEFT - 8}" y="{middle:.1f}">{escape(row.label)}</text>')
        for name, ratio in row.ratios.items():
            colour = poolers.index(name) % 5
            parts.append(f'<rect class="c{colour}" x="{LEFT}" y="{y}" width="{ratio * scale:.1f}" '
                         f'height="{BAR - 1}" rx="2"><title>{escape(name)}: {ratio:.2f}</title></rect>')
            parts.append(f'<text class="faint value" x="{LEFT + ratio * scale + 6:.1f}" y="{y + BAR - 2}">'
                         f'{ratio:.2f}</text>')
            y += BAR
        y += GAP
    return parts, y
