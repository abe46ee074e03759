"""What a table is read to: records, each with its line, and the columns that they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """The place of a record in its file."""

    line: int
    item: int | None = None
    """The record's number in a JSON list, where line numbers say little."""

    def __str__(self) -> str:
        if self.item is None:
            return f"line {self.line}"
        # A whole list on one line has no other line to go to.
        return f"item {self.item}" if self.line == 1 else f"item {self.item} (line {self.line})"


@dataclass(frozen=True)
class TableRecord:
    """One row and its line. `problem` says why it cannot be read."""

    line: int
    values: dict[str, Any]
    problem: str = ""
    item: int | None = None
    """As in its place."""
    chat: tuple[tuple[str, str], ...] = ()
    """The role and the text of each message, if the row is a chat. `values` has what a classifier reads."""
    left_out: str = ""
    """Why a tool's export does not count the record as a row, such as that an annotator skipped it."""

    @property
    def at(self) -> Place:
        return Place(self.line, self.item)

    @property
    def place(self) -> str:
        """Its place in words, for messages."""
        return str(self.at)


@dataclass(frozen=True)
class TextTable:
    """A table's form in words, the columns found in its beginning, and its records."""

    form: str
    columns: tuple[str, ...]
    records: Iterator[TableRecord]
    choices: tuple[str, ...] = ()
    """The columns that each may be the label, if a tool's export has several."""
    notes: Callable[[], list[str]] = list
    """Remarks for the user, once all records were read."""


Fits = Callable[[Sequence[str]], bool]
"""Whether a table with these columns is the wanted one."""
