"""The settings of token adaptation, and how many rows each lets into a layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from hmi.core import gamma_name
from hmi.stages.base import Setting

UNTOUCHED: Final = 2 / 9
"""The part of the layers, rounded down to whole ones, that come before the first merging."""
APART: Final = 3
"""The layers from the first merging to a second one, if it takes two: one halves the rows at most."""
HALF: Final = 0.5
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


@lru_cache(maxsize=256)
def merging(gamma: int) -> TokenSetting:
    """Return the setting that merges. gamma: below 0."""
    return TokenSetting(gamma_name(gamma), gamma)


def prompting(count: int) -> TokenSetting:
    """Return the setting that puts `count` prompts before each layer's rows."""
    return TokenSetting(gamma_name(count), count)


MERGE_SETTINGS: Final = tuple(merging(gamma) for gamma in MERGES)
PROMPTS: Final = (2, 8)
"""The numbers of prompts before each layer that are trained, each as a set of its own."""
PROMPT_SETTINGS: Final = tuple(prompting(count) for count in PROMPTS)


@lru_cache(maxsize=256)
def schedule(gamma: int, layers: int) -> tuple[float, ...]:
    """Return the part of a text's rows that enters each layer under a γ below 0: [layers].

    All rows that go do so before one layer, so that few layers pay for merging. In the mean over the layers
    -γ percent are missing.
    """
    first = int(layers * UNTOUCHED + 1e-9)
    to_lose = -gamma / 100 * layers
    lost = min(HALF, to_lose / (layers - first))
    second = first + APART
    more = (
        min(HALF * HALF, (to_lose - lost * (layers - first)) / (layers - second)) if second < layers else 0.0
    )
    kept = [1.0] * first + [1.0 - lost] * (layers - first)
    return tuple(part - more if layer >= second else part for layer, part in enumerate(kept))
