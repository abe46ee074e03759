"""Decides whether a candidate is better than the version that answers."""

from __future__ import annotations

from hmi.core import ModelVersion
from hmi.jobs.model.comparing import HeldOutAnswers, seen_by, unseen
from hmi.jobs.model.tenant_training import TrainedModel
from hmi.jobs.model.training_data import Data
from hmi.jobs.runtime.context import JobContext
from hmi.sizes import counted
from hmi.training.second.choosing import Rule, Version, VersionComparison, compare, least_rows


def rows_to_decide(ctx: JobContext, base: ModelVersion, data: Data) -> list[int]:
    """The indexes of the held-out rows that decide: those that no version was trained on."""
    return unseen(data.dev, seen_by(ctx, base))


def too_few(which: list[int], data: Data, rule: Rule) -> str | None:
    """Say why there is nothing to decide with; None: there is. Call it before anything is tried.

    which: the rows of `rows_to_decide`.
    """
    least = least_rows(rule)
    if rule == "better":
        return None if len(which) >= least else _says_few(len(which), least)
    rows = len(data.train) + len(which if rule == "by_folds" else data.dev)
    if rows < least:
        return f"{rows} rows are too few to tell a better version: it takes {least}"
    return None if which or rule == "by_folds" else _says_few(0, 1)


def _says_few(held_out: int, least: int) -> str:
    rows = f"{counted(held_out, 'held-out row')} that no version was trained on"
    return f"{rows}: too few to tell a better version, which takes {least}"


def decide(
    data: Data, which: list[int], old: HeldOutAnswers, made: TrainedModel, base: ModelVersion
) -> VersionComparison:
    """Compare a candidate with the `old` answers to all held-out rows, on the rows `which`."""
    golds = [data.dev[i].label for i in which]
    return compare(golds, _merged_on(old, which), _merged_on(made.answers, which), data_seed(base))


def data_seed(base: ModelVersion) -> int:
    """A seed that depends on the version alone, so that a resumed job decides alike."""
    return int(base.artefact[:8], 16)


def _merged_on(answers: HeldOutAnswers, which: list[int]) -> Version:
    return answers.task, [answers.merged[i] for i in which]
