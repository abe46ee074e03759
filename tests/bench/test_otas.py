"""OTAS's algorithms as printed, beside the exact program."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases.stages.otas import algorithm_2, algorithm_3, otas, profiled, shares, worth
from hmi.stages.planning.labels import Job, Option, best
from tests.hmi.planning_lab import WHOLE, brute_force

THREE = [Job(5.0, [Option(4.0, 1.0)]), Job(6.0, [Option(3.0, 2.0)]), Job(6.0, [Option(3.0, 100.0)])]


@pytest.mark.parametrize("corrected", [False, True])
def test_the_smallest_counterexample(corrected: bool) -> None:
    chosen = algorithm_2(0.0, THREE, corrected=corrected)
    assert worth(0.0, THREE, chosen)[0] == 2
    assert best([0.0], THREE).value == brute_force([0.0], THREE) == 100
    # A job less, and it finds the optimum: more work in the queue has made the result worse.
    fewer = [THREE[0], THREE[2]]
    assert worth(0.0, fewer, algorithm_2(0.0, fewer, corrected=corrected))[0] == 100


@st.composite
def instances(draw: st.DrawFn) -> list[Job]:
    """Up to 6 jobs that all have the same number of settings, as Algorithm 2 requires."""
    count = draw(st.integers(1, 4))
    option = st.builds(Option, WHOLE, st.integers(1, 30).map(float))
    job = st.builds(Job, st.integers(1, 25).map(float), st.lists(option, min_size=count, max_size=count))
    return draw(st.lists(job, min_size=1, max_size=6))


@settings(max_examples=300, deadline=None)
@given(instances())
def test_the_exact_program_is_never_behind_algorithm_2(given: list[Job]) -> None:
    optimum = best([0.0], given).value
    value, feasible = worth(0.0, given, algorithm_2(0.0, given, corrected=True))
    assert feasible
    assert value <= optimum + 1e-9
    assert worth(0.0, given, algorithm_2(0.0, given))[0] <= optimum + 1e-9


def test_as_printed_backtracking_may_miss_deadlines() -> None:
    # Only the last fits. As printed, the state before "the second is not executed" is setting 1 of the first.
    jobs = [Job(2.0, [Option(4.0, 5.0)]), Job(3.0, [Option(4.0, 5.0)]), Job(6.0, [Option(4.0, 5.0)])]
    assert algorithm_2(0.0, jobs, corrected=True) == (None, None, 0)
    assert algorithm_2(0.0, jobs) == (0, None, 0)
    value, feasible = worth(0.0, jobs, algorithm_2(0.0, jobs))
    assert not feasible
    assert value < 5


def test_shares_grow_with_the_number_of_batches() -> None:
    two, four = shares(2, 60), shares(4, 60)
    assert two.suboptimal == 0
    assert 0 < four.suboptimal < 1
    assert 0 < four.mean_loss < four.suboptimal
    assert 0 < four.infeasible < 1
    assert two.better == four.better == 0


def test_algorithm_3_and_its_function_of_the_rate() -> None:
    f = profiled([300.0, 400.0, 600.0])
    assert [f(100), f(300), f(350), f(600), f(900)] == [0, 0, 1, 2, 2]
    three = [Option(4.0, 3.0), Option(3.0, 2.0), Option(2.0, 1.0)]
    jobs = [Job(4.0, three), Job(3.0, three), Job(20.0, three)]
    # The second is first in line and late at f(q), so it gets the fastest setting. So does the first, which
    # is late then. The third is worth more than κ.
    assert algorithm_3(0.0, jobs, [0.5, 0.5, 0.9], 1) == (2, 2, 0)
    assert otas(0.0, jobs, [0.5, 0.5, 0.5], 1) == (2, 2, 1)
    six = [Job(30.0, three)] * 6
    assert otas(0.0, six, [0.5] * 6, 1) == algorithm_2(0.0, six)
    assert otas(0.0, six, [0.5] * 6, 1, initial=True) == (1,) * 6
