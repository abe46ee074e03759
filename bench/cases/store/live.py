"""Rows of `bench store`: a reader while another process publishes continuously, and alone."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from bench.cases.store.data import LENGTH, distinct, trigrams
from bench.harness.report import Figure, in_turn, median_ratio
from hmi.errors import HmiError
from plot_store import Reader, Schema, Store

DIM, VOCAB = 384, 64
EVERY_S = 0.005
GC_EVERY = 100
"""Publications between two garbage collections."""
REF = "live"
START_S = 60.0
TEXT = np.random.default_rng(1).integers(1, VOCAB, LENGTH).astype(np.int32)


def measure(folder: Path, phase_s: float, phases: int) -> Iterator[Figure]:
    """Yield the ratio of a read beside publications to a read alone, in phases that take turns.

    A read asks which version is current, opens it if it is new, and looks up one text.
    """
    with Store.open(folder, create=True) as store, publisher_of(store) as publishing:
        watch = _RefWatch(store)
        try:
            publishing.clear()
            works = {
                "idle": lambda: watch.phase(phase_s),
                "publishing": lambda: _while(publishing, watch, phase_s),
            }
            ratio = median_ratio(in_turn(works, phases), "publishing", "idle")
        finally:
            watch.close()
    peer = "the same reader, nothing published meanwhile"
    yield Figure("reader_publishing_over_idle", ratio, "x", 1.1, False, phases, peer, stretch=1.05)
    about = f"{watch.versions:,} versions seen in {watch.reads:,} reads"
    yield Figure("torn_reads", watch.torn, "reads", 0, False, watch.reads, about, stretch=0)


@contextmanager
def publisher_of(store: Store) -> Iterator[Event]:
    """Context manager: a child process publishes on REF while the yielded event is set. It is set at first.

    Raises HmiError if the child does not start.
    """
    context = multiprocessing.get_context("spawn")
    publishing, ended = context.Event(), context.Event()
    child = context.Process(target=publisher, args=(str(store.path), publishing, ended), daemon=True)
    _publish(store, 1)
    child.start()
    try:
        _await_publication(store, publishing, child)
        yield publishing
    finally:
        ended.set()
        child.join(START_S)
        if child.is_alive():
            child.kill()


class _RefWatch:
    """A reader that follows the ref and checks each answer against the version it must be of."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads = self.torn = self.versions = 0
        self._reader: Reader | None = None
        self._offsets = np.array([0, LENGTH], np.int64)
        self._out = np.empty((LENGTH, DIM), np.float32)
        # What a look-up gives if all vectors are one: the number of windows over each token.
        self._unit = np.full((LENGTH, DIM), 3, np.float32)
        self._unit[[0, -1]] = 2

    def phase(self, seconds: float) -> float:
        """Read for so long. Returns the median CPU seconds of a read."""
        took: list[float] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            used = time.thread_time()
            number = self._read()
            took.append(time.thread_time() - used)
            self.reads += 1
            self.torn += not np.allclose(self._out, self._unit * np.float32(number), rtol=1e-4)
        return statistics.median(took)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _read(self) -> int:
        """Look the text up in the current version, and return the number that it was made of."""
        current = self._store.version(REF)
        if self._reader is None or self._reader.version.id != current.id:
            self.close()
            self._reader = self._store.reader(REF)
            self.versions += 1
        self._reader.lookup(TEXT, self._offsets, out=self._out)
        return int(self._reader.version.meta["number"])


def publisher(path: str, publishing: Event, ended: Event) -> None:
    """Publish a version every EVERY_S while `publishing` is set; the main function of the child process.

    It collects garbage after every GC_EVERY publications.
    """
    with Store.open(Path(path)) as store:
        number = 1
        while not ended.is_set():
            if not publishing.wait(0.05):
                continue
            number += 1
            _publish(store, number)
            if number % GC_EVERY == 0:
                store.gc(keep_versions=8, orphan_age_s=0)
            time.sleep(EVERY_S)


def _publish(store: Store, number: int) -> None:
    """Publish a version in which every element of every vector is `number`."""
    ngrams = distinct(trigrams(TEXT[None, :]))
    with store.writer(REF, schema=Schema(dim=DIM, vocab=VOCAB), build=f"live-{number}") as writer:
        writer.add(3, ngrams, np.full((len(ngrams), 3, DIM), number, np.float32))
        writer.publish(meta={"number": number})


def _await_publication(store: Store, publishing: Event, child: SpawnProcess) -> None:
    """Wait until the child has published once. Raises HmiError."""
    publishing.set()
    until = time.monotonic() + START_S
    while store.version(REF).meta["number"] == 1:
        if time.monotonic() > until or not child.is_alive():
            raise HmiError("the publishing process did not start: see what it wrote, then run it again")
        time.sleep(0.05)


def _while(publishing: Event, watch: _RefWatch, seconds: float) -> float:
    publishing.set()
    try:
        return watch.phase(seconds)
    finally:
        publishing.clear()
        time.sleep(2 * EVERY_S)  # wait for the last publication to end
