"""The simulation of planners: what each earns, and that nothing is earned twice."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from bench.cases.stages.arrivals import poisson
from bench.cases.stages.offline import SIZES, by_size, costs, counterexample, loads
from bench.cases.stages.simulated import (
    Exact,
    Fixed,
    Otas,
    Outcome,
    Policy,
    Table,
    Text,
    bursty,
    fluctuating,
    simulate,
    texts_of,
)
from hmi.stages.planning.group import GroupLimits

TABLE = Table()
LIMITS = GroupLimits(seconds=0.02)
FULL = TABLE.rate(22, 0)
"""Texts a second with stages off."""


@lru_cache
def outcome(kind: str, load: float, arm: str) -> Outcome:
    rate, seconds = load * FULL, 4.0
    arrivals = {
        "poisson": lambda: poisson(int(rate * seconds), rate, 1),
        "fluctuating": lambda: fluctuating(rate, seconds, 1),
        "bursty": lambda: bursty(rate, seconds, 1),
    }[kind]()
    policies: dict[str, Policy] = {"otas": Otas(TABLE, 22), "exact": Exact(TABLE)}
    policy = policies.get(arm) or Fixed(int(arm))
    return simulate(texts_of(arrivals, 2), policy, TABLE, LIMITS)


@pytest.mark.parametrize(("kind", "load"), [("fluctuating", 1.3), ("bursty", 2.0)])
def test_under_load_the_planner_earns_more_than_any_other_arm(kind: str, load: float) -> None:
    exact = outcome(kind, load, "exact")
    assert exact.utility > 1.182 * outcome(kind, load, "0").utility
    assert all(exact.utility > outcome(kind, load, str(setting)).utility for setting in range(4))
    assert exact.utility > outcome(kind, load, "otas").utility
    assert exact.in_time <= exact.texts


def test_without_load_nothing_is_merged_and_nothing_late() -> None:
    exact = outcome("poisson", 0.5, "exact")
    assert exact.settings == [exact.texts, 0, 0, 0]


def test_arrivals_have_their_mean_rate() -> None:
    for times in fluctuating(300, 100, 3), bursty(300, 100, 3):
        assert len(times) == pytest.approx(30_000, rel=0.15)
        assert (np.diff(times) >= 0).all()


def test_a_late_text_earns_nothing() -> None:
    table = Table(noise=0.0)
    texts = [Text(0.0, 0.5 * table.seconds(1, 3), 1.0), Text(0.0, 1.0, 0.5)]
    dropped = simulate(texts, Fixed(3), table, GroupLimits())
    kept = simulate(texts, Fixed(3), table, GroupLimits(), drop=False)
    assert dropped.utility == kept.utility == pytest.approx(0.5 * table.accuracy[3])
    assert (dropped.in_time, dropped.texts) == (1, 2)


def test_the_rows_of_the_benchmark() -> None:
    assert (counterexample().value, counterexample().unit) == (2, "of 100")
    found = list(by_size(20))
    assert len(found) == 2 * len(SIZES)
    assert all(row.ok for row in found if row.goal is not None)
    assert [row.id for row in costs(1)] == ["planner_fast_plan", "planner_loaded_plan"]
    simulated = list(loads(0.5, None, (1.5,)))
    assert [row.id for row in simulated] == [
        "planner_poisson_1.5",
        "planner_fluctuating_1.5",
        "planner_bursty_1.5",
    ]
    assert all("OTAS" in (row.peer or "") for row in simulated)
