"""The job that erases texts from a domain: their n-grams, their passages, and the misses recorded.

A text contributes to a domain's PLOT by its n-grams, and to the domain's sample by its passages. Nothing
records which text brought an n-gram. So the job erases every n-gram of two or more tokens that the text has,
except those that a second text has, too. Of a phrase it erases every n-gram that contains it.

Versions keep their ids, and models stay on them. If a sample loses passages, the job publishes a version that
names the rest of it, since a version's metadata never changes. The lower layers of a branch that was
pretrained further were trained on its corpus. They stay, and the result says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hmi.errors import Damaged, InvalidInput, NotFound
from hmi.jobs.plot.ngrams import TOKENISE_AT_ONCE, UNCUT, count_corpus, texts_of
from hmi.jobs.plot.write_plot import Ngrams, find_published, keys_of
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import KEEP, PHRASES, TEXT, EraseSpec
from hmi.model.files import write_json
from hmi.model.sources.generative_root import load_for_building
from hmi.model.text.generative import GenerativeTokenizer
from hmi.model.text.tokenizer import Tokenizer
from hmi.stores.layout import read_json
from hmi.stores.plot.miss_files import MissFiles
from hmi.stores.plot.plot_meta import PlotMeta, samples_of
from hmi.stores.tensors.content_store import DamagedArtefact
from hmi.training.data.corpus import corpus_as_utf8, read_documents
from plot_store import VersionInfo

RUN: Final = 8
"""A passage is the text's if the two share a run of this many tokens, or of all that the shorter one has."""
REPORTED: Final = "erased_passages"
FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)

Ids = NDArray[np.uint32]  # the tokens of one text, without special tokens


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job. It may be repeated at any point."""
    spec = EraseSpec.of(ctx.job)
    root = ctx.registry.root(ctx.domain(spec.domain).ref.partition("/")[0])
    loaded = load_for_building(ctx.roots.folder(root.name, root.version))
    unwanted = _Unwanted.read(ctx, spec, loaded.tokenizer, loaded.info.n)
    rows = _erase_rows(ctx, spec, unwanted)
    passages = _erase_passages(ctx, spec, unwanted)
    for domain in () if spec.dry_run else {spec.domain, *rows["domains"]}:
        with suppress(NotFound):  # only its versions are left, on which others fall back
            ctx.share(domain)
    misses = _forget_misses(ctx, spec)
    return {
        "domain": spec.domain,
        "dry_run": spec.dry_run,
        **rows,
        **passages,
        "misses": misses,
        "pretrained": any(PlotMeta.of(meta).lower for meta in ctx.plots.metas() if meta.ref == spec.domain),
    }


@dataclass(frozen=True)
class _Unwanted:
    """The texts and phrases of one erasure."""

    tokenizer: Tokenizer | GenerativeTokenizer
    n: int
    texts: tuple[Path, ...]
    """The text, as UTF-8; empty if only phrases were given."""
    kept: tuple[Path, ...]
    phrases: tuple[str, ...]

    @classmethod
    def read(
        cls, ctx: JobContext, spec: EraseSpec, tokenizer: Tokenizer | GenerativeTokenizer, n: int
    ) -> _Unwanted:
        def corpora(name: str) -> tuple[Path, ...]:
            given = ctx.input / name
            if not given.exists():
                return ()
            return (corpus_as_utf8(given, spec.encoding, ctx.folder / f"{name}.utf-8"),)

        phrases = json.loads((ctx.input / PHRASES).read_bytes())
        return cls(tokenizer, n, corpora(TEXT), corpora(KEEP), tuple(phrases))

    def encoded(self, texts: Iterable[str]) -> Iterator[Ids]:
        """Yield the tokens of each text, without special tokens."""
        end = None if isinstance(self.tokenizer, GenerativeTokenizer) else -1
        texts = iter(texts)
        while some := list(islice(texts, TOKENISE_AT_ONCE)):
            for encoded in self.tokenizer.encode(some, UNCUT):
                yield np.array(encoded.ids[1:end], np.uint32)

    def documents(self) -> Iterator[str]:
        """Yield the text's documents, long ones in pieces."""
        return chain.from_iterable(map(texts_of, self.texts))

    def phrase_ids(self) -> list[Ids]:
        """The tokens of the phrases: at the beginning of a text and, where they differ, after a space.

        Raises InvalidInput for a phrase of unknown characters alone. Its token is that of all of them.
        """
        forms = [form for phrase in self.phrases for form in (phrase, f" {phrase}")]
        found = {tuple(ids.tolist()) for ids in self.encoded(forms) if ids.size}
        if any(set(ids) == {self.tokenizer.unknown_id} for ids in found):
            raise InvalidInput(
                "the root's tokenizer knows no character of a phrase, so its n-grams are those of all "
                "unknown words: leave the phrase out, or give more of the text",
                field="phrases",
            )
        return [np.array(ids, np.uint32) for ids in sorted(found)]


def _erase_rows(ctx: JobContext, spec: EraseSpec, unwanted: _Unwanted) -> dict[str, Any]:
    """Erase the n-grams from all versions of the domain. Returns what the result says of them."""
    done = ctx.folder / "erased.json"
    if isinstance(found := read_json(done), dict):
        return found  # an earlier attempt did it
    ngrams = _of_text(ctx, unwanted)
    for order, of_phrases in _of_phrases(ctx, spec.domain, unwanted.phrase_ids()).items():
        ngrams[order] = np.concatenate([ngrams[order], of_phrases])
    erased = ctx.plots.erase(
        [spec.domain],
        {order: np.unique(some, axis=0) for order, some in ngrams.items() if len(some)},
        dry_run=spec.dry_run,
        progress=lambda step, total: ctx.progress(step, total, phase="erasing n-grams"),
    )
    result = {
        "ngrams": {str(order): count for order, count in erased.ngrams.items()},
        "rows": erased.rows,
        "versions": list(erased.versions),
        "domains": list(erased.refs),
        "left": list(erased.left),
    }
    write_json(done, result)
    return result


def _of_text(ctx: JobContext, unwanted: _Unwanted) -> dict[int, Ngrams]:
    """Return the text's n-grams of two or more tokens, by order, without those of the text to keep."""
    orders = range(2, unwanted.n + 1)
    found = {order: [np.empty((0, order), np.uint32)] for order in orders}

    def counted(paths: Sequence[Path], folder: str) -> Callable[[int], Iterator[Ngrams]]:
        documents = sum(1 for path in paths for _ in read_documents(path))
        counts = count_corpus(ctx, unwanted.tokenizer, paths, documents, unwanted.n, folder)
        return lambda order: counts.covering(order, 100)

    if unwanted.texts:
        gone = counted(unwanted.texts, "counts")
        kept = counted(unwanted.kept, "kept") if unwanted.kept else None
        for order in orders:
            found[order] += gone(order)
            if kept is not None:
                some = np.concatenate(found[order])
                for chunk in kept(order):
                    some = some[~np.isin(keys_of(some), keys_of(chunk))]
                found[order] = [some]
    return {order: np.concatenate(some) for order, some in found.items()}


def _of_phrases(ctx: JobContext, domain: str, phrases: Sequence[Ids]) -> dict[int, Ngrams]:
    """Return the domain's n-grams that contain a phrase, by order.

    If a phrase is longer than an n-gram, its own n-grams of the greatest order stand for it.
    """
    found: dict[int, list[Ngrams]] = {}
    seen: set[str] = set()
    # A version that only a child still builds on is not in the domain's history.
    ids = [meta.id for meta in ctx.plots.metas() if meta.ref == domain] if phrases else []
    for version in map(ctx.plots.version, ids):
        own = {segment.name for segment in version.segments}
        if own <= seen:
            continue
        seen |= own
        with ctx.plots.reader(version.id) as reader:
            for order in range(2, version.schema.n + 1):
                ngrams = reader.ngrams(order)
                for phrase in phrases:
                    runs = [phrase] if phrase.size <= order else []
                    if phrase.size > order == version.schema.n:
                        runs = list(np.lib.stride_tricks.sliding_window_view(phrase, order))
                    found.setdefault(order, []).extend(ngrams[_contains(ngrams, run)] for run in runs)
    return {order: np.concatenate(some) for order, some in found.items() if some}


def _contains(ngrams: Ngrams, run: Ids) -> NDArray[np.bool_]:
    """Which n-grams [m, order] contain a run of tokens; bool [m]."""
    windows = np.lib.stride_tricks.sliding_window_view(ngrams, run.size, axis=1)
    return np.asarray((windows == run).all(axis=2).any(axis=1))


def _erase_passages(ctx: JobContext, spec: EraseSpec, unwanted: _Unwanted) -> dict[str, Any]:
    """Remove passages of the text from the samples of all versions. Returns what the result says of them."""
    published, current = find_published(ctx, spec.domain), ctx.domain(spec.domain)
    named = samples_of(meta for meta in ctx.plots.metas() if meta.ref == current.ref)
    found = {name: _read(ctx, name) for name in sorted(named) if ctx.samples.has(name)}
    documents = list(unwanted.encoded(unwanted.documents()))
    lost = {name: _lost(unwanted, passages, documents) for name, passages in found.items()}
    counts = {name: int(which.sum()) for name, which in lost.items()}
    version = current
    if not spec.dry_run:
        mine = PlotMeta.of(current).sample
        if mine is not None and counts.get(mine):
            left = [p for p, gone in zip(found[mine], lost[mine], strict=True) if not gone]
            version = _publish(ctx, current, left, counts[mine])
        ctx.samples.remove({name for name, count in counts.items() if count or not found[name]})
    before = 0 if published is None else PlotMeta.of(published).report[REPORTED]  # by an earlier attempt
    return {"passages": max(before, *counts.values(), 0), "version": version.id}


def _read(ctx: JobContext, name: str) -> list[str]:
    """The passages of a sample. A damaged one, which may have some of the text, counts as empty."""
    try:
        return ctx.samples.get(name)
    except DamagedArtefact as error:
        ctx.log(error.message)
        return []


def _lost(unwanted: _Unwanted, passages: Sequence[str], documents: Sequence[Ids]) -> NDArray[np.bool_]:
    """Which passages hold a phrase, or share RUN tokens in a row with a document; bool [passages].

    A passage of fewer tokens than RUN is lost if a document has all of it. It holds a phrase if it has its
    characters or its tokens, which other forms of the same characters have, too.
    """
    phrases = [" ".join(phrase.split()).casefold() for phrase in unwanted.phrases]
    lost = np.array([any(phrase in passage.casefold() for phrase in phrases) for passage in passages], bool)
    encoded = list(unwanted.encoded(passages))
    for phrase in unwanted.phrase_ids():
        has = [ids.size >= phrase.size and bool(_contains(ids[None], phrase)[0]) for ids in encoded]
        lost |= np.array(has, bool)
    for length in range(1, RUN + 1):
        mine = [i for i, ids in enumerate(encoded) if ids.size == length or ids.size > length == RUN]
        theirs = [_runs(ids, length) for ids in documents if ids.size >= length]
        if mine and theirs:
            runs = [_runs(encoded[i], length) for i in mine]
            owners = np.repeat(mine, [one.size for one in runs])
            lost[owners[np.isin(np.concatenate(runs), np.concatenate(theirs))]] = True
    return lost


def _runs(ids: Ids, length: int) -> NDArray[np.uint64]:
    """A hash of each run of `length` tokens: uint32 [m] -> uint64 [m - length + 1]."""
    found = np.zeros(ids.size - length + 1, np.uint64)
    for at in range(length):
        found = found * FACTOR + ids[at : at + found.size] + np.uint64(1)
    return found


def _publish(ctx: JobContext, current: VersionInfo, left: Sequence[str], count: int) -> VersionInfo:
    """Publish the current version again, with what is left of its sample."""
    before = PlotMeta.of(current)
    name = ctx.samples.put(left) if left else None
    figures = {"sample_passages": len(left), "sample_bytes": ctx.samples.size_of(name) if name else 0}
    meta = replace(before, sample=name, report={**before.report, **figures, REPORTED: count})
    with ctx.plots.writer(current.ref, schema=current.schema, build=ctx.job.job, extend=True) as writer:
        return writer.publish(expect=current.id, meta=meta.to_dict())


def _forget_misses(ctx: JobContext, spec: EraseSpec) -> int:
    """Delete the misses recorded for the domain, since nothing tells which text they came from.

    Returns their number.
    """
    files = MissFiles(ctx.layout.misses)
    try:
        sketch = files.all(spec.domain)
    except Damaged as error:
        ctx.log(error.message)
        sketch = None
    if not spec.dry_run:
        files.forget(spec.domain)
    return 0 if sketch is None else sketch.seen
