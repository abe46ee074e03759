"""What the tools' programs are told to write, and what HMI must read back."""

from __future__ import annotations

from typing import Any


def _said(text: str, label: str, labels: list[str], *entities: tuple[str, str]) -> dict[str, Any]:
    """A row of the truth. Entities are given by their words; their offsets count code points."""
    spans = [[text.index(held), text.index(held) + len(held), name] for held, name in entities]
    return {"text": text, "label": label, "labels": labels, "entities": spans}


TRUTH = [
    _said('🙂 Anna moved to New York, "today".', "news", ["news"], ("Anna", "PER"), ("New York", "LOC")),
    _said("Oslo is cold, isn't it?", "talk", ["talk", "news"], ("Oslo", "LOC")),
    _said("Ben met Zoë\nin Paris", "news", ["news"], ("Ben", "PER"), ("Zoë", "PER"), ("Paris", "LOC")),
    _said("It rains 👍🏽 here; so what", "talk", ["talk"]),
    _said("Ann Berg, Bo Ek left 🙂 Rome", "news", [], ("Ann Berg", "PER"), ("Bo Ek", "PER"), ("Rome", "LOC")),
    _said("# not a comment, says Bo", "talk", ["talk"], ("Bo", "PER")),
    _said("東京 Tokyo is far", "news", ["news", "talk"], ("Tokyo", "LOC")),
    _said("1.5, 2 and 3", "talk", ["talk"]),
]
"""Texts with emoji, quotes, commas, a line break and a mark of a comment."""


def units(text: str, offset: int) -> int:
    """An offset in UTF-16 units, as a browser counts it."""
    return len(text[:offset].encode("utf-16-le")) // 2


def in_units(row: dict[str, Any]) -> list[list[Any]]:
    """A row's entities with offsets in UTF-16 units."""
    text = row["text"]
    return [[units(text, start), units(text, end), name] for start, end, name in row["entities"]]
