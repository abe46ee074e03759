"""The paired bootstrap: its scores are those of the reports, and it is sure only where rows say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hmi.model.tasks import TaskKind
from hmi.training.data.golds import Gold
from hmi.training.data.rows import Row
from hmi.training.second.choosing import (
    SURE,
    Rule,
    Version,
    VersionComparison,
    compare,
    cross_validated,
    folds_of,
    least_rows,
    rule_of,
)
from hmi.training.tasks.headline import headline
from hmi.training.tasks.objectives import learn_task, objective_of

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
def test_the_score_of_some_rows_parts_is_their_headline_score(name: Any, golds_of: Any) -> None:
    golds = golds_of(40, 1)
    task = learn_task(name, golds)
    objective, merged = objective_of(task), outputs(task, golds, 0.7, 2)
    parts = objective.parts(golds, merged)
    for draw in np.random.default_rng(3).integers(40, size=(5, 40)):
        slowly = headline(objective.score([golds[i] for i in draw], [merged[i] for i in draw]))
        assert objective.score_of_parts(parts[draw]) == pytest.approx(slowly, abs=1e-4)  # it is rounded


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


def test_two_rows_won_and_one_lost_out_of_thirty_are_not_sure() -> None:
    golds: list[Gold] = ["a", "b"] * 15
    task = learn_task("classification", golds)
    right = outputs(task, golds, 0.0, 0)
    two_wrong, one_wrong = [-right[0], -right[1], *right[2:]], [*right[:2], -right[2], *right[3:]]
    found = compare(golds, (task, two_wrong), (task, one_wrong), seed=0)
    assert found.gain == pytest.approx(1 / 30, abs=1e-4)
    assert 0.5 < found.sure < SURE


def test_a_likelihood_decides_where_scores_are_equal() -> None:
    golds = labelled(150, 9)
    task = learn_task("classification", golds)
    clear = outputs(task, golds, 0.3, 1)
    # Answers stay as they are. The right label's probability falls on every other row.
    vague = [output * (0.2 if i % 2 else 1.0) for i, output in enumerate(clear)]
    found = compare(golds, (task, vague), (task, clear), seed=0)
    assert (found.gain, found.by_score) == (0.0, 0.5)
    assert found.by_likelihood > 0.95
    assert found.better
    assert not compare(golds, (task, clear), (task, vague), seed=0).better


def test_a_lower_score_is_not_better_however_likely_the_right_answers_are() -> None:
    golds = labelled(150, 9)
    task = learn_task("classification", golds)
    clear = outputs(task, golds, 0.1, 1)
    wrong = [-clear[0], *clear[1:]]
    vague = [output * (0.1 if i % 2 else 1.0) for i, output in enumerate(clear)]
    found = compare(golds, (task, vague), (task, wrong), seed=0)
    assert found.gain < 0
    assert not found.better


def test_chance_alone_is_rarely_sure() -> None:
    """About one in four versions that are equally good may pass: by their score, or by their likelihood."""
    golds = labelled(150, 7)
    task = learn_task("classification", golds)
    passed = [
        compare(
            golds, (task, outputs(task, golds, 0.6, 2 * i)), (task, outputs(task, golds, 0.6, 2 * i + 1)), 0
        ).better
        for i in range(100)
    ]
    assert sum(passed) <= 35


def test_folds_hold_every_row_once_and_every_label_evenly() -> None:
    rows = [Row(str(i), "rare" if i % 5 == 0 else "common") for i in range(40)]
    folds = folds_of(rows, 4, seed=1)
    assert sorted(i for fold in folds for i in fold) == list(range(40))
    assert [sum(rows[i].label == "rare" for i in fold) for fold in folds] == [2, 2, 2, 2]
    assert folds_of(rows, 4, seed=1) == folds
    assert folds_of(rows, 4, seed=2) != folds
    assert len(folds_of(rows[:3], 4, seed=1)) == 3


@pytest.mark.parametrize(("name", "golds_of"), TASKS)
def test_with_few_rows_every_row_decides(name: Any, golds_of: Any) -> None:
    golds = golds_of(60, 8)
    rows = [Row(f"row {i}", gold) for i, gold in enumerate(golds)]
    task = learn_task(name, golds)
    texts = [str(row.text) for row in rows]
    noisy = dict(zip(texts, outputs(task, golds, 2.0, 5), strict=True))
    better = dict(zip(texts, outputs(task, golds, 0.2, 6), strict=True))
    calls: list[int] = []

    def both(train: list[Row], held: list[Row]) -> tuple[Version, Version]:
        assert not {str(row.text) for row in train} & {str(row.text) for row in held}
        assert len(train) + len(held) == 60
        calls.append(len(held))
        return (task, [noisy[str(row.text)] for row in held]), (task, [better[str(row.text)] for row in held])

    found = cross_validated(rows, both, seed=0)
    assert sum(calls) == found.rows == 60
    assert found.better
    whole = compare(golds, (task, list(noisy.values())), (task, list(better.values())), seed=0)
    assert found.after == pytest.approx(whole.after, abs=1e-4)
    assert found.before == pytest.approx(whole.before, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "golds_of", "paired", "rows", "held_out", "afresh", "rule"),
    [
        ("classification", labelled, False, 2_000, 400, True, "better"),
        ("classification", labelled, False, 500, 100, True, "better"),
        ("classification", labelled, False, 500, 50, True, "not_worse"),
        ("classification", labelled, False, 1_000, 50, True, "by_folds"),
        ("pair", labelled, True, 500, 50, True, "by_folds"),
        ("multilabel", in_sets, False, 500, 50, True, "by_folds"),
        ("regression", valued, True, 500, 50, True, "by_folds"),
        ("tagging", tagged, False, 500, 50, True, "by_folds"),
        ("classification", labelled, False, 500, 20, False, "better"),
        ("classification", labelled, False, 99, 0, False, "better"),
        ("tagging", tagged, False, 99, 20, False, "better"),
    ],
)
def test_the_rule_follows_from_the_rows(
    name: Any, golds_of: Any, paired: bool, rows: int, held_out: int, afresh: bool, rule: Rule
) -> None:
    task = learn_task(name, golds_of(40, 1), paired=paired)
    assert rule_of(task, rows, held_out, afresh=afresh) == rule


def test_few_rows_show_only_what_is_worse() -> None:
    lower = VersionComparison(0.7, 0.6, by_score=0.1, by_likelihood=0.1, rows=10)
    less_likely = VersionComparison(0.7, 0.7, by_score=0.5, by_likelihood=0.1, rows=10)
    higher = VersionComparison(0.7, 0.8, by_score=0.9, by_likelihood=0.4, rows=10)
    passed = [[one.passes("better"), one.passes("not_worse")] for one in (lower, less_likely, higher)]
    assert passed == [[False, False], [False, True], [True, True]]
    assert least_rows("not_worse") > least_rows("better") == least_rows("by_folds")
