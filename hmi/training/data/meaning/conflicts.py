"""Texts that occur under several labels. No model can answer all of their rows right."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hmi.model.tags.entities import groups_of
from hmi.model.tags.tag_schemes import OUTSIDE, in_labels, scheme_of
from hmi.sizes import counted

SHOWN = 3
"""A remark quotes at most this many texts."""
CHARACTERS = 60
"""A quoted text is cut to this many characters."""
Answers = Counter[Any]


@dataclass(frozen=True)
class Conflicts:
    """The texts with several labels."""

    texts: dict[Any, Answers]
    """Each with its labels and how many rows have them, the most rows first."""
    rows: int
    """The number of rows in all, those of other texts included."""

    @property
    def reach(self) -> float:
        """The largest share of rows that a model can answer right: of each text those of its commonest
        label."""
        wrong = sum(sum(counts.values()) - max(counts.values()) for counts in self.texts.values())
        return 1 - wrong / self.rows if self.rows else 1.0

    def remark(self, of: str = "", *, shown: bool = True) -> str:
        """The conflicts in words, with some of the texts if `shown`; "" if there are none. of: what the rows
        are, in words."""
        if not self.texts:
            return ""
        held = sum(sum(counts.values()) for counts in self.texts.values())
        some = "; ".join(
            f"“{_cut(text)}” ({_counted(text, found)})" for text, found in [*self.texts.items()][:SHOWN]
        )
        more = f"; and {len(self.texts) - SHOWN} more" if len(self.texts) > SHOWN else ""
        texts = counted(len(self.texts), "text is", "texts are")
        return (
            f"{texts} labelled in more than one way, in {held} of the {self.rows} {of}rows"
            f"{f': {some}{more}' if shown else ''}. "
            f"A perfect model could answer at most {_percent(self.reach)} of these {self.rows} rows as "
            f"labelled"
        )


def conflicts_of(rows: Iterable[tuple[Any, Any]]) -> Conflicts:
    """The conflicts among rows, as (text, label). Texts that differ in their spaces only are the same. A text
    may be a pair or a list of words, a label a tuple; values (floats) are no labels, and are ignored."""
    found: dict[Any, Answers] = defaultdict(Counter)
    count = 0
    for text, label in rows:
        if isinstance(label, str | tuple):
            found[_key(text)][label] += 1
            count += 1
    several = {text: labels for text, labels in found.items() if len(labels) > 1}
    return Conflicts(dict(sorted(several.items(), key=lambda item: -sum(item[1].values()))), count)


def _key(text: Any) -> Any:
    return " ".join(text.split()) if isinstance(text, str) else tuple(map(_key, text))


def _cut(text: Any) -> str:
    if isinstance(text, tuple):
        text = (" ‖ " if len(text) == 2 else " ").join(text)
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS - 1]}…"


def _counted(text: Any, labels: Answers) -> str:
    few = labels.most_common(SHOWN)
    more = f", and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    said = _differences(text, [label for label, _ in few]) if isinstance(text, tuple) else {}
    return ", ".join(f"{said.get(label) or _named(label)}: {count}" for label, count in few) + more


def _differences(words: tuple[str, ...], labels: Sequence[Any]) -> dict[Any, str]:
    """What each of several taggings of these words has and others have not: entities, or tags of words."""
    if not all(isinstance(label, tuple) and len(label) == len(words) for label in labels):
        return {}
    scheme = scheme_of(labels)
    found = {
        tags: {each for each in groups_of(in_labels(tags, scheme), joined=True) if each[0] != OUTSIDE}
        for tags in labels
    }
    shared = set.intersection(*found.values())
    said = {}
    for tags, marked in found.items():
        own = sorted(marked - shared, key=lambda each: each[1].start)
        named = [f"{' '.join(words[i] for i in at)} {label}" for label, at in own]
        said[tags] = _named(" and ".join(named)) if named else "no other entity" if shared else "no entity"
    return said


def _named(label: Any) -> str:
    words = label if isinstance(label, str) else " ".join(label) or "none"
    return words if len(words) <= CHARACTERS else f"{words[: CHARACTERS - 1]}…"


def _percent(share: float) -> str:
    """A share in percent. Less than all never reads as all."""
    return f"{100 if share == 1 else min(round(100 * share, 1), 99.9):g}%"
