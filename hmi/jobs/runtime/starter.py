"""Starts and ends the processes of jobs: a single job as a new process, several as forks of a template."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Protocol

import hmi_kernels

import hmi
from hmi.config import Settings
from hmi.config.settings import DEFAULTS
from hmi.config.sources import CONFIG_VARIABLE
from hmi.config.values import environment as environment_of
from hmi.config.values import variable
from hmi.jobs.runtime.folders import JobFolder

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Environment variables that limit a library's threads. In a job each is 1 unless it is set."""


class Child:
    """A running `python -m hmi.jobs`. It dies when this process dies, because its standard input is
    a pipe whose other end only this process holds.

    One in the `background` has the lowest priority, and may be paused."""

    def __init__(
        self, settings: Settings, folder: JobFolder, job: str, bodies: str | None, *, background: bool = False
    ) -> None:
        self.job, self.folder = job, folder
        self.began, self._leaving = time.monotonic(), False
        command = [sys.executable, "-P", "-m", "hmi.jobs", "--data", str(settings.data), job]
        if bodies is not None:
            command += ["--bodies", bodies]
        command += ["--background", str(settings.background_nice)] if background else []
        with folder.log.open("ab") as sink:
            # In a group of its own, so that Ctrl-C in the terminal reaches only this process. Not in a new
            # session: Linux divides the processor among sessions first, whatever their processes' priority.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                env=_environment(settings),
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        if self._process.poll() is None:
            return True
        self._close()
        return False

    def terminate(self) -> None:
        """Ask the process to stop at its next step and to put its job back into the queue. It is paused no
        more."""
        self._leaving = True
        self._process.terminate()
        self.go_on()

    def pause(self) -> None:
        """Stop the process until `go_on`, unless it is to end."""
        self._signal(signal.SIGSTOP)
        if self._leaving:  # looked at afterwards, since `terminate` may run meanwhile on another thread
            self.go_on()

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def known_to_have_ended(self) -> bool:
        """Return whether `running`, `wait` or `kill` has found that the process ended."""
        return self._process.returncode is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the process. Returns whether it ended in time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._close()
        return True

    def _signal(self, number: int) -> None:
        """Send a signal, at the beginning of calls: `Popen.send_signal` would take twice as long, since it
        first asks whether the process has ended."""
        if not self.known_to_have_ended():
            os.kill(self.pid, number)

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def _environment(settings: Settings) -> dict[str, str]:
    """This process' environment with these settings, whatever gave them, with one thread for each library
    that would use all cores, and with the folders that HMI was imported from."""
    given = {*map(variable, DEFAULTS), CONFIG_VARIABLE}
    env = {name: value for name, value in os.environ.items() if name not in given}
    env |= {**{name: os.environ.get(name, "1") for name in _THREADS}, **environment_of(settings)}
    homes = [str(Path(file).resolve().parent.parent) for file in (hmi.__file__, hmi_kernels.__file__) if file]
    if not homes[0].endswith("site-packages"):
        env["PYTHONPATH"] = os.pathsep.join([*homes, *filter(None, [os.environ.get("PYTHONPATH")])])
    return env


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

    module = "hmi.jobs.runtime.template"

    def __init__(self, settings: Settings, bodies: str | None) -> None:
        command = [sys.executable, "-P", "-m", self.module, str(settings.data)]
        self._process = subprocess.Popen(
            [*command, *([bodies] if bodies else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(settings),
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
