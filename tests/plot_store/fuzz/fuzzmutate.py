"""Seeded damage to bytes, and repair of the checksums above them, so that the code behind is reached too."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import xxhash
from hmi_kernels.lookup.layout import header_bytes, row_checks, sum_checks

from plot_store.care.archive_format import Packer, Unpacker
from plot_store.catalogue import records
from plot_store.segments.format import HEADER_BYTES, ROWS, SegmentHeader

SMALL = (0, 1, 2, 3, 5)
LARGE = (0x7F, 0xFF, 0x7FFF, 0xFFFF, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 64) - 1)
NUMBERS = (*SMALL, *LARGE)
HEAD = 320  # the fields that decide sizes lie within these bytes
Bytes = bytearray


def damaged(rng: Random, good: bytes, others: Sequence[bytes]) -> bytes:
    """One to four random edits; pieces may be copied from `others`."""
    data = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if data:
            rng.choice(EDITS)(rng, data, rng.choice(others))
    return bytes(data)


def _at(rng: Random, data: Bytes) -> int:
    """A position: half of the time among the fields of the head."""
    return rng.randrange(min(HEAD, len(data)) if rng.random() < 0.5 else len(data))


def _flip(rng: Random, data: Bytes, other: bytes) -> None:
    data[_at(rng, data)] ^= 1 << rng.randrange(8)


def _byte(rng: Random, data: Bytes, other: bytes) -> None:
    data[_at(rng, data)] = rng.randrange(256)


def _number(rng: Random, data: Bytes, other: bytes) -> None:
    size = rng.choice((1, 2, 4, 8))
    at = _at(rng, data) // size * size
    near = int.from_bytes(data[at : at + size], "little") + rng.randrange(-2, 3)
    value = rng.choice((*NUMBERS, near)) % (1 << 8 * size)
    data[at : at + size] = value.to_bytes(size, "little")[: len(data) - at]


def _zero(rng: Random, data: Bytes, other: bytes) -> None:
    at, size = _at(rng, data), rng.randrange(1, 600)
    data[at : at + size] = bytes(min(size, len(data) - at))


def _move(rng: Random, data: Bytes, other: bytes) -> None:
    size = rng.randrange(1, 600)
    piece = data[(source := _at(rng, data)) : source + size]
    at = rng.randrange(len(data))
    data[at : at + len(piece)] = piece[: len(data) - at]


def _splice(rng: Random, data: Bytes, other: bytes) -> None:
    at = rng.randrange(len(data))
    data[at:] = other[at:]


def _cut(rng: Random, data: Bytes, other: bytes) -> None:
    del data[rng.randrange(len(data)) :]


def _grow(rng: Random, data: Bytes, other: bytes) -> None:
    data += rng.randbytes(rng.randrange(1, 64))


Edit = Callable[[Random, Bytes, bytes], None]
EDITS: tuple[Edit, ...] = (*[_flip] * 2, _byte, *[_number] * 3, _zero, _move, _splice, _cut, _grow)


def forged_segment(data: bytes) -> bytes:
    """A segment of one block with a header and table that match its content; shorter
    input is returned unchanged."""
    if len(data) < HEADER_BYTES + 16:
        return data
    head = data[: HEADER_BYTES - 8]
    whole = head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + data[HEADER_BYTES:-16]
    table = struct.pack("<Q", xxhash.xxh3_64_intdigest(whole))
    return whole + table + struct.pack("<Q", xxhash.xxh3_64_intdigest(table))


def forged_rows(data: bytes, layout: SegmentHeader) -> bytes:
    """Rows whose checks match their present content."""
    if layout.kind != ROWS or len(data) != layout.file_bytes:
        return data
    raw = np.frombuffer(data, np.uint8).copy()
    rows = raw[layout.data_at : layout.data_at + layout.data_bytes].reshape(layout.count, layout.stride)
    at = header_bytes(layout.n, layout.order) - 8
    checks = sum_checks if layout.format == 2 else row_checks
    rows[:, at : at + 8] = checks(rows, layout.n, layout.order)[:, None].view(np.uint8)
    return raw.tobytes()


def parts(archive: bytes) -> tuple[bytes, bytes]:
    """(the manifest's versions as JSON, the bytes after the manifest)."""
    file = io.BytesIO(archive)
    listed = [records.version_fields(version) for version in Unpacker(file).head()]
    return records.dump(listed), archive[file.tell() :]


def forged_archive(rng: Random, manifest: bytes, rest: bytes) -> bytes:
    """An export with one changed place in its manifest, and ids and checksums that match."""
    listed = json.loads(manifest)
    _change(rng, rng.choice(listed))
    for at, fields in reversed(list(enumerate(listed))):
        if rng.random() < 0.9:
            del fields["id"]
            fields["parent"] = listed[at + 1]["id"] if at + 1 < len(listed) else fields["parent"]
            fields["id"] = "v" + xxhash.xxh3_128_hexdigest(records.dump(fields))
    return with_manifest(records.dump({"versions": listed}), rest)


def _change(rng: Random, value: object) -> None:
    """Replace one leaf of the manifest."""
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        inner = value[key]  # type: ignore[call-overload,index]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.1:
            value[key] = rng.choice(STRANGE) if rng.random() < 0.7 else rng.choice(NUMBERS)  # type: ignore[call-overload,index]
            return
        value = inner


STRANGE_TEXTS = ("", "x" * 300, "../../etc/passwd", "r/../a", "\0", "\ud7ff")
NAMES = ("rows", "index", "int8", "fp16", "v" + "0" * 32, "0" * 32 + ".rows")
STRANGE: tuple[object, ...] = (None, True, -1, 1.5, 1e308, [], {}, [[]], {"a": 1}, *STRANGE_TEXTS, *NAMES)


def with_manifest(body: bytes, rest: bytes) -> bytes:
    """An export as `Packer` begins it, around any bytes as its manifest."""
    prefix = Packer().head([])[:16]
    return prefix + struct.pack("<QQ", len(body), xxhash.xxh3_64_intdigest(body)) + body + rest
