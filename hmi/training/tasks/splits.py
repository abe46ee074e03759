"""Rows with their tokenised texts: their targets, and the merging and scoring of outputs on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hmi.model.tasks import TaskKind
from hmi.model.tenant.alignment import aligned_of
from hmi.model.text.batching import Encoded
from hmi.model.text.lexical import Bags, bags_of
from hmi.model.text.tokenizer import Tokenizer
from hmi.model.text.windows import encode_texts
from hmi.training.data.rows import Row
from hmi.training.plans.recipe import ClassWeights
from hmi.training.tasks.objectives import objective_of

IMBALANCE = 10
"""`class_weights=auto` balances the classes if the commonest label has this many times the rows
of the rarest."""


@dataclass(frozen=True)
class Split:
    """Rows with their tokenised texts."""

    rows: list[Row]
    encoded: list[Encoded]
    """The rows' texts; a long text may have several windows."""
    owners: list[int] | None = None
    """The row that each element of `encoded` belongs to; None: `encoded[i]` belongs to `rows[i]`."""

    def upto(self, rows: int) -> Split:
        """Return the first `rows` rows, with their windows."""
        if rows >= len(self.rows):
            return self
        count = rows if self.owners is None else sum(owner < rows for owner in self.owners)
        owners = None if self.owners is None else self.owners[:count]
        return Split(self.rows[:rows], self.encoded[:count], owners)

    def of_rows(self) -> list[list[int]]:
        """For each row, the indices of its windows."""
        if self.owners is None:
            return [[i] for i in range(len(self.rows))]
        out: list[list[int]] = [[] for _ in self.rows]
        for i, owner in enumerate(self.owners):
            out[owner].append(i)
        return out


def encoded_split(rows: list[Row], tokenizer: Tokenizer, max_length: int, *, windows: bool) -> Split:
    """Tokenise rows. Equal numbers are one object, since a number of its own would take 28 bytes a token."""
    texts = encode_texts(tokenizer, [row.text for row in rows], max_length, windows=windows)
    owners = [i for i, text in enumerate(texts) for _ in text]
    one: dict[Any, Any] = {}

    def shared(window: Encoded) -> Encoded:
        ids = [one.setdefault(n, n) for n in window.ids]
        return replace(window, ids=ids, words=[one.setdefault(n, n) for n in window.words])

    return Split(rows, [shared(window) for text in texts for window in text], owners)


def imbalance(rows: Sequence[Row]) -> tuple[float, str, str] | None:
    """How many times the rows of the rarest label the commonest has: (times, commonest, rarest).
    None for rows without a single label each."""
    counts = Counter(row.label for row in rows if isinstance(row.label, str))
    if len(counts) < 2:
        return None
    (common, most), *_, (rare, least) = counts.most_common()
    return most / least, common, rare


def merged_outputs(task: TaskKind, split: Split, outputs: Sequence[Tensor]) -> list[Tensor]:
    """Merge the outputs of each row's windows into one."""
    return [
        task.merge([outputs[i] for i in mine], [split.encoded[i] for i in mine], _words(row))
        for row, mine in zip(split.rows, split.of_rows(), strict=True)
    ]


def judge(task: TaskKind, split: Split, outputs: Sequence[Tensor]) -> dict[str, Any]:
    """Held-out metrics of one split."""
    return objective_of(task).score([row.label for row in split.rows], merged_outputs(task, split, outputs))


def task_targets(task: TaskKind, split: Split) -> list[list[float]]:
    """The training target of each window."""
    objective, out = objective_of(task), [list[float]()] * len(split.encoded)
    for row, mine in zip(split.rows, split.of_rows(), strict=True):
        targets = objective.targets(row.label, [split.encoded[i] for i in mine])
        for i, target in zip(mine, targets, strict=True):
            out[i] = target
    return out


def split_bags(
    split: Split, buckets: int, features: Callable[[Sequence[int]], list[Tensor]]
) -> Callable[[Sequence[int]], list[Bags]] | None:
    """A function that computes the lexical features of windows by their indices, on demand, to save
    memory. None if `buckets` is 0.

    features: gives the rows that enter the upper layers, by which pairs of texts are aligned.
    """
    if not buckets:
        return None
    owners = range(len(split.rows)) if split.owners is None else split.owners
    paired = bool(split.rows) and isinstance(split.rows[0].text, tuple)

    def bags(windows: Sequence[int]) -> list[Bags]:
        found = [bags_of(split.rows[owners[i]].text, split.encoded[i], buckets) for i in windows]
        if not paired or not windows:
            return found
        rows = torch.cat(features(windows)).float()
        aligned = aligned_of(rows, [split.encoded[i] for i in windows])
        return [replace(bag, aligned=mine) for bag, mine in zip(found, aligned, strict=True)]

    return bags


def class_weights(
    task: TaskKind, train: Split, targets: Sequence[Sequence[float]], wanted: ClassWeights
) -> tuple[float, ...] | None:
    """Weights of the classes in the loss; None: all equal. Raises InvalidInput if the task has no classes."""
    if wanted == "off":
        return None
    if wanted == "auto":
        skewed = imbalance(train.rows)
        if skewed is None or skewed[0] < IMBALANCE:
            return None
    return tuple(objective_of(task).weights(targets, task.outputs).tolist())


def _words(row: Row) -> int:
    return len(row.text) if isinstance(row.text, list) else 0
