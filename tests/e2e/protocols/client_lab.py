"""Clients of other projects, which run under an interpreter of their own.

They need the extra `clients`, which may want other versions of packages than HMI. HMI_CLIENTS names the
interpreter (`make clients`); without it, they run under this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.harness.server import free_port
from tests.e2e.protocols.protocol_lab import ProtocolServer
from tests.waiting import wait_until

PYTHON = os.environ.get("HMI_CLIENTS", sys.executable)
START_S = 180.0
FIND = "import sys, importlib.util as u; sys.exit(u.find_spec(sys.argv[1]) is None)"
PROXY = """
import sys
from litellm import run_server
sys.exit(run_server())
"""


def needs(package: str) -> None:
    """Skip the test unless the clients' interpreter has a package."""
    found = subprocess.run([PYTHON, "-c", FIND, package], capture_output=True)
    if found.returncode:
        pytest.skip(f"{package} is not installed: the clients of other projects have an extra of their own")


def said_by(script: str, server: ProtocolServer, model: str, *texts: str) -> str:
    """What a script prints that gets the address of OpenAI's calls, a key, a model, and texts."""
    command = [PYTHON, "-c", script, f"{server.url}/v1", server.key, model, *texts]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


@contextmanager
def proxying(folder: Path, server: ProtocolServer, key: str, name: str, model: str) -> Iterator[str]:
    """Run LiteLLM's proxy with a key of its own. It calls the server's `model` `name`. Gives its address."""
    given = {"model": f"openai/{model}", "api_base": f"{server.url}/v1", "api_key": server.key}
    models = [{"model_name": name, "litellm_params": given}]
    config: dict[str, Any] = {"model_list": models, "general_settings": {"master_key": key}}
    (folder / "config.yaml").write_text(json.dumps(config))  # which is YAML, too
    port = free_port()
    command = [PYTHON, "-c", PROXY, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    url, log = f"http://127.0.0.1:{port}", folder / "log"

    def is_alive() -> bool:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            return httpx.get(f"{url}/health/liveliness", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        wait_until(is_alive, START_S)
        yield url
    finally:
        process.kill()
        process.wait()
