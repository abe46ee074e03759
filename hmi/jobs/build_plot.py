"""A domain branch: check the corpus, pretrain further if asked, count n-grams, compute and publish the PLOT."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hmi.core import DomainId
from hmi.errors import Conflict, NotFound
from hmi.jobs.context import JobContext
from hmi.jobs.corpus import check_corpus, read_documents
from hmi.jobs.ngrams import Keys, NgramCounts, count_ngrams
from hmi.jobs.options import BuildPlotOptions
from hmi.jobs.plots import find_published, not_stored, stored, write_version
from hmi.model.batching import Encoded
from hmi.model.files import read_tensors, write_json, write_tensors
from hmi.model.lower import LocalLower
from hmi.model.pretrain import PretrainPlan, pretrain_lower
from hmi.model.root import Root, load_root, lower_from
from hmi.model.tokenizer import Tokenizer
from plot_store import VersionInfo

TOKENISE_AT_ONCE = 256
UNCUT = 1 << 30
LONGEST_PIECE = 100_000
NONE: Keys = np.empty(0, np.uint64)
PRETRAIN_DOCUMENTS = 20_000


def run(ctx: JobContext) -> dict[str, Any]:
    """Job body. Spec: domain, mode (create | update), alpha, pretrain, options; input: corpus."""
    spec = ctx.job.spec
    domain, options = DomainId.parse(spec["domain"]), BuildPlotOptions(**spec.get("options") or {})
    published = find_published(ctx, str(domain))
    if published is None:
        published = _build(ctx, domain, spec, options)
    return {"domain": str(domain), "version": published.id, **published.meta["report"]}


def _build(ctx: JobContext, domain: DomainId, spec: dict[str, Any], options: BuildPlotOptions) -> VersionInfo:
    corpus = ctx.input / "corpus"
    documents = check_corpus(corpus)
    parent = _pinned_parent(ctx, domain, spec["mode"])
    root_record = ctx.registry.root(domain.root)
    root = load_root(ctx.settings.data / "roots" / root_record.name / root_record.version, with_lower=True)
    lower_name, lower = _lower_of(ctx, root, parent)
    pretrained = bool(spec.get("pretrain"))
    if pretrained:
        lower_name = _pretrain(ctx, root, lower, corpus, options)
    counts = _count(ctx, root.tokenizer, corpus, documents)
    alpha, update = float(spec["alpha"]), spec["mode"] == "update"
    keys = choose_ngrams(counts, alpha, options.min_count)
    with ctx.plots.reader(parent.id) as reader:
        if not pretrained:
            keys = {order: not_stored(reader, order, k, lower_name) for order, k in keys.items()}
        elif update:
            # The new lower layers make every old row stale: what the domain covered is computed anew.
            keys = {order: np.union1d(keys.get(order, NONE), stored(reader, order)) for order in (1, 2, 3)}
    report = _report(documents, counts, keys, alpha, pretrained)
    return write_version(
        ctx,
        str(domain),
        lower,
        keys,
        parent=None if update else parent.id,
        onto=parent.id if update else None,
        extend=update and not pretrained,
        meta={"root_version": root_record.version, "lower": lower_name, "alpha": alpha, "report": report},
    )


def choose_ngrams(counts: tuple[NgramCounts, NgramCounts], alpha: float, min_count: int = 1) -> dict[int, Keys]:
    """Trigrams covering α% of their occurrences, and bigrams covering half of the rest besides.

    Bigrams are what a missed trigram falls back on, and few are needed: at α = 50 they cover 75%.
    """
    bigrams, trigrams = counts
    chosen = {3: trigrams.covering(alpha, min_count)}
    chosen[2] = bigrams.covering((100 + alpha) / 2 if alpha > 0 else 0, min_count)
    return chosen


def tokenised(tokenizer: Tokenizer, corpus: Path) -> Iterator[list[int]]:
    """The ids of each document, uncut; one of over LONGEST_PIECE characters comes as several."""
    batch: list[str] = []
    for document in read_documents(corpus):
        for piece in pieces(document):
            batch.append(piece)
            if len(batch) == TOKENISE_AT_ONCE:
                yield from (e.ids for e in tokenizer.encode(batch, UNCUT))
                batch = []
    if batch:
        yield from (e.ids for e in tokenizer.encode(batch, UNCUT))


def pieces(document: str, longest: int = LONGEST_PIECE) -> Iterator[str]:
    """A document split at whitespace into pieces of at most `longest` characters (mid-word where there is none)."""
    start = 0
    while len(document) - start > longest:
        end = start + longest
        while end > start and not document[end].isspace():
            end -= 1
        end = end if end > start else start + longest
        yield document[start:end]
        start = end
    yield document[start:]


def _pinned_parent(ctx: JobContext, domain: DomainId, mode: str) -> VersionInfo:
    """The version to build on, fixed at the first start: a resumed build must choose the same n-grams."""
    plan = ctx.folder / "plan.json"
    if not plan.exists():
        write_json(plan, {"parent": _parent_version(ctx, domain, mode).id})
    return ctx.plots.version(json.loads(plan.read_text())["parent"])


def _parent_version(ctx: JobContext, domain: DomainId, mode: str) -> VersionInfo:
    refs = ctx.plots.refs()
    if mode == "update":
        if str(domain) not in refs:
            raise NotFound(f"domain {domain} does not exist: create it first", field="domain")
        return refs[str(domain)]
    if str(domain) in refs:
        raise Conflict(f"domain {domain} exists already: update it, or choose another name", field="domain")
    if domain.parent is None or str(domain.parent) not in refs:
        raise NotFound(f"the parent of {domain} does not exist: create {domain.parent} first", field="domain")
    return refs[str(domain.parent)]


def _lower_of(ctx: JobContext, root: Root, version: VersionInfo) -> tuple[str | None, LocalLower]:
    """The lower layers behind a PLOT version: a branch's own if it was pretrained further, else the root's."""
    name = version.meta.get("lower")
    if name is None:
        assert root.lower is not None
        return None, root.lower
    return name, lower_from(ctx.lowers.get(name), root.info, root.tokenizer.cls_id)


def _pretrain(ctx: JobContext, root: Root, lower: LocalLower, corpus: Path, options: BuildPlotOptions) -> str:
    """Pretrain `lower` in place and store it; a resumed job takes the finished result from its checkpoint."""
    done = ctx.folder / "pretrained.safetensors"
    if done.exists():
        lower.load_state_dict(read_tensors(done))
    else:
        texts: list[Encoded] = []
        for document in read_documents(corpus):
            if len(texts) == PRETRAIN_DOCUMENTS:
                break
            texts += (e for e in root.tokenizer.encode([document], 256) if len(e) > 4)
        plan = PretrainPlan(steps=options.pretrain_steps, seed=options.seed)

        def report(step: int, total: int, loss: float) -> None:
            ctx.progress(step, total, phase="further pretraining", loss=loss)

        pretrain_lower(lower, root.bias, root.upper, texts, root.tokenizer.mask_id, plan, report)
        write_tensors(done, lower.state_dict())
    name, _ = ctx.lowers.put(lower.state_dict(), {"root": root.info.version})
    return name


def _count(ctx: JobContext, tokenizer: Tokenizer, corpus: Path, documents: int) -> tuple[NgramCounts, NgramCounts]:
    def watched() -> Iterator[list[int]]:
        for number, ids in enumerate(tokenised(tokenizer, corpus), 1):
            yield ids
            if number % TOKENISE_AT_ONCE == 0 or number == documents:
                # Long documents count as several.
                ctx.progress(min(number, documents), documents, phase="counting n-grams")

    return count_ngrams(watched())


def _report(
    documents: int, counts: tuple[NgramCounts, NgramCounts], keys: dict[int, Keys], alpha: float, pretrained: bool
) -> dict[str, Any]:
    bigrams, trigrams = counts
    return {
        "documents": documents,
        "tokens": trigrams.total,
        "distinct_trigrams": len(trigrams.keys),
        "distinct_bigrams": len(bigrams.keys),
        "stored_trigrams": len(keys[3]),
        "stored_bigrams": len(keys[2]),
        "alpha": alpha,
        "pretrained": pretrained,
    }
