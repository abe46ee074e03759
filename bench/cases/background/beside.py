"""The job that runs beside the calls, and the processor time that it takes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.harness.home import ROOT, Home, tenant_of
from bench.harness.server import Server, cpu_s
from hmi.client.sync.client import Client
from hmi.client.sync.jobs import Job
from hmi.errors import HmiError

LONGEST_S = 240.0
"""The longest wait for the job's first training step, and for its end."""
POLL_S = 0.5
OPTIONS = {"epochs": 200}
TENANT = 0
"""The owner of the jobs."""
FEW_HELD_OUT = 4
"""So few held-out rows do not end the training early."""


@dataclass(frozen=True)
class Beside:
    """A job that trains. `pid` is its process."""

    job: Job
    pid: int

    def cpu_s(self) -> float:
        """The CPU seconds of its process so far. Raises HmiError if it has ended."""
        found = cpu_s(self.pid)
        if not found:
            raise HmiError(f"the background job ended early: {self.job.status()}")
        return found


@contextmanager
def training(server: Server, home: Home, texts: Sequence[str], name: str) -> Iterator[Beside]:
    """Train a model for as long as the context is open. Yields after its first step. Raises HmiError."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each call
    rows = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)]
    dev, train = rows[:FEW_HELD_OUT], rows[FEW_HELD_OUT:]
    with Client(f"http://127.0.0.1:{server.port}", key=home.key(TENANT)) as client:
        model = f"{tenant_of(TENANT)}.{name}"
        job = client.models.create(model, train, domain=ROOT, dev=dev, options=OPTIONS)
        try:
            _until(job, lambda: job.status().progress.phase == "fine-tuning")
            yield Beside(job, _process_of(job.id))
        finally:
            with suppress(HmiError):  # it has ended by itself
                job.cancel()
            _until(job, lambda: job.status().done)


def _until(job: Job, done: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not done():
        if time.monotonic() > end:
            raise HmiError(f"the background job did not get on within {LONGEST_S:g} s: {job.status()}")
        time.sleep(POLL_S)


def _process_of(job: str) -> int:
    """Return the process that runs a job. Raises HmiError if there is none."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"hmi.jobs" in words and job.encode() in words and int(process.name) != os.getpid():
                return int(process.name)
    raise HmiError(f"no process runs the background job {job}")
