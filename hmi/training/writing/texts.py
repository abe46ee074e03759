"""Rows as tokens: a prompt, and after it what is to be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmi.errors import InvalidData, InvalidInput
from hmi.model.text.generative import GenerativeTokenizer
from hmi.sizes import counted
from hmi.training.data.golds import Completion
from hmi.training.data.rows import BadRow, Row, reasons_of

SHOWN = 5
"""An error tells of at most this many chats that the template refuses for different reasons."""
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

    field: the name of the rows' file. Raises InvalidData, which names the places there, if the model's
    template refuses chats.
    """
    found: list[Written | None] = []
    refused: list[BadRow] = []
    for row in rows:
        try:
            text = written(row, tokenizer)
        except InvalidInput as error:
            assert isinstance(row.label, Completion)
            place = row.label.place
            refused.append(BadRow(place.line, f"{place}: {error.message}"))
            continue
        found.append(text if len(text) <= max_length else None)
    if refused:
        raise _refusal(refused, field)
    return found


def _refusal(refused: Sequence[BadRow], field: str) -> InvalidData:
    """The error for chats that the model's template refuses."""
    reasons = reasons_of(refused)
    more = f"; and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    said = counted(len(refused), "chat")
    return InvalidData(
        f"{said} of {field} cannot be written by the root's template: {'; '.join(reasons[:SHOWN])}{more}. "
        "Mend these rows, or take them out",
        field=field,
        line=refused[0].line,
    )


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
