"""Rows as tokens: a prompt, and after it what is to be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmi.errors import InvalidData, InvalidInput
from hmi.model.text.generative import GenerativeTokenizer
from hmi.training.data.golds import Completion
from hmi.training.data.rows import Row

SHOWN = 60
"""Characters of a prompt that an error quotes."""
WHOLE = 1 << 30
"""More tokens than a text has, so that none is cut off."""


@dataclass(frozen=True)
class Written:
    """A row's tokens. Those from `begin` on are to be written: the completion, and the end token."""

    ids: list[int]
    begin: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def prompt(self) -> list[int]:
        return self.ids[: self.begin]

    @property
    def answer(self) -> list[int]:
        """The tokens to write, the end token last."""
        return self.ids[self.begin :]


def written(row: Row, tokenizer: GenerativeTokenizer) -> Written:
    """Tokenise a row. Prompt and completion are tokenised each on its own, since a prompt comes alone.

    Raises InvalidInput if the model's template refuses a chat.
    """
    gold = row.label
    assert isinstance(gold, Completion)
    assert isinstance(row.text, str)
    if gold.chat:
        chat = tokenizer.chat([{"role": role, "content": text} for role, text in gold.chat])
        (prompt,) = tokenizer.encode([chat], WHOLE, specials=True)
    else:
        (prompt,) = tokenizer.encode([row.text], WHOLE)
    (completion,) = tokenizer.encode([gold.text], WHOLE)
    return Written([*prompt.ids, *completion.ids[1:], *tokenizer.ends[:1]], len(prompt))


def within(
    rows: Sequence[Row], tokenizer: GenerativeTokenizer, max_length: int, field: str
) -> list[Written | None]:
    """Each row's tokens; None for a row of more than `max_length`, since nothing of a row is cut.

    field: the name of the rows' file. Raises InvalidData, which names it, if the model's template refuses a
    chat.
    """
    found: list[Written | None] = []
    for row in rows:
        try:
            text = written(row, tokenizer)
        except InvalidInput as error:
            assert isinstance(row.text, str)
            begin = row.text if len(row.text) <= SHOWN else f"{row.text[:SHOWN]}…"
            raise InvalidData(
                f"the chat “{begin}” of {field} cannot be read: {error.message}", field=field
            ) from error
        found.append(text if len(text) <= max_length else None)
    return found


def fitting(
    rows: Sequence[Row], tokenizer: GenerativeTokenizer, max_length: int, field: str
) -> list[Written | None]:
    """As `within`. Raises InvalidData also if all rows are too long."""
    found = within(rows, tokenizer, max_length, field)
    if not any(found):
        raise InvalidData(
            f"every row of {field} has more than {max_length} tokens of prompt and completion: "
            f"{'give shorter ones' if max_length >= 512 else 'raise max_length, or give shorter ones'}",
            field=field,
        )
    return found
