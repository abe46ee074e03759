"""Builds the main table from runs: mean and standard error over seeds, and the ratio to a dedicated copy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
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

    @classmethod
    def of(cls, runs: Sequence[tuple[RunSpec, Any]], part: Scored) -> Score | None:
        """Return the score of a cell's runs, or None if none was scored on this part.

        Only runs at one learning rate count: the one that was best on dev with the first seed that there is.
        """
        found = [(spec, result) for spec, result in runs if part in result]
        if not found:
            return None
        first = min(spec["seed"] for spec, _ in found)
        dev = {spec["lr"]: result["dev"] for spec, result in found if spec["seed"] == first}
        lr = best_rate(dev)
        values = {spec["seed"]: 100 * result[part] for spec, result in found if spec["lr"] == lr}.values()
        return cls(statistics.mean(values), standard_error(values), len(values), lr, 100 * dev[lr])

    def __str__(self) -> str:
        return written(self.mean, self.error)


@dataclass(frozen=True)
class ScoreTable:
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
) -> ScoreTable:
    """Return the cells that have scores.

    `cells` gives, by task and column, the fields of the runs' specs besides task, rate and seed. Each task
    has the same columns.
    """
    scores: dict[str, dict[str, Score]] = {}
    for task, columns in cells.items():
        found = {
            title: Score.of([run for run in runs if _fits(run[0], {"task": task, **wanted})], of)
            for title, wanted in columns.items()
        }
        scores[task] = {title: score for title, score in found.items() if score is not None}
    return ScoreTable(tuple(cells), tuple(next(iter(cells.values()), ())), scores)


def with_best(found: ScoreTable, among: Sequence[str]) -> ScoreTable:
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


def markdown(found: ScoreTable) -> str:
    """Return a table with a row for each task, and the mean ratios in the last row."""
    lines = ["| task | " + " | ".join(found.arms) + " |", "|---" * (len(found.arms) + 1) + "|"]
    for task in found.tasks:
        lines.append(f"| {task} | " + " | ".join(_cell(found, task, arm) for arm in found.arms) + " |")
    ratios = [found.mean_ratio(arm) for arm in found.arms]
    lines.append(
        "| **mean ÷ dedicated** | " + " | ".join("–" if r is None else f"{r:.3f}" for r in ratios) + " |"
    )
    return "\n".join(lines) + "\n"


def _cell(found: ScoreTable, task: str, arm: str) -> str:
    score = found.scores[task].get(arm)
    if score is None:
        return "–"
    ratio = found.ratio(task, arm)
    return str(score) if ratio is None or arm == OWN else f"{score} ({ratio:.3f})"


def written(mean: float, error: float | None) -> str:
    """Return a mean with its standard error, if there is one."""
    return f"{mean:.1f}" if error is None else f"{mean:.1f} ± {error:.1f}"


def standard_error(values: Collection[float]) -> float | None:
    """Return the standard error of the mean, or None for one value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
