"""Faults that planning and token adaptation once had: floods, weights, old profiles, shutdowns."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from hmi.core import ModelId, ModelVersion, Objective, TokenPoint
from hmi.engine.adaptive.planning import Planning
from hmi.engine.schedule.limits import BatchLimits
from hmi.engine.schedule.pace import Pace
from hmi.engine.schedule.queue import BatchQueue
from hmi.errors import Unavailable
from hmi.execution.batch import BatchKey, Rows
from hmi.stages.planner import BatchCost, Candidate, Waiting
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.group import FAR_S, GroupLimits, Member, Price
from hmi.stages.planning.groups import Groups
from hmi.stages.planning.measured import ENOUGH, Ratios
from hmi.stages.planning.pareto import ParetoPlanner
from hmi.stages.token_adaptation.settings import merging
from hmi.stages.token_adaptation.stage import TokenAdaptation
from tests.hmi.engine.test_queue_groups import LIMITS, price
from tests.hmi.engine.test_queue_model import item
from tests.hmi.labs.merging_lab import (
    MODEL,
    OBJECTIVE,
    batch_of,
    hook_of,
    text_of,
    texts,
    through_hook,
    version,
)
from tests.hmi.labs.runner_bodies import version_by

KEY = BatchKey(("tiny", "r1"), "cls", False)
COST = Cost(batch=1e-3, text=1e-4, row=1e-5, square=0.0, module=1e-4)


def soon() -> float:
    return time.monotonic() + 1.0


def test_texts_in_groups_may_be_dropped_after_all_have_failed() -> None:
    """A call gives its texts back when a stop without drain has failed them."""
    queue = BatchQueue(1 << 20, Pace(), price=price, limits=LIMITS)
    sent = [item("acme", "cls", [9], soon()), item("acme", "cls", [9])]
    queue.put(sent)
    queue.fail_all(Unavailable("stopping"))
    queue.drop(sent)
    assert queue.tokens == 0


def test_two_express_candidates_of_one_group_are_planned() -> None:
    planning = Planning(ParetoPlanner(cost_of=lambda key: COST))
    queue = BatchQueue(1 << 20, Pace(), price=planning.price, limits=GroupLimits(seconds=1.0))
    queue.put([item("host", "cls", [9])])
    queue.cut(queue.candidates()[0], BatchLimits(1.0, 999))
    other, mine = item("other", "cls", [9], soon()), item("host", "cls", [9], soon())
    mine.request = replace(mine.request, beside=True)
    queue.put([other, mine])
    assert other.group is mine.group
    found = queue.express_candidates()
    assert len(found) == 2
    planning.plan(queue, found)
    assert planning.totals.failures == 0


def test_a_gamma_that_is_no_setting_any_more_is_not_used() -> None:
    points = tuple(TokenPoint(gamma=g, score=0.8, agreement=1.0, rows=9_000) for g in (0, -15, -20, 3))
    made = version_by("job", tokens=points)
    text = Waiting(KEY, 6, (40,), ModelId("acme", "tone"), made, Objective(agreement_under_load=0.9))
    stage = TokenAdaptation()
    names = [each.name for each in stage.terms(text)]
    assert names == ["off", "off", "off", "off", "merge 20%", "merge 20%", "merge 20%"]
    assert stage.allowed(text.model, made, text.objective) == (-20,)


def _of_windows(made: ModelVersion, *windows: int) -> Waiting:
    return Waiting(KEY, 6, windows, MODEL, made, OBJECTIVE, whole=len(windows) == 1)


def test_a_text_of_several_windows_is_not_merged_since_no_audit_would_see_it() -> None:
    made = version((-20, 0.9, 1.0, 9_000))
    both = [text_of(0, 30), text_of(1, 30, whole=False)]
    batch = batch_of([30, 30], texts=both, versions=[(MODEL, made, None)] * 2)
    (hook,) = TokenAdaptation().hooks(merging(-20), batch)
    assert hook.concerns == {0: "merge 20%"}
    planner = ParetoPlanner([TokenAdaptation()], lambda key: COST)
    long, short = [planner.price(_of_windows(made, *n)) for n in ((30, 30), (30,))]
    assert len(set(long.values)) == len(set(long.seconds)) == 1
    assert len(set(short.seconds)) > 1


def test_a_text_that_insists_on_the_full_model_is_priced_without_merging() -> None:
    planning = Planning(ParetoPlanner([TokenAdaptation()], lambda key: COST))
    one = item("acme", "cls", [30], soon())
    one.bundle = SimpleNamespace(  # type: ignore[assignment]
        **{**vars(one.bundle), "version": version((-20, 0.9, 1.0, 9_000)), "objective": OBJECTIVE}
    )
    for early in (True, False, True):
        one.request = replace(one.request, early=early)
        found = planning.price(one)
        assert found is not None
        assert (len(set(found.seconds)) > 1) == early


def test_a_share_is_by_weight() -> None:
    weights = {"heavy": 4.0}
    queue = BatchQueue(1 << 30, Pace(), price=price, limits=LIMITS, weight_of=lambda t: weights.get(t, 1.0))
    queue.put([item("a", "cls", [60], soon()) for _ in range(10)])
    mine = [item("heavy", "cls", [60], soon()) for _ in range(60)]
    queue.put(mine)
    assert [one.group.beyond for one in mine if one.group] == [False] * 60, "up to eight times as many"
    weights["a"] = 8.0
    queue.put([item("a", "cls", [60], soon())])
    more = [item("heavy", "cls", [60], soon())]
    queue.put(more)
    assert more[0].group
    assert more[0].group.beyond


def test_texts_whose_cost_is_a_guess_run_in_their_turn_even_if_it_says_that_they_are_late() -> None:
    """Else nobody would ever learn what they take."""
    planning = Planning(ParetoPlanner())
    queue = BatchQueue(1 << 30, Pace(), price=planning.price)
    urgent = item("quick", "cls", [100], time.monotonic() + 0.015)
    urgent.queued -= 1.0
    queue.put([urgent, item("other", "cls", [60])])
    plan, _ = planning.plan(queue, queue.candidates())
    assert urgent.group
    assert plan.group == urgent.group.id


def test_texts_that_lose_no_row_are_not_told_to_be_merged() -> None:
    """Nor audited: they would count as agreements of merging."""
    hook = hook_of([9, 40], {0: -10, 1: -10}, (0, 1), stretches={0: [(i, 1) for i in range(1, 9)]})
    assert hook.concerns == {1: "merge 10%"}
    parts = texts([9, 40], 8)
    rows = through_hook(hook, Rows.packed(torch.cat(parts), [0, 9, 49]))[-1]
    assert rows.texts == [0, 1, 1]


def test_batches_of_mostly_other_texts_rest_no_setting() -> None:
    """A tenant whose texts are never merged may share groups with one whose texts are."""
    ratios = Ratios()
    for _ in range(2 * ENOUGH):
        measured = BatchCost(64, 640, 0.02)
        ratios.learn(KEY, 0, (0.02, 0.014), measured, faster=False, now=0.0)
        ratios.learn(KEY, 1, (0.02, 0.0198), measured, faster=True, now=0.0)
    found = ratios.of(KEY)
    assert found is not None
    assert found.resting(0.0) == []


def test_texts_that_have_waited_too_long_leave_every_second_batch_to_others() -> None:
    now, planner = 100.0, ParetoPlanner(cost_of=lambda key: COST)
    groups = Groups(GroupLimits(texts=1))
    for deadline, queued in [(math.inf, now - 2 * FAR_S)] * 4 + [(now + 0.004, now)]:
        price = planner.price(_of_windows(version(), 10))
        groups.add(KEY, Member("acme", queued, deadline, 1.0, price))
    urgent = groups.of(KEY)[-1]
    kinds = []
    for _ in range(2):
        plan = planner.plan([Candidate(0.0, 0.0, "acme", KEY, 6, groups.of(KEY), grouped=True)], now)
        group = groups.find(KEY, plan.group or 0)
        assert group is not None
        kinds.append((plan.kind, group is urgent))
        groups.remove(group, next(iter(group)))
    assert kinds == [("overdue", False), ("loaded", True)]


def test_groups_that_are_full_are_looked_at_no_more() -> None:
    groups, full = Groups(GroupLimits(seconds=0.02)), Price((1.0,), (0.03,))
    for _ in range(100):
        groups.add(KEY, Member("acme", 0.0, 1.0, 1.0, full))
    assert len(groups) == 100
    assert not groups._open[KEY, False]


@pytest.mark.parametrize("wrong", [{"agreement": 1.5}, {"agreement": math.nan}, {"rows": -1}])
def test_a_profile_that_makes_no_sense_is_refused_before_a_batch_fails_for_it(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TokenPoint.model_validate({"gamma": -20, "score": 1.0, "agreement": 1.0, "rows": 9, **wrong})
