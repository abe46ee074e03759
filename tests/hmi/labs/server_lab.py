"""Server processes for tests."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness.server import free_port
from tests.forks import Forked, run_hmi
from tests.hmi.labs.api_world import is_ready
from tests.waiting import wait_until

REPO = Path(__file__).parents[3]
PYTHON = [sys.executable, "-m", "hmi"]
READY_S = 120.0


@contextmanager
def serving(data: Path, *arguments: str) -> Iterator[tuple[str, Forked | subprocess.Popen[bytes]]]:
    """Run a server process on a free port: its address and the process."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        server = run_hmi(["serve", "--data", str(data), "--port", "0", *arguments], log)
        try:
            wait_until(lambda: server.poll() is not None or _said(log), READY_S)
            assert _said(log), f"the server did not start: {log.read_text()[-2000:]}"
            yield _said(log), server
        finally:
            server.kill()
            server.wait()


def _said(log: Path) -> str:
    """The address that a server has written to its log, or an empty text."""
    found = re.search(r"(https?://\S+?:\d+)\b.*\n", log.read_text()) if log.exists() else None
    return found[1] if found else ""


def ready(url: str) -> None:
    """Wait until the server at `url` is ready."""
    wait_until(lambda: is_ready(url))


@contextmanager
def logged_server(
    data: Path, log: Path, *arguments: str
) -> Iterator[tuple[str, Forked | subprocess.Popen[bytes]]]:
    """Run a server process that is ready, and adds its log to a file: its address and the process."""
    port = free_port()
    server = run_hmi(["serve", "--data", str(data), "--port", str(port), *arguments], log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: server.poll() is not None or is_ready(url), READY_S)
        assert server.poll() is None, log.read_text()[-2000:]
        yield url, server
    finally:
        server.kill()
        server.wait()
