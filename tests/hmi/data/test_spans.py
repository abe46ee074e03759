"""Spans on raw texts, as tools write them, become rows of tagging. What does not fit is counted and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmi.client.rows import lines as sent_lines
from hmi.core import TaskRules
from hmi.errors import InvalidData
from hmi.jobs.checks import Checked, inspect_file
from hmi.jobs.model.training_data import read_data
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.stage.profile_tokens import read_parts
from hmi.model.tags.entities import entities_of
from hmi.model.tasks.words import Tagging
from hmi.model.text.splitting import Splitter
from hmi.training.data.rows import parse_rows, read_labelled_file, read_unlabelled_file
from hmi.training.tasks.row_keys import keys_from_text
from tests.hmi.labs.span_files import (
    FORMS,
    LISTS,
    SPANS,
    TAGS,
    TEXT,
    TOKENS,
    Span,
    least,
    lines,
    objects,
    task,
)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("listed", [False, True])
def test_every_form_becomes_rows_of_tagging(name: str, *, listed: bool) -> None:
    row, said = FORMS[name]
    data = json.dumps([row] * 4, indent=2).encode() if listed else lines(*[row] * 4)
    found = inspect_file(data, None)
    assert (found.error, found.task, found.count) == (None, "tagging", 4)
    assert [note for note in found.notes if "beside the spans there are choices" not in note] == []
    assert found.sample[0] == {"tokens": TOKENS, "tags": TAGS}
    assert found.read is not None
    assert said in found.read
    assert "tags in IOB2 (BIO): 8 entities of 2 types" in found.read


def test_spacys_older_pairs_are_rows() -> None:
    found = inspect_file(json.dumps([[TEXT, {"entities": LISTS}]] * 4).encode(), None)
    assert (found.error, found.count) == (None, 4)
    assert found.sample[0]["tags"] == TAGS


def checked(*rows: Any) -> Checked:
    return inspect_file(lines(*rows), "tagging", skip=len(rows))


def row(text: str, *spans: Span) -> dict[str, Any]:
    return {"text": text, "spans": objects(spans)}


GOOD = [row(TEXT, *SPANS)] * 3


def test_spans_that_cannot_be_rows_are_counted_with_their_line_and_shown() -> None:
    found = checked(
        *GOOD,
        row("New York Times", (0, 14, "ORG"), (0, 8, "LOC")),
        row("A Hausboot here", (2, 6, "X")),
        row("Anna", (0, 9, "PER")),
        row("Anna", (3, 3, "PER")),
        row("Anna was", (4, 5, "PER")),
        {"text": "Anna", "spans": [{"start": "0", "end": 4, "label": "PER"}]},
        {"text": "Anna", "spans": [{"start": 0, "end": 4, "label": 7}]},
        row("Anna Anna", (0, 4, "PER"), (0, 4, "PER"), (4, 9, "PER")),
    )
    assert found.notes == [
        "1 span is left out, since it overlaps another one: a word has one tag, so the longest is kept, of "
        "equally long ones the first: line 4, “New York Times” (ORG) is kept, “New York” (LOC) is not",
        "spans that cut a word, read as the whole word: 1 (line 5 “Haus” in “Hausboot”)",
    ]
    assert [(bad.line, bad.message.partition(": ")[2]) for bad in found.problems] == [
        (6, "the span from 0 to 9 (PER) lies outside the text, which has 4 characters"),
        (7, "the span from 3 to 3 (PER) is empty"),
        (8, "the span from 4 to 5 (PER) holds no character but white space"),
        (9, "`spans` has a span from '0' to 4: give whole numbers"),
        (
            10,
            "`spans` has a span with the number 7 as label: export the labels' names (doccano: “JSONL (text "
            "label)”)",
        ),
    ]
    assert found.count == 6
    assert found.labels["B-PER"] == 5
    with pytest.raises(InvalidData, match="line 1: the span from 0 to 9"):
        read_labelled_file(lines(row("Anna", (0, 9, "PER")), *GOOD), "tagging")


def test_words_are_split_where_spans_need_it_and_so_will_the_model() -> None:
    text = "York-based Anna's firm-wide (IL-2) rock'n'roll"
    spans = [(0, 4, "LOC"), (11, 15, "PER"), (29, 33, "GENE")]
    found = parse_rows(lines(*[row(text, *spans)] * 4), "tagging", "data")
    assert found.patterns == ("a - a", "a 'a")
    words = found.rows[0].text
    assert words == [
        "York",
        "-",
        "based",
        "Anna",
        "'s",
        "firm",
        "-",
        "wide",
        "(",
        "IL-2",
        ")",
        "rock",
        "'n",
        "'roll",
    ]
    assert Splitter(found.patterns or ()).split(text).words == words
    dev = parse_rows(lines(row("Oslo-based", (0, 10, "X"))), "tagging", "dev", patterns=found.patterns)
    assert dev.rows[0].text == ["Oslo", "-", "based"]
    plain = read_unlabelled_file(
        lines({"text": "Oslo-based"}), "tagging", paired=False, patterns=found.patterns
    )
    assert plain.rows[0].text == ["Oslo", "-", "based"]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.data())
def test_spans_at_words_come_back_as_entities(text: str, data: st.DataObject) -> None:
    """Whatever the text holds: spans that begin and end with words are those that the model would answer."""
    split = Splitter().split(text)
    if not split.words:
        return
    cuts = sorted(data.draw(st.sets(st.integers(0, len(split.words)), min_size=2)) or {0, 1})
    given_spans = [
        (split.spans[a][0], split.spans[b - 1][1], label)
        for (a, b), label in zip(zip(cuts[::2], cuts[1::2], strict=False), "ABCDEFGHIJKLMNOP", strict=False)
    ]
    found = parse_rows(lines(row(text, *given_spans)), "tagging", "data", patterns=())
    [one] = found.rows
    assert isinstance(one.label, tuple)
    back = entities_of(text, split, one.label, [0.5] * len(split.words), "simple")
    assert [(e.start, e.end, e.label) for e in back] == given_spans


EMOJI = "😀 Anna met 👩‍👩‍👧 in New York"
AT = [(2, 6, "PER"), (EMOJI.index("New"), len(EMOJI), "LOC")]
UNITS = [(3, 7, "PER"), (AT[1][0] + 4, AT[1][1] + 4, "LOC")]


@pytest.mark.parametrize("offsets", [AT, UNITS])
def test_the_spans_own_text_tells_what_offsets_count(offsets: list[Span]) -> None:
    named = [
        {"start": a, "end": b, "text": EMOJI[s:e], "labels": [label]}
        for (a, b, label), (s, e, _) in zip(offsets, AT, strict=True)
    ]
    found = inspect_file(lines(*[{"text": EMOJI, "label": named}] * 4), None)
    assert found.error is None
    assert found.sample[0]["tags"] == ("O", "B-PER", "O", "O", "O", "B-LOC", "I-LOC")
    assert bool(found.notes) is (offsets is UNITS)
    if offsets is UNITS:
        assert found.notes[0].startswith(
            "rows whose offsets count UTF-16 units, in which an emoji is two, read"
        )


def test_without_texts_the_edges_of_words_tell_or_the_other_rows_or_nothing() -> None:
    told = {"text": "😀 Anna", "label": [[3, 7, "PER"]]}
    doubtful = {"text": "😀 +++", "label": [[3, 4, "X"]]}
    found = inspect_file(lines(*[told] * 3, doubtful), "tagging")
    assert found.error is None
    assert found.labels == {"O": 6, "B-PER": 3, "B-X": 1}
    assert parse_rows(lines(told, doubtful), "tagging", "data").rows[1].label == ("O", "B-X", "O", "O")
    points = {"text": "😀 Anna", "label": [[2, 6, "PER"]]}
    assert parse_rows(lines(points, doubtful), "tagging", "data").rows[1].label == ("O", "O", "B-X", "O")
    for others in ([], [told, points]):
        [bad] = parse_rows(lines(*others, doubtful), "tagging", "data").left_out
        assert "it cannot be told whether offsets count it as one or, as in UTF-16, as two" in bad.message
    python = {"text": "😀 +++", "entities": [[3, 4, "X"]]}  # spaCy's, which are code points
    assert parse_rows(lines(python), "tagging", "data").rows[0].label == ("O", "O", "B-X", "O")


def test_what_a_tool_counts_decides_unless_the_spans_texts_do() -> None:
    cut = {"text": "😀 ab cd", "entities": [[3, 5, "X"]]}  # as UTF-16 it would be “ab”, but spaCy has none
    found = parse_rows(lines(cut), "tagging", "data")
    assert found.notes == ["spans that cut a word, read as the whole word: 1 (line 1 “b” in “ab”)"]
    told = {"text": "😀 Anna", "label": [[3, 7, "PER"]]}
    past = {"text": "😀 Anna", "label": [[3, 8, "PER"]]}
    for rows in ([told, past], [past]):
        [bad] = parse_rows(lines(*rows), "tagging", "data").left_out
        assert "lies outside the text, which has 6 characters" in bad.message
    chinese = {"text": "𠀀a", "label": [[0, 2, "X"]]}  # an ideograph is a word, so both may be meant
    [bad] = parse_rows(lines(chinese), "tagging", "data").left_out
    assert "it cannot be told" in bad.message
    mark = {"start": 0, "end": 2, "label": "X", "text": "😀"}  # as code points it would be “😀 ”
    [one] = parse_rows(lines({"text": "😀 x", "marks": [mark]}), "tagging", "data").rows
    assert one.label == ("B-X", "O")


def test_a_text_that_is_not_at_its_offsets_is_refused() -> None:
    wrong = {"text": TEXT, "label": [{"start": 1, "end": 5, "text": "Anna", "labels": ["PER"]}]}
    found = checked(*[least(TEXT, SPANS)] * 4, wrong)
    assert found.problems[0].message == (
        "line 5: the span from 1 to 5 is “nna ”, but its text is “Anna”: its offsets are of another text"
    )


def test_tasks_that_nobody_annotated_are_left_out_and_the_first_of_several_annotations_is_read() -> None:
    one = task(TEXT, SPANS)
    skipped = {**one, "annotations": [{**one["annotations"][0], "was_cancelled": True}]}
    empty = {**one, "annotations": [{"result": [], "was_cancelled": False}]}
    other = task(TEXT, SPANS[:1])["annotations"]
    both = {**one, "annotations": [*other, {**one["annotations"][0], "ground_truth": True}]}
    todo = {"id": 2, "data": {"text": TEXT}, "annotations": []}
    data = json.dumps([one, both, empty, skipped, todo, one]).encode()
    found = inspect_file(data, None)
    assert (found.error, found.count) == (None, 4)
    assert found.labels["B-LOC"] == 3, "the annotation that is marked as the truth counts"
    assert [note for note in found.notes if "more than one way" not in note and "choices" not in note] == [
        "1 record is left out: skipped by the annotator",
        "1 record is left out: without an annotation",
        "rows with several annotations, of which the ground truth is read: 1 (item 2)",
    ]
    texts = read_unlabelled_file(data, "tagging", paired=False)
    assert [given.text for given in texts.rows] == [TOKENS] * 6, "as texts, all count"
    hyper = {
        **one,
        "annotations": [{"result": [{"value": {"start": "/p", "end": "/p", "hypertextlabels": ["X"]}}]}],
    }
    [bad] = parse_rows(json.dumps([one] * 4 + [hyper]).encode(), "tagging", "data").left_out
    assert "item 5" in bad.message
    assert "hypertextlabels, whose offsets do not count characters" in bad.message


def test_rows_that_the_annotator_rejected_or_ignored_are_left_out() -> None:
    wrong = [{**row(f"Oslo {said}", (0, 4, "X")), "answer": said} for said in ("reject", "ignore")]
    found = inspect_file(lines(*[{**row(TEXT, *SPANS), "answer": "accept"}] * 4, *wrong), None)
    assert (found.count, found.labels.get("B-X")) == (4, None)
    assert found.notes == [
        "the annotator accepted 4 rows, rejected 1, ignored 1 (`answer`); the rejected rows are left out, "
        "since a rejection does not tell the right label; the ignored rows are left out"
    ]


def test_a_task_of_label_studio_with_spans_and_choices_is_what_it_is_asked_to_be() -> None:
    """Choices go with `classification`, if it is given; else spans are read."""
    both = [task(f"{TEXT} {i}", SPANS) for i in range(6)]
    for i, each in enumerate(both):
        each["annotations"][0]["result"][-1]["value"]["choices"] = ["ab"[i % 2]]
    data = json.dumps(both).encode()
    assert inspect_file(data, None).task == "tagging"
    found = inspect_file(data, "classification")
    assert (found.error, found.labels) == (None, {"a": 3, "b": 3})


def test_rows_of_another_task_that_also_have_spans_keep_their_task() -> None:
    """Prodigy marks the matches of patterns in rows of classification."""
    rows = [
        {"text": TEXT, "label": "ab"[i % 2], "spans": objects(SPANS), "answer": "accept"} for i in range(6)
    ]
    assert inspect_file(lines(*rows), None).task == "classification"
    spans = [{"text": TEXT, "labels": LISTS}] * 5
    found = inspect_file(lines(*spans), "multilabel")
    assert found.error is not None
    assert "Give --task tagging" in found.error


def numbered(count: int, text: str = "Anna {} York-based.") -> list[dict[str, Any]]:
    texts = [text.format(f"no{i}") for i in range(count)]
    return [row(each, (each.index("York"), each.index("York") + 4, "LOC")) for each in texts]


def test_every_file_of_a_training_is_split_as_its_spans_need_it(tmp_path: Path) -> None:
    """Held-out rows and unlabelled texts follow the training rows, since the model will split like these."""
    (tmp_path / "data").write_bytes(lines(*numbered(30)))
    (tmp_path / "dev").write_bytes(lines(*numbered(5, "Oslo-wide {} York")))
    (tmp_path / "unlabelled").write_bytes(lines({"text": "Rome-based"}, {"text": "Bonn"}))
    found = read_data(tmp_path, "tagging", FineTuneOptions())
    assert found.task.rules.words == ("a - a",)
    assert found.train[0].text == ["Anna", "no0", "York", "-", "based", "."]
    assert found.dev[0].text == ["Oslo", "-", "wide", "no0", "York"]
    assert [each.text for each in found.unlabelled] == [["Rome", "-", "based"], ["Bonn"]]
    assert "spans in `spans`, as Prodigy writes them" in found.read["data"]
    few = [row(f"Anna{i} - wide", (0, 5, "PER")) for i in range(30)]
    (tmp_path / "data").write_bytes(lines(*few, row("firm-wide")))
    assert read_data(tmp_path, "tagging", FineTuneOptions()).task.rules.words == (), "the defaults split them"
    (tmp_path / "data").write_bytes(lines(*[{"tokens": ["a", "-", "b"], "tags": ["B-LOC", "O", "O"]}] * 30))
    assert read_data(tmp_path, "tagging", FineTuneOptions()).dev[0].text[:3] == ["Oslo", "-", "wide"], (
        "as words are"
    )


def test_rows_for_a_model_that_exists_are_split_as_it_splits(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(lines(*numbered(50, "Oslo-wide {} York")))
    (tmp_path / "unlabelled").write_bytes(lines({"text": "Rome-based"}, {"text": "Bonn"}))
    rules = TaskRules(scheme="bio", words=("a - a",))
    parts = read_parts(
        tmp_path, Tagging(("B-LOC", "I-LOC", "O"), rules), FineTuneOptions(), keys_from_text("")
    )
    assert parts.held[0].text[:3] == ["Oslo", "-", "wide"]
    assert ["Rome", "-", "based"] in [each.text for each in parts.unlabelled]


def test_rows_of_a_client_are_read_alike() -> None:
    sent = b"".join(sent_lines([FORMS["prodigy"][0], FORMS["label studio"][0]]))
    assert sent.count(b"\n") == 2
    rows = parse_rows(sent.splitlines()[1], "tagging", "data").rows
    assert (rows[0].text, rows[0].label) == (TOKENS, TAGS)
