"""A teacher labels a tenant's unlabelled texts, and the model learns from both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hmi.core import JobRecord
from hmi.jobs.rows import Row
from hmi.jobs.teaching import gold_of, usable
from hmi.model.tasks.base import Answer
from tests.e2e.conftest import QUICK, Home, jsonl, mood_rows, pair_rows, tag_rows


def texts_of(rows: bytes) -> bytes:
    """The rows without their answers."""
    found = [json.loads(line) for line in rows.splitlines()]
    return jsonl([{k: v for k, v in row.items() if k not in ("label", "tags")} for row in found])


def made(home: Home, name: str, task: Any, rows: Any, **more: Any) -> JobRecord:
    given = {"data": rows(31, 40), "dev": rows(32, 40), "unlabelled": texts_of(rows(33, 120)), **more}
    return home.manager.create_model(name, domain="tiny/full", task=task, options=QUICK, **given)


@pytest.mark.parametrize(
    ("name", "task", "rows"),
    [
        ("acme.taught", "classification", mood_rows), ("acme.tagged", "tagging", tag_rows),
        ("acme.paired", "pair", pair_rows),
    ],
)  # fmt: skip
def test_a_model_learns_from_rows_and_from_what_a_teacher_said(home: Home, name: str, task: str, rows: Any) -> None:
    done = home.run(made(home, name, task, rows))
    assert done.result is not None
    metrics = done.result["metrics"]
    assert metrics["train_rows"] == 40
    assert metrics["teacher"]["texts"] == 120
    assert 0 <= metrics["teacher"]["score"] <= 1
    assert metrics["windows"] == 160


def test_what_the_teacher_said_is_asked_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    job = made(home, "acme.resumed", "classification", mood_rows)
    folder = home.settings.data / "jobs" / job.job
    said = {"score": 0.5, "said": ["pos"] * 120}
    (folder / "taught.json").write_text(json.dumps(said))
    done = home.run(job)
    assert done.result is not None
    assert done.result["metrics"]["teacher"] == {"score": 0.5, "texts": 120}


def test_texts_that_cannot_be_read_are_named(home: Home) -> None:
    job = made(home, "acme.broken", "tagging", tag_rows, unlabelled=b'{"text": "a"}\n')
    failed = home.manager.runner.run_one(job.job, lambda progress: None)
    assert failed.error is not None
    assert failed.error["field"] == "unlabelled"
    assert "tokens" in failed.error["message"]


def test_labelled_and_held_out_texts_are_not_taught() -> None:
    texts = [Row("a", ""), Row("b", ""), Row("c", "")]
    assert usable(texts, [Row("a", "x"), Row("c", "y")], 0) == [Row("b", "")]
    words = [Row(["a", "b"], ""), Row(["c"], "")]
    assert usable(words, [Row(["a", "b"], ("O", "O"))], 0) == [Row(["c"], "")]


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (Answer(label="x", score=0.5), "x"), (Answer(labels=[("a", 0.9), ("b", 0.8)]), ("a", "b")),
        (Answer(labels=[]), ()), (Answer(value=0.0), 0.0), (Answer(tags=["O", "B-x"], tag_scores=[1, 1]), ("O", "B-x")),
    ],
)  # fmt: skip
def test_every_kind_of_answer_can_be_taught(answer: Answer, gold: Any) -> None:
    assert gold_of(answer) == gold
