"""Samples of domains' corpora: passages of text, for teachers of tenants' models.

A file holds one JSON string a line, compressed with Zstandard, and is named by the SHA-256 of its bytes. The
metadata of a PLOT version names its sample (`PlotMeta.sample`). No answer, error or log shows its text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import zstandard

from hmi.stores.bucket import Bucket
from hmi.stores.tensors.content_store import ContentStore, DamagedArtefact

MAX_PASSAGES = 20_000
MAX_BYTES = 8_000_000
"""A sample has at most this many passages, and this many bytes of text in UTF-8."""
MAX_FILE_BYTES = 6 * MAX_BYTES + 3 * MAX_PASSAGES
"""No file is larger, nor its content. JSON may write a byte as six, and adds quotes and the line's end."""
CURE = "update the domain with its corpus, which draws a new sample; models answer without it"
LEVEL = 9


class Samples(ContentStore):
    """The samples in one folder, which processes may share."""

    suffix = ".jsonl.zst"

    def __init__(self, folder: Path, bucket: Bucket | None = None) -> None:
        """Create the folder if needed. Raises StorageFull."""
        super().__init__(folder, CURE, bucket)

    def put(self, passages: Sequence[str]) -> str:
        """Store a sample durably and return its name. Raises StorageFull."""
        assert len(passages) <= MAX_PASSAGES, "the sample was drawn within the limits"
        assert sum(len(passage.encode()) for passage in passages) <= MAX_BYTES, "the same"
        lines = "".join(f"{json.dumps(passage, ensure_ascii=False)}\n" for passage in passages)
        return self.put_bytes(zstandard.ZstdCompressor(level=LEVEL).compress(lines.encode()))

    def get(self, name: str | None) -> list[str]:
        """The passages of a sample, in random order. None if it is not there: a version that was imported
        from another store names a sample that this one lacks.

        Raises DamagedArtefact, and Unavailable if the file cannot be read.
        """
        if name is None or not self.has(name):
            return []
        with self._opened(name) as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if hashlib.sha256(data).hexdigest() != name:
            raise DamagedArtefact(name, "fails its checksum", CURE)
        try:
            return _passages(data)
        except (zstandard.ZstdError, ValueError, RecursionError) as error:
            raise DamagedArtefact(name, "cannot be read", CURE) from error

    def size_of(self, name: str) -> int:
        """The size of a sample's file in bytes; 0 if it is not there."""
        return self.path(name).stat().st_size if self.has(name) else 0

    def remove(self, names: Collection[str]) -> None:
        """Remove these samples at once, whatever their age, also from the bucket. Ignores missing ones."""
        with self._lock(shared=False):
            if self._bucket is not None:
                self._bucket.remove(map(self._shared, names))
            for name in names:
                with suppress(FileNotFoundError):
                    self._path(name).unlink()


def _passages(data: bytes) -> list[str]:
    """Read a file's bytes. Raises ZstdError, ValueError (not such a file, or larger than the limits)."""
    lines = zstandard.ZstdDecompressor().stream_reader(data).read(MAX_FILE_BYTES + 1)
    if len(lines) > MAX_FILE_BYTES:
        raise ValueError("the content is too large")
    passages = [json.loads(line) for line in lines.splitlines()]
    if not all(isinstance(passage, str) for passage in passages):
        raise ValueError("a line is not a text")
    if len(passages) > MAX_PASSAGES or sum(len(passage.encode()) for passage in passages) > MAX_BYTES:
        raise ValueError("there is more text than a sample may have")
    return passages
