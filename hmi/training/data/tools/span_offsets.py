"""The offsets of spans, in code points.

Tools in browsers count UTF-16 units, in which an emoji has two. Where a span's text is given, it tells which
units are meant. Otherwise the edges of words tell, if only one of both fits them; or the file's other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hmi.model.text.splitting import kind_of
from hmi.training.data.records import TableRecord
from hmi.training.data.tools.span_forms import Given

CHARACTERS = 40
"""A quoted text is cut to this many characters."""
DOUBT = (
    "has an emoji or another character beyond U+FFFF before a span: it cannot be told whether offsets count "
    "it as one or, as in UTF-16, as two. Export the text of each span, or remove the character"
)
LARGEST_OF_ONE_UNIT = "\uffff"
"""The last character that is one UTF-16 unit."""


@dataclass(frozen=True)
class SpanRow:
    """A record with its spans in code points."""

    record: TableRecord
    text: str
    spans: list[Given]
    problem: str = ""
    by_units: bool = False
    doubtful: bool = False
    """Whether nothing in the row tells code points from UTF-16 units."""


def located(record: TableRecord, text: str, spans: list[Given], *, code_points: bool) -> SpanRow:
    """A record's text with its spans in code points, as far as the record tells.

    code_points: whether its tool surely counts these. The spans' own texts decide against it.
    """
    points = SpanRow(record, text, spans)
    if text.isascii() or max(text) <= LARGEST_OF_ONE_UNIT:
        return _checked(points)
    units = replace(points, spans=_of_units(text, spans), by_units=True)
    named = all(span.text is not None for span in spans)
    if units.spans == points.spans or (code_points and not named):
        return _checked(points)
    for fits in (_are_exact, _are_named) if named else (_at_edges,):
        fit = [row for row in (points, units) if fits(row)]
        if len(fit) == 1:
            return _checked(fit[0])
        if fit:
            break
    if not fit and (named or all(_checked(row).problem for row in (points, units))):
        return _checked(points)
    return _checked(points) if code_points else replace(points, doubtful=True)


def settled(rows: Sequence[SpanRow]) -> Iterator[SpanRow]:
    """The rows, with those that tell nothing themselves read as the file's others are."""
    told = {
        row.by_units for row in rows if max(row.text, default="") > LARGEST_OF_ONE_UNIT and _shows_unit(row)
    }
    for row in rows:
        if not row.doubtful:
            yield row
        elif len(told) == 1:
            by_units = next(iter(told))
            spans = _of_units(row.text, row.spans) if by_units else row.spans
            yield _checked(replace(row, spans=spans, by_units=by_units))
        else:
            yield replace(row, problem=DOUBT)


def _shows_unit(row: SpanRow) -> bool:
    """Return whether a row with such a character tells what offsets count."""
    if row.problem or row.doubtful or not row.spans:
        return False
    return row.by_units or _of_units(row.text, row.spans) != row.spans


def _checked(row: SpanRow) -> SpanRow:
    """The row with its spans trimmed of white space, or with the problem of the first wrong one."""
    problem = outside_problem(row.spans, len(row.text), "characters")
    if problem:
        return replace(row, problem=problem)
    spans = []
    for span in row.spans:
        held = row.text[span.start : span.end]
        if span.text is not None and span.text.split() != held.split():
            said = f"the span from {span.start} to {span.end} is {quoted(held)}, but its text"
            return replace(row, problem=f"{said} is {quoted(span.text)}: its offsets are of another text")
        start = span.start + len(held) - len(held.lstrip())
        end = span.end - len(held) + len(held.rstrip())
        if start >= end:
            said = f"the span from {span.start} to {span.end} ({span.label})"
            return replace(row, problem=f"{said} holds no character but white space")
        spans.append(replace(span, start=start, end=end))
    return replace(row, spans=spans)


def outside_problem(spans: Sequence[Given], length: int, units: str) -> str:
    """The problem of the first span that does not lie within a text of `length` units; "" if all do."""
    for span in spans:
        if not 0 <= span.start < span.end <= length:
            where = f"the span from {span.start} to {span.end} ({span.label})"
            past = span.start < 0 or span.end > length
            return f"{where} {f'lies outside the text, which has {length} {units}' if past else 'is empty'}"
    return ""


def _of_units(text: str, spans: Sequence[Given]) -> list[Given]:
    """The spans with their offsets, which count UTF-16 units, in code points.

    An offset past the end stays past it.
    """
    points: dict[int, int] = {}
    unit = 0
    for point, char in enumerate(text):
        points[unit] = point
        unit += 1 + (char > LARGEST_OF_ONE_UNIT)
    points[unit] = len(text)
    past = len(text) - unit

    def at(offset: int) -> int:
        if offset in points:
            return points[offset]
        return offset + past if offset > unit else points.get(offset - 1, offset)

    return [replace(span, start=at(span.start), end=at(span.end)) for span in spans]


def _are_exact(row: SpanRow) -> bool:
    """Return whether all spans have the text that they name."""
    return all(row.text[span.start : span.end] == span.text for span in row.spans)


def _are_named(row: SpanRow) -> bool:
    """The same, but for white space."""
    return not _checked(row).problem


def _at_edges(row: SpanRow) -> bool:
    """Return whether all spans lie in the text and cut no run of letters and digits."""
    if _checked(row).problem:
        return False
    held = [row.text[span.start : span.end] for span in row.spans]
    places = {at for span in row.spans for at in (span.start, span.end)}
    return held == [text.strip() for text in held] and not any(_is_inside_word(row.text, at) for at in places)


def _is_inside_word(text: str, at: int) -> bool:
    """Return whether a place is between two letters or digits that are one word for the splitter."""
    return 0 < at < len(text) and all(kind_of(char) in ("a", "0") for char in text[at - 1 : at + 1])


def quoted(text: str) -> str:
    """A text as messages show it."""
    return f"“{text if len(text) <= CHARACTERS else f'{text[: CHARACTERS - 1]}…'}”"
