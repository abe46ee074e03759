"""Rows of `bench store`: many domains of one root, open in one process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from bench.cases.store.data import VOCAB, RandomVectors
from bench.cases.store.deep import BATCH, BATCHES, look_ups, opening
from bench.harness.report import Figure, in_turn, median_ratio, seconds
from hmi.resident import resident
from plot_store import Schema, Store

DIM = 64
ROOT = {3: 20_000, 2: 10_000, 1: 2_000}
"""The root's n-grams, by order."""
OF_EACH = {3: 200, 2: 100, 1: 50}
"""A domain's n-grams, by order."""
SOME = 100
"""The number of first and of last domains whose times are compared."""


def measure(folder: Path, domains: int, runs: int) -> Iterator[Figure]:
    """Yield the mappings and memory of many domains, and the times of publishing, opening and look-ups."""
    draw, vectors, schema = np.random.default_rng(7), RandomVectors(DIM), Schema(dim=DIM, vocab=VOCAB)
    published, opened = list[float](), list[float]()
    with Store.open(folder, create=True) as store, ExitStack() as readers:

        def build(ref: str, counts: dict[int, int]) -> None:
            with store.writer(ref, schema=schema, build="b") as writer:
                for order, count in counts.items():
                    for ngrams, rows in vectors.blocks(draw.integers(1, VOCAB, (count, order), np.uint32)):
                        writer.add(order, ngrams, rows)
                writer.publish()

        build("root", ROOT)
        refs = [f"root/d{number}" for number in range(domains)]
        for ref in refs:
            published.append(seconds(partial(build, ref, OF_EACH), time.perf_counter))
        before = resident().anonymous
        for ref in refs:
            opened.append(seconds(lambda: readers.enter_context(store.reader(ref)), time.perf_counter))  # noqa: B023
        peer = f"{domains:,} domains"
        yield Figure("domains_mappings", _mappings(folder), "mappings", 2 * domains, False, peer=peer)
        yield Figure(
            "domains_memory_each", (resident().anonymous - before) / domains / 1024, "KiB", peer=peer
        )
        for name, took in (("publish", published), ("open", opened)):
            ratio = median(took[-SOME:]) / median(took[:SOME])
            yield Figure(f"domains_{name}_last_over_first", ratio, "x", 1.5, False, SOME, peer)
        alone = Store.open(folder.with_name("alone"), create=True)
        readers.enter_context(alone)
        store.export(refs[0], folder.with_name("one.plot"))
        alone.import_archive(folder.with_name("one.plot"))
        pair = {"among": store.reader(refs[0]), "alone": alone.reader(refs[0])}
        batches = draw.integers(1, VOCAB, (BATCHES, BATCH), np.int32)
        turns = look_ups(pair, batches, runs)
        yield Figure(
            "domains_lookup_over_alone",
            median_ratio(turns, "among", "alone"),
            "x",
            1.1,
            False,
            runs,
            "the same domain in a store of its own",
        )
        turns = in_turn({ref: partial(opening, store, ref) for ref in (refs[0], refs[-1])}, runs)
        yield Figure("domains_reopen", 1e3 * median(turns[refs[0]]), "ms", runs=runs, peer=peer)
        for reader in pair.values():
            reader.close()


def _mappings(folder: Path) -> int:
    """Return how many mappings of the store's files this process has."""
    with open("/proc/self/maps") as file:
        return sum(str(folder / "segments") in line for line in file)
