"""Schemathesis drives a real server by its own OpenAPI document, with keys of several scopes.

No answer is a 5xx, none is undocumented, and none shows what another tenant owns: with an idle server, and
while other clients load it. HMI_CASES (20) bounds the random cases for each operation and key; systematic
cases come on top.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hmi.cli.framework.client import HttpClient
from hmi.errors import HmiError
from tests.e2e.outside.contract_checks import HIDDEN
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.server_lab import REPO, logged_server

CASES = os.environ.get("HMI_CASES", "20")
IDS = """
[parameters]
"path.model" = "acme.m"
"path.tenant" = "acme"
"path.domain" = "tiny"
"path.root" = "tiny"
"""
"""Things that exist, so that calls get beyond 404. DELETE is left out then."""
CHECKS = (
    "no_failure,nothing_of_others,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,response_headers_conformance"
)
FEWEST = 5_000
"""The fewest cases that all runs together must make."""


@dataclass(frozen=True)
class Place:
    """A folder with a model of two tenants each, of which one is hidden, and keys by their scope."""

    data: Path
    keys: dict[str, str]


@pytest.fixture
def place(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> Place:
    def key(*words: str) -> str:
        return str(json.loads(hmi(capsys, *words, "--data", folder, "--json"))["key"])

    keys = {"manage": key("key", "create", "acme"), "infer": key("key", "create", "acme", "--scope", "infer")}
    hmi(capsys, "tenant", "create", HIDDEN, "--data", folder)
    options = ("--option", "epochs=1", "--option", "module.rank=2", "--option", "max_length=32")
    rows = tmp_path_factory.getbasetemp() / "rows"
    made = ("model", "create", f"{HIDDEN}.{HIDDEN}-model", rows, "--domain", "tiny")
    hmi(capsys, *made, *options, "--data", folder)
    keys["admin"] = key("key", "create", "--admin")
    return Place(folder, keys)


def drive(url: str, key: str, folder: Path, *more: str, checks: str = CHECKS) -> dict[str, Any]:
    """Run schemathesis with a key, and return its report."""
    report = folder / "report.json"
    (folder / "ids.toml").write_text(IDS)
    config = ("--config-file", str(folder / "ids.toml")) if "DELETE" in more else ()
    given = ["-n", CASES, "-c", checks, "-H", f"Authorization: Bearer {key}", "--request-timeout", "60"]
    given += ["--phases", "examples,coverage,fuzzing", "--suppress-health-check", "all", "--no-shrink"]
    given += ["--continue-on-failure", "--report", "json", "--report-json-path", str(report), *more]
    ran = subprocess.run(
        ["schemathesis", *config, "run", f"{url}/openapi.json", *given],
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "tests.e2e.outside.contract_checks",
            "PYTHONPATH": f"{REPO}:{REPO}/kernels",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    return dict(json.loads(report.read_text()))


@contextmanager
def load(url: str, key: str) -> Iterator[list[str]]:
    """While the block runs, four clients ask a model. The list gets the errors that they met."""
    over, errors = threading.Event(), list[str]()

    def ask() -> None:
        client = HttpClient(url, key=key, timeout_s=60)
        while not over.is_set():
            try:
                client.request("POST", "/infer/acme.m", {"inputs": ["the market falls"] * 16})
            except HmiError as error:
                errors.append(error.message)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow
def test_the_contract_holds(place: Place, tmp_path: Path) -> None:
    cases = 0
    own = CHECKS.replace("nothing_of_others,", "")
    with logged_server(place.data, tmp_path / "log") as (url, _):
        for scope, key in place.keys.items():
            checks = own if scope == "admin" else CHECKS
            for more in ((), ("--exclude-method", "DELETE")):
                report = drive(url, key, tmp_path, *more, checks=checks)
                cases += report["test_cases"]["generated"]
                print(f"{scope} {' '.join(more)}: {report['test_cases']}", flush=True)
    with logged_server(shutil.copytree(place.data, tmp_path / "again"), tmp_path / "log") as (url, _):
        hidden_from = place.keys["manage"]
        with load(url, place.keys["infer"]) as errors:
            report = drive(url, hidden_from, tmp_path, "--exclude-method", "DELETE")
            cases += report["test_cases"]["generated"]
        print(f"under load: {report['test_cases']}", flush=True)
        assert not errors, errors[:5]
    assert cases >= FEWEST
    assert "Traceback" not in (tmp_path / "log").read_text()
