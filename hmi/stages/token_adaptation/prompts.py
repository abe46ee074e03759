"""The hook that puts prompts between [CLS] and the other rows of texts (VPT-deep; OTAS, section 3.2).

Prompts stand after retrieval, so they are never looked up, and they are replaced before each layer: what a
layer made of the former ones is dropped. `Rows.source` names the rows of the original tokens, so neither a
head nor an un-merge ever sees a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.execution.base import Hook
from hmi.execution.batch import Left, Rows
from hmi.stages.base import StageBatch
from hmi.stages.token_adaptation.settings import prompting

Index = NDArray[np.int64]


def prompt_hooks(counts: Mapping[int, int], batch: StageBatch) -> Sequence[Hook]:
    """Return the hook that gives these texts so many prompts; none if no model has such a set."""
    sets = {text: batch.prompts(text, count) for text, count in counts.items()}
    given = {text: prompts for text, prompts in sets.items() if prompts is not None}
    return [PromptHook(given, batch.layers)] if given else []


@dataclass(frozen=True)
class _Places:
    """The rows of a batch at which prompts stand, and the row of the table that stands at each."""

    texts: Sequence[int]
    offsets: Sequence[int]
    at: Tensor
    """int64 [prompts]: rows of the batch."""
    of: Tensor
    """int64 [prompts]: rows of the table."""

    def holds(self, rows: Rows) -> bool:
        """Return whether these are the places in `rows`: no text has left since."""
        return rows.texts is self.texts and rows.offsets is self.offsets


class PromptHook(Hook):
    """Prompts of the texts of one batch. Each text has its own, of any count; other texts are not touched.

    Works on rows that another stage has merged, too. If another stage has dropped tokens before layer 0
    (`Rows.tokens`), the batch gets no prompts.
    """

    def __init__(self, prompts: Mapping[int, Tensor], layers: int) -> None:
        """prompts: fp32 [layers, count, dim] in host memory, by text. Texts may share a tensor."""
        self._concerned = {text: prompting(each.shape[1]).name for text, each in prompts.items()}
        self._at = frozenset(range(layers))
        distinct = {id(each): each for each in prompts.values()}
        first = dict(zip(distinct, np.cumsum([0, *(t.shape[1] for t in distinct.values())]), strict=False))
        self._table = torch.cat(list(distinct.values()), dim=1) if distinct else torch.empty(layers, 0, 0)
        """[layers, prompts, dim] of all distinct sets."""
        self._of = {text: (int(first[id(each)]), each.shape[1]) for text, each in prompts.items()}
        """The first row of the table, and the count, by text."""
        self._places: _Places | None = None

    @property
    def at(self) -> frozenset[int]:
        return self._at

    @property
    def concerns(self) -> Mapping[int, str]:
        return self._concerned

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        if layer == 0 and rows.tokens is None:
            return self._inserted(rows), None
        if self._places is None:
            return rows, None
        if not self._places.holds(rows):
            self._places = self._placed(rows)
        places = self._places
        # A new tensor: the former one may be an executor's own memory, or another stage's.
        x = rows.x.index_copy(0, places.at, self._table[layer].index_select(0, places.of))
        return replace(rows, x=x), None

    def close(self) -> None:
        """Do nothing: the hook holds nothing that others wait for."""

    def _inserted(self, rows: Rows) -> Rows:
        """The rows with prompts before the first layer."""
        if not self._concerned.keys() & rows.texts:
            return rows
        self._table = self._table.to(rows.x.device)
        place, offsets = self._spread(rows)
        there = torch.from_numpy(place).to(rows.x.device)
        x = rows.x.new_empty(offsets[-1], rows.x.shape[1]).index_copy_(0, there, rows.x)
        size = None
        if rows.size is not None:
            size = rows.size.new_ones(offsets[-1]).index_copy_(0, there, rows.size)
        source = there if rows.source is None else there.index_select(0, rows.source)
        spread = replace(rows, x=x, offsets=offsets, source=source, size=size)
        places = self._places = self._placed(spread)
        x.index_copy_(0, places.at, self._table[0].index_select(0, places.of))
        return spread

    def _spread(self, rows: Rows) -> tuple[Index, list[int]]:
        """The new place of each row, and the new offsets."""
        counts = np.array([self._of.get(text, (0, 0))[1] for text in rows.texts], np.int64)
        old = np.array(rows.offsets, np.int64)
        new = old + np.concatenate([[0], counts.cumsum()])
        place = np.arange(old[-1]) + np.repeat(new[1:] - old[1:], np.diff(old))
        place[old[:-1]] = new[:-1]
        return place, new.tolist()

    def _placed(self, rows: Rows) -> _Places:
        """The places of the prompts of these texts."""
        at, of = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for text, (begin, _) in zip(rows.texts, rows.spans(), strict=True):
            first, count = self._of.get(text, (0, 0))
            if count:
                at.append(np.arange(begin + 1, begin + 1 + count))
                of.append(np.arange(first, first + count))
        device = rows.x.device
        where = (torch.from_numpy(np.concatenate(each)).to(device) for each in (at, of))
        return _Places(rows.texts, rows.offsets, *where)
