"""Work that runs beside the calls: a job that trains a model, or tenants whose models write texts."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from bench.cases.soak.writing import writer_of
from bench.harness.home import MODEL, ROOT, Home, key_of, tenant_of
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
"""The held-out rows. With so few, the training does not stop early."""
WRITERS, WRITTEN = 16, 120
"""WRITERS: models that write. Each writes one text after another. WRITTEN: the most tokens of a text."""
logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each call
Work = Callable[[], float]
"""Returns the work done beside the calls so far, in CPU seconds or tokens."""


@contextmanager
def training(server: Server, home: Home, texts: Sequence[str], name: str) -> Iterator[Work]:
    """Train a model while the block runs. The block begins after the first training step.

    Yields the job's CPU seconds. Raises HmiError.
    """
    rows = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)]
    dev, train = rows[:FEW_HELD_OUT], rows[FEW_HELD_OUT:]
    with Client(f"http://127.0.0.1:{server.port}", key=home.key(TENANT)) as client:
        model = f"{tenant_of(TENANT)}.{name}"
        job = client.models.create(model, train, domain=ROOT, dev=dev, options=OPTIONS)
        try:
            _until(job, lambda: job.status().progress.phase == "fine-tuning")
            yield partial(_cpu_s, job, _process_of(job.id))
        finally:
            with suppress(HmiError):  # it has ended by itself
                job.cancel()
            _until(job, lambda: job.status().done)


def _cpu_s(job: Job, pid: int) -> float:
    found = cpu_s(pid)
    if not found:
        raise HmiError(f"the background job ended early: {job.status()}")
    return found


@contextmanager
def writing(server: Server, home: Home, texts: Sequence[str], name: str) -> Iterator[Work]:
    """Let WRITERS models write while the block runs. The block begins once each has written a text.

    Yields the tokens of their texts. Raises HmiError.
    """
    counts, over = [0] * WRITERS, threading.Event()

    def write(i: int) -> None:
        with Client(f"http://127.0.0.1:{server.port}", key=key_of(writer_of(i))) as client:
            for text in itertools.cycle(texts[i::WRITERS]):
                made = client.generate(
                    f"{writer_of(i)}.{MODEL}", text, max_tokens=WRITTEN, seed=i, temperature=0.7
                )
                counts[i] += made.usage.written_tokens
                if over.is_set():
                    return

    with ThreadPoolExecutor(WRITERS) as pool:
        works = [pool.submit(write, i) for i in range(WRITERS)]
        try:
            while not all(counts) and not any(work.done() for work in works):
                time.sleep(POLL_S)
            yield lambda: float(sum(counts))
        finally:
            over.set()
            for work in works:
                work.result()


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
