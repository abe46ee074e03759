"""Profiles a model's token adaptation: publishes its version again with prompts that help, and the profile.

This is a part of the job kind `fine_tune`, in its mode "tokens", so that a model has one such job at a time.
Prompts are trained on rows with the rest of the model as it is. The profile has a point for each γ: the score
on labelled rows that are held out, and the agreement with γ = 0 on these and on unlabelled texts. The model
answers as the server would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hmi.core import ModelVersion, TokenPoint
from hmi.engine.admit.bundles import Bundles
from hmi.jobs.model.comparing import seen_by
from hmi.jobs.model.republish import base_version, publish_again
from hmi.jobs.model.results import published_result
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.runtime.folders import PinnedPlots
from hmi.jobs.specs import FineTuneSpec
from hmi.jobs.stage.answering import Answering
from hmi.jobs.stage.token_rows import ProfileRows, read_parts
from hmi.model.sources.root import Root, load_root
from hmi.model.tasks import TaskKind, task_of_version
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.prompts import copied_prompts
from hmi.stages.early_exit.answers import agreeing, short_forms
from hmi.stages.token_adaptation.settings import MERGES, PROMPTS
from hmi.training.fit.features import dev_examples, examples_of
from hmi.training.fit.trainer import reading_trainer
from hmi.training.for_stages.prompts import Labelled, PromptSet, train_prompts
from hmi.training.tasks.headline import headline, headline_name
from hmi.training.tasks.objectives import objective_of
from hmi.training.tasks.splits import Split, encoded_split, merged_outputs, task_targets


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job. Raises InvalidData (unusable rows), Conflict (the version is gone), Damaged."""
    spec = FineTuneSpec.of(ctx.job)
    version = base_version(ctx, spec)
    task = task_of_version(version)
    parts = read_parts(ctx.input, task, spec.options, seen_by(ctx, version))
    ctx.pin(PinnedPlots(plot=version.plot_version))
    stored = ctx.adapters.get(version.artefact)
    root = load_root(ctx.layout.root(version.root, version.root_version))
    artefact = Artefact.split(stored)
    if spec.prompts:
        sets = _trained(ctx, version, task, root, artefact, parts)
        kept = {str(made.count): made.tensor for made in sets if made.kept}
        trained = [made.figures for made in sets]
    else:  # those that the version has stay
        kept, trained = dict(artefact.prompts), version.metrics.get("tokens", {}).get("prompts", [])
    points, figures = _profile(ctx, spec, version, root, kept, parts)
    # All other tensors stay as they are stored, so that answers stay the same to the bit.
    tensors = {name: value for name, value in stored.items() if not name.startswith("prompts.")}
    told = {**figures, "unseen": parts.unseen, "prompts": trained}
    record = publish_again(
        ctx,
        spec,
        version,
        {**tensors, **Artefact(prompts=kept).joined()},
        "token adaptation",
        tokens=points,
        metrics={**version.metrics, "tokens": told},
    )
    return {**published_result(record, ctx.job.job), "only_tokens": True}


def _trained(
    ctx: JobContext, version: ModelVersion, task: TaskKind, root: Root, artefact: Artefact, parts: ProfileRows
) -> list[PromptSet]:
    """A set of prompts for each count; none if no rows are left to train on."""
    if not parts.fit:
        return []
    assert version.module is not None, "the manager refuses embeddings"
    fit, held = (_encoded(version, root, rows) for rows in (parts.fit, parts.judging))
    with ctx.plots.reader(version.plot_version) as reader:
        trainer = reading_trainer(root, version.module, task, artefact)
        buckets, task = trainer.plan.lexical, trainer.reading(task)
        mine = Labelled(fit, examples_of(root, reader, fit, task_targets(task, fit), buckets))
        judged = Labelled(held, dev_examples(root, reader, held, buckets))

        def told(count: int) -> Callable[[int, int], None]:
            return lambda done, total: ctx.progress(done, total, phase=f"training {count} prompts")

        return [train_prompts(trainer, task, mine, judged, count, told(count)) for count in PROMPTS]


def _profile(
    ctx: JobContext,
    spec: FineTuneSpec,
    version: ModelVersion,
    root: Root,
    prompts: dict[str, Tensor],
    parts: ProfileRows,
) -> tuple[tuple[TokenPoint, ...], dict[str, Any]]:
    """The points of every γ, ascending, and figures for the report."""
    torch.set_num_threads(1)
    split, gammas = _encoded(version, root, parts.judged), [0, *MERGES, *map(int, prompts)]
    steps = len(gammas) * len(split.rows)
    s = ctx.settings
    bundles = Bundles(s.data, ctx.registry, ctx.plots, ctx.adapters, ctx.lowers, s.precision)
    try:
        part = bundles.load_task_part(version.artefact)
        part = replace(part, prompts=copied_prompts(prompts))
        answering = Answering(bundles, spec.model_id, version, part)
        task = answering.bundle.task.with_transitions(part.transitions)
        answered = list[_Judged]()

        def told(rows: int) -> None:
            ctx.progress(len(answered) * len(split.rows) + rows, steps, phase="profiling")

        for gamma in gammas:
            found = answering.answer(split, gamma, told)
            answered.append(_Judged(gamma, merged_outputs(task, split, found.outputs), found.saved))
    finally:
        bundles.close()
    return _token_points(task, split, parts, answered)


@dataclass(frozen=True)
class _Judged:
    """The outputs of one γ for all rows that are judged."""

    gamma: int
    merged: Sequence[Tensor]
    saved: float


def _token_points(
    task: TaskKind, split: Split, parts: ProfileRows, answered: Sequence[_Judged]
) -> tuple[tuple[TokenPoint, ...], dict[str, Any]]:
    golds = [row.label for row in parts.held]
    plain = short_forms(task, answered[0].merged)
    points, saved, metrics = [], {}, dict[str, Any]()
    for each in sorted(answered, key=lambda each: each.gamma):
        scores = objective_of(task).score(golds, each.merged[: len(golds)])
        same = agreeing(task, short_forms(task, each.merged), plain)
        points.append(
            TokenPoint(
                gamma=each.gamma, score=headline(scores), agreement=sum(same) / len(same), rows=len(same)
            )
        )
        saved[str(each.gamma)] = round(each.saved, 4)
        metrics = scores
    name = headline_name(metrics)
    return tuple(points), {"metric": name, "labelled": len(golds), "rows": len(split.rows), "saved": saved}


def _encoded(version: ModelVersion, root: Root, rows: list[Any]) -> Split:
    return encoded_split(rows, root.tokenizer, version.max_length, windows=version.rules.windows)
