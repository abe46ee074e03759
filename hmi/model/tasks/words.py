"""One tag for each word of a text that is already split into words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.core import Task
from hmi.model.tags.entities import calibrated_score, entities_of
from hmi.model.tags.tag_schemes import from_bio, in_labels
from hmi.model.tags.tagging import Floats, best_path, marginals, rules
from hmi.model.tasks.base import InputAnswer, TaskKind
from hmi.model.tenant.answer import Aggregation
from hmi.model.tenant.calibration import probabilities
from hmi.model.tenant.heads import outside_tag
from hmi.model.text.batching import Encoded
from hmi.model.text.splitting import SplitText
from hmi.model.text.windows import central_pieces

UNSEEN = -1e4
"""The log-probability, for a word that the model did not see, of every tag but the outside tag."""
LEAST = 1e-30
"""Smaller probabilities count as this one in `Decoded.logits`."""


@dataclass(frozen=True)
class Decoded:
    """The tags of the words that the model saw."""

    words: NDArray[np.int64]
    """[seen]: their indexes in the text."""
    path: NDArray[np.int64]
    """[seen]: each word's label."""
    marginals: Floats
    """[seen, labels]: the probability of each tag, over all paths."""

    @property
    def logits(self) -> NDArray[np.float64]:
        """The logarithms of `marginals`; of a probability below LEAST that of LEAST."""
        out: NDArray[np.float64] = np.log(np.maximum(self.marginals, LEAST, dtype=np.float64))
        return out


@dataclass(frozen=True)
class Tagging(TaskKind):
    """A tag for each word, scored at its first piece: the best path under the tag scheme and the transitions.

    If the training rows follow another scheme than BIO, `labels` are those of BIO, and answers are
    converted back. A word that the model did not see gets `outside_tag`, or the tag of the
    entity around it, with probability 0.
    """

    transitions: Floats | None = field(default=None, compare=False)
    """The learnt table [labels + 1, labels] of `Transitions`. It comes from the model's weights and is not
    part of the registry's record."""

    name: ClassVar[Task] = "tagging"

    aggregation: Aggregation = field(default="simple", compare=False)
    """The pieces of a word that decide its tag (`by_pieces`)."""

    @property
    def forms(self) -> tuple[type | tuple[type, ...], str]:
        return (str, list), "a text or tokens"

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        """Log-probabilities [words, labels]. A word's come from the window in which it is most central."""
        merged = torch.full((words, len(self.labels)), UNSEEN)
        merged[:, self.labels.index(outside_tag(self.labels))] = 0.0
        seen = central_pieces(windows)
        if seen and self.aggregation in ("average", "max"):
            for word, (window, position) in seen.items():
                pieces = outputs[window][position : _end(windows[window].words, position)]
                merged[word] = self._of_pieces(pieces.float().log_softmax(-1))
        elif seen:
            rows = torch.stack([outputs[window][position] for window, position in seen.values()])
            merged[list(seen)] = rows.float().log_softmax(-1)
        return merged

    def by_pieces(self, aggregation: Aggregation) -> Self:
        """A copy that lets other pieces of a word have a say in its tag.

        `none`, `simple` and `first`: the first piece decides, which is how the model was trained. `average`:
        the mean probabilities of all pieces. `max`: the piece with the most probable tag.
        """
        return self if aggregation == self.aggregation else replace(self, aggregation=aggregation)

    def entities(
        self, answer: InputAnswer, text: str, split: SplitText, fitted: tuple[float, float] | None = None
    ) -> InputAnswer:
        """The same answer for a text that the caller has not split: with entities in place of tags.

        fitted: calibrates their scores (`calibrated_score`).
        """
        assert answer.tags is not None
        assert answer.tag_scores is not None
        tags = in_labels(answer.tags, self.rules.scheme)
        found = entities_of(text, split, tags, answer.tag_scores, self.aggregation)
        if fitted is not None:
            found = [replace(entity, score=calibrated_score(entity.score, fitted)) for entity in found]
        return replace(answer, entities=found, tags=None, tag_scores=None)

    def _of_pieces(self, pieces: Tensor) -> Tensor:
        """A word's log-probabilities [labels], from those of its pieces [pieces, labels]."""
        if self.aggregation == "average":
            return pieces.logsumexp(0) - math.log(len(pieces))
        return pieces[int(pieces.max(-1).values.argmax())]

    def answer(
        self, merged: Tensor, *, scores: bool = False, temperature: float | None = None
    ) -> InputAnswer:
        """Decode the tags.

        A tag's probability is its marginal one over all paths. A temperature T calibrates each word's
        marginal probabilities: they are raised to the power 1/T and scaled to sum 1. Without rules and
        transitions that is the softmax of the word's outputs divided by T.
        """
        found = self.decoded(merged)
        seen, path = found.words.tolist(), found.path
        each = range(len(seen))
        sure = np.zeros(len(merged))
        if temperature is None:
            sure[seen] = found.marginals[each, path]
        elif seen:
            sure[seen] = probabilities(found.logits, temperature)[each, path]
        tags = [outside_tag(self.labels)] * len(merged)
        for word, tag in zip(seen, path.tolist(), strict=True):
            tags[word] = self.labels[tag]
        return InputAnswer(tags=from_bio(_bridged(tags, seen), self.rules.scheme), tag_scores=sure.tolist())

    def decoded(self, merged: Tensor) -> Decoded:
        """The best path over the words that the model saw, so that its cost does not grow with words that
        were cut off."""
        seen = torch.nonzero((merged != UNSEEN).all(-1))[:, 0].numpy()
        moves, found = self._moves, merged.numpy()[seen]
        of_each = np.exp(found) if moves is None or not len(seen) else marginals(found, moves)
        return Decoded(seen, best_path(found, moves), of_each)

    def with_transitions(self, table: Tensor | None) -> Self:
        return replace(self, transitions=None if table is None else table.detach().float().numpy())

    @property
    def _moves(self) -> Floats | None:
        """The scores of transitions: the scheme's rules plus the learnt table. None if there is neither."""
        legal = rules(self.labels, self.rules.scheme)
        if legal is None or self.transitions is None:
            return self.transitions if legal is None else legal
        return legal + self.transitions


def _end(words: Sequence[int | None], start: int) -> int:
    """The position after the last piece of the word whose first piece is at `start`."""
    return next((i for i in range(start, len(words)) if words[i] != words[start]), len(words))


def _bridged(tags: list[str], seen: list[int]) -> list[str]:
    """Extend entities over words that have no tokens and stand between two words of the same entity."""
    for before, word in pairwise(seen):
        if (
            word - before > 1
            and tags[word][:2] == "I-"
            and tags[before] in (tags[word], f"B-{tags[word][2:]}")
        ):
            tags[before + 1 : word] = [tags[word]] * (word - before - 1)
    return tags
