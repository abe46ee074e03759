"""Server processes for the tests of the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hmi.api_world import is_ready
from tests.waiting import wait_until

REPO = Path(__file__).parents[2]
PYTHON = [sys.executable, "-m", "hmi"]


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
