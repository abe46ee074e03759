"""The best legal path equals trying every path, and the scheme is read off the rows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hmi.model.tagging import best_path, rules, scheme_of

LABELS = ("B-a", "B-b", "I-a", "I-b", "O")


@pytest.mark.parametrize("seed", range(20))
def test_the_path_is_the_best_of_all_legal_ones(seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(4, len(LABELS))).astype(np.float32)
    allowed = rules(LABELS, "bio")
    legal = [p for p in product(range(len(LABELS)), repeat=4) if scheme_of([[LABELS[i] for i in p], ["B-a"]]) == "bio"]
    best = max(legal, key=lambda p: sum(scores[i, tag] for i, tag in enumerate(p)))
    assert best_path(scores, allowed).tolist() == list(best)


def test_without_rules_each_word_is_on_its_own() -> None:
    scores = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    assert rules(LABELS, "free") is None
    assert best_path(scores, None).tolist() == scores.argmax(-1).tolist()
    assert best_path(np.empty((0, 5), np.float32), rules(LABELS, "bio")).tolist() == []


@pytest.mark.parametrize(
    ("rows", "scheme"),
    [
        ([["O", "B-a", "I-a"], ["O"]], "bio"),
        ([["O", "I-a"]], "free"),
        ([["B-a", "I-b"]], "free"),
        ([["I-a"]], "free"),
        ([["NOUN", "VERB"]], "free"),
        ([["O", "O"]], "free"),
    ],
)
def test_the_scheme_is_what_the_rows_keep(rows: list[list[str]], scheme: str) -> None:
    assert scheme_of(rows) == scheme
