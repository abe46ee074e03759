"""Runs all cells of a table, except those that an earlier run finished."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from bench.cases.quality.arms import Column, columns
from bench.cases.quality.cells import RECIPE_VERSION, Problem, Report, Run, fill, problem, tested, train_once
from bench.cases.quality.models import Encoders, content_of, source_of
from bench.cases.quality.runs import RunFile, RunSpec
from bench.cases.quality.tables import Scored, ScoreTable, table, with_best
from bench.cases.quality.tasks import TRAIN, UNLABELLED, QualityTask, TaskRows, load, named, unlabelled
from bench.cases.quality.taught import with_texts
from hmi.core import ModuleSpec
from hmi.errors import InvalidInput
from hmi.model.memory import keep_freed_memory
from hmi.model.sources.root import Root
from hmi.training.plans.defaults import default_module
from hmi.training.plans.recipe import Recipe


@dataclass(frozen=True)
class QualityPlan:
    """The cells of a run.

    `sets` is the folder of labelled sets, `runs` the file of finished runs. Empty `tasks` or `arms` mean all.
    `rows` is the greatest number of training rows, and of dev rows. `lrs` replace each arm's own rates.
    `plot` describes the PLOTs and is a part of the runs' keys.
    """

    sets: Path
    runs: Path
    tasks: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    modules: tuple[ModuleSpec, ...] = ()
    """The modules of the served arms. () takes the service's default, which depends on the task."""
    seeds: int = 3
    test: bool = True
    """Whether test is scored. Set it to False while something is being chosen."""
    rows: int = TRAIN
    lrs: tuple[float, ...] = ()
    plot: str = ""
    texts: int = UNLABELLED
    """The greatest number of unlabelled texts for an arm with a teacher."""


def run(plan: QualityPlan, models: Encoders, report: Report) -> Iterator[tuple[RunSpec, Any]]:
    """Fill the table cell by cell, yielding each run as it is stored. Raises HmiError."""
    torch.set_num_threads(1)
    keep_freed_memory()
    kept = RunFile(plan.runs)
    for task in named(plan.tasks):
        rows = load(task, plan.sets)
        rows = replace(rows, train=rows.train[: plan.rows], dev=rows.dev[: plan.rows])
        for arm in chosen_arms(plan, task):
            cell = {"task": task.name, **about(plan, arm, models.root)}
            yield from _filled(plan, task, rows, arm, models, cell, kept, report)
            gc.collect()


def _filled(
    plan: QualityPlan,
    task: QualityTask,
    rows: TaskRows,
    arm: Column,
    models: Encoders,
    cell: RunSpec,
    kept: RunFile,
    report: Report,
) -> Iterator[tuple[RunSpec, Any]]:
    """Fill one cell. Its texts are read only if a run is left to do."""
    made = cache(partial(_problem, plan, task, rows, arm, models, report))

    def train(lr: float, seed: int) -> Run:
        return train_once(made(), arm, models, lr, seed, report)

    def test(run: Run) -> float:
        return tested(made(), run)

    return fill(arm.lrs, cell, train, test if plan.test else None, plan.seeds, kept)


def _problem(
    plan: QualityPlan, task: QualityTask, rows: TaskRows, arm: Column, models: Encoders, report: Report
) -> Problem:
    if arm.unlabelled or arm.variants:

        def teaching(phase: str, step: int, total: int, loss: float | None) -> None:
            report(f"{task.name}, {phase}", step, total)

        texts = unlabelled(task, plan.sets, plan.texts) if arm.unlabelled else []
        recipe = Recipe(variants=arm.variants)
        rows = with_texts(task, rows, texts, recipe, models, plan.runs.parent / "taught", teaching)
    return problem(task, rows, arm, models)


def chosen_arms(plan: QualityPlan, task: QualityTask | None = None) -> list[Column]:
    """Return the requested arms for a task (None: a task with one text a row).

    An arm with a module is returned once for each module. Raises InvalidInput.
    """
    usual = default_module(paired=task is not None and task.kind == "pair")
    known = {arm.name: arm for arm in columns(usual)}
    for name in plan.arms:
        if name not in known:
            raise InvalidInput(f"arm {name!r} is unknown: use one of {', '.join(known)}", field="arm")
    made = [{arm.name: arm for arm in columns(module, module)} for module in plan.modules] or [known]
    out = []
    for name, arm in known.items():
        if not plan.arms or name in plan.arms:
            out += [arm] if arm.module is None else [arms[name] for arms in made]
    return [replace(arm, lrs=tuple(sorted(plan.lrs))) if plan.lrs else arm for arm in out]


def about(plan: QualityPlan, arm: Column, root: Root) -> RunSpec:
    """Return what identifies a column's runs.

    This is the arm, the recipe and the source, and what the arm uses of the root, the PLOT and the plan.
    """
    found: RunSpec = {"arm": arm.name, "recipe": RECIPE_VERSION, "source": source_of(root)}
    if arm.reads == "plot":
        found |= {"root": content_of(root), "plot": plan.plot}
    if arm.module is not None:
        found["module"] = title(arm.module)
    if arm.served:
        found["served"] = True
    if plan.rows != TRAIN:
        found["rows"] = plan.rows
    if arm.unlabelled and plan.texts != UNLABELLED:
        found["texts"] = plan.texts
    return found


def scores(plan: QualityPlan, root: Root) -> ScoreTable:
    """Return the table of the plan's finished runs."""
    several = len(plan.modules) > 1
    cells = {}
    for task in named(plan.tasks):
        arms = chosen_arms(plan, task)
        titles = [f"{arm.name} {title(arm.module)}" if several and arm.module else arm.name for arm in arms]
        cells[task.name] = {name: about(plan, arm, root) for name, arm in zip(titles, arms, strict=True)}
    scored: Scored = "test" if plan.test else "dev"
    found = table(RunFile(plan.runs).all(), cells, scored)
    return with_best(found, [name for name, spec in next(iter(cells.values())).items() if spec.get("served")])


def title(module: ModuleSpec) -> str:
    sites = "" if module.sites is None else " " + ",".join(module.sites)
    return f"{module.kind} {module.rank}{sites}"
