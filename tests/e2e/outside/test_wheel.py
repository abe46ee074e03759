"""The wheels run far from the repository."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import hmi
from bench.harness.server import free_port
from tests.delivery.test_wheels import REPO, Wheels, beside_ours, environment, run
from tests.delivery.test_wheels import wheels as wheels
from tests.e2e.conftest import Home
from tests.hmi.labs.api_world import is_ready
from tests.waiting import wait_until


@pytest.mark.slow
def test_the_wheels_run_beside_a_folder_of_its_name(wheels: Wheels, home: Home, tmp_path: Path) -> None:
    binaries = beside_ours(tmp_path / "venv", *wheels.values())
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "hmi").mkdir(parents=True)  # as beside a clone
    data = elsewhere / "data"
    shutil.copytree(home.settings.data, data)
    for command in ([str(binaries / "hmi")], [str(binaries / "python"), "-m", "hmi"]):
        assert "serve" in run([*command, "--help"], cwd=elsewhere)
        assert hmi.__version__ in run([*command, "--version"], cwd=elsewhere)
    code = "import hmi_kernels, hmi; print(hmi_kernels.__file__, hmi.__file__)"
    assert str(REPO) not in run([str(binaries / "python"), "-c", code], cwd=elsewhere)
    port = free_port()
    serve = [str(binaries / "hmi"), "serve", "--data", str(data), "--port", str(port)]
    server = subprocess.Popen(serve, cwd=elsewhere, env=environment())
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_ready(url) or server.poll() is not None, 600)  # it compiles first
        with hmi.Client(url) as client:
            assert client.infer("acme.mood", "a good film").label in ("pos", "neg")
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
