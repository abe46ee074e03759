"""A tenant's model: check the rows, look up their PLOT features, train module and head, publish the version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from hmi.core import ModelId, ModelVersion, ModuleSpec, Task, TaskRules, now
from hmi.errors import InvalidData, InvalidInput, NotFound
from hmi.jobs import import_module
from hmi.jobs.context import JobContext
from hmi.jobs.held_out import (
    FEW_DEV,
    class_weights,
    encoded_split,
    hold_out,
    merged_outputs,
    remarks,
    split_bags,
    task_targets,
)
from hmi.jobs.held_out import Split as Split
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.rows import Row, read_rows, read_texts
from hmi.jobs.teaching import Lesson, taught_rows
from hmi.model.batching import Encoded
from hmi.model.bodies import Examples
from hmi.model.files import read_tensors, write_json, write_tensors
from hmi.model.heads import head_queries
from hmi.model.lexical import lexical_buckets
from hmi.model.memory import keep_freed_memory
from hmi.model.root import Root, load_root
from hmi.model.scoring import headline
from hmi.model.tasks import KINDS, TaskKind, learn_task, task_of_version
from hmi.model.tasks.embedding import Embedding
from hmi.model.training import PATIENCE, Trainer, TrainPlan, tenant_trainer
from hmi.model.transitions import learns_transitions
from hmi.model.usual import choose_epochs, usual_lr, usual_module
from plot_store import Reader, VersionInfo


def run(ctx: JobContext) -> dict[str, Any]:
    """Job body. Spec: model, domain, task, mode, options; inputs: data (none for embeddings), maybe dev, unlabelled."""
    keep_freed_memory()
    spec = ctx.job.spec
    if import_module.without_rows(ctx):
        return import_module.run(ctx)
    options = FineTuneOptions(**spec.get("options") or {})
    name = _known(spec["task"])
    # Rows first: what is wrong with them is said at once.
    data = None if name == "embedding" else read_data(ctx.input, name, options)
    plot = _pinned_plot(ctx, spec["domain"])
    root = load_root(ctx.settings.data / "roots" / plot.ref.split("/")[0] / plot.meta["root_version"])
    made = _embedding(root, options) if data is None else _fine_tuned(ctx, root, plot, data, options)
    artefact, size = ctx.adapters.put(made.state, {"task": name})
    model = ModelId.parse(spec["model"])
    record = ctx.registry.publish_model(
        model,
        ModelVersion(
            version=0, artefact=artefact, domain=spec["domain"], plot_version=plot.id, root=root.info.name,
            root_version=root.info.version, task=name, labels=made.task.labels, rules=made.task.rules,
            module=None if data is None else data.module, max_length=made.max_length, metrics=made.metrics,
            lexical="lexical.table" in made.state, transitions=options.transitions, bytes=size,
            created=now(), job=ctx.job.job,
        ),
    )  # fmt: skip
    version = next(v for v in record.versions if v.job == ctx.job.job)
    return {"model": str(model), "version": version.version, "metrics": made.metrics, "bytes": size}


@dataclass(frozen=True)
class Made:
    """What a job publishes."""

    task: TaskKind
    state: dict[str, Tensor]
    max_length: int
    metrics: dict[str, Any]


@dataclass(frozen=True)
class Data:
    """A task, the module for it, and its rows. `dev_given`: the user held some out; `unlabelled`: texts for a teacher
    to label."""

    task: TaskKind
    module: ModuleSpec
    train: list[Row]
    dev: list[Row]
    dev_given: bool
    unlabelled: list[Row]


def features_of(root: Root, reader: Reader, texts: Sequence[Encoded]) -> list[Tensor]:
    """What the upper layers receive for each text: PLOT rows plus position and type bias, fp32 [T_i, dim]."""
    ids = np.concatenate([np.asarray(t.ids, np.int32) for t in texts])
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    rows, _ = reader.lookup(ids, offsets)
    positions = torch.cat([torch.arange(len(t)) for t in texts])
    types = torch.tensor([t for text in texts for t in text.types])
    packed = torch.from_numpy(rows) + root.bias(positions, types)
    return list(packed.split([len(t) for t in texts]))


def _embedding(root: Root, options: FineTuneOptions) -> Made:
    """Nothing is trained: the root's upper layers, pooled as the root's authors do."""
    rules = TaskRules(pooling=root.info.pooling, normalise=root.info.normalise)
    return Made(Embedding((), rules), {}, min(options.max_length, root.max_length), {"dim": root.dim})


def _fine_tuned(ctx: JobContext, root: Root, plot: VersionInfo, data: Data, options: FineTuneOptions) -> Made:
    max_length, windows = min(options.max_length, root.max_length), data.task.rules.windows
    train, dev = (encoded_split(r, root.tokenizer, max_length, windows=windows) for r in (data.train, data.dev))
    weights = class_weights(data.task, train, task_targets(data.task, train), options)
    about: dict[str, Any] = _about(train, weights)
    warnings = remarks(data.task, data.train, data.dev, dev_given=data.dev_given)
    if data.unlabelled or options.variants:
        taught = taught_rows(ctx, root, Lesson(data.task, train, dev, data.unlabelled, max_length, weights), options)
        about["teacher"] = taught.metrics
        warnings += taught.warnings
        train = encoded_split([*data.train, *taught.rows], root.tokenizer, max_length, windows=windows)
    with ctx.plots.reader(plot.id) as reader:
        task, state, metrics = _train(ctx, root, reader, data, train, dev, weights, options)
    return Made(task, state, max_length, {**metrics, **about, "warnings": warnings})


def _windows(task: TaskKind, options: FineTuneOptions) -> bool:
    """Whether long texts are read in windows: as asked for, else where tags of the rest would be lost."""
    if options.long_texts == "windows" and not task.windowed:
        raise InvalidInput(
            f"a {task.name} model of pairs cuts long texts: leave long_texts out", field="options.long_texts"
        )
    return task.name == "tagging" if options.long_texts is None else options.long_texts == "windows"


def _train(
    ctx: JobContext,
    root: Root,
    reader: Reader,
    data: Data,
    train: Split,
    dev: Split,
    weights: tuple[float, ...] | None,
    options: FineTuneOptions,
) -> tuple[TaskKind, dict[str, Tensor], dict[str, Any]]:
    """Train with a checkpoint after each epoch, until PATIENCE have been worse; the best one is kept, in fp16."""
    task, targets = data.task, task_targets(data.task, train)
    lr, epochs = (
        options.lr or usual_lr(task, data.module, len(targets)),
        options.epochs or choose_epochs(len(targets), options.batch),
    )
    plan = TrainPlan(
        task.name, task.outputs, lr, epochs, options.batch, options.seed, options.dropout,
        paired=task.paired, weights=weights, bf16=True, lexical=lexical_buckets(task.name, options.lexical),
        transitions=learns_transitions(task.name, task.outputs, weights, options.transitions),
        queries=head_queries(task.reads, task.outputs), average=True,
    )  # fmt: skip
    held_out = _examples(root, reader, dev, [[]] * len(dev.encoded), plan.lexical)
    trainer = tenant_trainer(root, data.module, plan, _examples(root, reader, train, targets, plan.lexical))
    start, best_state, best = _restore(ctx, trainer)
    if not start:
        _warm_start(ctx, root, trainer, data, options)
    choosy = len(dev.rows) >= FEW_DEV

    def report(step: int, total: int, loss: float) -> None:
        ctx.progress(step, total, phase="fine-tuning", loss=loss)

    def over(epoch: int) -> bool:
        return bool(best) and epoch - best["epoch"] >= PATIENCE

    for epoch in () if over(start) else trainer.epochs(report, start):
        with trainer.averaged():
            _, metrics = _judged(trainer.reading(task), dev, trainer.predict(held_out))
            if not best or not choosy or headline(metrics) >= headline(best):
                best, best_state = {**metrics, "epoch": epoch}, trainer.state()
        _checkpoint(ctx, trainer, epoch, best_state, best)
        if over(epoch):
            break
    published = trainer.publishable(best_state)
    # The metrics of the weights that users get, not of the fp32 ones before rounding.
    task, metrics = _judged(trainer.reading(task), dev, trainer.predict(held_out, exact=True))
    return task, published, {**metrics, "epoch": best["epoch"], "epochs": epochs}


def _judged(task: TaskKind, dev: Split, outputs: Sequence[Tensor]) -> tuple[TaskKind, dict[str, Any]]:
    """The task with what is chosen on these rows, and its metrics on them."""
    golds, merged = [row.label for row in dev.rows], merged_outputs(task, dev, outputs)
    task = task.tuned(golds, merged)
    return task, task.score(golds, merged)


def _about(train: Split, weights: tuple[float, ...] | None) -> dict[str, Any]:
    """Of the tenant's own rows."""
    return {
        "train_rows": len(train.rows),
        "truncated_rows": sum(e.truncated for e in train.encoded),
        "windows": len(train.encoded),
        "class_weights": weights is not None,
    }


def _examples(root: Root, reader: Reader, split: Split, targets: Sequence[Sequence[float]], buckets: int) -> Examples:
    lengths, types = [len(e) for e in split.encoded], [e.types for e in split.encoded]
    return Examples(lengths, types, _looked_up(root, reader, split.encoded), targets, split_bags(split, buckets))


def _looked_up(root: Root, reader: Reader, texts: list[Encoded]) -> Any:
    # Look-up is about 1% of a training step, so features are never cached: memory stays flat.
    return lambda rows: features_of(root, reader, [texts[i] for i in rows])


def _known(value: str) -> Task:
    if value not in KINDS:
        raise InvalidInput(f"task {value!r} is unknown: use one of {', '.join(KINDS)}", field="task")
    return value  # type: ignore[return-value]  # narrowed by the check above


def read_data(folder: Path, name: Task, options: FineTuneOptions) -> Data:
    """The rows, those held out, and the task that the training rows describe. Raises InvalidData, InvalidInput."""
    rows, given = read_rows(folder / "data", name), (folder / "dev").exists()
    dev = read_rows(folder / "dev", name, field="dev") if given else []
    train, dev = (rows, dev) if given else hold_out(rows, options.seed)
    paired = isinstance(train[0].text, tuple)
    if paired != isinstance(dev[0].text, tuple):
        raise InvalidData("data and dev must both have `text_pair`, or neither: make them alike", field="dev")
    task = learn_task(name, [row.label for row in train], paired=paired)
    rules = task.rules.model_copy(update={"windows": _windows(task, options)})
    more = folder / "unlabelled"
    texts = read_texts(more, name, paired=paired) if more.exists() else []
    module = options.module or usual_module(paired=paired)
    return Data(replace(task, rules=rules), module, train, dev, given, texts)


def _pinned_plot(ctx: JobContext, domain: str) -> VersionInfo:
    """The PLOT version to train on, fixed at the first start so that a resumed run sees the same features."""
    plan = ctx.folder / "plan.json"
    if not plan.exists():
        refs = ctx.plots.refs()
        if domain not in refs:
            raise NotFound(f"domain {domain} does not exist: create it first", field="domain")
        write_json(plan, {"plot": refs[domain].id})
    return ctx.plots.version(json.loads(plan.read_text())["plot"])


def _warm_start(ctx: JobContext, root: Root, trainer: Trainer, data: Data, options: FineTuneOptions) -> None:
    """An update continues from the live version where labels and module are the same, a new model from the sibling
    that it names, an import from its adapter."""
    mode, task = ctx.job.spec["mode"], data.task
    if mode == "import":
        trainer.start_from(import_module.start_state(ctx, root.info, task.name, task.labels))
        return
    source = ctx.job.spec["model"] if mode == "update" else options.start
    if source is None:
        return
    live = ctx.registry.model(ModelId.parse(source, "options.start")).live
    same = live.labels == task.labels and task_of_version(live).reads == task.reads
    if mode == "create" and live.module != data.module:
        raise InvalidInput(
            f"{source} has another module: leave module out, and it is taken over", field="options.start"
        )
    if live.module != data.module or (mode == "update" and not same):
        return
    # Of another task only the module is of use; what goes with it may have been turned on or off since.
    wanted = ("module.", "head.", "lexical.", "transitions.") if same else ("module.",)
    trainer.start_from({k: v.float() for k, v in ctx.adapters.get(live.artefact).items() if k.startswith(wanted)})


def _checkpoint(
    ctx: JobContext, trainer: Trainer, epoch: int, best_state: dict[str, Tensor], best: dict[str, Any]
) -> None:
    state = {**trainer.state(), **trainer.optimiser_state(), **{f"best.{k}": v for k, v in best_state.items()}}
    about = {"about": json.dumps({"epoch": epoch, "best": best})}
    write_tensors(ctx.folder / "checkpoint.safetensors", state, about)


def _restore(ctx: JobContext, trainer: Trainer) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    """(epochs done, best tensors, best metrics) of an interrupted run; (0, {}, {}) at a first start."""
    path = ctx.folder / "checkpoint.safetensors"
    if not path.exists():
        return 0, {}, {}
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["about"])
    state = read_tensors(path)
    if not trainer.state().keys() | trainer.optimiser_state().keys() <= state.keys():
        return 0, {}, {}  # of an earlier version of HMI, which trained less
    trainer.load(state)
    trainer.load_optimiser(state)
    best = {k.removeprefix("best."): v for k, v in state.items() if k.startswith("best.")}
    return about["epoch"], best, about["best"]
