"""`bench plot`: builds PLOTs of a real corpus with the server's jobs, then looks up held-out text."""

from __future__ import annotations

import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from bench.cases.plot.perplexity import perplexities
from bench.harness.home import ended
from bench.harness.page_cache import drop_folder
from bench.harness.report import Figure, seconds
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.core import Progress
from hmi.errors import InvalidInput, NotFound
from hmi.model.sources.generative_root import load_generative_root
from hmi.model.sources.source import DEFAULT_PACKAGE
from hmi.model.text.tokenizer import Tokenizer
from hmi.stores.layout import Layout
from hmi.stores.plot.plots import open_plots
from hmi.training.data.corpus import read_documents
from plot_store import Reader, Store

ROOT = "bench"
LENGTH = 128
LEFT_OUT_SHARE = 10
"""One document in this many is held out."""
MOST_LEFT_OUT = 2000
COLD_TEXTS = 25

Texts = list[NDArray[np.int32]]


@dataclass(frozen=True)
class PlotPlan:
    """The builds of a run."""

    corpus: Path
    alphas: tuple[float, ...] = (50.0, 100.0)
    """Percent of the occurrences of n-grams that a PLOT covers."""
    documents: int | None = None
    """The greatest number of documents to build from; None: all."""
    root: str | None = None
    """An imported root; None imports the default source."""


def run(
    plan: PlotPlan, data: Path | None, report: Callable[[str], None], show: Callable[[Progress], None]
) -> Iterator[Figure]:
    """Build PLOTs and measure them in `data` (None: a temporary folder), then remove them.

    `report` gets a line as each step begins, `show` the progress of the current job. Raises HmiError.
    """
    documents = split(plan.corpus, plan.documents)
    with tempfile.TemporaryDirectory(prefix="bench-plot-") as folder:
        settings = Settings.from_env(None, data=data or Path(folder))
        with closing(LocalCalls(settings)) as calls:
            lab = JobLab(calls, settings, show)
            try:
                yield from _measured(plan, lab, documents, report)
            finally:
                lab.remove_built()


def _measured(
    plan: PlotPlan, lab: JobLab, documents: tuple[list[str], list[str]], report: Callable[[str], None]
) -> Iterator[Figure]:
    built, left_out = documents
    yield Figure("documents", len(built), "texts", peer=plan.corpus.name)
    name = lab.root(plan.root, report)
    folder, writes = lab.folder(name)
    root = load_generative_root(folder, with_lower=True) if writes else None
    tokenizer = Tokenizer(folder / "tokenizer.json") if root is None else root.tokenizer
    encoded = tokenizer.encode(left_out, 512)
    # A language model's begin token is not looked up.
    texts = [np.array(e.ids if root is None else e.ids[1:], np.int32) for e in encoded]
    for alpha in plan.alphas:
        suffix = f"alpha_{alpha:g}"
        report(f"alpha {alpha:g}: building from {len(built):,} documents")
        branch = lab.build(name, built, alpha)
        yield from _of_the_build(branch, suffix)
        report(f"alpha {alpha:g}: looking up held-out text")
        with lab.store() as store:
            yield from _hits(store, branch.domain, texts, suffix)
            yield from _times(store, branch.domain, texts, suffix)
            if root is not None:
                report(f"alpha {alpha:g}: predicting held-out text")
                with store.reader(branch.domain) as reader:
                    yield from perplexities(root, reader, encoded, suffix)


@dataclass(frozen=True)
class PlotBuild:
    """A finished build of a PLOT. `spent` is seconds by phase; those before the first are `starting`."""

    domain: str
    result: dict[str, Any]
    bytes: int
    spent: dict[str, float]


class JobLab:
    """A data folder in which jobs run as in a server: each in its own process."""

    def __init__(self, calls: LocalCalls, settings: Settings, show: Callable[[Progress], None]) -> None:
        self._calls, self._settings, self._show = calls, settings, show
        self._made: list[str] = []

    def root(self, wanted: str | None, report: Callable[[str], None]) -> str:
        """Return the wanted root, the one of an earlier run, or the default source, imported now."""
        have, name = self._roots(), wanted or ROOT
        if name in have:
            return name
        if have or wanted is not None:
            names = ", ".join(have) or "(none)"
            raise InvalidInput(f"no root {name!r} in this folder: --root takes one of: {names}", field="root")
        report("importing the default root")
        self._run("/manage/roots", {"root": ROOT, "source": DEFAULT_PACKAGE})
        return ROOT

    def build(self, root: str, documents: list[str], alpha: float) -> PlotBuild:
        """Build a new branch of a root from these documents. Raises HmiError."""
        domain = f"{root}/{ROOT}-{alpha:g}-{secrets.token_hex(3)}".replace(".", "-")
        with tempfile.TemporaryDirectory(dir=self._settings.data) as folder:
            corpus = Path(folder) / "corpus.txt"
            corpus.write_text("\n".join(documents), encoding="utf-8")
            self._made.append(domain)
            body = {"domain": domain, "alpha": alpha}
            result, spent = self._run("/manage/domains", body, {"corpus": corpus})
        with self.store() as store:
            return PlotBuild(domain, result, store.version(domain).bytes, spent)

    def remove_built(self) -> None:
        """Remove the branches that were built here."""
        for domain in self._made:
            with suppress(NotFound):  # its job failed
                self._calls.request("DELETE", f"/manage/domains/{domain.replace('/', '.')}")

    def store(self) -> Store:
        return open_plots(Layout(self._settings.data).plots)

    def folder(self, root: str) -> tuple[Path, bool]:
        """The folder of a root, and whether it is a language model."""
        found = self._roots()[root]
        return Layout(self._settings.data).root(root, found["version"]), found["generates"]

    def _roots(self) -> dict[str, dict[str, Any]]:
        return {root["root"]: root for root in self._calls.request("GET", "/manage/roots")["roots"]}

    def _run(
        self, path: str, body: dict[str, Any], files: dict[str, Path] | None = None
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """Run a job. Returns its result and its seconds by phase. Raises HmiError."""
        begun = {"starting": time.monotonic()}

        def saw(progress: Progress) -> None:
            if progress.phase:
                begun.setdefault(progress.phase, time.monotonic())
            self._show(progress)

        view = ended(self._calls, path, body, files, saw)
        ends = [*begun.values(), time.monotonic()][1:]
        spent = {phase: end - start for (phase, start), end in zip(begun.items(), ends, strict=True)}
        return view["result"], spent


def split(corpus: Path, most: int | None) -> tuple[list[str], list[str]]:
    """Return the documents to build from, at most `most`, and those held out, in the order of the file.

    A document's part depends on its text alone. Raises InvalidInput if a part is too small, InvalidData if
    the corpus cannot be read.
    """
    built: list[str] = []
    left_out: list[str] = []
    for document in read_documents(corpus):
        if xxhash.xxh3_64_intdigest(document.encode()) % LEFT_OUT_SHARE:
            built.append(document)
        elif len(left_out) < MOST_LEFT_OUT:
            left_out.append(document)
        if len(built) == most:
            break
    if len(built) < 2 or not left_out:
        raise InvalidInput(f"{corpus} has too few documents: give at least 100, one a line", field="corpus")
    return built, left_out


def _of_the_build(built: PlotBuild, suffix: str) -> Iterator[Figure]:
    result, spent = built.result, built.spent
    for name in ("tokens", "distinct_trigrams", "distinct_bigrams", "stored_trigrams", "stored_bigrams"):
        if name in result:
            yield Figure(f"{name}_{suffix}", result[name], "")
    counting = spent.get("counting n-grams", 0.0) + spent.get("merging counts", 0.0)
    if counting:
        peer = "tokenising included"
        yield Figure(f"counting_{suffix}", round(result["tokens"] / counting), "tokens/s", peer=peer)
    if "representations" in spent:
        rows = (result["stored_trigrams"] + result["stored_bigrams"]) / spent["representations"]
        yield Figure(f"representations_{suffix}", rows, "rows/s", peer="lower layers, encoding, writing")
    yield Figure(f"build_{suffix}", sum(spent.values()), "s")
    yield Figure(f"size_{suffix}", built.bytes / 1e6, "MB")


def _hits(store: Store, domain: str, texts: Texts, suffix: str) -> Iterator[Figure]:
    """Yield the percent of the held-out tokens that each order answered; the unigrams are the root's."""
    tokens, offsets = np.concatenate(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64)
    with store.reader(domain) as reader:
        counts = reader.lookup(tokens, offsets)[1].counts()
    for name, count in counts.items():
        yield Figure(f"{name}_hits_{suffix}", 100 * count / len(tokens), "%", runs=len(texts))


def _times(store: Store, domain: str, texts: Texts, suffix: str) -> Iterator[Figure]:
    """Yield the time to look up a held-out text of LENGTH tokens.

    Once with its rows in memory, once with the file cache dropped before each text.
    """
    whole = [np.ascontiguousarray(text[:LENGTH]) for text in texts if len(text) >= LENGTH]
    if not whole:
        few = f"no held-out document has {LENGTH} tokens"
        yield Figure(f"one_text_warm_{suffix}", None, "µs", why=few)
        return
    with store.reader(domain) as reader:
        for text in whole:
            _look_up(reader, text)
        warm = [seconds(partial(_look_up, reader, text)) for text in whole]
    yield Figure(f"one_text_warm_{suffix}", 1e6 * statistics.median(warm), "µs", runs=len(warm))
    cold: list[float] = []
    for text in whole[:COLD_TEXTS]:
        why = drop_folder(store.path / "segments")
        if why is not None:
            yield Figure(f"one_text_cold_{suffix}", None, "ms", why=why)
            return
        with store.reader(domain) as reader:
            cold.append(seconds(partial(_look_up, reader, text, prefetch=True), time.perf_counter))
    peer = "a reader just opened: indexes in memory, rows not; wall time"
    yield Figure(f"one_text_cold_{suffix}", 1e3 * statistics.median(cold), "ms", runs=len(cold), peer=peer)


def _look_up(reader: Reader, text: NDArray[np.int32], *, prefetch: bool = False) -> None:
    offsets = np.array([0, len(text)], np.int64)
    if prefetch:
        reader.prefetch(text, offsets)
    reader.lookup(text, offsets)
