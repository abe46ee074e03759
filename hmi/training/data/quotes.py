"""Tells how a tab-separated table uses double quotes: spreadsheets quote cells as in CSV; most
other programs write quotes literally."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Quotes:
    """The first line, by number, of each kind that tells how quotes are used."""

    unpaired: int | None = None
    """Has quotes that do not pair within the line."""
    other: tuple[int, int] | None = None
    """Split at each tab, it has another number of cells than the header: (line, its cells)."""
    doubled: int | None = None
    """Has a cell that is quoted as in CSV, with a quote inside it doubled."""

    @property
    def literal(self) -> bool:
        """Whether quotes can only be ordinary characters."""
        return self.unpaired is not None and self.other is None and self.doubled is None

    def against(self) -> str:
        """The evidence against literal quotes, for an error; "" if there is none."""
        if self.doubled is not None:
            return f"line {self.doubled} quotes a cell as CSV does"
        return (
            ""
            if self.other is None
            else f"line {self.other[0]} has {self.other[1]} cells when split at each tab"
        )


def quotes_of(lines: Iterable[tuple[int, str]], width: int) -> Quotes:
    """Examine numbered `lines`: those below the header, which has `width` cells."""
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
            break  # no later line can change `literal`
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
