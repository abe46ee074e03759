"""Plain messages for validation errors, in place of pydantic's."""

from __future__ import annotations

import difflib
import json
import re
import types
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from hmi.core import DOMAIN_PATTERN, ID_PATTERN, MODEL_PATTERN, NAME_PATTERN, NAME_RULE, ROLE_PATTERN

LEVEL_PATTERN = rf"{MODEL_PATTERN}(@[1-9][0-9]{{0,8}})?"
_RULES = {
    NAME_PATTERN: f"is not a name: use {NAME_RULE}",
    MODEL_PATTERN: f"is not a model's name: it is tenant.model, each of {NAME_RULE}",
    LEVEL_PATTERN: f"is neither tenant.model nor tenant.model@version, with each of {NAME_RULE}",
    DOMAIN_PATTERN: f"is not a domain's name: it is root/branch, up to 8 levels, each of {NAME_RULE}",
    ROLE_PATTERN: "is not a role: use 1 to 32 lower-case letters and underscores, such as user",
    ID_PATTERN: "is not an id: copy it from an answer of this server",
}
_WANTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "datetime_type": "a time such as 2027-01-31T12:00:00Z",
    "datetime_parsing": "a time such as 2027-01-31T12:00:00Z",
    "datetime_from_date_parsing": "a time such as 2027-01-31T12:00:00Z",
    "timezone_aware": "a time with its zone, such as 2027-01-31T12:00:00Z",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
HALF_A_PAIR = "half of a surrogate pair stands alone"
_NOT_JSON = (
    ("unexpected end of hex escape", HALF_A_PAIR, "write both halves, or the character itself"),
    ("lone leading surrogate", HALF_A_PAIR, "write both halves, or the character itself"),
    ("EOF while parsing", "it ends too early", "send all of it"),
    (
        "expected value",
        "a value is missing or is not JSON",
        "give a text in double quotes, a number, true, false, null, a list or an object",
    ),
    ("expected ident", "a value is missing or is not JSON", "true, false and null are the only bare words"),
    ("expected `", "a comma, a colon or a bracket is missing", "add it"),
    ("key must be a string", "a field's name must be in double quotes", "add them"),
    ("trailing comma", "there is a comma with nothing after it", "remove it"),
    ("trailing characters", "there is text after its end", "send one value"),
    (
        "control character",
        "a text holds a raw line break or another control character",
        "write it as \\n or \\u…",
    ),
    ("recursion limit", "it is nested too deeply", "no field here has more than a few levels"),
    ("invalid unicode", "it is not UTF-8", "send UTF-8"),
    ("invalid escape", "a backslash begins no JSON escape", "write a backslash as two"),
    ("invalid number", "a number is not written as JSON requires", "write it like 12, -0.5 or 1e3"),
    ("number out of range", "a number is too large", "give one that fits a 64-bit float"),
)
"""The beginning of the JSON parser's message, what it means, and what to do."""
MAX_SHOWN = 60
"""A value in a message is cut to this many characters."""
MAX_FIELDS = 5
"""A message lists at most this many fields."""


def explain(problem: ErrorDetails, model: Any) -> str:
    """Say what is wrong and what to do, for one of pydantic's errors. `model` is the expected type."""
    kind, given, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        return (
            "is not a field here: "
            f"{_there_are(str(problem['loc'][-1]), fields_at(model, problem['loc'][:-1]))}"
        )
    if kind == "missing":
        return "is missing: add it"
    if kind == "string_pattern_mismatch":
        return _against_rule(str(given), context["pattern"])
    if kind in _WANTED:
        with_fields = _with_fields(fields_at(model, problem["loc"])) if _WANTED[kind] == "an object" else ""
        return f"is {_named(given)}, and must be {_WANTED[kind]}{with_fields}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"is {_shown(given)}, and must be {words} {context[name]:.15g}"
    if kind == "int_parsing_size":
        return f"is {_shown(given)}, which is too large"
    if kind == "literal_error":
        expected = {"False": "false", "True": "true"}.get(context["expected"], context["expected"])
        return _not_among(given, expected)
    if kind in ("string_too_short", "too_short"):
        return "is empty: give at least one" + (" character" if kind == "string_too_short" else "")
    if kind in ("string_too_long", "too_long"):
        unit = "characters" if kind == "string_too_long" else "items"
        return f"is longer than {context['max_length']} {unit}: shorten it"
    if kind == "string_unicode":
        return "is not text that can be written as UTF-8"
    return problem["msg"].removeprefix("Value error, ")


def not_json(problem: ErrorDetails) -> str:
    """Say why a text is not JSON, where, and what to do."""
    text = str(problem.get("ctx", {}).get("error", problem["msg"]))
    found = re.fullmatch(r"(.*) at line (\d+) column (\d+)", text, re.DOTALL)
    what, where = (found[1], f" (line {found[2]}, column {found[3]})") if found else (text, "")
    known = ((cause, cure) for start, cause, cure in _NOT_JSON if what.startswith(start))
    cause, cure = next(known, (what, "check that place"))
    return f"{cause}{where}: {cure}"


def fields_at(model: Any, loc: Sequence[int | str]) -> list[str]:
    """The fields that an object may have at `loc` in a value of type `model`; [] if there is no object."""
    origin = get_origin(model)
    if origin is Annotated:
        return fields_at(get_args(model)[0], loc)
    if origin in (Union, types.UnionType):
        # The name of a choice (<object>) is part of `loc`, but is no field.
        rest = loc[1:] if loc and str(loc[0]).startswith("<") else loc
        tagged = (
            [c for c in get_args(model) if str(loc[0]) in _tags(c)] if rest is not loc else get_args(model)
        )
        return next(filter(None, (fields_at(choice, rest) for choice in tagged)), [])
    if origin is list:
        return fields_at(get_args(model)[0], loc[1:]) if loc else []
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    by_name = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    if loc:
        return fields_at(by_name.get(str(loc[0])), loc[1:])
    return list(by_name)


def _tags(choice: Any) -> set[str]:
    return {str(part.tag) for part in get_args(choice) if hasattr(part, "tag")}


def _there_are(name: str, fields: Iterable[str]) -> str:
    known = list(fields)
    near = _nearest(name, known)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"the fields here are {', '.join(known)}" if known else "leave it out"


def _with_fields(fields: Sequence[str]) -> str:
    more = ", …" if len(fields) > MAX_FIELDS else ""
    return f" with {', '.join(fields[:MAX_FIELDS])}{more}" if fields else ""


def _nearest(name: str, known: Sequence[str]) -> str | None:
    near = difflib.get_close_matches(name, known, 1) if len(name) <= MAX_SHOWN else []
    return near[0] if near else None


def _against_rule(given: str, pattern: str) -> str:
    rule = next((words for known, words in _RULES.items() if pattern == f"^{known}$"), None)
    return f"{_shown(given)} {rule or f'is not of the form {pattern}'}"


def _not_among(given: Any, expected: str) -> str:
    near = _nearest(given, re.findall("'([^']*)'", expected)) if isinstance(given, str) else None
    cure = "it" if near is None else f"did you mean {near!r}? It"
    return f"is {_shown(given)}, which is unknown: {cure} must be {expected}"


def _named(given: Any) -> str:
    if given is None:
        return "null"
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, (int, float)):
        return f"the number {_shown(given)}"
    if isinstance(given, str):
        return f"the text {_shown(given)}"
    return "a list" if isinstance(given, (list, tuple)) else "an object"


def _shown(given: Any) -> str:
    if given is None or isinstance(given, (bool, list, tuple, dict)):
        return _named(given)
    text = repr(given[: MAX_SHOWN + 1]) if isinstance(given, str) else json.dumps(given, default=str)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
