"""Rows of `bench store`: pushes, pulls and collections of a remote, in a folder or at another place."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from bench.cases.store.data import LENGTH, VOCAB, RandomVectors
from bench.harness.report import Figure, seconds
from plot_store import Fetching, NotFound, Remote, Schema, Store
from plot_store.remote import format as fmt
from plot_store.remote.objects import open_objects

DIM = 384
ROOT = {3: 20_000, 2: 10_000, 1: 2_000}
"""The n-grams of the root, by order."""
DOMAINS = {2_000: {3: 1_200, 2: 700, 1: 100}, 100_000: {3: 70_000, 2: 29_000, 1: 1_000}}
"""The n-grams of domains in all, and by order."""
SMALL = {3: 12, 2: 6, 1: 2}
"""The n-grams of each of the many domains that are collected, and of their root."""
SMALL_DIM = 16


def measure(folder: Path, url: str | None, keys: int, domains: int, runs: int) -> Iterator[Figure]:
    """Yield the times from a cold domain to its first text, and of a collection beside many domains.

    url: the place; None: a folder. keys: the greatest number of n-grams of a domain.
    """
    place = str(folder / "remote") if url is None else f"{url.rstrip('/')}/{uuid.uuid4().hex}"
    yield from _first_texts(
        folder, place, {count: made for count, made in DOMAINS.items() if count <= keys}, runs
    )
    yield from _collections(folder, f"{place}-many", domains)


def _first_texts(folder: Path, place: str, domains: dict[int, dict[int, int]], runs: int) -> Iterator[Figure]:
    tokens = np.random.default_rng(3).integers(1, VOCAB, LENGTH).astype(np.int32)
    with Store.open(folder / "from", create=True) as store:
        _publish(store, "r", ROOT, DIM)
        for count, counts in domains.items():
            _publish(store, f"r/{count}", counts, DIM)
            pushed = seconds(partial(store.push, f"r/{count}", place), time.perf_counter)
            yield Figure("push_domain", pushed, "s", peer=f"{count:,} n-grams")
        sizes = {ref: version.bytes for ref, version in store.refs().items()}

    def first_text(reads: Fetching, ref: str) -> None:
        with reads.reader(ref) as reader:
            reader.lookup(tokens, np.array([0, LENGTH], np.int64))

    for count in domains:
        ref, cold, beside = f"r/{count}", list[float](), list[float]()
        for _ in range(runs):
            with Store.open(folder / uuid.uuid4().hex, create=True) as store:
                reads = store.fetching(place)
                with suppress(NotFound):
                    reads.reader("r/none")  # the library connects
                cold.append(seconds(partial(first_text, reads, ref), time.perf_counter))
                store.delete(ref)
                store.gc(orphan_age_s=0)
                beside.append(seconds(partial(first_text, reads, ref), time.perf_counter))
        size, root = sizes[ref] / 1e6, sizes["r"] / 1e6
        peer = f"{count:,} n-grams, {size:.1f} MB"
        yield Figure("first_text", median(beside), "s", runs=runs, peer=peer)
        yield Figure("first_text_and_root", median(cold), "s", runs=runs, peer=f"{peer} and {root:.1f} MB")


def _collections(folder: Path, place: str, domains: int) -> Iterator[Figure]:
    with Store.open(folder / "many", create=True) as store:
        _publish(store, "r", SMALL, SMALL_DIM)
        for number in range(domains):
            _publish(store, f"r/{number}", SMALL, SMALL_DIM, seed=number)
        began = time.perf_counter()
        for number in range(domains):
            store.push(f"r/{number}", place)
        each = (time.perf_counter() - began) / domains
        for number in range(domains // 10):
            store.append(
                f"r/{number}",
                {1: (np.array([[VOCAB - 1]], np.uint32), np.ones((1, 3, SMALL_DIM), np.float32))},
            )
            store.push(f"r/{number}", place)
    peer = f"{domains:,} domains"
    yield Figure("push_small_domain", 1e3 * each, "ms", runs=domains, peer=peer)
    objects = open_objects(place)
    listed = seconds(
        lambda: [list(objects.listed(below)) for below in (fmt.REFS, fmt.VERSIONS, fmt.SEGMENTS)],
        time.perf_counter,
    )
    yield Figure("collect_listing", listed, "s", peer=peer)
    for number in range(domains // 10):
        Remote(place).delete(f"r/{number}")
    began = time.perf_counter()
    report = Remote(place).collect(age_s=0)
    took = time.perf_counter() - began
    yield Figure("collect", took, "s", peer=f"{peer}, {len(report.objects):,} objects went")
    yield Figure(
        "collect_again", seconds(lambda: Remote(place).collect(age_s=0), time.perf_counter), "s", peer=peer
    )


def _publish(store: Store, ref: str, counts: dict[int, int], dim: int, seed: int = 1) -> None:
    draw, vectors = np.random.default_rng(seed), RandomVectors(dim)
    with store.writer(ref, schema=Schema(dim=dim, vocab=VOCAB), build="b") as writer:
        for order, count in counts.items():
            ngrams = np.unique(draw.integers(1, VOCAB, (count, order), np.uint32), axis=0)
            for some, rows in vectors.blocks(ngrams):
                writer.add(order, some, rows)
        writer.publish()
