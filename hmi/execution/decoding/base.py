"""The interface of step executors: rows of many sequences through the upper layers of a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hmi.model.tenant.modules import TenantModule

PAGE = 16
"""Tokens of a page."""


@dataclass(frozen=True)
class Part:
    """The next tokens of one sequence in a step: one that decodes has one, a prompt a chunk."""

    begin: int
    """The position of the first of them."""
    count: int
    pages: NDArray[np.int64]
    """The numbers of the sequence's pages. They hold the keys and values of the tokens before, and have
    room for these."""
    module: TenantModule | None
    wants_scores: bool
    """Whether the last token's scores of the next one are wanted."""


class StepExecutor(Protocol):
    """Runs one root's upper layers. Owns their weights, and the memory of the pages."""

    @property
    def pages(self) -> int:
        """The number of pages."""
        ...

    def prepare(self, module: TenantModule) -> int:
        """See `hmi.execution.base.Executor.prepare`."""
        ...

    def step(self, x: Tensor, parts: Sequence[Part]) -> Tensor:
        """Run a step, and write its keys and values into the parts' pages.

        x: float32 [rows, dim], the rows of each part, one part after another, as a look-up gives them.
        Returns the scores [parts that want them, vocab or more]; that of id 0 and of what is no id is -inf.
        """
        ...


def counts_of(parts: Sequence[Part]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of rows of each part, and the last row of each that wants scores."""
    counts = np.array([part.count for part in parts], np.int64)
    wanted = np.array([part.wants_scores for part in parts], bool)
    return counts, (counts.cumsum() - 1)[wanted]
