"""Writes the artefact of a language model's root: loads the source, splits it, makes its lower layers local
and measures how far that takes it from the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hmi.core import now
from hmi.errors import InvalidInput
from hmi.jobs.options import ImportRootOptions
from hmi.jobs.root.learning import Learning
from hmi.jobs.root.sampling import FIDELITY_TEXTS, LENGTH, MAX_TEXTS, Fidelity, check_learnable, sample_texts
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import ImportRootSpec
from hmi.model.network.decoder import Decoder
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.generative_root import (
    GenerativeRoot,
    UpperDecoder,
    save_generative_root,
    split_decoder,
)
from hmi.model.sources.language_model import load_language_model
from hmi.model.sources.locality import apply_locality, shipped_locality
from hmi.model.sources.root import GenerativeRootInfo
from hmi.model.sources.source import Source
from hmi.model.text.batching import Encoded
from hmi.model.text.generative import GenerativeTokenizer
from hmi.training.root.causal import causal_fidelity, fit_folds
from hmi.training.root.causal_joint import CausalJointPlan, train_causal_jointly

FIT_TEXTS = 600
"""Texts from which each order's matrix is fitted."""
DEFAULT_SPLIT = 0
"""By default none of a language model's layers is looked up, since few domains have the text for it
(docs/design/0033-generation.md)."""


def write_language_model(
    ctx: JobContext,
    folder: Path,
    source: Source,
    about: dict[str, str],
    spec: ImportRootSpec,
    paths: list[Path],
) -> None:
    """Write the root's artefact as `folder`. about: what it records about its source.

    Raises UnsupportedModel, InvalidInput (a split or a text that does not fit), StorageFull, JobCancelled.
    """
    ctx.progress(0, 1, phase="loading the source")
    model = load_language_model(source)
    shape, tokenizer = model.decoder.shape, model.tokenizer
    split = DEFAULT_SPLIT if spec.split is None else spec.split
    if split >= shape.layers:
        raise InvalidInput(f"split {split} must lie between 0 and {shape.layers - 1}", field="split")
    n = spec.options.n if split else 1
    parts = split_decoder(model.decoder, split, tokenizer.begin, n)
    fidelity, by_kind = _make_local(ctx, source, model.decoder, tokenizer, parts, spec, paths)
    lower, upper = parts
    info = GenerativeRootInfo(
        name=spec.name,
        version=ctx.job.job,
        source=about,
        shape=shape,
        split=split,
        created=now(),
        n=n,
        fidelity=fidelity,
        fidelity_by_kind=by_kind,
        begin=tokenizer.begin,
        ends=list(tokenizer.ends),
        template=tokenizer.template,
    )
    save_generative_root(folder, GenerativeRoot(info, upper, tokenizer, lower))


def _make_local(
    ctx: JobContext,
    source: Source,
    teacher: Decoder,
    tokenizer: GenerativeTokenizer,
    parts: tuple[CausalLower, UpperDecoder],
    spec: ImportRootSpec,
    paths: list[Path],
) -> Fidelity:
    """Make `parts` local, with shipped weights or by learning from the texts. Returns their fidelity."""
    lower, options = parts[0], spec.options
    found = shipped_locality(source.sha256, lower.depth, lower.n) if lower.depth else None
    onwards = bool(options.start == "shipped" and options.joint_steps)
    learns = bool(lower.depth) and (found is None or options.distil or onwards)
    if found is not None and options.joint_steps and not learns:
        raise InvalidInput(
            f"locality weights ship for {source.name}, so nothing is trained: give distil=true, or "
            "start=shipped to train them further",
            field="options.joint_steps",
        )
    most = (FIT_TEXTS if learns else 0) + 3 * FIDELITY_TEXTS
    texts, held_out = sample_texts(
        lambda lines: tokenizer.encode(lines, LENGTH),
        paths,
        options.seed,
        MAX_TEXTS if learns and options.joint_steps else most,
    )
    if learns:
        check_learnable(source.name, lower, found, texts, paths, options)
        _learn(ctx, teacher, parts, texts, options, found if options.start == "shipped" else None)
    elif found is not None:
        ctx.progress(0, 1, phase="locality weights")
        about: dict[str, Any] = apply_locality(found, parts)
        if not any(held_out.values()):
            return about["fidelity"], about.get("fidelity_by_kind", {})
    kinds = {kind: some for kind, some in held_out.items() if some}
    if not kinds:
        return {}, {}
    ctx.progress(0, 1, phase="fidelity")
    return causal_fidelity(parts, teacher, kinds)


def _learn(
    ctx: JobContext,
    teacher: Decoder,
    parts: tuple[CausalLower, UpperDecoder],
    texts: list[Encoded],
    options: ImportRootOptions,
    shipped: Path | None,
) -> None:
    """Fit the lower layers to the texts, or start from shipped weights, then train all layers together if
    wanted. Raises as `Learning.run`, Damaged (shipped weights)."""
    lower, upper = parts
    learning = Learning(ctx, {"lower": lower, "upper": upper}, options.checkpoint_s)

    def ridge() -> None:
        fit_folds(
            lower,
            teacher,
            texts[:FIT_TEXTS],
            lambda done, total: ctx.progress(done, total, phase="ridge regression"),
        )

    def load() -> None:
        assert shipped is not None
        ctx.progress(0, 1, phase="locality weights")
        apply_locality(shipped, parts)

    def joint() -> None:
        plan = CausalJointPlan(options.joint_steps, seed=options.seed)
        report, keeper = learning.report("training of all layers together"), learning.keeper("joined")
        train_causal_jointly(parts, teacher, texts, plan, report, bf16=True, keeper=keeper)

    if not options.joint_steps:  # a checkpoint would take longer than the phase
        ridge() if shipped is None else load()
    elif shipped is None:
        learning.run({"ridge": ridge, "joined": joint})
    else:
        learning.run({"loaded": load, "joined": joint})
