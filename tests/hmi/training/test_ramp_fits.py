"""The fit of a ramp, on rows whose answers are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hmi.core import TaskRules
from hmi.model.tasks import TaskKind
from hmi.model.tasks.multilabel import MultiLabel
from hmi.model.tasks.regression import Regression
from hmi.model.tasks.sequence import Classification
from hmi.model.tenant.uncertainty import VALUE_TOLERANCE, expected_error, of_values
from hmi.model.text.batching import Encoded
from hmi.training.data.rows import Row
from hmi.training.fit.optimisers import LinearFit, minimised
from hmi.training.for_stages.ramp_rows import RampRows
from hmi.training.for_stages.ramps import (
    CHANGE,
    STEPS,
    Judged,
    fitted,
    judge_ramp,
    ramp_outputs,
    ramps_by_default,
)
from hmi.training.tasks.splits import Split

DIM = 12
EMPTY = Split([], [])
TASKS: list[TaskKind] = [
    Classification(("a", "b", "c")),
    MultiLabel(("a", "b", "c"), TaskRules(threshold=0.4)),
    Regression(),
]


def rows(task: TaskKind, count: int, seed: int) -> RampRows:
    """A model whose output a ramp can tell in part: a linear map of the features, noise, lexical scores.

    The noise grows with the first feature, so some texts are harder. One feature is flat, one far from 0.
    """
    g, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(99)
    x = torch.randn(count, DIM, generator=g)
    truth = torch.randn(DIM, task.outputs, generator=fixed) * 3
    truth[2] = 0.0
    noise = torch.randn(count, task.outputs, generator=g) * (x[:, :1] > 0) * 2
    offsets = torch.randn(count, task.outputs, generator=g)
    outputs = (x @ truth + noise) * (0.2 if task.name == "regression" else 1.0) + offsets
    x = x.clone()
    x[:, 1] = x[:, 1] * 0.01 + 30
    x[:, 2] = 7.0
    return RampRows([x], offsets, outputs, [1] * count)


def judged(task: TaskKind, seen: RampRows, test: RampRows) -> Judged:
    weight, bias = fitted(task, 0, seen, rows(task, 100, 2))
    assert (weight.dtype, bias.dtype) == (torch.float16, torch.float32)
    tensors = {"0.out.weight": weight, "0.out.bias": bias}
    return judge_ramp(task, ramp_outputs(tensors, 0, test), test, EMPTY)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_ramp_answers_as_the_model_and_knows_where_it_may_not(task: TaskKind) -> None:
    seen, test = rows(task, 600, 1), rows(task, 400, 3)
    good = judged(task, seen, test)
    assert good.agreement > 0.6
    surest = np.argsort(good.uncertainty)[:100]
    assert good.agrees[surest].mean() > good.agreement + 0.02
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    control = judged(task, replace(seen, outputs=seen.outputs[order]), test)
    assert control.may_leave() < 0.05 < good.may_leave()


def test_the_fit_is_the_minimum() -> None:
    seen, penalty = rows(TASKS[0], 200, 1), 0.01
    x = torch.nn.functional.normalize(seen.features[0], dim=0) * 10

    def loss(z: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(z, seen.outputs.softmax(-1))

    found = minimised(loss, x, LinearFit(torch.zeros(3, DIM), torch.zeros(3), penalty), STEPS, CHANGE)
    weight, bias = found.weight.requires_grad_(True), found.bias.requires_grad_(True)
    (loss(x @ weight.T + bias) + penalty / 2 * weight.square().sum()).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert max(weight.grad.abs().max(), bias.grad.abs().max()) < 1e-3


def test_a_values_second_output_is_the_error_it_has() -> None:
    task = Regression()
    seen, test = rows(task, 2_000, 1), rows(task, 1_000, 3)
    weight, bias = fitted(task, 0, seen, rows(task, 200, 2))
    out = ramp_outputs({"0.out.weight": weight, "0.out.bias": bias}, 0, test)
    expected = expected_error(out[:, 1].numpy())
    off = (out[:, 0] - test.outputs[:, 0]).abs().numpy()
    assert (expected > 0).all()
    assert expected.mean() == pytest.approx(off.mean(), rel=0.2)
    hard = test.features[0][:, 0].numpy() > 0.5
    assert expected[hard].mean() > 1.3 * expected[~hard].mean()
    assert (of_values(expected, VALUE_TOLERANCE) < 1.0).all()


def test_the_link_is_positive_and_never_overflows() -> None:
    raw = np.array([-800.0, -1.0, 0.0, 1.0, 800.0])
    got = expected_error(raw)
    assert (got >= 0).all()
    assert got[2] == pytest.approx(np.log(2))
    assert got[-1] == 800.0


def test_what_may_leave_is_the_most_within_the_errors() -> None:
    texts = 200
    u = np.linspace(0.0, 0.9, texts)
    agrees = np.ones(texts, np.bool_)
    agrees[[50, 60, 100]] = False
    assert Judged(u, agrees).may_leave(0.01) == 100 / texts
    assert Judged(u, agrees).may_leave(0.0) == 50 / texts
    tied = np.where(np.arange(texts) >= 40, 0.5, u)
    assert Judged(tied, agrees).may_leave(0.01) == 40 / texts, "texts that are equally sure leave together"
    assert Judged(np.ones(texts), np.ones(texts, np.bool_)).may_leave() == 0.0, "1 never leaves"


def test_tags_agree_if_all_do() -> None:
    from hmi.model.tasks.words import Tagging

    task = Tagging(("A", "O"))
    window = Encoded([0, 1, 2, 3], [0] * 4, [None, 0, 1, None])
    split = Split([Row(["x", "y"], ())] * 2, [window] * 2)
    full = torch.tensor([[2.0, 0], [0, 2], [2, 0], [0, 2]])
    kept = RampRows([], torch.zeros(4, 2), full, [2, 2])
    ramp = full.clone()
    ramp[3] = torch.tensor([1.0, 0.0])
    got = judge_ramp(task, ramp, kept, split)
    assert got.agrees.tolist() == [True, False]
    np.testing.assert_allclose(got.uncertainty, [1 / (1 + np.e**2), 1 / (1 + np.e)])


def test_large_trainings_make_ramps_only_if_asked() -> None:
    assert ramps_by_default(20_000, 3, 64)
    assert not ramps_by_default(20_001, 3, 64)
    assert not ramps_by_default(10, 3, 65)
