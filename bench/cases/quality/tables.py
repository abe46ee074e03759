"""Builds the main table from runs: mean and standard error over seeds, and the ratio to a dedicated copy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bench.cases.quality.runs import RunSpec

OWN = "dedicated"
BEST = "best_on_dev"
"""The column that shows for each task the arm that was best on dev."""
Scored = Literal["dev", "test"]


@dataclass(frozen=True)
class Score:
    """The scores of one cell, from 0 to 100."""

    mean: float
    error: float | None
    """The standard error of the mean, or None for one seed."""
    seeds: int
    lr: float
    dev: float
    """The first seed's score on dev."""


@dataclass(frozen=True)
class Table:
    """scores[task][arm], and the arms in the order of display."""

    tasks: tuple[str, ...]
    arms: tuple[str, ...]
    scores: dict[str, dict[str, Score]]

    def ratio(self, task: str, arm: str) -> float | None:
        """Return an arm's score divided by a dedicated copy's, or None if either is missing."""
        found, own = self.scores[task].get(arm), self.scores[task].get(OWN)
        return None if found is None or own is None else found.mean / own.mean

    def mean_ratio(self, arm: str) -> float | None:
        """Return the mean of `ratio` over the tasks that have both scores."""
        ratios = [r for r in (self.ratio(task, arm) for task in self.tasks) if r is not None]
        return statistics.mean(ratios) if ratios else None


def table(
    runs: Sequence[tuple[RunSpec, Any]], cells: Mapping[str, Mapping[str, RunSpec]], of: Scored = "test"
) -> Table:
    """Return the cells that have scores.

    `cells` gives, by task and column, the fields of the runs' specs besides task, rate and seed. Each task
    has the same columns. Only runs at one learning rate count: the one that was best on dev with the first
    seed.
    """
    scores: dict[str, dict[str, Score]] = {task: {} for task in cells}
    columns = tuple(next(iter(cells.values()), ()))
    for task in cells:
        for title, wanted in cells[task].items():
            found = [(s, r) for s, r in runs if _fits(s, {"task": task, **wanted}) and of in r]
            if not found:
                continue
            dev = {s["lr"]: r["dev"] for s, r in found if s["seed"] == 0}
            lr = best_rate(dev)
            values = list({s["seed"]: 100 * r[of] for s, r in found if s["lr"] == lr}.values())
            scores[task][title] = Score(
                statistics.mean(values), _error(values), len(values), lr, 100 * dev[lr]
            )
    return Table(tuple(cells), columns, scores)


def with_best(found: Table, among: Sequence[str]) -> Table:
    """Return the table with the column `BEST`: of the columns in `among`, the one that was best on dev.

    Of equal ones the first counts. With fewer than two columns that have scores, the table is returned
    unchanged.
    """
    there = [arm for arm in among if any(arm in cells for cells in found.scores.values())]
    if len(there) < 2:
        return found
    scores = {}
    for task, cells in found.scores.items():
        rivals = [cells[arm] for arm in there if arm in cells]
        scores[task] = {**cells, BEST: max(rivals, key=lambda score: score.dev)} if rivals else cells
    at = 1 + max(found.arms.index(arm) for arm in there)
    return replace(found, arms=(*found.arms[:at], BEST, *found.arms[at:]), scores=scores)


def best_rate(dev: Mapping[float, float]) -> float:
    """Return the learning rate with the best dev score, the lowest of equal ones."""
    return min(dev, key=lambda rate: (-dev[rate], rate))


def _fits(spec: RunSpec, wanted: RunSpec) -> bool:
    """Return whether a run belongs to a column.

    Its spec then has the column's fields and nothing else besides rate and seed.
    """
    free = {"lr", "seed", "test"}
    return {k: v for k, v in spec.items() if k not in free} == wanted


def markdown(found: Table) -> str:
    """Return a table with a row for each task, and the mean ratios in the last row."""
    lines = ["| task | " + " | ".join(found.arms) + " |", "|---" * (len(found.arms) + 1) + "|"]
    for task in found.tasks:
        lines.append(f"| {task} | " + " | ".join(_cell(found, task, arm) for arm in found.arms) + " |")
    ratios = [found.mean_ratio(arm) for arm in found.arms]
    lines.append(
        "| **mean ÷ dedicated** | " + " | ".join("–" if r is None else f"{r:.3f}" for r in ratios) + " |"
    )
    return "\n".join(lines) + "\n"


def _cell(found: Table, task: str, arm: str) -> str:
    score = found.scores[task].get(arm)
    if score is None:
        return "–"
    ratio = found.ratio(task, arm)
    shown = f"{score.mean:.1f}" if score.error is None else f"{score.mean:.1f} ± {score.error:.1f}"
    return shown if ratio is None or arm == OWN else f"{shown} ({ratio:.3f})"


def _error(values: list[float]) -> float | None:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
