"""The files for containers and proxies: what they name exists, and what each tool can check, it checks."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from hmi.api.process.application import DRAIN_S
from hmi.cli import COMMANDS
from hmi.config import PREFIX, Settings
from tests.hmi.labs.tls_lab import Authority

REPO = Path(__file__).resolve().parents[2]
DEPLOY = REPO / "deploy"
DOCKERFILES = sorted((DEPLOY / "docker").glob("Dockerfile*"))
STOP_S = DRAIN_S + 5
"""The server needs at most about this long to stop."""
OUR_VARIABLES = {PREFIX + field.name.upper() for field in fields(Settings)} | {"HMI_CONFIG"}


@dataclass(frozen=True)
class Step:
    """An instruction of a Dockerfile, and the stage that it is in."""

    stage: str
    word: str
    rest: str


def steps(path: Path) -> list[Step]:
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    found, stage = [], ""
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            stage = rest.rpartition(" AS ")[2]
        found.append(Step(stage, word, " ".join(rest.split())))
    return found


def only(found: list[Step], word: str) -> list[str]:
    return [step.rest for step in found if step.word == word]


def test_there_are_both_images() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile", "Dockerfile.cuda"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_what_an_image_copies_exists_and_is_sent_to_the_builder(path: Path) -> None:
    kept = {line[1:] for line in (REPO / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    stages = [rest.rpartition(" AS ")[2] for rest in only(steps(path), "FROM")]
    for rest in only(steps(path), "COPY"):
        *sources, _ = rest.split()
        if sources[0].startswith("--from="):
            assert sources[0].removeprefix("--from=") in stages
            continue
        for source in sources:
            assert (REPO / source).exists(), source
            assert source in kept, f"{source} is left out by .dockerignore"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_an_image_is_pinned_small_and_not_roots(path: Path) -> None:
    found = steps(path)
    (python,) = [rest for rest in only(found, "ARG") if rest.startswith("PYTHON=")]
    assert re.fullmatch(r"PYTHON=python:3\.\d+\.\d+-slim-bookworm", python), "pin the version of Python"
    assert all(rest.startswith("${PYTHON} AS ") for rest in only(found, "FROM"))
    last = [step for step in found if step.stage == found[-1].stage]
    assert only(last, "USER") == ["10001:10001"]
    assert only(last, "STOPSIGNAL") == ["SIGTERM"]
    assert only(last, "VOLUME") == ["/var/lib/hmi"]
    assert not [rest for rest in only(last, "RUN") if "pip" in rest], "the last stage installs nothing"
    makefile = (REPO / "Makefile").read_text()
    for name in ("TORCH", "ROOT_PACKAGE"):
        (pinned,) = {rest for rest in only(found, "ARG") if rest.startswith(f"{name}=")}
        assert re.search(rf"^{name} \??:?= ?{re.escape(pinned.partition('=')[2])}$", makefile, re.MULTILINE)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_what_an_image_runs_exists(path: Path) -> None:
    found = steps(path)
    assert json.loads(only(found, "ENTRYPOINT")[0]) == ["hmi"]
    assert json.loads(only(found, "CMD")[0])[0] in COMMANDS
    (check,) = only(found, "HEALTHCHECK")
    command = json.loads(check.partition(" CMD ")[2])
    ast.parse(command[2])
    assert "127.0.0.1:8080/healthz" in command[2]
    variables = set(re.findall(r"\b(HMI_\w+)=", " ".join(only(found, "ENV"))))
    assert variables <= OUR_VARIABLES
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    (extras,) = [rest.partition("=")[2] for rest in only(found, "ARG") if rest.startswith("EXTRAS=")]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def composed() -> Any:
    return yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())


def test_compose_runs_the_server_behind_tls() -> None:
    services = composed()["services"]
    server, proxy = services["hmi"], services["proxy"]
    context = (DEPLOY / "compose" / server["build"]["context"]).resolve()
    assert context == REPO
    assert (context / server["build"]["dockerfile"]).exists()
    assert "ports" not in server, "nobody reaches the server but through the proxy"
    assert int(server["stop_grace_period"].removesuffix("s")) > STOP_S
    assert server["read_only"]
    assert server["cap_drop"] == ["ALL"]
    for mount in proxy["volumes"]:
        source = mount.partition(":")[0]
        assert source in composed()["volumes"] or (DEPLOY / "compose" / source).exists()
    assert set(proxy["networks"]) & set(server["networks"])
    assert proxy["depends_on"]["hmi"]["condition"] == "service_healthy"
    assert (
        ":".join(("reverse_proxy hmi", server["expose"][0])) in (DEPLOY / "compose" / "Caddyfile").read_text()
    )


def test_caddy_takes_its_file() -> None:
    caddy = shutil.which("caddy")
    if caddy is None:
        pytest.skip("caddy is not installed")
    file = DEPLOY / "compose" / "Caddyfile"
    done = run([caddy, "validate", "--adapter", "caddyfile", "--config", str(file)])
    assert "Valid configuration" in done


def test_nginx_takes_its_file(tmp_path: Path) -> None:
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    cert, key = Authority.create(tmp_path).issue()
    text = (DEPLOY / "nginx" / "hmi.conf").read_text()
    text = text.replace("/etc/ssl/hmi/fullchain.pem", str(cert)).replace("/etc/ssl/hmi/privkey.pem", str(key))
    text = text.replace("listen 443", "listen 127.0.0.1:8443")
    whole = f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{text}\n}}\n"
    (tmp_path / "nginx.conf").write_text(whole)
    assert "test is successful" in run(
        [nginx, "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", "stderr"]
    )


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / "systemd" / "hmi.service").read_text()
    unit = tmp_path / "hmi.service"
    assert text.count("/opt/hmi/bin/hmi") == 1
    unit.write_text(text.replace("/opt/hmi/bin/hmi", "/bin/true"))
    assert run(["systemd-analyze", "verify", str(unit)]) == ""
    exposed = run(["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)])
    level = float(re.findall(r"exposure level for hmi\.service: ([\d.]+)", exposed)[0])
    assert level < 2.5, "10 is a service without any limits"


def test_the_unit_waits_for_the_server_and_names_what_exists() -> None:
    lines = (DEPLOY / "systemd" / "hmi.service").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert given["ExecStart"].split()[1] in COMMANDS
    assert given["Type"] == "notify"
    assert int(given["TimeoutStopSec"]) > STOP_S
    variables = {name for line in lines for name in re.findall(r"\b(HMI_\w+)=", line)}
    assert variables <= OUR_VARIABLES


def run(command: list[str]) -> str:
    """Everything that a command prints. It must succeed."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
