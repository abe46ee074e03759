"""The manifest for KubeRay, as far as it can be checked without Kubernetes."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

import hmi
from hmi.api.nodes.servers import LEAVING_S, SEEN_S
from hmi.api.process.application import DRAIN_S
from hmi.cli import cli
from hmi.cli.cluster.cluster import leave, up
from hmi.cluster.keeper import STOP_S
from hmi.config import Settings
from hmi.config.values import variable

REPO = Path(__file__).resolve().parents[2]
CLUSTER, SERVICE, UP = yaml.safe_load_all((REPO / "deploy" / "kuberay" / "hmi.yaml").read_text())
HEAD = CLUSTER["spec"]["headGroupSpec"]
(SERVERS,) = CLUSTER["spec"]["workerGroupSpecs"]
PODS = [HEAD["template"]["spec"], SERVERS["template"]["spec"], UP["spec"]["template"]["spec"]]

LEAVE = PODS[1]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
"""What Kubernetes runs in a pod that is to end. `test_servers` runs it."""


def container(pod: Any) -> Any:
    (one,) = pod["containers"]
    return one


def test_each_pod_runs_this_release_confined() -> None:
    for pod in PODS:
        assert container(pod)["image"].endswith(f":{hmi.__version__}")
        assert container(pod)["securityContext"]["allowPrivilegeEscalation"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert {"secretRef": {"name": "hmi"}} in container(pod)["envFrom"]
        assert {"name": "RAY_AUTH_MODE", "value": "token"} in container(pod)["env"]


def test_its_variables_are_settings() -> None:
    known = {variable(field.name) for field in fields(Settings)}
    for pod in PODS:
        named = {one["name"] for one in container(pod)["env"] if one["name"].startswith("HMI_")}
        assert named <= known
        assert {"HMI_BUCKET", "HMI_HOST"} <= named


def test_a_pod_has_a_place_for_one_server() -> None:
    assert json.loads(json.loads(f'"{SERVERS["rayStartParams"]["resources"][1:-1]}"')) == {"hmi_server": 1}
    command, name, *arguments = container(PODS[2])["args"]
    assert cli.get_command(None, command).get_command(None, name) is up  # type: ignore[arg-type,union-attr]
    options = {option for parameter in up.params for option in parameter.opts}
    assert {one for one in arguments if one.startswith("--")} <= options
    assert arguments[arguments.index("--servers") + 1] == str(SERVERS["minReplicas"])
    assert arguments[arguments.index("--most") + 1] == str(SERVERS["maxReplicas"])


def test_calls_reach_servers_that_are_ready() -> None:
    server = container(PODS[1])
    (port,) = server["ports"]
    assert SERVICE["spec"]["selector"].items() <= SERVERS["template"]["metadata"]["labels"].items()
    assert SERVICE["spec"]["ports"][0]["targetPort"] == port["name"]
    assert port["containerPort"] == Settings().port
    assert server["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}


def test_a_server_has_time_to_leave() -> None:
    program, command, name = LEAVE
    assert program == "hmi"
    assert cli.get_command(None, command).get_command(None, name) is leave  # type: ignore[arg-type,union-attr]
    assert "HMI_DATA" in {one["name"] for one in container(PODS[1])["env"]}
    assert PODS[1]["terminationGracePeriodSeconds"] >= STOP_S + 10
    assert STOP_S >= LEAVING_S + SEEN_S + DRAIN_S + 5
