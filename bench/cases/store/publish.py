"""Rows of `bench store`: the time of a publication beside that of an fsync, and its number of syncs."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.cases.store.data import VOCAB, Vectors
from bench.harness.report import Row, seconds
from plot_store import Schema, Store
from plot_store.catalogue.catalogue import Catalogue

ROWS = 256
"""N-grams of a small update."""
DIM = 384


class Counter:
    """Counts syncs: this process's fsync and fdatasync calls, and each LMDB commit as one.

    A commit is one fdatasync, followed by a synchronous write of the 120 bytes that make it valid.
    """

    def __init__(self) -> None:
        self.count = 0

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return function(*args, **kwargs)

        return counted


@contextmanager
def syncs() -> Iterator[Counter]:
    """Count syncs while the context is open. Only one thread may publish then."""
    counter = Counter()
    kept = os.fsync, os.fdatasync, Catalogue.write
    os.fsync, os.fdatasync = counter.counting(os.fsync), counter.counting(os.fdatasync)
    Catalogue.write = counter.counting(Catalogue.write)  # type: ignore[method-assign]
    try:
        yield counter
    finally:
        os.fsync, os.fdatasync, Catalogue.write = kept  # type: ignore[method-assign]


def measure(folder: Path, runs: int) -> Iterator[Row]:
    """Time the publication of a small update, sealed beforehand and not, beside an fsync of 4 KiB.

    Times are wall times.
    """
    folder.mkdir(parents=True)
    ours: dict[bool, list[float]] = {True: [], False: []}
    waits: dict[bool, int] = {True: 0, False: 0}
    plain: list[float] = []
    vectors = Vectors(DIM)
    with (
        Store.open(folder / "store", create=True) as store,
        (folder / "probe").open("wb", buffering=0) as probe,
    ):
        for i in range(runs):
            for sealed in (True, False):
                took, counted = _publish_once(store, vectors, i, sealed)
                ours[sealed].append(took)
                waits[sealed] = max(waits[sealed], counted)
                plain.append(seconds(lambda: _sync_once(probe.fileno()), time.perf_counter))
    one = statistics.median(plain)
    for sealed, name in ((True, "after_seal"), (False, "without_seal")):
        goal = (2.0, 1.0) if sealed else (None, None)
        peer = "fsyncs, and LMDB commits as one each"
        yield Row(
            f"publish_syncs_{name}", waits[sealed], "syncs", goal[0], False, runs, peer, stretch=goal[1]
        )
        ratio = statistics.median(ours[sealed]) / one
        yield Row(
            f"publish_time_{name}", round(ratio, 2), "x", runs=runs, peer="one fsync of 4 KiB; wall time"
        )


def _publish_once(store: Store, vectors: Vectors, number: int, seal: bool) -> tuple[float, int]:
    """Return (wall seconds of `publish` alone, its number of syncs)."""
    ngrams = np.random.default_rng((number, seal)).integers(1, VOCAB, (ROWS, 3)).astype(np.uint32)
    schema = Schema(dim=DIM, vocab=VOCAB)
    with store.writer("small", schema=schema, build=f"publish-{number}-{seal}") as writer:
        for some, numbers in vectors.blocks(ngrams):
            writer.add(3, some, numbers)
        if seal:
            writer.seal()
        with syncs() as counter:
            return seconds(writer.publish, time.perf_counter), counter.count


def _sync_once(fd: int) -> None:
    os.write(fd, bytes(4096))
    os.fsync(fd)
