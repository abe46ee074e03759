"""Comparison of two versions: which n-grams that one stores itself are missing or different in the other.

A version has the n-grams that it stores and those that it inherits. The comparison streams the rows of both
in pieces of bounded size, and looks each row up in the other version and its ancestors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from hmi_kernels.lookup import layout, ops
from hmi_kernels.lookup.layout import Bytes
from numpy.typing import NDArray

from plot_store.environment.environment import Environment
from plot_store.ground.arguments import check_number
from plot_store.ground.errors import Invalid
from plot_store.reading.entries import OwnEntries, open_entries
from plot_store.reading.reader import open_reader

Ngrams = NDArray[np.uint32]
KINDS: Final = ("added", "removed", "changed")


@dataclass(frozen=True)
class OrderDiff:
    """The comparison of versions a and b for the n-grams of one order."""

    added: int  # in b only
    removed: int  # in a only
    changed: int  # in both, with different vectors
    same: int  # in both, with equal vectors
    samples: dict[str, Ngrams] = field(default_factory=dict)  # by kind, except "same": uint32 [k, order]


@dataclass(frozen=True)
class DiffReport:
    """The comparison of two versions, by order, over the n-grams that either stores itself."""

    a: str  # version id
    b: str  # version id
    orders: dict[int, OrderDiff]

    @property
    def equal(self) -> bool:
        """Whether both versions have equal vectors for all these n-grams."""
        return not any(d.added or d.removed or d.changed for d in self.orders.values())


def diff(environment: Environment, a: str, b: str, samples: int) -> DiffReport:
    """See `Store.diff`."""
    check_number("samples", samples, "pass 0 or more", least=0, whole=True)
    with ExitStack() as held:
        chains = []
        for which in (a, b):
            reader = held.enter_context(open_reader(environment, which))  # pinned and mapped
            chains.append([open_entries(environment, version) for version in reader.chain])
        old, new = chains
        mine, yours = old[0].schema, new[0].schema
        if mine.shape != yours.shape:
            raise Invalid(
                f"{a} and {b} differ in n, dim, vocabulary or window, so their entries cannot be compared"
            )
        orders = {order: _compare(old, new, order, samples) for order in mine.orders}
        return DiffReport(old[0].version.id, new[0].version.id, orders)


def _compare(old: Sequence[OwnEntries], new: Sequence[OwnEntries], order: int, samples: int) -> OrderDiff:
    """Compare two chains (a version and its ancestors, nearest first) for the n-grams of one order."""
    counts = dict.fromkeys((*KINDS, "same"), 0)
    shown: dict[str, list[Ngrams]] = {kind: [] for kind in KINDS}

    def note(kind: str, ngrams: Ngrams) -> None:
        if kind != "same":
            room = samples - min(counts[kind], samples)
            shown[kind].append(ngrams[:room].copy())  # a view would keep the whole piece in memory
        counts[kind] += len(ngrams)

    for ngrams, depth, equal in _matched(old[0], new, order):
        note("removed", ngrams[depth < 0])
        note("changed", ngrams[(depth >= 0) & ~equal])
        note("same", ngrams[equal])
    for ngrams, depth, equal in _matched(new[0], old, order):
        note("added", ngrams[depth < 0])
        note("changed", ngrams[(depth > 0) & ~equal])  # those at depth 0 were counted above
        note("same", ngrams[(depth > 0) & equal])
    joined = {
        kind: np.concatenate([np.empty((0, order), np.uint32), *parts]) for kind, parts in shown.items()
    }
    return OrderDiff(**counts, samples=joined)


def _matched(
    one: OwnEntries, others: Sequence[OwnEntries], order: int
) -> Iterator[tuple[Ngrams, NDArray[np.int64], NDArray[np.bool_]]]:
    """Look the n-grams that `one` stores up in `others`, a chain, piece by piece.

    Yields (n-grams uint32 [m, order], the position of the first of `others` that has each or -1: int64 [m],
    whether its vectors are equal: bool [m]).
    """
    mine = one.indexes(order)
    names = list(dict.fromkeys(name for index in mine for name in index.covers))
    tables = [other.table(other.indexes(order)) for other in others]
    for _, rows in one.pieces(order, names, one.table(mine)):
        ngrams = layout.unpack_keys(layout.row_keys(rows, order), order)
        depth, equal = np.full(len(ngrams), -1, np.int64), np.zeros(len(ngrams), np.bool_)
        for number, (other, table) in enumerate(zip(others, tables, strict=True)):
            left = np.flatnonzero(depth < 0)
            addresses, _ = ops.find(table, order, ngrams[left], check=False)
            here = left[addresses != 0]
            depth[here] = number
            equal[here] = _same(
                one, other, order, rows[here], other.rows_at(order, addresses[addresses != 0])
            )
        yield ngrams, depth, equal


def _same(old: OwnEntries, new: OwnEntries, order: int, one: Bytes, two: Bytes) -> NDArray[np.bool_]:
    """Return whether rows of `old` and `new` for the same n-grams hold equal vectors: bool [m]."""
    if old.schema.dtype == new.schema.dtype:
        return np.asarray((one == two).all(axis=1))
    n, dim, _, window = old.schema.shape
    left = layout.decode(one, n, order, dim, old.schema.code, window)
    right = layout.decode(two, n, order, dim, new.schema.code, window)
    return np.asarray((left == right).all(axis=(1, 2)))
