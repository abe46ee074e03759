"""Random instances of the label program, and every choice for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import strategies as st

from hmi.stages.planning.labels import Job, Option, allowed

WHOLE = st.integers(1, 8).map(float)
OPTIONS = st.builds(Option, WHOLE, st.sampled_from([-float("inf"), 0.5, 1.0, 2.0, 3.5, 7.0, 50.0]))


def jobs(most: int, settings: int = 4) -> st.SearchStrategy[list[Job]]:
    """Up to `most` jobs with up to `settings` settings each, in no order."""
    options = st.lists(OPTIONS, min_size=1, max_size=settings)
    return st.lists(st.builds(Job, st.integers(1, 25).map(float), options), max_size=most)


def value_of(start: Sequence[float], jobs: Sequence[Job], settings: Sequence[int | None]) -> float:
    """The value of a choice on one stream or, at best, on several; -inf if it misses a deadline."""
    runs = sorted((i for i, s in enumerate(settings) if s is not None), key=lambda i: jobs[i].deadline)
    best = -float("inf")
    for lanes in product(range(len(start)), repeat=len(runs)):
        clocks, value = list(start), 0.0
        for lane, i in zip(lanes, runs, strict=True):
            option = jobs[i].options[settings[i] or 0]
            clocks[lane] += option.seconds
            value += option.value if clocks[lane] + option.margin < jobs[i].deadline else -float("inf")
        best = max(best, value)
    return best


def brute_force(start: Sequence[float], jobs: Sequence[Job], memory: float = float("inf")) -> float:
    """The value of the best of all choices."""
    each = [[None, *(s for s, option in enumerate(job.options) if allowed(option, memory))] for job in jobs]
    return max(value_of(start, jobs, settings) for settings in product(*each))
