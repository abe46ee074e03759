"""Sources of rows, texts and files as streams of bytes. Nothing is held in memory as a whole."""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hmi.client.errors import InvalidInput

CHUNK = 1 << 18
PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""The first bytes of gzip and of zstd."""
FRAME_ROWS = 1000
"""Rows that are taken out of a data frame at a time."""


@runtime_checkable
class Frame(Protocol):
    """A data frame of pandas."""

    iloc: Any
    columns: Any

    def to_dict(self, orient: Any) -> Any: ...


@runtime_checkable
class NamedRows(Protocol):
    """A data frame of polars."""

    def iter_rows(self, *, named: Any) -> Iterator[Any]: ...


@runtime_checkable
class Table(Protocol):
    """A table of Arrow."""

    def to_batches(self, max_chunksize: int) -> Any: ...


Row = Mapping[str, Any] | str
Source = str | PathLike[str] | bytes | Iterable[Row] | Iterable[bytes] | Frame | NamedRows | Table
"""A path; the content of a file; rows as mappings; texts; pieces of a file; or a data frame."""


def opener(source: Source, name: str) -> tuple[Callable[[], Iterator[bytes]], int | None, bool]:
    """Return (a function that opens the source, its size in bytes if known, whether it can be opened twice).

    Raises InvalidInput that names the part if the file cannot be read or the source is of no known type.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        held = bytes(source)
        return lambda: _pieces(io.BytesIO(held)), len(held), True
    if isinstance(source, str | PathLike):
        return _of_path(Path(source), name)
    if isinstance(source, Frame | NamedRows | Table):
        return lambda: lines(_frame_rows(source)), None, True
    if isinstance(source, Iterable):
        again = not isinstance(source, Iterator)
        return lambda: lines(source), None, again
    raise InvalidInput(
        f"{name}: {type(source).__name__} is no source of rows; give a path, rows or a data frame",
        details={"field": name},
    )


def _of_path(path: Path, name: str) -> tuple[Callable[[], Iterator[bytes]], int | None, bool]:
    try:
        path.open("rb").close()
        size = path.stat().st_size
    except OSError as error:
        raise InvalidInput(
            f"{name}: {path} cannot be read ({error.strerror}); give a path, or rows in a list",
            details={"field": name},
        ) from error
    return lambda: _pieces(path.open("rb")), size if path.is_file() else None, path.is_file()


def _pieces(file: io.BufferedIOBase) -> Iterator[bytes]:
    with file:
        yield from iter(lambda: file.read(CHUNK), b"")


def lines(rows: Iterable[Any]) -> Iterator[bytes]:
    """Yield rows as JSON lines, texts as `{"text"}`, and bytes as they are, in large pieces."""
    held, size = [], 0
    for row in rows:
        piece = row if isinstance(row, bytes) else _line(row)
        held.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _line(row: Any) -> bytes:
    value = {"text": row} if isinstance(row, str) else row
    if not isinstance(value, Mapping):
        raise InvalidInput(
            f"a row is a {type(row).__name__}: give mappings such as {{'text': …, 'label': …}}, or texts"
        )
    try:
        text = json.dumps(dict(value), ensure_ascii=False, default=_plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"a row cannot be sent as JSON ({error}): {str(row)[:80]}") from error
    return text.encode() + b"\n"


def _frame_rows(frame: Any) -> Iterator[dict[str, Any]]:
    """Yield a frame's rows. A missing value, such as NaN, is left out of its row."""
    rows: Iterator[Any]
    if isinstance(frame, Table):
        rows = (row for batch in frame.to_batches(FRAME_ROWS) for row in batch.to_pylist())
    elif isinstance(frame, NamedRows):
        rows = iter(frame.iter_rows(named=True))
    else:
        rows = (
            row
            for start in range(0, len(frame), FRAME_ROWS)
            for row in frame.iloc[start : start + FRAME_ROWS].to_dict(orient="records")
        )
    for row in rows:
        yield {str(name): value for name, value in row.items() if not _missing(value)}


def _missing(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _plain(value: Any) -> Any:
    """Return a number or an array of numpy's as Python's own."""
    for name in ("tolist", "item"):
        if hasattr(value, name):
            return getattr(value, name)()
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def packed(pieces: Iterator[bytes], how: str | None) -> Iterator[bytes]:
    """Yield `pieces` compressed with gzip or zstd. What is compressed already is passed on as it is."""
    first = next(pieces, b"")
    if how is None or first.startswith(PACKED):
        yield from chain((first,), pieces)
        return
    machine = _compressor(how)
    for piece in chain((first,), pieces):
        if shorter := machine.compress(piece):
            yield shorter
    yield machine.flush()


def _compressor(how: str) -> Any:
    if how == "zstd":
        try:
            import zstandard
        except ImportError:  # a client that was installed alone
            how = "gzip"
        else:
            return zstandard.ZstdCompressor(level=3).compressobj()
    return zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
