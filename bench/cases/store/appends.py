"""Rows of `bench store`: many small appends to one ref, beside the first ones and beside a single build."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench.cases.store.data import VOCAB, RandomVectors
from bench.cases.store.deep import BATCH, BATCHES, look_ups
from bench.harness.report import Figure, in_turn, median_ratio, seconds
from plot_store import Schema, Store
from plot_store.catalogue import records
from plot_store.writing.append import Entries

DIM = 64
OF_EACH = {3: 30, 2: 15, 1: 5}
"""The n-grams of an append by order."""
SOME = 100
"""Appends at either end whose time is compared."""


def measure(folder: Path, appends: int, runs: int) -> Iterator[Figure]:
    """Yield times, files and bytes of so many appends to one ref, and of what they leave."""
    draw, vectors, schema = np.random.default_rng(9), RandomVectors(DIM), Schema(dim=DIM, vocab=VOCAB)
    took: list[float] = []
    added: list[Entries] = []
    with Store.open(folder, create=True) as store:
        for ref in ("few", "many"):
            store.writer(ref, schema=schema, build=ref).publish()
        for _ in range(appends):
            added.append(
                {
                    order: next(vectors.blocks(draw.integers(1, VOCAB, (count, order), np.uint32)))
                    for order, count in OF_EACH.items()
                }
            )
            took.append(seconds(partial(store.append, "many", added[-1]), time.perf_counter))
        store.append("few", added[0])
        with store.writer("once", schema=schema, build="once") as writer:
            for entries in added:
                for order, (ngrams, rows) in entries.items():
                    writer.add(order, ngrams, rows)
            writer.publish()
        first, last = median(took[:SOME]), median(took[-SOME:])
        peer = f"{appends:,} appends of {sum(OF_EACH.values())} n-grams"
        yield Figure("append_first", 1e3 * first, "ms", runs=SOME, peer=f"the first {SOME} of {peer}")
        yield Figure("append_last_over_first", last / first, "x", 1.5, False, SOME, peer)
        yield Figure("append_mean_over_first", sum(took) / appends / first, "x", None, False, appends, peer)
        yield from _of_bytes(store, appends * sum(OF_EACH.values()), peer)
        yield from _of_readers(store, np.concatenate([entries[3][0] for entries in added]), draw, runs)


def _of_bytes(store: Store, rows: int, peer: str) -> Iterator[Figure]:
    """What was written, which nothing has collected yet, and what is left of it."""
    history = store.history("many")
    written = {segment.name: segment.bytes for version in history for segment in version.segments}
    manifests = sum(len(records.dump(records.version_fields(version))) for version in history)
    once = store.version("once")
    yield Figure("append_manifests", manifests / 1e6, "MB", peer=peer)
    yield Figure("append_files_written", len(written), "files", peer=peer)
    yield Figure("append_written_a_row", sum(written.values()) / rows, "bytes", peer=peer)
    yield Figure(
        "append_segments", len(history[0].segments), "segments", peer=f"one build: {len(once.segments)}"
    )
    yield Figure("append_bytes_over_once", history[0].bytes / once.bytes, "x", peer="one build of the same")


def _of_readers(
    store: Store, stored: NDArray[np.uint32], draw: np.random.Generator, runs: int
) -> Iterator[Figure]:
    opened = {
        ref: partial(seconds, lambda ref=ref: store.reader(ref).close(), time.perf_counter)
        for ref in store.refs()
    }
    turns = in_turn(opened, runs)
    yield Figure(
        "append_open_once", 1e3 * median(turns["once"]), "ms", runs=runs, peer="one build of the same"
    )
    yield Figure(
        "append_open_over_first", median_ratio(turns, "many", "few"), "x", 1.5, False, runs, "1 append"
    )
    texts = {
        "hits": stored[draw.integers(0, len(stored), (BATCHES, BATCH // 3))].reshape(BATCHES, BATCH),
        "misses": draw.integers(1, VOCAB, (BATCHES, BATCH)),
    }
    with store.reader("many") as many, store.reader("once") as once:
        for kind, batches in texts.items():
            turns = look_ups({"many": many, "once": once}, batches.astype(np.int32), runs)
            ratio = median_ratio(turns, "many", "once")
            yield Figure(
                f"append_lookup_{kind}_over_once", ratio, "x", None, False, runs, "one build of the same"
            )
