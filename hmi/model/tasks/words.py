"""One tag for each word of a text that is already split into words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.core import Task, TaskRules
from hmi.model.batching import Encoded
from hmi.model.golds import Gold, checked_labels
from hmi.model.heads import outside_tag
from hmi.model.scoring import calibration, is_bio, score_tags
from hmi.model.tagging import Floats, best_path, from_bio, marginals, rules, scheme_of, to_bio
from hmi.model.tasks.base import IGNORE, Answer, TaskKind, balanced
from hmi.model.windows import central_pieces, first_pieces

UNSEEN = -1e4
"""Log-probability of any but the outside tag for a word that the model did not see: unlikely, yet not illegal."""


@dataclass(frozen=True)
class Tagging(TaskKind):
    """Scores at each word's first piece; the answer is the best path under the rows' scheme and what was learnt of
    which tag follows which.

    Of rows in IOB1 or IO `labels` are BIO's, which say where an entity begins; answers are in the rows' scheme again. A
    word that was not seen is tagged `outside_tag` with probability 0, within an entity as the entity.
    """

    transitions: Floats | None = field(default=None, compare=False)
    """[labels + 1, labels], see `Transitions`; of the weights, not of the registry's record."""

    name: ClassVar[Task] = "tagging"

    @property
    def form(self) -> tuple[type, str]:
        return list, "tokens"

    @classmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> Self:
        scheme = scheme_of([tags_in(g) for g in golds])
        told = [to_bio(tags_in(g)) for g in golds] if scheme in ("iob1", "io") else golds
        labels = set(checked_labels(told, field))
        if scheme == "io":  # where two entities touch, IO makes one of them, and its second word goes on
            labels |= {f"I-{label[2:]}" for label in labels if label != "O"}
        return cls(tuple(sorted(labels)), TaskRules(scheme=scheme))

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        index = {label: i for i, label in enumerate(self.labels)}
        tags, out = self._told(gold), []
        for window in windows:
            target: list[float] = [IGNORE] * len(window)
            for word, position in first_pieces(window.words).items():
                target[position] = index[tags[word]]
            out.append(target)
        return out

    @classmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        wanted = torch.full(logits.shape[:2], IGNORE)
        for i, target in enumerate(targets):
            wanted[i, : len(target)] = torch.tensor(target, dtype=torch.int64)
        if not bool((wanted != IGNORE).any()):
            return logits.sum() * 0.0  # words of which the tokenizer makes nothing: the mean of none is no number
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), weights, ignore_index=IGNORE)

    @classmethod
    def weights(cls, targets: Sequence[Sequence[float]], outputs: int) -> Tensor:
        return balanced((i for target in targets for i in target), outputs)

    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        """Log-probabilities [words, labels], a word's from its most central window."""
        merged = torch.full((words, len(self.labels)), UNSEEN)
        merged[:, self.labels.index(outside_tag(self.labels))] = 0.0
        seen = central_pieces(windows)
        if seen:
            rows = torch.stack([outputs[window][position] for window, position in seen.values()])
            merged[list(seen)] = rows.float().log_softmax(-1)
        return merged

    def answer(self, merged: Tensor, *, scores: bool = False) -> Answer:
        """Paths go over the words that were seen: they cost what a model has read, however many words a text has."""
        seen = torch.nonzero((merged != UNSEEN).all(-1))[:, 0].numpy()
        moves, found = self._moves, merged.numpy()[seen]
        path = best_path(found, moves)
        of_each = np.exp(found) if moves is None or not len(seen) else marginals(found, moves)
        sure = np.zeros(len(merged))
        sure[seen] = of_each[range(len(seen)), path]
        tags = [outside_tag(self.labels)] * len(merged)
        for word, tag in zip(seen.tolist(), path.tolist(), strict=True):
            tags[word] = self.labels[tag]
        return Answer(tags=from_bio(_bridged(tags, seen.tolist()), self.rules.scheme), tag_scores=sure.tolist())

    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        answers = [self.answer(m) for m in merged]
        tags = [list(tags_in(g)) for g in golds]
        got = [a.tags or [] for a in answers]
        right = [g == p for gs, ps in zip(tags, got, strict=True) for g, p in zip(gs, ps, strict=True)]
        sure = [s for a in answers for s in a.tag_scores or []]
        return {**score_tags(tags, got), "calibration": calibration(sure, right)}

    def chance(self, golds: Sequence[Gold]) -> float:
        """Of entities 0, since O for every word finds none; of other tags the commonest one's share of the words."""
        counts = Counter(tag for gold in golds for tag in tags_in(gold))
        return 0.0 if is_bio(set(counts)) else max(counts.values(), default=0) / max(1, counts.total())

    def unknown(self, gold: Gold) -> set[str]:
        return set(self._told(gold)) - set(self.labels)

    def with_transitions(self, table: Tensor | None) -> Self:
        return replace(self, transitions=None if table is None else table.detach().float().numpy())

    @property
    def _moves(self) -> Floats | None:
        """Which tags may follow which, and their learnt scores; None if neither is known."""
        legal = rules(self.labels, self.rules.scheme)
        if legal is None or self.transitions is None:
            return self.transitions if legal is None else legal
        return legal + self.transitions

    def _told(self, gold: Gold) -> tuple[str, ...]:
        """A row's tags in the scheme of `labels`."""
        return to_bio(tags_in(gold)) if self.rules.scheme in ("iob1", "io") else tags_in(gold)


def tags_in(gold: Gold) -> tuple[str, ...]:
    assert isinstance(gold, tuple)
    return gold


def _bridged(tags: list[str], seen: list[int]) -> list[str]:
    """Tags of words of which the tokenizer makes nothing: where the next word goes on with an entity, so do they."""
    for before, word in pairwise(seen):
        if word - before > 1 and tags[word][:2] == "I-" and tags[before] in (tags[word], f"B-{tags[word][2:]}"):
            tags[before + 1 : word] = [tags[word]] * (word - before - 1)
    return tags
