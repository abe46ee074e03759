"""A parser of LMDB's file in plain Python that trusts no byte: both trees, and the free list.

LMDB itself follows page numbers and offsets without checks. A damaged data.mdb can therefore crash the
process that opens it, and a damaged free list lets a later write destroy live records. This module imports
nothing of the package.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

MAGIC: Final = 0xBEEFC0DE
VERSION: Final = 1  # the file version of LMDB 0.9
NO_ROOT: Final = (1 << 64) - 1
BRANCH, LEAF, OVERFLOW, META = 1, 2, 4, 8
BIG_DATA: Final = 1
INTEGER_KEYS: Final = 8
MAX_KEY: Final = 511
MAX_DEPTH: Final = 32
_PAGE: Final = struct.Struct("<QHHHH")  # number, pad, flags, lower, upper (overflow: u32 number of pages)
_META: Final = struct.Struct("<IIQQ")  # magic, version, address, map size
_TREE: Final = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf and overflow pages, entries, root
_TAIL: Final = struct.Struct("<QQ")  # last page, transaction
_NODE: Final = struct.Struct("<HHHH")  # low, high, flags, key size
_METAS: Final = 2


class BadFile(Exception):
    """The file is damaged. The message says where."""


@dataclass
class Tree:
    """One of the file's two trees as its meta page describes it, and the totals counted during a walk."""

    flags: int
    depth: int
    declared: tuple[int, int, int, int]  # branch, leaf and overflow pages, entries
    root: int
    counted: list[int] = field(default_factory=lambda: [0, 0, 0, 0])  # the same totals, as found


@dataclass(frozen=True)
class Meta:
    """A commit as its meta page describes it."""

    page_size: int
    free: Tree  # the free list
    main: Tree  # the records
    last: int  # number of the last page
    txn: int  # number of the transaction


def metas(raw: bytes) -> tuple[bytes, bytes]:
    """Return the first 256 bytes of the two meta pages. Commits write them in turn. Raises BadFile."""
    size = _TREE.unpack_from(raw.ljust(256, b"\0"), 40)[0]
    if not 256 <= size <= 1 << 16 or size & (size - 1) or len(raw) < _METAS * size:
        raise BadFile("the file lacks its two meta pages")
    return raw[:256], raw[size : size + 256]


def newest(raw: bytes) -> Meta | None:
    """Return the meta page that LMDB will follow, or None for another file version. Raises BadFile."""
    found: list[Meta] = []
    for number, page in enumerate(metas(raw)):
        _, _, flags, _, _ = _PAGE.unpack_from(page)
        magic, version, _, _ = _META.unpack_from(page, 16)
        if magic != MAGIC or flags != META:
            raise BadFile(f"meta page {number} is not a meta page")
        if version != VERSION:
            return None
        free, main = (_tree(_TREE.unpack_from(page, at)) for at in (40, 88))
        last, txn = _TAIL.unpack_from(page, 136)
        found.append(Meta(_TREE.unpack_from(page, 40)[0], free, main, last, txn))
    if found[0].page_size != found[1].page_size:
        raise BadFile("the meta pages differ in page size")
    txns = [meta.txn for meta in found]
    best = found[max(txns) % _METAS]
    if any(txns) and sorted(txns) != [best.txn - 1, best.txn]:  # commits take the two pages in turn
        raise BadFile(f"the meta pages are of transactions {txns}")
    return best


def _tree(fields: tuple[int, ...]) -> Tree:
    _, flags, depth, branches, leaves, overflows, entries, root = fields
    return Tree(flags, depth, (branches, leaves, overflows, entries), root)


def reaches(meta: Meta, size: int) -> bool:
    """Return whether a file of `size` bytes holds all pages up to the last.

    A sound file may fall short: a page that was allocated and freed in one transaction is never written. Only
    `Walk` can tell such a file from a truncated one.
    """
    return (meta.last + 1) * meta.page_size <= size


class Walk:
    """A walk over both trees of a file. Each page must be used once, and pages beyond the end must be free.

    misplaced: if given, it is called for a leaf whose keys are out of order, instead of raising BadFile.
    Look-ups then miss some of the leaf's records, but LMDB stays safe. Raises BadFile.
    """

    def __init__(self, raw: bytes, meta: Meta, misplaced: Callable[[str], None] | None = None) -> None:
        if meta.last < _METAS - 1:
            raise BadFile("the file has no last page")
        self._misplaced = misplaced
        self._raw, self._meta, self._size = raw, meta, meta.page_size
        self._used = bytearray(min(meta.last + 1, len(raw) // meta.page_size))
        self._beyond: set[int] = set()  # free pages beyond the end of the file
        self._used[0] = self._used[1] = 1

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every key and value of the main tree. When it ends, all pages have been checked."""
        yield from self._walk(self._meta.main, 0)
        for key, value in self._walk(self._meta.free, INTEGER_KEYS):
            self._check_free(key, value)
        if len(self._used) + len(self._beyond) <= self._meta.last:
            needed = (self._meta.last + 1) * self._size
            raise BadFile(f"the file has {len(self._raw)} bytes and its pages need {needed}")

    def _walk(self, tree: Tree, flags: int) -> Iterator[tuple[bytes, bytes]]:
        if tree.flags != flags:
            raise BadFile(f"a tree has the flags {tree.flags}")
        if tree.root != NO_ROOT:
            yield from self._page(tree, tree.root, 1, None, None)
        elif tree.depth:
            raise BadFile("a tree has levels and no root")
        if tuple(tree.counted) != tree.declared:
            raise BadFile(
                f"a tree holds {tree.counted} pages and entries, its meta page says {list(tree.declared)}"
            )

    def _page(
        self, tree: Tree, number: int, level: int, low: bytes | None, high: bytes | None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records of a subtree. Its keys must lie in [low, high)."""
        at = self._take(number, 1)
        declared, _, flags, lower, upper = _PAGE.unpack_from(self._raw, at)
        leaf = level == tree.depth
        if declared != number or flags != (LEAF if leaf else BRANCH):
            raise BadFile(f"page {number} is not what its tree says")
        if not 16 <= lower <= upper <= self._size or lower % 2 or level > MAX_DEPTH:
            raise BadFile(f"page {number} has impossible bounds")
        slots = struct.unpack_from(f"<{(lower - 16) // 2}H", self._raw, at + 16)
        nodes = [self._node(at, number, slot, upper) for slot in slots]
        tree.counted[1 if leaf else 0] += 1
        keys = [key for key, _, _ in nodes]
        if not leaf and keys:
            keys[0] = keys[0] if low is None else low  # LMDB never reads a branch's first key
        try:
            self._check_order(number, keys if leaf or low is not None else keys[1:], low, high, tree.flags)
        except BadFile as error:
            if not leaf or tree.flags or self._misplaced is None:
                raise
            self._misplaced(str(error))
        for index, (key, start, node) in enumerate(nodes):
            if leaf:
                tree.counted[3] += 1
                yield key, self._value(tree, node, start, at + self._size)
            else:
                child = node[0] | node[1] << 16 | node[2] << 32
                until = keys[index + 1] if index + 1 < len(keys) else high
                yield from self._page(tree, child, level + 1, keys[index] if index else low, until)

    def _node(self, at: int, number: int, slot: int, upper: int) -> tuple[bytes, int, tuple[int, ...]]:
        """Return (key, offset of the data, the node's header)."""
        if slot < upper or slot + 8 > self._size or slot % 2:
            raise BadFile(f"page {number} has an impossible offset")
        node = _NODE.unpack_from(self._raw, at + slot)
        if node[3] > MAX_KEY or slot + 8 + node[3] > self._size:
            raise BadFile(f"page {number} has an impossible key")
        start = at + slot + 8 + node[3]
        return self._raw[start - node[3] : start], start, node

    def _value(self, tree: Tree, node: tuple[int, ...], start: int, end: int) -> bytes:
        size = node[0] | node[1] << 16
        if node[2] not in (0, BIG_DATA) or start + (8 if node[2] else size) > end:
            raise BadFile("a record is larger than its page")
        if node[2]:
            first = struct.unpack_from("<Q", self._raw, start)[0]
            if first >= len(self._used):
                raise BadFile(f"page {first} lies outside the file")
            declared, _, flags, low, high = _PAGE.unpack_from(self._raw, first * self._size)
            pages = low | high << 16  # may exceed the need: a shorter record replaced a longer one
            at = self._take(first, pages)
            if (declared, flags) != (first, OVERFLOW) or 16 + size > pages * self._size:
                raise BadFile(f"page {first} is not what its record says")
            tree.counted[2] += pages
            return self._raw[at + 16 : at + 16 + size]
        return self._raw[start : start + size]

    def _check_order(
        self, number: int, keys: list[bytes], low: bytes | None, high: bytes | None, flags: int
    ) -> None:
        ranks = [_rank(key, flags) for key in keys]
        first = [] if low is None else [_rank(low, flags)]
        inside = not ranks or not first or first[0] <= ranks[0]
        last = high is None or not ranks or ranks[-1] < _rank(high, flags)
        if not inside or not last or any(a >= b for a, b in pairwise(ranks)):
            raise BadFile(f"the keys of page {number} are not in order")

    def _take(self, number: int, pages: int) -> int:
        """Mark pages as used. Returns the offset of the first."""
        if pages < 1 or number + pages > len(self._used):
            raise BadFile(f"page {number} lies outside the file")
        if any(self._used[number : number + pages]):
            raise BadFile(f"page {number} is used twice")
        self._used[number : number + pages] = b"\1" * pages
        return number * self._size

    def _check_free(self, key: bytes, value: bytes) -> None:
        numbers = struct.unpack(f"<{len(value) // 8}Q", value[: len(value) // 8 * 8])
        if len(key) != 8 or not numbers or numbers[0] != len(numbers) - 1:
            raise BadFile("a record of free pages is malformed")
        if int.from_bytes(key, "little") > self._meta.txn:
            raise BadFile("a record of free pages is of a later transaction")
        if any(a <= b for a, b in pairwise(numbers[1:])):
            raise BadFile("a list of free pages is not in order")
        for number in numbers[1:]:
            if len(self._used) <= number <= self._meta.last and number not in self._beyond:
                self._beyond.add(number)
            else:
                self._take(number, 1)


def _rank(key: bytes, flags: int) -> tuple[int, bytes]:
    """Return the sort key of a key. Keys of the free list are integers, those of the main tree bytes."""
    return (int.from_bytes(key, "little"), b"") if flags else (0, key)
