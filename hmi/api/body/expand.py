"""Decompression of uploads and bodies, in steps of bounded size and up to a limit."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import zstandard

from hmi.api.protocols.errors import Malformed, over_limit
from hmi.errors import InvalidData

CHUNK = 1 << 18
"""Most bytes that one step of gzip, deflate or a plain copy gives."""
FEED = 1 << 14
"""Compressed bytes of gzip or deflate that are read at a time. zlib copies the unused rest of them at
each step, so few are cheaper."""
ZSTD_FEED = 512
"""Compressed bytes of zstd that are read at a time. A block of 4 bytes can hold 128 KiB, so
this many give at most 16 MiB."""
ZSTD_WINDOW = 1 << 27
"""Largest window of zstd: the memory that a decompressor may take."""
MEMBERS = 1 << 16
"""Most gzip members or zstd frames in one file. Empty ones cost time, and no other limit counts them."""
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
Encoding = Literal["identity", "gzip", "deflate", "zstd"]
ENCODINGS: tuple[Encoding, ...] = ("identity", "gzip", "deflate", "zstd")
_BROKEN = (zlib.error, EOFError, zstandard.ZstdError)


def decompress_to(source: BinaryIO, target: Path, field: str, limit: int) -> int:
    """Run `decompressing` to its end; return the number of bytes written."""
    return sum(decompressing(source, target, field, limit, lambda _: None))


def decompressing(
    source: BinaryIO, target: Path, field: str, limit: int, grow: Callable[[int], None]
) -> Iterator[int]:
    """Copy `source` to `target` in short steps, decompressed if it is gzip or zstd; yield the bytes of
    each step.

    `grow(size)` is called before `size` more bytes are written, and may raise. Raises TooLarge once
    more than `limit` bytes come out, and InvalidData naming `field` for a damaged archive. After an
    error the target is removed.
    """
    written = 0
    try:
        with target.open("wb") as file:
            for chunk in _chunks(source, _encoding_of(source)):
                written += len(chunk)
                if written > limit:
                    raise over_limit(field, limit, "bytes (expanded)", "send less, or raise max_upload_bytes")
                grow(len(chunk))
                file.write(chunk)
                yield len(chunk)
    except _BROKEN as error:
        target.unlink(missing_ok=True)
        raise InvalidData(
            f"{field} is not a sound archive ({error}): compress it again", field=field
        ) from error
    except BaseException:
        target.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class BodyLimit:
    """The most bytes that a body may have, and the advice in the error about a larger one."""

    most: int
    cure: str


def decompressed(body: bytes, encoding: Encoding, limit: BodyLimit, hold: Callable[[int], None]) -> bytes:
    """Decompress a body of the Content-Encoding `encoding`.

    `hold(size)` is called before the result grows to `size` bytes, and may raise. Raises TooLarge once
    more than `limit` bytes come out, and Malformed.
    """
    out, size = [], 0
    try:
        for chunk in _chunks(io.BytesIO(body), encoding):
            size += len(chunk)
            if size > limit.most:
                raise over_limit("body", limit.most, "bytes (expanded)", limit.cure)
            hold(size)
            out.append(chunk)
    except _BROKEN as error:
        raise Malformed(f"the body is not sound {encoding} ({error}): check its Content-Encoding") from error
    return b"".join(out)


def is_compressed(file: Path) -> bool:
    """Return whether the file begins as gzip or zstd does."""
    with file.open("rb") as source:
        return _encoding_of(source) != "identity"


def _encoding_of(source: BinaryIO) -> Encoding:
    magic = source.read(4)
    source.seek(0)
    return "gzip" if magic.startswith(GZIP_MAGIC) else "zstd" if magic == ZSTD_MAGIC else "identity"


def _chunks(source: BinaryIO, encoding: Encoding) -> Iterator[bytes]:
    """The decompressed content of `source`. Raises zlib.error, ZstdError, and EOFError for a truncated
    archive."""
    if encoding == "identity":
        yield from iter(lambda: source.read(CHUNK), b"")
    elif encoding == "zstd":
        yield from _zstd(source)
    else:
        yield from _inflated(source, encoding)


def _inflated(source: BinaryIO, encoding: Encoding) -> Iterator[bytes]:
    """The content of all members of gzip, or of one deflate stream, with the zlib header of the standard
    or without."""
    pending = source.read(FEED)
    raw = encoding == "deflate" and pending[:1] and pending[0] & 0xF != 8
    window = 31 if encoding == "gzip" else -15 if raw else 15
    member, members, begun = zlib.decompressobj(window), 1, False
    while pending:
        yield member.decompress(pending, CHUNK)
        begun = True
        if member.eof:
            # gzip files may be padded with zeros, as on tapes. The padding is not a member.
            pending = member.unused_data.lstrip(b"\0")
            while not pending and (more := source.read(FEED)):
                pending = more.lstrip(b"\0")
            members += 1
            if pending and (encoding == "deflate" or members > MEMBERS):
                raise zlib.error("more follows after its end")
            member, begun = zlib.decompressobj(window), False
        else:
            pending = member.unconsumed_tail or source.read(FEED)
    while begun and (rest := member.decompress(b"", CHUNK)):
        yield rest
    if (begun and not member.eof) or (members == 1 and not begun):
        raise EOFError("it ends too early")


def _zstd(source: BinaryIO) -> Iterator[bytes]:
    """The content of all frames of a zstd file. Raises EOFError for a truncated one."""
    frames = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    frame, count = frames.decompressobj(), 1
    pending = source.read(ZSTD_FEED)
    fed = False
    while pending:
        fed = True
        yield frame.decompress(pending)
        pending = b""
        if frame.eof:
            pending, frame, fed, count = frame.unused_data, frames.decompressobj(), False, count + 1
            if count > MEMBERS:
                raise zstandard.ZstdError(f"more than {MEMBERS} frames")
        pending = pending or source.read(ZSTD_FEED)
    if fed:
        raise EOFError("it ends too early")
