"""Corpora: text, one document a line, plain or compressed; checked before any work begins."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from hmi.errors import InvalidData, TooLarge

MAX_EXPANDED_BYTES = 4 << 30
MIN_DOCUMENTS = 2
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def read_documents(path: Path, *, limit: int = MAX_EXPANDED_BYTES) -> Iterator[str]:
    """Yield the non-empty lines of a UTF-8 text file (gzip and zstd are recognised by their first bytes).

    Raises InvalidData (binary, not UTF-8, damaged compression) naming the line, or TooLarge past `limit` bytes.
    """
    seen = 0
    with _open(path) as file:
        number = 0
        try:
            for number, line in enumerate(file, 1):
                seen += len(line)
                if seen > limit:
                    raise TooLarge(f"the corpus is over {limit} bytes when expanded: split it", field="corpus")
                text = _decode(line, number).strip()
                if text:
                    yield text
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise InvalidData(f"the corpus breaks off after line {number} ({error}): compress it again") from error


def check_corpus(path: Path) -> int:
    """Read the whole corpus once and return its number of documents; raises as `read_documents`, or if too few."""
    if path.stat().st_size == 0:
        raise InvalidData("the corpus is empty: give text, one document a line", field="corpus")
    documents = sum(1 for _ in read_documents(path))
    if documents < MIN_DOCUMENTS:
        found = "only blank lines" if documents == 0 else "one line only"
        raise InvalidData(
            f"the corpus has {found}: n-grams are counted over documents, so give one document a line "
            f"(at least {MIN_DOCUMENTS})",
            field="corpus",
        )
    return documents


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(_GZIP):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if magic == _ZSTD:
        return io.BufferedReader(cast(io.RawIOBase, zstandard.ZstdDecompressor().stream_reader(path.open("rb"))))
    return path.open("rb")


def _decode(line: bytes, number: int) -> str:
    if b"\0" in line:
        raise InvalidData(
            f"line {number} of the corpus holds a zero byte: this is a binary file, not text", field="corpus"
        )
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidData(
            f"line {number} of the corpus is not UTF-8 (byte {error.start} of the line): convert it to UTF-8",
            field="corpus",
        ) from error
