"""A recipe settled for a task and its rows."""

from __future__ import annotations

from dataclasses import dataclass

from hmi.core import Task
from hmi.model.artefact import Artefact
from hmi.model.heads import head_queries
from hmi.model.lexical import lexical_buckets
from hmi.model.tasks import TaskKind
from hmi.training.defaults import choose_epochs, default_lr, default_module
from hmi.training.recipe import RECIPE, Recipe
from hmi.training.transitions import learns_transitions


@dataclass(frozen=True)
class TrainPlan:
    """Everything that a `Trainer` must know."""

    task: Task
    labels: int
    lr: float
    epochs: int
    batch: int
    seed: int
    dropout: float = RECIPE.dropout
    weight_decay: float = RECIPE.weight_decay
    paired: bool = False
    """Whether rows are pairs of texts, for a task that may be either."""
    weights: tuple[float, ...] | None = None
    """Weights of the head's outputs in the loss (`Objective.weights`); None = all equal."""
    bf16: bool = False
    """Products in bf16 where the CPU has them natively."""
    lexical: int = 0
    """Buckets of lexical features that are trained beside the backbone; 0 for none."""
    transitions: bool = False
    """Whether it is learnt which tag follows which (`Transitions`)."""
    queries: int = 0
    """Queries of the head (`Head.with_attended`)."""
    average: bool = False
    """Whether there is an average of the weights (`Trainer.averaged`)."""
    patience: int = RECIPE.patience
    """Epochs without a better dev score after which training ends."""


def plan_training(
    recipe: Recipe, task: TaskKind, rows: int, *, weights: tuple[float, ...] | None = None
) -> TrainPlan:
    """The plan for this many rows. weights: the classes' weights in the loss.

    Raises InvalidInput where the recipe asks for transitions that cannot be trained.
    """
    module = recipe.module or default_module(paired=task.paired)
    return TrainPlan(
        task.name,
        task.outputs,
        lr=recipe.lr or default_lr(task, module, rows),
        epochs=recipe.epochs or choose_epochs(rows, recipe.batch),
        batch=recipe.batch,
        seed=recipe.seed,
        dropout=recipe.dropout,
        weight_decay=recipe.weight_decay,
        paired=task.paired,
        weights=weights,
        bf16=recipe.bf16,
        lexical=lexical_buckets(task.name, recipe.lexical),
        transitions=learns_transitions(task.name, task.outputs, weights, recipe.transitions),
        queries=head_queries(task.reads, task.outputs) if recipe.queries else 0,
        average=recipe.average,
        patience=recipe.patience,
    )


def plan_reading(task: TaskKind, artefact: Artefact) -> TrainPlan:
    """A plan by which a trainer takes a published artefact, to predict with it and not to train."""
    table = artefact.lexical.get("table")
    return TrainPlan(
        task.name,
        task.outputs,
        lr=1e-3,
        epochs=1,
        batch=RECIPE.batch,
        seed=0,
        paired=task.paired,
        lexical=0 if table is None else len(table),
        transitions=bool(artefact.transitions),
        queries=head_queries(task.reads, task.outputs),
    )
