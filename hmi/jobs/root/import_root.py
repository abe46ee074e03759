"""The job that imports a root: it loads the source, splits it, makes the lower layers local, writes
the artefact and publishes the root's PLOT."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from hmi.core import RootRecord, now
from hmi.errors import Conflict, InvalidInput, UnsupportedModel
from hmi.jobs.options import ImportRootOptions
from hmi.jobs.plot.ngrams import choose, count_corpus
from hmi.jobs.plot.write_plot import Wanted, in_chunks, write_version
from hmi.jobs.root import repair_root
from hmi.jobs.root.import_language_model import write_language_model
from hmi.jobs.root.learning import Learning
from hmi.jobs.root.sampling import (
    FIDELITY_TEXTS,
    LENGTH,
    MAX_TEXTS,
    Fidelity,
    Texts,
    check_learnable,
    piece_of,
    sample_texts,
)
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import ImportRootSpec
from hmi.model.memory import keep_freed_memory
from hmi.model.network.encoder import Encoder
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.generative_root import GenerativeRoot, load_for_building
from hmi.model.sources.language_model import load_language_model
from hmi.model.sources.locality import apply_locality, shipped_locality
from hmi.model.sources.lower import InputBias, LocalLower
from hmi.model.sources.root import AnyRootInfo, Root, RootInfo, read_any_info, save_root, split_encoder
from hmi.model.sources.source import Source, find_source, load_encoder, read_pooling
from hmi.model.text.batching import Encoded
from hmi.model.text.tokenizer import Text, Tokenizer
from hmi.stores.plot.plot_meta import PlotMeta
from hmi.stores.root_files import RootFiles
from hmi.training.data.corpus import check_corpus, corpus_as_utf8, read_documents
from hmi.training.root.causal import causal_fidelity
from hmi.training.root.distillation import DistilPlan, distil_lower, start_local, train_upper
from hmi.training.root.fidelity import fidelity_report
from hmi.training.root.joint import train_jointly
from plot_store import ORDER_NAMES

_LocalParts = tuple[LocalLower, nn.ModuleList, InputBias]
_PARTS = ("lower", "upper", "bias")


def _learn_locality(
    ctx: JobContext,
    teacher: Encoder,
    parts: _LocalParts,
    texts: list[Encoded],
    options: ImportRootOptions,
    shipped: Path | None = None,
) -> None:
    """Train `parts` in place: by ridge regression, distillation of the lower layers, co-training of the upper
    ones, training of both together.

    shipped: the locality weights to start from, instead of ridge regression. Raises Damaged (these), and as
    `Learning.run`.
    """
    lower, upper, bias = parts
    learning = Learning(ctx, dict(zip(_PARTS, parts, strict=True)), options.checkpoint_s)
    plan = DistilPlan(
        steps=options.steps,
        upper_steps=options.upper_steps,
        joint_steps=options.joint_steps,
        seed=options.seed,
    )

    def ridge() -> None:
        ctx.progress(0, 1, phase="ridge regression")
        start_local(lower, bias, teacher, texts, plan)

    def distil() -> None:
        report, keeper = learning.report("distillation"), learning.keeper("distilled")
        distil_lower(lower, bias, teacher, texts, plan, report, bf16=True, keeper=keeper)

    def cotrain() -> None:
        report, keeper = learning.report("co-training of the upper layers"), learning.keeper("trained")
        train_upper(lower, bias, upper, teacher, texts, plan, report, bf16=True, keeper=keeper)

    def load() -> None:
        assert shipped is not None
        ctx.progress(0, 1, phase="locality weights")
        apply_locality(shipped, parts)

    def joint() -> None:
        report, keeper = learning.report("training of all layers together"), learning.keeper("joined")
        train_jointly(parts, teacher, texts, plan, report, bf16=True, keeper=keeper)

    phases = {"ridge": ridge} if shipped is None else {"loaded": load}
    if plan.steps:
        phases["distilled"] = distil
    if plan.upper_steps:
        phases["trained"] = cotrain
    if plan.joint_steps:
        phases["joined"] = joint
    learning.run(phases)


PAIR_EVERY = 16
"""One pair is added for every this many texts, so that the second segment's type vector is learnt."""


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job. If its spec names a damaged version, repair that root instead
    (`hmi.jobs.root.repair_root`)."""
    keep_freed_memory()
    spec = ImportRootSpec.of(ctx.job)
    source = find_source(spec.source)
    given = sorted(ctx.input.glob("text-*"))
    texts = [corpus_as_utf8(text, spec.options.encoding, ctx.folder / text.name) for text in given]
    documents = sum(check_corpus(text) for text in texts)
    if spec.repairs is not None:
        return repair_root.run(
            ctx, source, _source_record(source), lambda made: _write(ctx, made, source, spec, texts)
        )
    folder = ctx.layout.root(spec.name, ctx.job.job)
    if not folder.exists():
        _write(ctx, folder, source, spec, texts)
    info = read_any_info(folder)
    # A record in JSON has no such numbers, and could not be read again.
    if not all(map(math.isfinite, _numbers(info))):
        raise UnsupportedModel(
            f"the states of {source.name} are not finite on these texts: its weights are damaged, or its "
            "configuration is not theirs",
            field="source",
        )
    _publish_plot(ctx, folder, spec.alpha, texts, documents)
    ctx.share(info.name)
    record = RootRecord(
        name=info.name,
        version=info.version,
        created=info.created,
        source={k: v for k, v in info.source.items() if k != "folder"},  # users see this record
        dim=info.shape.dim,
        layers=info.shape.layers,
        generates=source.generates,
        split=info.split,
        n=info.n,
        fidelity=info.fidelity,
        fidelity_by_kind=info.fidelity_by_kind,
        bytes=sum(f.stat().st_size for f in folder.iterdir()),
        job=ctx.job.job,
    )
    ctx.roots.put(info.name, info.version)
    ctx.registry.put_root(record)
    return {
        "root": info.name,
        "version": info.version,
        "generates": record.generates,
        "fidelity": info.fidelity,
    }


def _numbers(info: AnyRootInfo) -> Iterator[float]:
    """All measures of a root's fidelity."""
    for measures in (info.fidelity, *info.fidelity_by_kind.values()):
        yield from measures.values()


def measure_root(
    record: RootRecord, roots: RootFiles, texts: Sequence[Path], source: str | None = None
) -> dict[str, dict[str, float]]:
    """Measure a root's fidelity on some documents of each file. Returns it by file name, and, for an
    encoder, for their beginnings as `short`.

    `source` names the source if it is not found by its recorded name. Raises Conflict (other
    weights), UnsupportedModel, InvalidData, Damaged.
    """
    found = find_source(record.source["name"] if source is None else source)
    if found.sha256 != record.source["sha256"]:
        raise Conflict(
            f"{found.name} has other weights than root {record.name} was made from: restore the original ones"
        )
    root = load_for_building(roots.folder(record.name, record.version))
    assert root.lower is not None
    kinds: Texts = {}
    for path in texts:
        check_corpus(path)
        rng = random.Random(0)
        lines = [piece_of(d, rng) for d in read_documents(path)]
        some = rng.sample(lines, min(len(lines), FIDELITY_TEXTS))
        kinds[path.name] = root.tokenizer.encode(some, LENGTH)
    if isinstance(root, GenerativeRoot):
        assert isinstance(root.lower, CausalLower)
        return causal_fidelity((root.lower, root.upper), load_language_model(found).decoder, kinds)[1]
    assert isinstance(root.lower, LocalLower)
    return fidelity_report((root.lower, root.upper, root.bias), load_encoder(found.folder), kinds)[1]


def _source_record(source: Source) -> dict[str, str]:
    """What a root records about its source. For a folder this includes the path, since the name
    alone does not find it."""
    where = {"folder": str(source.gguf or source.folder)} if source.kind == "folder" else {}
    return {"kind": source.kind, "name": source.name, "sha256": source.sha256, **where}


def _write(ctx: JobContext, folder: Path, source: Source, spec: ImportRootSpec, paths: list[Path]) -> None:
    """Write the artefact of an encoder's or a language model's root."""
    if source.generates:
        write_language_model(ctx, folder, source, _source_record(source), spec, paths)
    else:
        _write_artefact(ctx, folder, source, spec, paths)


def _write_artefact(
    ctx: JobContext, folder: Path, source: Source, spec: ImportRootSpec, paths: list[Path]
) -> None:
    teacher, tokenizer = load_encoder(source.folder), Tokenizer(source.folder / "tokenizer.json")
    if tokenizer.pad_id != teacher.shape.pad:
        raise UnsupportedModel(
            f"padding is {tokenizer.pad_id} in tokenizer.json and {teacher.shape.pad} in config.json: "
            "give a source whose files belong together",
            field="source",
        )
    options = spec.options
    split = teacher.shape.layers // 2 if spec.split is None else spec.split
    if not 0 <= split < teacher.shape.layers:
        raise InvalidInput(f"split {split} must lie between 0 and {teacher.shape.layers - 1}", field="split")
    n = options.n if split else 1
    parts = split_encoder(teacher, split, tokenizer.cls_id, n)
    fidelity, by_kind = _make_local(ctx, source, teacher, tokenizer, parts, options, paths)
    lower, upper, bias = parts
    pooling, normalise = read_pooling(source.folder)
    info = RootInfo(
        name=spec.name,
        version=ctx.job.job,
        source=_source_record(source),
        shape=teacher.shape,
        split=split,
        created=now(),
        n=n,
        fidelity=fidelity,
        fidelity_by_kind=by_kind,
        pooling=pooling,
        normalise=normalise,
    )
    save_root(folder, Root(info, upper, bias, tokenizer, lower), source.folder / "tokenizer.json")


def _make_local(
    ctx: JobContext,
    source: Source,
    teacher: Encoder,
    tokenizer: Tokenizer,
    parts: _LocalParts,
    options: ImportRootOptions,
    paths: list[Path],
) -> Fidelity:
    """Make `parts` local, with shipped weights or by learning from the texts. Returns their fidelity.

    Without lower layers they are the source itself.
    """
    lower = parts[0]

    def encode(lines: list[str]) -> list[Encoded]:
        return tokenizer.encode(_some_paired(lines), LENGTH)

    if not lower.depth:
        held_out = sample_texts(encode, paths, options.seed, 3 * FIDELITY_TEXTS)[1]
        return _measure_fidelity(ctx, parts, teacher, held_out) if any(held_out.values()) else ({}, {})
    found = shipped_locality(source.sha256, lower.depth, lower.n)
    learns = found is None or options.distil or options.start == "shipped"
    most = MAX_TEXTS if learns else 3 * FIDELITY_TEXTS
    texts, held_out = sample_texts(encode, paths, options.seed, most)
    if found is None or learns:
        check_learnable(source.name, lower, found, texts, paths, options)
        _learn_locality(ctx, teacher, parts, texts, options, found if options.start == "shipped" else None)
        return _measure_fidelity(ctx, parts, teacher, held_out)
    ctx.progress(0, 1, phase="locality weights")
    about: dict[str, Any] = apply_locality(found, parts)
    ctx.progress(1, 1, phase="locality weights")
    if any(held_out.values()):
        return about["fidelity"], _measure_fidelity(ctx, parts, teacher, held_out)[1]
    return about["fidelity"], about.get("fidelity_by_kind", {})


def _measure_fidelity(ctx: JobContext, parts: _LocalParts, teacher: Encoder, held_out: Texts) -> Fidelity:
    ctx.progress(0, 1, phase="fidelity")
    found = fidelity_report(parts, teacher, {kind: texts for kind, texts in held_out.items() if texts})
    ctx.progress(1, 1, phase="fidelity")
    return found


def _publish_plot(ctx: JobContext, folder: Path, alpha: float, texts: list[Path], documents: int) -> None:
    """Publish the root's own PLOT: every token's unigram, the last fallback of every look-up, and
    the n-grams of the text, if there is one."""
    root = load_for_building(folder)
    assert root.lower is not None
    counted = count_corpus(ctx, root.tokenizer, texts, documents, root.info.n)
    vocabulary = np.arange(1, root.info.shape.vocab, dtype=np.uint32)[:, None]
    wanted = [Wanted(1, len(vocabulary), in_chunks(vocabulary)), *choose(counted, alpha)]

    def meta(stored: Mapping[int, int]) -> PlotMeta:
        report = {
            "alpha": alpha,
            "tokens": counted.total(root.info.n),
            **{f"stored_{ORDER_NAMES[order]}s": stored[order] for order in range(root.info.n, 1, -1)},
        }
        return PlotMeta(root.info.version, alpha=alpha, report=report)

    write_version(ctx, root.info.name, root.lower, wanted, parent=None, onto=None, extend=False, meta=meta)


def _some_paired(lines: list[str]) -> list[Text]:
    pairs = zip(lines[::PAIR_EVERY], lines[1::PAIR_EVERY], strict=False)
    return [*lines, *pairs]
