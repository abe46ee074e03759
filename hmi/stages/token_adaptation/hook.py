"""The hook of one batch that merges rows before layers, each text by its own γ.

An audited text goes twice through the layers, merged and as it is; the merged answer is given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hmi.execution.base import Hook, Output
from hmi.execution.batch import Left, Rows
from hmi.model.tenant.calibration import Floats
from hmi.stages.base import StageBatch, Text
from hmi.stages.early_exit.answers import agreeing, short_forms
from hmi.stages.token_adaptation.audits import AuditRecords
from hmi.stages.token_adaptation.merging import COUNT, LOSE, START, Ints, merged
from hmi.stages.token_adaptation.settings import merging, schedule


@dataclass(frozen=True)
class Runs:
    """The runs of a batch's texts, and what each loses before each layer."""

    text: Ints
    """[runs]: the text of each, ascending."""
    first: Ints
    """[runs]: the first row, counted from the text's, before any is lost."""
    count: Ints
    """[runs]: the number of rows before any is lost."""
    lose: Ints
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
        about: Ints = np.array(found, np.int64).reshape(-1, 3)
        gone = {gamma: 1.0 - np.array(schedule(gamma, batch.layers)) for gamma in set(by)}
        shares = np.array([gone[gamma] for gamma in by]).reshape(len(by), batch.layers)
        wanted: Floats = shares.T * (np.array(parts) * about[:, 2])
        return cls(about[:, 0], about[:, 1], about[:, 2], _steps(about[:, 2], wanted))


def _steps(count: Ints, gone: Floats) -> Ints:
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

    def _now(self, layer: int, rows: Rows) -> tuple[Ints, Ints]:
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
        runs[:, START] = np.asarray(rows.offsets)[place[here]] + first[here]
        runs[:, COUNT], runs[:, LOSE] = (of.count - gone)[here], lose[here]
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
