"""Starts the processes of jobs: a single job as a new process, several as forks of a template."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Protocol

from hmi.config import Settings
from hmi.jobs.runtime.child import Child, environment
from hmi.jobs.runtime.folders import JobFolder

log = logging.getLogger("hmi.jobs")
IDLE_S = 60.0
"""A template that has started nothing for this long is ended, since it holds some 200 MB."""
LINUX = sys.platform.startswith("linux")


class Process(Protocol):
    """A job's process, seen from its parent."""

    job: str
    began: float

    def running(self) -> bool: ...

    def terminate(self) -> None:
        """Ask the process to stop at its next step and to put its job back into the queue."""

    def kill(self) -> None:
        """Kill the process, and wait for its end."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for the process. Returns whether it ended in time."""


class Starter:
    """Starts processes of one data folder's jobs. Thread-safe."""

    many = 2
    """A template is started when this many jobs wait."""

    def __init__(self, settings: Settings, bodies: str | None) -> None:
        self._settings, self._bodies = settings, bodies
        self._lock = threading.Lock()
        self._template: _Template | None = None

    def start(self, folder: JobFolder, job: str, queued: int) -> Process:
        """Start a job's process. queued: how many jobs wait, this one included."""
        with self._lock:
            if self._template is not None and not self._template.alive():
                self._template = None
            if self._template is None and queued >= self.many and LINUX:
                self._template = _Template(self._settings, self._bodies)
            if self._template is not None:
                return self._template.start(folder, job)
        return Child(self._settings, folder, job, self._bodies)

    def start_in_background(self, folder: JobFolder, job: str) -> Child:
        """Start a job's process with the lowest priority, so that it can be paused.

        It is no fork of the template: the template would wake at each pause, with its normal priority.
        """
        return Child(self._settings, folder, job, self._bodies, background=True)

    def rest(self) -> None:
        """End a template that has nothing to do. Call it now and then."""
        with self._lock:
            if self._template is not None and self._template.idle_s() > IDLE_S:
                self._template.close()
                self._template = None

    def close(self) -> None:
        """End the template, and with it what it still runs."""
        with self._lock:
            if self._template is not None:
                self._template.close()
                self._template = None


class _Template:
    """A template process, and the forks that it runs."""

    def __init__(self, settings: Settings, bodies: str | None) -> None:
        command = [sys.executable, "-P", "-m", "hmi.jobs.runtime.template", str(settings.data)]
        self._process = subprocess.Popen(
            [*command, *([bodies] if bodies else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(settings),
            start_new_session=True,  # so that Ctrl-C in the terminal reaches only this process
        )
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018
        self._commands: IO[bytes] = self._process.stdin
        self._forks: dict[str, _Fork] = {}
        self._lock = threading.Lock()
        self._used, self._over = time.monotonic(), False
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def alive(self) -> bool:
        return self._process.poll() is None

    def idle_s(self) -> float:
        with self._lock:
            return 0.0 if self._forks else time.monotonic() - self._used

    def start(self, folder: JobFolder, job: str) -> _Fork:
        fork = _Fork(self, job)
        with self._lock:
            self._used = time.monotonic()
            if self._over:
                fork.ended.set()
                return fork
            self._forks[job] = fork
        self.send({"start": job, "log": str(folder.log)})
        return fork

    def send(self, command: dict[str, object]) -> None:
        try:
            with self._lock:
                self._commands.write(json.dumps(command).encode() + b"\n")
                self._commands.flush()
        except OSError:  # it has died: the reader ends its forks
            log.warning("the template of jobs has ended")

    def close(self) -> None:
        with self._lock:
            self._commands.close()
        self._process.wait()
        self._reader.join()

    def _read(self, reports: IO[bytes]) -> None:
        with reports:
            for line in reports:
                self._ended(json.loads(line)["ended"])
        # The kernel has ended the forks of a template that died.
        self._process.wait()
        with self._lock:
            self._over = True
        for job in list(self._forks):
            self._ended(job)

    def _ended(self, job: str) -> None:
        with self._lock:
            fork = self._forks.pop(job, None)
            self._used = time.monotonic()
        if fork is not None:
            fork.ended.set()


class _Fork:
    """A job's process that a template has forked."""

    def __init__(self, template: _Template, job: str) -> None:
        self.job, self.began, self.ended = job, time.monotonic(), threading.Event()
        self._template = template

    def running(self) -> bool:
        return not self.ended.is_set()

    def terminate(self) -> None:
        self._template.send({"signal": self.job, "number": int(signal.SIGTERM)})

    def kill(self) -> None:
        self._template.send({"signal": self.job, "number": int(signal.SIGKILL)})
        self.ended.wait()

    def wait(self, timeout_s: float) -> bool:
        return self.ended.wait(timeout_s)
