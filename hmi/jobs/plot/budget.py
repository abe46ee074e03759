"""The choice of n-grams that fit a budget of bytes: how many of each order, and which. A build has
a budget or an alpha."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hmi.errors import InvalidInput
from hmi.jobs.plot.write_plot import Wanted
from plot_store import Among, CountedNgrams, Schema, disk_bytes, entries_within, entry_bytes

FIELD: Final = "options.budget_bytes"
SHORTER_SHARE: Final = 0.8
"""Share of a trigram PLOT's budget that bigrams get. Any share from 0.7 to 0.9 does about
as well (docs/design/0006-alpha-and-storage.md)."""

Histogram = Mapping[int, int]  # number of occurrences -> number of n-grams that occur so often


@dataclass(frozen=True)
class NgramChoice:
    """The n-grams chosen for a PLOT. With its ancestors' entries they cover `alpha` percent of the
    longest n-grams' occurrences."""

    wanted: list[Wanted]
    alpha: float


def check_budget(budget: int, spent: int, schema: Schema) -> int:
    """Return the bytes that remain of a budget of which `spent` are used. Raises InvalidInput if
    they hold no entry."""
    least = disk_bytes(schema, schema.n, 1)
    if budget - spent >= least:
        return budget - spent
    if spent:
        raise InvalidInput(
            f"the domain's current version already takes {spent:,} of the budget's {budget:,} bytes: "
            f"give at least {spent + least:,}, or an alpha",
            field=FIELD,
        )
    raise InvalidInput(
        f"{budget:,} bytes hold no n-gram (an entry takes {entry_bytes(schema, schema.n):,}, and its "
        f"files need room): give at least {least:,}, or alpha 0 for a branch without entries of its own",
        field=FIELD,
    )


def choose_within(
    counted: CountedNgrams, schema: Schema, room: int, min_count: int, among: Callable[[int], Among | None]
) -> NgramChoice:
    """Choose the most frequent n-grams that fit in `room` bytes.

    `among(order)` selects the n-grams that would take bytes; the others are stored already. The
    counts are read once or twice for each order. Raises as `CountedNgrams.histogram`.
    """
    orders, n = range(2, schema.n + 1), schema.n
    costing = {order: counted.histogram(order, among(order)) for order in orders}
    available = {order: sum(k for c, k in costing[order].items() if c >= min_count) for order in orders}
    numbers = split_budget(schema, room, available)
    wanted = [
        Wanted(order, numbers[order], counted.most_frequent(order, numbers[order], min_count, among(order)))
        for order in orders
    ]
    bought = top_occurrences(costing[n], numbers[n])
    shared = counted.total(n) - sum(count * ngrams for count, ngrams in costing[n].items())
    return NgramChoice(wanted, round(100 * (bought + shared) / max(1, counted.total(n)), 2))


def split_budget(schema: Schema, room: int, available: Mapping[int, int]) -> dict[int, int]:
    """The number of n-grams of each order, from 2 up, to store in `room` bytes; at most `available[order]`.

    With n = 3, bigrams get SHORTER_SHARE and trigrams the rest. With a larger n, the rest of each
    order is split again. Bytes that an order does not need go to the longer orders first, then to
    the shorter ones.
    """
    taken, spent, up_to = dict.fromkeys(available, 0), 0, 0.0
    for order in sorted(available):
        longer = schema.n - order
        up_to += SHORTER_SHARE**longer * (1 - SHORTER_SHARE if order > 2 else 1)
        taken[order] = min(available[order], entries_within(schema, order, int(room * up_to) - spent))
        spent += disk_bytes(schema, order, taken[order])
    for order in sorted(available):
        spent -= disk_bytes(schema, order, taken[order])
        taken[order] = max(taken[order], min(available[order], entries_within(schema, order, room - spent)))
        spent += disk_bytes(schema, order, taken[order])
    return taken


def top_occurrences(histogram: Histogram, most: int) -> int:
    """The total occurrences of the `most` most frequent n-grams."""
    found = 0
    for count in sorted(histogram, reverse=True):
        taken = min(most, histogram[count])
        found, most = found + count * taken, most - taken
    return found
