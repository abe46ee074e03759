"""The search for thresholds beside a search of the whole grid, on the records of real streams."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from bench.cases.stages.plan import Plan
from bench.cases.stages.records import Records
from bench.harness.report import Row, median_ms
from hmi.stages.early_exit.thresholds import Tuned, Window, allowed_errors, climb, evaluate, tune

WINDOW, WINDOWS = 512, 3
REPEATS = 5
RAMPS, STEP = 2, 0.01
"""Ramps and step of the grid: Apparate's step, and as many ramps as it has on texts."""
AT_ONCE = 256
"""Settings that the grid evaluates in one operation."""
FASTER_GOAL, SAVING_GOAL = 100.0, 1 - 0.038


@dataclass(frozen=True)
class Compared:
    """The searches on one window."""

    faster: float
    """The grid's CPU time divided by that of `tune`."""
    saving: float | None
    """The saving of `tune`, divided by that of the grid's best; None if the grid's best saves nothing."""
    greedy: float | None
    """The same of Apparate's search."""
    all_ms: float
    """CPU milliseconds of `tune` over all ramps."""


def rows(name: str, plan: Plan, records: Records) -> Iterator[Row]:
    """Times and savings of `tune` and of Apparate's search beside the grid's, over windows of a stream."""
    chosen, count = _chosen(len(records.sites)), min(WINDOWS, len(records.labels) // WINDOW)
    found = [_compared(records, slice(i * WINDOW, (i + 1) * WINDOW), chosen, plan) for i in range(count)]
    if not found:
        return
    about = f"grid of step {STEP}, sites {[records.sites[i] for i in chosen]}"
    faster = round(statistics.median(c.faster for c in found))
    yield Row(f"{name}_tuning_faster", faster, "x", FASTER_GOAL, runs=count, peer=about)
    saving = [c.saving for c in found if c.saving is not None]
    greedy = [c.greedy for c in found if c.greedy is not None]
    why = None if saving else "no thresholds save anything"
    least = round(min(saving), 4) if saving else None
    yield Row(f"{name}_tuning_saving", least, "of the grid's", SAVING_GOAL, True, len(saving), about, why)
    least = round(min(greedy), 4) if greedy else None
    yield Row(f"{name}_apparate_saving", least, "of the grid's", runs=len(greedy), peer=about, why=why)
    slowest, ramps = round(max(c.all_ms for c in found), 2), f"{len(records.sites)} ramps"
    yield Row(f"{name}_tuning_of_all_ramps", slowest, "ms", runs=count, peer=ramps)


def _compared(records: Records, texts: slice, chosen: list[int], plan: Plan) -> Compared:
    window, whole = records.window(texts, chosen), records.window(texts)
    allowed = allowed_errors(WINDOW, 1 - plan.agreement)
    begun = time.process_time()
    best = grid(window, allowed)
    grid_s = time.process_time() - begun
    found, climbed = tune(window, allowed), climb(window, allowed)
    ours_ms, all_ms = (median_ms(partial(tune, w, allowed), REPEATS) for w in (window, whole))
    pays = best.saved_s > 0
    return Compared(
        1e3 * grid_s / ours_ms,
        found.saved_s / best.saved_s if pays else None,
        climbed.saved_s / best.saved_s if pays else None,
        all_ms,
    )


def grid(window: Window, allowed: int, step: float = STEP) -> Tuned:
    """The best of all combinations of thresholds that are multiples of `step`."""
    values = np.linspace(0.0, 1.0, round(1 / step) + 1)
    settings = np.array(list(product(values, repeat=window.uncertainty.shape[1])))
    best = Tuned(settings[0], 0.0, 0, len(settings))
    for at in range(0, len(settings), AT_ONCE):
        some = settings[at : at + AT_ONCE]
        saved, errors = evaluate(window, some)
        saved = np.where(errors <= allowed, saved, -1.0)
        i = int(saved.argmax())
        if saved[i] > best.saved_s:
            best = Tuned(some[i], float(saved[i]), int(errors[i]), len(settings))
    return best


def _chosen(sites: int) -> list[int]:
    """At most RAMPS of the ramps, evenly spaced; the earliest are left out, which are seldom sure."""
    count = min(RAMPS, sites)
    return sorted({((i + 1) * sites) // (count + 1) for i in range(count)})
