"""Texts that are expected to arrive: what is expected, and that a plan leaves room for it."""

from __future__ import annotations

import math

import pytest

from hmi.stages.planning.expected import BIN_S, BINS, NEVER
from hmi.stages.planning.group import Member
from hmi.stages.planning.groups import Groups
from tests.hmi.stages.test_planning_pareto import KEY, World


def arrive(groups: Groups, world: World, at: float, *, slack: float = 1.0, utility: float = 1.0) -> None:
    price = world.planner.price(world.waiting(utility))
    groups.add(KEY, Member("acme", at, at + slack, utility, price))


def test_what_arrived_is_expected_again() -> None:
    groups, world = Groups(), World()
    arrive(groups, world, 0.0)
    arrive(groups, world, 0.01)
    arrive(groups, world, 0.02, utility=0.1)
    arrive(groups, world, 0.03, slack=math.inf)
    assert groups.expected(KEY, 0.04) == [], "a bin that is still open tells too little"
    low, high = sorted(groups.expected(KEY, BIN_S), key=lambda group: group.values[0])
    assert {low.id, high.id} == {NEVER}
    assert low.values == pytest.approx([0.1, 0.09, 0.07])
    assert high.seconds == pytest.approx([2.0, 1.6, 1.0])
    assert high.arrived == BINS * BIN_S
    assert high.deadline == pytest.approx(BINS * BIN_S + 1.0)
    assert groups.expected(KEY, (BINS + 1) * BIN_S + 1e-3) == [], "it did not come again"
    assert groups.expected("another", 0.0) == ()


def test_a_flood_beyond_its_share_is_not_expected() -> None:
    groups, world = Groups(), World()
    price = world.planner.price(world.waiting())
    groups.add(KEY, Member("acme", 0.0, 1.0, 1.0, price), beyond=True)
    assert groups.expected(KEY, BIN_S) == ()


def test_a_plan_leaves_room_for_what_is_expected() -> None:
    world, past = World(), Groups()
    world.now = BIN_S
    arrive(past, world, 0.0, slack=1.5)
    world.put(1.8)
    coming = past.expected(KEY, world.now)
    assert world.plan().why == "fits"
    hurried = world.plan(expected=coming)
    assert (hurried.kind, hurried.index) == ("loaded", 1), "1.675 s for both: two times .8 s"


def test_what_is_expected_does_not_displace_what_is_here() -> None:
    """If all that waits would be dropped for texts to come, it runs: they are not here yet."""
    world, past = World(), Groups()
    world.now = BIN_S
    for _ in range(5):
        arrive(past, world, 0.0, slack=0.5)
    world.put(world.now + 0.6, utility=0.01)
    plan = world.plan(expected=past.expected(KEY, world.now))
    assert (plan.kind, plan.index, plan.dropped) == ("loaded", 2, 0)
