"""A job's child process, as its parent handles it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import hmi_kernels

import hmi
from hmi.jobs.runtime.folders import JobFolder

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Child:
    """`python -m hmi.jobs`, which dies when this process dies: its standard input is a pipe that
    only we hold."""

    def __init__(self, data: Path, folder: JobFolder, job: str, bodies: str | None) -> None:
        self.job, self.folder = job, folder
        self.began = time.monotonic()
        command = [sys.executable, "-P", "-m", "hmi.jobs", "--data", str(data), job]
        if bodies is not None:
            command += ["--bodies", bodies]
        with folder.log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal is for us alone to handle.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,
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
        """Ask it to stop at its next step and to put its job back."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within the time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._close()
        return True

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def _environment() -> dict[str, str]:
    """Ours, with one thread for every library that would take all cores, and our packages where
    we found them."""
    env = {**os.environ, **{name: os.environ.get(name, "1") for name in THREADS}}
    homes = [str(Path(file).resolve().parent.parent) for file in (hmi.__file__, hmi_kernels.__file__) if file]
    if not homes[0].endswith("site-packages"):
        env["PYTHONPATH"] = os.pathsep.join([*homes, *filter(None, [os.environ.get("PYTHONPATH")])])
    return env
