"""A cell of a table: one task and one arm.

The first seed chooses the learning rate on dev. Every seed is trained with that rate and scored on test once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from bench.cases.quality.arms import Column
from bench.cases.quality.models import Encoders
from bench.cases.quality.runs import RunFile, RunSpec
from bench.cases.quality.tables import best_rate
from bench.cases.quality.tasks import QualityTask, TaskRows
from hmi.model.tasks import TaskKind
from hmi.model.tenant.artefact import Artefact
from hmi.resident import peak_resident
from hmi.training.data.golds import SoftLabel, SoftTags
from hmi.training.data.rows import Row
from hmi.training.fit.backbones import Examples
from hmi.training.fit.early_stopping import train_to_best
from hmi.training.fit.plan import plan_training
from hmi.training.fit.trainer import Trainer
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.tasks.objectives import learn_task
from hmi.training.tasks.scoring import headline
from hmi.training.tasks.splits import Split, judge, split_bags, task_targets

RECIPE_VERSION = 3
"""A part of every run's key. Raise it when the recipe changes, so that old runs are not reused."""

Report = Callable[[str, int, int], None]
"""Called with (what is trained, step, number of steps)."""


@dataclass(frozen=True)
class Problem:
    """A tokenised task with the features that one arm reads."""

    task: QualityTask
    kind: TaskKind
    splits: dict[str, Split]
    examples: dict[str, Examples]


def problem(task: QualityTask, rows: TaskRows, arm: Column, models: Encoders) -> Problem:
    """Tokenise a task's rows and compute their features.

    Labels that only dev or test has cannot be predicted and count as errors there.
    """
    golds = [row.label for row in rows.train if not isinstance(row.label, SoftLabel | SoftTags)]
    kind = learn_task(task.kind, golds, paired=isinstance(rows.train[0].text, tuple))
    splits = {name: split_of(part, models, task.length) for name, part in vars(rows).items()}
    examples = {
        name: _examples(task, kind, split, arm, models, name == "train") for name, split in splits.items()
    }
    return Problem(task, kind, splits, examples)


class RatedRun(Protocol):
    """A finished run at a learning rate. Its result has `dev`, of which more is better."""

    lr: float
    result: dict[str, Any]


R = TypeVar("R", bound=RatedRun)


@dataclass
class Run:
    """A finished run, with the tensors of the epoch that was best on dev."""

    lr: float
    result: dict[str, Any]
    trainer: Trainer
    artefact: Artefact


def fill(
    rates: Sequence[float],
    cell: RunSpec,
    train: Callable[[float, int], R],
    test: Callable[[R], Any] | None,
    seeds: int,
    kept: RunFile,
) -> Iterator[tuple[RunSpec, Any]]:
    """Do the unfinished runs of this cell, and yield each as it is stored.

    `cell` identifies the cell. `train` is called with a rate and a seed. `test` scores a run on test; None:
    test is not scored.
    """
    best: R | None = None
    searched: dict[float, Any] = {}
    while (rate := next_rate(rates, {r: result["dev"] for r, result in searched.items()})) is not None:
        spec = {**cell, "lr": rate, "seed": 0}
        searched[rate] = kept.get(spec)
        if searched[rate] is None:
            run = train(rate, 0)
            searched[rate] = run.result
            kept.put(spec, run.result)
            yield spec, run.result
            best = run if best is None or run.result["dev"] > best.result["dev"] else best
    lr = best_rate({rate: result["dev"] for rate, result in searched.items()})
    for seed in range(seeds):
        spec = {**cell, "lr": lr, "seed": seed, **({} if test is None else {"test": True})}
        if kept.get(spec) is not None:
            continue
        run = best if seed == 0 and best is not None and best.lr == lr else train(lr, seed)
        result = run.result if test is None else {**run.result, "test": test(run)}
        kept.put(spec, result)
        yield spec, result


def next_rate(rates: Sequence[float], dev: Mapping[float, float]) -> float | None:
    """Return the learning rate to try next, given dev scores by rate, or None when the search ends.

    The middle rate comes first, then the neighbours of the best one. So of four rates three or four are
    tried, and the best one has been compared with every neighbour that it has.
    """
    if not dev:
        return rates[(len(rates) - 1) // 2]
    at = rates.index(best_rate(dev))
    for beside in (at + 1, at - 1):
        if 0 <= beside < len(rates) and rates[beside] not in dev:
            return rates[beside]
    return None


def reset_peak() -> bool:
    """Let the peak of this process's resident memory begin anew. Returns False if the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def train_once(p: Problem, arm: Column, models: Encoders, lr: float, seed: int, report: Report) -> Run:
    """Train once and keep the epoch that is best on dev.

    The result's `peak_bytes` is the process's peak in this training, with what the process held before. None
    if it is unknown.
    """
    begun = time.process_time()
    anew = reset_peak()
    plan = plan_training(arm.recipe(lr, seed), p.kind, len(p.examples["train"]))
    trainer = Trainer(arm.backbone(models, seed), models.root.dim, plan, p.examples["train"])
    what = f"{p.task.name}, {arm.name}, lr {lr:g}, seed {seed}"
    history = train_to_best(
        trainer,
        lambda: _evaluate(p, trainer, "dev"),
        lambda step, total, loss: report(what, step, total),
        keep_best=HELD_OUT.chooses(len(p.splits["dev"].rows)),
    )
    best = history.kept
    result = {
        "dev": best.score,
        "dev_by_epoch": list(history.scores),
        "cpu_s": round(time.process_time() - begun, 1),
        "peak_bytes": peak_resident() if anew else None,
        "parameters": sum(v.numel() for v in best.artefact.joined().values()),
    }
    return Run(lr, result, trainer, best.artefact)


def tested(p: Problem, run: Run) -> float:
    """Return the test score of the epoch that was kept."""
    run.trainer.load(run.artefact)
    return headline(_evaluate(p, run.trainer, "test"))


def _evaluate(p: Problem, trainer: Trainer, name: str) -> dict[str, Any]:
    return judge(trainer.reading(p.kind), p.splits[name], trainer.predict(p.examples[name]))


def split_of(rows: list[Row], models: Encoders, length: int) -> Split:
    """Tokenise rows, at most `length` tokens of each."""
    return Split(rows, models.root.tokenizer.encode([row.text for row in rows], length))


def _examples(
    task: QualityTask, kind: TaskKind, split: Split, arm: Column, models: Encoders, train: bool
) -> Examples:
    features = models.features(arm.reads, task, split.encoded)

    def read(rows: Any) -> list[Tensor]:
        return [x if x.dtype == torch.int64 else x.float() for x in (features[i] for i in rows)]

    targets = task_targets(kind, split) if train else [[]] * len(split.rows)
    bags = split_bags(split, arm.lexical_for(kind.name), read)
    return Examples([len(e) for e in split.encoded], [e.types for e in split.encoded], read, targets, bags)
