"""Texts that are longer than what a model reads of a text, told before a training. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hmi.core import Task
from hmi.model.text.reach import MAX_WINDOWS, reach
from hmi.model.text.splitting import Splitter
from hmi.sizes import counted
from hmi.training.plans.recipe import LongTexts, Recipe

if TYPE_CHECKING:
    from hmi.model.text.tokenizer import Text

SPECIAL = 2
"""Tokens that mark the beginning and the end of a text."""


@dataclass(frozen=True)
class Limit:
    """How much of a text a model reads."""

    max_length: int
    windows: bool

    @classmethod
    def of(cls, task: Task, recipe: Recipe) -> Limit:
        return cls(recipe.max_length, reads_windows(task, recipe.long_texts))

    @property
    def tokens(self) -> int:
        return reach(self.max_length) if self.windows else self.max_length

    def __str__(self) -> str:
        how = f" (up to {MAX_WINDOWS} windows of {self.max_length})" if self.windows else ""
        return f"{self.tokens:,} tokens{how}"

    def cure(self, *, paired: bool) -> str:
        """What to do with longer texts."""
        if self.windows or paired:
            return "Split such texts into several rows" if self.windows else "Shorten such texts"
        more = Limit(self.max_length, windows=True)
        return (
            "Split such texts into several rows, or give --option long_texts=windows (over HTTP "
            f"options.long_texts), which reads up to {more.tokens:,} tokens"
        )


def reads_windows(task: Task, long_texts: LongTexts | None) -> bool:
    """Return whether long texts are read in windows: as the option says, else for tagging only, where a
    cut would lose tags."""
    return task == "tagging" if long_texts is None else long_texts == "windows"


def long_note(texts: Sequence[Text], limit: Limit) -> str:
    """A remark on the texts that have more words than a model reads tokens; "" if there are none.

    A word has at least one token, and most have few more, so that further texts may be a little too long. The
    training's report counts tokens.
    """
    room = limit.tokens - SPECIAL
    long = [words for words in (_words(text, room) for text in texts) if words > room]
    if not long:
        return ""
    lost = sum(words - room for words in long)
    return (
        f"{counted(len(long), 'text has', 'texts have')} more words than the {limit} that a model reads of a "
        f"text: of their {sum(long):,} words at least {lost:,} are left out (the longest has {max(long):,}). "
        f"{limit.cure(paired=any(isinstance(text, tuple) for text in texts))}"
    )


def _words(text: Text, room: int) -> int:
    """The number of words of a text, or of both of a pair; 0 if it has too few characters for that."""
    if isinstance(text, list):
        return len(text)
    texts = (text,) if isinstance(text, str) else text
    if sum(map(len, texts)) <= room:
        return 0
    splitter = Splitter()
    return sum(len(splitter.split(each).words) for each in texts)
