"""A teacher of tags gives probabilities where it is in doubt."""

from __future__ import annotations

import copy
import json
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from hmi.model.tags.tag_schemes import to_bio
from hmi.model.tasks.words import UNSEEN
from hmi.model.text.batching import Encoded
from hmi.training.data.golds import Gold, SoftTags
from hmi.training.second.teacher import SURE_TAG, TOP_TAGS, gold_from_json, gold_to_json, soft_tags
from hmi.training.tasks.objectives import learn_task, objective_of
from hmi.training.tasks.objectives.base import SoftTarget, likely


def in_doubt(rows: list[list[float]]) -> torch.Tensor:
    """A mixture of teachers: its outputs are log-probabilities that do not add up to one."""
    return torch.tensor(rows).log() - 1.5


def test_only_doubtful_words_have_soft_tags() -> None:
    task = learn_task("tagging", [("A", "B", "C", "D", "E")])
    sure, doubtful = [0.99, 0.004, 0.003, 0.002, 0.001], [0.3, 0.4, 0.29994, 0.00005, 0.00001]
    assert soft_tags(task, in_doubt([sure, sure])) == ("A", "A")
    gold = soft_tags(task, in_doubt([doubtful, sure]))
    assert isinstance(gold, SoftTags)
    assert gold.words == ((("B", 0.4), ("A", 0.3), ("C", 0.2999), ("D", 0.0001)), "A")
    assert gold_from_json(json.loads(json.dumps(gold_to_json(gold)))) == gold
    assert TOP_TAGS == 4


def test_soft_tags_are_the_marginals_of_the_teachers_paths() -> None:
    table = torch.tensor([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0]])  # N begins
    task = learn_task("tagging", [("N", "V")]).with_transitions(table)
    gold = soft_tags(task, in_doubt([[0.5, 0.5], [0.3, 0.7]]))
    assert isinstance(gold, SoftTags)
    n = 1 / (1 + np.exp(-2.0))
    assert gold.words[0] == (("N", round(n, 4)), ("V", round(1 - n, 4)))
    assert gold.words[1] == (("V", 0.7), ("N", 0.3))
    assert n < SURE_TAG


def test_soft_tags_are_the_shares_of_all_legal_paths() -> None:
    labels = ("B-x", "I-x", "O")
    generator = torch.manual_seed(0)
    table, scores = torch.randn(4, 3, generator=generator), torch.randn(4, 3, generator=generator)
    scores = scores.log_softmax(-1)
    task = learn_task("tagging", [labels]).with_transitions(table)
    shares, total = np.zeros((4, 3)), 0.0
    for path in product(range(3), repeat=4):
        if to_bio([labels[tag] for tag in path]) == tuple(labels[tag] for tag in path):
            moves = sum(table[before, tag].item() for before, tag in pairwise((3, *path)))
            share = np.exp(moves + sum(scores[word, tag].item() for word, tag in enumerate(path)))
            total += share
            shares[range(4), path] += share
    gold = soft_tags(task, scores)
    assert isinstance(gold, SoftTags)
    for word, one in enumerate(gold.words):
        assert not isinstance(one, str), "no word of these scores is sure"
        for tag, share in one:
            assert share == pytest.approx(shares[word, labels.index(tag)] / total, abs=1e-3)


def test_soft_targets_add_up_to_one_and_can_be_copied() -> None:
    soft = SoftTarget(((2, 0.6667), (0, 0.3334)))
    assert copy.deepcopy(soft).each == soft.each
    torch.testing.assert_close(
        likely([1, soft], 3), torch.tensor([[0.0, 1.0, 0.0], [0.3334 / 1.0001, 0.0, 0.6667 / 1.0001]])
    )


@pytest.mark.parametrize("scheme", ["iob1", "io"])
def test_soft_tags_are_labels_of_bio_whatever_the_scheme(scheme: str) -> None:
    rows: list[Gold] = [("I-x", "I-x", "O"), ("O", "I-y", "O")]
    task = learn_task("tagging", [*rows, ("I-x", "B-x", "I-x")] if scheme == "iob1" else rows)
    assert task.rules.scheme == scheme
    scores = torch.full((3, len(task.labels)), 1e-4)
    for word, (tag, share) in enumerate((("B-x", 0.9), ("I-x", 0.8), ("O", 0.999))):
        scores[word, task.labels.index(tag)] = share
        scores[word, task.labels.index("B-y")] = 0.999 - share if share < 0.99 else 1e-4
    gold = soft_tags(task, scores.log())
    assert isinstance(gold, SoftTags)
    assert [word if isinstance(word, str) else word[0][0] for word in gold.words] == ["B-x", "I-x", "O"]
    [target] = objective_of(task).targets(gold, [Encoded([7, 8, 9], [0] * 3, [0, 1, 2])])
    assert [task.labels[int(tag)] for tag in target] == ["B-x", "I-x", "O"]


def test_words_that_teachers_did_not_see_have_the_tag_of_the_answer() -> None:
    task = learn_task("tagging", [("B-x", "I-x", "O")])
    scores = torch.tensor([[0.6, 0.0001, 0.3999], [0, 0, 0], [0.0001, 0.6, 0.3999]]).log()
    scores[1] = torch.tensor([UNSEEN, UNSEEN, 0.0])
    gold = soft_tags(task, scores)
    assert isinstance(gold, SoftTags)
    assert gold.words[1] == "I-x"
