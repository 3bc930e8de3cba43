"""What scripts/test-packaging asks of YAML files, beyond what schemas of others say, and scripts/test-package of a unit.

    check.py compose SCHEMA FILE           a compose file against its schema, and whether what it mounts is there
    check.py manifests PGFERRY FILE...     Kubernetes manifests: what belongs together, and configurations by `--check`
    check.py calls UNIT TRACE              the system calls in strace's file are among those of the unit's filter
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import jsonschema
    import yaml
except ImportError:  # `calls` does without
    pass

ROOT = pathlib.Path(__file__).parent.parent

# Custom resources have no schema in Kubernetes'; this is what we use of theirs.
RULE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["expr"],
    "properties": {
        "alert": {"type": "string"},
        "record": {"type": "string"},
        "expr": {"type": ["string", "integer"]},
        "for": {"type": "string", "pattern": "^[0-9]+(ms|[smhdwy])$"},
        "keep_firing_for": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
CUSTOM = {
    "PrometheusRule": {
        "type": "object",
        "additionalProperties": False,
        "required": ["groups"],
        "properties": {
            "groups": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "rules"],
                    "properties": {
                        "name": {"type": "string"},
                        "interval": {"type": "string"},
                        "rules": {"type": "array", "items": RULE},
                    },
                },
            }
        },
    },
    "ServiceMonitor": {
        "type": "object",
        "additionalProperties": False,
        "required": ["selector", "endpoints"],
        "properties": {
            "selector": {"type": "object"},
            "endpoints": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        name: {"type": "string"} for name in ("port", "path", "interval")
                    },
                },
            },
        },
    },
}


def fail(text):
    sys.exit(f"error: {text}")


def compose(schema, file):
    """The file fits the schema, and its binds name files of the repository."""
    content = yaml.safe_load(pathlib.Path(file).read_text())
    validator = jsonschema.Draft7Validator(json.loads(pathlib.Path(schema).read_text()))
    for error in validator.iter_errors(content):
        fail(f"{file}: {'.'.join(map(str, error.path))}: {error.message}")
    for name, service in content["services"].items():
        for needed in service.get("depends_on", []):
            if needed not in content["services"]:
                fail(f"{file}: {name} depends on {needed}")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./") and not (ROOT / source).exists():
                print(f"warning: {file}: {name}: {source} is not there", file=sys.stderr)


def documents(files):
    for file in files:
        for document in yaml.safe_load_all(pathlib.Path(file).read_text()):
            if document:
                yield document


def pods(objects):
    for item in objects:
        if item["kind"] == "Deployment":
            yield item, item["spec"]["template"]["spec"]
        elif item["kind"] == "Pod":
            yield item, item["spec"]


def check_pod(item, pod, objects):
    """Mounts have volumes, volumes have their objects, no mount lies in a read-only one, and it is caged."""
    name = item["metadata"]["name"]
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    known = {(other["kind"], other["metadata"]["name"]) for other in objects}
    for volume in volumes.values():
        if "configMap" in volume and ("ConfigMap", volume["configMap"]["name"]) not in known:
            fail(f"{name}: no ConfigMap {volume['configMap']['name']}")
    for container in pod["containers"]:
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                fail(f"{name}: no volume {mount['name']}")
        for path in paths:
            if any(path.startswith(other + "/") for other in paths):
                fail(f"{name}: {path} lies in another mount")
        security = container["securityContext"]
        if not security["readOnlyRootFilesystem"] or security["allowPrivilegeEscalation"]:
            fail(f"{name}: not caged")
    if not pod["securityContext"].get("runAsNonRoot"):
        fail(f"{name}: may run as root")


def setting(pod, objects, wanted):
    """What a pod sets, in its environment or in the file that it mounts."""
    for variable in pod["containers"][0].get("env", []):
        if variable["name"] == wanted.upper():
            return variable.get("value")
    for item in objects:
        if item["kind"] == "ConfigMap":
            found = re.search(rf"^{wanted} = (.*)$", item["data"]["pgferry.ini"], re.M)
            if found:
                return found[1]
    return None


def check_end(item, pod, objects):
    """The pod is killed only after it could have ended by itself."""
    drain = setting(pod, objects, "drain_timeout")
    pause = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {})
    needed = int(drain) + pause.get("seconds", 0)
    if pod["terminationGracePeriodSeconds"] <= needed:
        fail(f"{item['metadata']['name']}: it is killed before its {needed} seconds are over")


def check_services(objects):
    """What a service or a budget selects is there, and the ports that it names."""
    for item in objects:
        if item["kind"] not in ("Service", "PodDisruptionBudget"):
            continue
        selector = item["spec"]["selector"]
        selector = selector.get("matchLabels", selector).items()
        chosen = [
            other["spec"]["template"]
            for other in objects
            if other["kind"] == "Deployment"
            and selector <= other["spec"]["template"]["metadata"]["labels"].items()
        ]
        if len(chosen) != 1:
            fail(f"{item['kind']} {item['metadata']['name']} selects {len(chosen)} deployments")
        there = {port["name"] for port in chosen[0]["spec"]["containers"][0]["ports"]}
        for port in item["spec"].get("ports", []):
            if port["targetPort"] not in there:
                fail(f"{item['metadata']['name']}: no port {port['targetPort']}")


def check_configuration(program, objects):
    """pgferry itself says whether it can read the file, where it knows all of its settings."""
    if not pathlib.Path(program).exists():
        return
    known = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs/settings.md").read_text(), re.M))
    for item in objects:
        if item["kind"] != "ConfigMap":
            continue
        text = item["data"]["pgferry.ini"]
        main = text.split("[pgbouncer]")[1]
        for name in re.findall(r"^(\w+) =", main, re.M):
            if name not in known:
                print(f"warning: docs/settings.md has no {name}", file=sys.stderr)
                text = re.sub(rf"(?m)^{name} = .*\n", "", text)
        users = next(
            (other["stringData"]["userlist.txt"] for other in objects if other["kind"] == "Secret"), ""
        )
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "userlist.txt").write_text(users)
            file = folder / "pgferry.ini"
            file.write_text(text.replace("/etc/pgferry-users/", f"{folder}/"))
            done = subprocess.run([program, "--check", file], capture_output=True, text=True)
            if done.returncode or "WARNING" in done.stderr:
                fail(f"{item['metadata']['name']}: {done.stdout}{done.stderr}")


def manifests(program, *files):
    objects = list(documents(files))
    for item in objects:
        if item["kind"] in CUSTOM:
            jsonschema.validate(item["spec"], CUSTOM[item["kind"]])
    for item, pod in pods(objects):
        check_pod(item, pod, objects)
        if item["kind"] == "Deployment":
            check_end(item, pod, objects)
    check_services(objects)
    check_configuration(program, objects)


def group(name):
    """The calls of one of systemd's groups, or the one call."""
    if not name.startswith("@"):
        return {name}
    listed = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter", name], capture_output=True, text=True, check=True
    )
    words = (line.split("#")[0].strip() for line in listed.stdout.splitlines()[1:])
    return set().union(*(group(word) for word in words if word))


def calls(unit, trace):
    """As systemd reads the lines: the first one allows, a later one adds, one with a tilde takes away."""
    allowed = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", pathlib.Path(unit).read_text(), re.M):
        names = set().union(*(group(word) for word in line.lstrip("~").split()))
        allowed = allowed - names if line.startswith("~") else allowed | names
    text = pathlib.Path(trace).read_text()
    # What came before were chroot and setpriv.
    program = text[text.rindex("execve(") :]
    used = set(re.findall(r"^\d+ +(?:<\.\.\. )?([a-z_0-9]+)[( ]", program, re.M))
    print(f"{len(used)} system calls", file=sys.stderr)
    if not used or used - allowed:
        fail(f"{unit} forbids {sorted(used - allowed)}")


if __name__ == "__main__":
    {"compose": compose, "manifests": manifests, "calls": calls}[sys.argv[1]](*sys.argv[2:])
