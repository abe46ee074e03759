"""The loop that trains until epochs no longer score better, and keeps the best epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hmi.model.tenant.artefact import Artefact
from hmi.training.fit.learner import Learner
from hmi.training.fit.reports import StepReport
from hmi.training.tasks.scoring import headline


class StopTraining(Exception):
    """A report raises this to end a training: its best epoch so far is kept, if one has ended."""


@dataclass(frozen=True)
class Best:
    """An epoch, counted from 1: its tensors and its held-out metrics."""

    epoch: int
    artefact: Artefact
    metrics: Mapping[str, Any]

    @property
    def score(self) -> float:
        return headline(self.metrics)


@dataclass(frozen=True)
class History:
    """The progress of a training: its number of epochs, the best of them, and the scores of this
    run's epochs (a resumed run lacks the earlier ones)."""

    epochs: int = 0
    best: Best | None = None
    scores: tuple[float, ...] = ()

    @property
    def kept(self) -> Best:
        """The best epoch. At least one epoch must have ended."""
        assert self.best is not None
        return self.best

    def over(self, patience: int) -> bool:
        """Return whether `patience` epochs have passed since the best one."""
        return self.best is not None and self.epochs - self.best.epoch >= patience


def train_to_best(
    trainer: Learner,
    judge: Callable[[], Mapping[str, Any]],
    report: StepReport,
    *,
    keep_best: bool = True,
    every: int = 1,
    start: History | None = None,
    after_epoch: Callable[[History], None] = lambda history: None,
) -> History:
    """Train until `plan.patience` epochs have passed since the best one. Among equal epochs the
    last is the best.

    judge: computes the held-out metrics of the trainer's current weights. keep_best=False: train
    all epochs and keep the last, for held-out sets on which the best score would be chance. every: the last
    epoch and every `every`-th one are judged. start: the history of an interrupted run, whose tensors the
    trainer already has. after_epoch: called after each epoch, to write a checkpoint. Raises InvalidData
    (diverged), StopTraining (before the first judged epoch has ended).
    """
    history, patience = start or History(), trainer.plan.patience
    if history.over(patience):
        return history
    try:
        for epoch in trainer.epochs(report, history.epochs):
            if epoch % every and epoch < trainer.plan.epochs:
                continue
            with trainer.averaged():
                metrics = judge()
                best = history.best
                if best is None or not keep_best or headline(metrics) >= best.score:
                    best, history = None, replace(history, best=None)  # frees the last one's tensors
                    best = Best(epoch, trainer.state(), metrics)
            history = History(epoch, best, (*history.scores, headline(metrics)))
            after_epoch(history)
            if history.over(patience):
                break
    except StopTraining:
        if history.best is None:
            raise
    return history
