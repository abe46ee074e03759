"""How to read a file of rows whose columns do not tell it: columns by name, names of integer labels, a
missing header, the encoding."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)

from hmi.core import Record


def _as_tuple(given: Any) -> Any:
    """One name or a list of names as a tuple, which strict validation takes."""
    return (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else given


Column = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
_NAME = {"type": "string", "minLength": 1, "maxLength": 1000}
_NAMES = {"type": "array", "items": _NAME, "minItems": 1, "maxItems": 100}
TextColumns = Annotated[
    tuple[Column, ...],
    BeforeValidator(_as_tuple),
    PlainSerializer(lambda names: names[0] if len(names) == 1 else list(names)),
    WithJsonSchema({"anyOf": [_NAME, _NAMES]}),
]
"""One column's name or several, kept as a tuple."""


NO_ENCODINGS = frozenset({"idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape"})
"""Codecs of Python that are no encodings of files. Those from bytes to bytes, such as zip, are none, too."""


def _check_encoding(name: str) -> str:
    try:
        found = codecs.lookup(name)
        if not found._is_text_encoding or found.name in NO_ENCODINGS:
            raise LookupError
    except (LookupError, ValueError):
        raise ValueError(f"{name!r} is no encoding: give one such as utf-8 or windows-1252") from None
    return name


EncodingName = Annotated[str, Field(max_length=40), AfterValidator(_check_encoding)]


class Reading(Record):
    """Says how to read a file of rows. By default the file itself tells all of it."""

    text_column: TextColumns | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="The column that holds the text, or several, whose texts are joined by line breaks. "
        "Without a header, columns are named 1, 2, and so on.",
    )
    text_pair_column: Column | None = Field(
        default=None, description="The column that holds the second text of a pair."
    )
    label_column: Column | None = Field(
        default=None,
        description="The column that holds the answer: the label, labels, value, tags or spans. Of several "
        "controls of Label Studio, the one to read.",
    )
    labels_columns: tuple[Column, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="multilabel: the columns that each stand for one label, and hold 1 (or true) in rows "
        "that have it, else 0 (or false).",
    )
    labels: tuple[Column, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="The names of labels or tags that the file writes as integers: of 0, 1, 2, …, or with "
        "their numbers, such as 1=World.",
    )
    header: bool = Field(
        default=True, description="false: the first line of a CSV file is a row, not the columns' names."
    )
    encoding: EncodingName | None = Field(
        default=None,
        description="The encoding of the files, such as windows-1252. None: recognised by their bytes.",
    )

    def of_texts(self, columns: Sequence[str]) -> Reading:
        """This reading for a file of texts without answers, whose texts may have their usual names."""
        named = (*(self.text_column or ()), *([self.text_pair_column] if self.text_pair_column else []))
        plain: dict[str, Any] = {"label_column": None, "labels_columns": None}
        if not set(named) <= set(columns):
            plain |= {"text_column": None, "text_pair_column": None}
        return self.model_copy(update=plain)


AS_IT_IS = Reading()
