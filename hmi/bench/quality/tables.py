"""Building the main table from runs: mean and standard error over seeds, and the ratio to a dedicated
copy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hmi.bench.quality.runs import RunSpec

OWN = "dedicated"
BEST = "best_on_dev"
"""The column that has on each task what was best there on dev."""
Scored = Literal["dev", "test"]


@dataclass(frozen=True)
class Score:
    """Scores of one cell, in points of a hundred."""

    mean: float
    error: float | None
    """Standard error of the mean; None for one seed."""
    seeds: int
    lr: float
    dev: float
    """Of the first seed."""


@dataclass(frozen=True)
class Table:
    """scores[task][arm]; the arms in the order they are shown."""

    tasks: tuple[str, ...]
    arms: tuple[str, ...]
    scores: dict[str, dict[str, Score]]

    def ratio(self, task: str, arm: str) -> float | None:
        """How much of a dedicated copy's score an arm reaches on a task; None where either is lacking."""
        found, own = self.scores[task].get(arm), self.scores[task].get(OWN)
        return None if found is None or own is None else found.mean / own.mean

    def mean_ratio(self, arm: str) -> float | None:
        """The mean of `ratio` over the tasks that have both."""
        ratios = [r for r in (self.ratio(task, arm) for task in self.tasks) if r is not None]
        return statistics.mean(ratios) if ratios else None


def table(
    runs: Sequence[tuple[RunSpec, Any]], cells: Mapping[str, Mapping[str, RunSpec]], of: Scored = "test"
) -> Table:
    """The cells that have scores. cells: by task and column what is in the specs of its runs, beside task,
    rate and seed; each task has the same columns. Only runs at the learning rate that was best on dev with
    the first seed count, of the rates that have such scores."""
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
    """With one more column, `BEST`: of those of these columns that have scores on a task the one that was
    best on dev, of equal ones the first. The table as it is where fewer than two of them have scores."""
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
    """The learning rate with the best dev score; of equal ones the lowest."""
    return min(dev, key=lambda rate: (-dev[rate], rate))


def _fits(spec: RunSpec, wanted: RunSpec) -> bool:
    """Whether a run is of a column: everything that names it, and nothing else beside rate and seed."""
    free = {"lr", "seed", "test"}
    return {k: v for k, v in spec.items() if k not in free} == wanted


def markdown(found: Table) -> str:
    """A table with a row for each task, the mean ratios below."""
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
