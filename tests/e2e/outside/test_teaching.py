"""A teacher labels a tenant's unlabelled texts, and the model learns from these and the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hmi.core import JobRecord
from hmi.errors import Conflict, InvalidData, UnsupportedModel
from hmi.jobs.model import teaching
from hmi.model.sources.root import Root, load_root
from hmi.model.sources.source import Source, load_encoder
from hmi.model.tasks.base import InputAnswer
from hmi.training.data.golds import SoftLabel
from hmi.training.data.rows import Row
from hmi.training.plans.recipe import Recipe
from hmi.training.second import teacher
from hmi.training.second.augmentation import similar_words
from hmi.training.second.teacher import Lesson, gold_from_json, gold_of, gold_to_json, lesson_texts, usable
from hmi.training.tasks.objectives import learn_task
from hmi.training.tasks.splits import Split
from tests.e2e.conftest import QUICK as TRAINED
from tests.e2e.conftest import Home, jsonl, mood_rows, pair_rows, tag_rows

QUICK = {**TRAINED, "ramps": False}


def texts_of(rows: bytes) -> bytes:
    """The rows without their labels."""
    found = [json.loads(line) for line in rows.splitlines()]
    return jsonl([{k: v for k, v in row.items() if k not in ("label", "tags")} for row in found])


def source_of(home: Home) -> Path:
    """The folder from which the root was imported."""
    return Path(root_of(home).info.source["folder"])


def root_of(home: Home) -> Root:
    return load_root(next((home.settings.data / "roots" / "tiny").iterdir()))


@contextmanager
def renamed(folder: Path) -> Iterator[None]:
    """Rename a path for a while, as if it were gone."""
    lost = folder.with_name("lost")
    folder.rename(lost)
    try:
        yield
    finally:
        lost.rename(folder)


def made(home: Home, name: str, task: Any, rows: Any, **more: Any) -> JobRecord:
    given = {"data": rows(31, 40), "dev": rows(32, 40), "unlabelled": texts_of(rows(33, 120)), **more}
    return home.manager.create_model(name, domain="tiny/full", task=task, options=QUICK, **given)


@pytest.mark.parametrize(
    ("name", "task", "rows"),
    [
        ("acme.taught", "classification", mood_rows),
        ("acme.tagged", "tagging", tag_rows),
        ("acme.paired", "pair", pair_rows),
    ],
)
def test_a_model_learns_from_rows_and_from_what_a_teacher_said(
    home: Home, name: str, task: str, rows: Any
) -> None:
    done = home.run(made(home, name, task, rows))
    assert done.result is not None
    metrics = done.result["metrics"]
    assert metrics["train_rows"] == 40
    assert metrics["teacher"]["texts"] == 120
    assert 0 <= metrics["teacher"]["score"] <= 1
    assert metrics["windows"] == 40
    left_out = any("texts were left out" in remark for remark in metrics["warnings"])
    steps = home.manager.runner.read_progress(done.job).total
    assert steps == QUICK["epochs"] * (3 if left_out else 10), "steps of 16 rows"


@pytest.mark.parametrize(
    ("name", "task", "rows"),
    [
        ("acme.varied", "classification", mood_rows),
        ("acme.variedtags", "tagging", tag_rows),
        ("acme.variedpairs", "pair", pair_rows),
    ],
)
def test_changed_copies_of_rows_are_taught_with_other_texts_and_without(
    home: Home, name: str, task: Any, rows: Any
) -> None:
    for number, unlabelled in enumerate((None, texts_of(rows(33, 120)))):
        model, options = f"{name}{number}", {**QUICK, "variants": 2}
        data = {"data": rows(31, 40), "dev": rows(32, 40), "unlabelled": unlabelled}
        done = home.run(
            home.manager.create_model(model, domain="tiny/full", task=task, options=options, **data)
        )
        assert done.result is not None
        texts = done.result["metrics"]["teacher"]["texts"]
        assert (unlabelled is not None) * 120 + 50 < texts <= (unlabelled is not None) * 120 + 80
        assert done.result["metrics"]["train_rows"] == 40


def test_copies_have_near_words_and_fill_what_room_the_texts_leave(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, encoder = root_of(home), load_encoder(source_of(home))
    words = list(root.tokenizer.whole_words().values())[:6]
    rows, texts = [Row(" ".join(words), "x"), Row("?!", "y")], [Row(f"text {i}", "") for i in range(5)]
    lesson = Lesson(
        learn_task("classification", ["x", "y"], paired=False), Split(rows, []), Split([], []), texts, 9
    )
    asked = Recipe(variants=20)
    copies = [row for row in lesson_texts(lesson, asked, encoder, root) if row not in texts]
    assert copies == [row for row in lesson_texts(lesson, asked, encoder, root) if row not in texts]
    assert copies != lesson_texts(lesson, Recipe(variants=20, seed=1), encoder, root)[5:]
    drawn = {word for row in copies for word in str(row.text).split()}
    near = similar_words(rows, root.tokenizer, encoder.embeddings.word.weight)
    assert drawn <= {*words, *(word for of in near.values() for word in of)}
    assert not drawn <= set(words), "near words, too"
    monkeypatch.setattr(teacher, "MAX_TEXTS", 7)
    some = lesson_texts(lesson, asked, encoder, root)
    assert some[:5] == texts
    assert len(some) <= 7


def test_copies_need_the_source(home: Home) -> None:
    options = {**QUICK, "variants": 1}
    job = home.manager.create_model(
        "acme.nowhere", domain="tiny/full", task="classification", options=options, data=mood_rows(31, 40)
    )
    with renamed(source_of(home)):
        failed = home.manager.runner.run_one(job.job, lambda progress: None)
    assert failed.error is not None
    assert failed.error["field"] == "options.variants"


def test_a_teacher_that_learnt_nothing_is_not_heard(home: Home) -> None:
    job = made(home, "acme.hopeless", "classification", mood_rows)
    said = {"score": 0.5, "answers": [{"text": f"text {i}", "said": "pos"} for i in range(120)]}
    (home.settings.data / "jobs" / job.job / "teacher.json").write_text(json.dumps(said))
    done = home.run(job)
    assert done.result is not None
    assert home.manager.runner.read_progress(done.job).total == QUICK["epochs"] * 3
    assert any(
        "learnt nothing (held-out score 0.500)" in remark for remark in done.result["metrics"]["warnings"]
    )


def test_texts_that_are_labelled_rows_need_no_teacher(home: Home) -> None:
    done = home.run(
        made(home, "acme.same", "classification", mood_rows, unlabelled=texts_of(mood_rows(31, 40)))
    )
    assert done.result is not None
    assert done.result["metrics"]["teacher"] == {}
    assert any("no teacher was trained" in remark for remark in done.result["metrics"]["warnings"])


def test_a_source_that_is_gone_is_said_without_its_place(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(source: str) -> Source:
        raise UnsupportedModel(f"{source} is not there", field="source")

    monkeypatch.setattr(teaching, "find_source", nowhere)
    root = next((home.settings.data / "roots" / "tiny").iterdir())
    with pytest.raises(Conflict, match="import the root again") as error:
        teaching.find_source_of(load_root(root), "unlabelled")
    assert error.value.details["field"] == "unlabelled"
    assert "/" not in error.value.message


def test_what_the_teacher_said_is_asked_once(home: Home) -> None:
    job = made(home, "acme.resumed", "classification", mood_rows)
    folder = home.settings.data / "jobs" / job.job
    said = [{"text": f"text {i}", "said": {"pos": 0.75, "neg": 0.25} if i % 2 else "pos"} for i in range(120)]
    (folder / "teacher.json").write_text(json.dumps({"score": 0.9, "answers": said}))
    with renamed(source_of(home)):  # needed only for requests
        done = home.run(job)
    assert done.result is not None
    assert done.result["metrics"]["teacher"] == {"score": 0.9, "texts": 120}


def test_texts_that_cannot_be_read_are_named(home: Home) -> None:
    with pytest.raises(InvalidData, match="`tokens` is missing") as error:
        made(home, "acme.broken", "tagging", tag_rows, unlabelled=b'{"a": 1, "b": 2}\n')
    assert error.value.details["field"] == "unlabelled"


def test_labelled_and_held_out_texts_are_not_taught() -> None:
    texts = [Row("a", ""), Row("b", ""), Row("c", "")]
    assert usable([*texts, *texts], [Row("a", "x"), Row("c", "y")], 0) == [Row("b", "")]
    words = [Row(["a", "b"], ""), Row(["c"], "")]
    assert usable(words, [Row(["a", "b"], ("O", "O"))], 0) == [Row(["c"], "")]


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (InputAnswer(label="x", score=0.5), "x"),
        (InputAnswer(labels=[("a", 0.9), ("b", 0.8)]), ("a", "b")),
        (InputAnswer(labels=[]), ()),
        (InputAnswer(value=0.0), 0.0),
        (InputAnswer(tags=["O", "B-x"], tag_scores=[1, 1]), ("O", "B-x")),
        (InputAnswer(label="x", scores={"x": 0.3, "y": 0.7}), SoftLabel((("y", 0.7), ("x", 0.3)))),
    ],
)
def test_every_kind_of_answer_can_be_taught(answer: InputAnswer, gold: Any) -> None:
    assert gold_of(answer) == gold
    assert gold_from_json(json.loads(json.dumps(gold_to_json(gold)))) == gold
