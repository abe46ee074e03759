"""`bench plot`: documents are split, and the real jobs run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from bench.cases.plot.run import PlotPlan, run, split
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.errors import InvalidInput
from tests.hmi.model.test_decoder import write_language_model
from tests.tiny import random_texts, write_tiny_source


def corpus_of(folder: Path, documents: list[str]) -> Path:
    path = folder / "corpus.txt"
    path.write_text("\n".join(documents))
    return path


def test_documents_left_out_are_never_built_from(tmp_path: Path) -> None:
    documents = [f"document number {i}" for i in range(400)]
    built, left_out = split(corpus_of(tmp_path, documents), None)
    assert sorted(built + left_out) == sorted(documents)
    assert 15 < len(left_out) < 80
    fewer, _ = split(tmp_path / "corpus.txt", 100)
    assert fewer == built[:100]
    with pytest.raises(InvalidInput, match="too few"):
        split(corpus_of(tmp_path, ["only one"]), None)


@pytest.mark.slow
def test_the_jobs_build_and_held_out_text_is_looked_up(tmp_path: Path) -> None:
    source = write_tiny_source(tmp_path / "source")
    data = tmp_path / "data"
    text = tmp_path / "text.txt"
    text.write_text("\n".join(random_texts(280, seed=3, low=8)))
    few = {"steps": 2, "upper_steps": 1}
    body = {"root": "tiny", "source": str(source), "alpha": 0, "options": few}
    with closing(LocalCalls(Settings(data=data))) as local:
        local.run(local.request("POST", "/manage/roots", body, {"text": text})["job"], lambda _: None)
    corpus = corpus_of(tmp_path, random_texts(100, low=130, high=160))
    plan = PlotPlan(corpus, (40.0,), root="tiny")
    rows = {row.id: row for row in run(plan, data, print, lambda _: None)}
    assert rows["documents"].value == len(split(corpus, None)[0])
    assert rows["stored_trigrams_alpha_40"].value
    assert rows["build_alpha_40"].value
    served = [rows[f"{kind}_hits_alpha_40"].value for kind in ("trigram", "bigram", "unigram", "miss")]
    assert sum(value for value in served if value is not None) == pytest.approx(100, abs=0.05)
    assert rows["one_text_warm_alpha_40"].value
    assert not list((data / "plots").rglob("*bench*"))


@pytest.mark.slow
def test_a_language_model_predicts_held_out_text(tmp_path: Path) -> None:
    source = write_language_model("llama", tmp_path / "source")
    data, text = tmp_path / "data", tmp_path / "text.txt"
    text.write_text("\n".join(random_texts(280, seed=3, low=8)))
    body = {"root": "tiny", "source": str(source), "split": 2, "alpha": 0}
    with closing(LocalCalls(Settings(data=data))) as local:
        local.run(local.request("POST", "/manage/roots", body, {"text": text})["job"], lambda _: None)
    plan = PlotPlan(corpus_of(tmp_path, random_texts(100, low=130, high=160)), (100.0,), root="tiny")
    rows = {row.id: row.value for row in run(plan, data, print, lambda _: None)}
    assert rows["trigram_hits_alpha_100"]
    kl = [rows[f"kl_{name}_alpha_100"] for name in ("computed", "looked_up")]
    assert kl[0] is not None
    assert kl[1] is not None
    assert 0 < kl[0] < kl[1], "n-grams that the PLOT lacks cost something"
