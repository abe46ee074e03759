"""The one loop that trains until epochs stop to score better, and keeps the best epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hmi.model.artefact import Artefact
from hmi.training.reports import StepReport
from hmi.training.scoring import headline
from hmi.training.trainer import Trainer


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
    """How far a training has come: its epochs so far, the best of them, and the scores of those
    that this run saw."""

    epochs: int = 0
    best: Best | None = None
    scores: tuple[float, ...] = ()

    @property
    def kept(self) -> Best:
        """The best epoch of a training that has ended."""
        assert self.best is not None
        return self.best

    def over(self, patience: int) -> bool:
        """Whether this many epochs were worse than the best one."""
        return self.best is not None and self.epochs - self.best.epoch >= patience


def train_to_best(
    trainer: Trainer,
    judge: Callable[[], Mapping[str, Any]],
    report: StepReport,
    *,
    choosy: bool = True,
    start: History | None = None,
    after_epoch: Callable[[History], None] = lambda history: None,
) -> History:
    """Train until the plan's `patience` epochs were worse than the best one; among equal epochs the
    last is the best.

    judge: the held-out metrics of the trainer as it stands. Not `choosy`: train all epochs and keep
    the last, for cases in which the score is chance. start: where an interrupted run had come, in
    which case the trainer holds its tensors. `after_epoch` is called with the trainer as it goes
    on, for a checkpoint. Raises InvalidData (diverged).
    """
    history, patience = start or History(), trainer.plan.patience
    if history.over(patience):
        return history
    for epoch in trainer.epochs(report, history.epochs):
        with trainer.averaged():
            metrics = judge()
            best = history.best
            if best is None or not choosy or headline(metrics) >= best.score:
                best = Best(epoch, trainer.state(), metrics)
        history = History(epoch, best, (*history.scores, headline(metrics)))
        after_epoch(history)
        if history.over(patience):
            break
    return history
