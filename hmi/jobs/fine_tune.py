"""A tenant's model: check the rows, look up their PLOT features, train module and head, publish the version."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from hmi.core import ModelId, ModelVersion, Task, now
from hmi.errors import InvalidInput, NotFound
from hmi.jobs.context import JobContext
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.rows import Row, labels_of, read_rows
from hmi.model.batching import Encoded
from hmi.model.bodies import Examples
from hmi.model.files import read_tensors, write_json, write_tensors
from hmi.model.heads import first_pieces, outside_tag
from hmi.model.root import Root, load_root
from hmi.model.scoring import headline, score_labels, score_tags
from hmi.model.tagging import Scheme, best_path, rules
from hmi.model.training import IGNORE, Trainer, TrainPlan, choose_epochs, tenant_trainer
from plot_store import Reader, VersionInfo

DEV_SHARE = 0.1
MAX_DEV = 1_000


@dataclass(frozen=True)
class Split:
    """Rows with their tokenised texts."""

    rows: list[Row]
    encoded: list[Encoded]


def run(ctx: JobContext) -> dict[str, Any]:
    """Job body. Spec: model, domain, task, mode, options; inputs: data, dev (optional)."""
    spec = ctx.job.spec
    model, task = ModelId.parse(spec["model"]), _task(spec["task"])
    options = FineTuneOptions(**spec.get("options") or {})
    train_rows, dev_rows = _read(ctx.input, task, options.seed)
    labels = labels_of([*train_rows, *dev_rows])
    plot = _pinned_plot(ctx, spec["domain"])
    root_name = plot.ref.split("/")[0]
    root = load_root(ctx.settings.data / "roots" / root_name / plot.meta["root_version"])
    max_length = min(options.max_length, root.max_length)
    train = Split(train_rows, root.tokenizer.encode([r.text for r in train_rows], max_length))
    dev = Split(dev_rows, root.tokenizer.encode([r.text for r in dev_rows], max_length))
    with ctx.plots.reader(plot.id) as reader:
        state, metrics = _train(ctx, root, reader, task, labels, train, dev, options)
    artefact, size = ctx.adapters.put(state, {"task": task})
    record = ctx.registry.publish_model(
        model,
        ModelVersion(
            version=0, artefact=artefact, domain=spec["domain"], plot_version=plot.id, root=root_name,
            root_version=root.info.version, task=task, labels=labels, module=options.module,
            max_length=max_length, metrics=metrics, bytes=size, created=now(), job=ctx.job.job,
        ),
    )  # fmt: skip
    version = next(v for v in record.versions if v.job == ctx.job.job)
    return {"model": str(model), "version": version.version, "metrics": metrics, "bytes": size}


def features_of(root: Root, reader: Reader, texts: Sequence[Encoded]) -> list[Tensor]:
    """What the upper layers receive for each text: PLOT rows plus position and type bias, fp32 [T_i, dim]."""
    ids = np.concatenate([np.asarray(t.ids, np.int32) for t in texts])
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    rows, _ = reader.lookup(ids, offsets)
    positions = torch.cat([torch.arange(len(t)) for t in texts])
    types = torch.tensor([t for text in texts for t in text.types])
    packed = torch.from_numpy(rows) + root.bias(positions, types)
    return list(packed.split([len(t) for t in texts]))


def targets_of(task: Task, labels: Sequence[str], split: Split) -> list[list[int]]:
    """One label id a row, or for tagging one a token: the word's tag on its first piece, IGNORE elsewhere."""
    index = {label: i for i, label in enumerate(labels)}
    if task != "tagging":
        return [[index[str(row.label)]] for row in split.rows]
    out = []
    for row, text in zip(split.rows, split.encoded, strict=True):
        target = [IGNORE] * len(text)
        for word, position in first_pieces(text.words).items():
            target[position] = index[row.label[word]]
        out.append(target)
    return out


def evaluate(
    task: Task, labels: Sequence[str], split: Split, logits: Sequence[Tensor], scheme: Scheme = "free"
) -> dict[str, Any]:
    """Held-out metrics of one split. Words lost to truncation count as tagged `outside_tag`."""
    if task != "tagging":
        return score_labels([str(r.label) for r in split.rows], [labels[int(x.argmax())] for x in logits], labels)
    outside, allowed = outside_tag(labels), rules(labels, scheme)
    got = []
    for row, text, x in zip(split.rows, split.encoded, logits, strict=True):
        tags = [outside] * len(row.label)
        first = first_pieces(text.words)
        path = best_path(x[list(first.values())].log_softmax(-1).numpy(), allowed)
        for word, tag in zip(first, path, strict=True):
            tags[word] = labels[int(tag)]
        got.append(tags)
    return score_tags([list(r.label) for r in split.rows], got)


def _train(
    ctx: JobContext,
    root: Root,
    reader: Reader,
    task: Task,
    labels: tuple[str, ...],
    train: Split,
    dev: Split,
    options: FineTuneOptions,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Train epoch by epoch with a checkpoint after each; the epoch best on dev is kept, in fp16."""
    epochs = options.epochs or choose_epochs(len(train.rows), options.batch)
    plan = TrainPlan(task, len(labels), options.lr, epochs, options.batch, options.seed, options.dropout)
    examples, held_out = (
        Examples(
            [len(e) for e in split.encoded],
            [e.types for e in split.encoded],
            _looked_up(root, reader, split.encoded),
            targets_of(task, labels, split),
        )
        for split in (train, dev)
    )
    trainer = tenant_trainer(root, options.module, plan, examples)
    _warm_start(ctx, trainer, labels, options)
    start, best_state, best = _restore(ctx, trainer)

    def report(step: int, total: int, loss: float) -> None:
        ctx.progress(step, total, phase="fine-tuning", loss=loss)

    for epoch in trainer.epochs(report, start):
        metrics = evaluate(task, labels, dev, trainer.predict(held_out))
        if not best or headline(metrics) >= headline(best):
            best, best_state = {**metrics, "epoch": epoch}, trainer.state()
        _checkpoint(ctx, trainer, epoch, best_state, best)
    truncated = sum(e.truncated for e in train.encoded)
    published = trainer.publishable(best_state)
    # The metrics of the weights that users get, not of the fp32 ones before rounding.
    best |= evaluate(task, labels, dev, trainer.predict(held_out))
    return published, {**best, "epochs": epochs, "train_rows": len(train.rows), "truncated_rows": truncated}


def _looked_up(root: Root, reader: Reader, texts: list[Encoded]) -> Any:
    # Look-up is about 1% of a training step, so features are never cached: memory stays flat.
    return lambda rows: features_of(root, reader, [texts[i] for i in rows])


def _task(value: str) -> Task:
    if value not in ("classification", "pair", "tagging"):
        raise InvalidInput(f"task {value!r} is unknown: use classification, pair or tagging", field="task")
    return value  # type: ignore[return-value]  # narrowed by the check above


def _read(folder: Path, task: Task, seed: int) -> tuple[list[Row], list[Row]]:
    rows = read_rows(folder / "data", task)
    labels_of(rows)
    if (folder / "dev").exists():
        return rows, read_rows(folder / "dev", task, field="dev")
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    held = min(MAX_DEV, max(1, round(DEV_SHARE * len(rows))))
    return [rows[i] for i in order[held:]], [rows[i] for i in order[:held]]


def _pinned_plot(ctx: JobContext, domain: str) -> VersionInfo:
    """The PLOT version to train on, fixed at the first start so that a resumed run sees the same features."""
    plan = ctx.folder / "plan.json"
    if not plan.exists():
        refs = ctx.plots.refs()
        if domain not in refs:
            raise NotFound(f"domain {domain} does not exist: create it first", field="domain")
        write_json(plan, {"plot": refs[domain].id})
    return ctx.plots.version(json.loads(plan.read_text())["plot"])


def _warm_start(ctx: JobContext, trainer: Trainer, labels: tuple[str, ...], options: FineTuneOptions) -> None:
    """An update continues from the live version where labels and module are the same, else starts afresh."""
    if ctx.job.spec["mode"] != "update":
        return
    live = ctx.registry.model(ModelId.parse(ctx.job.spec["model"])).live
    if live.labels == labels and live.module == options.module:
        trainer.load({k: v.float() for k, v in ctx.adapters.get(live.artefact).items()})


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
    trainer.load({k: v for k, v in state.items() if k.startswith(("module.", "head."))})
    trainer.load_optimiser(state)
    best = {k.removeprefix("best."): v for k, v in state.items() if k.startswith("best.")}
    return about["epoch"], best, about["best"]
