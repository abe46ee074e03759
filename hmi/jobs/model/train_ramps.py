"""Gives an existing model ramps: publishes its version again, with the same weights and new ramps.

This is a part of the job kind `fine_tune`, in its mode "ramps", so that a model has one such job at a time.
The inputs are data, unlabelled, or both; answers in them are ignored, since ramps learn the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmi.core import ModelVersion
from hmi.errors import InvalidData
from hmi.jobs.model.comparing import seen_by
from hmi.jobs.model.republish import base_version, publish_again
from hmi.jobs.model.results import published_result
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.runtime.folders import PinnedPlots
from hmi.jobs.specs import FineTuneSpec
from hmi.model.sources.root import load_root
from hmi.model.tasks import TaskKind, task_of_version
from hmi.model.tenant.artefact import Artefact
from hmi.training.data.rows import Row, read_unlabelled_file
from hmi.training.fit.features import dev_examples
from hmi.training.fit.trainer import reading_trainer
from hmi.training.for_stages.ramps import Ramps, RampTexts, train_ramps
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.tasks.row_keys import RowKeys, are_seen, key_of
from hmi.training.tasks.splits import encoded_split

MIN_TEXTS = 20
"""With fewer texts no ramps are trained."""


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job. Raises InvalidData (unusable texts), Conflict (the version is gone), Damaged."""
    spec = FineTuneSpec.of(ctx.job)
    version = base_version(ctx, spec)
    task = task_of_version(version)
    parts = hold_out_texts(_rows(ctx.input, task, spec.options), seen_by(ctx, version))
    ctx.pin(PinnedPlots(plot=version.plot_version))
    stored = ctx.adapters.get(version.artefact)
    ramps = _trained(ctx, version, task, Artefact.split(stored), parts)
    # All other tensors stay as they are stored, so that answers stay the same to the bit.
    kept = {name: value for name, value in stored.items() if not name.startswith("ramps.")}
    tensors = {**kept, **Artefact(ramps=ramps.tensors).joined()}
    record = publish_again(
        ctx,
        spec,
        version,
        tensors,
        "ramps",
        ramps=ramps.sites,
        metrics={**version.metrics, "ramps": {**ramps.metrics, "unseen": parts.unseen}},
    )
    return {**published_result(record, ctx.job.job), "only_ramps": True}


@dataclass(frozen=True)
class Divided:
    """The texts that ramps are fitted to, and those that they are judged on."""

    fit: list[Row]
    held: list[Row]
    unseen: bool
    """Return True if the model was trained on none of the texts in `held`."""


def hold_out_texts(rows: list[Row], seen: RowKeys) -> Divided:
    """Hold out a share of the texts, those with the smallest keys, if possible of texts that the model was
    not trained on. A text that occurs twice counts once. Raises InvalidData if there are too few."""
    rows = list({key_of(row): row for row in rows}.values())
    if len(rows) < MIN_TEXTS:
        raise InvalidData(
            f"there are {len(rows)} different texts: give at least {MIN_TEXTS}, in data or unlabelled",
            field="unlabelled",
        )
    known, wanted = are_seen(rows, seen), HELD_OUT.wanted(len(rows))
    fresh = [row for row, was in zip(rows, known, strict=True) if not was]
    unseen = len(fresh) >= wanted
    held = sorted(fresh if unseen else rows, key=key_of)[:wanted]
    away = {key_of(row) for row in held}
    return Divided([row for row in rows if key_of(row) not in away], held, unseen)


def _rows(folder: Path, task: TaskKind, options: FineTuneOptions) -> list[Row]:
    skip, reading = options.skip_bad_rows, options.reading()
    files = (name for name in ("data", "unlabelled") if (folder / name).exists())
    return [
        row
        for name in files
        for row in read_unlabelled_file(
            folder / name,
            task.name,
            paired=task.paired,
            field=name,
            skip=skip,
            reading=reading,
            patterns=task.rules.words,
        ).rows
    ]


def _trained(
    ctx: JobContext, version: ModelVersion, task: TaskKind, artefact: Artefact, parts: Divided
) -> Ramps:
    root = load_root(ctx.roots.folder(version.root, version.root_version))
    assert version.module is not None, "the manager refuses embeddings"
    fit, held = (
        encoded_split(rows, root.tokenizer, version.max_length, windows=version.rules.windows)
        for rows in (parts.fit, parts.held)
    )
    with ctx.plots.reader(version.plot_version) as reader:
        trainer = reading_trainer(root, version.module, task, artefact)
        buckets = trainer.plan.lexical
        texts = [RampTexts(split, dev_examples(root, reader, split, buckets)) for split in (fit, held)]
        return train_ramps(
            trainer,
            trainer.reading(task),
            texts[0],
            texts[1],
            lambda done, total: ctx.progress(done, total, phase="training ramps"),
        )
