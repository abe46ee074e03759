"""The form that an answer must keep, as a request gives it. `hmi.model.text.guides` compiles it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from hmi.errors import InvalidInput

MOST_BYTES = 1 << 16
"""The largest form, in bytes of JSON."""
MOST_CHOICES = 1000
_ONE = ("type", "const", "enum", "$ref", "pattern", "format", "required")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_SCHEMA = ("items", "additionalProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_NOTES = ("title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated")
_NOTES_OF_OTHERS = ("readOnly", "writeOnly", "discriminator")
KEYWORDS = frozenset((*_ONE, *_NUMBERS, *_SIZES, *_SCHEMA, *_LISTS, *_MAPS, *_NOTES, *_NOTES_OF_OTHERS))
"""The keywords of a JSON schema that are kept, or that ask for nothing. The library ignores some others."""


@dataclass(frozen=True)
class Form:
    """What an answer must keep: exactly one of the first five. Raises InvalidInput."""

    json_schema: Mapping[str, Any] | None = None
    """The answer is JSON, on one line, that is valid by this schema."""
    json: bool = False
    """The answer is a JSON object."""
    choices: tuple[str, ...] | None = None
    """The answer is one of these texts."""
    regex: str | None = None
    """All of the answer matches it, in Rust's syntax."""
    grammar: str | None = None
    """The answer is a sentence of this grammar, in Lark's syntax."""
    probabilities: bool = False
    """The likeliest whole choice is the answer, which tells the probability of each."""

    def __post_init__(self) -> None:
        given = [f.name for f in fields(self)[:5] if getattr(self, f.name) not in (None, False)]
        if len(given) != 1:
            raise InvalidInput(
                "form needs one of json_schema, json, choices, regex and grammar", field="form"
            )
        if self.probabilities and self.choices is None:
            raise InvalidInput("form.probabilities needs form.choices", field="form.probabilities")
        if len(self.key.encode()) > MOST_BYTES:
            raise InvalidInput(
                f"form.{given[0]} has more than {MOST_BYTES:,} bytes", field=f"form.{given[0]}"
            )
        if self.choices is not None:
            _check_choices(self.choices)
        if self.json_schema is not None:
            for where, keyword in _unknown(self.json_schema, "form.json_schema"):
                raise InvalidInput(f"{where}: the keyword {keyword!r} is not supported", field=where)

    @property
    def key(self) -> str:
        """The same for forms that allow the same answers: JSON. The order of properties counts."""
        schema = None if self.json_schema is None else dict(self.json_schema)
        try:
            return json.dumps([schema, self.json, self.choices, self.regex, self.grammar])
        except (RecursionError, TypeError, ValueError) as error:
            raise InvalidInput("form.json_schema is no JSON", field="form.json_schema") from error


def _check_choices(choices: tuple[str, ...]) -> None:
    if not 1 <= len(choices) <= MOST_CHOICES:
        raise InvalidInput(f"form.choices must have 1 to {MOST_CHOICES:,} texts", field="form.choices")
    seen: set[str] = set()
    for i, choice in enumerate(choices):
        where = f"form.choices[{i}]"
        if not choice or choice in seen:
            wrong = "is there twice" if choice else "is empty"
            raise InvalidInput(f"{where} {wrong}", field=where)
        seen.add(choice)


def _unknown(schema: Any, where: str) -> Iterator[tuple[str, str]]:
    """The places of keywords that are not supported, with the keyword."""
    if not isinstance(schema, Mapping):
        return  # true and false; the library refuses what is no schema
    for keyword, value in schema.items():
        inside = f"{where}.{keyword}"
        if keyword not in KEYWORDS:
            yield inside, keyword
        elif keyword in _SCHEMA:
            yield from _unknown(value, inside)
        elif keyword in _LISTS and isinstance(value, list):
            for i, each in enumerate(value):
                yield from _unknown(each, f"{inside}[{i}]")
        elif keyword in _MAPS and isinstance(value, Mapping):
            for name, each in value.items():
                yield from _unknown(each, f"{inside}.{name}")
