"""What a JSON text has that its parsed value does not show: names given twice, and where what is no JSON
stands.

The parser takes the last of several members of one name, and tells a line and a column.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pydantic_core import ErrorDetails

from hmi.api.census import exact_census
from hmi.api.errors import Malformed, pointer
from hmi.errors import InvalidInput
from hmi.words import HALF_A_PAIR, not_json

SMALL_BYTES = 1 << 16
"""A text of no more than this is read a second time at once, in less than 0.1 ms."""
DEEPEST = 200
"""Levels of nesting that the parser takes."""
_CUT_OFF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(\\u?)?\Z")
_WIDE = re.compile(rb"\0{1,3}[^\0]|[^\0]\0")
_MARKS = (
    (codecs.BOM_UTF8, "begins with a byte-order mark", "leave out its first three bytes, EF BB BF"),
    (codecs.BOM_UTF16_LE, "is UTF-16 or UTF-32", "send UTF-8"),
    (codecs.BOM_UTF16_BE, "is UTF-16 or UTF-32", "send UTF-8"),
)
Place = tuple[str | int, ...]


class _Repeated(dict[str, Any]):
    """An object of which a member is given more than once: `name`, `times`."""

    name = ""
    times = 0


def refuse_repeated(data: bytes, count_members: Callable[[], int] | None = None) -> None:
    """Raise InvalidInput, which names the member, if an object in the JSON text `data` gives a name twice.

    `count_members` counts the members that the parsed value has. If a large text holds no more members than
    that, none was given twice and the text is not parsed again: a second parse takes as long as the first,
    and holds the interpreter's lock.
    """
    if count_members is not None and len(data) > SMALL_BYTES:
        members = count_members()
        if data.count(b":") == members or exact_census(data).members == members:
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

    whole = json.loads(data, object_pairs_hook=read, parse_int=str)  # Python makes no int of 5,000 digits
    if not repeated:
        return
    place, first = next((place, value) for place, value in _walk(whole) if isinstance(value, _Repeated))
    field, message = pointer((*place, first.name)), f"is given {first.times} times: give it once"
    raise InvalidInput(f"{field}: {message}", field=field, fields=[{"field": field, "message": message}])


def malformed(problem: ErrorDetails, data: bytes) -> Malformed:
    """Why and where `data` is no JSON, by the parser's finding."""
    for mark, what, cure in _MARKS:
        if data.startswith(mark):
            return Malformed(f"the body {what}: {cure}", field="body")
    if _WIDE.match(data):
        return Malformed("the body is UTF-16 or UTF-32: send UTF-8", field="body")
    if _CUT_OFF.search(data[-8:]):
        return Malformed("the body is not JSON: it ends within a text: send all of it", field="body")
    told = not_json(problem)
    place = _place_of(data, _is_half) if HALF_A_PAIR in told else None
    if not place:
        return Malformed(f"the body is not JSON: {told}", field="body")
    return Malformed(f"the body is not JSON: in {pointer(place)} {told}", field=pointer(place))


def too_deep() -> Malformed:
    """Of a text whose lists and objects lie in one another more than DEEPEST levels deep."""
    return Malformed(
        f"the body is nested more than {DEEPEST} levels deep: no field here has more than a few, so look "
        "for brackets "
        "that do not close",
        field="body",
    )


def _place_of(data: bytes, wanted: Callable[[Any], bool]) -> Place | None:
    """Where the first such value stands; None where the text cannot be read even so."""
    try:
        return next((place for place, each in _walk(json.loads(data, parse_int=str)) if wanted(each)), None)
    except (ValueError, RecursionError):
        return None


def _walk(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value and where it stands, outer ones first. A name that is no text stands where its object
    does."""
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
    """Whether it is text that holds half a surrogate pair."""
    return isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value)
