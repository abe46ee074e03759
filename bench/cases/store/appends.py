"""Rows of `bench store`: many small appends to one ref, compared with the first ones and with one build."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench.cases.store.data import VOCAB, Ngrams, RandomVectors, Texts
from bench.cases.store.deep import BATCH, BATCHES, look_ups, opening
from bench.harness.report import Figure, in_turn, median_ratio, seconds
from plot_store import Schema, Store
from plot_store.catalogue import records

Rows = NDArray[np.float32]
DIM = 64
BASE = {3: 6_000, 2: 3_000, 1: 1_000}
"""The n-grams of the build that is appended to, by order."""
OF_EACH = {3: 30, 2: 15, 1: 5}
"""The n-grams of an append, by order."""
SOME = 100
"""The number of first and of last appends whose times are compared."""


def measure(folder: Path, appends: int, runs: int) -> Iterator[Figure]:
    """Yield the times, files and bytes of `appends` appends to one ref. Then yield the times of readers."""
    draw, vectors, schema = np.random.default_rng(9), RandomVectors(DIM), Schema(dim=DIM, vocab=VOCAB)

    def drawn(counts: dict[int, int]) -> list[tuple[Ngrams, Rows]]:
        ngrams = [draw.integers(1, VOCAB, (count, order), np.uint32) for order, count in counts.items()]
        return [block for some in ngrams for block in vectors.blocks(some)]

    blocks, took = drawn(BASE), list[float]()
    with Store.open(folder, create=True) as store:

        def build(ref: str) -> None:
            with store.writer(ref, schema=schema, build=ref) as writer:
                for ngrams, rows in blocks:
                    writer.add(ngrams.shape[1], ngrams, rows)
                writer.publish()

        build("few")
        build("many")
        for _ in range(appends):
            more = drawn(OF_EACH)
            blocks += more
            entries = {ngrams.shape[1]: (ngrams, rows) for ngrams, rows in more}
            took.append(seconds(partial(store.append, "many", entries), time.perf_counter))
        store.append("few", entries)
        build("once")
        first, last, peer = median(took[:SOME]), median(took[-SOME:]), f"{appends:,} appends of 50 n-grams"
        yield Figure("append_first", 1e3 * first, "ms", runs=SOME, peer=f"the first {SOME} of {peer}")
        yield Figure("append_last_over_first", last / first, "x", 1.5, False, SOME, peer)
        yield Figure("append_mean_over_first", sum(took) / appends / first, "x", runs=appends, peer=peer)
        yield from _of_bytes(store, appends * sum(OF_EACH.values()), peer)
        stored = np.concatenate([ngrams for ngrams, _ in blocks if ngrams.shape[1] == 3])
        yield from _of_readers(store, stored, draw, runs)


def _of_bytes(store: Store, rows: int, peer: str) -> Iterator[Figure]:
    """Yield what was written since the build, none of it collected, and what the last version has."""
    *history, _ = store.history("many")
    written = {segment.name: segment.bytes for version in history for segment in version.segments}
    manifests = sum(len(records.dump(records.version_fields(version))) for version in history)
    once = store.version("once")
    yield Figure("append_manifests", manifests / 1e6, "MB", peer=peer)
    yield Figure("append_files_written", len(written), "files", peer=peer)
    yield Figure("append_written_a_row", sum(written.values()) / rows, "bytes", peer=peer)
    yield Figure(
        "append_segments", len(history[0].segments), "segments", peer=f"{len(once.segments)} of one build"
    )
    yield Figure("append_bytes_over_once", history[0].bytes / once.bytes, "x", peer="one build of the same")


def _of_readers(store: Store, stored: Ngrams, draw: np.random.Generator, runs: int) -> Iterator[Figure]:
    turns = in_turn({ref: partial(opening, store, ref) for ref in store.heads()}, runs)
    yield Figure("append_open", 1e3 * median(turns["many"]), "ms", runs=runs)
    yield Figure(
        "append_open_over_first", median_ratio(turns, "many", "few"), "x", 1.5, False, runs, "1 append"
    )
    peer = "one build of the same"
    yield Figure("append_open_over_once", median_ratio(turns, "many", "once"), "x", runs=runs, peer=peer)
    texts: dict[str, Texts] = {
        "hits": stored[draw.integers(0, len(stored), (BATCHES, BATCH // 3))]
        .reshape(-1, BATCH)
        .astype(np.int32),
        "misses": draw.integers(1, VOCAB, (BATCHES, BATCH), np.int32),
    }
    with store.reader("many") as many, store.reader("once") as once:
        for kind, batches in texts.items():
            turns = look_ups({"many": many, "once": once}, batches, runs)
            ratio = median_ratio(turns, "many", "once")
            yield Figure(f"append_lookup_{kind}_over_once", ratio, "x", runs=runs, peer=peer)
