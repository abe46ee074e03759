"""The answers of Label Studio's annotators: they come before what a task brought along, and each counts."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from hmi.core import Task
from hmi.errors import InvalidData
from hmi.jobs.checks import task_of_file
from tests.hmi.data.test_label_studio import META, TEXTS, check


def choice(*labels: str, control: str = "topic") -> dict[str, Any]:
    value = {"choices": [*labels]}
    return {"type": "choices", "from_name": control, "to_name": "text", "value": value}


def task(number: int, data: dict[str, Any], *annotations: list[dict[str, Any]]) -> dict[str, Any]:
    """A task with the results of its annotations."""
    return {"id": number, "data": data, "annotations": [{"result": each} for each in annotations]}


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, [*rows[0]])
    writer.writeheader()
    for row in rows:
        writer.writerow({n: json.dumps(v) if isinstance(v, dict) else v for n, v in row.items()})
    return out.getvalue().encode()


@pytest.mark.parametrize("own", ["label", "labels", "Label", "value"])
@pytest.mark.parametrize("asked", [None, "classification"])
@pytest.mark.parametrize("control", ["topic", "label"])
def test_an_old_label_of_the_data_is_left_out_with_a_note(own: str, asked: Task | None, control: str) -> None:
    rows = [
        task(i, {"text": t, own: f"old{i % 2}"}, [choice("ab"[i % 2], control=control)])
        for i, t in enumerate(TEXTS)
    ]
    found = check(rows, asked)
    assert (found.error, found.task, found.labels) == (None, "classification", {"a": 3, "b": 2})
    assert f"left out of the tasks' data, since the annotations are the answers: `{own}`" in found.notes


@pytest.mark.parametrize("own", ["label", "labels"])
def test_an_old_label_beside_several_choices_is_left_out(own: str) -> None:
    labels = [["a", *["b"] * (i % 2)] for i in range(len(TEXTS))]
    old: Any = ["old"] if own == "labels" else "old"
    raw = [task(i, {"text": t, own: old}, [choice(*labels[i])]) for i, t in enumerate(TEXTS)]
    least = [
        {"text": t, own: "old", "topic": {"choices": labels[i]}, "id": i, "annotation_id": i, **META}
        for i, t in enumerate(TEXTS)
    ]
    for rows in (raw, least, as_csv(least)):
        found = check(rows)
        assert (found.error, found.task, found.labels) == (None, "multilabel", {"a": 5, "b": 2})
        assert f"left out of the tasks' data, since the annotations are the answers: `{own}`" in found.notes


def votes(*labels: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """These answers to each text, in JSON and JSON-MIN."""
    raw = [task(i, {"text": t}, *([choice(label)] for label in labels)) for i, t in enumerate(TEXTS)]
    least = [
        {"text": t, "topic": label, "id": i, "annotation_id": f"{i}-{k}", **META, "annotator": k}
        for k, label in enumerate(labels)
        for i, t in enumerate(TEXTS)
    ]
    return raw, least


def test_where_annotators_differ_each_counts() -> None:
    for rows in votes("a", "a", "b"):
        found = check(rows)
        assert found.labels == {"a": 10, "b": 5}
        assert any("labelled in more than one way" in note and "(a: 2, b: 1)" in note for note in found.notes)


def test_annotators_who_agree_are_one_row_and_counted() -> None:
    other = task(9, {"text": "It snows"}, [choice("b")])
    row = {"text": "It snows", "topic": "b", "id": 9, "annotation_id": 9, **META}
    raw, least = votes("a", "a", "a")
    for rows in ([*raw, other], [*least, row], as_csv([*least, row])):
        found = check(rows, "classification")
        assert found.labels == {"a": 5, "b": 1}
        assert "10 annotations agree with all others of the same task, which is one row" in found.notes


def test_a_table_of_ones_own_with_ids_of_annotations_loses_no_row() -> None:
    spans = [{"start": 0, "end": 4, "label": "X"}]
    rows = [{"id": 7, "annotation_id": i, "text": "Anna sings", "spans": spans} for i in range(6)]
    assert check(rows).count == 6


def spans(text: str, *controls: str) -> list[dict[str, Any]]:
    """The first three characters as a span of each of these controls."""
    value = {"start": 0, "end": 3, "labels": ["X"]}
    return [{"type": "labels", "from_name": name, "to_name": "text", "value": value} for name in controls]


@pytest.mark.parametrize("named", [None, "body"])
def test_a_task_without_its_text_is_not_read_from_another_field(named: str | None) -> None:
    rows = [task(i, {"body": t, "source": "crm tool"}, spans(t, "label")) for i, t in enumerate(TEXTS)]
    lost = task(9, {"body": None, "source": "crm tool"}, [])
    found = check([lost, *rows], text_column=named)
    assert [bad.message for bad in found.problems] == ["item 1: has no text in `body`, unlike others"]
    lost["annotations"] = []
    found = check([lost, *rows], text_column=named)
    assert (found.error, found.count) == (None, 5)
    assert "1 record is left out: without an annotation" in found.notes
    least = [{"body": t, "source": "x y", "label": [[0, 3, "X"]]} for t in TEXTS]
    found = check([*least, {"body": None, "source": "x y", "label": []}], text_column=named)
    assert [bad.message for bad in found.problems] == ["item 6: has no text in `body`, unlike others"]


def test_a_text_that_is_missing_makes_one_bad_row_of_classes() -> None:
    rows = [task(i, {"comment": t, "source": "crm"}, [choice("ab"[i % 2])]) for i, t in enumerate(TEXTS)]
    rows.append(task(9, {"comment": None, "source": "crm"}, [choice("a")]))
    found = check(rows)
    assert (found.count, [bad.message for bad in found.problems]) == (
        5,
        ["item 6: `text` is missing or empty"],
    )
    lone = [task(i, {"said": t}, [choice("ab"[i % 2])]) for i, t in enumerate(TEXTS)]
    assert check(lone).labels == check(lone, text_column="said").labels == {"a": 3, "b": 2}


def test_a_named_control_is_read_from_the_first_annotation_that_has_it() -> None:
    raw = [task(i, {"text": t}, spans(t, "label"), spans(t, "more")) for i, t in enumerate(TEXTS)]
    value = [{"start": 0, "end": 3, "labels": ["X"]}]
    least = [
        {"text": t, name: value, "id": i, "annotation_id": f"{i}-{name}", **META}
        for name in ("label", "more")
        for i, t in enumerate(TEXTS)
    ]
    for rows in (raw, least):
        found = check(rows, label_column="more")
        assert (found.count, found.labels["B-X"]) == (5, 5)
    raw[0]["annotations"][0]["ground_truth"] = True
    assert check(raw, label_column="more").labels["B-X"] == 4, "the ground truth says that there is none"


def test_a_project_with_two_controls_of_choices_is_no_corpus() -> None:
    rows = [
        task(i, {"text": t, "label": "old"}, [choice("ab"[i % 2]), choice("xy"[i // 3], control="tone")])
        for i, t in enumerate(TEXTS)
    ]
    found = check(rows)
    assert (found.kind, found.error) == (
        "rows",
        "the file has several choices, `topic`, `tone`: name the one to read (--label-column NAME, over HTTP "
        "options.label_column)",
    )
    with pytest.raises(InvalidData, match="data has several choices, `topic`, `tone`: name the one to read"):
        task_of_file(json.dumps(rows).encode(), "data")
    asked = check(rows, "classification").error
    assert asked is not None
    assert ": it has several choices, `topic`, `tone`: name the one to read" in asked
    assert check(rows, label_column="tone").labels == {"x": 3, "y": 2}
    assert "there is no column `tonne`" in (check(rows, label_column="tonne").error or "")


def test_the_data_does_not_fill_in_for_an_answer() -> None:
    rows = [
        task(
            i,
            {"text": t, "tone": "imported"},
            [choice("a"), *[choice("xy"[i % 2], control="tone")] * (i > 0)],
        )
        for i, t in enumerate(TEXTS)
    ]
    found = check(rows, "classification", label_column="tone")
    assert found.labels == {"x": 2, "y": 2}
    assert [bad.message for bad in found.problems] == ["item 1: `label` is missing"]


def test_several_choices_of_two_controls_are_lists_of_labels() -> None:
    rows = [
        {
            "text": t,
            "tone": {"choices": ["x", "y"]} if i else "x",
            "topic": {"choices": ["ab"[i % 2], "z"]},
            "id": i,
            "annotation_id": i,
            **META,
        }
        for i, t in enumerate(TEXTS)
    ]
    raw = [
        task(i, {"text": t}, [choice("ab"[i % 2], "z"), choice(*["x", "y"][: i + 1], control="tone")])
        for i, t in enumerate(TEXTS)
    ]
    for each in (raw, rows, as_csv(rows)):
        found = check(each, "multilabel", label_column="topic")
        assert (found.error, found.labels) == (None, {"a": 3, "b": 2, "z": 5})
        assert check(each, "multilabel", label_column="tone").labels == {"x": 5, "y": 4}
        assert "`label` is a list" in (check(each, label_column="topic").error or "")


def test_a_file_of_which_no_row_has_a_label_is_called_so() -> None:
    rows = [{"id": i, "text": t, "label": [], "Comments": []} for i, t in enumerate(TEXTS)]
    for asked in (None, "classification", "tagging"):
        found = check(rows, asked)
        assert found.error is not None
        assert found.error.endswith("no row has a label: label some there, and export again")
    score = [{"body": t, "sentiment": "ab"[i % 2], "score": i / 5} for i, t in enumerate(TEXTS)]
    assert check(score).labels == check(score, text_column="body").labels == {"a": 3, "b": 2}
