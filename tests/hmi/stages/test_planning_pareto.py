"""The planner: groups by the label program, other texts by load, and what it learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.core import ModelId, Objective
from hmi.stages.base import OFF
from hmi.stages.planner import BatchCost, Candidate, Plan, Planner, SettingEffect, Waiting
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.group import BEYOND, FAR_S, Group, GroupLimits, Member
from hmi.stages.planning.groups import Groups
from hmi.stages.planning.labels import Option, SchedulingJob, exact
from hmi.stages.planning.measured import ENOUGH, RETRY_S, TRIALS
from hmi.stages.planning.pareto import CALM_S, FULL_S, ParetoPlanner
from tests.hmi.labs.planning_lab import KEY, Table, TableStage
from tests.hmi.labs.runner_bodies import version_by

TABLE, TEXT_S = Table(), 1.0
"""A text takes a second, so that times are easy to follow."""


class World:
    """A planner, its clock, and the groups that wait. Each text has a group of its own."""

    def __init__(self, table: Table = TABLE, *, margin: float = 1.0, streams: int = 1) -> None:
        self.now = 0.0
        cost = Cost(0.0, 0.0, TEXT_S, 0.0, 0.0, margin=margin)
        self.planner = ParetoPlanner(
            [TableStage(table)], lambda key: cost, streams=streams, clock=lambda: self.now
        )
        self.groups = Groups(GroupLimits(texts=1))

    def waiting(self, utility: float = 1.0, windows: Sequence[int] = (1,)) -> Waiting:
        return Waiting(KEY, 1, windows, ModelId("acme", "tone"), version_by("job"), Objective(), utility)

    def put(self, deadline: float, utility: float = 1.0, *, beyond: bool = False) -> Group:
        price = self.planner.price(self.waiting(utility))
        return self.groups.add(KEY, Member("acme", self.now, deadline, utility, price), beyond=beyond)

    def plan(self, **fields: object) -> Plan:
        candidate = Candidate(0.0, 0.0, "acme", KEY, 1, self.groups.of(KEY), grouped=True)
        return self.planner.plan([replace(candidate, **fields)], self.now)  # type: ignore[arg-type]

    def learn(self, step: int, factor: float, times: int = 1) -> None:
        """Batches of one text under a step take this many times the seconds without any stage."""
        priced = self.planner.price(self.waiting()).seconds
        plan = Plan(Candidate(0.0, 0.0, "acme", KEY, 1), index=step)
        for _ in range(times):
            self.planner.learn(plan, BatchCost(1, 1, factor * priced[0], priced_s=priced))


def test_the_price_of_a_text() -> None:
    world = World()
    planner: Planner = world.planner
    found = planner.price(world.waiting(0.5, (2, 1)))
    assert found is not None
    assert found.values == pytest.approx((0.5, 0.45, 0.35))
    assert found.seconds == pytest.approx((3.0, 2.4, 1.5))


def test_all_fit_so_the_first_deadline_runs_at_its_best() -> None:
    world = World()
    world.put(9.0)
    first = world.put(2.5)
    plan = world.plan()
    assert (plan.group, plan.index, plan.kind, plan.why) == (first.id, 0, "fits", "fits")
    assert plan.settings == {"tokens": OFF}


def test_under_pressure_settings_make_room_before_anything_is_dropped() -> None:
    world = World()
    groups = [world.put(1.9), world.put(1.9), world.put(2.6)]
    plan = world.plan()
    assert plan.group == groups[0].id
    assert plan.why == "loaded: setting 1 for 3 groups"
    world.put(1.9, 0.01)
    assert world.plan().why == "loaded: setting 1 for 4 groups, 1 dropped"
    assert world.planner.decisions == {"loaded": 2, "dropped": 1}


def test_a_text_beyond_its_tenant_share_displaces_no_other() -> None:
    world = World()
    world.put(0.6, beyond=True)
    mine = world.put(0.61, 5 * BEYOND)
    assert world.plan().group == mine.id


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0.01, 0.2, 0.3, 1.0])), min_size=1, max_size=6)
)
def test_a_plan_is_the_first_step_of_an_optimal_choice(texts: list[tuple[int, float]]) -> None:
    world = World()
    groups = [world.put(deadline / 10 + 0.01, utility) for deadline, utility in texts]
    jobs = [
        SchedulingJob(g.deadline, [Option(s, v) for s, v in zip(g.seconds, g.values, strict=True)])
        for g in groups
    ]
    optimum = exact([0.0], jobs).value
    plan = world.plan()
    if plan.kind == "late":
        assert optimum == 0
        return
    chosen = next(i for i, group in enumerate(groups) if group.id == plan.group)
    rest = exact([jobs[chosen].options[plan.index].seconds], [*jobs[:chosen], *jobs[chosen + 1 :]])
    assert jobs[chosen].options[plan.index].value + rest.value == pytest.approx(optimum)


@pytest.mark.parametrize(("deadline", "step"), [(1.6, 0), (1.4, 1), (1.1, 2)])
def test_deadlines_are_checked_with_the_margin(deadline: float, step: int) -> None:
    world = World(margin=1.5)
    world.put(deadline)
    assert world.plan().index == step


def test_nothing_can_end_in_time() -> None:
    world = World()
    group = world.put(0.1)
    plan = world.plan()
    assert (plan.group, plan.index, plan.kind) == (group.id, 2, "late")
    ordinary = Candidate(1.0, 0.0, "other", KEY, 1)
    grouped = Candidate(0.0, 0.0, "acme", KEY, 1, world.groups.of(KEY), grouped=True)
    assert world.planner.plan([grouped, ordinary], 0.0).candidate is ordinary


def test_a_group_without_a_deadline_waits_for_those_that_have_one_but_not_for_ever() -> None:
    world = World()
    patient = world.put(math.inf, 0.2)
    world.now = FAR_S - 1
    assert world.put(FAR_S).id == world.plan().group
    world.now = FAR_S + 1
    urgent = world.put(FAR_S + 2)
    plan = world.plan()
    assert (plan.group, plan.kind) == (patient.id, "overdue")
    assert urgent.id == world.plan().group, "every second batch is for others"
    assert world.plan().kind == "overdue"


def test_turns_decide_between_ordinary_texts_and_groups() -> None:
    world = World()
    world.put(5.0)
    grouped = Candidate(1.0, 0.0, "acme", KEY, 1, world.groups.of(KEY), grouped=True)
    ordinary = Candidate(0.0, 0.0, "other", KEY, 1)
    plan = world.planner.plan([grouped, ordinary], 0.0)
    assert plan.candidate is ordinary
    assert (plan.group, plan.index, plan.kind, plan.why) == (None, 0, "ordinary", "")


def test_ordinary_texts_get_bolder_settings_the_more_work_waits() -> None:
    world = World()
    steps = [world.plan(grouped=False, waiting_s=s).index for s in (0.0, CALM_S, 0.2, 0.45, FULL_S, 9.0)]
    assert steps == [0, 0, 1, 2, 2, 2]
    assert world.planner.decisions == {"ordinary": 2, "hurried": 4}


def test_costs_follow_measurements() -> None:
    world = World()
    world.put(1.5)
    assert world.plan().index == 0
    world.learn(0, 1.7, 30)
    assert world.plan().index > 0  # a second has become 1.7


def test_a_step_that_saves_nothing_is_rested_and_tried_again() -> None:
    world = World()
    world.put(0.95)
    world.learn(0, 1.0, TRIALS)
    world.learn(1, 1.01, TRIALS - 1)
    key = world.planner.ratios.of(KEY)
    assert key is not None
    assert key.resting(world.now) == []
    world.learn(1, 1.01)
    assert key.resting(world.now) == [1]
    assert world.plan().index == 2
    assert world.plan(grouped=False, waiting_s=0.2).index == 2
    world.now = RETRY_S
    world.groups.clear()
    world.put(RETRY_S + 0.95)
    assert key.resting(world.now) == []
    assert world.plan().index == 1


def test_noise_rests_no_step_that_saves() -> None:
    world = World()
    for batch in range(ENOUGH + 10):
        world.learn(0, 0.7 if batch % 2 else 1.3)
        world.learn(1, 0.5 if batch % 3 else 1.0)
    key = world.planner.ratios.of(KEY)
    assert key is not None
    assert key.resting(world.now) == []


def test_another_stream_is_busy_until_its_batch_ends() -> None:
    world = World(streams=2)
    world.put(1.1)
    world.put(1.2)
    world.put(2.1)
    first = world.plan()
    assert first.kind == "fits"
    world.groups.clear()
    for deadline in (1.05, 1.06, 1.07):
        world.put(deadline)
    plan = world.plan()
    assert plan.kind == "loaded"
    assert plan.why.endswith("1 dropped")  # the other stream is busy for a second, too long for any


def test_a_text_too_short_for_a_setting_stays_off() -> None:
    world = World()
    stage = TableStage(TABLE)
    long_only = [replace(each, shortest=2) for each in stage.terms(world.waiting())]

    class LongOnly(TableStage):
        def terms(self, text: Waiting) -> Sequence[SettingEffect]:
            return long_only

    planner = ParetoPlanner([LongOnly(TABLE)], lambda key: Cost(0.0, 0.0, 1.0, 0.0, 0.0))
    assert planner.price(world.waiting(1.0, (1,))).values == (1.0, 1.0, 1.0)
    assert planner.price(world.waiting(1.0, (1,))).seconds == (1.0, 1.0, 1.0)
    assert planner.price(world.waiting(1.0, (2,))).seconds == pytest.approx((2.0, 1.6, 1.0))


def test_a_setting_below_the_least_accuracy_is_not_allowed() -> None:
    world = World()
    planner = ParetoPlanner([TableStage(TABLE)], least=0.8)
    assert planner.price(world.waiting()).values == pytest.approx((1.0, 0.9, -math.inf))
