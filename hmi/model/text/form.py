"""The form that an answer must keep, as a request gives it. `hmi.model.text.guides` compiles it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any

from hmi.errors import InvalidInput

MOST_BYTES = {"json_schema": 1 << 14, "json": 64, "choices": 1 << 16, "regex": 1 << 11, "grammar": 1 << 13}
"""The largest form of each kind, in bytes of JSON. The library follows rules and references by recursion: a
chain of some thousand overflows a thread's stack, and ends the process."""
MOST_DEPTH = 64
"""The deepest schema within schemas."""
MOST_STATES = 5_000
"""What the repetitions of a regular expression or grammar may add to its characters, each counted as often as
it may be repeated."""
MOST_MULTIPLES = 10_000
"""The largest product of a schema's `multipleOf`, without their decimal points: an automaton has so many
states."""
MOST_CHOICES = 1000
_ONE = ("type", "const", "enum", "$ref", "pattern", "format", "required")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_SCHEMA = ("items", "additionalProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_NOTES = ("title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated")
_TOO_MANY = f"it repeats too much: repetitions may add {MOST_STATES:,} characters"
_REPEATED = re.compile(r"\{(\d{1,9})?(?:,(\d{1,9})?)?\}|~\s*(\d{1,9})(?:\s*\.\.\s*(\d{1,9}))?")
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
    place: str = "form"
    """The caller's name of the field that holds the form."""
    value_place: str | None = None
    """The caller's name of the field that holds the schema or expression. None: it is HMI's own, below
    `place`."""

    def __post_init__(self) -> None:
        if len(self._kinds) != 1:
            raise InvalidInput(
                f"{self.place} needs one of json_schema, json, choices, regex and grammar", field=self.place
            )
        if self.probabilities and self.choices is None:
            where = f"{self.place}.probabilities"
            raise InvalidInput(f"{where} needs {self.place}.choices", field=where)
        where, most = self.field, MOST_BYTES[self._kinds[0]]
        if len(self.key.encode()) > most:
            raise InvalidInput(f"{where} has more than {most:,} bytes", field=where)
        if self.choices is not None:
            _check_choices(self.choices, where)
        text = self.regex or self.grammar
        if text is not None and _added(text) > MOST_STATES:
            raise InvalidInput(f"{where}: {_TOO_MANY}", field=where)
        if self.json_schema is not None:
            for place, fault in _faults(self.json_schema, where):
                raise InvalidInput(f"{place}: {fault}", field=place)
            if math.prod(_multiples(self.json_schema)) > MOST_MULTIPLES:
                raise InvalidInput(f"{where}: multipleOf costs too much: use smaller numbers", field=where)

    @property
    def _kinds(self) -> list[str]:
        """The names of the first five that are given."""
        return [f.name for f in fields(self)[:5] if getattr(self, f.name) not in (None, False)]

    @property
    def field(self) -> str:
        """The caller's name of the field that holds the schema, the choices or the expression."""
        return self.value_place or f"{self.place}.{self._kinds[0]}"

    @property
    def key(self) -> str:
        """The same for forms that allow the same answers: JSON. The order of properties counts."""
        schema = None if self.json_schema is None else dict(self.json_schema)
        try:
            return json.dumps([schema, self.json, self.choices, self.regex, self.grammar])
        except (RecursionError, TypeError, ValueError) as error:
            raise InvalidInput(f"{self.field} is no JSON", field=self.field) from error


def _check_choices(choices: tuple[str, ...], place: str) -> None:
    if not 1 <= len(choices) <= MOST_CHOICES:
        raise InvalidInput(f"{place} must have 1 to {MOST_CHOICES:,} texts", field=place)
    seen: set[str] = set()
    for i, choice in enumerate(choices):
        where = f"{place}[{i}]"
        if not choice or choice in seen:
            wrong = "is there twice" if choice else "is empty"
            raise InvalidInput(f"{where} {wrong}", field=where)
        seen.add(choice)


def _faults(schema: Any, where: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """The places in a schema that are not supported or cost too much, with what is wrong."""
    if not isinstance(schema, Mapping):
        return  # true and false; the library refuses what is no schema
    if depth > MOST_DEPTH:
        yield where, f"schemas are nested more than {MOST_DEPTH} deep"
        return
    for keyword, value in schema.items():
        inside = f"{where}.{keyword}"
        if keyword not in KEYWORDS:
            yield inside, f"the keyword {keyword!r} is not supported"
        elif keyword in _SCHEMA:
            yield from _faults(value, inside, depth + 1)
        elif keyword in _LISTS and isinstance(value, list):
            for i, each in enumerate(value):
                yield from _faults(each, f"{inside}[{i}]", depth + 1)
        elif keyword in _MAPS and isinstance(value, Mapping):
            for name, each in value.items():
                if keyword == "patternProperties" and _added(str(name)) > MOST_STATES:
                    yield inside, _TOO_MANY
                yield from _faults(each, f"{inside}.{name}", depth + 1)
        elif keyword == "pattern" and isinstance(value, str) and _added(value) > MOST_STATES:
            yield inside, _TOO_MANY


def _multiples(schema: Any) -> Iterator[int]:
    """Each `multipleOf` in a value of JSON, without its decimal point: 25 of .25."""
    if isinstance(schema, Mapping):
        given = schema.get("multipleOf")
        if isinstance(given, int):
            yield max(1, abs(given))
        elif isinstance(given, float) and math.isfinite(given):
            digits = Decimal(str(given)).normalize()
            yield max(1, int(abs(digits.scaleb(max(0, -int(digits.as_tuple().exponent))))))
        for value in schema.values():
            yield from _multiples(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _multiples(value)


def _added(pattern: str) -> int:
    """The characters that repetitions add to a regular expression or a grammar."""
    whole = last = at = 0
    groups: list[int] = []
    while at < len(pattern):
        if found := _REPEATED.match(pattern, at):
            times = max(int(number or 1) for number in found.groups())
            whole, last = whole + last * (max(times, 1) - 1), last * max(times, 1)
            at = found.end()
            continue
        if pattern[at] == "(":
            groups.append(whole)
            whole = last = 0
        elif pattern[at] == ")":
            last = whole
            whole += groups.pop() if groups else 0
        elif pattern[at] not in "*+?|^$":
            at += pattern[at] == "\\"
            whole, last = whole + 1, 1
        at += 1
    return whole - len(pattern)
