"""Many tenants with few rows each, trained one after another on features that are computed once.

This is section 7.1 and figure 14 of the HMI paper. Tenant i has a random subset of the rows of task number i
modulo the number of tasks. A fifth of the subset chooses the epoch. All tenants of a task are scored on the
same test rows.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.cases.quality.arms import Column
from bench.cases.quality.cells import Problem, Report, problem, tested, train_once
from bench.cases.quality.models import Encoders
from bench.cases.quality.runs import RunFile, RunSpec
from bench.cases.quality.tasks import load, named
from hmi.errors import InvalidInput
from hmi.model.memory import keep_freed_memory
from hmi.training.fit.backbones import Examples
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.tasks.splits import Split

TEST = 300


@dataclass(frozen=True)
class TenantsPlan:
    """The size of a run: `tenants` tenants with `rows` rows each. Empty `tasks` mean all but those of
    pairs."""

    sets: Path
    runs: Path
    tasks: tuple[str, ...] = ()
    tenants: int = 500
    rows: int = 200


def run(
    plan: TenantsPlan, arm: Column, lr: float, about: RunSpec, models: Encoders, report: Report
) -> Iterator[tuple[RunSpec, Any]]:
    """Train the tenants that are not finished, task by task, and yield each run as it is stored.

    `about` identifies the column. Raises HmiError.
    """
    if arm.unlabelled or arm.variants:
        raise InvalidInput("this table has no arm with a teacher: use hbert", field="arm")
    # A column has one module, but pairs have another by default.
    tasks = [task for task in named(plan.tasks) if task.kind != "pair"]
    if plan.tasks and len(tasks) < len(plan.tasks):
        raise InvalidInput("this table has no tasks of pairs: name other tasks", field="task")
    torch.set_num_threads(1)
    keep_freed_memory()
    kept = RunFile(plan.runs)
    for place, task in enumerate(tasks):
        whole: Problem | None = None
        for tenant in range(place, plan.tenants, len(tasks)):
            spec = {**about, "task": task.name, "tenant": tenant, "rows": plan.rows, "lr": lr}
            if kept.get(spec) is not None:
                continue
            if whole is None:
                rows = load(task, plan.sets)
                whole = problem(task, replace(rows, dev=[], test=rows.test[:TEST]), arm, models)
            mine = _subset(whole, tenant, plan.rows)
            trained = train_once(mine, arm, models, lr, 0, report)
            result = {**trained.result, "test": tested(mine, trained)}
            kept.put(spec, result)
            yield spec, result


def columns_of(runs: Sequence[tuple[RunSpec, Any]]) -> dict[str, dict[int, Any]]:
    """Return the results by tenant of each column.

    A column is named by its arm or, if an arm was run with several settings, by the whole setting.
    """
    settings: dict[str, dict[int, Any]] = {}
    arms: dict[str, str] = {}
    for spec, result in runs:
        setting = ", ".join(f"{k} {v}" for k, v in sorted(spec.items()) if k not in ("arm", "task", "tenant"))
        name = f"{spec['arm']} ({setting})"
        arms[name] = spec["arm"]
        settings.setdefault(name, {})[spec["tenant"]] = result
    alone = [arm for arm in arms.values() if [*arms.values()].count(arm) == 1]
    return {arms[name] if arms[name] in alone else name: found for name, found in settings.items()}


def by_number(results: Mapping[int, Any], numbers: Sequence[int]) -> dict[int, float]:
    """Return the mean test score (0 to 100) of the first n tenants, for each n in `numbers`.

    An n is left out if not all of its tenants are finished.
    """
    return {
        n: statistics.mean(100 * results[i]["test"] for i in range(n))
        for n in numbers
        if all(i in results for i in range(n))
    }


def _subset(whole: Problem, tenant: int, rows: int) -> Problem:
    """Return the tenant's rows of a task, split into train and dev."""
    split, examples = whole.splits["train"], whole.examples["train"]
    chosen = random.Random(tenant).sample(range(len(examples)), min(rows, len(examples)))
    held = max(1, int(HELD_OUT.small_share * len(chosen)))
    parts = {"dev": chosen[:held], "train": chosen[held:]}
    return replace(
        whole,
        splits={**whole.splits, **{name: _rows(split, part) for name, part in parts.items()}},
        examples={**whole.examples, **{name: _some(examples, part) for name, part in parts.items()}},
    )


def _rows(split: Split, chosen: list[int]) -> Split:
    return Split([split.rows[i] for i in chosen], [split.encoded[i] for i in chosen])


def _some(examples: Examples, chosen: list[int]) -> Examples:
    bags = examples.bags
    return Examples(
        [examples.lengths[i] for i in chosen],
        [examples.types[i] for i in chosen],
        lambda rows: examples.features([chosen[i] for i in rows]),
        [examples.targets[i] for i in chosen],
        None if bags is None else lambda rows: bags([chosen[i] for i in rows]),
    )
