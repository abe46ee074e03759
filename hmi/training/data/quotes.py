"""What a double quote is in a table with tabs: spreadsheets write it as CSV does, most other
programs as it stands."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Quotes:
    """The first lines, by number, that tell: `unpaired` has quotes that do not pair within it,
    `other` has not as many cells as the header when it is split at each tab, `doubled` has a cell
    quoted as CSV does, a quote in it as two."""

    unpaired: int | None = None
    other: tuple[int, int] | None = None
    """(line, its cells)"""
    doubled: int | None = None

    @property
    def as_they_stand(self) -> bool:
        """Whether quotes can only be signs like any other."""
        return self.unpaired is not None and self.other is None and self.doubled is None

    def against(self) -> str:
        """What speaks against that, for an error; "" where nothing does."""
        if self.doubled is not None:
            return f"line {self.doubled} quotes a cell as CSV does"
        return (
            ""
            if self.other is None
            else f"line {self.other[0]} has {self.other[1]} cells when split at each tab"
        )


def quotes_of(lines: Iterable[tuple[int, str]], width: int) -> Quotes:
    """`lines`: those below the header, which has `width` cells, by number."""
    unpaired = other = doubled = None
    for number, line in lines:
        cells = line.split("\t")
        if other is None and len(cells) != width and any(cells):
            other = number, len(cells)
        if '"' not in line:
            continue
        if unpaired is None and not _pairs(line):
            unpaired = number
        if doubled is None and any(map(_is_quoted, cells)):
            doubled = number
        if None not in (unpaired, other or doubled):
            break  # nothing that follows can change what they say
    return Quotes(unpaired, other, doubled)


def _pairs(line: str) -> bool:
    try:
        return len(list(csv.reader([line], delimiter="\t", strict=True))) == 1
    except csv.Error:
        return False


def _is_quoted(cell: str) -> bool:
    inner = cell[1:-1]
    return (
        len(cell) > 3 and cell[0] == cell[-1] == '"' and '""' in inner and '"' not in inner.replace('""', "")
    )
