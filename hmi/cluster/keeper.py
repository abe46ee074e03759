"""Keeps one server running on a machine: starts it, adopts one that runs, and starts it again when it dies.

The server is a process of its own, which outlives its keeper. So servers go on while Ray is away, and the
next keeper on the machine finds them by their data folders.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from hmi.api.process.lock import live_server, url_of
from hmi.errors import Conflict, NotFound, Unavailable

log = logging.getLogger("hmi.cluster")
LOOK_S: Final = 0.5
"""Interval at which the keeper looks whether its server lives."""
LONGEST_PAUSE_S: Final = 30.0
"""The longest pause before a server that dies again and again is started once more."""
STEADY_S: Final = 60.0
"""A server that has lived for this long is started again without a pause."""
ANSWER_S: Final = 5.0
"""Longest wait for a server that asks all others."""
STOP_S: Final = 60.0
"""A server that has not ended this many seconds after SIGTERM is killed."""
READY_S: Final = 300.0
"""Longest wait for a server that starts. The first one on a machine compiles for its processor."""


@dataclass(frozen=True)
class ServerSpec:
    """How the servers of a cluster are started."""

    bucket: str
    python: str = sys.executable
    """The interpreter with the release of HMI that is to run."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings, as variables of the environment: HMI_POOL_BYTES, …"""
    key: str | None = None
    """An administrator's key, if the servers need keys."""


class Keeper:
    """One server in the first free place below a folder of this machine. Thread-safe."""

    def __init__(self, spec: ServerSpec, root: Path, host: str, port: int, address: str) -> None:
        """root: its subfolders 1, 2, … are the servers' data folders. host: the address that servers listen
        on. port: of the one in the first folder. address: where other machines reach this one.

        Raises Conflict if all places are taken by other keepers.
        """
        self._spec, self._host = spec, host
        self.place, self._lock = _free_place(root)
        self._data, self._port = root / str(self.place), port + self.place - 1
        _left(self._data).unlink(missing_ok=True)
        reached = address if host in ("0.0.0.0", "::") else host
        self.url = url_of(reached, self._port, tls="HMI_TLS_CERT" in {**os.environ, **spec.settings})
        """Where the server listens, or will."""
        self._pid = 0
        self._wanted, self._ending = True, threading.Event()
        self._changing = threading.RLock()
        # Starts since the server last lived for a while.
        self._starts, self._began, self._adopted = 0, 0.0, live_server(self._data) is not None
        self._watching = threading.Thread(target=self._watch, name="hmi-keeper", daemon=True)
        self._watching.start()

    def state(self) -> dict[str, Any]:
        """How the server stands: `url`, `place`, `starts`, `adopted`, `view`, null unless it answers, and
        `ended`, the last line that it wrote, null while it lives."""
        found = live_server(self._data)
        view: Any = None
        if found is not None and found.url:
            try:
                view = self._call("GET", "/manage/server").raise_for_status().json()
            except (httpx.HTTPError, ValueError):
                view = None
        return {
            "url": self.url,
            "place": self.place,
            "pid": 0 if found is None else found.pid,
            "starts": self._starts,
            "adopted": self._adopted,
            "view": view,
            "ended": None if self._lives() or not self._starts else _last_line(self._log),
        }

    def sees_primary(self) -> bool:
        """Return whether the server reaches a primary, as far as it answers."""
        try:
            found = self._call("GET", "/manage/servers", timeout=ANSWER_S).raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return False
        return any(one["view"] and one["view"]["primary"] for one in found["servers"])

    def lead(self) -> None:
        """Make the server the primary. Raises Unavailable with its answer if it does not become it."""
        try:
            answer = self._call("POST", "/manage/server/lead", timeout=READY_S)
        except httpx.HTTPError as error:
            raise Unavailable(f"{self.url} does not answer: {error}") from error
        if answer.status_code != 200:
            raise Unavailable(f"{self.url} does not become the primary: {answer.text[:300]}")

    def renew(self, spec: ServerSpec) -> None:
        """Stop the server in order, start it as `spec` says, and wait for its answer. Raises Unavailable."""
        with self._changing:
            self._wanted = False
            _stop(self._data)
            self._spec, self._wanted = spec, True
            self._start()
        until = time.monotonic() + READY_S
        while not self._ready():
            if time.monotonic() > until:
                raise Unavailable(f"{self.url} is not ready after {READY_S:.0f} s: see {self._log}")
            time.sleep(LOOK_S)

    def end(self) -> None:
        """Stop the server in order: it lets others load its models, and answers what it has accepted."""
        self._ending.set()
        with self._changing:
            self._wanted = False
            _stop(self._data)
        os.close(self._lock)

    @property
    def _log(self) -> Path:
        return self._data.with_suffix(".log")

    def _call(self, method: str, path: str, timeout: float = 2.0) -> httpx.Response:
        headers = {} if self._spec.key is None else {"Authorization": f"Bearer {self._spec.key}"}
        return httpx.request(
            method, self.url + path, headers=headers, timeout=timeout, verify=self._trusted()
        )

    def _trusted(self) -> ssl.SSLContext | bool:
        """What a TLS connection to the server needs, as among servers (`hmi.api.nodes.forward`)."""
        settings = {**os.environ, **self._spec.settings}
        if "HMI_TLS_CERT" not in settings:
            return True
        context = ssl.create_default_context(cafile=settings.get("HMI_NODE_CA"))
        context.load_cert_chain(settings["HMI_TLS_CERT"], settings["HMI_TLS_KEY"])
        return context

    def _ready(self) -> bool:
        try:
            return self._call("GET", "/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def _watch(self) -> None:
        while not self._ending.wait(LOOK_S):
            with self._changing:
                if _left(self._data).exists():
                    if _runs(self._pid) and live_server(self._data) is None:
                        os.kill(self._pid, signal.SIGTERM)  # it had just been started
                elif self._wanted and not self._lives() and time.monotonic() >= self._not_before():
                    try:
                        self._start()
                    except OSError as error:
                        log.error("the server in %s cannot be started: %s", self._data, error)

    def _lives(self) -> bool:
        return _runs(self._pid) or live_server(self._data) is not None

    def _not_before(self) -> float:
        """When the server may be started again: at once, unless it died soon after its last starts."""
        if not self._starts or time.monotonic() - self._began > STEADY_S:
            return 0.0
        return self._began + min(2.0 ** min(self._starts, 10), LONGEST_PAUSE_S)

    def _start(self) -> None:
        self._data.parent.mkdir(parents=True, exist_ok=True)
        command = [self._spec.python, "-P", "-m", "hmi", "serve", "--data", str(self._data)]
        command += ["--bucket", self._spec.bucket, "--role", "replica"]
        command += ["--host", self._host, "--port", str(self._port), "--node-url", self.url]
        told, tell = os.pipe()
        with self._log.open("ab") as sink, open(told) as answer:
            # Ray ends the children of a process that ends, and the server must live on: it is nobody's child.
            starter = subprocess.Popen(
                [sys.executable, "-c", _DETACHED, str(tell), *command],
                env={**os.environ, **self._spec.settings},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                pass_fds=[tell],
            )
            os.close(tell)
            self._pid = int(answer.read() or 0)
            starter.wait()
        if time.monotonic() - self._began > STEADY_S:
            self._starts = 0
        self._began, self._starts, self._adopted = time.monotonic(), self._starts + 1, False


def leave(root: Path) -> list[Path]:
    """Stop the servers of a machine in order, before the machine ends. Their keepers do not start them again;
    new keepers do. root: as `Keeper` has it. Returns the data folders of those that ran. Raises NotFound."""
    places = [lock.with_suffix("") for lock in sorted(root.glob("*.keeper"))]
    if not places:
        raise NotFound(
            f"no server of a cluster was ever in {root}: name the folder that 'hmi cluster up' had"
        )
    for data in places:
        _left(data).touch()
    with ThreadPoolExecutor(len(places)) as pool:
        return [data for data, ran in zip(places, pool.map(_stop, places), strict=True) if ran]


def _left(data: Path) -> Path:
    """The file that says that the server of a data folder is not to be started again."""
    return data.with_suffix(".left")


def _stop(data: Path) -> bool:
    """Stop the server of a data folder in order, and wait for its end. Returns whether one ran."""
    found = live_server(data)
    if found is None or not found.pid:
        return False
    os.kill(found.pid, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while _runs(found.pid) or live_server(data) is not None:
        if time.monotonic() > until:
            log.error("the server in %s did not end within %.0f s: killing it", data, STOP_S)
            os.kill(found.pid, signal.SIGKILL)
            break
        time.sleep(0.1)
    return True


_DETACHED: Final = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
os.write(int(sys.argv[1]), str(os.getpid()).encode())
os.close(int(sys.argv[1]))
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Runs a command in a session of its own, as a child of no process here, and writes its process id."""


def _runs(pid: int) -> bool:
    if not pid:
        return False
    try:
        os.kill(pid, 0)
        # A container may have no process that takes note of the death of nobody's child.
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:  # there is no /proc
        return True
    except OSError:
        return False


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LINE))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it wrote nothing")


def _free_place(root: Path) -> tuple[int, int]:
    """The number of a place without a keeper, and the descriptor that holds its lock. Raises Conflict.

    A place whose server runs comes first.
    """
    root.mkdir(parents=True, exist_ok=True)
    places = sorted(range(1, _MOST_PLACES + 1), key=lambda one: live_server(root / str(one)) is None)
    for place in places:
        fd = os.open(root / f"{place}.keeper", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        return place, fd
    raise Conflict(f"{root} has {_MOST_PLACES} servers already: give this machine another folder (HMI_DATA)")


_MOST_PLACES: Final = 64
_LINE: Final = 4096
"""The most bytes of a log in which its last line is looked for."""
