"""The interface of step executors: rows of many sequences through the upper layers of a language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hmi.execution.decoding.scores import ScoreRow
from hmi.model.tenant.modules import LowRankLayer, TenantModule
from hmi.modulespec import GATED

PAGE = 16
"""Tokens of a page."""


@dataclass(slots=True)
class Part:
    """The tokens of one sequence that a step runs: one if it decodes, or a chunk of its prompt, and then
    guesses of what follows."""

    begin: int
    """The first token's position in the sequence, from 0."""
    count: int
    """The number of tokens."""
    pages: Sequence[int]
    """The numbers of the sequence's pages. They hold the keys and values of earlier tokens. They have room
    for those of this part."""
    module: TenantModule | None
    scored: int
    """The number of the last rows for which the step returns the scores of the token that follows. Several:
    all but the first of these rows are guesses."""
    scale: float = 1.0
    """The choice of a token multiplies scores by it. A device then adds up probabilities by itself."""


@dataclass(frozen=True)
class Between:
    """What is done between two layers of a step."""

    call: Callable[[], None]
    """It may run a step of other sequences."""
    flag: NDArray[np.int64] | None = None
    """One number, which other threads change. None: call after each layer, or more often. Else: call after
    layers at whose end the number is not 0."""

    @property
    def wanted(self) -> bool:
        return self.flag is None or bool(self.flag[0])


class PagesLost(Exception):
    """The device has failed, and its keys and values are lost. The executor goes on with empty pages."""


class StepExecutor(Protocol):
    """Runs one root's upper layers. Owns their weights, and the memory of the pages."""

    @property
    def pages(self) -> int:
        """The number of pages. It changes only when a step raises PagesLost."""
        ...

    def prepare(self, module: TenantModule) -> int:
        """See `hmi.execution.base.Executor.prepare`."""
        ...

    def step(self, x: Tensor, parts: Sequence[Part], between: Between | None = None) -> Sequence[ScoreRow]:
        """Run a step. Writes the rows' keys and values into the parts' pages.

        x: float32 [rows, dim], the parts' rows one after another, as a look-up gives them.
        between: called between layers. An executor on a device may leave out calls for a flag.
        Returns the scores of the rows that want them, in their order. Id 0 and numbers that are no id score
        -inf.
        Raises PagesLost if every sequence must be read anew.
        """
        ...


def scored_of(parts: Sequence[Part]) -> NDArray[np.int64]:
    """Return where the rows lie that want scores."""
    ends = accumulate(part.count for part in parts)
    rows = [row for part, end in zip(parts, ends, strict=True) for row in range(end - part.scored, end)]
    return np.array(rows, np.int64)


def check_sites(module: TenantModule, layers: int) -> None:
    """Raise ValueError if a module is no LoRA, or has sites that these layers lack."""
    known = {f"{i}-{site}" for i in range(layers) for site in GATED}
    if unknown := set(module.sites) - known:
        raise ValueError(f"the layers have no site {min(unknown)}")
    if any(not isinstance(c, LowRankLayer) or c.down_bias is not None for c in module.sites.values()):
        raise ValueError("a language model's module must be a LoRA")
