"""Spending a budget of bytes: how many n-grams of each order to store, and which. Used instead of alpha."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hmi.errors import InvalidInput
from hmi.jobs.plots import Wanted
from plot_store import Among, CountedNgrams, Schema, disk_bytes, entries_within, entry_bytes

FIELD: Final = "options.budget_bytes"
SHORTER_SHARE: Final = 0.8
"""Share of a budget for bigrams, measured in docs/design/0006-alpha-and-storage.md. The optimum is
flat: .7 to .9."""

Histogram = Mapping[int, int]  # occurrences -> how many n-grams have as many


@dataclass(frozen=True)
class Choice:
    """What a budget stores. It covers `alpha` percent of the longest n-grams' occurrences,
    with its ancestors."""

    wanted: list[Wanted]
    alpha: float


def check_budget(budget: int, spent: int, schema: Schema) -> int:
    """The bytes that are left of a budget where the version has `spent` already. Raises
    InvalidInput for too few."""
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
) -> Choice:
    """The most frequent n-grams that fit in `room` bytes, of those that `among` takes of an order:
    the rest is there.

    Reads the counts once or twice for it. Raises as `CountedNgrams.histogram`.
    """
    orders, n = range(2, schema.n + 1), schema.n
    costing = {order: counted.histogram(order, among(order)) for order in orders}
    there = {order: sum(k for c, k in costing[order].items() if c >= min_count) for order in orders}
    numbers = split_budget(schema, room, there)
    wanted = [
        Wanted(order, numbers[order], counted.most_frequent(order, numbers[order], min_count, among(order)))
        for order in orders
    ]
    bought = top_occurrences(costing[n], numbers[n])
    shared = counted.total(n) - sum(count * ngrams for count, ngrams in costing[n].items())
    return Choice(wanted, round(100 * (bought + shared) / max(1, counted.total(n)), 2))


def split_budget(schema: Schema, room: int, there: Mapping[int, int]) -> dict[int, int]:
    """The number of n-grams of each order, from 2 up, to store in `room` bytes, limited by how
    many there are.

    Bigrams get SHORTER_SHARE and trigrams the rest; with a wider window the rest is split again, order
    by order. Room that an order does not need goes to the longer orders first, then to the shorter ones.
    """
    taken, spent, up_to = dict.fromkeys(there, 0), 0, 0.0
    for order in sorted(there):
        longer = schema.n - order
        up_to += SHORTER_SHARE**longer * (1 - SHORTER_SHARE if order > 2 else 1)
        taken[order] = min(there[order], entries_within(schema, order, int(room * up_to) - spent))
        spent += disk_bytes(schema, order, taken[order])
    for order in sorted(there):
        spent -= disk_bytes(schema, order, taken[order])
        taken[order] = max(taken[order], min(there[order], entries_within(schema, order, room - spent)))
        spent += disk_bytes(schema, order, taken[order])
    return taken


def top_occurrences(histogram: Histogram, most: int) -> int:
    """How often the `most` frequent n-grams occur, together."""
    found = 0
    for count in sorted(histogram, reverse=True):
        taken = min(most, histogram[count])
        found, most = found + count * taken, most - taken
    return found
