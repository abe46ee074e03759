"""Crossed pairs are new, mostly near each other, and the same for the same seed."""

from __future__ import annotations

import re

from hmi.training.crossed import crossed_pairs
from hmi.training.data.rows import Row
from tests.tiny import random_texts

TEXTS = random_texts(60, 3)
ROWS = [Row((a, b), "same") for a, b in zip(TEXTS[:30], TEXTS[30:], strict=True)]


def shared(row: Row) -> int:
    first, second = (set(re.findall(r"\w+", text)) for text in row.text)
    return len(first & second)


def test_pairs_are_new_and_unlabelled_and_from_the_rows() -> None:
    pairs = crossed_pairs(ROWS, 200, 0)
    assert len(pairs) == len({pair.text for pair in pairs}) == 200
    assert not {pair.text for pair in pairs} & {row.text for row in ROWS}
    assert {pair.text[0] for pair in pairs} <= set(TEXTS[:30])
    assert {pair.text[1] for pair in pairs} <= set(TEXTS[30:])
    assert {pair.label for pair in pairs} == {""}


def test_the_seed_decides() -> None:
    assert crossed_pairs(ROWS, 50, 1) == crossed_pairs(ROWS, 50, 1) != crossed_pairs(ROWS, 50, 2)


def test_most_pairs_share_rare_words() -> None:
    words = [f"word{i}" for i in range(40)]
    rows = [Row((f"the {w} is here", f"a {w} was there"), "x") for w in words]
    rows += [Row((f"one {w} more", f"no {w} less"), "y") for w in words]
    pairs = crossed_pairs(rows, 80, 0)
    assert sum(shared(pair) > 0 for pair in pairs) > 40  # drawn at random, about one in 40 would


def test_rows_that_cannot_be_crossed_give_no_pairs() -> None:
    assert crossed_pairs([], 10, 0) == []
    assert crossed_pairs([Row("single", "x")] * 3, 10, 0) == []
    assert crossed_pairs([Row(("a", "same"), "x"), Row(("b", "same"), "x")], 10, 0) == []
    assert len(crossed_pairs([Row(("a", "b"), "x"), Row(("c", "d"), "x")], 10, 0)) == 2
