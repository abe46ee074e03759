"""Comparing two versions: which n-grams one stores itself and the other does not, or stores otherwise.

Streams the rows of both, piece by piece, and looks each up in the other: memory is bounded by a piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from hmi_kernels import layout, ops
from hmi_kernels.layout import Bytes
from numpy.typing import NDArray

from plot_store.arguments import check_number
from plot_store.environment import Environment
from plot_store.errors import Invalid
from plot_store.own import Own, open_own
from plot_store.reader import open_reader

Ngrams = NDArray[np.uint32]
KINDS: Final = ("added", "removed", "changed")


@dataclass(frozen=True)
class OrderDiff:
    """The n-grams of one order: in b only, in a only, in both with other vectors, in both with the same."""

    added: int
    removed: int
    changed: int
    same: int
    samples: dict[str, Ngrams] = field(default_factory=dict)  # of each kind but "same": uint32 [k, order]


@dataclass(frozen=True)
class DiffReport:
    """What a version stores itself against another, by order."""

    a: str  # version ids
    b: str
    orders: dict[int, OrderDiff]

    @property
    def equal(self) -> bool:
        """Whether both store the same vectors for the same n-grams."""
        return not any(d.added or d.removed or d.changed for d in self.orders.values())


def diff(environment: Environment, a: str, b: str, samples: int) -> DiffReport:
    """See `Store.diff`."""
    check_number("samples", samples, "pass 0 or more", least=0, whole=True)
    with ExitStack() as held:
        one, two = (held.enter_context(open_reader(environment, which)) for which in (a, b))  # pinned and mapped
        old, new = open_own(environment, one.version), open_own(environment, two.version)
        if (old.schema.n, old.schema.dim, old.schema.vocab) != (new.schema.n, new.schema.dim, new.schema.vocab):
            raise Invalid(f"{a} and {b} differ in n, dim or vocabulary, so their entries cannot be compared")
        orders = {order: _compare(old, new, order, samples) for order in old.schema.orders}
        return DiffReport(old.version.id, new.version.id, orders)


def _compare(old: Own, new: Own, order: int, samples: int) -> OrderDiff:
    counts = dict.fromkeys((*KINDS, "same"), 0)
    shown: dict[str, list[Ngrams]] = {kind: [] for kind in KINDS}

    def note(kind: str, ngrams: Ngrams) -> None:
        if kind != "same":
            room = samples - min(counts[kind], samples)
            shown[kind].append(ngrams[:room].copy())  # a view would keep the whole piece
        counts[kind] += len(ngrams)

    for ngrams, rows, other, found in _matched(old, new, order):
        equal = np.zeros(len(ngrams), np.bool_)
        equal[found] = _same(old, new, order, rows[found], other)
        note("removed", ngrams[~found])
        note("changed", ngrams[found & ~equal])
        note("same", ngrams[equal])
    for ngrams, _, _, found in _matched(new, old, order):
        note("added", ngrams[~found])
    joined = {kind: np.concatenate([np.empty((0, order), np.uint32), *parts]) for kind, parts in shown.items()}
    return OrderDiff(**counts, samples=joined)


def _matched(one: Own, two: Own, order: int) -> Iterator[tuple[Ngrams, Bytes, Bytes, NDArray[np.bool_]]]:
    """(n-grams [m, order], their rows in `one` [m, …], those in `two` [k, …], which of the m are there) by pieces."""
    mine, theirs = one.runs(order), two.runs(order)
    names = list(dict.fromkeys(name for run in mine for name in run.covers))
    table = two.table(theirs)
    for _, rows in one.pieces(order, names, one.table(mine)):
        ngrams = layout.unpack_keys(layout.row_keys(rows, order), order)
        addresses, _ = ops.find(table, order, ngrams, check=False)
        found = addresses != 0
        yield ngrams, rows, two.rows_at(order, addresses[found]), found


def _same(old: Own, new: Own, order: int, one: Bytes, two: Bytes) -> NDArray[np.bool_]:
    """bool [m]: whether rows of the two hold the same vectors."""
    if old.schema.dtype == new.schema.dtype:
        return np.asarray((one == two).all(axis=1))
    n, dim = old.schema.n, old.schema.dim
    left = layout.decode(one, n, order, dim, old.schema.code)
    right = layout.decode(two, n, order, dim, new.schema.code)
    return np.asarray((left == right).all(axis=(1, 2)))
