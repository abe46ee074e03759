"""All cells of the main table, one after another; what an earlier run kept is not done again."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hmi.bench.quality.arms import Arm, columns
from hmi.bench.quality.cells import Report, fill, problem
from hmi.bench.quality.ledger import Ledger, Spec
from hmi.bench.quality.models import Models, Opened
from hmi.bench.quality.tasks import load, named
from hmi.core import ModuleSpec
from hmi.errors import InvalidInput
from hmi.model.encoder import Encoder
from hmi.model.root import Root


@dataclass(frozen=True)
class Plan:
    """What to run. `sets`: the folder of labelled sets; `runs`: where finished runs are kept; names: () for all."""

    sets: Path
    runs: Path
    tasks: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    seeds: int = 3
    module: ModuleSpec = field(default_factory=ModuleSpec)


def run(plan: Plan, source: Encoder, root: Root, plot_of: Opened, report: Report) -> Iterator[tuple[Spec, Any]]:
    """Fill the table cell by cell, yielding each run as it is kept. Raises HmiError."""
    torch.set_num_threads(1)
    ledger, models = Ledger(plan.runs), Models(source, root, plot_of)
    arms = _arms(plan.arms, columns(plan.module))
    for task in named(plan.tasks):
        rows = load(task, plan.sets)
        for arm in arms:
            about = _about(arm, root)
            make = partial(problem, task, rows, arm, models)
            yield from fill(task, arm, about, make, models, plan.seeds, ledger, report)
            gc.collect()


def _arms(names: Sequence[str], all_of_them: list[Arm]) -> list[Arm]:
    known = {arm.name: arm for arm in all_of_them}
    for name in names:
        if name not in known:
            raise InvalidInput(f"arm {name!r} is unknown: use one of {', '.join(known)}", field="arm")
    return [arm for name, arm in known.items() if not names or name in names]


def _about(arm: Arm, root: Root) -> Spec:
    """What else decides the outcome: the source, and the root, its PLOT and the module where the arm uses them."""
    about: Spec = {"source": root.info.source.get("sha256", "")[:12]}
    if arm.reads == "plot":
        about["root"] = root.info.version
    if arm.module is not None:
        about["module"] = f"{arm.module.kind} {arm.module.rank}"
    return about
