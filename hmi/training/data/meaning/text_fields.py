"""Which field of a file's records holds the text, and reads it from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hmi.training.data.meaning.columns import SYNONYMS, listed

NAME_IT = ", or give its name (--text-column, over HTTP options.text_column)"
Fields = Mapping[str, Any]


class NoText(ValueError):
    """Raised for a record of which no field, or none of several, is surely the text."""

    left_out = ""
    """Why the record is no row anyway."""


def text_reader(
    records: Iterable[Fields], named: str | None = None, likely: str | None = None
) -> Callable[[Fields], str]:
    """Reads the text of each record from one field, which these first records tell: a record that lacks its
    text may have others."""
    held = {name: value for each in records for name, value in each.items() if isinstance(value, str)}
    field = wrong = ""
    try:
        field = _text_field(held, named, likely)
    except NoText as error:
        wrong = str(error)

    def read(record: Fields) -> str:
        text = record.get(field)
        if wrong or not isinstance(text, str):
            raise NoText(wrong or f"has no text in `{field}`, unlike others")
        return text

    return read


def _text_field(record: Fields, named: str | None, likely: str | None) -> str:
    """The name of the field that holds the text: the `named` one, else the likeliest. Raises NoText."""
    found = text_fields(record, named)
    if named is None and isinstance(record.get(likely or ""), str):
        return str(likely)
    if found:
        return found[0]
    texts = [name for name, value in record.items() if isinstance(value, str)]
    if named is not None:
        raise NoText(f"has no text in `{named}` (text_column): texts are in {listed(texts) or 'no field'}")
    which = f", since any of {listed(texts)} may be it" if texts else ""
    raise NoText(f"has no text{which}: name the field that holds it `text`{NAME_IT}")


def text_fields(record: Fields, named: str | None) -> list[str]:
    """The names of the fields that may hold the text, the likeliest first."""
    if named is not None:
        return [named] if isinstance(record.get(named), str) else []
    folded = {name.strip().casefold(): name for name, value in record.items() if isinstance(value, str)}
    known = [folded[name] for name in ("text", *SYNONYMS["text"]) if name in folded]
    return known or ([*folded.values()] if len(folded) == 1 else [])


def text_or_why(text: Callable[[Fields], str], fields: Fields, why: str) -> str:
    """The text. Raises NoText, which tells why the record is left out anyway."""
    try:
        return text(fields)
    except NoText as error:
        error.left_out = why
        raise
