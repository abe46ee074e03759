"""`bench plot`: documents are split and estimated as in a build, and the real jobs run."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bench.cases.plot.corpus import Plan, run
from bench.cases.plot.split import Estimate, Rates, covering, estimates, fitting, split
from hmi.api.local import LocalCalls
from hmi.config import Settings
from hmi.errors import InvalidInput
from hmi.model.tokenizer import Tokenizer
from tests.tiny import random_texts, write_tiny_source

LIMITLESS = Rates(tokens=1e9, rows=1e9, fixed_s=0.0)


def corpus_of(folder: Path, documents: list[str]) -> Path:
    path = folder / "corpus.txt"
    path.write_text("\n".join(documents))
    return path


def test_documents_left_out_are_never_built_from(tmp_path: Path) -> None:
    documents = [f"document number {i}" for i in range(400)]
    parts = split(corpus_of(tmp_path, documents), None)
    assert sorted(parts.built + parts.left_out) == sorted(documents)
    assert 15 < len(parts.left_out) < 80
    fewer = split(tmp_path / "corpus.txt", 100)
    assert fewer.built == parts.built[:100]
    with pytest.raises(InvalidInput, match="too few"):
        split(corpus_of(tmp_path, ["only one"]), None)


def test_covering_counts_the_most_frequent_first() -> None:
    keys = np.random.default_rng(0).zipf(1.7, 3000).astype(np.uint64)
    ranked = [count for _, count in Counter(keys.tolist()).most_common()]
    for alpha in (1, 10, 50, 75, 99, 100):
        enough = next(
            i for i, s in enumerate(itertools.accumulate(ranked), 1) if s >= alpha / 100 * len(keys) - 1e-6
        )
        assert covering(keys, alpha) == enough


def test_the_last_estimate_within_the_time_is_used() -> None:
    found = [Estimate(10 * i, 0, 0, float(i)) for i in range(1, 6)]
    assert fitting(iter(found), 3.5) == found[2]
    assert fitting(iter(found), 99) == found[4]
    assert fitting(iter(found), 0.1) == found[0]


def test_the_jobs_build_and_the_estimate_counts_the_rows_they_store(tmp_path: Path) -> None:
    source = write_tiny_source(tmp_path / "source")
    data = tmp_path / "data"
    text = tmp_path / "text.txt"
    text.write_text("\n".join(random_texts(280, seed=3, low=8)))
    few = {"steps": 2, "upper_steps": 1}
    body = {"root": "tiny", "source": str(source), "alpha": 0, "options": few}
    local = LocalCalls(Settings(data=data))
    try:
        local.run(local.request("POST", "/manage/roots", body, {"text": text})["job"], lambda _: None)
    except BaseException:
        local.close()
        raise
    local.close()
    corpus = corpus_of(tmp_path, random_texts(100, low=130, high=160))
    rows = {row.id: row for row in run(Plan(corpus, (40.0,), 5.0, None, "tiny"), data, print, lambda _: None)}
    documents = split(corpus, None).built
    assert rows["documents"].value == len(documents)
    tokenizer = Tokenizer(source / "tokenizer.json")
    whole = list(estimates(documents, tokenizer, (40.0,), LIMITLESS))[-1]
    assert whole.documents == len(documents)
    assert whole.tokens == rows["tokens_alpha_40"].value
    stored = [rows[f"stored_{kind}_alpha_40"].value for kind in ("trigrams", "bigrams")]
    assert whole.rows == sum(value for value in stored if value is not None)
    served = [rows[f"{kind}_hits_alpha_40"].value for kind in ("trigram", "bigram", "unigram", "miss")]
    assert sum(value for value in served if value is not None) == pytest.approx(100, abs=0.05)
    assert rows["one_text_warm_alpha_40"].value
    assert not list((data / "plots").rglob("*bench*"))
