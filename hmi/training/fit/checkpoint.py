"""The checkpoint of a training after an epoch: one file. A run resumed from it ends as an
uninterrupted one would."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hmi.model.files import read_checkpoint, write_checkpoint
from hmi.model.tenant.artefact import Artefact, tensors_below
from hmi.training.fit.early_stopping import Best, History
from hmi.training.fit.learner import Learner

CHECKPOINT = "checkpoint.safetensors"


def write_training(path: Path, trainer: Learner, history: History, remark: str | None) -> None:
    """Store the trainer's state and its best epoch. remark: a remark for the user on what
    training started from."""
    best = history.kept
    tensors = {**trainer.state().joined(), **trainer.optimiser_state()}
    tensors |= {f"best.{name}": value for name, value in best.artefact.joined().items()}
    about = {"epoch": history.epochs, "best": {**best.metrics, "epoch": best.epoch}, "afresh": remark}
    write_checkpoint(path, tensors, about)


@dataclass(frozen=True)
class Resumed:
    """The progress of an interrupted run, and the remark stored with it."""

    history: History
    remark: str | None = None


def resume_training(path: Path, trainer: Learner) -> Resumed | None:
    """Load a checkpoint into the trainer. Returns None if there is none, or if an earlier release
    wrote it with fewer tensors."""
    found = read_checkpoint(path)
    if found is None:
        return None
    tensors, about = found
    if not trainer.state().joined().keys() | trainer.optimiser_state().keys() <= tensors.keys():
        return None
    trainer.load(Artefact.split(tensors))
    trainer.load_optimiser(tensors)
    metrics = dict(about["best"])
    best = Best(metrics.pop("epoch"), Artefact.split(tensors_below(tensors, "best")), metrics)
    return Resumed(History(about["epoch"], best), about.get("afresh"))
