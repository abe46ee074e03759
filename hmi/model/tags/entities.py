"""Entities from the tags of words, with the rules of transformers' TokenClassificationPipeline.

A word is to HMI what a token is to that pipeline: the unit that has a tag. `none` gives each word with a tag
as an entity of its own, under its whole tag, such as `B-per`. The other ways join neighbouring words of one
type, unless the second word's tag begins with B-. They differ in the pieces of a word that decide its tag
(`hmi.model.tasks.words.Tagging.by_pieces`). Loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hmi.model.tags.tag_schemes import OUTSIDE as OUTSIDE
from hmi.model.tenant.answer import Aggregation, Entity
from hmi.model.text.splitting import SplitText

LEAST = 1e-5
"""Scores closer to 0 or 1 than this count as this far away."""


def entities_of(
    text: str, split: SplitText, tags: Sequence[str], scores: Sequence[float], aggregation: Aggregation
) -> list[Entity]:
    """Return the entities of a text, in their order.

    tags, scores: one for each of the first words of `split`, in BIO if the model's tags mark entities.
    """
    return [
        _entity(text, split, group, label, scores)
        for label, group in groups_of(tags, joined=aggregation != "none")
        if label != OUTSIDE
    ]


def mean_score(scores: Sequence[float]) -> float:
    """The score of an entity, from its words'. A word with the score 0 has no token and does not count."""
    sure = [score for score in scores if score > 0.0]
    return sum(sure) / max(1, len(sure))


def calibrated_score(score: float, fitted: tuple[float, float]) -> float:
    """The probability that an entity with this score is right. fitted: slope and offset over log odds."""
    slope, offset = fitted
    return 1.0 / (1.0 + math.exp(-(slope * log_odds(score) + offset)))


def log_odds(score: float) -> float:
    """log(p / (1 − p)), with p at least LEAST away from 0 and 1."""
    bounded = min(max(score, LEAST), 1.0 - LEAST)
    return math.log(bounded / (1.0 - bounded))


def type_of(tag: str) -> tuple[bool, str]:
    """Return whether a tag begins an entity, and the entity's label. A tag without B- or I- is a label, and
    continues an entity."""
    return tag[:2] == "B-", tag[2:] if tag[:2] in ("B-", "I-") else tag


def groups_of(tags: Sequence[str], *, joined: bool) -> Iterator[tuple[str, range]]:
    """Yield the label and the words of each run of tags that belong together."""
    if not joined:
        yield from ((tag, range(i, i + 1)) for i, tag in enumerate(tags))
        return
    start = 0
    for i in range(1, len(tags) + 1):
        if i == len(tags) or type_of(tags[i]) != (False, type_of(tags[start])[1]):
            yield type_of(tags[start])[1], range(start, i)
            start = i


def _entity(text: str, split: SplitText, words: range, label: str, scores: Sequence[float]) -> Entity:
    start, end = split.spans[words[0]][0], split.spans[words[-1]][1]
    return Entity(label, start, end, text[start:end], mean_score([scores[word] for word in words]))
