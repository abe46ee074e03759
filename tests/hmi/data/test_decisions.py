"""Annotators' decisions about rows, and texts that occur under several labels."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hmi.core import Task
from hmi.errors import InvalidData
from hmi.jobs.checks import inspect_file
from hmi.training.data.meaning.conflicts import conflicts_of
from hmi.training.data.rows import read_labelled_file, read_labelled_rows, read_unlabelled_file
from hmi.training.tasks.objectives import learn_task
from hmi.training.tasks.remarks import remarks

SAID = ("accept", "reject", "ignore")


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def decided(labels: str, said: list[str]) -> bytes:
    rows = zip(labels, said, strict=True)
    return jsonl([{"text": f"text {i}", "label": label, "answer": a} for i, (label, a) in enumerate(rows)])


def test_a_rejected_row_of_two_labels_is_the_others_and_ignored_ones_are_out() -> None:
    data = decided(
        "abababab", ["accept", "accept", "reject", "reject", "ignore", "accept", "accept", "accept"]
    )
    found = read_labelled_file(data, "classification")
    assert "".join(str(row.label) for row in found.rows) == "abbabab"
    assert [row.text for row in found.rows][4:] == ["text 5", "text 6", "text 7"]
    assert found.lines == [1, 2, 3, 4, 6, 7, 8]
    assert found.notes == [
        "the annotator accepted 5 rows, rejected 2, ignored 1 (`answer`); the rejected rows get the other of "
        "the two labels; the ignored rows are left out"
    ]
    checked = inspect_file(data, None)
    assert (checked.count, checked.notes, checked.error) == (7, found.notes, None)
    assert checked.read is not None
    assert "`answer` is the annotator's decision" in checked.read


def test_rows_that_were_all_accepted_need_no_remark() -> None:
    assert read_labelled_file(decided("abab", ["accept"] * 4), "classification").notes == []


def test_a_rejected_row_of_more_labels_is_none() -> None:
    found = read_labelled_file(decided("abcabcabc", ["accept"] * 6 + ["reject"] * 3), "classification")
    assert "".join(str(row.label) for row in found.rows) == "abcabc"
    assert "rejected 3, ignored 0 (`answer`); the rejected rows are left out" in found.notes[0]


def test_a_single_label_is_contrasted_with_its_absence() -> None:
    found = read_labelled_file(decided("aaaaaa", ["accept", "reject"] * 3), "classification")
    assert [row.label for row in found.rows] == ["a", "not a"] * 3
    assert "get the label `not a`" in found.notes[0]


def test_decisions_hold_for_every_task_and_not_for_texts_without_answers() -> None:
    row = {"text": "a", "text_pair": "b", "labels": ["x"], "value": 1.5, "tokens": ["a"], "tags": ["O"]}
    rows = [{**row, "answer": said} for said in SAID * 2] + [{**row, "labels": [], "value": 2.0}] * 4
    for task in ("multilabel", "regression", "tagging"):
        data = jsonl([r if task != "multilabel" else {**r, "text_pair": ""} for r in rows])
        found = read_labelled_file(data, task)  # type: ignore[arg-type]
        assert len(found.rows) == 6, task  # those accepted, and those without a decision
    texts = read_unlabelled_file(decided("abc" * 3, [*SAID] * 3), "classification", paired=False)
    assert len(texts.rows) == 9


def test_decisions_that_come_late_count_too() -> None:
    plain = jsonl([{"text": f"plain {i}", "label": "ab"[i % 2]} for i in range(300)])
    found = read_labelled_file(plain + decided("ab", ["reject", "ignore"]), "classification")
    assert [row.label for row in found.rows[300:]] == ["b"]
    assert "accepted 300 rows, rejected 1, ignored 1" in found.notes[0]
    late = read_labelled_file(plain + decided("ab", ["yes", "reject"]), "classification")
    assert (len(late.rows), late.notes) == (302, [])


def test_an_answer_that_is_no_decision_is_a_bad_row_or_another_column() -> None:
    with pytest.raises(InvalidData, match="line 5: `answer` is 'maybe', not accept, reject or ignore"):
        read_labelled_rows(
            decided("ababab", [*["accept", "reject", "ignore", "accept", "maybe", "accept"]]),
            "classification",
        )
    told = inspect_file(decided("abababab", ["yes"] * 8), None)
    assert (told.count, told.notes) == (8, [])
    assert told.read is not None
    assert "not used: `answer`" in told.read


def twice(texts: int, alone: int = 0) -> bytes:
    rows = [{"text": f"text  {i}" if i % 2 else f"text {i}", "label": a} for i in range(texts) for a in "ab"]
    return jsonl([*rows, *({"text": f"other {i}", "label": "a"} for i in range(alone))])


def test_a_check_and_a_training_tell_which_texts_have_several_labels() -> None:
    (note,) = inspect_file(twice(30), None).notes
    assert note == (
        "30 texts are labelled in more than one way, in 60 of the 60 rows: “text 0” (a: 1, b: 1); “text 1” "
        "(a: 1, b: 1); “text 2” (a: 1, b: 1); and 27 more. A perfect model could answer at most 50% of "
        "these 60 "
        "rows as labelled"
    )
    assert (
        "1 text is labelled in more than one way, in 2 of the 2002 rows"
        in inspect_file(twice(1, 2000), None).notes[0]
    )
    assert "at most 99.9%" in inspect_file(twice(1, 2000), None).notes[0], "less than all is not called all"
    assert (
        inspect_file(jsonl([{"text": "a", "label": "x"}, {"text": "b", "label": "y"}] * 3), None).notes == []
    )
    rows = read_labelled_rows(twice(30), "classification")
    told = remarks(learn_task("classification", [row.label for row in rows]), rows, rows[:20], dev_given=True)
    assert any(
        "10 texts are labelled in more than one way, in 20 of the 20 held-out rows" in said for said in told
    )


@pytest.mark.parametrize(
    ("task", "row", "other"),
    [
        ("pair", {"text": "a", "text_pair": "b", "label": "x"}, {"label": "y"}),
        ("multilabel", {"text": "a", "labels": ["x"]}, {"labels": []}),
        ("tagging", {"tokens": ["a", "b"], "tags": ["O", "B-X"]}, {"tags": ["B-X", "O"]}),
    ],
)
def test_so_it_is_for_other_labels(task: Task, row: dict[str, Any], other: dict[str, Any]) -> None:
    told = inspect_file(jsonl([row, row, row, {**row, **other}]), task).notes
    assert any("in 4 of the 4 rows" in note and "at most 75%" in note for note in told), told


def test_different_numbers_are_no_conflict() -> None:
    assert conflicts_of([("a", 1.0), ("a", 2.0)]).remark() == ""
    assert conflicts_of([]).reach == 1.0
