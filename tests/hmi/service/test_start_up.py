"""Commands that compute nothing load nothing heavy, so they start at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hmi.config import Settings
from hmi.manager import Manager
from tests.hmi.cli.test_cli_tree import COMMANDS, NO_SERVER, NO_URL, REPO, called, url
from tests.hmi.labs.manager_lab import add_root

__all__ = ["called", "url"]
HEAVY = (
    "torch",
    "numba",
    "scipy",
    "transformers",
    "tokenizers",
    "safetensors.torch",
    "adapters",
    "seqeval",
    "opentelemetry",
    "grpc",
)
"""Packages of which each takes a tenth of a second or more to load."""
COMPUTES = {
    "serve",
    "infer",
    "generate",
    "check",
    "job resume",
    "job watch",
    "domain create",
    "domain erase",
    "domain grow",
    "domain update",
    "model cascade show",
    "model create",
    "model export-module",
    "model import-module",
    "model ramps",
    "model tokens",
    "model update",
    "profile cascade",
    "profile executors",
    "profile stages",
    "reference",
    "root export-locality",
    "root import",
    "root measure",
    "root shards",
    "store compact",
    "store diff",
    "store export",
    "store import",
    "store pull",
    "store push",
    "store scrub",
    "store verify",
}
"""Commands that on a data folder answer, train, build, measure, or read or copy every byte."""
HELP = [["--help"], ["model", "create", "--help"], ["serve", "--help"]]


def loaded(commands: list[list[str]], heavy: tuple[str, ...]) -> list[list[object]]:
    """Run commands in one new process: those after which a heavy package is loaded, and which.

    A command may fail: it must still start at once.
    """
    program = f"""
import json, sys, hmi, hmi.cli
for command in {commands!r}:
    try:
        hmi.cli.main(command)
    except SystemExit as end:
        assert end.code in (0, 1), (command, end.code)
    print("loaded " + json.dumps([" ".join(command), [name for name in {heavy!r} if name in sys.modules]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    told = [line.removeprefix("loaded ") for line in done.stdout.splitlines() if line.startswith("loaded ")]
    assert len(told) == len(commands)
    return [found for found in map(json.loads, told) if found[1]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    manager = Manager(Settings(data=tmp_path / "d", job_workers=0))
    add_root(manager)
    manager.create_tenant("acme")
    manager.close()
    return tmp_path / "d"


def test_the_package_itself_loads_nothing() -> None:
    names = (*HEAVY, "aiohttp", "numpy", "httpx")
    program = f"import sys, hmi; print([name for name in {names!r} if name in sys.modules])"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_computes_nothing_loads_nothing_heavy(called: dict[str, list[str]], data: Path) -> None:
    light = [name for name in COMMANDS if name not in COMPUTES]
    # Deletions come last, so that the others find something.
    light.sort(key=lambda name: name.endswith("delete"))
    commands = [*HELP, *([*called[name], "--data", str(data)] for name in light if name != "doctor")]
    assert loaded(commands, (*HEAVY, "aiohttp")) == []
    assert loaded([["doctor", "--data", str(data)]], HEAVY) == []


def test_the_table_names_commands_that_exist() -> None:
    assert set(COMMANDS) >= COMPUTES


def test_a_call_of_a_server_loads_no_server(called: dict[str, list[str]], url: str) -> None:
    names = [name for name in COMMANDS if name not in {*NO_URL, *NO_SERVER}]
    commands = [[*called[name], "--url", url] for name in names]
    assert loaded(commands, (*HEAVY, "aiohttp")) == []
