"""The rows of a language model's texts, from a PLOT."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from plot_store import Reader

RowsOf = Callable[[Tensor], Tensor]
"""ids int64 [B, T], padded with 0 at the end -> the rows float32 [B, T, dim] that enter the upper layers."""


def rows_from_plot(reader: Reader, first: Tensor) -> RowsOf:
    """Rows by look-up; of the begin token, which stands first in each text, `first` [dim]."""

    def rows_of(ids: Tensor) -> Tensor:
        tokens = ids[:, 1:]
        there = tokens > 0
        offsets = np.concatenate([[0], there.sum(1).cumsum(0).numpy()]).astype(np.int64)
        rows, _ = reader.lookup(tokens[there].to(torch.int32).numpy(), offsets)
        made = torch.zeros(*ids.shape, len(first))
        made[:, 0] = first
        made[:, 1:][there] = torch.from_numpy(rows)
        return made

    return rows_of
