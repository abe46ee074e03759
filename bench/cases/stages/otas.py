"""OTAS's algorithms 2 and 3 as printed, to compare the planner with (arXiv 2401.05031, section III).

Settings are indexes into a list of γ values, the greatest first: 0 is the most accurate one, the last the
fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hmi.stages.planning.labels import Job, Option, best, in_order

BETA, KAPPA, INITIAL_S = 5, 0.8, 2.0
"""Up to BETA batches, and for the first INITIAL_S seconds, Algorithm 3 chooses. KAPPA is a mean utility."""


def algorithm_2(start: float, jobs: Sequence[Job], *, corrected: bool = False) -> tuple[int | None, ...]:
    """Choose settings from line 5 on. Returns each job's setting; None: it is not executed.

    As printed, `dp` begins as 0 and `S` as 1: where no choice improves on 0, backtracking follows a state
    that was never reached, and may return a plan that misses deadlines. corrected: a state that was not
    reached counts as -inf. Either way there is one state for each (job, setting), which loses the optimum.
    """
    order = in_order(jobs)
    settings = max((len(job.options) for job in jobs), default=0)
    shape = len(jobs) + 1, settings + 1
    dp, previous = np.zeros(shape), np.ones(shape, int)
    clock, reached = np.full(shape, start), np.zeros(shape, bool)
    if corrected:
        dp[:], dp[0, 0], previous[:] = -math.inf, 0.0, 0
    for b, j in enumerate(order, start=1):
        for now in range(settings + 1):
            for before in range(settings + 1):
                if dp[b - 1, before] == -math.inf:
                    continue
                if now == 0:
                    if dp[b - 1, before] > dp[b, now]:
                        dp[b, now], previous[b, now] = dp[b - 1, before], before
                        clock[b, now], reached[b, now] = clock[b - 1, before], True
                elif (ends := clock[b - 1, before] + jobs[j].options[now - 1].seconds) < jobs[j].deadline:
                    reached[b, now] = True
                    if (value := dp[b - 1, before] + jobs[j].options[now - 1].value) > dp[b, now]:
                        dp[b, now], previous[b, now], clock[b, now] = value, before, ends
                if now > 0 and not reached[b, now]:
                    dp[b, now], clock[b, now] = -math.inf, math.inf
    chosen: list[int | None] = [None] * len(jobs)
    at = int(dp[-1].argmax())
    for b, j in zip(range(len(jobs), 0, -1), reversed(order), strict=True):
        chosen[j] = at - 1 if at else None
        at = int(previous[b, at])
    return tuple(chosen)


def algorithm_3(
    start: float, jobs: Sequence[Job], utilities: Sequence[float], setting: int
) -> tuple[int | None, ...]:
    """Choose by the arriving rate: `setting` is f(q). utilities: the mean of each job's queries."""
    chosen: list[int | None] = [None] * len(jobs)
    for j in in_order(jobs):
        options = jobs[j].options
        mine = setting
        if start + options[setting].seconds >= jobs[j].deadline:
            mine = len(options) - 1
        elif utilities[j] > KAPPA:
            mine = 0
        chosen[j] = mine
        start += options[mine].seconds
    return tuple(chosen)


def profiled(throughputs: Sequence[float]) -> Callable[[float], int]:
    """Return f of Algorithm 3: the first setting whose throughput keeps up with a rate, else the last.

    throughputs: queries a second, by setting.
    """

    def f(rate: float) -> int:
        return next((s for s, most in enumerate(throughputs) if most >= rate), len(throughputs) - 1)

    return f


def otas(
    start: float,
    jobs: Sequence[Job],
    utilities: Sequence[float],
    setting: int,
    *,
    initial: bool = False,
    corrected: bool = False,
) -> tuple[int | None, ...]:
    """Choose as the paper's system does: Algorithm 3 for few jobs or in the initial stage, else 2."""
    if len(jobs) <= BETA or initial:
        return algorithm_3(start, jobs, utilities, setting)
    return algorithm_2(start, jobs, corrected=corrected)


def worth(start: float, jobs: Sequence[Job], chosen: Sequence[int | None]) -> tuple[float, bool]:
    """Run a choice in the order of deadlines. Returns the value of what ends in time, and if all does."""
    value, feasible = 0.0, True
    for j in in_order(jobs):
        setting = chosen[j]
        if setting is not None:
            option = jobs[j].options[setting]
            start += option.seconds
            in_time = start < jobs[j].deadline
            value, feasible = value + option.value * in_time, feasible and in_time
    return value, feasible


@dataclass(frozen=True)
class Shares:
    """The shares of random instances of one size on which Algorithm 2 falls short."""

    batches: int
    suboptimal: float
    """With the corrected backtracking."""
    mean_loss: float
    """The mean share of the optimum that it loses, corrected."""
    infeasible: float
    """True if the plan, as printed, misses a deadline."""
    better: int
    """Instances on which it beats the exact program. There are none."""


def shares(batches: int, instances: int, seed: int = 0) -> Shares:
    """Compare Algorithm 2 with the exact program on random instances of up to four settings."""
    rng = np.random.default_rng(seed)
    short, infeasible, better, lost = 0, 0, 0, 0.0
    for _ in range(instances):
        jobs = instance(rng, batches)
        optimum = best([0.0], jobs).value
        value, _ = worth(0.0, jobs, algorithm_2(0.0, jobs, corrected=True))
        short += int(value < optimum - 1e-9)
        better += int(value > optimum + 1e-9)
        lost += (optimum - value) / max(optimum, 1e-9)
        infeasible += not worth(0.0, jobs, algorithm_2(0.0, jobs))[1]
    return Shares(batches, short / instances, lost / instances, infeasible / instances, better)


def instance(rng: np.random.Generator, batches: int) -> list[Job]:
    """A random instance: 1 to 4 settings, each faster and less accurate than the one before."""
    settings = int(rng.integers(1, 5))
    fraction = 1.0 - 0.15 * np.arange(settings)
    accuracy = 1.0 - 0.02 * np.arange(settings)
    made = []
    for _ in range(batches):
        seconds, utility = rng.integers(1, 8), rng.integers(1, 20)
        deadline = rng.integers(2, 3 + 4 * batches)
        options = [
            Option(float(seconds * f), float(utility * a)) for f, a in zip(fraction, accuracy, strict=True)
        ]
        made.append(Job(float(deadline), options))
    return made
