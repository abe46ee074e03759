"""Computes from records the answers under thresholds that were tuned once. No text is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from bench.cases.stages.plan import Plan
from bench.cases.stages.records import Records
from bench.harness.report import Row
from hmi.stages.early_exit.rule import exit_index
from hmi.stages.early_exit.thresholds import allowed_errors, climb, evaluate, tune

WINDOW: Final = 512
"""The first texts of the stream, by which thresholds are tuned."""


def misled(plan: Plan, records: Records) -> list[int]:
    """The texts after the window that static thresholds would let leave with another answer than the full
    model's: ramps are sure of them, and wrong."""
    seen = min(WINDOW, plan.warm)
    first = records.window(slice(0, seen))
    thresholds = tune(first, allowed_errors(seen, 1 - plan.agreement)).thresholds
    at = exit_index(records.uncertainty, thresholds)
    wrong = np.concatenate([~records.agrees, np.zeros((len(at), 1), np.bool_)], 1)[np.arange(len(at)), at]
    return [int(i) for i in np.flatnonzero(wrong) if i >= seen]


def rows(name: str, plan: Plan, records: Records, *, drifts: bool) -> Iterator[Row]:
    """The agreement of static thresholds, tuned exactly and by Apparate's search, by parts of the stream."""
    seen, loss = min(WINDOW, plan.warm), 1 - plan.agreement
    first = records.window(slice(0, seen))
    allowed = allowed_errors(len(first.agrees), loss)
    parts = {"": slice(seen, None)}
    if drifts:
        parts |= {"_before_drift": slice(seen, plan.drift_at), "_after_drift": slice(plan.drift_at, None)}
    for search, tuned in (("static", tune(first, allowed)), ("apparate_static", climb(first, allowed))):
        for part, texts in parts.items():
            window = records.window(texts)
            count = len(window.agrees)
            errors = int(evaluate(window, [tuned.thresholds])[1][0])
            left = float((window.uncertainty < tuned.thresholds).any(1).mean())
            goal = plan.agreement if part == "" else None
            yield Row(
                f"{name}_{search}_agreement{part}",
                round(1 - errors / count, 5),
                "of answers",
                goal,
                runs=count,
                peer=f"{left:.1%} leave",
            )
