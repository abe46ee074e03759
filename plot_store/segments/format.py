"""The bytes of a segment file; written down in docs/plot-format.md.

    0      header, 256 bytes, its own xxh3-64 in the last 8
    256    index only: the rows segments it covers, 24 bytes each (16 digest, u64 rows), oldest first
    data   at the next multiple of 4096: rows, or index slots
    checks at the next multiple of 8: u64 xxh3-64 per 1 MiB block of all bytes before, then the table's own

Little-endian throughout. `parse` accepts exactly the files that `layout_of` would write: every size and
offset is derived again from the few independent fields and must agree, since kernels follow raw pointers into
the file.

Format 2 added: windows of any width n, a check in every row, the direct index. Format 3 added: a check that
knows damage in several words, the salt of an index and the bound of its probes. Formats 1 and 2 are still
read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import xxhash
from hmi_kernels.lookup.layout import DTYPES, MAX_N, roles, stride

from plot_store.ground.errors import Damaged, FormatTooNew
from plot_store.ground.nouns import MAX_DIM, Schema

MAGIC: Final = b"PLOTSEG\0"
FORMAT: Final = 3
ROWS: Final = 1
INDEX: Final = 2
DIRECT: Final = 3  # an index of unigrams with a slot for each token of the vocabulary
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
class Layout:
    """Everything the header says. Fields with a default are derived by `layout_of`."""

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
    salt: int = 0  # hash index, since format 3: odd
    stride: int = 0
    data_at: int = 0
    data_bytes: int = 0
    checks_at: int = 0
    blocks: int = 0
    file_bytes: int = 0

    @property
    def suffix(self) -> str:
        return _KINDS[self.kind]


def rows_layout(schema: Schema, order: int, count: int) -> Layout:
    """The layout of a rows segment, not yet derived."""
    return Layout(ROWS, order, schema.code, schema.dim, schema.vocab, count, n=schema.n)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def layout_of(base: Layout) -> Layout:
    """The layout with its derived sizes and offsets filled in."""
    row = stride(base.n, base.order, base.dim, base.dtype)
    data_at = _up(HEADER_BYTES + COVER_BYTES * base.covers, PAGE)
    data_bytes = base.count * row if base.kind == ROWS else base.cap * 8
    checks_at = _up(data_at + data_bytes, 8)
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


def header(layout: Layout) -> bytes:
    """The 256 bytes of a derived layout."""
    fields = _HEADER.pack(
        MAGIC,
        layout.format,
        layout.kind,
        layout.order,
        roles(layout.n, layout.order),
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
        0,
        layout.file_bytes,
        layout.salt,
    )
    body = fields.ljust(HEADER_BYTES - _SUM.size, b"\0")
    return body + _SUM.pack(xxhash.xxh3_64_intdigest(body))


def parse(raw: bytes, name: str) -> Layout:
    """The layout of a file that begins with these bytes. Raises Damaged or FormatTooNew; `name` is for
    messages."""
    if len(raw) < HEADER_BYTES or raw[: len(MAGIC)] != MAGIC:
        raise Damaged(f"segment {name} does not begin like one: {_CURE}")
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
        _,
        file_bytes,
        salt,
    ) = _HEADER.unpack_from(raw)
    if version > FORMAT:
        raise FormatTooNew(
            f"segment {name} has format {version}, this release reads up to {FORMAT}: upgrade the release"
        )
    if _SUM.unpack_from(raw, HEADER_BYTES - _SUM.size)[0] != xxhash.xxh3_64_intdigest(
        raw[: HEADER_BYTES - _SUM.size]
    ):
        raise Damaged(f"segment {name} has a damaged header: {_CURE}")
    base = Layout(kind, order, dtype, dim, vocab, count, shift, cap, covers, n, version, salt)
    if not _possible(base) or vectors != roles(n, order) or block != BLOCK:
        raise Damaged(f"segment {name} has an impossible header: {_CURE}")
    layout = layout_of(base)
    told = (row, data_at, data_bytes, checks_at, file_bytes)
    derived = (layout.stride, layout.data_at, layout.data_bytes, layout.checks_at, layout.file_bytes)
    if told != derived:
        raise Damaged(f"segment {name} has a header that contradicts itself: {_CURE}")
    return layout


def _possible(base: Layout) -> bool:
    """Whether the independent fields are ones that a writer of that format can have written."""
    if base.format == 1:
        known = base.kind in (ROWS, INDEX) and base.n == 3
    else:
        known = base.format in (2, FORMAT) and base.kind in _KINDS and 1 <= base.n <= MAX_N
    if not known or not 1 <= base.order <= base.n or base.dtype not in DTYPES.values():
        return False
    if not 0 < base.dim <= MAX_DIM or base.covers > MAX_COVERS or base.count >= 1 << 40 or base.shift > 32:
        return False
    salted = base.kind == INDEX and base.format > 2
    if base.salt & 1 != salted or (base.salt and not salted):
        return False
    if base.kind == ROWS:
        return base.cap == base.shift == base.covers == 0
    slots = base.cap == base.vocab and base.order == 1 if base.kind == DIRECT else base.cap <= 1 << 32
    return slots and base.cap > 0 and base.count <= base.cap


def pack_covers(covers: list[tuple[str, int]]) -> bytes:
    """[(digest, rows)] of the covered segments, oldest first."""
    return b"".join(bytes.fromhex(digest) + _SUM.pack(rows) for digest, rows in covers)


def unpack_covers(raw: bytes) -> Iterator[tuple[str, int]]:
    """The inverse of `pack_covers`, one by one: how many there are is the file's claim."""
    for start in range(0, len(raw), COVER_BYTES):
        yield raw[start : start + 16].hex(), _SUM.unpack_from(raw, start + 16)[0]


def table(sums: list[int]) -> bytes:
    """The block checksums followed by their own."""
    body = b"".join(_SUM.pack(value) for value in sums)
    return body + _SUM.pack(xxhash.xxh3_64_intdigest(body))


def untable(raw: bytes, name: str) -> list[int]:
    """The block checksums of a table. Raises Damaged if it does not match its own."""
    body = raw[: -_SUM.size]
    if _SUM.unpack(raw[-_SUM.size :])[0] != xxhash.xxh3_64_intdigest(body):
        raise Damaged(
            f"segment {name} has a damaged checksum table: restore it from an export or build it again"
        )
    return [value for (value,) in _SUM.iter_unpack(body)]
