"""The label program equals brute force, and what a limit of labels loses stays within its bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.stages.planning.labels import Choice, Option, SchedulingJob, best, chosen_of, exact
from tests.hmi.labs.planning_lab import brute_force, jobs, value_of


def holds(start: list[float], given: list[SchedulingJob], choice: Choice, optimum: float) -> None:
    """The choice is feasible, worth what it says, and optimal but for what it says is lost."""
    assert value_of(start, given, choice.settings) == pytest.approx(choice.value)
    assert choice.value <= optimum + 1e-9
    assert choice.value >= optimum - choice.lost - 1e-9


@settings(max_examples=300, deadline=None)
@given(jobs(6), st.integers(0, 3).map(float))
def test_one_stream_equals_brute_force(given: list[SchedulingJob], start: float) -> None:
    optimum = brute_force([start], given)
    for choice in exact([start], given), best([start], given):
        assert choice.lost == 0
        holds([start], given, choice, optimum)


@settings(max_examples=30, deadline=None)
@given(jobs(4, settings=2), st.lists(st.integers(0, 5).map(float), min_size=2, max_size=2))
def test_several_streams_equal_brute_force(given: list[SchedulingJob], start: list[float]) -> None:
    optimum = brute_force(start, given)
    for choice in exact(start, given), best(start, given):
        assert choice.lost == 0
        holds(start, given, choice, optimum)


@settings(max_examples=100, deadline=None)
@given(jobs(6), st.integers(3, 6), st.integers(1, 2))
def test_what_a_limit_loses_is_bounded(given: list[SchedulingJob], limit: int, streams: int) -> None:
    start = [0.0] * streams
    holds(start, given, best(start, given, limit=limit), exact(start, given).value)


@pytest.mark.parametrize("limit", [16, 64, 256])
def test_many_groups_under_a_limit_stay_within_the_bound(limit: int) -> None:
    rng = np.random.default_rng(7)
    seconds = rng.uniform(5e-3, 2e-2, (24, 1)) * np.linspace(1, 0.6, 5)
    values = rng.uniform(0.1, 10, (24, 1)) * np.linspace(1, 0.9, 5)
    latest = np.repeat(np.sort(rng.uniform(0.02, 0.15, (24, 1)), axis=0), 5, axis=1)
    found, value, lost = chosen_of([0.0], seconds, values, latest, limit)
    _, optimum, none = chosen_of([0.0], seconds, values, latest, 100_000)
    assert none == 0
    assert lost > 0
    assert optimum - lost <= value <= optimum + 1e-9
    runs = [(g, s) for g, s in enumerate(found) if s >= 0]
    clock = np.cumsum([seconds[at] for at in runs])
    assert all(end < latest[at] for end, at in zip(clock, runs, strict=True))
    assert value == pytest.approx(sum(values[at] for at in runs))


def test_the_bound_of_a_deadline_is_strict() -> None:
    assert best([1.0], [SchedulingJob(3.0, [Option(2.0, 1.0)])]).settings == (None,)
    assert best([1.0], [SchedulingJob(3.0 + 1e-9, [Option(2.0, 1.0)])]).settings == (0,)
    assert best([1.0], [SchedulingJob(3.5, [Option(2.0, 1.0, margin=0.5)])]).settings == (None,)


def test_what_memory_or_accuracy_forbids_is_not_offered() -> None:
    job = SchedulingJob(
        9.0, [Option(1.0, 5.0, memory=100.0), Option(1.0, 3.0, memory=10.0), Option(1.0, -np.inf)]
    )
    for program in exact, best:
        assert program([0.0], [job]).settings == (0,)
        assert program([0.0], [job], 50.0).settings == (1,)
        assert program([0.0], [job], 5.0).settings == (None,)
    assert best([0.0], []) == exact([0.0], []) == Choice((), 0.0)


def test_removing_a_job_never_helps() -> None:
    three = [
        SchedulingJob(5.0, [Option(4.0, 1.0)]),
        SchedulingJob(6.0, [Option(3.0, 2.0)]),
        SchedulingJob(6.0, [Option(3.0, 100.0)]),
    ]
    assert best([0.0], three).value == 100
    assert best([0.0], [three[0], three[2]]).value == 100
