"""The plan of a training: a recipe, with its open choices made for a task and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmi.core import Task
from hmi.model.tasks import TaskKind
from hmi.model.tenant.alignment import MAX_OUTPUTS
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.heads import head_queries
from hmi.model.text.lexical import has_alignment, lexical_buckets
from hmi.training.plans.defaults import (
    BATCH,
    WRITING_LR,
    choose_epochs,
    choose_writing_batch,
    default_lr,
    default_module,
)
from hmi.training.plans.recipe import RECIPE, Recipe
from hmi.training.tasks.transitions import learns_transitions


@dataclass(frozen=True)
class TrainPlan:
    """The settings of a `Trainer`."""

    task: Task
    labels: int
    lr: float
    epochs: int
    batch: int
    seed: int
    dropout: float = RECIPE.dropout
    weight_decay: float = RECIPE.weight_decay
    paired: bool = False
    """Whether rows are pairs of texts. Regression may have either."""
    weights: tuple[float, ...] | None = None
    """Weights of the head's outputs in the loss (`TaskObjective.weights`); None: all equal."""
    bf16: bool = False
    """Compute matrix products in bf16 if the CPU does so natively."""
    lexical: int = 0
    """Buckets of the lexical features that are trained beside the backbone; 0 for none."""
    aligned: bool = False
    """If true, the lexical features include the alignment of pairs."""
    transitions: bool = False
    """Whether to learn which tag follows which (`Transitions`)."""
    queries: int = 0
    """Number of the head's queries (`Head.with_attended`)."""
    average: bool = False
    """Whether to average the weights (`Trainer.averaged`)."""
    patience: int = RECIPE.patience
    """Training ends after this many epochs without a better score on dev."""


def plan_training(
    recipe: Recipe, task: TaskKind, rows: int, *, weights: tuple[float, ...] | None = None
) -> TrainPlan:
    """The plan for this many rows. weights: the weights of the classes in the loss.

    Raises InvalidInput if the recipe asks for transitions that cannot be trained.
    """
    module = recipe.module or default_module(paired=task.paired)
    batch = recipe.batch or BATCH
    lexical = lexical_buckets(task.name, recipe.lexical)
    aligned = bool(lexical) and task.paired and task.outputs <= MAX_OUTPUTS
    return TrainPlan(
        task.name,
        task.outputs,
        lr=recipe.lr or default_lr(task, module, rows, aligned=aligned),
        epochs=recipe.epochs or choose_epochs(rows, batch),
        batch=batch,
        seed=recipe.seed,
        dropout=recipe.dropout,
        weight_decay=recipe.weight_decay,
        paired=task.paired,
        weights=weights,
        bf16=recipe.bf16,
        lexical=lexical,
        aligned=aligned,
        transitions=learns_transitions(task.name, task.outputs, weights, recipe.transitions),
        queries=head_queries(task.reads, task.outputs) if recipe.queries else 0,
        average=recipe.average,
        patience=recipe.patience,
    )


def plan_writing(recipe: Recipe, completions: Sequence[int]) -> TrainPlan:
    """The plan of a language model's training. completions: the tokens of each row's completion."""
    rows = len(completions)
    batch = recipe.batch or choose_writing_batch(sum(completions) / max(1, rows))
    return TrainPlan(
        "generation",
        0,
        lr=recipe.lr or WRITING_LR,
        epochs=recipe.epochs or choose_epochs(rows, batch, writing=True),
        batch=batch,
        seed=recipe.seed,
        dropout=recipe.dropout,
        weight_decay=recipe.weight_decay,
        bf16=recipe.bf16,
        average=recipe.average,
        patience=recipe.patience,
    )


def plan_reading(task: TaskKind, artefact: Artefact) -> TrainPlan:
    """The plan of a trainer that only predicts, with a published artefact."""
    table = artefact.lexical.get("table")
    return TrainPlan(
        task.name,
        task.outputs,
        lr=1e-3,
        epochs=1,
        batch=BATCH,
        seed=0,
        paired=task.paired,
        lexical=0 if table is None else len(table),
        aligned=has_alignment(artefact.lexical),
        transitions=bool(artefact.transitions),
        queries=head_queries(task.reads, task.outputs),
    )
