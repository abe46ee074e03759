"""The best path and each tag's probability equal trying every path; the tag scheme
is detected from the rows."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from seqeval.metrics.sequence_labeling import get_entities

from hmi.model.tags.tag_schemes import from_bio, scheme_of, to_bio
from hmi.model.tags.tagging import best_path, marginals, rules

LABELS = ("B-a", "B-b", "I-a", "I-b", "O")


@pytest.mark.parametrize("seed", range(20))
def test_the_path_is_the_best_of_all_legal_ones(seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(4, len(LABELS))).astype(np.float32)
    allowed = rules(LABELS, "bio")
    legal = [
        p
        for p in product(range(len(LABELS)), repeat=4)
        if scheme_of([[LABELS[i] for i in p], ["B-a"]]) == "bio"
    ]
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
        ([["O", "I-a"]], "io"),
        ([["I-a", "B-a"], ["I-b"]], "iob1"),
        ([["B-a", "I-b"]], "free"),
        ([["O", "I-a"], ["O", "B-a"]], "free"),
        ([["I-a"]], "io"),
        ([["NOUN", "VERB"]], "free"),
        ([["O", "O"]], "free"),
    ],
)
def test_the_scheme_is_what_the_rows_keep(rows: list[list[str]], scheme: str) -> None:
    assert scheme_of(rows) == scheme


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("learnt", [False, True])
def test_path_and_probabilities_are_those_of_all_paths(seed: int, learnt: bool) -> None:
    rng = np.random.default_rng(seed)
    scores, moves = rng.normal(size=(4, len(LABELS))).astype(np.float32), rules(LABELS, "bio")
    assert moves is not None
    if learnt:
        moves = moves + rng.normal(size=moves.shape).astype(np.float32)
    weights = {}
    for path in product(range(len(LABELS)), repeat=4):
        steps = moves[-1, path[0]] + sum(moves[a, b] for a, b in pairwise(path))
        weights[path] = np.exp(np.float64(steps) + sum(float(scores[i, tag]) for i, tag in enumerate(path)))
    assert tuple(best_path(scores, moves).tolist()) == max(weights, key=weights.__getitem__)
    expected = np.zeros(scores.shape)
    for path, weight in weights.items():
        expected[range(4), path] += weight / sum(weights.values())
    assert np.allclose(marginals(scores, moves), expected, atol=1e-5)


def test_probabilities_are_numbers_where_a_word_is_all_but_illegal() -> None:
    scores = np.full((3, len(LABELS)), -1e4, np.float32)
    scores[:, LABELS.index("I-a")] = 0
    moves = rules(LABELS, "bio")
    assert moves is not None
    assert np.allclose(marginals(scores, moves).sum(-1), 1)


def test_iob1_names_the_same_entities_as_bio_and_io_has_no_b() -> None:
    tags = ("I-a", "I-a", "B-a", "I-b", "O", "I-a", "I-b", "B-b")
    assert to_bio(tags) == ("B-a", "I-a", "B-a", "B-b", "O", "B-a", "B-b", "B-b")
    assert from_bio(to_bio(tags), "iob1") == list(tags)
    assert get_entities(list(tags)) == get_entities(list(to_bio(tags)))
    for bio in product(LABELS, repeat=4):
        if scheme_of([bio, ["B-a"]]) == "bio":
            assert to_bio(from_bio(bio, "iob1")) == bio
    assert from_bio(["B-a", "B-a", "I-a", "O"], "io") == ["I-a", "I-a", "I-a", "O"]
    assert from_bio(["B-a", "B-a"], "bio") == ["B-a", "B-a"]
