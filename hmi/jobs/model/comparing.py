"""Compares an update with the live version, the one that answers, on the same held-out rows.

An update that is worse is held back. It counts as worse if its headline score is below the live one
by more than the tolerance: one standard error on that number of rows, or one row's worth if that is
more. Held-out sets are small, so without a tolerance chance would decide. The live version may have
been trained on some of the rows, which would flatter it; these are left out if enough others remain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hmi.core import ModelVersion, ModuleSpec
from hmi.errors import Damaged, NotFound
from hmi.jobs.options import Publish
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import FineTuneSpec
from hmi.model.sources.root import Root, load_root
from hmi.model.tasks import TaskKind, task_of_version
from hmi.model.tenant.artefact import Artefact
from hmi.sizes import counted
from hmi.training.data.rows import Row
from hmi.training.fit.features import dev_examples
from hmi.training.fit.trainer import reading_trainer
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.tasks.headline import LOWER_IS_BETTER, headline, headline_name
from hmi.training.tasks.objectives import objective_of
from hmi.training.tasks.row_keys import RowKeys, are_seen, keys_from_text
from hmi.training.tasks.splits import encoded_split, merged_outputs
from plot_store import PlotStoreError

NEAR_CHANCE = 2
"""A score counts as near chance if it is at most this many standard errors above."""


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison. `held_back`: why the new version is not to answer; None if it is.
    `scores` and `remark` go into its report."""

    held_back: str | None = None
    scores: dict[str, Any] | None = None
    remark: str | None = None


@dataclass(frozen=True)
class Comparison:
    """A new version beside the live one, on some rows."""

    rows: int
    """The number of rows that counted."""
    scores: dict[str, Any]
    """For the report: metric, live_score, score, tolerance, and what else the task has."""
    worse: str | None
    """By how much the new version is worse, in words; None if it is not."""


Compare = Callable[[Sequence[int]], Comparison]
"""Compares on the rows with these indexes."""


@dataclass(frozen=True)
class HeldOutAnswers:
    """A task's outputs on the held-out rows: `merged[i]` belongs to `rows[i]`. Of a language model they are
    each row's loss and its number of tokens."""

    task: TaskKind
    merged: Sequence[Tensor]

    def score(self, rows: Sequence[Row], which: Sequence[int]) -> tuple[str | None, float]:
        """The name of the headline metric, and its value on the rows whose indexes are in `which`."""
        metrics = objective_of(self.task).score(
            [rows[i].label for i in which], [self.merged[i] for i in which]
        )
        return headline_name(metrics), headline(metrics)


def judge_update(
    ctx: JobContext,
    dev: list[Row],
    new: HeldOutAnswers,
    publish: Publish,
    against: Callable[[ModelVersion], Compare],
) -> Verdict:
    """Compare `new` with the live version on the rows `dev`.

    against: runs the live version on these rows. If that cannot be read, the update replaces it, unless
    `publish` is "never".
    """
    try:
        live = ctx.registry.model(FineTuneSpec.of(ctx.job).model_id).live
        if live.module is None or not dev:
            return _verdict_of(publish, None, None)  # an embedding: nothing is learnt, nothing to compare
        if task_of_version(live).forms != new.task.forms:
            is_, was = new.task.forms[1], task_of_version(live).forms[1]
            return _verdict_of(publish, f"an input is {is_} now and {was} in version {live.version}", None)
        compare = against(live)
    except (NotFound, Damaged, PlotStoreError):
        held_back = "publish=never was asked for" if publish == "never" else None
        return Verdict(
            held_back, remark="the live version cannot be read: the new one was not compared with it"
        )
    fresh = unseen(dev, seen_by(ctx, live))
    seen, which = len(dev) - len(fresh), fresh if len(fresh) >= HELD_OUT.enough else list(range(len(dev)))
    found = compare(which)
    seen = 0 if which == fresh else seen
    scores = {"version": live.version, "rows": found.rows, "seen_rows": seen, **found.scores}
    if found.worse is None:
        return _verdict_of(publish, None, scores)
    rows = counted(found.rows, "held-out row")
    flattered = f"; version {live.version} was trained on {seen} of them" if seen else ""
    said = "scores" if found.scores["metric"] not in LOWER_IS_BETTER else f"has a {found.scores['metric']} of"
    return _verdict_of(
        publish,
        f"it {said} {scores['score']:.3f} on {rows}, version {live.version} {scores['live_score']:.3f}: "
        f"{found.worse}{flattered}",
        scores,
    )


def by_answers(
    ctx: JobContext, root: Root, dev: list[Row], new: HeldOutAnswers
) -> Callable[[ModelVersion], Compare]:
    """How `judge_update` compares models that have heads: by the headline score of their answers."""

    def against(live: ModelVersion) -> Compare:
        old = answers_of(ctx, root, live, dev)
        return lambda which: _compare_answers(old, new, dev, which)

    return against


def _compare_answers(
    old: HeldOutAnswers, new: HeldOutAnswers, dev: Sequence[Row], which: Sequence[int]
) -> Comparison:
    (_, before), (metric, after) = old.score(dev, which), new.score(dev, which)
    signed = new.task.name == "regression"
    slack = tolerance(before, len(which), signed=signed)
    chance = objective_of(new.task).chance([dev[i].label for i in which])
    scores = {
        "metric": metric,
        "live_score": before,
        "score": after,
        "tolerance": round(slack, 4),
        "chance": round(chance, 4),
        "near_chance": max(before, after)
        <= chance + NEAR_CHANCE * tolerance(chance, len(which), signed=signed),
    }
    worse = None if after >= before - slack - 1e-9 else f"worse by more than {slack:.3f}"
    return Comparison(len(which), scores, worse)


def tolerance(score: float, rows: int, *, signed: bool) -> float:
    """One standard error of a score on this many rows, at least one row's worth.

    A score, F1 included, is treated as a share of right answers. Half a right and half a wrong
    answer are added, so that 1.0 on 20 rows still has an error. signed: the score is a correlation.
    """
    if signed:
        return max(1 / rows, (1 - min(abs(score), 1.0) ** 2) / math.sqrt(max(1, rows - 1)))
    share = (score * rows + 0.5) / (rows + 1)
    return max(1 / rows, math.sqrt(share * (1 - share) / rows))


def seen_by(ctx: JobContext, version: ModelVersion) -> RowKeys:
    """Keys of the rows that a version was trained on; empty if its artefact does not record them,
    or is damaged."""
    try:
        return keys_from_text(ctx.adapters.about(version.artefact).get("rows", ""))
    except (Damaged, ValueError):  # `about` does not check the file's hash
        return keys_from_text("")


def unseen(rows: Sequence[Row], keys: RowKeys) -> list[int]:
    """The indexes of the rows that are not among `keys`."""
    return [i for i, seen in enumerate(are_seen(rows, keys)) if not seen]


def _verdict_of(publish: Publish, worse: str | None, scores: dict[str, Any] | None) -> Verdict:
    if publish == "always":
        return Verdict(None, scores)
    return Verdict("publish=never was asked for" if publish == "never" and worse is None else worse, scores)


def answers_of(ctx: JobContext, root: Root, live: ModelVersion, dev: list[Row]) -> HeldOutAnswers:
    """Run the live version on these rows, with its own weights, PLOT version, length and rules."""
    if (root.info.name, root.info.version) != (live.root, live.root_version):
        root = load_root(ctx.roots.folder(live.root, live.root_version))
    assert live.module is not None
    artefact = Artefact.split(ctx.adapters.get(live.artefact))
    task = task_of_version(live)
    return answers_of_artefact(
        ctx, root, live.plot_version, live.module, task, artefact, live.max_length, dev
    )


def answers_of_artefact(
    ctx: JobContext,
    root: Root,
    plot: str,
    module: ModuleSpec,
    task: TaskKind,
    artefact: Artefact,
    max_length: int,
    rows: list[Row],
) -> HeldOutAnswers:
    """Run a module with its head on these rows. plot: the PLOT version."""
    split = encoded_split(rows, root.tokenizer, max_length, windows=task.rules.windows)
    trainer = reading_trainer(root, module, task, artefact)
    with ctx.plots.reader(plot) as reader:
        examples = dev_examples(root, reader, split, trainer.plan.lexical)
        outputs = trainer.predict(examples, exact=True)
    read = trainer.reading(task)
    return HeldOutAnswers(read, merged_outputs(read, split, outputs))
