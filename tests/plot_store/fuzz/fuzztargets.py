"""The targets of the fuzzer: each feeds one input to the code that reads it, in memory, and judges the
outcome.

An outcome is "refused" (an error of the store) or "same" (accepted, and exactly what was written).
Any other outcome of bytes that were merely damaged is a defect and raises. Forged bytes, whose
checksums were made to match, may also be "served": they must not crash, hang or take memory.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Protocol

import fuzzmutate as mutate
import numpy as np
import plotlab as lab
import xxhash
from hmi_kernels.lookup import ops

from plot_store import PlotStoreError, Schema, SegmentInfo, Store, VersionInfo
from plot_store.care.archive_format import Unpacker, segments_of
from plot_store.catalogue.probe import walk
from plot_store.database.lmdb_pages import BadFile, newest
from plot_store.reading.reader import index_run
from plot_store.segments.segment import MappedSegment, open_segment

COUNTS = (60, 20, 6)


class Target(Protocol):
    def input(self, rng: Random) -> tuple[bytes, bool]:
        """An input: (bytes, whether their checksums were forged)."""

    def repaired(self, data: bytes) -> bytes:
        """Bytes from a fuzzer that cannot guess checksums, with checksums that let them in."""

    def feed(self, data: bytes, forged: bool) -> str:
        """The outcome of one input. Raises AssertionError for a defect."""


class Archive:
    """`Unpacker`, used as an import uses it."""

    def __init__(self, folder: Path) -> None:
        with Store.open(folder / "plots", create=True) as store:
            lab.put(store, "r", lab.content(1, COUNTS))
            lab.put(store, "r/a", {1: lab.content(2, COUNTS)[1]})
            store.export("r/a", folder / "x.plot")
            store.export("r", folder / "y.plot")
            self._versions = store.chain("r/a")
            infos = [info for version in self._versions for info in version.segments]
            self._files = {info.name: lab.piece(store, info.name).read_bytes() for info in infos}
        self._good = (folder / "x.plot").read_bytes()
        self._parts = mutate.parts(self._good)
        self._others = (self._good, (folder / "y.plot").read_bytes())

    def input(self, rng: Random) -> tuple[bytes, bool]:
        if rng.random() < 0.3:
            return mutate.forged_archive(rng, *self._parts), True
        return mutate.damaged(rng, self._good, self._others), False

    def repaired(self, data: bytes) -> bytes:
        listed, rest = self._parts
        at, piece = int.from_bytes(data[:2], "little") % len(listed), data[2:]
        return mutate.with_manifest(
            b'{"versions":' + listed[:at] + piece + listed[at + len(piece) :] + b"}", rest
        )

    def feed(self, data: bytes, forged: bool) -> str:
        try:
            unpacker = Unpacker(io.BytesIO(data))
            versions = unpacker.head()
            for info, _ in segments_of(versions):
                self._take(unpacker, info)
            unpacker.tail()
        except PlotStoreError:
            return "refused"
        if versions == self._versions:
            return "same"
        assert forged or versions == self._versions[1:], "a damaged export was accepted as another version"
        return "served"

    def _take(self, unpacker: Unpacker, info: SegmentInfo) -> None:
        whole, chunks = xxhash.xxh3_128(), []
        for chunk in unpacker.chunks(info.name, info.bytes):
            whole.update(chunk)
            chunks.append(chunk)
        if whole.hexdigest() == info.digest:
            assert b"".join(chunks) == self._files[info.name], "a segment was accepted that is another one"


class OneSegment:
    """`open_segment` and a look-up through it; the rest of the version is sound."""

    def __init__(self, folder: Path, kind: str, schema: Schema, made: lab.Content) -> None:
        with Store.open(folder / "plots", create=True) as store:
            with store.writer("r", schema=schema, build="b") as writer:
                for order, (ngrams, rows) in made.items():
                    writer.add(order, ngrams, rows)
                self._version: VersionInfo = writer.publish()
            pieces = {s.name: lab.piece(store, s.name) for s in self._version.segments}
            files = {name: piece.read_bytes() for name, piece in pieces.items()}
            opened = {
                s.name: open_segment(pieces[s.name].file, s, schema, pieces[s.name].at)
                for s in self._version.segments
            }
        self._schema, self._opened = schema, opened
        self._keys = {order: ngrams for order, (ngrams, _) in made.items()}
        self._infos = [s for s in self._version.segments if s.kind == kind]
        self._others = [files[s.name] for s in self._infos]
        self._fd = os.memfd_create("fuzz")
        self._path = Path(f"/proc/self/fd/{self._fd}")
        self._at = 0
        rng = np.random.default_rng(3)
        self._tokens = rng.integers(0, schema.vocab, 60).astype(np.int32)
        self._offsets = np.array([0, 20, 60], np.int64)
        self._expected = self._look_up(self._infos[0], opened[self._infos[0].name])

    def input(self, rng: Random) -> tuple[bytes, bool]:
        self._at = rng.randrange(len(self._infos))
        data = mutate.damaged(rng, self._others[self._at], self._others)
        if rng.random() >= 0.4:
            return data, False
        layout = self._opened[self._infos[self._at].name].layout
        return mutate.forged_segment(mutate.forged_rows(data, layout) if rng.random() < 0.5 else data), True

    def repaired(self, data: bytes) -> bytes:
        good = self._others[self._at]
        return mutate.forged_segment(data[: len(good)] + good[len(data) :])

    def feed(self, data: bytes, forged: bool) -> str:
        info = self._infos[self._at]
        os.ftruncate(self._fd, len(data))
        os.pwrite(self._fd, data, 0)
        try:
            if (
                forged and info.kind == "index"
            ):  # a segment is named by its content: a stranger would write the right name
                info = replace(info, name=f"{xxhash.xxh3_128_hexdigest(data)}.index")
            segment = open_segment(self._path, info, self._schema)
            out = self._look_up(info, segment, find=forged)
        except (PlotStoreError, ops.DamagedRow):
            return "refused"
        if all(np.array_equal(a, b) for a, b in zip(out, self._expected, strict=True)):
            return "same"
        assert forged, "a damaged segment gave other vectors"
        return "served"

    def _look_up(
        self, info: SegmentInfo, segment: MappedSegment, find: bool = False
    ) -> tuple[np.ndarray, ...]:
        """The answer of a look-up when this segment replaces the sound one."""
        opened = {**self._opened, self._infos[self._at].name: segment, info.name: segment}
        indexes = [s for s in self._version.segments if s.kind == "index" and s != self._infos[self._at]]
        indexes += [info] if info.kind == "index" else []
        runs = [index_run(opened, index, self._version, 0) for index in indexes]
        table = ops.level_table(runs, self._schema.n, self._schema.dim)
        for order, keys in self._keys.items() if find else ():
            ops.find(table, order, keys)  # as an import does with each row
        out = np.empty((self._tokens.size, self._schema.dim), np.float32)
        order, depth = np.empty(self._tokens.size, np.int8), np.empty(self._tokens.size, np.int16)
        ops.lookup(table, self._tokens, self._offsets, self._schema.vocab, out, order, depth)
        return out, order, depth


class Catalogue:
    """The walk of `probe` through LMDB's file."""

    def __init__(self, folder: Path) -> None:
        with Store.open(folder / "plots", create=True) as store:
            for seed in range(3):
                lab.put(store, "r", lab.content(seed, COUNTS), meta={"note": "x" * 5000})
            store.gc(keep_versions=1)
        self._good = (folder / "plots" / "catalogue" / "data.mdb").read_bytes()
        self._records = walk(self._good)
        meta = newest(self._good)
        assert meta is not None
        before, at = bytearray(self._good), 4096 * (meta.txn % 2) + 144
        before[at : at + 8] = (meta.txn - 2).to_bytes(8, "little")  # as if the last commit had not been
        self._before = walk(bytes(before))

    def input(self, rng: Random) -> tuple[bytes, bool]:
        data = bytearray(self._good)
        page = rng.randrange(len(data) // 4096) * 4096
        piece = mutate.damaged(rng, bytes(data[page : page + 4096]), [self._good[:4096]])
        data[page : page + 4096] = piece if rng.random() < 0.1 else piece[:4096].ljust(4096, b"\0")
        return bytes(data), False

    def repaired(self, data: bytes) -> bytes:
        return data[: len(self._good)] + self._good[len(data) :]

    def feed(self, data: bytes, forged: bool) -> str:
        try:
            found = walk(data)
        except BadFile:
            return "refused"
        sound = (None, self._records, self._before)
        assert forged or found in sound, "a damaged catalogue has more or fewer records"
        return "same"


def make(name: str) -> Target:
    """A target by name; its files lie in a temporary folder that is removed afterwards."""
    with lab.scratch() as folder:
        return TARGETS[name](folder)


def _segments(kind: str) -> Callable[[Path], Target]:
    return lambda folder: OneSegment(folder, kind, lab.schema(), lab.content(1, COUNTS))


def _wide(folder: Path) -> Target:
    """A store of 5-grams, whose keys take two words, in fp16."""
    schema = Schema(n=5, dim=8, dtype="fp16", vocab=lab.VOCAB)
    made = lab.content(4, (30, 30, 20, 20, 6), dim=8)
    return OneSegment(folder, "rows", schema, made)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "archive": Archive,
    "rows": _segments("rows"),
    "index": _segments("index"),
    "wide": _wide,
    "catalogue": Catalogue,
}
