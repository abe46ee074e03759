"""Prompts: rows that stand after [CLS] before each upper layer, trained for a frozen model (VPT-deep; OTAS).

Backbone, module and head stay as they are, so a set of prompts can be used for one text and left out for the
next. The objective is that of the model's own training. A set is kept only if it raises the headline figure
on held-out rows that did not choose its epoch: few sets do for a model whose module was trained on the same
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hmi.model.tasks import TaskKind
from hmi.training.fit.backbones import Examples, ModuleBackbone
from hmi.training.fit.early_stopping import train_to_best
from hmi.training.fit.plan import TrainPlan
from hmi.training.fit.trainer import Trainer, prompt_trainer
from hmi.training.plans.recipe import HELD_OUT, RECIPE
from hmi.training.tasks.headline import headline
from hmi.training.tasks.objectives import objective_of
from hmi.training.tasks.splits import Split, merged_outputs

LR, EPOCHS, PATIENCE = 5e-3, 8, 2
START_TEXTS = 32
"""Prompts begin as rows of this many training texts, as they enter each layer."""
Report = Callable[[int, int], None]
"""Is called with (steps done, steps in all)."""


@dataclass(frozen=True)
class Labelled:
    """Rows with their right answers, and their examples."""

    split: Split
    examples: Examples


@dataclass(frozen=True)
class PromptSet:
    """A trained set of prompts, with its figures on the held-out rows."""

    count: int
    tensor: Tensor
    """fp16 [layers, count, dim]."""
    score: float
    """The headline figure on all held-out rows."""
    before: float
    """The same without prompts."""
    kept: bool
    epoch: int
    epochs: int
    """The epoch whose weights these are, and the number that ran."""

    @property
    def figures(self) -> dict[str, Any]:
        """For the model's report."""
        names = "count", "score", "before", "kept", "epoch", "epochs"
        return {name: getattr(self, name) for name in names}


def train_prompts(
    reading: Trainer, task: TaskKind, fit: Labelled, held: Labelled, count: int, report: Report
) -> PromptSet:
    """Train a set of `count` prompts for the model of `reading`, of which nothing changes.

    task: with the model's transitions, if it has any (`Trainer.reading`). fit: its examples have targets.
    Raises InvalidData (diverged).
    """
    plan = _plan(reading.plan)
    trainer = prompt_trainer(reading, _start(reading, fit, count), plan, fit.examples)
    choosing, judging = _halves(len(held.split.rows))

    def score(outputs: Sequence[Tensor], which: Sequence[int]) -> dict[str, Any]:
        merged = merged_outputs(task, held.split, outputs)
        golds = [held.split.rows[i].label for i in which]
        return objective_of(task).score(golds, [merged[i] for i in which])

    def judge() -> Mapping[str, Any]:
        return score(trainer.predict(held.examples), choosing)

    history = train_to_best(trainer, judge, lambda step, total, _: report(step, total))
    report(trainer.total, trainer.total)
    published = trainer.publishable(history.kept.artefact).prompts[str(count)]
    every = range(len(held.split.rows))
    plain, prompted = (t.predict(held.examples, exact=True) for t in (reading, trainer))
    (before, after), (judged_before, judged_after) = (
        [headline(score(outputs, which)) for outputs in (plain, prompted)] for which in (every, judging)
    )
    kept = after > before and judged_after > judged_before
    return PromptSet(count, published, after, before, kept, history.kept.epoch, history.epochs)


def _plan(reading: TrainPlan) -> TrainPlan:
    return replace(
        reading,
        lr=LR,
        epochs=EPOCHS,
        patience=PATIENCE,
        dropout=0.0,
        weight_decay=0.0,
        bf16=RECIPE.bf16,
        average=True,
    )


def _halves(rows: int) -> tuple[Sequence[int], Sequence[int]]:
    """The held-out rows that choose an epoch, and those that judge it; all do both if they are few."""
    if rows < 2 * HELD_OUT.enough:
        return range(rows), range(rows)
    return range(0, rows, 2), range(1, rows, 2)


@torch.inference_mode()
def _start(reading: Trainer, fit: Labelled, count: int) -> Tensor:
    """Rows of training texts as they enter each layer, at random: [layers, count, dim]."""
    assert isinstance(reading.backbone, ModuleBackbone)
    found: dict[int, Tensor] = {}
    draw = torch.Generator().manual_seed(reading.plan.seed + count)

    def watch(texts: Sequence[int], layer: int, x: Tensor, types: Tensor, mask: Tensor) -> None:
        inner = x[:, 1:][mask[:, 1:]].float()
        found[layer] = inner[torch.randint(len(inner), (count,), generator=draw)]

    texts = list(range(min(START_TEXTS, len(fit.examples))))
    reading.backbone.watched(watch)(fit.examples, texts, cls_only=True, dropout=0.0)
    return torch.stack([found[layer] for layer in sorted(found)]).clone()
