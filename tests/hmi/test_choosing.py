"""The paired bootstrap: its scores are those of the reports, and it is sure only where rows say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hmi.model.tasks import TaskKind
from hmi.training.choosing import SURE, compare
from hmi.training.golds import Gold
from hmi.training.headline import headline
from hmi.training.objectives import learn_task, objective_of

LABELS = ["B-x", "I-x", "B-y", "I-y", "O"]


def labelled(count: int, seed: int) -> list[Gold]:
    return list(np.random.default_rng(seed).choice(["bad", "good", "so"], count))


def in_sets(count: int, seed: int) -> list[Gold]:
    rng = np.random.default_rng(seed)
    return [tuple(sorted({*rng.choice(["a", "b", "c"], 2)})) for _ in range(count)]


def valued(count: int, seed: int) -> list[Gold]:
    return [float(x) for x in np.random.default_rng(seed).normal(size=count).round(1)]


def tagged(count: int, seed: int) -> list[Gold]:
    rng = np.random.default_rng(seed)
    return [tuple(str(tag) for tag in rng.choice(LABELS, 6)) for _ in range(count)]


def plain_tags(count: int, seed: int) -> list[Gold]:
    rng = np.random.default_rng(seed)
    return [
        tuple(str(tag) for tag in rng.choice(["noun", "verb"], int(rng.integers(1, 5)))) for _ in range(count)
    ]


def right_output(task: TaskKind, gold: Gold) -> Tensor:
    if isinstance(gold, float):
        return torch.tensor([gold])
    assert isinstance(gold, str | tuple)
    if task.name == "tagging":
        return torch.stack([torch.tensor([float(label == tag) for label in task.labels]) for tag in gold])
    given = gold if isinstance(gold, tuple) else (gold,)
    found = torch.tensor([float(label in given) for label in task.labels])
    return found * 4 - 2 if task.name == "multilabel" else found


def outputs(task: TaskKind, golds: list[Gold], noise: float, seed: int) -> list[Tensor]:
    """The outputs of a model with this much noise."""
    rng = torch.Generator().manual_seed(seed)
    right = [right_output(task, gold) for gold in golds]
    return [output + noise * torch.randn(output.shape, generator=rng) for output in right]


TASKS: list[Any] = [
    ("classification", labelled),
    ("multilabel", in_sets),
    ("regression", valued),
    ("tagging", tagged),
    ("tagging", plain_tags),
]


@pytest.mark.parametrize(("name", "golds_of"), TASKS)
def test_the_score_of_a_draw_is_the_headline_score_of_its_rows(name: Any, golds_of: Any) -> None:
    golds = golds_of(40, 1)
    task = learn_task(name, golds)
    merged = outputs(task, golds, 0.7, 2)
    draws = np.random.default_rng(3).integers(40, size=(5, 40))
    found = objective_of(task).resampled(golds, merged, draws)
    slowly = [
        headline(objective_of(task).score([golds[i] for i in draw], [merged[i] for i in draw]))
        for draw in draws
    ]
    assert found == pytest.approx(slowly, abs=2e-4)  # reports round to four digits


@pytest.mark.parametrize(("name", "golds_of"), TASKS)
def test_a_better_version_is_found_and_an_equal_one_is_not(name: Any, golds_of: Any) -> None:
    golds = golds_of(200, 4)
    task = learn_task(name, golds)
    worse, better = outputs(task, golds, 1.0, 5), outputs(task, golds, 0.3, 6)
    found = compare(golds, (task, worse), (task, better), seed=0)
    assert found.better
    assert found.gain > 0
    assert not compare(golds, (task, better), (task, worse), seed=0).better
    same = compare(golds, (task, better), (task, better), seed=0)
    assert (same.sure, same.gain, same.better) == (0.5, 0.0, False)


def test_one_row_more_out_of_thirty_is_not_sure() -> None:
    golds: list[Gold] = ["a", "b"] * 15
    task = learn_task("classification", golds)
    right = outputs(task, golds, 0.0, 0)
    one_wrong = [-right[0], *right[1:]]
    found = compare(golds, (task, one_wrong), (task, right), seed=0)
    assert found.gain == pytest.approx(1 / 30, abs=1e-4)
    assert 0.5 < found.sure < SURE


def test_chance_alone_is_rarely_sure() -> None:
    """Of versions that are equally good, about one in ten may pass: that is what SURE promises."""
    golds = labelled(150, 7)
    task = learn_task("classification", golds)
    passed = [
        compare(
            golds, (task, outputs(task, golds, 0.6, 2 * i)), (task, outputs(task, golds, 0.6, 2 * i + 1)), 0
        ).better
        for i in range(100)
    ]
    assert sum(passed) <= 20
