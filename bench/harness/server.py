"""Servers for a benchmark: `hmi serve` on a data folder, or a peer by its command line.

Each is a process group of its own on a free port of loopback, and can be halted while another is measured.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from hmi.errors import Unavailable
from hmi.resident import Resident, resident

READY_S = 600.0
"""Longest wait for a server to start: the first one of a machine compiles, longest with a language model."""
STOP_S = 60.0
NO_JOBS = ("--job-workers", "0")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""One compute thread for every server."""


@dataclass(frozen=True)
class ServerArm:
    """One server in one mode. `{port}` in `command` stands for its port."""

    name: str
    command: tuple[str, ...]
    ready: str = "/readyz"
    """A path that answers 200 when the server serves."""
    path: str = ""
    """The path that a peer answers; "": HMI's, which depends on the model."""
    environment: Mapping[str, str] = field(default_factory=dict)


def hmi(data: Path, *options: str, name: str = "HMI", **environment: str) -> ServerArm:
    """`hmi serve` on a data folder. Only one server at a time can run on a folder."""
    command = (sys.executable, "-m", "hmi", "serve", "--data", str(data), "--port", "{port}", *options)
    return ServerArm(name, command, environment=environment)


@dataclass(frozen=True)
class Server:
    """A running server of `arm`."""

    arm: ServerArm
    port: int
    process: subprocess.Popen[bytes]
    """Its first process, which leads its process group."""
    log: Path

    @property
    def pid(self) -> int:
        """The number of its first process, and of its process group."""
        return self.process.pid

    def cpu_s(self) -> float:
        """The CPU seconds that its processes have taken, those that have ended left out."""
        return sum(map(cpu_s, self.pids()))

    def memory(self) -> Resident:
        """The resident memory of its first process. Linux only."""
        return resident(self.pid)

    def pids(self) -> list[int]:
        """Its processes, also those with a process group of their own, as Ray's workers have."""
        return [int(p.name) for p in Path("/proc").glob("[0-9]*") if _session(p) == self.pid]

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

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let a halted server run while the context is open."""
        self.go_on()
        try:
            yield
        finally:
            self.halt()

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
def running(arm: ServerArm, folder: Path, descriptors: int | None = None) -> Iterator[Server]:
    """Run a server while the context is open. Yields when it is ready. Raises Unavailable.

    `folder` gets its log. `descriptors` limits its open files. Use it on the main thread: SIGTERM ends this
    process by SystemExit, so that the server ends with it.
    """
    port = free_port()
    log = folder / f"{arm.name.replace(' ', '-').replace(',', '')}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [part.replace("{port}", str(port)) for part in arm.command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **ONE_THREAD, **arm.environment},
            start_new_session=True,
            preexec_fn=None if descriptors is None else lambda: _limit(descriptors),
        )
    server = Server(arm, port, process, log)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _wait_ready(server)
        yield server
    finally:
        _end(server)
        signal.signal(signal.SIGTERM, before)


def free_port() -> int:
    """Return a port of loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, 0 if it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the process's CPU clock, as Linux numbers it
    except OSError:
        return 0.0


def _limit(descriptors: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))


def _wait_ready(server: Server) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if server.process.poll() is not None:
            last = server.log.read_text(errors="replace").strip()[-400:]
            raise Unavailable(f"{server.arm.name} ended at its start: {last}")
        try:
            server.get(server.arm.ready)
            return
        except (OSError, HTTPException, Unavailable):
            time.sleep(0.1)
    raise Unavailable(f"{server.arm.name} was not ready within {READY_S:g} s")


def _end(server: Server) -> None:
    process = server.process
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


def _session(process: Path) -> int | None:
    """Return the session of a process, or None if it has ended."""
    try:
        stat = (process / "stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[3])
