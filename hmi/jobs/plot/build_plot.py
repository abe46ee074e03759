"""The job that builds a domain's PLOT: it checks the corpus, pretrains the lower layers if asked,
counts n-grams, computes their entries and publishes a version.

A build has a budget of bytes or an alpha. It may instead grow a PLOT by the n-grams that the domain's texts
missed most, from the sketch in the job's input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hmi.core import DomainId
from hmi.errors import Conflict, InvalidInput, NotFound
from hmi.jobs.options import BuildPlotOptions
from hmi.jobs.plot.count_part import count_for_build
from hmi.jobs.plot.differences import Differences
from hmi.jobs.plot.ngrams import choose
from hmi.jobs.plot.samples import keep_sample
from hmi.jobs.plot.write_plot import (
    Wanted,
    find_published,
    in_chunks,
    missing,
    only_missing,
    schema_of,
    with_own,
    write_version,
)
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.runtime.folders import PinnedPlots
from hmi.jobs.specs import BuildPlotSpec
from hmi.model.files import read_checkpoint, write_checkpoint
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.generative_root import GenerativeRoot, load_for_building
from hmi.model.sources.lower import LocalLower
from hmi.model.sources.root import Root, lower_from
from hmi.model.text.batching import Encoded
from hmi.stores.plot.miss_files import SKETCH, MissFiles, read_sketch
from hmi.stores.plot.plot_meta import PlotMeta
from hmi.stores.plot.plots import current_version
from hmi.stores.tensors.adapter_store import DamagedArtefact
from hmi.training.data.corpus import check_corpus, corpus_as_utf8, open_corpus, read_documents
from hmi.training.root.pretraining import PretrainPlan, pretrain_lower
from plot_store import (
    ORDER_NAMES,
    Among,
    CountedNgrams,
    Reader,
    Schema,
    VersionInfo,
    disk_bytes,
    entries_within,
    entry_bytes,
)


def _publish_grown(
    ctx: JobContext,
    domain: DomainId,
    parent: VersionInfo,
    lower_name: str | None,
    lower: LocalLower | CausalLower,
    min_count: int,
) -> VersionInfo:
    """Publish `parent` extended by the n-grams that were missed at least `min_count` times and are
    not stored yet.

    Raises Conflict if there are none, or if the domain has a newer version.
    """
    sketch = read_sketch(ctx.input / SKETCH)
    ngrams, counts, _ = sketch.top(min_count=min_count)
    wanted = [Wanted(sketch.n, len(ngrams), in_chunks(ngrams))]

    def meta(stored: Mapping[int, int]) -> PlotMeta:
        if not stored[sketch.n]:
            raise Conflict(
                f"the n-grams that {domain} missed often are all stored by now: there is nothing to grow by"
            )
        report = {
            "missed_trigrams": sketch.seen,
            "counted_trigrams": int(counts.sum()),
            "stored_trigrams": stored[sketch.n],
            "min_count": min_count,
        }
        return replace(PlotMeta.of(parent), report=report)

    with ctx.plots.reader(parent.id) as reader:
        missing = only_missing(wanted, reader, lower_name)
        return write_version(
            ctx, str(domain), lower, missing, parent=None, onto=parent.id, extend=True, meta=meta
        )


def _delete_misses(ctx: JobContext, domain: DomainId, epoch: str | None) -> None:
    """Delete the recorded misses after the publication. A second call does nothing."""
    files = MissFiles(ctx.layout.misses)
    files.forget(str(domain), only_epoch=epoch)


_FIELD: Final = "options.budget_bytes"
_SHORTER_SHARE: Final = 0.8
"""Share of a trigram PLOT's budget that bigrams get. Any share from 0.7 to 0.9 does about
as well (docs/design/0006-alpha-and-storage.md)."""

_Histogram = Mapping[int, int]  # number of occurrences -> number of n-grams that occur so often


@dataclass(frozen=True)
class _NgramChoice:
    """The n-grams chosen for a PLOT. With its ancestors' entries they cover `alpha` percent of the
    longest n-grams' occurrences."""

    wanted: list[Wanted]
    alpha: float


def check_budget(budget: int, spent: int, schema: Schema) -> int:
    """Return the bytes that remain of a budget of which `spent` are used. Raises InvalidInput if
    they hold no entry."""
    least = disk_bytes(schema, schema.n, 1)
    if budget - spent >= least:
        return budget - spent
    if spent:
        raise InvalidInput(
            f"the domain's current version already takes {spent:,} of the budget's {budget:,} bytes: "
            f"give at least {spent + least:,}, or an alpha",
            field=_FIELD,
        )
    raise InvalidInput(
        f"{budget:,} bytes hold no n-gram (an entry takes {entry_bytes(schema, schema.n):,}, and its "
        f"files need room): give at least {least:,}, or alpha 0 for a branch without entries of its own",
        field=_FIELD,
    )


def _choose_within(
    counted: CountedNgrams, schema: Schema, room: int, min_count: int, among: Callable[[int], Among | None]
) -> _NgramChoice:
    """Choose the most frequent n-grams that fit in `room` bytes.

    `among(order)` selects the n-grams that would take bytes; the others are stored already. The
    counts are read once or twice for each order. Raises as `CountedNgrams.histogram`.
    """
    orders, n = range(2, schema.n + 1), schema.n
    costing = {order: counted.histogram(order, among(order)) for order in orders}
    available = {order: sum(k for c, k in costing[order].items() if c >= min_count) for order in orders}
    numbers = split_budget(schema, room, available)
    wanted = [
        Wanted(order, numbers[order], counted.most_frequent(order, numbers[order], min_count, among(order)))
        for order in orders
    ]
    bought = top_occurrences(costing[n], numbers[n])
    shared = counted.total(n) - sum(count * ngrams for count, ngrams in costing[n].items())
    return _NgramChoice(wanted, round(100 * (bought + shared) / max(1, counted.total(n)), 2))


def split_budget(schema: Schema, room: int, available: Mapping[int, int]) -> dict[int, int]:
    """The number of n-grams of each order, from 2 up, to store in `room` bytes; at most `available[order]`.

    With n = 3, bigrams get _SHORTER_SHARE and trigrams the rest. With a larger n, the rest of each
    order is split again. Bytes that an order does not need go to the longer orders first, then to
    the shorter ones.
    """
    taken, spent, up_to = dict.fromkeys(available, 0), 0, 0.0
    for order in sorted(available):
        longer = schema.n - order
        up_to += _SHORTER_SHARE**longer * (1 - _SHORTER_SHARE if order > 2 else 1)
        taken[order] = min(available[order], entries_within(schema, order, int(room * up_to) - spent))
        spent += disk_bytes(schema, order, taken[order])
    for order in sorted(available):
        spent -= disk_bytes(schema, order, taken[order])
        taken[order] = max(taken[order], min(available[order], entries_within(schema, order, room - spent)))
        spent += disk_bytes(schema, order, taken[order])
    return taken


def top_occurrences(histogram: _Histogram, most: int) -> int:
    """The total occurrences of the `most` most frequent n-grams."""
    found = 0
    for count in sorted(histogram, reverse=True):
        taken = min(most, histogram[count])
        found, most = found + count * taken, most - taken
    return found


PRETRAIN_TEXTS = 20_000
"""Further pretraining stops reading the corpus once it has this many texts."""
PRETRAINED_MIN_DIFFERENCE = 0.15
"""Default of min_difference with further pretraining (measured in docs/design/0006-alpha-and-storage.md)."""


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job."""
    spec = BuildPlotSpec.of(ctx.job)
    domain = spec.domain_id
    published = find_published(ctx, str(domain))
    if published is None:
        published = (_grow if spec.mode == "grow" else _build)(ctx, domain, spec)
    ctx.share(str(domain))
    if spec.mode == "grow":
        _delete_misses(ctx, domain, spec.epoch)
    return {
        "domain": str(domain),
        "version": published.id,
        "bytes": published.bytes,
        "generates": ctx.registry.root(domain.root).generates,
        **PlotMeta.of(published).report,
    }


def _build(ctx: JobContext, domain: DomainId, spec: BuildPlotSpec) -> VersionInfo:
    """Build a version from the input corpus."""
    source, options = ctx.input / "corpus", spec.options
    corpus = corpus_as_utf8(source, options.encoding, ctx.folder / "corpus")
    documents = check_corpus(corpus)
    parent = _pinned_parent(ctx, domain, spec.mode)
    root = _root_of(ctx, domain)
    lower_name, lower = _lower_of(ctx, root, parent)
    pretrained, update, schema = spec.pretrain, spec.mode == "update", schema_of(lower)
    budget = options.budget_bytes
    room = None if budget is None else check_budget(budget, parent.bytes if update else 0, schema)
    if pretrained:
        if isinstance(root, GenerativeRoot) or isinstance(lower, CausalLower):
            raise InvalidInput(
                f"root {root.info.name} is a language model, which is not pretrained further: leave "
                "pretrain out",
                field="pretrain",
            )
        lower_name = _pretrain(ctx, root, lower, corpus, options)
    counted = count_for_build(ctx, domain, root, corpus, documents)
    differences = Differences(ctx.folder, _min_difference(options, pretrained))
    sample = keep_sample(
        ctx, corpus, documents, options.sample, PlotMeta.of(parent).sample if update else None
    )

    with ctx.plots.reader(parent.id) as reader:
        stored_before = _Stored(reader, lower_name, fresh=pretrained, update=update)
        choice = _choose(ctx, counted, spec, schema, room, stored_before)

        def meta(stored: Mapping[int, int]) -> PlotMeta:
            report = {**_report(documents, counted, stored), "alpha": choice.alpha, "pretrained": pretrained}
            report["read"] = open_corpus(source, encoding=options.encoding).read
            report |= {"text_bytes": source.stat().st_size, **_left_out(schema, differences), **sample.report}
            return PlotMeta(root.info.version, lower_name, choice.alpha, budget, sample.name, report=report)

        return write_version(
            ctx,
            str(domain),
            lower,
            stored_before.to_compute(choice.wanted),
            parent=None if update else parent.id,
            onto=parent.id if update else None,
            extend=update and not pretrained,
            meta=meta,
            differences=differences,
        )


def _min_difference(options: BuildPlotOptions, pretrained: bool) -> float:
    """The build's min_difference.

    Without further pretraining, an entry that differs little from an ancestor's equals it, and
    equal entries are never selected. The default is then 0.
    """
    if options.min_difference is not None:
        return options.min_difference
    return PRETRAINED_MIN_DIFFERENCE if pretrained else 0.0


@dataclass(frozen=True)
class _Stored:
    """The entries that exist before a build: those of the version that it extends or falls back on."""

    reader: Reader  # of that version
    lower: str | None  # the lower layers that this build computes with
    fresh: bool  # this build trained those lower layers
    update: bool

    def to_compute(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """The n-grams to compute: the wanted ones, without those that need not be stored again."""
        if not self.fresh:
            return only_missing(wanted, self.reader, self.lower)
        # New lower layers make every stored row stale, so an update computes the domain's own n-grams again.
        return with_own(wanted, self.reader) if self.update else list(wanted)

    def candidates(self, order: int) -> Among | None:
        """A filter for the n-grams of an order that would take further bytes; None: all of them."""
        if not self.fresh:
            return lambda ngrams: missing(self.reader, order, ngrams, self.lower)
        return (lambda ngrams: self.reader.depths(order, ngrams) != 0) if self.update else None


def _choose(
    ctx: JobContext,
    counted: CountedNgrams,
    spec: BuildPlotSpec,
    schema: Schema,
    room: int | None,
    stored_before: _Stored,
) -> _NgramChoice:
    if room is None:
        assert spec.alpha is not None, "a build has an alpha or a budget"
        return _NgramChoice(choose(counted, spec.alpha, spec.options.min_count), spec.alpha)
    ctx.progress(0, 1, phase="choosing n-grams")
    choice = _choose_within(counted, schema, room, spec.options.min_count, stored_before.candidates)
    ctx.progress(1, 1, phase="choosing n-grams")
    return choice


def _left_out(schema: Schema, differences: Differences) -> dict[str, int]:
    """Report fields: the number of entries left out because they are near their fallback, and
    the bytes saved."""
    dropped = {f"dropped_{ORDER_NAMES[k]}s": differences.dropped[k] for k in schema.orders if k > 1}
    return {**dropped, "bytes_saved": sum(n * entry_bytes(schema, k) for k, n in differences.dropped.items())}


def _grow(ctx: JobContext, domain: DomainId, spec: BuildPlotSpec) -> VersionInfo:
    parent = _pinned_parent(ctx, domain, spec.mode)
    lower_name, lower = _lower_of(ctx, _root_of(ctx, domain), parent)
    return _publish_grown(ctx, domain, parent, lower_name, lower, spec.min_count)


def _root_of(ctx: JobContext, domain: DomainId) -> Root | GenerativeRoot:
    record = ctx.registry.root(domain.root)
    return load_for_building(ctx.roots.folder(record.name, record.version))


def _pinned_parent(ctx: JobContext, domain: DomainId, mode: str) -> VersionInfo:
    """The version to build on. It is fixed at the job's first start, so that a resumed build
    chooses the same n-grams."""
    pinned = ctx.pinned().parent
    if pinned is None:
        pinned = _parent_version(ctx, domain, mode).id
        ctx.pin(PinnedPlots(parent=pinned))
    return ctx.plots.version(pinned)


def _parent_version(ctx: JobContext, domain: DomainId, mode: str) -> VersionInfo:
    if mode in ("update", "grow"):
        return ctx.domain(str(domain))
    if current_version(ctx.plots, str(domain)) is not None:
        raise Conflict(f"domain {domain} exists already: update it, or choose another name", field="domain")
    parent = None if domain.parent is None else current_version(ctx.plots, str(domain.parent))
    if parent is None:
        raise NotFound(f"the parent of {domain} does not exist: create {domain.parent} first", field="domain")
    return parent


def _lower_of(
    ctx: JobContext, root: Root | GenerativeRoot, version: VersionInfo
) -> tuple[str | None, LocalLower | CausalLower]:
    """The lower layers that computed a PLOT version, and their name: the branch's own after further
    pretraining, else the root's (name None)."""
    name = PlotMeta.of(version).lower
    if name is None or isinstance(root, GenerativeRoot):
        assert root.lower is not None
        return None, root.lower
    try:
        return name, lower_from(ctx.lowers.get(name), root.info, root.tokenizer.cls_id)
    except DamagedArtefact as error:
        raise error.of(f"domain {version.ref}'s lower layers") from error


def _pretrain(ctx: JobContext, root: Root, lower: LocalLower, corpus: Path, options: BuildPlotOptions) -> str:
    """Pretrain `lower` in place, store it, and return its name. A resumed job loads the finished
    result from its checkpoint."""
    done = ctx.folder / "pretrained.safetensors"
    found = read_checkpoint(done)
    if found is not None:
        lower.load_state_dict(found[0])
    else:
        texts: list[Encoded] = []
        for document in read_documents(corpus):
            if len(texts) == PRETRAIN_TEXTS:
                break
            texts += (e for e in root.tokenizer.encode([document], 256) if len(e) > 4)
        plan = PretrainPlan(steps=options.pretrain_steps, seed=options.seed)

        def report(step: int, total: int, loss: float) -> None:
            ctx.progress(step, total, phase="further pretraining", loss=loss)

        pretrain_lower(lower, root.bias, root.upper, texts, root.tokenizer.mask_id, plan, report)
        write_checkpoint(done, lower.state_dict())
        ctx.checkpointed()
    name, _ = ctx.lowers.put(lower.state_dict(), {"root": root.info.version})
    return name


def _report(documents: int, counted: CountedNgrams, stored: Mapping[int, int]) -> dict[str, Any]:
    return {
        "documents": documents,
        "tokens": counted.total(counted.n),
        **{f"distinct_{ORDER_NAMES[order]}s": counted.distinct(order) for order in range(counted.n, 1, -1)},
        **{f"stored_{ORDER_NAMES[order]}s": stored[order] for order in range(counted.n, 1, -1)},
    }
