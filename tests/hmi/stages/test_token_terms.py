"""The terms of token adaptation that the planner prices texts by."""

from __future__ import annotations

import pytest

from hmi.core import ModelId, Objective, TokenPoint
from hmi.execution.batch import BatchKey
from hmi.stages.planner import Adaptive, Waiting
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.pareto import ParetoPlanner
from hmi.stages.token_adaptation.settings import MERGES, PROMPTS, SHORTEST, schedule
from hmi.stages.token_adaptation.stage import TokenAdaptation
from tests.hmi.labs.runner_bodies import version_by

KEY = BatchKey(("tiny", "r1"), "cls", False)
POINTS = tuple(
    TokenPoint(gamma=gamma, score=score, agreement=agreement, rows=2_000)
    for gamma, score, agreement in [(0, 0.8, 1.0), (-10, 0.81, 0.999), (-20, 0.79, 0.99), (-50, 0.6, 0.7)]
)


def waiting(agreement: float | None, tokens: int = 40) -> Waiting:
    objective = Objective(agreement_under_load=agreement)
    return Waiting(KEY, 6, (tokens,), ModelId("acme", "tone"), version_by("job", tokens=POINTS), objective)


def test_each_level_has_the_boldest_setting_that_the_model_may_use() -> None:
    stage = TokenAdaptation()
    assert isinstance(stage, Adaptive)
    found = stage.terms(waiting(0.95))
    off, merges = found[: 1 + len(PROMPTS)], found[1 + len(PROMPTS) :]
    assert {(each.name, each.rows, each.shortest) for each in off} == {("off", (1.0,) * 6, 0)}  # no prompts
    assert [each.name for each in merges] == ["merge 10%", *["merge 20%"] * (len(MERGES) - 1)]
    assert [each.accuracy for each in merges[:2]] == [0.8, 0.79]  # never above that without merging
    assert merges[1].rows == merges[-1].rows == schedule(-20, 6)
    assert merges[0].shortest == SHORTEST


def test_a_model_without_an_objective_stays_off() -> None:
    found = TokenAdaptation().terms(waiting(None))
    assert {(each.name, each.accuracy, each.rows) for each in found} == {("off", 0.8, (1.0,) * 6)}


def test_the_planner_prices_by_them() -> None:
    cost = Cost(batch=1e-3, text=1e-4, row=1e-5, square=0.0, module=0.0)
    planner = ParetoPlanner([TokenAdaptation()], lambda key: cost)
    price = planner.price(waiting(0.95))
    first = 1 + len(PROMPTS)
    assert price.values[first:] == pytest.approx([1, *[0.79 / 0.8] * (len(MERGES) - 1)])
    assert price.values[:first] == pytest.approx([1] * first)
    rows = sum(schedule(-20, 6))
    assert price.seconds[0] == pytest.approx(1e-4 + 40 * 6e-5)
    assert price.seconds[first + 1 :] == pytest.approx([1e-4 + 40 * rows * 1e-5] * (len(MERGES) - 1))
    short = planner.price(waiting(0.95, SHORTEST - 1))
    assert len(set(short.seconds)) == len(set(short.values)) == 1
