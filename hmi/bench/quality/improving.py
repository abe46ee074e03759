"""Runs the columns of a second version (`hmi.bench.quality.improved`) on every task, and sums them up."""

from __future__ import annotations

import math
import multiprocessing
import queue
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from hmi.bench.quality.cells import RECIPE_VERSION, Report
from hmi.bench.quality.improved import Improved, columns, result_of
from hmi.bench.quality.lesson import OWN, Lesson
from hmi.bench.quality.run import content_of
from hmi.bench.quality.runs import Runs, RunSpec
from hmi.bench.quality.setting import Setting, opened
from hmi.bench.quality.tasks import SPLIT_SEED, TRAIN, TaskRows, load, named
from hmi.errors import HmiError, InvalidInput
from hmi.model.memory import keep_freed_memory
from hmi.model.root import Root
from hmi.training.recipe import HELD_OUT
from hmi.training.row_keys import hold_out

LEAST_ROWS = 20
SAY_S = 1.0
"""A process that works on cells tells of its progress at most this often."""


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
            if found.rows < LEAST_ROWS or min(found.seed, found.draw) < 0:
                raise ValueError
            return found
        except ValueError:
            raise InvalidInput(
                f"{text!r} is no cell: write SET:ROWS:SEED:COLUMN, such as sst2:2000:0:by_default, with at "
                f"least {LEAST_ROWS} rows, and for other rows :DRAW after it",
                field="cell",
            ) from None

    @property
    def lesson(self) -> tuple[str, int, int]:
        """What cells share that have one pool and one set of teachers."""
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
    """Whether test is scored. It is not while something is being chosen."""
    plot: str = ""
    cpu_s: float = math.inf
    """The CPU seconds of all cells together. A cell that would go beyond is given up."""
    at_once: int = 1

    def spec(self, cell: Cell, root: Root) -> RunSpec:
        """The key of a cell's run."""
        tested = {"test": True} if self.test else {}
        return {"task": cell.task, **about(self, cell, root), "lr": 0.0, **tested, "seed": cell.seed}


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


def run(
    plan: ImprovedPlan, setting: Setting, folder: Path, root: Root, report: Report
) -> Iterator[tuple[RunSpec, Any]]:
    """Run the cells that are not done yet, in processes of their own. Yields each run as it is stored.

    Cells of one lesson run one after the other, since they share what teachers say. It may be stopped
    anywhere. Raises HmiError, also if a process died.
    """
    kept = Runs(plan.runs)
    left: dict[tuple[str, int, int], list[Cell]] = {}
    for cell in plan.cells:
        if kept.get(plan.spec(cell, root)) is None:
            left.setdefault(cell.lesson, []).append(cell)
    context = multiprocessing.get_context("spawn")
    told: Any = context.Queue()
    spent = context.Value("d", 0.0)
    waiting, running = list(left.values()), list[SpawnProcess]()
    try:
        while waiting or running or not told.empty():
            while waiting and len(running) < plan.at_once and spent.value < plan.cpu_s:
                made = context.Process(
                    target=_work, args=(plan, setting, folder, waiting.pop(0), told, spent), daemon=True
                )
                made.start()
                running.append(made)
            try:
                cell, told_of = told.get(timeout=0.2)
            except queue.Empty:
                for one in running:
                    if one.exitcode:
                        raise HmiError(f"a process that ran cells died (exit code {one.exitcode})") from None
                running = [one for one in running if one.is_alive()]
                if spent.value >= plan.cpu_s:
                    waiting = []
                continue
            if isinstance(told_of, HmiError):
                raise told_of
            if isinstance(told_of, tuple):
                report(*told_of)
                continue
            spec = plan.spec(cell, root)
            kept.put(spec, told_of)
            yield spec, told_of
    finally:
        for one in running:
            one.kill()


class _EndError(Exception):
    """The CPU seconds of all cells are spent, or the benchmark was stopped."""


def _work(
    plan: ImprovedPlan, setting: Setting, folder: Path, cells: Sequence[Cell], told: Any, spent: Any
) -> None:
    """Run the cells of one lesson in this process, and tell each result."""
    torch.set_num_threads(1)
    keep_freed_memory()
    parent = multiprocessing.parent_process()
    assert parent is not None
    counted, said = 0.0, 0.0

    def report(what: str, step: int, total: int) -> None:
        nonlocal counted, said
        now = time.process_time()
        with spent.get_lock():
            spent.value += now - counted
        counted = now
        if spent.value >= plan.cpu_s or not parent.is_alive():
            raise _EndError
        if time.monotonic() - said > SAY_S:
            said = time.monotonic()
            told.put((cells[0], (what, step, total)))

    try:
        [task] = named([cells[0].task])
        rows = small(load(task, plan.sets), cells[0].rows, cells[0].draw)
        with opened(setting, folder) as models:
            kept = plan.runs.parent / "taught"
            lesson = Lesson(task, rows, models, plan.corpora, plan.larger, kept, report)
            for cell in cells:
                column = column_of(plan, cell)
                if column.learner in ("contrasted", "frozen") and not lesson.can_be_probed:
                    continue
                told.put((cell, result_of(lesson, column, cell.seed, plan.test)))
    except _EndError:
        pass
    except HmiError as error:
        told.put((cells[0], error))
    told.close()
    told.join_thread()


def small(rows: TaskRows, count: int, draw: int = 0) -> TaskRows:
    """The rows of a tenant that has only this many labelled rows, of which the service holds some out.

    draw: 0 for the first rows, another number for other rows.
    """
    if count >= TRAIN:
        return rows
    mine = list(rows.train)
    if draw:
        random.Random(SPLIT_SEED + draw).shuffle(mine)
    train, dev = hold_out(mine[:count], HELD_OUT)
    return replace(rows, train=train, dev=dev)


IMPROVED_VERSION = 3
"""A part of the key of every run of these columns. Raise it when the recipe of second versions changes."""


def about(plan: ImprovedPlan, cell: Cell, root: Root) -> RunSpec:
    """Return what identifies a cell's runs, besides task and seed."""
    found: RunSpec = {
        "arm": cell.column,
        "recipe": RECIPE_VERSION,
        "improved": IMPROVED_VERSION,
        "source": source_of(root),
        "root": content_of(root),
        "plot": plan.plot,
        "teachers": [Path(name).name for name in plan.larger],
    }
    if cell.rows != TRAIN:
        found["rows"] = cell.rows
    return found | ({"draw": cell.draw} if cell.draw else {})


def source_of(root: Root) -> str:
    """The beginning of the hash of the root's source, by which runs name it."""
    return root.info.source.get("sha256", "")[:12]


def summary(plan: ImprovedPlan, root: Root) -> list[dict[str, Any]]:
    """Return a row for each lesson with finished runs: scores from 0 to 100, means over seeds.

    `first` and `by_default` are the first version and the published one. `published` counts the seeds
    in which that was the second, `worse` those in which it scored under the first by more than one standard
    error of a score on that many test rows.
    """
    kept, out = Runs(plan.runs), []
    found = kept.all()
    lessons = {cell.lesson: [c for c in plan.cells if c.lesson == cell.lesson] for cell in plan.cells}
    for (task, count, draw), cells in lessons.items():
        row: dict[str, Any] = {"task": task, "rows": count, "draw": draw}
        own = _dedicated(found, cells[0], plan, root)
        if own is not None:
            row["dedicated"] = round(own, 1)
        runs: dict[str, list[Any]] = {}
        for cell in cells:
            if (result := kept.get(plan.spec(cell, root))) is not None:
                runs.setdefault(cell.column, []).append(result)
        for name, results in runs.items():
            column = next(column_of(plan, cell) for cell in cells if cell.column == name)
            row |= _figures(column, results, own, "test" if plan.test else "dev")
        if runs:
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
    found: Sequence[tuple[RunSpec, Any]], cell: Cell, plan: ImprovedPlan, root: Root
) -> float | None:
    """The mean score of the dedicated copies of the root's source at their best rate.

    They are runs of `hmi bench quality` by the present recipe, or with few rows those of the column here. If
    a task has none, the teacher from the root's source stands for them, with one seed and the service's rate.
    Of a source with at most 6 layers it is such a copy.
    """
    of, dev, scores = "test" if plan.test else "dev", dict[float, float](), list[tuple[float, float]]()
    arm = "dedicated" if cell.rows >= TRAIN else "dedicated_plain"
    wanted = {"task": cell.task, "arm": arm, "recipe": RECIPE_VERSION, "source": source_of(root)}
    for spec, result in found:
        same = spec.get("rows", TRAIN) == cell.rows and spec.get("draw", 0) == cell.draw
        if wanted.items() <= spec.items() and same and of in result:
            scores.append((spec["lr"], result[of]))
            dev[spec["lr"]] = max(result["dev"], dev.get(spec["lr"], 0.0))
    if not scores:
        return _own_teacher(found, cell, plan, root)
    best = max(dev, key=lambda rate: dev[rate])
    return 100 * statistics.mean(score for rate, score in scores if rate == best)


def _own_teacher(
    found: Sequence[tuple[RunSpec, Any]], cell: Cell, plan: ImprovedPlan, root: Root
) -> float | None:
    """The score of the teacher from the root's source, if it was tuned on the labels and scored."""
    of = "test" if plan.test else "score"
    wanted = {"task": cell.task, "recipe": RECIPE_VERSION, "source": source_of(root)}
    for spec, result in found:
        if cell.rows >= TRAIN and wanted.items() <= spec.items() and "rows" not in spec:
            score = result.get("teachers", {}).get(OWN, {}).get(of)
            if score is not None and spec.get("improved") == IMPROVED_VERSION:
                return 100 * float(score)
    return None
