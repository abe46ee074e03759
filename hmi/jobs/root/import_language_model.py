"""Writes the artefact of a language model's root: loads the source, splits it, makes its lower layers local
and measures how far that takes it from the source."""

from __future__ import annotations

from pathlib import Path

from hmi.core import now
from hmi.errors import InvalidInput
from hmi.jobs.root.sampling import FIDELITY_TEXTS, LENGTH, Fidelity, check_learnable, sample_texts
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
from hmi.model.sources.root import GenerativeRootInfo
from hmi.model.sources.source import Source
from hmi.model.text.generative import GenerativeTokenizer
from hmi.training.root.causal import causal_fidelity, fit_folds

FIT_TEXTS = 600
"""Texts from which each order's matrix is fitted."""
DEFAULT_SPLIT = 0
"""No locality weights ship for a language model yet, so by default none of its layers is looked up."""


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
    """Fit the lower layers to the texts, if there are any. Returns their fidelity."""
    lower = parts[0]
    texts, held_out = sample_texts(
        lambda lines: tokenizer.encode(lines, LENGTH),
        paths,
        spec.options.seed,
        FIT_TEXTS + 3 * FIDELITY_TEXTS,
    )
    if lower.depth:
        check_learnable(f"no locality weights ship for {source.name} split at {lower.depth}", texts, paths)
        fit_folds(
            lower,
            teacher,
            texts[:FIT_TEXTS],
            lambda done, total: ctx.progress(done, total, phase="ridge regression"),
        )
    kinds = {kind: some for kind, some in held_out.items() if some}
    if not kinds:
        return {}, {}
    ctx.progress(0, 1, phase="fidelity")
    return causal_fidelity(parts, teacher, kinds)
