"""Rows of `bench store`: look-ups in chains of many versions, and the cost of one more reader of a chain."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.cases.store.data import VOCAB, RandomVectors
from bench.harness.report import Figure, in_turn, median_ratio, rotating, seconds
from hmi.resident import resident
from plot_store import Reader, Schema, Store

DIM = 64
DEPTHS = (8, 16, 24)
OWN = 20
"""The root's n-grams, divided by those of each version above it."""
BATCH, BATCHES = 2_049, 40
READERS = 50
"""The number of readers that are opened. A figure is for one of them."""


def measure(folder: Path, keys: int, runs: int) -> Iterator[Figure]:
    """Yield the time of look-ups at each depth, divided by that at the least depth.

    Then yield the time and the memory of a reader. keys: the number of trigrams, and of bigrams, of the root.
    Look-ups find no n-gram of the other versions.
    """
    draw, vectors, schema = np.random.default_rng(5), RandomVectors(DIM), Schema(dim=DIM, vocab=VOCAB)
    texts: dict[str, NDArray[np.int32]] = {}
    with Store.open(folder, create=True) as store:
        for depth in range(max(DEPTHS)):
            count = max(1, keys if depth == 0 else keys // OWN)
            parent = _ref(depth - 1) if depth else None
            with store.writer(_ref(depth), schema=schema, build=_ref(depth), parent=parent) as writer:
                for order in (2, 3):
                    ngrams = np.unique(draw.integers(0, VOCAB, (count, order), np.uint32), axis=0)
                    for some, rows in vectors.blocks(ngrams):
                        writer.add(order, some, rows)
                writer.publish()
            if depth == 0:
                picked = ngrams[draw.integers(0, len(ngrams), (BATCHES, BATCH // 3))]
                texts["hits"] = picked.reshape(BATCHES, BATCH).astype(np.int32)
        texts["misses"] = draw.integers(0, VOCAB, (BATCHES, BATCH), np.int32)
        readers = {depth: store.reader(_ref(depth - 1)) for depth in DEPTHS}
        yield from _by_depth(readers, texts, runs)
        yield from _of_a_reader(store)
        for reader in readers.values():
            reader.close()


def _ref(depth: int) -> str:
    return f"v{depth}"


def opening(store: Store, ref: str) -> float:
    """Return the seconds that opening and closing a reader take."""
    return seconds(lambda: store.reader(ref).close(), time.perf_counter)


def look_ups(readers: Mapping[str, Reader], batches: NDArray[np.int32], runs: int) -> dict[str, list[float]]:
    """Return each reader's seconds for a look-up of BATCH tokens. batches: int32 [BATCHES, BATCH]."""
    offsets, out = np.array([0, BATCH], np.int64), np.empty((BATCH, DIM), np.float32)

    def look_up(reader: Reader, i: int) -> None:
        reader.lookup(batches[i], offsets, out=out)

    works = {
        name: partial(seconds, rotating(partial(look_up, reader), BATCHES))
        for name, reader in readers.items()
    }
    for work in works.values():
        for _ in range(BATCHES):  # a row is checked at its first look-up
            work()
    return in_turn(works, runs)


def _by_depth(
    readers: Mapping[int, Reader], texts: Mapping[str, NDArray[np.int32]], runs: int
) -> Iterator[Figure]:
    least, *deeper = readers
    named = {str(depth): reader for depth, reader in readers.items()}
    for kind, batches in texts.items():
        turns = look_ups(named, batches, runs)
        for depth in deeper:
            goal = 1.5 if depth == 2 * least else None
            ratio = median_ratio(turns, str(depth), str(least))
            peer = f"a chain of {least} versions"
            yield Figure(f"lookup_depth_{depth}_over_{least}_{kind}", ratio, "x", goal, False, runs, peer)


def _of_a_reader(store: Store) -> Iterator[Figure]:
    """Measure a reader of a version on the root while other readers have both mapped."""
    readers, before = list[Reader](), resident().anonymous
    took = seconds(lambda: readers.extend(store.reader(_ref(1)) for _ in range(READERS)))
    more = resident().anonymous - before
    peer = "the root's files are mapped already"
    yield Figure("reader_open", 1e3 * took / READERS, "ms", runs=READERS, peer=peer)
    yield Figure("reader_memory", more / READERS / 1024, "KiB", runs=READERS, peer=peer)
    for reader in readers:
        reader.close()
