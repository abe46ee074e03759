"""The bytes of a segment file, as specified in docs/plot-format.md.

    0      header, 256 bytes; the last 8 are the xxh3-64 of the first 248
    256    index only: the rows segments it covers, 24 bytes each (16 digest, u64 rows), oldest first
    data   at the next multiple of 4096: rows, or index slots
    checks at the next multiple of 8: u64 xxh3-64 of each 1 MiB block of all bytes before, then of this table

All numbers are little-endian. `parse` accepts only headers that `header` would write: every size and
offset is derived again from the few independent fields and must agree, because kernels follow raw
pointers into the file.

Format 2 added windows of any width n, a check in every row, and the direct index. Format 3 added a
check that detects damage in several words, the salt of an index, and the bound on its probes. Formats 1
and 2 are still read. Format 4 is format 3 for causal windows, and is written only for these.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import xxhash
from hmi_kernels.lookup.layout import DTYPES, MAX_N, Window, roles, stride

from plot_store.ground.errors import Damaged, FormatTooNew
from plot_store.ground.nouns import FORMATS, MAX_DIM, NEWEST_FORMAT, Schema

MAGIC: Final = b"PLOTSEG\0"
FORMAT: Final = 3
ROWS: Final = 1
INDEX: Final = 2
DIRECT: Final = 3  # an index of unigrams with one slot per token of the vocabulary
BLOCK: Final = 1 << 20
PAGE: Final = 4096
HEADER_BYTES: Final = 256
COVER_BYTES: Final = 24
MAX_COVERS: Final = 1 << 20
_HEADER: Final = struct.Struct("<8sHBBBBBxIIIIQQQQQQIIQQ")
_SUM: Final = struct.Struct("<Q")
_KINDS: Final = {ROWS: "rows", INDEX: "index", DIRECT: "index"}
_CURE: Final = "restore it with an import of an export, or build the version again"


@dataclass(frozen=True)
class SegmentHeader:
    """The fields of a header. `layout_of` derives those from `stride` on from the others."""

    kind: int
    order: int
    dtype: int
    dim: int
    vocab: int
    count: int  # rows, or distinct n-grams of an index
    shift: int = 0  # index: a row id is (ordinal << shift) | row
    cap: int = 0  # index: slots
    covers: int = 0  # index: rows segments covered
    n: int = 3
    format: int = FORMAT
    salt: int = 0  # hash index, since format 3: an odd number; otherwise 0
    edition: int = 0  # rows: not 0 if they were written after an erasure
    stride: int = 0
    data_at: int = 0
    data_bytes: int = 0
    checks_at: int = 0
    blocks: int = 0
    file_bytes: int = 0

    @property
    def window(self) -> Window:
        """The window of the entries, which the format tells."""
        return "causal" if self.format == FORMATS["causal"] else "centred"

    @property
    def suffix(self) -> str:
        """The file name's suffix: "rows" or "index"."""
        return _KINDS[self.kind]


def rows_layout(schema: Schema, order: int, count: int, edition: int) -> SegmentHeader:
    """Return the independent fields of a rows segment, for `layout_of`.

    edition: below 2**32. Of equal rows, segments of different editions have different names.
    """
    return SegmentHeader(
        ROWS,
        order,
        schema.code,
        schema.dim,
        schema.vocab,
        count,
        n=schema.n,
        format=schema.format,
        edition=edition,
    )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def layout_of(base: SegmentHeader) -> SegmentHeader:
    """Return the layout with its derived sizes and offsets filled in."""
    row = stride(base.n, base.order, base.dim, base.dtype, base.window)
    data_at = _round_up(HEADER_BYTES + COVER_BYTES * base.covers, PAGE)
    data_bytes = base.count * row if base.kind == ROWS else base.cap * 8
    checks_at = _round_up(data_at + data_bytes, 8)
    blocks = -(-checks_at // BLOCK)
    return replace(
        base,
        stride=row,
        data_at=data_at,
        data_bytes=data_bytes,
        checks_at=checks_at,
        blocks=blocks,
        file_bytes=checks_at + 8 * blocks + 8,
    )


def header(layout: SegmentHeader) -> bytes:
    """Encode a complete layout as the 256 bytes of a header."""
    fields = _HEADER.pack(
        MAGIC,
        layout.format,
        layout.kind,
        layout.order,
        roles(layout.n, layout.order, layout.window),
        layout.dtype,
        layout.n,
        layout.dim,
        layout.stride,
        layout.vocab,
        layout.shift,
        layout.count,
        layout.cap,
        layout.covers,
        layout.data_at,
        layout.data_bytes,
        layout.checks_at,
        BLOCK,
        layout.edition,
        layout.file_bytes,
        layout.salt,
    )
    body = fields.ljust(HEADER_BYTES - _SUM.size, b"\0")
    return body + _SUM.pack(xxhash.xxh3_64_intdigest(body))


def parse(raw: bytes, name: str) -> SegmentHeader:
    """Parse and check a header. `name` is the segment's name in messages. Raises Damaged, FormatTooNew."""
    if len(raw) < HEADER_BYTES or raw[: len(MAGIC)] != MAGIC:
        raise Damaged(f"segment {name} does not begin with a segment's header: {_CURE}")
    (
        _,
        version,
        kind,
        order,
        vectors,
        dtype,
        n,
        dim,
        row,
        vocab,
        shift,
        count,
        cap,
        covers,
        data_at,
        data_bytes,
        checks_at,
        block,
        edition,
        file_bytes,
        salt,
    ) = _HEADER.unpack_from(raw)
    if version > NEWEST_FORMAT:
        raise FormatTooNew(
            f"segment {name} has format {version}, this release reads up to {NEWEST_FORMAT}: upgrade "
            "the release"
        )
    if _SUM.unpack_from(raw, HEADER_BYTES - _SUM.size)[0] != xxhash.xxh3_64_intdigest(
        raw[: HEADER_BYTES - _SUM.size]
    ):
        raise Damaged(f"segment {name} has a damaged header: {_CURE}")
    base = SegmentHeader(kind, order, dtype, dim, vocab, count, shift, cap, covers, n, version, salt, edition)
    if not _possible(base) or vectors != roles(n, order, base.window) or block != BLOCK:
        raise Damaged(f"segment {name} has an impossible header: {_CURE}")
    layout = layout_of(base)
    stated = (row, data_at, data_bytes, checks_at, file_bytes)
    derived = (layout.stride, layout.data_at, layout.data_bytes, layout.checks_at, layout.file_bytes)
    if stated != derived:
        raise Damaged(f"segment {name} has a header that contradicts itself: {_CURE}")
    return layout


def _possible(base: SegmentHeader) -> bool:
    """Return whether a writer of that format can have written these independent fields."""
    if base.format == 1:
        known = base.kind in (ROWS, INDEX) and base.n == 3
    else:
        known = base.format in (2, *FORMATS.values()) and base.kind in _KINDS and 1 <= base.n <= MAX_N
    if not known or not 1 <= base.order <= base.n or base.dtype not in DTYPES.values():
        return False
    if not 0 < base.dim <= MAX_DIM or base.covers > MAX_COVERS or base.count >= 1 << 40 or base.shift > 32:
        return False
    salted = base.kind == INDEX and base.format > 2
    if base.salt & 1 != salted or (base.salt and not salted):
        return False
    if base.edition and (base.kind != ROWS or base.format < FORMAT):
        return False
    if base.kind == ROWS:
        return base.cap == base.shift == base.covers == 0
    slots = base.cap == base.vocab and base.order == 1 if base.kind == DIRECT else base.cap <= 1 << 32
    return slots and base.cap > 0 and base.count <= base.cap


def pack_covers(covers: list[tuple[str, int]]) -> bytes:
    """Encode the (digest, rows) of the covered segments, oldest first."""
    return b"".join(bytes.fromhex(digest) + _SUM.pack(rows) for digest, rows in covers)


def unpack_covers(raw: bytes) -> Iterator[tuple[str, int]]:
    """Yield what `pack_covers` encoded. A generator, since an untrusted file may claim any number."""
    for start in range(0, len(raw), COVER_BYTES):
        yield raw[start : start + 16].hex(), _SUM.unpack_from(raw, start + 16)[0]


def table(sums: list[int]) -> bytes:
    """Encode the block checksums, followed by the checksum of the table."""
    body = b"".join(_SUM.pack(value) for value in sums)
    return body + _SUM.pack(xxhash.xxh3_64_intdigest(body))


def decode_checksums(raw: bytes, name: str) -> list[int]:
    """Decode the block checksums. Raises Damaged if the table does not match its own checksum."""
    body = raw[: -_SUM.size]
    if _SUM.unpack(raw[-_SUM.size :])[0] != xxhash.xxh3_64_intdigest(body):
        raise Damaged(
            f"segment {name} has a damaged checksum table: restore it from an export or build it again"
        )
    return [value for (value,) in _SUM.iter_unpack(body)]
