"""Checks of a JSON text that its parsed value does not allow: names given twice, and the place of an error.

If an object gives a name several times, the parser keeps the last value. For an error, the parser tells the
line and the column, but not the field.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pydantic_core import ErrorDetails

from hmi.api.body.json_size import exact_census
from hmi.api.protocols.errors import Malformed, pointer
from hmi.errors import InvalidInput
from hmi.words import HALF_A_PAIR, not_json

SMALL_BYTES = 1 << 16
"""The members of a text up to this size are not counted exactly: parsing it again takes less than 0.1 ms."""
DEEPEST = 200
"""Most levels of nesting in a body: the limit of the parser."""
_TRUNCATED = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(\\u?)?\Z")
_UTF16 = re.compile(rb"\0{1,3}[^\0]|[^\0]\0")
_MARKS = (
    (codecs.BOM_UTF8, "begins with a byte-order mark", "leave out its first three bytes, EF BB BF"),
    (codecs.BOM_UTF16_LE, "is UTF-16 or UTF-32", "send UTF-8"),
    (codecs.BOM_UTF16_BE, "is UTF-16 or UTF-32", "send UTF-8"),
)
Place = tuple[str | int, ...]


class _Repeated(dict[str, Any]):
    """A JSON object that gives the member `name` several times: `times`."""

    name = ""
    times = 0


def refuse_repeated(data: bytes, count_members: Callable[[], int] | None = None) -> None:
    """Raise InvalidInput, which names the member, if an object in the JSON text `data` gives a name twice.

    `count_members` counts the members that the parsed value has. If the text holds no more members than
    that, none was given twice and the text is not parsed again: a second parse takes as long as the first,
    and holds the interpreter's lock.
    """
    if count_members is not None:
        members = count_members()
        if data.count(b":") == members:
            return
        if len(data) > SMALL_BYTES and exact_census(data).members == members:
            return
    repeated: list[_Repeated] = []

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        again = _Repeated(found)
        again.name, again.times = Counter(name for name, _ in pairs).most_common(1)[0]
        repeated.append(again)
        return again

    # parse_int: Python refuses to convert an integer of 5,000 digits.
    whole = json.loads(data, object_pairs_hook=read, parse_int=str)
    if not repeated:
        return
    place, first = next((place, value) for place, value in _walk(whole) if isinstance(value, _Repeated))
    field, message = pointer((*place, first.name)), f"is given {first.times} times: give it once"
    raise InvalidInput(f"{field}: {message}", field=field, fields=[{"field": field, "message": message}])


def malformed(problem: ErrorDetails, data: bytes) -> Malformed:
    """The error for `data` that is not JSON: why and where, by the parser's finding."""
    for mark, what, cure in _MARKS:
        if data.startswith(mark):
            return Malformed(f"the body {what}: {cure}", field="body")
    if _UTF16.match(data):
        return Malformed("the body is UTF-16 or UTF-32: send UTF-8", field="body")
    if _TRUNCATED.search(data[-8:]):
        return Malformed("the body is not JSON: it ends within a string: send all of it", field="body")
    reason = not_json(problem)
    place = _place_of(data, _is_half) if HALF_A_PAIR in reason else None
    if not place:
        return Malformed(f"the body is not JSON: {reason}", field="body")
    return Malformed(f"the body is not JSON: in {pointer(place)} {reason}", field=pointer(place))


def too_deep() -> Malformed:
    """The error for a text whose lists and objects are nested more than DEEPEST levels deep."""
    return Malformed(
        f"the body is nested more than {DEEPEST} levels deep: no field here has more than a few, so look for "
        "brackets that do not close",
        field="body",
    )


def _place_of(data: bytes, wanted: Callable[[Any], bool]) -> Place | None:
    """The place of the first value that `wanted` accepts; None if there is none, or Python cannot parse
    the text."""
    try:
        return next((place for place, each in _walk(json.loads(data, parse_int=str)) if wanted(each)), None)
    except (ValueError, RecursionError):
        return None


def _walk(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value with its place, outer ones first. A name with half a surrogate pair has its object's
    place."""
    yield place, value
    if isinstance(value, dict):
        for name, inner in value.items():
            if _is_half(name):
                yield place, name
            else:
                yield from _walk(inner, (*place, name))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _walk(inner, (*place, i))


def _is_half(value: Any) -> bool:
    """Return whether `value` is a string that holds half of a surrogate pair."""
    return isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value)
