"""One cell of a table: one task and one arm. The learning rate is chosen on dev with the first seed, then every seed is
trained with it, and test is looked at once for each seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hmi.bench.quality.arms import Arm
from hmi.bench.quality.ledger import Ledger, Spec
from hmi.bench.quality.models import Models
from hmi.bench.quality.tasks import QualityTask, Rows
from hmi.jobs.held_out import Split, judge, task_targets
from hmi.jobs.rows import Row
from hmi.model.bodies import Examples
from hmi.model.scoring import headline
from hmi.model.tasks import TaskKind, learn_task
from hmi.model.training import Trainer, TrainPlan

EPOCHS, PATIENCE, BATCH = 8, 3, 16
RECIPE = 1
"""Part of every run's key: a change of the recipe makes old runs another experiment's."""

Report = Callable[[str, int, int], None]
"""(what is trained, step, of)."""


@dataclass(frozen=True)
class Problem:
    """A task, tokenised, with the features of one arm."""

    task: QualityTask
    kind: TaskKind
    splits: dict[str, Split]
    examples: dict[str, Examples]


def problem(task: QualityTask, rows: Rows, arm: Arm, models: Models) -> Problem:
    """Tokenise and look up. Labels that only dev or test has cannot be predicted, and count as errors there."""
    kind = learn_task(task.kind, [row.label for row in rows.train], paired=isinstance(rows.train[0].text, tuple))
    splits = {name: _split(part, models, task.length) for name, part in vars(rows).items()}
    examples = {name: _examples(task, kind, split, arm, models, name == "train") for name, split in splits.items()}
    return Problem(task, kind, splits, examples)


@dataclass
class _Best:
    """The best run so far over learning rates, with what it learnt."""

    score: float
    lr: float
    trainer: Trainer
    state: dict[str, Tensor]


def fill(
    task: QualityTask, arm: Arm, about: Spec, make: Callable[[], Problem], models: Models, seeds: int, ledger: Ledger,
    report: Report,
) -> Iterator[tuple[Spec, Any]]:  # fmt: skip
    """Do the runs of this cell that the ledger lacks; yields each as it is kept. about: what else names the cell."""
    cell = {"task": task.name, "arm": arm.name, "recipe": RECIPE, **about}
    made: list[Problem] = []

    def ready() -> Problem:
        if not made:
            made.append(make())
        return made[0]

    def train(lr: float, seed: int) -> tuple[dict[str, Any], Trainer, dict[str, Tensor]]:
        return _train(ready(), arm, models, lr, seed, report)

    best: _Best | None = None
    searched: dict[float, Any] = {}
    for lr in arm.lrs:
        spec = {**cell, "lr": lr, "seed": 0}
        searched[lr] = ledger.get(spec)
        if searched[lr] is None:
            searched[lr], trainer, state = train(lr, 0)
            ledger.put(spec, searched[lr])
            yield spec, searched[lr]
            if best is None or searched[lr]["dev"] > best.score:
                best = _Best(searched[lr]["dev"], lr, trainer, state)
    lr = max(searched, key=lambda rate: searched[rate]["dev"])
    for seed in range(seeds):
        spec = {**cell, "lr": lr, "seed": seed, "test": True}
        if ledger.get(spec) is not None:
            continue
        if seed == 0 and best is not None and best.lr == lr:
            result, trainer, state = searched[lr], best.trainer, best.state
        else:
            result, trainer, state = train(lr, seed)
        trainer.load(state)
        result = {**result, "test": headline(_evaluate(ready(), trainer, "test"))}
        ledger.put(spec, result)
        yield spec, result


def _train(
    p: Problem, arm: Arm, models: Models, lr: float, seed: int, report: Report
) -> tuple[dict[str, Any], Trainer, dict[str, Tensor]]:
    """One run, and the tensors of the epoch that was best on dev."""
    begun = time.process_time()
    plan = TrainPlan(p.kind.name, p.kind.outputs, lr, EPOCHS, BATCH, seed, paired=p.kind.paired, bf16=True)
    trainer = Trainer(arm.body(models, seed), models.root.dim, plan, p.examples["train"])
    history: list[float] = []
    best: dict[str, Tensor] = {}
    what = f"{p.task.name}, {arm.name}, lr {lr:g}, seed {seed}"
    for _ in trainer.epochs(lambda step, total, loss: report(what, step, total)):
        history.append(headline(_evaluate(p, trainer, "dev")))
        if history[-1] > max(history[:-1], default=-1.0):
            best = trainer.state()
        elif len(history) - 1 - history.index(max(history)) >= PATIENCE:
            break
    result = {
        "dev": max(history),
        "dev_by_epoch": history,
        "cpu_s": round(time.process_time() - begun, 1),
        "parameters": sum(v.numel() for v in best.values()),
    }
    return result, trainer, best


def _evaluate(p: Problem, trainer: Trainer, name: str) -> dict[str, Any]:
    return judge(p.kind, p.splits[name], trainer.predict(p.examples[name]))


def _split(rows: list[Row], models: Models, length: int) -> Split:
    return Split(rows, models.root.tokenizer.encode([row.text for row in rows], length))


def _examples(task: QualityTask, kind: TaskKind, split: Split, arm: Arm, models: Models, train: bool) -> Examples:
    features = models.features(arm.reads, task, split.encoded)

    def read(rows: Any) -> list[Tensor]:
        return [x if x.dtype == torch.int64 else x.float() for x in (features[i] for i in rows)]

    targets = task_targets(kind, split) if train else [[]] * len(split.rows)
    return Examples([len(e) for e in split.encoded], [e.types for e in split.encoded], read, targets)
