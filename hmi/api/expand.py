"""Decompression of uploads and bodies, in bounded steps and up to a limit."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import zstandard

from hmi.api.errors import Malformed, over
from hmi.errors import InvalidData

CHUNK = 1 << 18
FEED = 1 << 14
"""Bytes of gzip and deflate at a time: what is not expanded yet is copied at each step."""
ZSTD_FEED = 512
"""A zstd block of 4 bytes can hold 128 KiB, so 512 bytes expand to 16 MiB at most."""
ZSTD_WINDOW = 1 << 27
MEMBERS = 1 << 16
"""A file may be so many archives one after the other; empty ones cost time and count towards no other
limit."""
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
Encoding = Literal["identity", "gzip", "deflate", "zstd"]
ENCODINGS: tuple[Encoding, ...] = ("identity", "gzip", "deflate", "zstd")
_BROKEN = (zlib.error, EOFError, zstandard.ZstdError)


def expand_into(source: BinaryIO, target: Path, field: str, limit: int) -> int:
    """All of `expanding` at once; the bytes written."""
    return sum(expanding(source, target, field, limit, lambda _: None))


def expanding(
    source: BinaryIO, target: Path, field: str, limit: int, grow: Callable[[int], None]
) -> Iterator[int]:
    """Copy `source` to `target`, expanded where it is gzip or zstd, in short steps: the bytes of each. `grow`
    is told how many bytes come before they are written.

    Raises TooLarge once more than `limit` bytes come out and InvalidData for a damaged archive; the
    target is then removed.
    """
    written = 0
    try:
        with target.open("wb") as file:
            for chunk in _chunks(source, _encoding_of(source)):
                written += len(chunk)
                if written > limit:
                    raise over(field, limit, "bytes (expanded)", "send less, or raise max_upload_bytes")
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
class Limit:
    """The most bytes that a body may have, and what to do about more."""

    most: int
    cure: str


def expanded(body: bytes, encoding: Encoding, limit: Limit, held: Callable[[int], None]) -> bytes:
    """A body of a Content-Encoding; `held` is told how many bytes there are before they are kept.

    Raises TooLarge once more than `limit` bytes come out, and Malformed.
    """
    out, size = [], 0
    try:
        for chunk in _chunks(io.BytesIO(body), encoding):
            size += len(chunk)
            if size > limit.most:
                raise over("body", limit.most, "bytes (expanded)", limit.cure)
            held(size)
            out.append(chunk)
    except _BROKEN as error:
        raise Malformed(f"the body is not sound {encoding} ({error}): check its Content-Encoding") from error
    return b"".join(out)


def is_packed(file: Path) -> bool:
    with file.open("rb") as source:
        return _encoding_of(source) != "identity"


def _encoding_of(source: BinaryIO) -> Encoding:
    magic = source.read(4)
    source.seek(0)
    return "gzip" if magic.startswith(GZIP_MAGIC) else "zstd" if magic == ZSTD_MAGIC else "identity"


def _chunks(source: BinaryIO, encoding: Encoding) -> Iterator[bytes]:
    """What `source` expands to. Raises zlib.error, ZstdError, and EOFError for an archive that is cut
    short."""
    if encoding == "identity":
        yield from iter(lambda: source.read(CHUNK), b"")
    elif encoding == "zstd":
        yield from _zstd(source)
    else:
        yield from _inflated(source, encoding)


def _inflated(source: BinaryIO, encoding: Encoding) -> Iterator[bytes]:
    """All members of gzip, or the one of deflate, with its header (as the standard says) or without."""
    pending = source.read(FEED)
    bare = encoding == "deflate" and pending[:1] and pending[0] & 0xF != 8
    window = 31 if encoding == "gzip" else -15 if bare else 15
    member, members, begun = zlib.decompressobj(window), 1, False
    while pending:
        yield member.decompress(pending, CHUNK)
        begun = True
        if member.eof:
            # gzip files may be padded with zeros (on tapes they were), which are no member.
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
    """All frames of a zstd file. Raises EOFError for one that is cut short."""
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
