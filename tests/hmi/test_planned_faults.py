"""Faults that planning and token adaptation once had: floods, weights, old profiles, shutdowns."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hmi.core import ModelId, Objective, TokenPoint
from hmi.engine.item import Item
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
from tests.hmi.merging_lab import MODEL, batch_of, version
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
