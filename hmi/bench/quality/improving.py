"""Runs the columns of a second version (`hmi.bench.quality.improved`) on every task, and sums them up."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hmi.bench.quality.cells import RECIPE_VERSION, Budget, Report
from hmi.bench.quality.improved import Improved, columns, fill
from hmi.bench.quality.lesson import OWN, Lesson
from hmi.bench.quality.models import Encoders
from hmi.bench.quality.run import content_of
from hmi.bench.quality.runs import Runs, RunSpec
from hmi.bench.quality.tasks import TRAIN, TaskRows, load, named
from hmi.errors import InvalidInput
from hmi.model.memory import keep_freed_memory
from hmi.model.root import Root
from hmi.training.recipe import HELD_OUT
from hmi.training.row_keys import hold_out


@dataclass(frozen=True)
class ImprovedPlan:
    """The cells of a run: as `hmi.bench.quality.run.Plan`, with the sources of larger teachers."""

    sets: Path
    corpora: Path
    runs: Path
    larger: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    budget: Budget = field(default_factory=Budget)
    rows: int = TRAIN
    plot: str = ""


def run(plan: ImprovedPlan, models: Encoders, report: Report) -> Iterator[tuple[RunSpec, Any]]:
    """Fill the table task by task, yielding each run as it is stored. Raises HmiError."""
    torch.set_num_threads(1)
    keep_freed_memory()
    kept = Runs(plan.runs)
    wanted = chosen_columns(plan)
    for task in named(plan.tasks):
        rows = small(load(task, plan.sets), plan.rows)
        folder = plan.runs.parent / "taught"
        lesson = Lesson(task, rows, models, plan.corpora, plan.larger, folder, report)
        for column in wanted:
            if column.learner in ("contrasted", "frozen") and not lesson.can_be_probed:
                continue
            spec = about(plan, column, models.root)
            yield from fill(lesson, column, spec, plan.budget.seeds, plan.budget.test, kept)
            gc.collect()


def small(rows: TaskRows, count: int) -> TaskRows:
    """The rows of a tenant that has only this many labelled rows, of which the service holds some out."""
    if count >= TRAIN:
        return rows
    train, dev = hold_out(rows.train[:count], HELD_OUT)
    return replace(rows, train=train, dev=dev)


def chosen_columns(plan: ImprovedPlan) -> list[Improved]:
    """Return the wanted columns, in the order of the table. Raises InvalidInput."""
    known = {column.name: column for column in columns(plan.larger, few=plan.rows < TRAIN)}
    for name in plan.columns:
        if name not in known:
            raise InvalidInput(f"column {name!r} is unknown: use one of {', '.join(known)}", field="column")
    return [column for name, column in known.items() if not plan.columns or name in plan.columns]


IMPROVED_VERSION = 3
"""A part of the key of every run of these columns. Raise it when the recipe of second versions changes."""


def about(plan: ImprovedPlan, column: Improved, root: Root) -> RunSpec:
    """Return what identifies a column's runs, besides task and seed."""
    found: RunSpec = {
        "arm": column.name,
        "recipe": RECIPE_VERSION,
        "improved": IMPROVED_VERSION,
        "source": source_of(root),
        "root": content_of(root),
        "plot": plan.plot,
        "teachers": [Path(name).name for name in plan.larger],
    }
    return found if plan.rows == TRAIN else {**found, "rows": plan.rows}


def source_of(root: Root) -> str:
    """The beginning of the hash of the root's source, by which runs name it."""
    return root.info.source.get("sha256", "")[:12]


def summary(plan: ImprovedPlan, root: Root) -> list[dict[str, Any]]:
    """Return a row for each task with finished runs: scores from 0 to 100, means over seeds.

    `first` and `by_default` are the first version and the published one. `published` counts the seeds
    in which that was the second, `worse` those in which it scored under the first by more than one standard
    error of a score on that many test rows.
    """
    found, out = Runs(plan.runs).all(), []
    for task in named(plan.tasks):
        row: dict[str, Any] = {"task": task.name}
        own = _dedicated(found, task.name, plan, root)
        if own is not None:
            row["dedicated"] = round(own, 1)
        for column in chosen_columns(plan):
            wanted = {"task": task.name, **about(plan, column, root)}
            wanted |= {"test": True} if plan.budget.test else {}
            runs = [result for spec, result in found if _fits(spec, wanted)]
            if runs:
                row |= _figures(column, runs, own, "test" if plan.budget.test else "dev")
        if len(row) > 1:
            out.append(row)
    return out


def _figures(
    column: Improved, runs: Sequence[Mapping[str, Any]], own: float | None, of: str
) -> dict[str, Any]:
    def shown(name: str, values: Sequence[float]) -> dict[str, Any]:
        mean = 100 * statistics.mean(values)
        error = 100 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        ratio = {} if own is None else {f"{name} ÷": round(mean / own, 3)}
        return {name: f"{mean:.1f}" + ("" if error is None else f" ± {error:.1f}"), **ratio}

    if not column.chooses:
        return shown(column.name, [run[of] for run in runs])
    first = [run["first"] for run in runs]
    teachers = runs[0]["teachers"]
    return {
        **shown("first", [run[of] for run in first]),
        **shown("by_default", [run[of] for run in runs]),
        "sure": " ".join(f"{run['sure']:.2f}" for run in runs),
        "published": f"{sum(run['published'] == 2 for run in runs)}/{len(runs)}",
        "worse": sum(run[of] < run["first"][of] - _noise(run["first"][of], run) for run in runs),
        "weights": " ".join(f"{teacher['weight']:.2f}" for teacher in teachers.values()),
        "first_s": round(statistics.mean(run["cpu_s"] for run in first)),
        "teachers_s": round(sum(teacher["cpu_s"] for teacher in teachers.values())),
        "second_s": round(statistics.mean(run["second"]["cpu_s"] for run in runs)),
    }


def _noise(score: float, run: Mapping[str, Any]) -> float:
    return math.sqrt(score * (1 - score) / max(1, run["test_rows"]))


def _dedicated(
    found: Sequence[tuple[RunSpec, Any]], task: str, plan: ImprovedPlan, root: Root
) -> float | None:
    """The mean score of the dedicated copies of the root's source at their best rate.

    They are runs of `hmi bench quality` by the present recipe, or with few rows those of the column here. If
    a task has none, the teacher from the root's source stands for them, with one seed and the service's rate.
    Of a source with at most 6 layers it is such a copy.
    """
    of, dev, scores = "test" if plan.budget.test else "dev", dict[float, float](), list[tuple[float, float]]()
    arm = "dedicated" if plan.rows >= TRAIN else "dedicated_plain"
    wanted = {"task": task, "arm": arm, "recipe": RECIPE_VERSION, "source": source_of(root)}
    for spec, result in found:
        if not wanted.items() <= spec.items() or spec.get("rows", TRAIN) != plan.rows:
            continue
        if of in result:
            scores.append((spec["lr"], result[of]))
            dev[spec["lr"]] = max(result["dev"], dev.get(spec["lr"], 0.0))
    if not scores:
        return _own_teacher(found, task, plan, root)
    best = max(dev, key=lambda rate: dev[rate])
    return 100 * statistics.mean(score for rate, score in scores if rate == best)


def _own_teacher(
    found: Sequence[tuple[RunSpec, Any]], task: str, plan: ImprovedPlan, root: Root
) -> float | None:
    """The score of the teacher from the root's source, if it was tuned on the labels and scored."""
    wanted = {"task": task, "recipe": RECIPE_VERSION, "source": source_of(root), "improved": IMPROVED_VERSION}
    of = "test" if plan.budget.test else "score"
    for spec, result in found:
        if plan.rows >= TRAIN and wanted.items() <= spec.items() and "rows" not in spec:
            score = result.get("teachers", {}).get(OWN, {}).get(of)
            if score is not None:
                return 100 * float(score)
    return None


def _fits(spec: RunSpec, wanted: RunSpec) -> bool:
    return {key: value for key, value in spec.items() if key not in ("lr", "seed")} == wanted
