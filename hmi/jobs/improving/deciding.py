"""Decides whether a candidate is better than the version that answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hmi.core import ModelVersion
from hmi.jobs.comparing import HeldOutAnswers, answers_of, seen_by, unseen
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.tenant_training import Made
from hmi.jobs.training_data import Data
from hmi.model.root import Root
from hmi.training.choosing import Comparison, Version, compare
from hmi.training.recipe import HELD_OUT


@dataclass(frozen=True)
class Candidate:
    """What may become the next version."""

    made: Made
    train: Callable[[Data, Path], Made]
    """Trains such a model on other training and held-out rows, as cross-validation would. The folder is for
    its checkpoints."""


def rows_to_decide(ctx: JobContext, base: ModelVersion, data: Data) -> list[int]:
    """The indexes of the held-out rows that decide: those that no version was trained on."""
    return unseen(data.dev, seen_by(ctx, base))


def too_few(which: list[int]) -> str | None:
    """Say why these rows cannot decide; None: they can. Call it before anything is tried."""
    if len(which) >= HELD_OUT.enough:
        return None
    return (
        f"{len(which)} held-out rows that no version was trained on are too few to tell a better version: it "
        f"takes {HELD_OUT.enough}"
    )


def decide(
    ctx: JobContext, root: Root, base: ModelVersion, data: Data, which: list[int], candidate: Candidate
) -> Comparison:
    """Compare a candidate with the version that answers on the rows `which`. Raises Damaged."""
    old = answers_of(ctx, root, base, data.dev)
    golds = [data.dev[i].label for i in which]
    seed = data_seed(base)
    return compare(golds, _on(old, which), _on(candidate.made.answers, which), seed)


def data_seed(base: ModelVersion) -> int:
    """A seed that depends on the version alone, so that a resumed job decides alike."""
    return int(base.artefact[:8], 16)


def _on(answers: HeldOutAnswers, which: list[int]) -> Version:
    return answers.task, [answers.merged[i] for i in which]
