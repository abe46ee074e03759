"""The hook of one batch that merges rows before layers, each text by its own γ.

An audited text goes twice through the layers, merged and as it is; the merged answer is given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hmi_kernels.rows.merging import merge
from numpy.typing import NDArray
from torch import Tensor

from hmi.execution.base import Hook, Output
from hmi.execution.batch import Left, Rows
from hmi.model.tenant.calibration import Floats
from hmi.stages.base import StageBatch, Text
from hmi.stages.early_exit.answers import agreeing, short_forms
from hmi.stages.token_adaptation.audits import AuditRecords
from hmi.stages.token_adaptation.settings import merging, schedule

_Ints = NDArray[np.int64]
_START, _COUNT, _LOSE = range(3)
"""The columns of runs: the first row, the number of rows, and the number of rows to lose."""


def merged(x: Tensor, size: Tensor | None, runs: _Ints) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the rows of runs, on the rows that enter a layer (ToMe, ICLR '23, as OTAS uses it).

    A run is a stretch of neighbouring rows that may be merged with each other: those of one segment of a
    text. Special tokens are in no run, so they stay. docs/design/0013-token-adaptation.md says where this
    differs from the papers.

    x fp32 [rows, dim] and size fp32 [rows] (None: one each): as in `Rows`. runs int64 [runs, 3]: first row,
    number of rows and the number of rows to lose, at most half; ascending, without overlap. The rows of a run
    are alternately in A and in B. Of the rows of A, those that resemble a row of B most (by their cosine)
    become a part of its mean, weighed by size. Ties go to the earlier row.

    Returns the rows that are left, their sizes, and int64 [rows]: the row that stands for each former one.
    On a device nothing is waited for.
    """
    if x.is_cuda:
        return merged_in_torch(x, size, runs)
    x = x.contiguous()
    rows, left = len(x), len(x) - int(runs[:, _LOSE].sum())
    sizes = np.ones(rows, np.float32) if size is None else size.numpy()
    out, out_size = torch.empty(left, x.shape[1]), np.empty(left, np.float32)
    into = np.empty(rows, np.int64)
    merge(x.numpy(), sizes, runs, into, out.numpy(), out_size)
    return out, torch.from_numpy(out_size), torch.from_numpy(into)


def merged_in_torch(x: Tensor, size: Tensor | None, runs: _Ints) -> tuple[Tensor, Tensor, Tensor]:
    """`merged` by torch operations on the rows' device, all runs at once, padded to the longest.

    How many rows are left is known on the host, so nothing waits for the device.
    """
    lost, rows = int(runs[:, _LOSE].sum()), len(x)
    weight = x.new_ones(rows) if size is None else size
    target = torch.arange(rows + 1, device=x.device)  # the last one takes what is not to be written
    if lost == 0:
        return x, weight, target[:rows]
    runs = runs[runs[:, _LOSE] > 0]
    start, count, lose = (torch.from_numpy(column.copy()).to(x.device)[:, None] for column in runs.T)
    place = torch.arange((int(runs[:, _COUNT].max()) + 1) // 2, device=x.device)
    a, b = start + 2 * place, start + 2 * place + 1
    unit = torch.nn.functional.normalize(x, dim=-1)
    like = unit[a.clamp(max=rows - 1)] @ unit[b.clamp(max=rows - 1)].transpose(1, 2)
    like = like.masked_fill((b >= start + count)[:, None], -torch.inf)
    score, best = like.max(-1)
    score = score.masked_fill(a >= start + count, -torch.inf)
    goes = score.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1) < lose
    gone = torch.where(goes, a, rows).flatten()
    target[gone] = b.gather(1, best).flatten()
    stays = torch.ones_like(target).index_fill_(0, gone, 0)
    into = (stays.cumsum(0) - 1)[target[:rows]]
    total = x.new_zeros(rows - lost).index_add_(0, into, weight)
    out = x.new_zeros(rows - lost, x.shape[1]).index_add_(0, into, x * weight[:, None])
    return out / total[:, None], total, into


@dataclass(frozen=True)
class Runs:
    """The runs of a batch's texts, and what each loses before each layer."""

    text: _Ints
    """[runs]: the text of each, ascending."""
    first: _Ints
    """[runs]: the first row, counted from the text's, before any is lost."""
    count: _Ints
    """[runs]: the number of rows before any is lost."""
    lose: _Ints
    """[layers, runs]"""

    @classmethod
    def of(cls, batch: StageBatch, gammas: Mapping[int, int]) -> Runs:
        """The runs of the texts that have a γ below 0."""
        found, parts, by = [], [], []
        for text, gamma in sorted(gammas.items()):
            stretches = batch.stretches(text)
            part = batch.tokens[text] / max(1, sum(count for _, count in stretches))
            for first, count in stretches:
                found.append((text, first, count))
                parts.append(part)
                by.append(gamma)
        about: _Ints = np.array(found, np.int64).reshape(-1, 3)
        gone = {gamma: 1.0 - np.array(schedule(gamma, batch.layers)) for gamma in set(by)}
        shares = np.array([gone[gamma] for gamma in by]).reshape(len(by), batch.layers)
        wanted: Floats = shares.T * (np.array(parts) * about[:, 2])
        return cls(about[:, 0], about[:, 1], about[:, 2], _steps(about[:, 2], wanted))


def _steps(count: _Ints, gone: Floats) -> _Ints:
    """The rows that each run loses before each layer, [layers, runs], at most half of those it then has.

    gone [layers, runs]: the number of rows that a run should have lost by then, not rounded.
    """
    wanted = np.floor(gone + 0.5).astype(np.int64)
    left, lose = count.copy(), np.zeros_like(wanted)
    for layer in range(len(wanted)):
        if layer and (wanted[layer] == wanted[layer - 1]).all():
            continue
        lose[layer] = np.clip(wanted[layer] - (count - left), 0, left // 2)
        left = left - lose[layer]
    return lose


@dataclass(frozen=True)
class Audited:
    """A text that runs merged and unmerged."""

    text: Text
    gamma: int


class MergeHook(Hook):
    """One batch's hook; see `Hook`."""

    def __init__(
        self, batch: StageBatch, gammas: Mapping[int, int], audited: Collection[int], ledger: AuditRecords
    ) -> None:
        """gammas: by text, each below 0; a text that would lose no row is not concerned. audited: those of
        these texts that also run unmerged."""
        self._runs, self._ledger = Runs.of(batch, gammas), ledger
        losing = set(self._runs.text[self._runs.lose.any(axis=0)].tolist())
        self._gammas = {text: gamma for text, gamma in gammas.items() if text in losing}
        self._before = np.cumsum(self._runs.lose, axis=0) - self._runs.lose
        """[layers, runs]: the rows that each has lost before a layer."""
        self._at = frozenset(np.flatnonzero(self._runs.lose.any(axis=1)).tolist())
        self._audits = {
            text: Audited(batch.texts[text], gammas[text]) for text in losing.intersection(audited)
        }
        self._waiting = set(self._audits) if self._at else set[int]()
        """The audited texts that are not in the rows twice yet."""
        self._alone = set[int]()
        """The texts that another stage has changed."""

    @property
    def at(self) -> frozenset[int]:
        return self._at

    @property
    def concerns(self) -> Mapping[int, str]:
        return {text: merging(gamma).name for text, gamma in self._gammas.items()}

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        if rows.tokens is not None:  # another stage has dropped tokens
            return rows, None
        if layer == min(self._at):
            self._alone.update(rows.texts[place] for place in rows.changed)
            rows = self._twice(rows)
        runs, lost = self._now(layer, rows)
        if not lost.any():
            return rows, None
        x, size, into = merged(rows.x, rows.size, runs)
        source = into if rows.source is None else into[rows.source]
        offsets = np.asarray(rows.offsets) - np.concatenate([[0], np.cumsum(lost)])
        return Rows(x, offsets.tolist(), rows.texts, source, size), None

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        """See `Hook.ended`. The second output of a text is that of its unmerged rows."""
        seen: dict[int, Output] = {}
        for text, output in zip(texts, outputs, strict=True):
            if text not in self._audits:
                continue
            first = seen.setdefault(text, output)
            if first is not output:
                self._compare(self._audits.pop(text), first, output)
        return outputs

    def close(self) -> None:
        """Drop the audits of texts that failed or left early."""
        self._audits.clear()

    def _twice(self, rows: Rows) -> Rows:
        """Put each audited text into the rows a second time, behind the first."""
        doubled = self._waiting.intersection(rows.texts) - self._alone
        self._waiting -= doubled
        if not doubled:
            return rows
        parts = [(i, None) for i, text in enumerate(rows.texts) for _ in range(1 + (text in doubled))]
        return rows.taken(parts)

    def _now(self, layer: int, rows: Rows) -> tuple[_Ints, _Ints]:
        """The runs as they lie in these rows, and the rows that each text of them loses."""
        places = {text: place for place, text in reversed(list(enumerate(rows.texts)))}
        of, lose = self._runs, self._runs.lose[layer]
        place = np.array([-1 if t in self._alone else places.get(t, -1) for t in of.text.tolist()], np.int64)
        here = np.flatnonzero((place >= 0) & (lose > 0))
        gone = self._before[layer]
        earlier = np.cumsum(gone) - gone
        starts_text = np.concatenate([[True], of.text[1:] != of.text[:-1]])
        base = np.maximum.accumulate(np.where(starts_text, np.arange(len(gone)), 0))
        first = of.first - (earlier - earlier[base])
        runs = np.empty((len(here), 3), np.int64)
        runs[:, _START] = np.asarray(rows.offsets)[place[here]] + first[here]
        runs[:, _COUNT], runs[:, _LOSE] = (of.count - gone)[here], lose[here]
        lost = np.bincount(place[here], weights=lose[here], minlength=len(rows.texts))
        return runs, lost.astype(np.int64)

    def _compare(self, one: Audited, adapted: Output, plain: Output) -> None:
        if not (isinstance(adapted, Tensor) and isinstance(plain, Tensor)):
            return
        task, of = one.text.task, one.text
        outputs = [of.merged(output) if task.name == "tagging" else output for output in (adapted, plain)]
        some, others = ([answer] for answer in short_forms(task, outputs))
        (same,) = agreeing(task, some, others)
        self._ledger.record(of.model, of.version.artefact, one.gamma, disagrees=not same)
