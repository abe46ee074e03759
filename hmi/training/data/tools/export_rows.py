"""What the exports of annotation tools have in common: their answers become a label, or a list of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hmi.training.data.records import Fits, TableRecord

Rows = Iterator[tuple[dict[str, Any], str]]
"""Rows with the reason to leave each out, or ""."""
NO_LABEL = "without a label"


@dataclass(frozen=True)
class Export:
    """A recognised export: what to say of it, and the rows of one record. `rows` raises ValueError."""

    said: str
    rows: Callable[[Mapping[str, Any]], Rows]
    choices: tuple[str, ...] = ()
    """The names of the choices, by one of which the user may ask for them."""
    merged: Callable[[Iterator[TableRecord]], Iterator[TableRecord]] = iter
    """The records without those that repeat another one."""
    notes: Callable[[], list[str]] = list
    """Remarks for the user, once all records were read."""


def answer_field(others: Sequence[str], fits: Fits, *, several: bool, control: str = "") -> str:
    """The field for answers that may be `several` labels: the one that fits beside the columns `others`.

    control: the tool's name of the answers, by which the user may ask for them.
    """
    likely, other = ("labels", "label") if several else ("label", "labels")
    names = (likely, other, *([control] if control else []))
    return next((name for name in names if fits((*others, name))), likely)


def row_with_labels(
    row: dict[str, Any], field: str, labels: Sequence[Any], *, several: bool = False
) -> tuple[dict[str, Any], str]:
    """The row with its labels; it is left out if it needs one and has none."""
    if field == "labels" or (several and field != "label"):
        return {**row, field: list(labels)}, ""
    return {**row, field: labels[0] if len(labels) == 1 else list(labels) or None}, NO_LABEL * (not labels)


def column_names(head: Sequence[Mapping[str, Any]], *without: str) -> list[str]:
    return [name for name in dict.fromkeys(name for values in head for name in values) if name not in without]
