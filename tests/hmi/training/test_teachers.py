"""Several teachers: each learns from the rows, and dev decides how much each says."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from hmi.core import Task
from hmi.errors import InvalidData
from hmi.model.network.encoder import Encoder, EncoderLayer
from hmi.model.sources.source import load_encoder
from hmi.model.text.tokenizer import Text, Tokenizer
from hmi.training.data.golds import Gold, SoftLabel, SoftTags
from hmi.training.data.rows import Row
from hmi.training.fit.backbones import UpperBackbone
from hmi.training.fit.early_stopping import History
from hmi.training.plans.defaults import BATCH, choose_epochs
from hmi.training.plans.recipe import Recipe
from hmi.training.second import probing, teachers
from hmi.training.second.probing import Embedder, can_probe, contrast_loss, fitted, probe_with
from hmi.training.second.second_version import FEW, FEW_PAIRS, hears_larger, is_probe, teacher_from
from hmi.training.second.teacher_outputs import (
    TeacherOutputs,
    mix,
    mixed_golds,
    store_said,
    stored_said,
    weigh,
)
from hmi.training.second.teachers import TeacherSource, TextLesson, expected_s, teach_with
from hmi.training.tasks.headline import headline
from hmi.training.tasks.objectives import learn_task, objective_of
from tests.tiny import WORDS, write_tiny_mpnet

GOOD, BAD = WORDS[:6], WORDS[6:12]


def mood(seed: int, count: int) -> list[Row]:
    rng = random.Random(seed)
    labels = [rng.choice(["good", "bad"]) for _ in range(count)]
    return [Row(" ".join(rng.choices(GOOD if label == "good" else BAD, k=5)), label) for label in labels]


def tags(seed: int, count: int) -> list[Row]:
    rng = random.Random(seed)
    words = [rng.choices(GOOD + BAD, k=5) for _ in range(count)]
    return [Row(list(of), tuple("B-x" if word in GOOD else "O" for word in of)) for of in words]


def pairs(seed: int, count: int) -> list[Row]:
    first, second = mood(seed, count), mood(seed + 1, count)
    return [
        Row((str(a.text), str(b.text)), "same" if a.label == b.label else "other")
        for a, b in zip(first, second, strict=True)
    ]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, tiny_source: Path) -> list[TeacherSource]:
    """A source like a root's own, and one with another tokenizer."""
    other = write_tiny_mpnet(tmp_path_factory.mktemp("teachers") / "mpnet")
    return [
        TeacherSource(name, load_encoder(folder), Tokenizer(folder / "tokenizer.json"))
        for name, folder in (("own", tiny_source), ("other", other))
    ]


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the tiny sources of four layers as deep ones, of which two layers are tuned."""
    monkeypatch.setattr(teachers, "TUNED", 2)


def lesson_of(task: Task, rows: Any) -> TextLesson:
    train, dev, texts = rows(1, 96), rows(2, 40), rows(3, 30)
    paired = isinstance(train[0].text, tuple)
    kind = learn_task(task, [row.label for row in train], paired=paired)
    return TextLesson(kind, train, dev, [Row(row.text, "") for row in texts], 32)


def taught(source: TeacherSource, lesson: TextLesson) -> TeacherOutputs:
    return teach_with(source, lesson, Recipe(), lambda *_: None)


@pytest.mark.parametrize(("task", "rows"), [("classification", mood), ("tagging", tags), ("pair", pairs)])
def test_two_teachers_answer_texts_together(
    sources: list[TeacherSource], task: Task, rows: Any, deep: None
) -> None:
    lesson = lesson_of(task, rows)
    said = [taught(source, lesson) for source in sources]
    assert [(len(one.dev), len(one.texts)) for one in said] == [(40, 30), (40, 30)]
    weights, score = weigh(said, lesson.train, lesson.dev)
    assert sum(weights) == 1
    assert score >= max(one.score for one in said) - 1e-9
    golds = mixed_golds(said, weights)
    assert len(golds) == 30
    if task == "tagging":
        assert all(len(gold.words if isinstance(gold, SoftTags) else gold) == 5 for gold in golds)  # type: ignore[arg-type]
    else:
        assert all(isinstance(gold, SoftLabel) for gold in golds)


@pytest.mark.parametrize(("task", "rows"), [("classification", mood), ("tagging", tags)])
def test_what_was_said_is_read_as_it_was_stored(
    sources: list[TeacherSource], task: Task, rows: Any, tmp_path: Path
) -> None:
    lesson = lesson_of(task, rows)
    said = taught(sources[0], lesson)
    store_said(tmp_path / "said.safetensors", said)
    again = stored_said(tmp_path / "said.safetensors", lesson.task)
    assert again is not None
    assert (again.name, again.score) == (said.name, said.score)
    assert mixed_golds([again], [1.0]) == mixed_golds([said], [1.0])
    assert weigh([again], [], lesson.dev) == weigh([said], [], lesson.dev)
    assert stored_said(tmp_path / "none.safetensors", lesson.task) is None


def test_a_teacher_learns_what_its_rows_show(sources: list[TeacherSource]) -> None:
    said = taught(sources[0], lesson_of("classification", mood))
    assert said.score > 0.9
    assert said.cpu_s > 0


def test_a_mixture_is_the_weighted_mean_of_log_probabilities(
    sources: list[TeacherSource], deep: None
) -> None:
    lesson = lesson_of("tagging", tags)
    said = [taught(source, lesson) for source in sources]
    task, merged = mix(said, [0.25, 0.75], [one.texts for one in said])
    for mixed, one, two in zip(merged, said[0].texts, said[1].texts, strict=True):
        torch.testing.assert_close(mixed, 0.25 * one + 0.75 * two)
    tables = [torch.as_tensor(one.task.transitions) for one in said]  # type: ignore[attr-defined]
    torch.testing.assert_close(
        torch.as_tensor(task.transitions),  # type: ignore[attr-defined]
        0.25 * tables[0] + 0.75 * tables[1],
    )


@pytest.mark.parametrize(("task", "rows"), [("classification", mood), ("pair", pairs)])
def test_a_probe_learns_from_few_rows(
    sources: list[TeacherSource], task: Task, rows: Any, tmp_path: Path
) -> None:
    lesson = lesson_of(task, rows)
    lesson = replace(lesson, train=lesson.train[:24])
    said = [teacher_from(source, lesson, Recipe(), 24, lambda *_: None) for source in sources]
    assert [one.name for one in said] == ["own", "other"]
    assert [len(one.texts) for one in said] == [30, 30]
    weights, _ = weigh(said, lesson.train, lesson.dev)
    merged = mix(said, weights, [one.dev for one in said])[1]
    score = headline(objective_of(lesson.task).score([row.label for row in lesson.dev], merged))
    assert score > (0.9 if task == "classification" else 0.4)
    few = teacher_from(sources[0], replace(lesson, dev=lesson.dev[:4]), Recipe(), 24, lambda *_: None)
    store_said(tmp_path / "said.safetensors", few)
    again = stored_said(tmp_path / "said.safetensors", lesson.task)
    assert again is not None
    assert weigh([again], lesson.train, []) == weigh([few], lesson.train, [])


def test_a_probe_needs_rows_of_two_labels_and_one_row_of_each_suffices(sources: list[TeacherSource]) -> None:
    lesson = lesson_of("classification", mood)
    one, bad = (
        [row for row in lesson.train if row.label == label][:count]
        for label, count in (("good", 1), ("bad", 12))
    )
    assert not can_probe(replace(lesson, train=bad))
    assert not can_probe(lesson_of("tagging", tags))
    few = replace(lesson, train=[*one, *bad], dev=lesson.dev[:4], weights=(0.5, 2.0))
    assert can_probe(few)
    said = probe_with(sources[0], few, 0, lambda *_: None)
    assert said.outside is not None
    assert len(said.outside) == 13
    assert all(bool(torch.isfinite(answer).all()) for answer in [*said.outside, *said.texts])


@pytest.mark.parametrize("kinds", [2, 4])
@pytest.mark.parametrize("strength", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("weighed", [False, True])
def test_a_probe_is_that_of_scikit_learn(
    kinds: int, strength: float, weighed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Label 0 has no rows. Both go on to the least loss; in use, a small slope ends it."""
    monkeypatch.setattr(probing, "FLAT", 1e-9)
    draw = np.random.default_rng(kinds)
    labels = draw.integers(1, kinds + 1, 60)
    x = draw.normal(size=(60, 24)) + 0.7 * np.eye(24)[labels]
    rows = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    weights = [1.0, 0.3, 2.0, 1.0, 0.7][: kinds + 1] if weighed else None
    given = None if weights is None else {label: weights[label] for label in range(1, kinds + 1)}
    theirs = LogisticRegression(C=strength, max_iter=2_000, tol=1e-9, class_weight=given)
    theirs.fit(rows.astype(np.float64), labels)
    mine = torch.stack(fitted(rows, labels, strength, weights).answers(rows, kinds + 1)).exp()
    np.testing.assert_allclose(mine[:, 1:], theirs.predict_proba(rows.astype(np.float64)), atol=1e-4)
    assert mine[:, 0].max() < 1e-5


def test_all_teachers_of_a_tenant_are_of_one_kind() -> None:
    whole, pair = lesson_of("classification", mood), lesson_of("pair", pairs)
    fold = replace(whole, train=whole.train[:60])
    assert [is_probe(lesson, FEW) for lesson in (whole, fold)] == [False, False]
    assert [is_probe(lesson, FEW - 1) for lesson in (whole, fold)] == [True, True]
    assert [is_probe(pair, rows) for rows in (FEW_PAIRS - 1, FEW_PAIRS)] == [True, False]


def test_a_contrast_that_diverges_says_so(
    sources: list[TeacherSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "LR", 1e30)
    with pytest.raises(InvalidData, match="diverged"):
        probe_with(sources[0], lesson_of("classification", mood), 0, lambda *_: None)


def test_an_embedding_that_is_no_number_ends_the_lesson(
    sources: list[TeacherSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = Embedder(sources[0], 32)
    monkeypatch.setattr(embed, "_means", lambda examples, rows, dropout: torch.full((len(rows), 1), math.nan))
    with pytest.raises(InvalidData, match="not finite"):
        embed(mood(1, 3))


def test_a_pair_is_embedded_by_what_its_texts_differ_and_share(sources: list[TeacherSource]) -> None:
    rows = pairs(5, 6)
    embed = Embedder(sources[0], 32)
    both, first, second = embed(rows), *(embed([Row(r.text[side], "") for r in rows]) for side in (0, 1))
    np.testing.assert_allclose(both, np.concatenate([abs(first - second), first * second], 1), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("tuned", [2, 6])
def test_contrasting_brings_rows_of_one_label_together(
    sources: list[TeacherSource], monkeypatch: pytest.MonkeyPatch, tuned: int
) -> None:
    monkeypatch.setattr(teachers, "TUNED", tuned)
    which = int(tuned == 2)
    rows, others = mood(1, 24), mood(2, 40)
    before = {name: value.clone() for name, value in sources[which].encoder.state_dict().items()}
    embed = Embedder(sources[which], 32)
    labels = torch.tensor([row.label == "good" for row in others]).long()
    frozen = contrast_loss(torch.from_numpy(embed(others)), labels)
    losses: list[float] = []
    embed.contrast(rows, [int(row.label == "good") for row in rows], 0, lambda *at: losses.append(at[2]))
    assert sum(losses[-20:]) < sum(losses[:20])
    assert contrast_loss(torch.from_numpy(embed(others)), labels) < frozen
    after = sources[which].encoder.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_loss_of_a_batch_is_the_mean_over_its_pairs() -> None:
    embedded = torch.nn.functional.normalize(torch.randn(5, 3, generator=torch.manual_seed(0)), dim=-1)
    labels = [0, 1, 0, 2, 1]
    cosines = {(i, j): float(embedded[i] @ embedded[j]) for i in range(5) for j in range(5) if i != j}
    near = [(1 - c) ** 2 for (i, j), c in cosines.items() if labels[i] == labels[j]]
    far = [c**2 for (i, j), c in cosines.items() if labels[i] != labels[j]]
    wanted = sum(near) / len(near) + sum(far) / len(far)
    assert float(contrast_loss(embedded, torch.tensor(labels))) == pytest.approx(wanted, abs=1e-5)
    assert float(contrast_loss(embedded[:2], torch.tensor([1, 1]))) == pytest.approx((1 - cosines[0, 1]) ** 2)


def test_a_teacher_that_knows_nothing_has_no_say() -> None:
    golds: list[Gold] = ["a", "b"] * 20
    task = learn_task("classification", golds)
    rows = [Row(str(i), gold) for i, gold in enumerate(golds)]
    right = [torch.tensor([float(label == gold) for label in task.labels]).log_softmax(-1) for gold in golds]
    wrong = [-output * 3 for output in right]
    knows, errs = (
        TeacherOutputs(name, task, said, said, 0.0, 0.0) for name, said in (("knows", right), ("errs", wrong))
    )
    weights, score = weigh([knows, errs], [], rows)
    assert score == 1.0
    assert weights[0] > weights[1]
    assert weigh([knows, knows], [], rows)[0] == [0.5, 0.5]
    alone = headline(objective_of(task).score(golds, mix([knows, errs], [1.0, 0.0], [right, wrong])[1]))
    assert alone == 1.0


def test_the_lower_half_of_a_deep_source_does_not_change(sources: list[TeacherSource], deep: None) -> None:
    source = sources[1]
    before = {name: value.clone() for name, value in source.encoder.state_dict().items()}
    backbone = source.backbone()
    assert isinstance(backbone, UpperBackbone)
    assert len(backbone.trained) == len(source.encoder.layers) - source.frozen == 2
    taught(source, lesson_of("classification", mood))
    after = source.encoder.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("cls_only", [False, True])
def test_an_untrained_upper_half_computes_what_its_source_does(
    sources: list[TeacherSource], deep: None, cls_only: bool
) -> None:
    source = sources[1]
    texts: list[Text] = ["the cat", "a dog sat on the mat"]
    encoded = source.tokenizer.encode(texts, 32)
    examples = source.examples(encoded, [[], []])
    hidden = source.backbone()(examples, [0, 1], cls_only=cls_only, dropout=0.0)
    for i, one in enumerate(encoded):
        alone = source.encoder(torch.tensor([one.ids]), torch.ones(1, len(one), dtype=torch.bool))
        shown = hidden.last[i, :1] if cls_only else hidden.last[i, : len(one)]
        torch.testing.assert_close(shown, alone[0, : len(shown)], atol=5e-3, rtol=5e-3)  # kept in 16 bits


@pytest.mark.parametrize(("task", "rows"), [("classification", mood), ("tagging", tags)])
def test_what_a_deep_teacher_takes_is_what_it_reads(
    sources: list[TeacherSource], deep: None, monkeypatch: pytest.MonkeyPatch, task: Task, rows: Any
) -> None:
    """The estimate counts the tokens that pass each layer, a training step three times."""
    monkeypatch.setattr(teachers, "TAGGED_ROWS", 192)
    source, passed, forward = sources[1], list[float](), EncoderLayer.forward

    def counted(layer: EncoderLayer, x: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        passed.append(
            x.shape[0] * x.shape[1] * (3 if torch.is_grad_enabled() else 1) / len(source.encoder.layers)
        )
        return forward(layer, x, *given, **options)

    monkeypatch.setattr(EncoderLayer, "forward", counted)
    monkeypatch.setattr(History, "over", lambda *_: False)  # the estimate is of all epochs
    lesson = lesson_of(task, rows)
    taught(source, lesson)
    read = sum(passed)
    clock = iter(range(1_000))  # a pass over the timed texts takes a second
    monkeypatch.setattr(teachers.time, "process_time", lambda: float(next(clock)))
    passed.clear()
    expected = expected_s(source, lesson, Recipe())
    assert expected * sum(passed) / 2 == pytest.approx(read, rel=0.15), "padding is not estimated"


def test_larger_sources_leave_few_tagged_texts_alone() -> None:
    tagging, labels = lesson_of("tagging", tags).task, lesson_of("classification", mood).task
    assert [hears_larger(tagging, rows) for rows in (FEW - 1, FEW)] == [False, True]
    assert hears_larger(labels, FEW - 1)


@pytest.mark.parametrize(
    ("task", "rows", "count", "together"),
    [
        ("tagging", tags, 32, 25),
        ("tagging", tags, 800, 1),
        ("tagging", tags, 2_000, 1),
        ("classification", mood, 32, 1),
    ],
)
def test_a_teacher_of_few_tags_takes_several_epochs_as_one(
    sources: list[TeacherSource], task: Task, rows: Any, count: int, together: int
) -> None:
    plan, found = teachers._plan(sources[0], lesson_of(task, rows), Recipe(), count)
    usual = choose_epochs(together * count, BATCH)
    assert (found, plan.epochs) == (together, together * usual)
    assert plan.patience == together * Recipe().patience


def test_epochs_that_count_as_one_are_judged_once(
    sources: list[TeacherSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teachers, "TAGGED_ROWS", 96)
    lesson = lesson_of("tagging", tags)
    lesson, judged = replace(lesson, train=lesson.train[:32]), list[int]()
    judge, steps = teachers.judge, list[int]()

    def counted(*given: Any) -> Any:
        judged.append(len(steps))
        return judge(*given)

    monkeypatch.setattr(teachers, "judge", counted)
    teach_with(sources[0], lesson, Recipe(), lambda phase, step, *_: steps.append(step))
    assert judged == [2 * 3 * (i + 1) for i in range(len(judged))], "two steps an epoch, three epochs"


def test_frozen_states_are_computed_once_for_each_text(
    sources: list[TeacherSource], deep: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, forward = list[int](), Encoder.forward

    def counted(encoder: Encoder, ids: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        read.append(len(ids))
        return forward(encoder, ids, *given, **options)

    monkeypatch.setattr(Encoder, "forward", counted)
    lesson = lesson_of("classification", mood)
    kept = taught(sources[1], lesson)
    assert sum(read) == len(lesson.train) + len(lesson.dev) + len(lesson.texts)
    monkeypatch.setattr(teachers, "KEPT_BYTES", 0)
    anew = taught(sources[1], lesson)
    assert sum(read) > 3 * (len(lesson.train) + len(lesson.dev))
    for one, other in zip(kept.texts, anew.texts, strict=True):
        torch.testing.assert_close(one, other, atol=0.05, rtol=0.05)
