"""The job that cuts a root's upper layers into shards, and measures answers on them.

Without texts no model is measured: then none runs on shards but those of a root that is larger than the
memory limit, on exact ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmi.core import ModelId, ModelRecord, ShardsRecord, now
from hmi.engine.admit.bundles import Bundles
from hmi.errors import Damaged, NotFound
from hmi.jobs.root.shard_answers import RetrievedTexts, retrieve_batches
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import ShardRootSpec
from hmi.stages.early_exit.evidence import Audits
from hmi.stages.elastic_shards.fidelity import Fidelity, write_fidelity
from hmi.stages.elastic_shards.making import make_shards
from hmi.stages.elastic_shards.store import ShardStore, open_shards
from hmi.stages.elastic_shards.versions import BITS, FULL
from hmi.stages.elastic_shards.weights import ShardWeights, uniform
from hmi.training.data.corpus import read_documents
from plot_store import PlotStoreError

MOST_MODELS = 16
"""The most models of a root that are measured: those that were published last."""
JUDGED = 400
"""Texts by which the bits are judged, for each model."""
IMPORTANCE_IGNORED = "importance does nothing any more, and the next release refuses it"


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job. Raises NotFound (the root was deleted), Damaged, UnsupportedModel, InvalidData,
    StorageFull."""
    spec = ShardRootSpec.of(ctx.job)
    record = ctx.registry.root(spec.name)
    folder = ctx.roots.folder(record.name, record.version)
    torch.set_num_threads(1)
    s = ctx.settings
    bundles = Bundles(s.data, ctx.registry, ctx.plots, ctx.adapters, ctx.lowers, "fp32", roots=ctx.roots)
    try:
        measured = _models(ctx, bundles, record.name)
        make_shards(folder, _report(ctx, "cutting layers into shards"))
        with open_shards(folder) as store:
            found = Fidelity(_audit_bits(ctx, store, measured))
            write_fidelity(folder, store, found)
            about = ShardsRecord(
                bytes=shard_bytes(folder), models=len(measured), agreement=agreement_of(found), created=now()
            )
        ctx.check()
        ctx.roots.put(record.name, record.version)
        ctx.registry.put_root(ctx.registry.root(record.name).model_copy(update={"shards": about}))
        remarks = {"metrics": {"warnings": [IMPORTANCE_IGNORED]}} if spec.importance else {}
        return {"root": record.name, **about.model_dump(), **remarks}
    finally:
        bundles.close()


def agreement_of(found: Fidelity) -> dict[str, float]:
    """Return the fraction of answers that equal the full model's, by bits, over all measured models."""
    pooled = {bits: found.pooled(bits) for bits in BITS}
    return {str(bits): round(1 - a.disagreed / a.seen, 4) for bits, a in pooled.items() if a.seen}


def shard_bytes(folder: Path) -> int:
    """Return the bytes of a root's shards on the disk."""
    return sum(file.stat().st_size for file in (folder / "shards").iterdir())


def _models(ctx: JobContext, bundles: Bundles, root: str) -> list[tuple[ModelRecord, RetrievedTexts]]:
    """The root's models with texts that they are asked, the latest first. Only classification has answers
    that are equal or not."""
    if not (ctx.input / "text").exists():
        return []
    texts = list(dict.fromkeys(read_documents(ctx.input / "text")))
    some = random.Random(0).sample(texts, min(len(texts), JUDGED))
    records = [r for r in ctx.registry.models() if r.live.root == root and r.live.task == "classification"]
    found = []
    for record in sorted(records, key=lambda r: r.live.created, reverse=True)[:MOST_MODELS]:
        name = str(ModelId(record.tenant, record.name))
        try:
            found.append((record, retrieve_batches(bundles, record, some)))
        except (NotFound, Damaged, PlotStoreError) as error:
            ctx.log(f"{name} is not measured: {error}")
    return found


def _audit_bits(
    ctx: JobContext, store: ShardStore, measured: Sequence[tuple[ModelRecord, RetrievedTexts]]
) -> dict[str, dict[int, Audits]]:
    """For each model and bitwidth, how many texts are answered otherwise than with exact shards."""
    report = _report(ctx, "measuring the agreement of bits")
    found: dict[str, dict[int, Audits]] = {}
    done, steps = 0, len(measured) * (1 + len(BITS))
    for record, texts in measured:
        full = np.empty(0, np.int64)
        for bits in (FULL, *BITS):
            weights = ShardWeights(store, uniform(store, bits))
            labels = texts.answers(weights)
            if bits == FULL:
                full = labels
            else:
                counts = Audits(len(labels), int((labels != full).sum()))
                found.setdefault(record.live.artefact, {})[bits] = counts
            done += 1
            report(done, steps)
    return found


def _report(ctx: JobContext, phase: str) -> Callable[[int, int], None]:
    return lambda done, total: ctx.progress(done, total, phase=phase)
