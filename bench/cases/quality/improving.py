"""Cells of second versions (`bench.cases.quality.improved`): what identifies their runs, and their table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cases.quality.cells import RECIPE_VERSION
from bench.cases.quality.improved import Improved, columns
from bench.cases.quality.lesson import OWN
from bench.cases.quality.models import content_of, source_of
from bench.cases.quality.runs import RunFile, RunSpec
from bench.cases.quality.tables import Score, Scored, standard_error, written
from bench.cases.quality.tasks import TRAIN, named
from hmi.errors import InvalidInput
from hmi.model.sources.root import Root

LEAST_ROWS = 20
IMPROVED_VERSION = 3
"""A part of the key of every run of these columns. Raise it when the recipe of second versions changes."""


@dataclass(frozen=True)
class Cell:
    """One run: a set, a number of rows, a seed and a column. `draw` tells which rows: 0, the first ones."""

    task: str
    rows: int
    seed: int
    column: str
    draw: int = 0

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Read SET:ROWS:SEED:COLUMN or SET:ROWS:SEED:COLUMN:DRAW. Raises InvalidInput."""
        try:
            task, rows, seed, column, *draw = text.split(":")
            [drawn] = draw or ["0"]
            found = cls(task, int(rows), int(seed), column, int(drawn))
            if not LEAST_ROWS <= found.rows <= TRAIN or min(found.seed, found.draw) < 0:
                raise ValueError
            if found.rows == TRAIN and found.draw:  # there are no other rows
                raise ValueError
            return found
        except ValueError:
            raise InvalidInput(
                f"{text!r} is no cell: write SET:ROWS:SEED:COLUMN, such as sst2:2000:0:by_default, with "
                f"{LEAST_ROWS} to {TRAIN} rows, and of fewer than {TRAIN} for other rows :DRAW after it",
                field="cell",
            ) from None

    @property
    def lesson(self) -> tuple[str, int, int]:
        """The set, the rows and the draw. Cells that agree in these share a pool and its teachers."""
        return self.task, self.rows, self.draw


@dataclass(frozen=True)
class ImprovedPlan:
    """The cells of a run, where their data are, and the sources of larger teachers."""

    sets: Path
    corpora: Path
    runs: Path
    cells: tuple[Cell, ...]
    larger: tuple[str, ...] = ()
    test: bool = True
    """True: test is scored. Set it to False while something is being chosen."""
    plot: str = ""
    cpu_s: float = math.inf
    """The CPU seconds of all cells together. A cell that would go beyond is given up."""
    at_once: int = 1

    @property
    def part(self) -> Scored:
        """The part of the rows that is scored."""
        return "test" if self.test else "dev"

    def spec(self, cell: Cell, root: Root) -> RunSpec:
        """The key of a cell's run."""
        found: RunSpec = {
            "task": cell.task,
            "arm": cell.column,
            "recipe": RECIPE_VERSION,
            "improved": IMPROVED_VERSION,
            "source": source_of(root),
            "root": content_of(root),
            "plot": self.plot,
            "teachers": [Path(name).name for name in self.larger],
        }
        if cell.rows != TRAIN:
            found["rows"] = cell.rows
        if cell.draw:
            found["draw"] = cell.draw
        tested = {"test": True} if self.test else {}
        return {**found, "lr": 0.0, **tested, "seed": cell.seed}


def check(plan: ImprovedPlan) -> None:
    """Refuse a misspelt name now, not after hours. Raises InvalidInput."""
    named([cell.task for cell in plan.cells])
    for cell in plan.cells:
        column_of(plan, cell)


def column_of(plan: ImprovedPlan, cell: Cell) -> Improved:
    """The column of a cell. Raises InvalidInput."""
    known = {column.name: column for column in columns(plan.larger, few=cell.rows < TRAIN)}
    if cell.column not in known:
        raise InvalidInput(
            f"column {cell.column!r} is unknown: use one of {', '.join(known)}", field="column"
        )
    return known[cell.column]


def summary(plan: ImprovedPlan, root: Root) -> list[dict[str, Any]]:
    """Return a row for each lesson with finished runs: scores from 0 to 100, means over seeds.

    `first` is the first version; `by_default` and `by_depth` are the published one. `published` names that of
    each seed (3: the one that computes all layers), `worse` counts the seeds in which it scored under the
    first by more than one standard error of a score on that many test rows. `*_s` are CPU seconds, `*_mb` the
    greatest peak of resident memory, which older runs lack.
    """
    kept, out = RunFile(plan.runs), []
    for lesson in dict.fromkeys(cell.lesson for cell in plan.cells):
        cells = [cell for cell in plan.cells if cell.lesson == lesson]
        row: dict[str, Any] = dict(zip(("task", "rows", "draw"), lesson, strict=True))
        own = _dedicated(kept.all(), cells[0], plan, root)
        if own is not None:
            row["dedicated"] = round(own, 1)
        runs: dict[Improved, list[Any]] = {}
        for cell in cells:
            if (result := kept.get(plan.spec(cell, root))) is not None:
                runs.setdefault(column_of(plan, cell), []).append(result)
        for column, results in runs.items():
            row |= _figures(column, results, own, plan.part)
        if runs:
            out.append(row)
    return out


def _figures(
    column: Improved, runs: Sequence[Mapping[str, Any]], own: float | None, of: Scored
) -> dict[str, Any]:
    def shown(name: str, values: Sequence[float]) -> dict[str, Any]:
        scores = [100 * value for value in values]
        mean = statistics.mean(scores)
        ratio = {} if own is None else {f"{name} ÷": round(mean / own, 3)}
        return {name: written(mean, standard_error(scores)), **ratio}

    if not column.chooses:
        return shown(column.name, [run[of] for run in runs])
    versions = {name: [run[name] for run in runs] for name in ("first", "second", "deep") if name in runs[0]}
    teachers = runs[0]["teachers"].values()
    found: dict[str, Any] = {}
    for name, seen in versions.items():
        if name != "second" or "deep" in versions:
            found |= shown(name, [one[of] for one in seen])
    found |= {
        **shown(column.name, [run[of] for run in runs]),
        "sure": " ".join(f"{run['sure']:.2f}" for run in runs),
        "published": " ".join(str(run["published"]) for run in runs),
        "worse": sum(run[of] < run["first"][of] - _noise(run["first"][of], run) for run in runs),
        "weights": " ".join(f"{teacher['weight']:.2f}" for teacher in teachers),
        "teachers_s": round(sum(teacher["cpu_s"] for teacher in teachers)),
    }
    for name, seen in versions.items():
        found[f"{name}_s"] = round(statistics.mean(one["cpu_s"] for one in seen))
        if peaks := [one["peak_bytes"] for one in seen if one.get("peak_bytes")]:
            found[f"{name}_mb"] = round(max(peaks) / 1e6)
    return found


def _noise(score: float, run: Mapping[str, Any]) -> float:
    return math.sqrt(score * (1 - score) / max(1, run["test_rows"]))


def _dedicated(
    found: Sequence[tuple[RunSpec, Any]], cell: Cell, plan: ImprovedPlan, root: Root
) -> float | None:
    """The mean score of the dedicated copies of the root's source at their best rate.

    They are runs of `bench quality` by the present recipe, or with few rows those of the column here. If a
    task has none, the teacher from the root's source stands for them, with one seed and the service's rate,
    if it was tuned on all labels and scored. Of a source with at most 6 layers it is such a copy.
    """
    arm = "dedicated" if cell.rows >= TRAIN else "dedicated_plain"
    of_task = {"task": cell.task, "recipe": RECIPE_VERSION, "source": source_of(root)}
    same = [(spec, result) for spec, result in found if of_task.items() <= spec.items()]
    copies = [
        (spec, result)
        for spec, result in same
        if (spec["arm"], spec.get("rows", TRAIN), spec.get("draw", 0)) == (arm, cell.rows, cell.draw)
    ]
    if (score := Score.of(copies, plan.part)) is not None:
        return score.mean
    of = "test" if plan.test else "score"
    for spec, result in same:
        if cell.rows >= TRAIN and "rows" not in spec and spec.get("improved") == IMPROVED_VERSION:
            taught = result.get("teachers", {}).get(OWN, {}).get(of)
            if taught is not None:
                return 100 * float(taught)
    return None
