"""Tag schemes: told by the tags, trained and scored as BIO, answered as the rows have them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from seqeval.scheme import BILOU, IOBES, Entities

from hmi.core import TaskRules
from hmi.jobs.checks import inspect_file
from hmi.model.tags.tag_schemes import FOUR_MARKS, breaks, from_bio, in_labels, scheme_of
from hmi.model.tasks.words import Tagging
from hmi.model.text.splitting import Splitter
from hmi.training.data.rows import Row
from hmi.training.tasks.headline import headline_name
from hmi.training.tasks.objectives import learn_task, objective_of
from hmi.training.tasks.remarks import remarks
from hmi.training.tasks.scoring import score_tags, tag_parts

WORDS = ("Anna", "left", "New", "York", "for", "The", "Old", "Town", "Oslo")
BIO = ("B-PER", "O", "B-LOC", "I-LOC", "O", "B-LOC", "I-LOC", "I-LOC", "B-LOC")
ROWS: dict[str, tuple[str, ...]] = {
    "bio": BIO,
    "iob1": ("I-PER", "O", "I-LOC", "I-LOC", "O", "I-LOC", "I-LOC", "I-LOC", "B-LOC"),
    "iobes": ("S-PER", "O", "B-LOC", "E-LOC", "O", "B-LOC", "I-LOC", "E-LOC", "S-LOC"),
    "bilou": ("U-PER", "O", "B-LOC", "L-LOC", "O", "B-LOC", "I-LOC", "L-LOC", "U-LOC"),
    "bmes": ("S-PER", "O", "B-LOC", "E-LOC", "O", "B-LOC", "M-LOC", "E-LOC", "S-LOC"),
}
"""The same entities in each scheme."""
JOINED: dict[str, tuple[str, ...]] = {
    "io": ("I-PER", "O", "I-LOC", "I-LOC", "O", "I-LOC", "I-LOC", "I-LOC", "I-LOC"),
    "plain": ("PER", "O", "LOC", "LOC", "O", "LOC", "LOC", "LOC", "LOC"),
}
"""Schemes in which neighbours of one type are one entity."""
IN_BIO_JOINED = (*BIO[:-1], "I-LOC")
ALL = {**ROWS, **JOINED}


@pytest.mark.parametrize("scheme", ALL)
def test_a_scheme_is_told_by_its_tags_and_read_as_bio(scheme: Any) -> None:
    tags = ALL[scheme]
    rest = ("O",) * 9
    assert scheme_of([tags, rest]) == scheme
    bio = IN_BIO_JOINED if scheme in JOINED else BIO
    assert in_labels(tags, scheme) == bio
    assert tuple(from_bio(bio, scheme)) == tags


@pytest.mark.parametrize(
    ("row", "scheme"),
    [
        (("NOUN", "VERB", "NOUN", "NOUN"), "free"),
        (("O", "N", "N", "V", "V", "O"), "plain"),
        (("N", "N", "V", "O", "V", "N"), "free"),  # a tag set in which O is a part of speech
        (("O", "COMMA", "O", "O", "PERIOD", "O"), "free"),
        (("S-PER", "O", "O"), "iobes"),
        (("E-commerce", "O", "E-commerce"), "free"),
        (("B-x", "M-x", "E-x", "L-x"), "free"),
        (("B", "I", "O"), "free"),
    ],
)
def test_labels_that_only_look_like_tags_stay_labels(row: tuple[str, ...], scheme: str) -> None:
    assert scheme_of([row] * 5) == scheme


def test_a_tag_that_cannot_go_on_begins_an_entity() -> None:
    assert in_labels(("S-a", "E-a", "O", "I-a", "E-a"), "iobes") == ("B-a", "B-a", "O", "B-a", "I-a")
    assert in_labels(("B-a", "I-b", "E-b", "I-b"), "iobes") == ("B-a", "B-b", "I-b", "B-b")
    assert in_labels(("B-a", "L-a", "L-a", "NOUN"), "bilou") == ("B-a", "I-a", "B-a", "NOUN")
    assert [found[1:] for found in breaks([("B-a", "L-a", "L-a")], "bilou")] == [(3, "L-a", "L-a")]


entities = st.lists(st.tuples(st.sampled_from(["O", "a", "b"]), st.integers(1, 3)), max_size=6)


@given(entities, st.sampled_from(["iobes", "bilou", "bmes"]))
def test_every_row_comes_back_from_bio(runs: list[tuple[str, int]], scheme: Any) -> None:
    bio = [tag for label, count in runs for tag in _run(label, count)]
    tags = from_bio(bio, scheme)
    assert list(in_labels(tags, scheme)) == bio
    assert list(breaks([tags], scheme)) == []
    theirs = {"iobes": IOBES, "bilou": BILOU}.get(scheme)
    if theirs is not None:
        [found] = Entities([tags], theirs).entities
        starts = [i for i, tag in enumerate(bio) if tag[0] == "B"]
        assert [(entity.start, entity.tag) for entity in found] == [(i, bio[i][2:]) for i in starts]
        assert sum(entity.end - entity.start for entity in found) == sum(tag != "O" for tag in bio)


def _run(label: str, count: int) -> list[str]:
    return ["O"] * count if label == "O" else [f"B-{label}", *[f"I-{label}"] * (count - 1)]


def outputs(task: Tagging, bio: tuple[str, ...]) -> torch.Tensor:
    """Outputs of a model that is sure of these tags."""
    scores = torch.full((len(bio), len(task.labels)), -9.0)
    scores[range(len(bio)), [task.labels.index(tag) for tag in bio]] = -0.001
    return scores


@pytest.mark.parametrize("scheme", ALL)
def test_a_model_learns_entities_and_answers_in_the_scheme_of_its_rows(scheme: str) -> None:
    tags = ALL[scheme]
    bio = IN_BIO_JOINED if scheme in JOINED else BIO
    task = learn_task("tagging", [tags, ("O",) * 9])
    assert isinstance(task, Tagging)
    assert task.rules.scheme == scheme
    assert {label[2:] for label in task.labels} == {"", "PER", "LOC"}
    assert {label[:2] for label in task.labels} == {"O", "B-", "I-"}
    assert ("I-PER" in task.labels) == (scheme in JOINED), "neighbours of any type may be one entity"
    right = outputs(task, bio)
    answer = task.answer(right)
    assert answer.tags == list(tags)
    text = " ".join(WORDS)
    found = task.entities(answer, text, Splitter().split(text)).entities or []
    wanted = [("PER", "Anna"), ("LOC", "New York"), ("LOC", "The Old Town"), ("LOC", "Oslo")]
    if scheme in JOINED:
        wanted[2:] = [("LOC", "The Old Town Oslo")]
    assert [(entity.label, entity.text) for entity in found] == wanted
    metrics = objective_of(task).score([tags], [right])
    assert metrics["entity_f1"] == 1.0
    assert set(metrics["per_label"]) == {"PER", "LOC"}
    assert metrics["per_label"]["LOC"]["support"] == len(wanted) - 1
    assert objective_of(task).chance([tags]) == 0.0


@pytest.mark.parametrize("scheme", ["iobes", "bilou", "bmes"])
def test_an_entity_is_wrong_if_its_end_is(scheme: Any) -> None:
    gold, got = list(ROWS[scheme]), from_bio(("B-PER", "O", "B-LOC", "O", *BIO[4:]), scheme)
    metrics = score_tags([gold], [got])
    assert (metrics["precision"], metrics["recall"]) == (0.75, 0.75)
    assert tag_parts([gold], [got]).tolist() == [[6.0, 8.0]]
    assert score_tags([gold], [got], scheme) == metrics


def test_a_stored_model_answers_as_before_and_is_judged_by_entities() -> None:
    """Models of earlier releases have the tags of IOBES as labels without a scheme."""
    gold = ROWS["iobes"]
    old = Tagging(tuple(sorted(set(gold))), TaskRules(scheme="free"))
    right = outputs(old, gold)
    answer = old.answer(right)
    assert answer.tags == list(gold)
    text = " ".join(WORDS)
    found = old.entities(answer, text, Splitter().split(text)).entities or []
    assert [entity.label for entity in found][:3] == ["S-PER", "LOC", "E-LOC"]
    new = learn_task("tagging", [gold, ("O",) * 9])
    both = [
        objective_of(old).score([gold], [right]),
        objective_of(new).score([gold], [outputs(new, BIO)]),  # type: ignore[arg-type]
    ]
    assert [headline_name(metrics) for metrics in both] == ["entity_f1", "entity_f1"]
    assert both[0]["entity_f1"] == both[1]["entity_f1"] == 1.0


def rows_of(tags: tuple[str, ...], count: int = 8) -> bytes:
    """`count` rows with these tags, and as many without entities."""
    rows = [(WORDS[: len(tags)], tags), (("so", "what", "?", "we", "ask"), ("O",) * 5)] * count
    return "".join(json.dumps({"tokens": words, "tags": tags}) + "\n" for words, tags in rows).encode()


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        ("bio", "tags in IOB2 (BIO): 32 entities of 2 types"),
        ("iob1", "tags in IOB1: 32 entities of 2 types"),
        ("iobes", "tags in IOBES: 32 entities of 2 types"),
        ("bilou", "tags in BILOU: 32 entities of 2 types"),
        ("bmes", "tags in BMES: 32 entities of 2 types"),
        ("io", "tags in IO: 24 entities of 2 types"),
        ("plain", "tags in IO without prefixes: 24 entities of 2 types"),
    ],
)
def test_check_tells_the_scheme(scheme: str, said: str) -> None:
    found = inspect_file(rows_of(ALL[scheme]), None)
    assert found.error is None
    assert found.read is not None
    assert found.read.endswith(said)
    assert found.notes == []


def test_tags_that_break_their_scheme_are_named() -> None:
    broken = inspect_file(rows_of(("B-PER", "S-PER", "I-LOC", "O")), None)
    assert "the tags look like IOBES, but many break it (row 1, word 2: S-PER after B-PER;" in broken.notes[0]
    bare = inspect_file(rows_of(("B", "I", "O")), None)
    assert bare.notes == [
        "the tags `B`, `I` name no type, so each is read as a label: write B-x and I-x for a type x"
    ]
    rows = [*[Row(list(WORDS), ROWS["iobes"])] * 40, Row(["a", "b"], ("B-LOC", "O"))]
    task = learn_task("tagging", [row.label for row in rows])
    assert task.rules.scheme == "iobes"
    [said, _] = remarks(task, rows, rows[:1], dev_given=False)
    assert said.startswith("1 tag breaks IOBES (row 41, word 2: O after B-LOC)")


def test_the_marks_of_each_scheme_differ() -> None:
    assert all(len(set(four)) == 4 for four in FOUR_MARKS.values())
