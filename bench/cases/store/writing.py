"""Rows of `bench store`: building an index, writing a version, its size, and the syncs of publishing it."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hmi_kernels.lookup import ops
from hmi_kernels.lookup.layout import pack_keys, roles

from bench.cases.store.data import VOCAB, Ngrams, RandomVectors
from bench.harness.report import Figure, in_turn, median_ratio, seconds
from plot_store import Schema, Store
from plot_store.catalogue.catalogue import Catalogue

WRITE_AT_ONCE = 4 << 20
HUNDRED_MILLION = 10**8
SMALL = 256
"""N-grams of a small update."""
UPDATES = 5


@dataclass(frozen=True)
class BulkBuild:
    """One bulk build: its time, its bytes on disk, and the bytes written to make it."""

    seconds: float
    bytes: int
    written: int | None
    """None if the system does not count them."""


def index(trigrams: Ngrams, runs: int) -> Iterator[Figure]:
    """Yield the keys indexed a second and the estimated cost of 10^8 keys.

    The estimate extrapolates from a tenth of the keys and all of them.
    """
    keys = pack_keys(trigrams)
    few = keys[: max(1, len(keys) // 10)]
    builds = {"few": partial(ops.build_index, [few]), "all": partial(ops.build_index, [keys])}
    size = {name: build()[0].nbytes for name, build in builds.items()}
    times = in_turn({name: partial(seconds, build) for name, build in builds.items()}, runs)
    took = {name: statistics.median(values) for name, values in times.items()}
    yield Figure("index_build", round(len(keys) / took["all"]), "keys/s", 10e6, True, runs, stretch=15e6)
    more = HUNDRED_MILLION / (len(keys) - len(few))
    slope = f"by the slope from {len(few):,} to {len(keys):,} keys"
    gigabytes = (size["all"] - size["few"]) * more / 1e9
    yield Figure("index_at_1e8_keys", gigabytes, "GB", 1.1, False, runs, slope, stretch=1.0)
    yield Figure("index_build_at_1e8_keys", (took["all"] - took["few"]) * more, "s", runs=runs, peer=slope)


def bulk(folder: Path, trigrams: Ngrams, dim: int, runs: int) -> Iterator[Figure]:
    """Yield the space of a bulk build, and its time over that of writing as many bytes to one file."""
    folder.mkdir(parents=True)
    built = build_rows(folder / "build", trigrams, dim)
    works = {
        "ours": lambda: build_rows(folder / "build", trigrams, dim).seconds,
        "flat": lambda: flat_write(folder / "flat", built.bytes),
    }
    ratio = median_ratio(in_turn(works, runs), "ours", "flat")
    shutil.rmtree(folder)
    peer = "one flat file of the same bytes, written and synced; wall time"
    yield Figure(f"bulk_build_over_flat_write_d{dim}", ratio, "x", 1.3, False, runs, peer, stretch=1.15)
    written = None if built.written is None else built.written / built.bytes
    why = "this system does not count a process's writes" if written is None else None
    peer = "the version's own bytes"
    yield Figure(f"bulk_build_bytes_written_d{dim}", written, "x", 1.05, False, 1, peer, why)
    space = built.bytes / (len(trigrams) * roles(3, 3) * (dim * np.dtype(np.int8).itemsize + 4))
    peer = "int8 vectors and fp32 scales alone; keys, index, checks and padding are ours"
    yield Figure(f"space_over_vectors_and_scales_d{dim}", space, "x", 1.06, False, 1, peer, stretch=1.03)


def build_rows(folder: Path, trigrams: Ngrams, dim: int) -> BulkBuild:
    """Build one version of these trigrams in a new store, then delete it.

    It is timed from the first row to the publication.
    """
    blocks = list(RandomVectors(dim).blocks(trigrams))
    try:
        with Store.open(folder, create=True) as store:
            before, begun = _written(), time.perf_counter()
            with store.writer("bulk", schema=Schema(dim=dim, vocab=VOCAB), build="bulk") as writer:
                for some, numbers in blocks:
                    writer.add(3, some, numbers)
                version = writer.publish()
            took, after = time.perf_counter() - begun, _written()
            written = after - before if before is not None and after is not None else None
            return BulkBuild(took, version.bytes, written)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def flat_write(path: Path, size: int) -> float:
    """Write `size` bytes to a new file in large pieces, sync it, and return the wall seconds."""
    piece = np.random.default_rng(0).integers(0, 256, WRITE_AT_ONCE, np.uint8).data
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for at in range(0, size, WRITE_AT_ONCE):
            file.write(piece[: size - at])
        os.fsync(file.fileno())
    took = time.perf_counter() - begun
    path.unlink()
    return took


def _written() -> int | None:
    """Return the bytes that this process has sent to a disk, or None if the system does not count them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), None)


def publications(folder: Path, dim: int = 384) -> Iterator[Figure]:
    """Yield the syncs of publishing a small update, sealed beforehand and not; of UPDATES the most."""
    most = {"after_seal": 0, "without_seal": 0}
    vectors, schema = RandomVectors(dim), Schema(dim=dim, vocab=VOCAB)
    draw = np.random.default_rng(0)
    with Store.open(folder, create=True) as store:
        for update in range(UPDATES):
            for name in most:
                ngrams = draw.integers(1, VOCAB, (SMALL, 3)).astype(np.uint32)
                with store.writer("small", schema=schema, build=f"{name}-{update}") as writer:
                    for some, numbers in vectors.blocks(ngrams):
                        writer.add(3, some, numbers)
                    if name == "after_seal":
                        writer.seal()
                    with _counted_syncs() as counted:
                        writer.publish()
                most[name] = max(most[name], len(counted))
    peer = "fsyncs, and LMDB commits as one each"
    yield Figure("publish_syncs_after_seal", most["after_seal"], "syncs", 2, False, UPDATES, peer, stretch=1)
    yield Figure("publish_syncs_without_seal", most["without_seal"], "syncs", runs=UPDATES, peer=peer)


@contextmanager
def _counted_syncs() -> Iterator[list[str]]:
    """Yield a list that gets an entry for each fsync and fdatasync of this process, and each LMDB commit.

    A commit is one fdatasync, followed by a synchronous write of the 120 bytes that make it valid.
    """
    found: list[str] = []

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            found.append(function.__name__)
            return function(*args, **kwargs)

        return counted

    kept = os.fsync, os.fdatasync, Catalogue.write
    os.fsync, os.fdatasync = counting(os.fsync), counting(os.fdatasync)
    Catalogue.write = counting(Catalogue.write)  # type: ignore[method-assign]
    try:
        yield found
    finally:
        os.fsync, os.fdatasync, Catalogue.write = kept  # type: ignore[method-assign]
