"""Tenants that write beside dedicated copies: tasks, training of both, runs that are kept, the table."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench.cases.generation.tasks import TASKS, TEST, rows_of, slots, task_of
from bench.cases.generation.tenants import TenantsPlan, run, summary
from bench.cases.quality.improving import Cell
from bench.cases.quality.runs import RunFile
from bench.harness.home import ended
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.errors import InvalidInput
from hmi.execution.precision import available
from hmi.training.data.golds import Completion
from tests.hmi.model.test_decoder import write_language_model
from tests.tiny import random_texts


def test_slots_are_spans_by_kind_and_several_of_a_kind_a_list() -> None:
    words = ["from", "new", "york", "to", "miami", "or", "boston"]
    tags = ["O", "B-from", "I-from", "O", "B-to", "O", "B-to"]
    assert json.loads(slots(words, tags)) == {"from": "new york", "to": ["miami", "boston"]}
    assert slots(["hello"], ["O"]) == "{}"


def write_sets(folder: Path) -> Path:
    """Sets of the three tasks whose labels follow from a text's last word."""
    for task in TASKS:
        (folder / task.source).mkdir(parents=True)
        for part, count in (("train", 60), ("test", TEST + 20)):
            made = []
            for number, text in enumerate(random_texts(count, count, 3, 6)):
                if task.name == "slots":
                    words = f"{text} film".split()
                    made.append({"tokens": words, "tags": ["O"] * (len(words) - 1) + ["B-what"]})
                else:
                    end, label = (("film", "good_film"), ("plot", "bad_plot"))[number % 2]
                    made.append({"text": f"{text} {end}", "label": label})
            made[0] = {**made[0], **({"text": "word " * 31} if "text" in made[0] else {})}
            path = folder / task.source / f"{part}.jsonl.gz"
            path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in made).encode()))
    return folder


def test_rows_are_the_first_short_ones_with_some_held_out(tmp_path: Path) -> None:
    sets = write_sets(tmp_path)
    found = rows_of(task_of("intents"), sets, 30)
    assert (len(found.train) + len(found.dev), len(found.test)) == (30, TEST)
    for row in [*found.train, *found.dev, *found.test]:
        assert isinstance(row.label, Completion)
        assert row.label.text in (" good film", " bad plot")
        assert str(row.text).startswith("Text: ")
        assert str(row.text).endswith("\nIntent:")
        assert len(str(row.text).split()) < 31
    others = rows_of(task_of("intents"), sets, 30, draw=1)
    assert others.test == found.test
    assert others.train != found.train
    with pytest.raises(InvalidInput, match="intents, sections, slots"):
        task_of("verses")


@pytest.mark.slow
def test_a_tenant_and_a_copy_are_trained_once_and_stand_side_by_side(tmp_path: Path) -> None:
    source = write_language_model(
        "llama", tmp_path / "llama", hidden_size=128, intermediate_size=192, max_position_embeddings=256
    )
    settings, sets = Settings(data=tmp_path / "data"), write_sets(tmp_path / "sets")
    (tmp_path / "text").write_text("\n".join(random_texts(40, 1, 5, 20)))
    with closing(LocalCalls(settings)) as calls:
        body = {"root": "smol", "source": str(source), "split": 0}
        ended(calls, "/manage/roots", body, {"text": tmp_path / "text"})
    cells = tuple(Cell("intents", 30, 0, column) for column in ("dedicated", "tenant", "served"))
    options = {"epochs": 3, "lr": 0.01}
    plan = TenantsPlan(settings, "smol", str(source), sets, tmp_path / "out", cells, options)
    found = list(run(plan, lambda *_: None, lambda _: None))
    assert {"intents_dedicated", "intents_tenant"} <= {figure.id for figure in found}
    runs = plan.runs.read_bytes()
    copies = [(s, r) for s, r in RunFile(plan.runs).all() if s["arm"] == "dedicated" and "test" in r]
    [(spec, copy)] = copies
    tried = [s["lr"] for s, _ in RunFile(plan.runs).all() if s["arm"] == "dedicated" and "test" not in s]
    assert len(tried) >= 3
    assert spec["lr"] in tried
    assert copy["test"]["answers"] == TEST
    assert list(run(plan, lambda *_: None, lambda _: None)) == found
    assert plan.runs.read_bytes() == runs, "nothing was trained again"
    [row] = json.loads((plan.out / "tenants.json").read_text())["table"]
    assert row["spec"]["options"] == options
    assert row["ratio"]["perplexity"] > 0
    plain = {name: row["tenant"][name] for name in ("exact_match", "rouge_l", "answers")}
    assert row["served"]["fp32"] == {**plain, "as_fp32": 1.0}
    assert {name: figures["answers"] for name, figures in row["served"].items()} == dict.fromkeys(
        available(), TEST
    )
    with pytest.raises(InvalidInput, match="dedicated, tenant, served"):
        list(run(TenantsPlan(**{**vars(plan), "cells": (Cell("intents", 30, 0, "best"),)}), print, print))


def test_the_table_compares_a_tenant_with_the_copy_of_its_rows_alone(tmp_path: Path) -> None:
    kept = RunFile(tmp_path / "runs.jsonl")
    about: dict[str, Any] = {"task": "slots", "rows": 450, "version": 1, "source": "a", "seed": 0}

    def scored(exact: float, perplexity: float) -> dict[str, Any]:
        return {
            "test": {"exact_match": exact, "rouge_l": 0.9, "perplexity": perplexity},
            "cpu_s": 1.0,
            "dev": exact,
        }

    kept.put({**about, "arm": "dedicated", "lr": 1e-4, "test": True}, scored(0.8, 1.2))
    kept.put({**about, "arm": "dedicated", "lr": 2e-4, "test": True}, scored(0.7, 1.1))
    kept.put({**about, "arm": "dedicated", "lr": 1e-4, "test": True, "rows": 100}, scored(0.4, 2.0))
    kept.put({**about, "arm": "tenant", "split": 0, "test": True}, scored(0.76, 1.25))
    kept.put({**about, "arm": "tenant", "split": 0, "test": True, "draw": 1}, scored(0.7, 1.3))
    first, alone = summary(kept)
    assert first["ratio"] == {"exact_match": 0.95, "rouge_l": 1.0, "perplexity": 0.96}
    assert "ratio" not in alone
