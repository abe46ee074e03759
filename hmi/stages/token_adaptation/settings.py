"""The settings of token adaptation, and how many rows each lets into a layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from hmi.stages.base import Setting

EVERY: Final = 3
"""Rows are merged before every third layer, the first one included."""
LEAST_KEPT: Final = 0.05
"""The least part of a text's rows that a schedule lets into a layer."""
SHORTEST: Final = 8
"""Texts of fewer tokens are not merged: that costs more than it saves."""


@dataclass(frozen=True)
class TokenSetting(Setting):
    """One γ of OTAS. A batch's setting is a level: each text gets the boldest γ at or below it that its model
    may use."""

    gamma: int = 0
    """Below 0: merging saves this percentage of the rows that enter all layers together. Above 0: this many
    prompts stand before each layer's rows."""


MERGES: Final = (-10, -20, -35, -50)
"""The γ of merging, the boldest last."""


def merging(gamma: int) -> TokenSetting:
    """Return the setting that merges. gamma: below 0."""
    return TokenSetting(f"merge {-gamma}%", gamma)


MERGE_SETTINGS: Final = tuple(merging(gamma) for gamma in MERGES)


@lru_cache(maxsize=256)
def schedule(gamma: int, layers: int) -> tuple[float, ...]:
    """Return the part of a text's rows that enters each layer under a γ below 0: [layers].

    Equally many go before every layer that merges, the first one too, since rows from a PLOT overlap. In the
    mean over the layers -γ percent are missing.
    """
    steps = [layer // EVERY + 1 for layer in range(layers)]
    lost = -gamma / 100 * layers / sum(steps)
    return tuple(max(LEAST_KEPT, 1.0 - lost * step) for step in steps)
