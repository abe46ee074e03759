"""Compressed uploads: told by their first bytes, expanded in bounded steps, never beyond a limit."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from hmi.api.errors import over
from hmi.errors import InvalidData

CHUNK = 1 << 18
ZSTD_FEED = 512
"""A zstd block of 4 bytes can hold 128 KiB, so 512 bytes expand to 16 MiB at most."""
ZSTD_WINDOW = 1 << 27
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def expand_into(source: BinaryIO, target: Path, field: str, limit: int) -> int:
    """Copy `source` to `target`, expanded where it is gzip or zstd; returns the bytes written.

    Raises TooLarge once more than `limit` bytes come out and InvalidData for a damaged archive; the
    target is then removed.
    """
    written = 0
    try:
        with target.open("wb") as file:
            for chunk in _chunks(source):
                written += len(chunk)
                if written > limit:
                    raise over(field, limit, "bytes (expanded)", "send less, or raise max_upload_bytes")
                file.write(chunk)
    except (zlib.error, gzip.BadGzipFile, EOFError, zstandard.ZstdError) as error:
        target.unlink(missing_ok=True)
        raise InvalidData(f"{field} is not a sound archive ({error}): compress it again", field=field) from error
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return written


def _chunks(source: BinaryIO) -> Iterator[bytes]:
    magic = source.read(4)
    source.seek(0)
    if magic.startswith(GZIP_MAGIC):
        with gzip.open(source) as unzipped:
            yield from iter(lambda: unzipped.read(CHUNK), b"")
    elif magic == ZSTD_MAGIC:
        yield from _zstd(source)
    else:
        yield from iter(lambda: source.read(CHUNK), b"")


def _zstd(source: BinaryIO) -> Iterator[bytes]:
    """All frames of a zstd file. Raises EOFError for one that is cut short."""
    frames = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    frame = frames.decompressobj()
    pending = source.read(ZSTD_FEED)
    fed = False
    while pending:
        fed = True
        yield frame.decompress(pending)
        pending = b""
        if frame.eof:
            pending, frame, fed = frame.unused_data, frames.decompressobj(), False
        pending = pending or source.read(ZSTD_FEED)
    if fed:
        raise EOFError("it ends too early")
