"""Rows of `bench store`: building an index, writing a version, and its size."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from hmi_kernels.lookup import ops
from hmi_kernels.lookup.layout import pack_keys, roles

from bench.cases.store.data import VOCAB, Ngrams, Vectors
from bench.harness.report import Row, seconds
from plot_store import Schema, Store, VersionInfo

WRITE_AT_ONCE = 4 << 20
HUNDRED_MILLION = 10**8


@dataclass(frozen=True)
class Built:
    """One bulk build: its time, its bytes on disk, and the bytes written to make it."""

    seconds: float
    bytes: int
    written: int | None
    """None if the system does not count them."""
    version: VersionInfo


def index(trigrams: Ngrams, runs: int) -> Iterator[Row]:
    """Yield the keys indexed a second and the estimated cost of 10^8 keys.

    The estimate extrapolates from a tenth of the keys and all of them.
    """
    keys = pack_keys(trigrams)
    few = keys[: max(1, len(keys) // 10)]
    sizes, times = [], []
    for some in (few, keys):
        sizes.append(ops.build_index([some])[0].nbytes)
        times.append(statistics.median(seconds(partial(ops.build_index, [some])) for _ in range(runs)))
    yield Row("index_build", round(len(keys) / times[1]), "keys/s", 10e6, True, runs, stretch=15e6)
    more = HUNDRED_MILLION / (len(keys) - len(few))
    slope = f"by the slope from {len(few):,} to {len(keys):,} keys"
    gigabytes = (sizes[1] - sizes[0]) * more / 1e9
    yield Row("index_at_1e8_keys", round(gigabytes, 3), "GB", 1.1, False, runs, slope, stretch=1.0)
    yield Row("index_build_at_1e8_keys", round((times[1] - times[0]) * more, 1), "s", runs=runs, peer=slope)


def bulk(folder: Path, trigrams: Ngrams, dim: int, runs: int) -> Iterator[Row]:
    """Yield the space of a bulk build, and its time over that of writing as many bytes to one file."""
    schema = Schema(dim=dim, vocab=VOCAB)
    folder.mkdir(parents=True)
    suffix, built = f"d{dim}", build_rows(folder / "build", trigrams, schema)
    flat: list[float] = []
    ours: list[float] = []
    for i in range(runs):
        if i % 2:
            flat.append(flat_write(folder / "flat", built.bytes))
        built = build_rows(folder / "build", trigrams, schema)
        ours.append(built.seconds)
        if not i % 2:
            flat.append(flat_write(folder / "flat", built.bytes))
    shutil.rmtree(folder)
    peer = "one flat file of the same bytes, written and synced; wall time"
    value = round(statistics.median(a / b for a, b in zip(ours, flat, strict=True)), 3)
    yield Row(f"bulk_build_over_flat_write_{suffix}", value, "x", 1.3, False, runs, peer, stretch=1.15)
    if built.written is None:
        yield Row(
            f"bulk_build_bytes_written_{suffix}",
            None,
            "x",
            why="this system does not count a process's writes",
        )
    else:
        value = round(built.written / built.bytes, 4)
        yield Row(
            f"bulk_build_bytes_written_{suffix}", value, "x", 1.05, False, runs, "the version's own bytes"
        )
    bare = len(trigrams) * roles(3, 3) * (dim * np.dtype(np.int8).itemsize + 4)
    yield Row(
        f"space_over_vectors_and_scales_{suffix}",
        round(built.bytes / bare, 4),
        "x",
        1.06,
        False,
        1,
        "int8 vectors and fp32 scales alone; keys, index, checks and padding are ours",
        stretch=1.03,
    )


def build_rows(folder: Path, trigrams: Ngrams, schema: Schema) -> Built:
    """Build one version of these trigrams in a new store, then delete it.

    It is timed from the first row to the publication.
    """
    blocks = list(Vectors(schema.dim).blocks(trigrams))
    try:
        with Store.open(folder, create=True) as store:
            before, begun = _written(), time.perf_counter()
            with store.writer("bulk", schema=schema, build="bulk") as writer:
                for some, numbers in blocks:
                    writer.add(3, some, numbers)
                version = writer.publish()
            took, after = time.perf_counter() - begun, _written()
            written = after - before if before is not None and after is not None else None
            return Built(took, version.bytes, written, version)
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
