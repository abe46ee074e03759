"""A job's child process, seen from its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hmi_kernels

import hmi
from hmi.config import Settings
from hmi.config.settings import DEFAULTS
from hmi.config.sources import CONFIG_VARIABLE
from hmi.config.values import environment as environment_of
from hmi.config.values import variable
from hmi.jobs.runtime.folders import JobFolder

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
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
        with folder.log.open("ab") as log:
            # In a group of its own, so that Ctrl-C in the terminal reaches only this process. Not in a new
            # session: Linux divides the processor among sessions first, whatever their processes' priority.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(settings),
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


def environment(settings: Settings) -> dict[str, str]:
    """This process' environment with these settings, whatever gave them, with one thread for each library
    that would use all cores, and with the folders that HMI was imported from."""
    given = {*map(variable, DEFAULTS), CONFIG_VARIABLE}
    env = {name: value for name, value in os.environ.items() if name not in given}
    env |= {**{name: os.environ.get(name, "1") for name in THREADS}, **environment_of(settings)}
    homes = [str(Path(file).resolve().parent.parent) for file in (hmi.__file__, hmi_kernels.__file__) if file]
    if not homes[0].endswith("site-packages"):
        env["PYTHONPATH"] = os.pathsep.join([*homes, *filter(None, [os.environ.get("PYTHONPATH")])])
    return env
