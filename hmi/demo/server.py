"""The server as a child process: started on loopback, watched until it is ready, stopped with the demo."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hmi.demo.client import DemoClient
from hmi.errors import Unavailable

HOST = "127.0.0.1"
USUAL_PORT = 8080
_READY_S = 300  # the first start of an installation compiles
_DRAIN_S = 60
_MOST_WORKERS = 8
_PR_SET_PDEATHSIG = 1


@contextmanager
def running(data: Path, log: Path, port: int | None, key: str | None) -> Iterator[DemoClient]:
    """Run `hmi serve` on `data` while the context is open, then stop it with SIGTERM."""
    port = port or _free_port()
    workers = max(1, min(_MOST_WORKERS, os.cpu_count() or 1))
    command = [sys.executable, "-m", "hmi", "serve", "--data", str(data), "--host", HOST, "--port", str(port)]
    command += ["--job-workers", str(workers)]
    # The table is about first versions, and the demo is to end when they are ready.
    env = {"HMI_IMPROVE": "false", **os.environ}
    with log.open("ab") as sink:
        # The server has a session of its own, so that Ctrl-C reaches only the demo, which stops the server.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    try:
        client = DemoClient(HOST, port, key)
        _wait_ready(child, client, log)
        yield client
    finally:
        _stop(child)


def _wait_ready(child: subprocess.Popen[bytes], client: DemoClient, log: Path) -> None:
    until = time.monotonic() + _READY_S
    while not client.ready():
        if child.poll() is not None:
            raise Unavailable(f"the server ended at once: {_last_words(log)} (all of it: {log})")
        if time.monotonic() > until:
            raise Unavailable(f"the server was not ready within {_READY_S} s: see {log}")
        time.sleep(0.2)


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_DRAIN_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()
        child.wait()


def _free_port() -> int:
    """Return the usual port if it is free, else any free port."""
    for port in (USUAL_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Unavailable("no port of this machine is free: end a program that listens, or give --port")


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " ".join(lines[-3:]) or "it logged nothing"


def _die_with_parent() -> None:
    """End this process when the demo dies, so that a killed demo leaves no server behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
