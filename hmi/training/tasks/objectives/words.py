"""The objective for one tag for each word: cross-entropy at each word's first token.

A teacher's tags may have probabilities (`SoftTags`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hmi.core import TaskRules
from hmi.model.tags.entities import OUTSIDE, groups_of, log_odds, mean_score
from hmi.model.tags.tag_schemes import Scheme, in_labels, scheme_of
from hmi.model.tasks.words import Tagging
from hmi.model.tenant.calibration import Floats
from hmi.model.text.batching import Encoded
from hmi.model.text.windows import first_pieces
from hmi.training.data.golds import Gold, SoftTags, checked_labels
from hmi.training.tasks.calibration import ModelDecisions
from hmi.training.tasks.objectives.base import IGNORE, SoftTarget, TaskObjective, balanced, likely
from hmi.training.tasks.scoring import calibration, is_bio, score_tags, tag_parts


class FoundEntities(NamedTuple):
    """Entities that a model found, with their scores: the arguments of `calibrated_entities`."""

    odds: Floats
    """[entities]: the log odds of each entity's score."""
    right: NDArray[np.bool_]
    """[entities]: whether type and place are right."""
    rows: NDArray[np.int64]
    """[entities]: the row of each."""


@dataclass(frozen=True)
class TaggingObjective(TaskObjective[Tagging]):
    """Tagging. If transitions are learnt, `Transitions.loss` replaces the loss here."""

    @classmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> Tagging:
        scheme = scheme_of([tags_in(g) for g in golds])
        labels = set(checked_labels([in_labels(tags_in(g), scheme) for g in golds], field))
        if scheme in ("io", "plain"):  # IO joins entities that touch, so any type may need its I- tag
            labels |= {f"I-{label[2:]}" for label in labels if label != "O"}
        return Tagging(tuple(sorted(labels)), TaskRules(scheme=scheme))

    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        index = {label: i for i, label in enumerate(self.task.labels)}
        out: list[list[float]] = []
        if isinstance(gold, SoftTags):
            ids = [_target(word, index) for word in gold.words]
        else:
            ids = [index[tag] for tag in self._in_scheme(gold)]
        for window in windows:
            target: list[float] = [IGNORE] * len(window)
            for word, position in first_pieces(window.words).items():
                target[position] = ids[word]
            out.append(target)
        return out

    @classmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        wanted = torch.full(logits.shape[:2], IGNORE)
        for i, target in enumerate(targets):
            wanted[i, : len(target)] = torch.tensor(target, dtype=torch.int64)
        if not bool((wanted != IGNORE).any()):
            # No word has a token, and cross_entropy's mean would be NaN.
            return logits.sum() * 0.0
        if not any(isinstance(tag, SoftTarget) for target in targets for tag in target):
            return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), weights, ignore_index=IGNORE)
        return cls._soft_loss(logits[wanted != IGNORE], targets, weights)

    @classmethod
    def _soft_loss(cls, scores: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        """The cross-entropy of scores [words, labels].

        Soft tags are not weighted, since their teacher was trained with the weights. Tags of which a teacher
        was sure are weighted like those of rows.
        """
        tags = [tag for target in targets for tag in target if tag != IGNORE]
        wanted = likely(tags, scores.shape[-1])
        if weights is not None:
            hard = torch.tensor([not isinstance(tag, SoftTarget) for tag in tags])
            wanted[hard] *= weights
        return -(wanted * scores.log_softmax(-1)).sum() / wanted.sum()

    @classmethod
    def mass(cls, targets: Sequence[Sequence[float]], weights: Tensor | None) -> float:
        """The number of words or, with weights, the sum of the words' weights."""
        tags = [tag for target in targets for tag in target if tag != IGNORE]
        if weights is None:
            return float(len(tags))
        return math.fsum(1.0 if isinstance(tag, SoftTarget) else float(weights[int(tag)]) for tag in tags)

    @classmethod
    def weights(cls, targets: Sequence[Sequence[float]], outputs: int) -> Tensor:
        return balanced((i for target in targets for i in target), outputs)

    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        answers = [self.task.answer(m) for m in merged]
        tags = [list(tags_in(g)) for g in golds]
        got = [a.tags or [] for a in answers]
        right = [g == p for gs, ps in zip(tags, got, strict=True) for g, p in zip(gs, ps, strict=True)]
        sure = [s for a in answers for s in a.tag_scores or []]
        return {**score_tags(tags, got, self._scheme), "calibration": calibration(sure, right)}

    def parts(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> Floats:
        """A row's parts of entity F1 are twice the entities found, and those given plus those right.

        Without a tag scheme they are the words with the right tag, and all words.
        """
        tags = [list(tags_in(gold)) for gold in golds]
        return tag_parts(tags, [self.task.answer(m).tags or [] for m in merged], self._scheme)

    def decisions(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> ModelDecisions:
        """One for each word that the model saw, with the logarithms of its tags' marginal probabilities."""
        at = {label: i for i, label in enumerate(self.task.labels)}
        found = [self.task.decoded(m) for m in merged]
        tags = [self._in_scheme(g) for g in golds]
        gold = [at.get(of[word], -1) for of, d in zip(tags, found, strict=True) for word in d.words]
        rows = np.repeat(np.arange(len(found)), [len(d.words) for d in found])
        return ModelDecisions(
            np.concatenate([d.logits for d in found]),
            np.array(gold, np.int64),
            np.concatenate([d.path for d in found]),
            rows,
        )

    def entities(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> FoundEntities:
        """The entities that the model finds in these rows."""
        odds, right, rows = list[float](), list[bool](), list[int]()
        for row, (gold, output) in enumerate(zip(golds, merged, strict=True)):
            found = self.task.decoded(output)
            tags = [self.task.labels[i] for i in found.path.tolist()]
            sure = found.marginals[range(len(tags)), found.path].tolist()
            wanted = _spans([self._in_scheme(gold)[word] for word in found.words.tolist()])
            for label, words in _spans(tags):
                odds.append(log_odds(mean_score([sure[word] for word in words])))
                right.append((label, words) in wanted)
                rows.append(row)
        return FoundEntities(np.array(odds), np.array(right, np.bool_), np.array(rows, np.int64))

    def chance(self, golds: Sequence[Gold]) -> float:
        """For entities 0, since tagging every word O finds none; for other tags the commonest tag's
        share of the words."""
        tags = [tags_in(gold) for gold in golds]
        scheme = self._scheme or scheme_of(tags)
        counts = Counter(tag for row in tags for tag in in_labels(row, scheme))
        return 0.0 if is_bio(set(counts)) else max(counts.values(), default=0) / max(1, counts.total())

    def unknown(self, gold: Gold) -> set[str]:
        return set(self._in_scheme(gold)) - set(self.task.labels)

    @property
    def _scheme(self) -> Scheme | None:
        """The scheme of the rows; None if the task knows none. Scores then go by the rows that they are of,
        so that an earlier release's model and its update are compared by the same figure."""
        scheme = self.task.rules.scheme
        return None if scheme == "free" else scheme

    def _in_scheme(self, gold: Gold) -> tuple[str, ...]:
        """A row's tags, converted to BIO if the task's labels are."""
        return in_labels(tags_in(gold), self.task.rules.scheme)


def _target(word: str | tuple[tuple[str, float], ...], index: Mapping[str, int]) -> float:
    if isinstance(word, str):
        return index[word]
    return SoftTarget(tuple((index[tag], share) for tag, share in word))


def _spans(tags: Sequence[str]) -> list[tuple[str, range]]:
    """The entities that tags mark: labels, and words counted from the first one with a tag."""
    return [(label, words) for label, words in groups_of(tags, joined=True) if label != OUTSIDE]


def tags_in(gold: Gold) -> tuple[str, ...]:
    assert isinstance(gold, tuple)
    return gold
