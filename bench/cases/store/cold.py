"""Rows of `bench store`: a look-up of rows on the disk, against reading them by default page faults."""

from __future__ import annotations

import errno
import gc
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from hmi_kernels.lookup.gather import gather

from bench.cases.store.chain import BATCH, OFFSETS, REFS, Chain
from bench.harness.report import Row, seconds

PAGE = 4096
PROBES = 16
STILL_THERE = 0.1
"""If more than this fraction of the probed pages is in memory, the system has not dropped the file."""


def measure(chain: Chain, runs: int) -> Iterator[Row]:
    """Time three ways to read a batch from the disk, with its pages dropped before each.

    This closes the chain's readers for good.
    """
    chain.unmap()
    suffix, segments = f"d{chain.dim}", chain.folder / "segments"
    name, peer = (
        f"default_faults_over_cold_lookup_{suffix}",
        f"a default memory map, {BATCH} rows gathered; wall time",
    )
    why = drop(segments)
    if why is not None:
        yield Row(name, None, "x", 10.0, why=why, stretch=20.0)
        return
    batches = np.random.default_rng(5).permutation(len(chain.tables.batches))[:runs]
    times: dict[str, list[float]] = {"default": [], "prefetched": [], "bare": []}
    for turn, batch in enumerate(batches):
        ways = list(times)[turn % 3 :] + list(times)[: turn % 3]
        for way in ways:
            times[way].append(
                _default(chain, int(batch)) if way == "default" else _lookup(chain, int(batch), way)
            )
    median = {way: statistics.median(took) for way, took in times.items()}
    ratios = [a / b for a, b in zip(times["default"], times["prefetched"], strict=True)]
    value = round(statistics.median(ratios), 2)
    yield Row(name, value, "x", 10.0, True, len(batches), peer, stretch=20.0)
    for way, title in (
        ("default", "cold_default_faults"),
        ("prefetched", "cold_lookup"),
        ("bare", "cold_unasked"),
    ):
        about = "the look-up without prefetch" if way == "bare" else None
        yield Row(f"{title}_{suffix}", round(1e3 * median[way], 2), "ms", runs=len(batches), peer=about)


def drop(segments: Path) -> str | None:
    """Drop the pages of a folder's files from memory, or return why that failed.

    No process may have the files mapped.
    """
    gc.collect()  # a file stays mapped as long as an array of the mapping lives
    kept = []
    for path in segments.iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)  # dirty pages cannot be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            kept += [in_memory(fd, at) for at in _probes(os.fstat(fd).st_size)]
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                return "this file system does not say what is in memory: name a folder on a disk with --data"
            raise
        finally:
            os.close(fd)
    if np.mean(kept) > STILL_THERE:
        return "the system keeps the files in memory: name a folder on a disk with --data"
    return None


def in_memory(fd: int, at: int) -> bool:
    """Return whether this byte of a file is in memory. Raises OSError if the system does not tell."""
    try:
        return os.preadv(fd, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


def _probes(size: int) -> range:
    return range(0, max(1, size - PAGE), max(PAGE, size // PROBES))


def _default(chain: Chain, batch: int) -> float:
    drop(chain.folder / "segments")
    rows = chain.rows()
    addresses = rows.addresses(chain.tables.rows_of[batch])
    out = np.empty((BATCH, rows.vectors_bytes), np.uint8)
    return seconds(lambda: gather(addresses, out), time.perf_counter)


def _lookup(chain: Chain, batch: int, way: str) -> float:
    drop(chain.folder / "segments")
    tokens = chain.tables.batches[batch]
    out = np.empty((BATCH, chain.dim), np.float32)
    with chain.store.reader(REFS[0]) as reader:

        def read() -> None:
            if way == "prefetched":
                reader.prefetch(tokens, OFFSETS)
            reader.lookup(tokens, OFFSETS, out=out)

        return seconds(read, time.perf_counter)
