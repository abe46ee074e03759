"""Inputs of protocols whose texts are strings, pairs of strings, or lists of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from hmi.api.protocols.asks import Input

Text = Annotated[str, Field(min_length=1)]
TextList = Annotated[list[Text], Field(min_length=1, fail_fast=True)]
Pair = tuple[str, str]


@dataclass(frozen=True)
class TextInputs:
    """The texts and pairs of one call, as inputs that are created while they are iterated."""

    texts: Sequence[str | Pair]
    field: str
    """The caller's name of the list."""
    listed: bool = True
    """True if the caller sent a list. A text that stands alone has no index in its name."""
    pair_names: tuple[str, str] = ("[0]", "[1]")
    """The names of a pair's two texts, which follow the name of the pair."""

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[Input]:
        for i, text in enumerate(self.texts):
            place = f"{self.field}[{i}]" if self.listed else self.field
            names = (place,) if isinstance(text, str) else tuple(place + name for name in self.pair_names)
            yield Input(text, place, names)


def one_or_many(wrong: str) -> Any:
    """The pydantic type of a text or a list of texts. wrong: the message for a value that is neither."""
    return Annotated[
        Annotated[Text, Tag("<one>")] | Annotated[TextList, Tag("<many>")],
        Discriminator(_kind_of, "input_form", wrong),
    ]


def inputs_of(given: str | list[str], field: str) -> TextInputs:
    """The inputs of a field of the type `one_or_many`."""
    return TextInputs([given], field, listed=False) if isinstance(given, str) else TextInputs(given, field)


def _kind_of(value: Any) -> str | None:
    if isinstance(value, str):
        return "<one>"
    # Only the first item is looked at: the type of the others is checked one by one.
    return "<many>" if isinstance(value, list) and not (value and not isinstance(value[0], str)) else None
