"""The Helm chart, as far as it can be checked without helm.

A template is not rendered here. Its control lines are dropped and each expression becomes a word, so the rest
must be YAML. The values that templates name, the schema and the defaults must agree.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import hmi
from hmi.config import Settings
from tests.delivery.test_containers import OUR_VARIABLES, STOP_S

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "hmi"
TEMPLATES = sorted((CHART / "templates").glob("*.yaml"))
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
INCLUDED = {
    "hmi.confined": {"allowPrivilegeEscalation": False},
    "hmi.mounts": [{"name": "data", "mountPath": "/var/lib/hmi"}],
}


def shape(path: Path) -> Any:
    """The YAML of a template with every branch taken."""
    lines = []
    for line in path.read_text().splitlines():
        found = re.match(r"^(\s*)\{\{-? *(.*?) *-?\}\}$", line)
        if found is None:
            lines.append(re.sub(r"\{\{.*?\}\}", "word", line))
        elif (indent := re.search(r"nindent (\d+)$", found[2])) is not None:
            name = re.search(r'include "([\w.]+)"', found[2])
            block = INCLUDED.get(name[1] if name else "", {"word": "word"})
            text = yaml.safe_dump(block, default_flow_style=False)
            if re.match(r"toYaml \. ", found[2]):
                continue  # a list or a mapping of the user's own
            lines += [" " * int(indent[1]) + part for part in text.splitlines()]
    return yaml.safe_load("\n".join(lines))


def paths(values: Any, prefix: str = "") -> set[str]:
    """The names of all values, such as `image.tag`. An empty mapping is the user's own."""
    found = set()
    for name, value in values.items():
        found.add(prefix + name)
        if isinstance(value, dict) and value:
            found |= paths(value, f"{prefix}{name}.")
    return found


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.stem)
def test_a_template_is_yaml_with_balanced_blocks(path: Path) -> None:
    text = path.read_text()
    opened = len(re.findall(r"\{\{-? *(?:if|with|range|define) ", text))
    assert opened == len(re.findall(r"\{\{-? *end *-?\}\}", text))
    document = shape(path)
    assert {"apiVersion", "kind", "metadata"} <= set(document)
    assert document["metadata"]["name"] == "word"


def test_the_chart_has_what_an_operator_expects() -> None:
    kinds = {shape(path)["kind"] for path in TEMPLATES}
    assert kinds == {
        "ConfigMap",
        "Ingress",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "ServiceMonitor",
        "StatefulSet",
    }
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == hmi.__version__


def test_every_value_and_helper_that_is_named_exists_and_every_value_is_used() -> None:
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    named = set(re.findall(r"\.Values\.([\w.]+)", text))
    known = paths(VALUES)
    assert named <= known
    leaves = {path for path in known if not any(other.startswith(f"{path}.") for other in known)}
    used = {leaf for leaf in leaves if any(leaf == n or leaf.startswith(f"{n}.") for n in named)}
    assert leaves == used
    helpers = set(re.findall(r'define "([\w.]+)"', text))
    assert set(re.findall(r'include "([\w.]+)"', text)) == helpers


def test_the_server_in_the_chart_is_confined_and_may_end_in_peace() -> None:
    pod = shape(CHART / "templates" / "statefulset.yaml")["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    assert "readOnlyRootFilesystem: true" in helpers
    for probe, call in (("startup", "/readyz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
        assert server[f"{probe}Probe"]["httpGet"]["path"] == call
    wait = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert VALUES["terminationGracePeriodSeconds"] > STOP_S + wait
    text = (CHART / "templates" / "statefulset.yaml").read_text()
    assert set(re.findall(r"name: (HMI_\w+)", text)) <= OUR_VARIABLES


def test_the_settings_of_the_chart_are_the_servers() -> None:
    assert set(tomllib.loads(VALUES["config"])) <= {field.name for field in fields(Settings)}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("terminationGracePeriodSeconds",), 10),
        (("persistence", "size"), "20"),
        (("podDisruptionBudget", "maxUnavailable"), 2),
        (("replicas",), 2),
        (("service", "port"), 0),
    ],
)
def test_the_schema_takes_the_defaults_and_refuses_mistakes(path: tuple[str, ...], value: Any) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    wrong = copy.deepcopy(VALUES)
    at = wrong
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_helm_takes_the_chart() -> None:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed")
    for command in (["lint", "--strict"], ["template", "trial"]):
        done = subprocess.run([helm, *command, str(CHART)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
