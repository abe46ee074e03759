"""Counting a corpus in a job, resuming the count, and the n-grams chosen from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmi.config import Settings
from hmi.jobs.plot import ngrams as module
from hmi.jobs.plot.ngrams import choose, count_corpus, ragged, texts_of, tokenised
from hmi.jobs.plot.write_plot import Wanted, in_chunks, with_own
from hmi.jobs.runtime.context import JobContext, JobStopped
from hmi.manager import Manager
from hmi.model.text.tokenizer import Tokenizer
from plot_store import CountedNgrams, NgramCounter, Reader, Schema, Store
from tests.tiny import random_texts

Ngram = tuple[int, ...]


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[JobContext]:
    manager = Manager(Settings(data=tmp_path / "data", job_workers=0))
    job = manager.runner.submit(
        "build_plot", {"domain": "tiny/news"}, inputs={"corpus": corpus(600).encode()}
    )
    context = JobContext(job, manager.settings, manager.registry)
    yield context
    context.close()
    manager.close()


def corpus(count: int) -> str:
    return "\n".join(random_texts(count, 4))


def counts(tokenizer: Tokenizer, text: str, order: int) -> Counter[Ngram]:
    found: Counter[Ngram] = Counter()
    for line in text.splitlines():
        ids = tokenizer.encode([line], 1 << 30)[0].ids
        padded = [0, *ids, 0] if order == 3 else ids
        found.update(tuple(padded[i : i + order]) for i in range(len(padded) - order + 1))
    return found


def given(wanted: Wanted) -> list[Ngram]:
    return [tuple(map(int, ngram)) for chunk in wanted.chunks for ngram in wanted.keep(chunk)]


def test_a_corpus_is_counted_and_chosen_from(ctx: JobContext, tiny_source: Path) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json")
    counted = count_corpus(ctx, tokenizer, [ctx.input / "corpus"], 600)
    for want, share in zip(choose(counted, 40), (70, 40), strict=True):
        by_ngram = counts(tokenizer, corpus(600), want.order)
        chosen = given(want)
        assert len(chosen) == want.total == len(set(chosen))
        covered = [by_ngram[ngram] for ngram in chosen]
        assert sum(covered) >= share / 100 * by_ngram.total() - 1e-6
        assert sum(covered) - min(covered) < share / 100 * by_ngram.total()
        assert max((c for n, c in by_ngram.items() if n not in set(chosen)), default=0) <= min(covered)
    assert [want.total for want in choose(counted, 0)] == [0, 0], "alpha 0 is the parent's PLOT alone"
    sizes = [choose(counted, alpha)[1].total for alpha in range(0, 101, 10)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == counted.distinct(3)


def test_an_interrupted_count_begins_again_and_a_finished_one_does_not(
    ctx: JobContext, tiny_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, paths = Tokenizer(tiny_source / "tokenizer.json"), [ctx.input / "corpus"]
    monkeypatch.setattr(module, "TOKENISE_AT_ONCE", 50)
    calls: list[str] = []

    def stop_once(_step: int, _total: int, *, phase: str, **_: Any) -> None:
        calls.append(phase)
        if len(calls) == 5:
            raise JobStopped

    monkeypatch.setattr(ctx, "progress", stop_once)
    with pytest.raises(JobStopped):
        count_corpus(ctx, tokenizer, paths, 600)
    first = count_corpus(ctx, tokenizer, paths, 600)
    assert set(calls) == {"counting n-grams", "merging counts"}
    chosen = [given(want) for want in choose(first, 60)]
    assert first.total(3) == counts(tokenizer, corpus(600), 3).total()
    calls.clear()
    again = count_corpus(ctx, tokenizer, paths, 600)
    assert not calls, "a resumed job does not count what it has counted"
    assert [given(want) for want in choose(again, 60)] == chosen


def test_batches_hold_every_document(
    tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json")
    (tmp_path / "corpus").write_text(corpus(37))
    monkeypatch.setattr(module, "TOKENISE_AT_ONCE", 10)
    texts = [
        tokens[a:b].tolist()
        for tokens, offsets in tokenised(tokenizer, texts_of(tmp_path / "corpus"))
        for a, b in pairwise(offsets.tolist())
    ]
    assert texts == [e.ids for e in tokenizer.encode(corpus(37).splitlines(), 1 << 30)]


def test_ragged() -> None:
    tokens, offsets = ragged([[1, 2], [], [3]])
    assert (tokens.tolist(), offsets.tolist()) == ([1, 2, 3], [0, 2, 2, 3])
    assert (tokens.dtype, offsets.dtype) == (np.int32, np.int64)
    assert ragged([])[0].size == 0


LAST = (1 << 20) - 1  # the highest token id


@contextmanager
def reader_of(folder: Path, n: int, own: dict[int, list[Ngram]]) -> Iterator[Reader]:
    """A version that stores these n-grams."""
    with Store.open(folder, create=True) as store:
        with store.writer("tiny", schema=Schema(n=n, dim=2, vocab=LAST + 1), build="b") as writer:
            for order, ngrams in own.items():
                rows = np.ones((len(ngrams), order * (n - order + 1), 2), np.float32)
                writer.add(order, np.array(sorted(ngrams), np.uint32), rows)
            writer.publish()
        with store.reader("tiny") as reader:
            yield reader


def test_what_a_version_stores_joins_what_is_wanted(tmp_path: Path) -> None:
    chosen = np.array([[7, 7, 7], [1, 2, 3], [0, 1, 1], [LAST, LAST, LAST]], np.uint32)
    own = {3: [(0, 1, 2), (1, 2, 3), (9, 9, 9), (LAST, LAST, LAST), (LAST, LAST, 0)], 1: [(4,)]}
    with reader_of(tmp_path, 3, own) as reader:
        both = {want.order: given(want) for want in with_own([Wanted(3, 4, in_chunks(chosen))], reader)}
    rest = [(0, 1, 2), (9, 9, 9), (LAST, LAST, 0)]
    assert both == {1: [(4,)], 2: [], 3: [*map(tuple, chosen.tolist()), *rest]}


def test_the_orders_are_those_of_the_version(tmp_path: Path) -> None:
    chosen = np.array([[5, 6]], np.uint32)
    with reader_of(tmp_path, 2, {2: [(5, 6)], 1: [(4,)]}) as reader:
        both = {want.order: given(want) for want in with_own([Wanted(2, 1, in_chunks(chosen))], reader)}
    assert both == {1: [(4,)], 2: [(5, 6)]}


def test_memory_of_a_count_is_not_that_of_the_corpus(tmp_path: Path) -> None:
    """The number of chosen n-grams is known before any is read, and they are read in chunks."""
    with NgramCounter(3, (2, 3), tmp_path) as counter:
        counter.add(*ragged([[1, 2, 3], [1, 2, 3], [4, 5]]))
        counted: CountedNgrams = counter.finish()
    wanted = choose(counted, 100, min_count=2)[1]
    assert wanted.total == 3
    assert given(wanted) == [(0, 1, 2), (1, 2, 3), (2, 3, 0)]
