"""Rows of `bench store`: a reader while another process publishes continuously, and alone."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.cases.store.data import LENGTH, Ngrams, distinct, trigrams
from bench.harness.report import Row
from hmi.errors import HmiError
from plot_store import Reader, Schema, Store

DIM, VOCAB = 384, 64
EVERY_S = 0.005
GC_EVERY = 100
"""Publications between two garbage collections."""
REF = "live"
START_S = 60.0


def measure(folder: Path, phase_s: float, phases: int) -> Iterator[Row]:
    """Yield the ratio of a read beside publications to a read alone, in alternating phases.

    A read asks which version is current, opens it if it is new, and looks up one text.
    """
    store = Store.open(folder, create=True)
    _publish(store, 1)
    context = multiprocessing.get_context("spawn")
    publishing, ended = context.Event(), context.Event()
    child = context.Process(target=publisher, args=(str(folder), publishing, ended), daemon=True)
    child.start()
    try:
        watch = _Watch(store)
        _await_publication(store, publishing, child)
        found = [(watch.phase(phase_s), _while(publishing, watch, phase_s)) for _ in range(phases)]
    finally:
        ended.set()
        child.join(START_S)
        if child.is_alive():
            child.kill()
    yield from _rows(found, watch)
    watch.close()
    store.close()


def _rows(found: list[tuple[Phase, Phase]], watch: _Watch) -> Iterator[Row]:
    runs, peer = len(found), "the same reader, nothing published meanwhile"
    clocks = {"": [b.cpu / i.cpu for i, b in found], "_wall": [b.wall / i.wall for i, b in found]}
    for name, ratios in clocks.items():
        value = statistics.median(ratios)
        yield Row(
            f"reader_publishing_over_idle{name}", round(value, 3), "x", 1.1, False, runs, peer, stretch=1.05
        )
    about = f"{watch.versions:,} versions seen in {watch.reads:,} reads"
    yield Row("torn_reads", watch.torn, "reads", 0, False, watch.reads, about, stretch=0)


@dataclass(frozen=True)
class Phase:
    """The median seconds of a read in one phase, in CPU time and in wall time."""

    cpu: float
    wall: float


@dataclass
class _Watch:
    """A reader that follows the ref and checks each answer against the version it must be of."""

    store: Store
    reads: int = 0
    torn: int = 0
    versions: int = 0
    tokens: NDArray[np.int32] = field(default_factory=lambda: some_text())

    def __post_init__(self) -> None:
        self._reader: Reader | None = None
        self._offsets = np.array([0, LENGTH], np.int64)
        self._out = np.empty((LENGTH, DIM), np.float32)
        self._unit = _sums(self.tokens)

    def phase(self, seconds: float) -> Phase:
        cpu: list[float] = []
        wall: list[float] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            begun, used = time.perf_counter(), time.thread_time()
            self._read()
            cpu.append(time.thread_time() - used)
            wall.append(time.perf_counter() - begun)
            self._judge()
        return Phase(statistics.median(cpu), statistics.median(wall))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _read(self) -> None:
        current = self.store.version(REF)
        if self._reader is None or self._reader.version.id != current.id:
            self.close()
            self._reader = self.store.reader(REF)
            self.versions += 1
        self._reader.lookup(self.tokens, self._offsets, out=self._out)

    def _judge(self) -> None:
        assert self._reader is not None
        self.reads += 1
        wanted = self._unit * np.float32(self._reader.version.meta["number"])
        self.torn += not np.allclose(self._out, wanted, rtol=1e-4)


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
    ngrams = _ngrams()
    with store.writer(REF, schema=Schema(dim=DIM, vocab=VOCAB), build=f"live-{number}") as writer:
        writer.add(3, ngrams, np.full((len(ngrams), 3, DIM), number, np.float32))
        writer.publish(meta={"number": number})


def _ngrams() -> Ngrams:
    return distinct(trigrams(some_text()[None, :]))


def some_text() -> NDArray[np.int32]:
    return np.random.default_rng(1).integers(1, VOCAB, LENGTH).astype(np.int32)


def _sums(tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return what a look-up gives if all vectors are one: the number of windows over each token."""
    sums = np.full((len(tokens), DIM), 3, np.float32)
    sums[[0, -1]] = 2
    return sums


def _await_publication(store: Store, publishing: Event, child: SpawnProcess) -> None:
    """Wait until the child has published once. Raises HmiError."""
    publishing.set()
    until = time.monotonic() + START_S
    while store.version(REF).meta["number"] == 1:
        if time.monotonic() > until or not child.is_alive():
            raise HmiError(
                "the publishing process did not start: see what it wrote, then run --only live again"
            )
        time.sleep(0.05)
    publishing.clear()


def _while(publishing: Event, watch: _Watch, seconds: float) -> Phase:
    publishing.set()
    try:
        return watch.phase(seconds)
    finally:
        publishing.clear()
        time.sleep(2 * EVERY_S)  # wait for the last publication to end
