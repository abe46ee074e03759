"""The store that is measured: a large root, a chain of three branches on it, and its rows' addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from hmi_kernels.lookup.cpu_rows import gather
from hmi_kernels.lookup.layout import DTYPES, Bytes, header_bytes, pack_keys, roles, scales_at, stride
from numpy.typing import NDArray

from bench.cases.store.data import (
    LENGTH,
    VOCAB,
    Ngrams,
    RandomVectors,
    SourceTexts,
    Texts,
    bigrams,
    distinct,
    trigrams,
)
from plot_store import Reader, Schema, Store, VersionInfo
from plot_store.ground.nouns import Place
from plot_store.segments import format as fmt

TEXTS_AT_ONCE = 16
BATCH = TEXTS_AT_ONCE * LENGTH
"""Tokens of a batch, and rows that it needs if all of its trigrams are stored."""
MOST_BATCHES = 256
ROOT_BIGRAMS, MOST_OF_A_BRANCH = 300_000, 200_000
OFFSETS = np.arange(TEXTS_AT_ONCE + 1, dtype=np.int64) * LENGTH
REFS = ("bench", "bench/a", "bench/a/b", "bench/a/b/c")
SCALES = 4 * roles(3, 3)
"""Bytes of a trigram row's scales."""


@dataclass(frozen=True)
class Tables:
    """The n-grams of each version of the chain, the root first: by order, in the order of writing."""

    versions: tuple[dict[int, Ngrams], ...]
    batches: NDArray[np.int32]
    """Texts whose trigrams are all in the root, [batches, BATCH]."""
    natural_batches: NDArray[np.int32]
    """Held-out text of the same kind as the deepest branch's, [batches, BATCH]."""

    def bytes(self, dim: int) -> int:
        """Return the bytes of all rows, stored as int8."""
        every = [(order, len(ngrams)) for version in self.versions for order, ngrams in version.items()]
        return sum(count * stride(3, order, dim, DTYPES["int8"]) for order, count in every)

    @property
    def root(self) -> Ngrams:
        """Return the root's trigrams."""
        return self.versions[0][3]

    @cached_property
    def rows_of(self) -> NDArray[np.int64]:
        """Return the row of the root's trigram that each token of `batches` needs, int64 [batches, BATCH].

        Rows are numbered in the order of writing.
        """
        stored = pack_keys(self.root)[:, 0]
        order = np.argsort(stored)
        wanted = pack_keys(trigrams(self.batches.reshape(-1, LENGTH)))[:, 0]
        found = order[np.searchsorted(stored, wanted, sorter=order)]
        assert (stored[found] == wanted).all()
        rows: NDArray[np.int64] = found.reshape(-1, BATCH)
        return rows


def choose(sample: SourceTexts, seed: int = 3) -> Tables:
    """Return tables with all trigrams of the root's text and the more frequent of the other n-grams."""
    keys = distinct(trigrams(sample.parts[0]))
    root = {
        1: np.arange(1, VOCAB, dtype=np.uint32)[:, None],
        2: distinct(bigrams(sample.parts[0]), max(ROOT_BIGRAMS, len(keys) // 8)),
        3: keys,
    }
    most = min(MOST_OF_A_BRANCH, max(1000, len(keys) // 10))
    branches = [
        {2: distinct(bigrams(p), most // 2), 3: distinct(trigrams(p), most)} for p in sample.parts[1:]
    ]
    hits = np.random.default_rng(seed).permutation(sample.parts[0])
    return Tables((root, *branches), _batches(hits), _batches(sample.unseen))


def _batches(texts: Texts) -> NDArray[np.int32]:
    count = min(MOST_BATCHES, len(texts) // TEXTS_AT_ONCE)
    assert count >= 2
    return texts[: count * TEXTS_AT_ONCE].reshape(count, BATCH)


class Chain:
    """The chain in its own store, with a reader of the root alone and one of all four versions."""

    def __init__(self, folder: Path, tables: Tables, dim: int) -> None:
        self.tables, self.dim, self.folder = tables, dim, folder
        self.store = Store.open(folder, create=True)
        vectors, schema = RandomVectors(dim), Schema(dim=dim, vocab=VOCAB)
        for ref, ngrams in zip(REFS, tables.versions, strict=True):
            with self.store.writer(ref, schema=schema, build=f"bench-{ref.replace('/', '-')}") as writer:
                for order, wanted in ngrams.items():
                    for some, numbers in vectors.blocks(wanted):
                        writer.add(order, some, numbers)
                writer.publish()
        self.shallow, self.deep = self.store.reader(REFS[0]), self.store.reader(REFS[-1])

    def unmap(self) -> None:
        """Unmap every file, so that the system can drop the pages."""
        self.shallow.close()
        self.deep.close()

    def close(self) -> None:
        self.unmap()
        self.store.close()

    def rows(self) -> FlatRows:
        """Return the root's trigram rows, mapped anew."""
        version = self.store.version(REFS[0])
        return FlatRows(self.folder, version, self.store._env().places(version.segments))


class FlatRows:
    """A version's trigram rows as plain memory: its files mapped the default way, without an index."""

    def __init__(self, folder: Path, version: VersionInfo, places: Mapping[str, Place]) -> None:
        self.maps = []
        for info in version.segments:
            if info.kind == "rows" and info.order == 3:
                place = places[info.name]
                path = folder / "segments" / place.file
                with path.open("rb") as file:
                    file.seek(place.at)
                    found = fmt.parse(file.read(fmt.HEADER_BYTES), info.name)
                shape = (found.count, found.stride)
                self.maps.append(np.memmap(path, np.uint8, "r", place.at + found.data_at, shape))
        self._starts = np.cumsum([0, *(len(rows) for rows in self.maps)])
        self._stride = self.maps[0].shape[1]
        self._bases = np.array([rows.ctypes.data for rows in self.maps], np.int64)
        self.vectors_bytes = roles(3, 3) * version.schema.dim
        self._vectors_at = header_bytes(3, 3)

    def addresses(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the addresses of rows' vectors. `numbers` count rows in the order of writing."""
        part = np.searchsorted(self._starts, numbers, "right") - 1
        return np.asarray(
            self._bases[part] + (numbers - self._starts[part]) * self._stride + self._vectors_at
        )

    def plain(self, numbers: NDArray[np.int64]) -> Bytes:
        """Return rows' scales and vectors alone, uint8 [m, SCALES + bytes].

        This is what a store without index, keys and checks would hold.
        """
        rows = np.empty((len(numbers), SCALES + self.vectors_bytes), np.uint8)
        vectors = np.empty((len(numbers), self.vectors_bytes), np.uint8)
        gather(self.addresses(numbers), vectors)
        scales = np.empty((len(numbers), SCALES), np.uint8)
        gather(self.addresses(numbers) - self._vectors_at + scales_at(3), scales)
        rows[:, :SCALES], rows[:, SCALES:] = scales, vectors
        return rows


def summed(rows: Bytes, dim: int) -> NDArray[np.float32]:
    """Sum a batch's plain rows with numpy, as a look-up does: float32 [BATCH, dim]."""
    scales = np.ascontiguousarray(rows[:, :SCALES]).view(np.float32)
    vectors = rows[:, SCALES:].view(np.int8).reshape(TEXTS_AT_ONCE, LENGTH, 3, dim).astype(np.float32)
    vectors *= scales.reshape(TEXTS_AT_ONCE, LENGTH, 3, 1)
    total = vectors[:, :, 1].copy()
    total[:, 1:] += vectors[:, :-1, 2]
    total[:, :-1] += vectors[:, 1:, 0]
    return total.reshape(-1, dim)


def look_up(reader: Reader, batches: NDArray[np.int32]) -> Callable[[int], object]:
    """Return a function that looks up batch i into memory that all calls share."""
    out = np.empty((BATCH, reader.version.schema.dim), np.float32)
    return lambda i: reader.lookup(batches[i], OFFSETS, out=out)
