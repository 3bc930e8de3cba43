"""Checks what is delivered for monitoring against each other, with nothing but Python's own library.

check.py RULES prints, as a file of recording rules, every expression of the dashboard with Grafana's variables filled in, for
promtool to parse. It fails if the dashboard or the rules name a metric that docs/monitoring.md does not have, if panels overlap or
have no text, if an alert has no paragraph in docs/operations.md or that has a paragraph for no alert, or if no test fires an alert.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = "packaging/prometheus/pgferry.rules.yml"
VARIABLES = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*", "$database": ".*", "$user": ".*"}
METRIC = re.compile(r"(?<![:\w])(?:pgferry|process)_[a-z0-9_]+")
problems = []


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def documented():
    """Metrics by name, with those that a histogram is in text."""
    names = set()
    for name, kind in re.findall(r"^\| `(\w+)` \| (gauge|counter|histogram) \|", read("docs/monitoring.md"), re.M):
        names.add(name)
        if kind == "histogram":
            names |= {f"{name}_{part}" for part in ("bucket", "count", "sum")}
    return names


def metrics_exist(where, text, names):
    for name in sorted(set(METRIC.findall(text)) - names):
        problems.append(f"{where}: no metric {name} in docs/monitoring.md")


def filled_in(expression):
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    if "$" in expression:
        problems.append(f"a variable that nobody fills in: {expression}")
    return expression


def overlaps(one, other):
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


def dashboard(names):
    """Its expressions."""
    board = json.loads(read("packaging/grafana/pgferry.json"))
    panels = board["panels"]
    expressions = [annotation["expr"] for annotation in board["annotations"]["list"]]
    if len({panel["id"] for panel in panels}) != len(panels):
        problems.append("two panels have one id")
    for at, panel in enumerate(panels):
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24 or any(overlaps(place, other["gridPos"]) for other in panels[:at]):
            problems.append(f"panel {panel['title']}: its place is taken")
        if panel["type"] == "row":
            continue
        if not panel.get("description") or not panel["targets"]:
            problems.append(f"panel {panel['title']}: no description, or nothing to show")
        expressions += [target["expr"] for target in panel["targets"]]
    for variable in board["templating"]["list"]:
        metrics_exist(f"variable {variable['name']}", variable.get("definition", ""), names)
    for expression in expressions:
        metrics_exist("dashboard", expression, names)
    return [filled_in(expression) for expression in expressions]


def alerts(names):
    rules = read(RULES)
    text = "\n".join(line for line in rules.splitlines() if not re.match(r" *(#|summary:|runbook:|- (record|alert):)", line))
    metrics_exist(RULES, text, names)
    named = set(re.findall(r"^ *- alert: (\w+)", rules, re.M))
    anchors = re.findall(r"^ *runbook: docs/operations.md#(\S+)", rules, re.M)
    if sorted(anchors) != sorted(name.lower() for name in named):
        problems.append("runbook: each alert names the paragraph that is called like it")
    paragraphs = set(re.findall(r"^### (Pgferry\w+)$", read("docs/operations.md"), re.M))
    for name in sorted(named ^ paragraphs):
        problems.append(f"{name} is in one of {RULES} and docs/operations.md")
    tested = set(re.findall(r"alertname: (\w+)", read("tests/monitoring/rules.test.yml")))
    for name in sorted(named - tested):
        problems.append(f"no test fires {name}")


def main():
    names = documented()
    expressions = dashboard(names)
    alerts(names)
    groups = [
        {"record": f"dashboard:expression_{at}", "expr": expression} for at, expression in enumerate(expressions)
    ]
    # JSON is YAML, too.
    pathlib.Path(sys.argv[1]).write_text(json.dumps({"groups": [{"name": "dashboard", "rules": groups}]}), encoding="utf-8")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(expressions)} expressions, {len(names)} metrics and their parts", file=sys.stderr)
    return 1 if problems else 0


sys.exit(main())
