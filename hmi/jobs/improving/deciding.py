"""Decides whether a candidate is better than the version that answers."""

from __future__ import annotations

from hmi.core import ModelVersion
from hmi.jobs.comparing import HeldOutAnswers, answers_of, seen_by, unseen
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.tenant_training import Made
from hmi.jobs.training_data import Data
from hmi.model.root import Root
from hmi.training.choosing import ENOUGH, Comparison, Version, compare
from hmi.training.recipe import HELD_OUT


def rows_to_decide(ctx: JobContext, base: ModelVersion, data: Data) -> list[int]:
    """The indexes of the held-out rows that decide: those that no version was trained on."""
    return unseen(data.dev, seen_by(ctx, base))


def too_few(which: list[int], data: Data, *, afresh: bool) -> str | None:
    """Say why there is nothing to decide with; None: there is. Call it before anything is tried.

    which: the rows of `rows_to_decide`. afresh: as in `by_folds`.
    """
    rows = len(data.train) + len(data.dev)
    if by_folds(which, afresh=afresh):
        return None if rows >= HELD_OUT.enough else f"{rows} rows are too few to tell a better version"
    if len(which) >= HELD_OUT.enough:
        return None
    return (
        f"{len(which)} held-out rows that no version was trained on are too few to tell a better version: it "
        f"takes {HELD_OUT.enough}"
    )


def by_folds(which: list[int], *, afresh: bool) -> bool:
    """Return whether all rows decide, by cross-validation, since few are held out.

    afresh: whether the version knows no rows but the job's. Else the version that both ways start from would
    know the folds' rows.
    """
    return afresh and len(which) < ENOUGH


def decide(
    ctx: JobContext, root: Root, base: ModelVersion, data: Data, which: list[int], made: Made
) -> Comparison:
    """Compare a candidate with the version that answers on the rows `which`. Raises Damaged."""
    old = answers_of(ctx, root, base, data.dev)
    golds = [data.dev[i].label for i in which]
    return compare(golds, _on(old, which), _on(made.answers, which), data_seed(base))


def data_seed(base: ModelVersion) -> int:
    """A seed that depends on the version alone, so that a resumed job decides alike."""
    return int(base.artefact[:8], 16)


def _on(answers: HeldOutAnswers, which: list[int]) -> Version:
    return answers.task, [answers.merged[i] for i in which]
