"""The right answers (golds) of rows, and checks of labels. Does not import torch, since files are
checked before a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from hmi.errors import InvalidData
from hmi.training.data.records import Place


@dataclass(frozen=True)
class SoftLabel:
    """A teacher's answer in a task with one label: labels with their probabilities, which add up to one."""

    each: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class SoftTags:
    """A teacher's answer in tagging: for each word its tag, or tags with their probabilities.

    Probabilities add up to one, and the first tag is the one that the teacher gives. Tags are labels of the
    task, which are those of BIO if the rows follow a tag scheme.
    """

    words: tuple[str | tuple[tuple[str, float], ...], ...]


@dataclass(frozen=True)
class Completion:
    """What a language model is to write after a prompt."""

    text: str
    chat: tuple[tuple[str, str], ...] = ()
    """The role and the text of each message before it, if the prompt is a chat."""
    place: Place = field(default=Place(0), compare=False)
    """The place of its row in the file."""


Gold = str | float | tuple[str, ...] | SoftLabel | SoftTags | Completion
"""A row's right answer: a label, a value, one tag for each word, a set of labels, a teacher's soft label
or tags, or what is to be written."""
MAX_LABELS = 1_000


def checked_labels(golds: Iterable[Gold], field: str) -> Counter[str]:
    """Count each label. Raises InvalidData if there is only one, or more than MAX_LABELS."""
    counts: Counter[str] = Counter()
    for gold in golds:
        assert not isinstance(gold, float | SoftLabel | SoftTags | Completion)
        counts.update([gold] if isinstance(gold, str) else gold)
    if len(counts) < 2:
        raise InvalidData(
            f"every row of {field} has the same label {next(iter(counts))!r}: a model needs at least "
            "two classes",
            field=field,
        )
    refuse_many(len(counts), field)
    return counts


def refuse_many(count: int, field: str) -> None:
    """Raise InvalidData if `count` labels are more than MAX_LABELS."""
    if count > MAX_LABELS:
        raise InvalidData(
            f"{field} has {count} different labels, more than {MAX_LABELS}: check that `label` holds a "
            "class and not an id or a free text",
            field=field,
        )
