"""Tenants that write, beside dedicated copies of the language model: `bench generation --sets`.

A cell is a task, a number of rows, a seed and a column: `tenant` trains a model by the service's own job,
`dedicated` a copy. `served` writes the tenant's answers again, by the server's executor in each of its
precisions. Each run is stored when it ends, and is not done again.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.cases.generation.copies import RATES, CopyRun, copy_scores, scores, served_scores, train_copy
from bench.cases.generation.tasks import TASKS, rows_of, task_of
from bench.cases.quality.cells import Report, fill
from bench.cases.quality.improving import Cell
from bench.cases.quality.run import title
from bench.cases.quality.runs import RunFile, RunSpec
from bench.cases.quality.tasks import TaskRows
from bench.harness.home import ended
from bench.harness.report import Figure, result
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.core import ModelId, ModelVersion, Progress
from hmi.errors import Conflict, InvalidInput, NotFound
from hmi.model.files import write_json
from hmi.model.memory import keep_freed_memory
from hmi.model.sources.generative_root import load_generative_root
from hmi.model.sources.root import GenerativeRootInfo, read_any_info
from hmi.model.sources.source import find_source
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.modules import module_from
from hmi.stores.layout import Layout
from hmi.training.data.golds import Completion
from hmi.training.data.rows import Row
from hmi.training.plans.defaults import (
    LONG_BATCH,
    WRITING_BATCH,
    WRITING_DROPOUT,
    WRITING_EPOCHS,
    WRITING_LR,
    WRITING_MODULE,
)
from hmi.training.writing.lookup import rows_from_plot

VERSION = 1
"""A part of every run's key. Raise it when the tasks or the training of copies change."""
TENANT, DEDICATED, SERVED = "tenant", "dedicated", "served"
COLUMNS = (DEDICATED, TENANT)
GOAL = 0.98
MEASURES = ("exact_match", "rouge_l", "perplexity")


@dataclass(frozen=True)
class TenantsPlan:
    """A run of the benchmark. The data folder of `settings` has a root of the name `root`."""

    settings: Settings
    root: str
    source: str
    sets: Path
    out: Path
    cells: tuple[Cell, ...]
    options: dict[str, Any]
    """The options of the tenants' job; {} for a user without any."""
    lrs: tuple[float, ...] = ()
    """The rates that copies try, ascending; (): RATES."""

    @property
    def runs(self) -> Path:
        return self.out / "runs.jsonl"


def run(plan: TenantsPlan, report: Report, show: Callable[[Progress], None]) -> Iterator[Figure]:
    """Run the cells that are not done, then yield the figures of all. Raises HmiError."""
    for cell in plan.cells:
        task_of(cell.task)
        if cell.column not in (*COLUMNS, SERVED):
            raise InvalidInput(
                f"column {cell.column!r} is unknown: use one of {', '.join((*COLUMNS, SERVED))}", field="cell"
            )
    torch.set_num_threads(1)
    keep_freed_memory()
    kept, figures = RunFile(plan.runs), list[Figure]()
    with closing(LocalCalls(plan.settings)) as calls:
        info = _info_of(calls, plan)
        for cell in plan.cells:
            if cell.column == DEDICATED:
                _copies(plan, cell, info, kept, report)
            else:
                _tenant(plan, cell, info, kept, calls, show)
    table = summary(kept)
    mine = [{**_spec(plan, cell, info), "arm": TENANT} for cell in plan.cells if cell.column != DEDICATED]
    for figure in _figures([row for row in table if row["spec"] in mine]):
        figures.append(figure)
        yield figure
    write_json(plan.out / "tenants.json", {**result("generation", figures), "table": table})


def all_cells(rows: int, seed: int) -> tuple[Cell, ...]:
    return tuple(Cell(task.name, rows, seed, column) for task in TASKS for column in (*COLUMNS, SERVED))


def _info_of(calls: LocalCalls, plan: TenantsPlan) -> GenerativeRootInfo:
    """Read what the root is. Raises InvalidInput if it is no root of the source."""
    record = calls.services.manager.registry.root(plan.root)
    info = read_any_info(Layout(plan.settings.data).root(plan.root, record.version))
    if not isinstance(info, GenerativeRootInfo) or info.source["sha256"] != find_source(plan.source).sha256:
        raise InvalidInput(f"root {plan.root} is not of the language model {plan.source}", field="root")
    return info


def _spec(plan: TenantsPlan, cell: Cell, info: GenerativeRootInfo) -> RunSpec:
    """The key of a cell's runs. What a copy does not use is not in its key."""
    found: RunSpec = {
        "task": cell.task,
        "arm": cell.column,
        "rows": cell.rows,
        "version": VERSION,
        "source": info.source["sha256"][:12],
        **({"draw": cell.draw} if cell.draw else {}),
    }
    if cell.column != DEDICATED:
        found |= {"split": info.split, "root": info.version, "seed": cell.seed, "test": True}
        found["defaults"] = (
            f"{title(WRITING_MODULE)}, lr {WRITING_LR:g}, batch {WRITING_BATCH} or {LONG_BATCH}, "
            f"dropout {WRITING_DROPOUT:g}, {WRITING_EPOCHS} epochs"
        )
        if plan.options:
            found["options"] = plan.options
    return found


def _copies(plan: TenantsPlan, cell: Cell, info: GenerativeRootInfo, kept: RunFile, report: Report) -> None:
    """Search for the rate of a dedicated copy on dev, and score the best copy on test."""
    rows, source = rows_of(task_of(cell.task), plan.sets, cell.rows, cell.draw), find_source(plan.source)

    def train(lr: float, seed: int) -> CopyRun:
        return train_copy(
            info, source, rows, lr, seed, lambda *said: report(f"{cell.task}, {said[0]}", *said[1:])
        )

    def test(run: CopyRun) -> dict[str, Any]:
        return copy_scores(info, source, run, rows.test)

    for spec, found in fill(plan.lrs or RATES, _spec(plan, cell, info), train, test, cell.seed + 1, kept):
        report(f"{cell.task}, copy: {json.dumps({**spec, **found})}", 1, 1)


def _tenant(
    plan: TenantsPlan,
    cell: Cell,
    info: GenerativeRootInfo,
    kept: RunFile,
    calls: LocalCalls,
    show: Callable[[Progress], None],
) -> None:
    """Train a tenant's model by the service's job, or take the one that is there, and score it on test."""
    spec = _spec(plan, cell, info)
    if kept.get(spec) is not None:
        return
    rows = rows_of(task_of(cell.task), plan.sets, cell.rows, cell.draw)
    trained = {**spec, "arm": TENANT}
    digest = hashlib.sha256(json.dumps(trained, sort_keys=True).encode()).hexdigest()[:8]
    model = ModelId("bench", f"{cell.task}-{digest}")
    cost = _trained(plan, model, rows, cell.seed, calls, show)
    manager = calls.services.manager
    live: ModelVersion = manager.registry.model(model).live
    module = module_from(Artefact.split(manager.adapters.get(live.artefact)).map(lambda v: v.float()).module)
    root = load_generative_root(Layout(plan.settings.data).root(live.root, live.root_version))
    with manager.plots.reader(live.plot_version) as reader:
        found = rows_from_plot(reader, root.upper.first)
        if cell.column == SERVED:
            kept.put(spec, served_scores(root, found, module, rows.test))
            return
        test = scores(root, found, module, rows.test)
    kept.put(spec, {"dev_scores": live.metrics, "test": test, "bytes": live.bytes, **cost})


def _trained(
    plan: TenantsPlan,
    model: ModelId,
    rows: TaskRows,
    seed: int,
    calls: LocalCalls,
    show: Callable[[Progress], None],
) -> dict[str, Any]:
    """Train a model, unless an earlier run did. Returns the job's cost, if it ran."""
    manager = calls.services.manager
    with suppress(NotFound):
        manager.registry.model(model)
        return {}
    with suppress(Conflict):  # an earlier run made it
        calls.request("POST", "/manage/tenants", {"tenant": model.tenant})
    with TemporaryDirectory(prefix="hmi-writing-") as name:
        paths = {part: Path(name) / f"{part}.jsonl" for part in ("data", "dev")}
        for path, part in zip(paths.values(), (rows.train, rows.dev), strict=True):
            path.write_text("".join(json.dumps(_as_row(row)) + "\n" for row in part), encoding="utf-8")
        body = {
            "model": str(model),
            "domain": plan.root,
            "task": "generation",
            "options": {**plan.options, "seed": seed},
        }
        view = ended(calls, "/manage/models", body, paths, show)
    return {"cpu_s": round(view["cost"]["cpu_ms"] / 1e3, 1), "peak_bytes": view["cost"]["peak_bytes"]}


def _as_row(row: Row) -> dict[str, str]:
    assert isinstance(row.label, Completion)
    return {"prompt": str(row.text), "completion": row.label.text}


def summary(kept: RunFile) -> list[dict[str, Any]]:
    """A row for each tenant's run, with the dedicated copy of the same task, rows and seed if it is done.

    `spec` is the run's key. Ratios are those of test scores; of perplexities they are the copy's over the
    tenant's, so that more is better everywhere.
    """
    everything, out = kept.all(), []
    for spec, found in everything:
        if spec["arm"] != TENANT:
            continue
        same = {key: spec.get(key) for key in ("task", "rows", "draw", "seed", "source", "version")}
        row: dict[str, Any] = {"spec": spec, TENANT: found["test"], "cpu_s": found.get("cpu_s")}
        if (served := kept.get({**spec, "arm": SERVED})) is not None:
            row[SERVED] = served
        copies = [
            (other["lr"], copy)
            for other, copy in everything
            if other["arm"] == DEDICATED
            and "test" in copy
            and same.items() <= {"draw": None, **other}.items()
        ]
        if copies:
            lr, best = max(copies, key=lambda one: one[1]["dev"])
            row |= {DEDICATED: best["test"], "lr": lr, "dedicated_cpu_s": best["cpu_s"]}
            row["ratio"] = {name: _ratio(name, found["test"], best["test"]) for name in MEASURES}
        out.append(row)
    return out


def _ratio(name: str, tenant: dict[str, float], copy: dict[str, float]) -> float | None:
    over, under = (copy, tenant) if name == "perplexity" else (tenant, copy)
    return round(over[name] / under[name], 4) if under[name] else None


def _figures(table: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """Yield the exact match of each tenant, as it is served too, and its copy, their ratio, and the mean and
    least ratio."""
    ratios = []
    for row in table:
        name = row["spec"]["task"]
        for column in COLUMNS:
            value = row[column]["exact_match"] if column in row else None
            why = None if column in row else "its cell has not run"
            yield Figure(f"{name}_{column}", value, "exact match", runs=1, why=why)
        for precision, score in row.get(SERVED, {}).items():
            yield Figure(f"{name}_served_{precision}", score["exact_match"], "exact match", runs=1)
        if (ratio := row.get("ratio", {}).get("exact_match")) is not None:
            ratios.append(ratio)
            yield Figure(f"{name}_ratio", ratio, "x", runs=1)
    if ratios:
        yield Figure("mean_ratio", statistics.mean(ratios), "x", GOAL, runs=len(ratios))
        yield Figure("least_ratio", min(ratios), "x", GOAL, runs=len(ratios))
