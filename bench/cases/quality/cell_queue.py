"""Runs cells of second versions (`bench.cases.quality.improving`) in processes of their own.

Every result is stored when it is there, and is not computed again. So a run may be stopped anywhere.
"""

from __future__ import annotations

import multiprocessing
import queue
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from bench.cases.quality.cells import Report
from bench.cases.quality.improved import result_of
from bench.cases.quality.improving import Cell, ImprovedPlan, column_of
from bench.cases.quality.lesson import TaskLesson
from bench.cases.quality.runs import RunFile, RunSpec
from bench.cases.quality.setting import PlotSetting, opened
from bench.cases.quality.tasks import SPLIT_SEED, TRAIN, TaskRows, load, named
from hmi.errors import HmiError
from hmi.model.memory import keep_freed_memory
from hmi.model.sources.root import Root
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.tasks.row_keys import hold_out

SAY_S = 1.0
"""A process tells of its progress at most this often."""

CONTEXT = multiprocessing.get_context("spawn")


def run(
    plan: ImprovedPlan, setting: PlotSetting, folder: Path, root: Root, report: Report
) -> Iterator[tuple[RunSpec, Any]]:
    """Run the cells that are not done yet. Yields each run as it is stored.

    folder: the root's. Cells of one lesson run one after the other, in one process, since they share what
    teachers say. A lesson begins while CPU seconds are left. Raises HmiError, also if a process died.
    """
    kept = RunFile(plan.runs)
    lessons: dict[tuple[str, int, int], list[Cell]] = {}
    for cell in plan.cells:
        if kept.get(plan.spec(cell, root)) is None:
            lessons.setdefault(cell.lesson, []).append(cell)
    waiting, running = list(lessons.values()), list[SpawnProcess]()
    # What processes tell: a cell with its result, with the arguments of a report, or with an HmiError.
    tell, spent = CONTEXT.Queue(), CONTEXT.Value("d", 0.0)
    try:
        while True:
            while waiting and len(running) < plan.at_once and spent.value < plan.cpu_s:
                args = (plan, setting, folder, waiting.pop(0), tell, spent)
                running.append(CONTEXT.Process(target=_work, args=args, daemon=True))
                running[-1].start()
            if not running and tell.empty():
                return
            try:
                cell, told = tell.get(timeout=0.2)
            except queue.Empty:
                for one in running:
                    if one.exitcode:
                        raise HmiError(f"a process that ran cells died (exit code {one.exitcode})") from None
                running = [one for one in running if one.is_alive()]
                continue
            if isinstance(told, HmiError):
                raise told
            if isinstance(told, tuple):
                report(*told)
                continue
            spec = plan.spec(cell, root)
            kept.put(spec, told)
            yield spec, told
    finally:
        for one in running:
            one.kill()


class _EndError(Exception):
    """The CPU seconds of all cells are spent, or the benchmark was stopped."""


def _work(
    plan: ImprovedPlan, setting: PlotSetting, folder: Path, cells: Sequence[Cell], tell: Any, spent: Any
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
            tell.put((cells[0], (what, step, total)))

    with suppress(_EndError):  # what is done has been told
        try:
            [task] = named([cells[0].task])
            rows = small(load(task, plan.sets), cells[0].rows, cells[0].draw)
            with opened(setting, folder) as models:
                kept = plan.runs.parent / "taught"
                lesson = TaskLesson(task, rows, models, plan.corpora, plan.larger, kept, report)
                for cell in cells:
                    column = column_of(plan, cell)
                    if column.learner in ("contrasted", "frozen") and not lesson.can_be_probed:
                        continue
                    tell.put((cell, result_of(lesson, column, cell.seed, plan.test)))
        except HmiError as error:
            tell.put((cells[0], error))
    tell.close()
    tell.join_thread()


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
