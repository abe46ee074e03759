"""`bench plot`: builds PLOTs of a real corpus with the server's jobs, then looks up held-out text."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.cases.plot.lab import Built, Lab, Report
from bench.cases.plot.split import CorpusSplit, Estimate, estimates, fitting, split
from bench.cases.store.cold import drop
from bench.harness.report import Row, seconds
from hmi.config import Settings
from hmi.core import Progress
from hmi.model.tokenizer import Tokenizer
from plot_store import Reader, Store

LENGTH = 128
PILOT = 60
"""Documents of the pilot build, which has about ten thousand rows."""
COLD_TEXTS = 25


@dataclass(frozen=True)
class Plan:
    """The builds of a run."""

    corpus: Path
    alphas: tuple[float, ...] = (50.0, 100.0)
    minutes: float | None = None
    """Build from as many documents as should take this long. None: all."""
    limit: int | None = None
    """The greatest number of documents."""
    root: str | None = None
    """An imported root; None imports the default source."""


def run(plan: Plan, data: Path | None, report: Report, show: Callable[[Progress], None]) -> Iterator[Row]:
    """Build PLOTs and measure them in `data` (None: a temporary folder), then remove them.

    `report` gets a line as each step begins, `show` the progress of the current job. Raises HmiError.
    """
    parts = split(plan.corpus, plan.limit)
    folder = data or Path(tempfile.mkdtemp(prefix="bench-plot-"))
    try:
        with Lab(Settings.from_env(None, data=folder), plan.root, report, show) as lab:
            yield from _measured(plan, parts, lab, report)
    finally:
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)


def _measured(plan: Plan, parts: CorpusSplit, lab: Lab, report: Report) -> Iterator[Row]:
    tokenizer = lab.tokenizer()
    documents = parts.built
    if plan.minutes is not None:
        begun = time.monotonic()
        chosen = _chosen(plan, parts, lab, tokenizer, report)
        documents = documents[: chosen.documents]
        yield Row(
            "estimated_minutes", round(chosen.seconds / 60, 1), "min", peer=f"{chosen.rows:,} rows in all"
        )
        yield Row("pilot_and_estimate_minutes", round((time.monotonic() - begun) / 60, 1), "min")
    yield Row("documents", len(documents), "texts", peer=plan.corpus.name)
    texts = [np.array(e.ids, np.int32) for e in tokenizer.encode(parts.left_out, 512)]
    for alpha in plan.alphas:
        report(f"alpha {alpha:g}: building from {len(documents):,} documents")
        built = lab.build(documents, alpha)
        yield from _of_the_build(built, alpha)
        report(f"alpha {alpha:g}: looking up held-out text")
        with lab.store() as store:
            yield from _hits(store, built.domain, texts, alpha)
            yield from _times(store, built.domain, texts, alpha)
        lab.remove(built.domain)


def _chosen(plan: Plan, parts: CorpusSplit, lab: Lab, tokenizer: Tokenizer, report: Report) -> Estimate:
    """Estimate how many documents fit in `plan.minutes` from the rates of a small build."""
    assert plan.minutes is not None
    report(f"a pilot of {min(PILOT, len(parts.built))} documents")
    pilot = lab.build(parts.built[:PILOT], 100.0)
    lab.remove(pilot.domain)
    report("estimating how many documents fit")
    found = fitting(estimates(parts.built, tokenizer, plan.alphas, pilot.rates), plan.minutes * 60)
    report(
        f"{found.documents:,} documents, {found.tokens:,} tokens, {found.rows:,} rows: "
        f"about {found.seconds / 60:.1f} minutes at {pilot.rates.rows:,.0f} rows/s"
    )
    return found


def _of_the_build(built: Built, alpha: float) -> Iterator[Row]:
    suffix, rates, result = f"alpha_{alpha:g}", built.rates, built.result
    for name in ("tokens", "distinct_trigrams", "distinct_bigrams", "stored_trigrams", "stored_bigrams"):
        if name in result:
            yield Row(f"{name}_{suffix}", result[name], "")
    yield Row(f"counting_{suffix}", round(rates.tokens), "tokens/s", peer="tokenising included")
    yield Row(
        f"representations_{suffix}", round(rates.rows, 1), "rows/s", peer="lower layers, encoding, writing"
    )
    yield Row(f"build_{suffix}", round(sum(built.spent.values()), 1), "s")
    yield Row(f"size_{suffix}", round(built.bytes / 1e6, 1), "MB")


def _hits(store: Store, domain: str, texts: list[NDArray[np.int32]], alpha: float) -> Iterator[Row]:
    """Yield the percent of the held-out tokens that each order answered; the unigrams are the root's."""
    tokens, offsets = np.concatenate(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64)
    with store.reader(domain) as reader:
        counts = reader.lookup(tokens, offsets)[1].counts()
    for name, count in counts.items():
        yield Row(f"{name}_hits_alpha_{alpha:g}", round(100 * count / len(tokens), 2), "%", runs=len(texts))


def _times(store: Store, domain: str, texts: list[NDArray[np.int32]], alpha: float) -> Iterator[Row]:
    """Yield the time to look up a held-out text of LENGTH tokens.

    Once with its rows in memory, once with the file cache dropped before each text.
    """
    whole = [np.ascontiguousarray(text[:LENGTH]) for text in texts if len(text) >= LENGTH]
    if len(whole) < 2:
        few = f"no two held-out documents have {LENGTH} tokens"
        yield Row(f"one_text_warm_alpha_{alpha:g}", None, "µs", why=few)
        return
    with store.reader(domain) as reader:
        for text in whole:
            _look_up(reader, text)
        warm = [seconds(partial(_look_up, reader, text)) for text in whole]
    yield Row(f"one_text_warm_alpha_{alpha:g}", round(1e6 * statistics.median(warm), 1), "µs", runs=len(warm))
    segments = store.path / "segments"
    why = drop(segments)
    if why is not None:
        yield Row(f"one_text_cold_alpha_{alpha:g}", None, "ms", why=why)
        return
    cold: list[float] = []
    for text in whole[:COLD_TEXTS]:
        drop(segments)
        with store.reader(domain) as reader:
            cold.append(seconds(partial(_look_up, reader, text, prefetch=True), time.perf_counter))
    peer = "a reader just opened: indexes in memory, rows not; wall time"
    yield Row(
        f"one_text_cold_alpha_{alpha:g}",
        round(1e3 * statistics.median(cold), 3),
        "ms",
        runs=len(cold),
        peer=peer,
    )


def _look_up(reader: Reader, text: NDArray[np.int32], *, prefetch: bool = False) -> None:
    offsets = np.array([0, len(text)], np.int64)
    if prefetch:
        reader.prefetch(text, offsets)
    reader.lookup(text, offsets)
