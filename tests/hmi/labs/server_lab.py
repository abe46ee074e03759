"""Server processes for the tests of the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness.server import free_port
from tests.hmi.labs.api_world import is_ready
from tests.waiting import wait_until

REPO = Path(__file__).parents[3]
PYTHON = [sys.executable, "-m", "hmi"]
READY_S = 120.0


@contextmanager
def serving(data: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a server process on a free port: its address and the process."""
    command = [*PYTHON, "serve", "--data", str(data), "--port", "0", *arguments]
    server = subprocess.Popen(command, cwd=REPO, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        url = ""
        for line in server.stderr:
            found = re.search(r"https?://\S+?:\d+", line)
            if found:
                url = found[0]
                break
        assert url, "the server did not start"
        yield url, server
    finally:
        if server.poll() is None:
            server.kill()
        server.wait()
        server.stderr.close()


def ready(url: str) -> None:
    """Wait until the server at `url` is ready."""
    wait_until(lambda: is_ready(url))


@contextmanager
def logged_server(data: Path, log: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server process that is ready, and writes its log to a file: its address and the process.

    Unlike the one of `serving`, it may log as much as it likes.
    """
    port = free_port()
    command = [*PYTHON, "serve", "--data", str(data), "--port", str(port), *arguments]
    with log.open("ab") as out:
        server = subprocess.Popen(command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: server.poll() is not None or is_ready(url), READY_S)
        assert server.poll() is None, log.read_text()[-2000:]
        yield url, server
    finally:
        server.kill()
        server.wait()
