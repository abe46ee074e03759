"""HMI's server and the peers' servers. Each is a process group of its own, which can be halted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from bench.cases.floods.server import free_port
from bench.cases.serve.http_driver import Target
from bench.harness.home import Home
from hmi.errors import Unavailable

READY_S = 180.0
"""Longest wait for a server to start: the first one of a machine compiles."""
STOP_S = 20.0
MODEL_ID = "peer"
"""The name under which infinity serves the model."""


@dataclass(frozen=True)
class Arm:
    """One server in one mode. `{port}` in `command` stands for its port."""

    name: str
    command: tuple[str, ...]
    ready: str
    """A path that answers 200 when the server serves."""
    precision: str = ""
    """The numbers that its products multiply; "": its default."""
    path: str = ""
    """The path that a peer answers; "": HMI's, which depends on the model."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def target(self, home: Home, tenant: int) -> Target:
        """The path and the key of one of the home's tenants."""
        return Target(self.path) if self.path else Target(f"/infer/{home.model(tenant)}", home.key(tenant))

    def body(self, texts: Sequence[str], model: str = MODEL_ID) -> str:
        """The body of a call. `model` is for peers that take the model's name from the body."""
        if self.name.startswith("infinity"):
            return json.dumps({"model": MODEL_ID, "input": texts, "encoding_format": "base64"})
        return json.dumps({"model": model, "inputs": texts} if self.path else {"inputs": texts})


def hmi(data: Path, precision: str = "", pool_bytes: int | None = None) -> Arm:
    """`hmi serve` on a data folder. Only one server at a time can run on a folder."""
    command = [sys.executable, "-m", "hmi", "serve", "--data", str(data), "--port", "{port}"]
    command += ["--job-workers", "0", *(["--pool-bytes", str(pool_bytes)] if pool_bytes else [])]
    name = f"HMI {precision}" if precision else "HMI"
    given = {"HMI_PRECISION": precision} if precision else {}
    return Arm(name, tuple(command), "/readyz", precision, environment=given)


@dataclass(frozen=True)
class Server:
    """A running server of `arm`. `pid` is its first process, and the number of its process group."""

    arm: Arm
    port: int
    pid: int

    def cpu_s(self) -> float:
        """The CPU seconds that its processes have taken, those that have ended left out."""
        return sum(map(_cpu_s, self.pids()))

    def pids(self) -> list[int]:
        return [int(p.name) for p in Path("/proc").glob("[0-9]*") if _group(p) == self.pid]

    def threads_cpu_s(self) -> dict[str, float]:
        """The CPU seconds of each thread of its first process, by number. Linux only."""
        found = {}
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(OSError):  # it has ended
                found[thread.name] = int((thread / "schedstat").read_text().split()[0]) / 1e9
        return found

    def halt(self) -> None:
        """Stop its processes from running, so that they take no time from the server that is measured."""
        os.killpg(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def get(self, path: str, key: str = "") -> str:
        """Return the text of a path. Raises OSError, HTTPException; Unavailable if it is not 200."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise Unavailable(f"GET {path} of {self.arm.name} answered {answer.status}: {text[:200]}")
        return text


@contextmanager
def running(arm: Arm, folder: Path) -> Iterator[Server]:
    """Run a server while the context is open. Its log is in `folder`. Raises Unavailable.

    Use it on the main thread: SIGTERM ends this process by SystemExit, so that the server ends with it.
    """
    port = free_port()
    command = [part.replace("{port}", str(port)) for part in arm.command]
    log = folder / f"{arm.name.replace(' ', '-').replace(',', '')}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=_environment(arm),
            start_new_session=True,
        )
    server = Server(arm, port, process.pid)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _wait_ready(server, process, log)
        yield server
    finally:
        _end(server, process)
        signal.signal(signal.SIGTERM, before)


def peer_environment(packages: Path | None) -> dict[str, str]:
    """The environment of a peer's process: its packages, and settings that forbid hub and telemetry."""
    given = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "PYTHONWARNINGS": "ignore"}
    known = os.environ.get("PYTHONPATH", "")
    return given if packages is None else {**given, "PYTHONPATH": f"{packages}{os.pathsep}{known}"}


def with_environment(arm: Arm, environment: Mapping[str, str]) -> Arm:
    return replace(arm, environment={**arm.environment, **environment})


def _environment(arm: Arm) -> dict[str, str]:
    """One compute thread for every server."""
    one = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **one, **arm.environment}


def _wait_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if process.poll() is not None:
            last = log.read_text(errors="replace").strip()[-400:]
            raise Unavailable(f"{server.arm.name} ended at its start: {last}")
        try:
            server.get(server.arm.ready)
            return
        except (OSError, HTTPException, Unavailable):
            time.sleep(0.1)
    raise Unavailable(f"{server.arm.name} was not ready within {READY_S:g} s")


def _end(server: Server, process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        server.go_on()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pid in server.pids():  # workers that outlived it
        os.kill(pid, signal.SIGKILL)


def _cpu_s(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the process's CPU clock, as Linux numbers it
    except OSError:
        return 0.0


def _group(process: Path) -> int | None:
    """Return the group of a process, or None if it has ended."""
    try:
        stat = (process / "stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[2])
