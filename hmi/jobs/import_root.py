"""Root import: load, split, make the lower layers local, write the artefact, publish the root's PLOT."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from hmi.core import RootRecord, now
from hmi.errors import InvalidInput
from hmi.jobs.context import JobContext
from hmi.jobs.corpus import check_corpus, read_documents
from hmi.jobs.ngrams import choose, count_corpus
from hmi.jobs.options import ImportRootOptions
from hmi.jobs.plots import Wanted, in_chunks, write_version
from hmi.model.batching import Encoded
from hmi.model.distil import (
    Batch,
    DistilPlan,
    Report,
    distil_lower,
    fit_ridge,
    init_slots,
    make_batch,
    measure_fidelity,
    sample_batches,
    train_upper,
)
from hmi.model.encoder import Encoder
from hmi.model.files import read_tensors, write_tensors
from hmi.model.locality import apply_locality, shipped_locality
from hmi.model.lower import InputBias, LocalLower
from hmi.model.root import Root, RootInfo, load_root, read_root_info, save_root, split_encoder
from hmi.model.source import Source, find_source, load_encoder
from hmi.model.tokenizer import Tokenizer

Parts = tuple[LocalLower, nn.ModuleList, InputBias]
MAX_TEXTS = 40_000
HELD_OUT = 160
PAIR_SHARE = 16
"""One training text in this many is a pair, so that the second segment's type vector is learnt."""


def run(ctx: JobContext) -> dict[str, Any]:
    """Job body. Spec: name, source, split (None = half), alpha, options; inputs: text-0, text-1, … (optional)."""
    spec, options = ctx.job.spec, ImportRootOptions(**ctx.job.spec.get("options") or {})
    source = find_source(spec["source"])
    texts = sorted(ctx.input.glob("text-*"))
    documents = sum(check_corpus(text) for text in texts)
    folder = ctx.settings.data / "roots" / spec["name"] / ctx.job.job
    if not folder.exists():
        _write_artefact(ctx, folder, source, spec, options, texts)
    info = read_root_info(folder)
    _publish_plot(ctx, folder, float(spec.get("alpha", 50)), texts, documents)
    record = RootRecord(
        name=info.name,
        version=info.version,
        created=info.created,
        source=info.source,
        dim=info.shape.dim,
        layers=info.shape.layers,
        split=info.split,
        fidelity=info.fidelity,
        bytes=sum(f.stat().st_size for f in folder.iterdir()),
        job=ctx.job.job,
    )
    ctx.registry.put_root(record)
    return {"root": info.name, "version": info.version, "fidelity": info.fidelity}


def _write_artefact(
    ctx: JobContext, folder: Path, source: Source, spec: dict[str, Any], options: ImportRootOptions, texts: list[Path]
) -> None:
    teacher, tokenizer = load_encoder(source.folder), Tokenizer(source.folder / "tokenizer.json")
    split = spec.get("split") or teacher.shape.layers // 2
    if not 0 < split < teacher.shape.layers:
        raise InvalidInput(f"split {split} must lie between 1 and {teacher.shape.layers - 1}", field="split")
    parts = split_encoder(teacher, split, tokenizer.cls_id)
    shipped = None if options.distil else shipped_locality(source.sha256, split)
    if shipped is not None:
        ctx.progress(0, 1, phase="locality weights")
        fidelity = apply_locality(shipped, parts)["fidelity"]
        ctx.progress(1, 1, phase="locality weights")
    elif texts:
        fidelity = _learn(ctx, teacher, tokenizer, parts, texts, options)
    else:
        raise InvalidInput(
            f"no locality weights ship for {source.name} split at {split}: give unlabelled text (--text) to learn them",
            field="texts",
        )
    assert isinstance(fidelity, dict)
    lower, upper, bias = parts
    info = RootInfo(
        name=spec["name"],
        version=ctx.job.job,
        source={"kind": source.kind, "name": source.name, "sha256": source.sha256},
        shape=teacher.shape,
        split=split,
        created=now(),
        fidelity=fidelity,
    )
    save_root(folder, Root(info, upper, bias, tokenizer, lower), source.folder / "tokenizer.json")


def _learn(
    ctx: JobContext,
    teacher: Encoder,
    tokenizer: Tokenizer,
    parts: Parts,
    paths: list[Path],
    options: ImportRootOptions,
) -> dict[str, float]:
    """Ridge, distillation, co-training; each phase is checkpointed as it ends."""
    lower, upper, bias = parts
    plan = DistilPlan(steps=options.steps, upper_steps=options.upper_steps, seed=options.seed)
    texts = _sample_texts(tokenizer, paths, options.seed)
    held_out, texts = texts[:HELD_OUT], texts[HELD_OUT:]
    batches = sample_batches(texts, 2048, random.Random(options.seed + 7))
    warm = [next(batches) for _ in range(max(2, plan.ridge_texts // 40))]
    if not _restored(ctx, "ridge", parts):
        ctx.progress(0, 1, phase="ridge regression")
        init_slots(lower, teacher, warm[0])
        fit_ridge(lower, bias, teacher, warm, plan.ridge_shrink)
        _checkpoint(ctx, "ridge", parts)
    if not _restored(ctx, "distilled", parts):
        distil_lower(lower, bias, teacher, texts, plan, _report(ctx, "distillation"), bf16=True)
        _checkpoint(ctx, "distilled", parts)
    if plan.upper_steps and not _restored(ctx, "trained", parts):
        train_upper(
            lower, bias, upper, teacher, texts, plan, _report(ctx, "co-training of the upper layers"),
            bf16=True,
        )  # fmt: skip
        _checkpoint(ctx, "trained", parts)
    return measure_fidelity(lower, bias, upper, teacher, _held_out_batches(held_out))


def _publish_plot(ctx: JobContext, folder: Path, alpha: float, texts: list[Path], documents: int) -> None:
    """The root's own PLOT: a unigram of every token, where every look-up ends, and n-grams of the text if any."""
    root = load_root(folder, with_lower=True)
    assert root.lower is not None
    counted = count_corpus(ctx, root.tokenizer, texts, documents)
    vocabulary = np.arange(1, root.info.shape.vocab, dtype=np.uint32)[:, None]
    wanted = [Wanted(1, len(vocabulary), in_chunks(vocabulary)), *choose(counted, alpha)]

    def meta(stored: Mapping[int, int]) -> dict[str, Any]:
        report = {
            "alpha": alpha,
            "tokens": counted.total(3),
            "stored_trigrams": stored[3],
            "stored_bigrams": stored[2],
        }
        return {"root_version": root.info.version, "lower": None, "alpha": alpha, "report": report}

    write_version(ctx, root.info.name, root.lower, wanted, parent=None, onto=None, extend=False, meta=meta)


def _sample_texts(tokenizer: Tokenizer, paths: list[Path], seed: int) -> list[Encoded]:
    """Up to MAX_TEXTS shuffled pieces of at most 256 tokens, evenly from each file, with some pairs among them."""
    rng = random.Random(seed)
    documents: list[str] = []
    for path in paths:
        lines = [_piece(d, rng) for d in read_documents(path)]
        documents += rng.sample(lines, min(len(lines), MAX_TEXTS // len(paths)))
    rng.shuffle(documents)
    pairs = [(a, b) for a, b in zip(documents[::PAIR_SHARE], documents[1::PAIR_SHARE], strict=False)]
    encoded = [e for e in tokenizer.encode([*documents, *pairs], 256) if len(e) > 4]
    if len(encoded) < HELD_OUT + 100:
        raise InvalidInput(
            f"{len(encoded)} usable texts are too few to learn locality: give at least {HELD_OUT + 100} lines",
            field="texts",
        )
    rng.shuffle(encoded)
    return encoded


def _piece(document: str, rng: random.Random) -> str:
    """A random run of words of a long document, so that training sees starts that are not the document's."""
    words = document.split()
    if len(words) <= 60 or rng.random() < 0.3:
        return document[:3000]
    length = rng.choice((20, 40, 160))
    start = rng.randrange(max(1, len(words) - length))
    return " ".join(words[start : start + length])


def _held_out_batches(texts: list[Encoded]) -> list[Batch]:
    return [make_batch(texts[i : i + 20]) for i in range(0, len(texts), 20)]


def _report(ctx: JobContext, phase: str) -> Report:
    return lambda step, total, loss: ctx.progress(step, total, phase=phase, loss=loss)


def _checkpoint(ctx: JobContext, name: str, parts: Parts) -> None:
    state = {f"{p}.{k}": v for p, part in zip("abc", parts, strict=True) for k, v in part.state_dict().items()}
    write_tensors(ctx.folder / f"checkpoint-{name}.safetensors", state)


def _restored(ctx: JobContext, name: str, parts: Parts) -> bool:
    path = ctx.folder / f"checkpoint-{name}.safetensors"
    if not path.exists():
        return False
    state = read_tensors(path)
    for prefix, part in zip("abc", parts, strict=True):
        part.load_state_dict({k[2:]: v for k, v in state.items() if k.startswith(f"{prefix}.")})
    return True
