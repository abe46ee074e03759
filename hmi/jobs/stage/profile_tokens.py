"""Profiles a model's token adaptation: publishes its version again with prompts that help, and the profile.

This is a part of the job kind `fine_tune`, in its mode "tokens", so that a model has one such job at a time.
Prompts are trained on rows with the rest of the model as it is. The profile has a point for each γ: the score
on labelled rows that are held out, and the agreement with γ = 0 on these and on unlabelled texts. The model
answers as the server would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from hmi.core import ModelId, ModelVersion, TokenPoint
from hmi.engine.admit.bundles import Bundle, Bundles, TaskPart
from hmi.engine.run.running import Held, Runner
from hmi.engine.texts.item import Item, Piece
from hmi.engine.texts.request import TextRequest
from hmi.engine.texts.sink import UnreadSink
from hmi.errors import InvalidData
from hmi.execution import BatchKey, Hook, Left, Rows
from hmi.execution.base import Output
from hmi.jobs.model.comparing import seen_by
from hmi.jobs.model.republish import base_version, publish_again
from hmi.jobs.model.results import published_result
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.runtime.folders import PinnedPlots
from hmi.jobs.specs import FineTuneSpec
from hmi.model.sources.root import Root, load_root
from hmi.model.tasks import TaskKind, task_of_version
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.prompts import copied_prompts
from hmi.stages.base import OFF, Effect, Setting, Shape, StageBatch
from hmi.stages.early_exit.answers import agreeing, short_forms
from hmi.stages.planner import Candidate, Plan
from hmi.stages.token_adaptation.forced import forced_hooks
from hmi.stages.token_adaptation.settings import MERGES, PROMPTS
from hmi.training.data.rows import Row, read_labelled_file, read_unlabelled_file
from hmi.training.fit.features import dev_examples, examples_of
from hmi.training.fit.trainer import reading_trainer
from hmi.training.for_stages.prompts import Labelled, PromptSet, train_prompts
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.tasks.headline import headline, headline_name
from hmi.training.tasks.objectives import objective_of
from hmi.training.tasks.row_keys import RowKeys, are_seen, key_of
from hmi.training.tasks.splits import Split, encoded_split, merged_outputs, task_targets

_MIN_ROWS = 20
"""With fewer labelled rows nothing is profiled."""
_MOST_FIT = 1_000
"""Prompts are trained on at most this many rows."""
_MOST_JUDGING = 600
"""At most this many rows judge each epoch of their training."""
_MOST_LABELLED, _MOST_UNLABELLED = 2_000, 2_000
"""The most labelled and unlabelled texts that are answered under each γ. Of more, those with the smallest
keys are used."""


@dataclass(frozen=True)
class _ProfileRows:
    """The rows of a profile, by use. No text is both in `fit` and in the others."""

    fit: list[Row]
    """The rows that prompts are trained on."""
    held: list[Row]
    """Labelled rows that the profile is made of."""
    unlabelled: list[Row]
    """Further texts, for the agreement."""
    unseen: bool
    """True if the model was trained on none of `held` and `unlabelled`."""

    @property
    def judging(self) -> list[Row]:
        """The held-out rows that judge the prompts."""
        return self.held[:_MOST_JUDGING]

    @property
    def judged(self) -> list[Row]:
        """All texts that are answered under each γ; those with labels come first."""
        return [*self.held, *self.unlabelled]


def read_parts(folder: Path, task: TaskKind, options: FineTuneOptions, seen: RowKeys) -> _ProfileRows:
    """Read the files data, dev and unlabelled of a job's input. seen: keys of the rows that the model was
    trained on. Raises InvalidData if they do not suit the model, or are too few."""
    skip, reading = options.skip_bad_rows, options.reading()
    data = _distinct_labelled(folder, "data", task, options)
    dev = _distinct_labelled(folder, "dev", task, options) if (folder / "dev").exists() else []
    texts: list[Row] = []
    if (folder / "unlabelled").exists():
        texts = _distinct(
            read_unlabelled_file(
                folder / "unlabelled",
                task.name,
                paired=task.paired,
                skip=skip,
                reading=reading,
                patterns=task.rules.words,
            ).rows
        )
    fit, held = hold_out_rows(data, dev, seen)
    used = {key_of(row) for row in (*fit, *held)}
    texts = [row for row, was in zip(texts, are_seen(texts, seen), strict=True) if not was]
    texts = [row for row in texts if key_of(row) not in used][:_MOST_UNLABELLED]
    return _ProfileRows(fit[:_MOST_FIT], held, texts, unseen=not any(are_seen(held, seen)))


def hold_out_rows(data: list[Row], dev: list[Row], seen: RowKeys) -> tuple[list[Row], list[Row]]:
    """The rows to train prompts on, and those held out, both by their keys.

    Without `dev`, the rows that the model was not trained on are held out, or half of them if the others
    are too few to train on. If it was trained on nearly all, a share of them is held out.
    """
    if dev:
        away = {key_of(row) for row in dev}
        return [row for row in data if key_of(row) not in away], dev[:_MOST_LABELLED]
    known = are_seen(data, seen)
    fresh = [row for row, was in zip(data, known, strict=True) if not was]
    old = [row for row, was in zip(data, known, strict=True) if was]
    if len(fresh) < _MIN_ROWS:
        wanted = HELD_OUT.wanted(len(data))
        return data[wanted:], data[:wanted]
    if len(old) >= _MIN_ROWS:
        return [*old, *fresh[_MOST_LABELLED:]], fresh[:_MOST_LABELLED]
    half = min(len(fresh) // 2, _MOST_LABELLED)
    return [*old, *fresh[half:]], fresh[:half]


def _distinct_labelled(folder: Path, name: str, task: TaskKind, options: FineTuneOptions) -> list[Row]:
    """The different rows of a file, by their keys."""
    found = read_labelled_file(
        folder / name,
        task.name,
        name,
        skip=options.skip_bad_rows,
        reading=options.reading(),
        patterns=task.rules.words,
    )
    rows = _distinct(found.rows)
    if len(rows) < _MIN_ROWS:
        raise InvalidData(f"{name} has {len(rows)} different rows: give at least {_MIN_ROWS}", field=name)
    if any(isinstance(row.text, tuple) != task.paired for row in rows):
        raise InvalidData(
            f"{name}: the model reads {'pairs of texts' if task.paired else 'single texts'}: give rows "
            f"{'with' if task.paired else 'without'} text_pair",
            field=name,
        )
    unknown = sorted(set().union(*(objective_of(task).unknown(row.label) for row in rows)))
    if unknown:
        raise InvalidData(
            f"{name} has the label {unknown[0][:80]!r}, which the model does not know: give rows with "
            "labels of its own",
            field=name,
        )
    return rows


def _distinct(rows: list[Row]) -> list[Row]:
    return sorted({key_of(row): row for row in rows}.values(), key=key_of)


_BATCH = 32
"""The windows that run together, at least."""


@dataclass
class _Answered:
    """The outputs of a model for windows, and the rows that its layers read."""

    outputs: list[Tensor]
    """[windows]: the head's output of each, lexical scores included."""
    rows: int = 0
    """Rows that entered a layer, of all layers together."""
    plain: int = 0
    """The same without adaptation."""

    @property
    def saved(self) -> float:
        """The fraction of the layers' rows that was saved; below 0 with prompts."""
        return 1.0 - self.rows / max(1, self.plain)


@dataclass
class _Forced:
    """A stage that adapts every text of a batch, and the hook that reads what comes of it."""

    gamma: int
    answered: _Answered
    name: ClassVar[str] = "tokens"
    layers: int = 0
    outputs: dict[int, Tensor] = field(default_factory=dict)

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, Setting(str(self.gamma)))

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect((1.0,) * shape.layers)

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        self.layers = batch.layers
        self.answered.plain += batch.layers * sum(text.tokens for text in batch.texts)
        return [*forced_hooks(self.gamma, batch), self]

    @property
    def at(self) -> frozenset[int]:
        return frozenset(range(self.layers))

    @property
    def concerns(self) -> None:
        return None

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        self.answered.rows += rows.offsets[-1]
        return rows, None

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        self.outputs |= {t: o for t, o in zip(texts, outputs, strict=True) if isinstance(o, Tensor)}
        return outputs

    def close(self) -> None: ...


class Answering:
    """One version of a model, which answers on the calling thread."""

    def __init__(self, bundles: Bundles, model: ModelId, version: ModelVersion, part: TaskPart) -> None:
        upper = bundles.upper(version).load()
        upper.executor.settle()
        reader = bundles.reader(version).load()
        self.bundle = Bundle(model, version, upper.root, upper.executor, reader, task_of_version(version))
        self.part = part
        part.ready(upper.executor.prepare, upper.executor)

    def answer(self, split: Split, gamma: int, report: Callable[[int], None]) -> _Answered:
        """Let the model answer the rows of a split under a γ. report: takes the number of rows done."""
        found, artefact = _Answered([torch.empty(0)] * len(split.encoded)), self.bundle.version.artefact
        executor, tenant = self.bundle.executor, self.bundle.model.tenant
        candidate = Candidate(0.0, 0.0, tenant, self.bundle.key, executor.layers)
        plan = Plan(candidate, {_Forced.name: Setting(str(gamma))})
        windows = split.of_rows()
        for rows in _batches(windows):
            stage = _Forced(gamma, found)
            pieces = [piece for row in rows for piece in self._pieces(split, row, windows[row])]
            ran = Runner([stage], None).run(Held(pieces, {artefact: self.part}, []), plan)
            for _, error in ran.failed:
                raise error
            for i, window in enumerate(window for row in rows for window in windows[row]):
                found.outputs[window] = stage.outputs[i]
            report(rows[-1] + 1)
        return found

    def _pieces(self, split: Split, row: int, windows: Sequence[int]) -> list[Piece]:
        encoded, request = (
            [split.encoded[i] for i in windows],
            TextRequest(self.bundle.model, split.rows[row].text),
        )
        item = Item(request, self.bundle, encoded, UnreadSink())
        return [Piece(item, i) for i in range(len(encoded))]


def _batches(windows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The rows of each batch. windows: those of each row."""
    rows, count = list[int](), 0
    for row, mine in enumerate(windows):
        rows, count = [*rows, row], count + len(mine)
        if count >= _BATCH or row == len(windows) - 1:
            yield rows
            rows, count = [], 0


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job. Raises InvalidData (unusable rows), Conflict (the version is gone), Damaged."""
    spec = FineTuneSpec.of(ctx.job)
    version = base_version(ctx, spec)
    task = task_of_version(version)
    parts = read_parts(ctx.input, task, spec.options, seen_by(ctx, version))
    ctx.pin(PinnedPlots(plot=version.plot_version))
    stored = ctx.adapters.get(version.artefact)
    root = load_root(ctx.roots.folder(version.root, version.root_version))
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
    ctx: JobContext,
    version: ModelVersion,
    task: TaskKind,
    root: Root,
    artefact: Artefact,
    parts: _ProfileRows,
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
    parts: _ProfileRows,
) -> tuple[tuple[TokenPoint, ...], dict[str, Any]]:
    """The points of every γ, ascending, and figures for the report."""
    torch.set_num_threads(1)
    split, gammas = _encoded(version, root, parts.judged), [0, *MERGES, *map(int, prompts)]
    steps = len(gammas) * len(split.rows)
    s = ctx.settings
    bundles = Bundles(s.data, ctx.registry, ctx.plots, ctx.adapters, ctx.lowers, s.precision, roots=ctx.roots)
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
    task: TaskKind, split: Split, parts: _ProfileRows, answered: Sequence[_Judged]
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
