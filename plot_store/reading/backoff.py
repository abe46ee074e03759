"""Back-off plans: the order in which shorter n-grams and ancestors fill a window whose n-gram is not stored.

"order"    the longest n-grams of every version first: a grandparent's trigram beats the branch's bigram
"version"  everything of the nearest version first: the branch's bigram beats its parent's trigram;
           unigrams last
steps      [(order, depth), …] as given; depth counts versions from the nearest (0), None means all
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plot_store.ground.errors import Invalid
from plot_store.ground.ngrams import check_order

Step = tuple[int, int | None]
Backoff = str | Sequence[Step]
_NAMES: Final = ("order", "version")
_MAX_STEPS: Final = 1024


def steps_of(backoff: Backoff, n: int, depths: int) -> list[Step] | None:
    """Return the steps of a plan for windows of width n and a chain of `depths` versions.

    Returns None for the default plan, "order". Raises Invalid.
    """
    if backoff == "order":
        return None
    if backoff == "version":
        return [(order, depth) for depth in range(depths) for order in range(n, 1, -1)] + [(1, None)]
    if isinstance(backoff, str) or not isinstance(backoff, Sequence):
        raise Invalid(
            f"backoff {backoff!r} is unknown: use {' or '.join(_NAMES)}, or steps [(order, depth or None)]"
        )
    if not 0 < len(backoff) <= _MAX_STEPS:
        raise Invalid(f"backoff has {len(backoff)} steps: give 1 to {_MAX_STEPS}")
    return [_checked(step, n, depths) for step in backoff]


def _checked(step: object, n: int, depths: int) -> Step:
    if not isinstance(step, Sequence) or isinstance(step, str) or len(step) != 2:
        raise Invalid(
            f"back-off step {step!r} is not a pair: use (order, depth), or (order, None) for every version"
        )
    order, depth = step
    check_order(order, n)
    if depth is not None and (
        isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth < depths
    ):
        raise Invalid(
            f"back-off step {step!r} names a version that the chain of {depths} lacks: use 0 for the nearest "
            f"to {depths - 1} for the root, or None for every version"
        )
    return int(order), depth
