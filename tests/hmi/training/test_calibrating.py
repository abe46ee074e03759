"""Calibrated answers decide as others do, and the temperature is the one fitted to held-out rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hmi.core import TaskRules
from hmi.model.tasks import InputAnswer, TaskKind
from hmi.model.tasks.multilabel import MultiLabel
from hmi.model.tasks.regression import Regression
from hmi.model.tasks.sequence import Classification
from hmi.model.tasks.words import UNSEEN, Tagging
from hmi.model.tenant.calibration import MAX_TEMPERATURE, MIN_TEMPERATURE, calibration_error
from hmi.training.data.golds import Gold
from hmi.training.tasks.calibration import calibrated
from hmi.training.tasks.objectives import objective_of

BIO = ("B-x", "B-y", "I-x", "I-y", "O")
KINDS: dict[str, TaskKind] = {
    "classification": Classification(("a", "b", "c", "d")),
    "multilabel": MultiLabel(("a", "b", "c", "d"), TaskRules(threshold=0.3)),
    "free tags": Tagging(("a", "b", "c")),
    "bio tags": Tagging(BIO, TaskRules(scheme="bio")),
}


def outputs(task: TaskKind, rows: int, scale: float) -> list[torch.Tensor]:
    """Merged outputs that are `scale` times as sure as they should be."""
    g = torch.Generator().manual_seed(3)
    if isinstance(task, Tagging):
        made = [torch.randn(9, task.outputs, generator=g) * 2 * scale for _ in range(rows)]
        return [each.log_softmax(-1) for each in made]
    return list(torch.randn(rows, task.outputs, generator=g) * 2 * scale)


def golds(task: TaskKind, merged: list[torch.Tensor], scale: float) -> list[Gold]:
    """Right answers drawn from the probabilities that the outputs should have given."""
    rng = np.random.default_rng(5)
    found: list[Gold] = []
    for each in merged:
        z = (each / scale).double()
        if isinstance(task, MultiLabel):
            mine = rng.random(task.outputs) < z.sigmoid().numpy()
            found.append(tuple(label for label, has in zip(task.labels, mine, strict=True) if has))
        elif isinstance(task, Tagging):
            found.append(tuple(rng.choice(task.labels, p=p) for p in z.softmax(-1).numpy()))
        else:
            found.append(str(rng.choice(task.labels, p=z.softmax(-1).numpy())))
    return found


def decided(answer: InputAnswer) -> object:
    return answer.label, answer.tags, [name for name, _ in answer.labels or []]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [MIN_TEMPERATURE, 0.7, 3.0, MAX_TEMPERATURE])
def test_no_temperature_changes_a_decision(kind: str, temperature: float) -> None:
    task = KINDS[kind]
    for merged in outputs(task, 40, 1.0):
        plain, warm = task.answer(merged), task.answer(merged, temperature=temperature)
        assert decided(warm) == decided(plain)
        assert warm.score != plain.score or plain.score is None
        assert task.answer(merged, temperature=None) == plain


@pytest.mark.parametrize("kind", ["classification", "multilabel", "free tags"])
def test_the_temperature_makes_up_for_outputs_that_are_too_sure(kind: str) -> None:
    task, scale = KINDS[kind], 2.5
    merged = outputs(task, 600, scale)
    right = golds(task, merged, scale)
    made = objective_of(task).decisions(right, merged)
    assert made is not None
    found, told = calibrated(made, len(right), 20)
    assert found == pytest.approx(scale, rel=0.1)
    before = calibration_error(made.confidence(), made.gold == made.shown)
    assert told["ece_calibrated"] < before / 2
    # What the report counts is what an answer says.
    answer = task.answer(merged[0], temperature=found)
    sure = [p for _, p in answer.labels or []] or answer.tag_scores or [answer.score]
    assert set(np.round(sure, 5)) <= set(np.round(made.confidence(found)[: 4 if kind[0] == "m" else 9], 5))


def test_a_taggers_marginals_are_calibrated_with_its_rules() -> None:
    task = KINDS["bio tags"]
    assert isinstance(task, Tagging)
    merged = outputs(task, 1, 1.0)[0]
    merged[4] = UNSEEN
    found = task.decoded(merged)
    assert len(found.words) == 8
    warm = task.answer(merged, temperature=2.0).tag_scores
    assert warm is not None
    roots = np.sqrt(found.marginals.astype(np.float64))
    wanted = (roots / roots.sum(-1, keepdims=True))[range(8), found.path]
    assert warm[4] == 0.0
    np.testing.assert_allclose(np.delete(warm, 4), wanted, rtol=1e-6)


def test_without_enough_rows_or_probabilities_there_is_no_temperature() -> None:
    task = KINDS["classification"]
    merged = outputs(task, 19, 1.0)
    made = objective_of(task).decisions(golds(task, merged, 1.0), merged)
    assert calibrated(made, 19, 20) == (None, {})
    assert objective_of(Regression()).decisions([1.0], [torch.zeros(1)]) is None
    value = Regression(rules=TaskRules(spread=2.0))
    assert value.answer(torch.ones(1), temperature=2.0) == value.answer(torch.ones(1))


def test_a_label_that_the_model_lacks_counts_as_wrong_and_is_not_fitted() -> None:
    task = KINDS["classification"]
    merged = outputs(task, 50, 1.0)
    right = golds(task, merged, 1.0)
    made = objective_of(task).decisions([*right, "new"], [*merged, merged[0]])
    assert made is not None
    assert made.gold[-1] == -1
    alone = objective_of(task).decisions(right, merged)
    assert alone is not None
    every = np.ones(51, np.bool_)
    assert made.fit(every) == alone.fit(every[:50])
    assert replace(made).confidence().shape == (51,)
