"""A domain branch: check the corpus, pretrain further if asked, count n-grams, compute and publish the PLOT."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmi.core import DomainId
from hmi.errors import Conflict, NotFound
from hmi.jobs.context import JobContext
from hmi.jobs.corpus import check_corpus, read_documents
from hmi.jobs.grow_plot import grow, grown
from hmi.jobs.ngrams import choose, count_corpus
from hmi.jobs.options import BuildPlotOptions
from hmi.jobs.plots import find_published, only_missing, with_own, write_version
from hmi.model.batching import Encoded
from hmi.model.files import read_tensors, write_json, write_tensors
from hmi.model.lower import LocalLower
from hmi.model.pretrain import PretrainPlan, pretrain_lower
from hmi.model.root import Root, load_root, lower_from
from plot_store import CountedNgrams, VersionInfo

PRETRAIN_DOCUMENTS = 20_000


def run(ctx: JobContext) -> dict[str, Any]:
    """Job body. Spec: domain, mode (create | update | grow) and, by mode, what `_build` and `grow` need."""
    spec = ctx.job.spec
    domain = DomainId.parse(spec["domain"])
    published = find_published(ctx, str(domain))
    if published is None:
        published = (_grow if spec["mode"] == "grow" else _build)(ctx, domain, spec)
    if spec["mode"] == "grow":
        grown(ctx, domain)
    return {"domain": str(domain), "version": published.id, **published.meta["report"]}


def _build(ctx: JobContext, domain: DomainId, spec: dict[str, Any]) -> VersionInfo:
    """Spec: alpha, pretrain, options; input: corpus."""
    corpus, options = ctx.input / "corpus", BuildPlotOptions(**spec.get("options") or {})
    documents = check_corpus(corpus)
    parent = _pinned_parent(ctx, domain, spec["mode"])
    root = _root_of(ctx, domain)
    lower_name, lower = _lower_of(ctx, root, parent)
    pretrained = bool(spec.get("pretrain"))
    if pretrained:
        lower_name = _pretrain(ctx, root, lower, corpus, options)
    counted = count_corpus(ctx, root.tokenizer, [corpus], documents)
    alpha, update = float(spec["alpha"]), spec["mode"] == "update"
    wanted = choose(counted, alpha, options.min_count)

    def meta(stored: Mapping[int, int]) -> dict[str, Any]:
        report = {**_report(documents, counted, stored), "alpha": alpha, "pretrained": pretrained}
        return {"root_version": root.info.version, "lower": lower_name, "alpha": alpha, "report": report}

    with ctx.plots.reader(parent.id) as reader:
        if not pretrained:
            wanted = only_missing(wanted, reader, lower_name)
        elif update:
            # The new lower layers make every old row stale: what the domain covered is computed anew.
            wanted = with_own(wanted, reader)
        return write_version(
            ctx,
            str(domain),
            lower,
            wanted,
            parent=None if update else parent.id,
            onto=parent.id if update else None,
            extend=update and not pretrained,
            meta=meta,
        )


def _grow(ctx: JobContext, domain: DomainId, spec: dict[str, Any]) -> VersionInfo:
    parent = _pinned_parent(ctx, domain, spec["mode"])
    lower_name, lower = _lower_of(ctx, _root_of(ctx, domain), parent)
    return grow(ctx, domain, parent, lower_name, lower, int(spec["min_count"]))


def _root_of(ctx: JobContext, domain: DomainId) -> Root:
    record = ctx.registry.root(domain.root)
    return load_root(ctx.settings.data / "roots" / record.name / record.version, with_lower=True)


def _pinned_parent(ctx: JobContext, domain: DomainId, mode: str) -> VersionInfo:
    """The version to build on, fixed at the first start: a resumed build must choose the same n-grams."""
    plan = ctx.folder / "plan.json"
    if not plan.exists():
        write_json(plan, {"parent": _parent_version(ctx, domain, mode).id})
    return ctx.plots.version(json.loads(plan.read_text())["parent"])


def _parent_version(ctx: JobContext, domain: DomainId, mode: str) -> VersionInfo:
    refs = ctx.plots.refs()
    if mode in ("update", "grow"):
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


def _report(documents: int, counted: CountedNgrams, stored: Mapping[int, int]) -> dict[str, Any]:
    return {
        "documents": documents,
        "tokens": counted.total(3),
        "distinct_trigrams": counted.distinct(3),
        "distinct_bigrams": counted.distinct(2),
        "stored_trigrams": stored[3],
        "stored_bigrams": stored[2],
    }
