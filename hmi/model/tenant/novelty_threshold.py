"""The threshold of a model that may say that it does not know, from the similarities of its own rows.

Loads neither torch nor numpy. `hmi.model.tenant.novelty` says what a similarity is.
"""

from __future__ import annotations

from collections.abc import Sequence

SHARES = (0.999, 0.995, 0.99, 0.985, 0.98, 0.97, 0.96, 0.95, 0.94, 0.92, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""A version has the similarity that each of these shares of its rows reach, in this order."""


def threshold_of(found: Sequence[float], share: float | None) -> float | None:
    """The similarity that `share` of a version's rows reach, between those of SHARES by interpolation.

    found: one for each of SHARES. None without a share, or if the version has none of these figures.
    """
    if not found or share is None:
        return None
    at = max(1, next((i for i, s in enumerate(SHARES) if s <= share), len(SHARES) - 1))
    high, low = SHARES[at - 1], SHARES[at]
    part = min(1.0, max(0.0, (high - share) / (high - low)))
    return found[at - 1] + part * (found[at] - found[at - 1])
