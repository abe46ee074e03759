"""Faults that planning and token adaptation once had: floods, weights, old profiles, shutdowns."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

from hmi.core import ModelId, ModelVersion, Objective, TokenPoint
from hmi.engine.pace import Pace
from hmi.engine.planning import Planning
from hmi.engine.queue import BatchLimits, BatchQueue
from hmi.errors import Unavailable
from hmi.execution.batch import BatchKey
from hmi.stages.planner import Waiting
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.groups import GroupLimits
from hmi.stages.planning.pareto import ParetoPlanner
from hmi.stages.token_adaptation.settings import merging
from hmi.stages.token_adaptation.stage import TokenAdaptation
from tests.hmi.merging_lab import MODEL, OBJECTIVE, batch_of, text_of, version
from tests.hmi.runner_bodies import version_by
from tests.hmi.test_queue_groups import LIMITS, price
from tests.hmi.test_queue_model import item

KEY = BatchKey(("tiny", "r1"), "cls", False)
COST = Cost(batch=1e-3, text=1e-4, row=1e-5, square=0.0, module=1e-4)


def soon() -> float:
    return time.monotonic() + 1.0


def test_texts_in_groups_may_be_dropped_after_all_have_failed() -> None:
    """A call gives its texts back when a stop without drain has failed them."""
    queue = BatchQueue(1 << 20, Pace(), price=price, limits=LIMITS)
    texts = [item("acme", "cls", [9], soon()), item("acme", "cls", [9])]
    queue.put(texts)
    queue.fail_all(Unavailable("stopping"))
    queue.drop(texts)
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
    texts = [text_of(0, 30), text_of(1, 30, whole=False)]
    batch = batch_of([30, 30], texts=texts, versions=[(MODEL, made, None)] * 2)
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
