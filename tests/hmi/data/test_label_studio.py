"""Exports of Label Studio as it writes them: several controls, several annotators, texts of other names, and
what has nothing to learn from."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from hmi.core import Task
from hmi.errors import InvalidData
from hmi.jobs.checks import Checked, inspect_file
from hmi.training.data.batch_texts import read_batch
from hmi.training.data.meaning.conflicts import conflicts_of
from hmi.training.data.reading import Reading
from hmi.training.data.rows import read_unlabelled_file

TEXTS = ("Anna moved to Oslo", "Ben met Anna", "Oslo is cold", "It rains in Oslo", "Anna sings")
CONTROLS = {"Anna": ("label", "PER"), "Oslo": ("more", "LOC")}
META = {"annotator": 1, "lead_time": 1.5, "created_at": "2026", "updated_at": "2026"}


def span(text: str, word: str, label: str, kind: str = "labels") -> dict[str, Any]:
    start = text.index(word)
    return {"start": start, "end": start + len(word), "text": word, kind: [label]}


def annotation(text: str, **more: Any) -> dict[str, Any]:
    """An annotation of a text by two controls for spans."""
    result = [
        {"type": "labels", "from_name": control, "to_name": "text", "value": span(text, word, label)}
        for word, (control, label) in CONTROLS.items()
        if word in text
    ]
    return {"id": 1, "result": result, **more}


def tone(number: int) -> dict[str, Any]:
    value = {"choices": ["loud" if number % 2 else "calm"]}
    return {"type": "choices", "from_name": "tone", "to_name": "text", "value": value}


def tasks(*annotations: dict[str, Any], **data: str) -> list[dict[str, Any]]:
    """Tasks with their own annotations of two controls, or with the given ones."""
    return [
        {"id": i, "data": {"text": text, **data}, "annotations": [*annotations] or [annotation(text)]}
        for i, text in enumerate(TEXTS)
    ]


def least(**more: Any) -> list[dict[str, Any]]:
    """The same as rows of JSON-MIN."""
    return [
        {
            "text": text,
            **{c: [span(text, w, name)] if w in text else [] for w, (c, name) in CONTROLS.items()},
            "id": i,
            "annotation_id": 10 + i,
            **META,
            **more,
        }
        for i, text in enumerate(TEXTS)
    ]


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, [*rows[0]])
    writer.writeheader()
    for row in rows:
        writer.writerow({n: json.dumps(v) if isinstance(v, list) and v else v or "" for n, v in row.items()})
    return out.getvalue().encode()


def check(rows: Any, task: Task | None = None, **reading: Any) -> Checked:
    raw = rows if isinstance(rows, bytes) else json.dumps(rows).encode()
    return inspect_file(raw, task, reading=Reading(**reading))


@pytest.mark.parametrize("rows", [tasks(), least(), as_csv(least())], ids=["JSON", "JSON-MIN", "CSV"])
def test_the_spans_of_two_controls_are_read_together_or_one_is_named(rows: Any) -> None:
    both = check(rows)
    assert (both.error, both.labels) == (None, {"O": 10, "B-PER": 3, "B-LOC": 3})
    assert both.notes == [
        "the spans of `label`, `more` are read together: name one to read it alone (--label-column, over "
        "HTTP options.label_column)"
    ]
    one = check(rows, label_column="more")
    assert (one.error, one.labels, one.notes) == (None, {"O": 13, "B-LOC": 3}, [])


def test_spans_of_other_tools_in_two_fields_are_told_and_one_can_be_named() -> None:
    rows = [
        {"text": t, "spans": [span(t, "n", "N", "label")], "ents": [span(t, "s", "S", "label")]}
        for t in ("Anna sings", "In Oslo", "Ben sits", "Tins")
    ]
    found = check(rows)
    assert found.labels["B-N"] == 4
    assert any(note.startswith("spans in `ents` are left out: name the ones to read") for note in found.notes)
    assert check(rows, label_column="ents").labels["B-S"] == 4


@pytest.mark.parametrize("control", ["tone", "sentiment"])
@pytest.mark.parametrize("form", ["JSON", "JSON-MIN", "CSV"])
def test_choices_beside_spans_are_told_and_can_be_asked_for_by_name(form: str, control: str) -> None:
    """Whatever the control of choices is called, spans are read unless it is named."""
    rows: Any = tasks()
    for i, each in enumerate(rows):
        each["annotations"][0]["result"].append({**tone(i), "from_name": control})
    if form != "JSON":
        rows = [{**row, control: "loud" if i % 2 else "calm"} for i, row in enumerate(least())]
    rows = as_csv(rows) if form == "CSV" else rows
    found = check(rows)
    assert (found.task, found.labels["B-PER"]) == ("tagging", 3)
    assert any(f"choices, which are left out: name `{control}` to read it" in note for note in found.notes)
    named = check(rows, label_column=control)
    assert (named.error, named.task, named.labels) == (None, "classification", {"calm": 3, "loud": 2})
    asked = check(rows, "classification")
    assert asked.labels == named.labels
    assert any("which are left out: --task tagging reads them instead" in note for note in asked.notes)


@pytest.mark.parametrize("several", [False, True])
def test_one_control_of_choices_can_be_named(several: bool) -> None:
    labels = [["loud", *["long"] * several] if i % 2 else ["calm"] for i in range(len(TEXTS))]
    raw = [
        {
            "id": i,
            "data": {"text": t},
            "annotations": [{"result": [{**tone(i), "value": {"choices": chosen}}]}],
        }
        for i, (t, chosen) in enumerate(zip(TEXTS, labels, strict=True))
    ]
    short = [
        {"text": t, "tone": {"choices": c} if several else c[0], "id": i, "annotation_id": i, **META}
        for i, (t, c) in enumerate(zip(TEXTS, labels, strict=True))
    ]
    for rows in (raw, short):
        found = check(rows, "multilabel" if several else None, label_column="tone")
        assert found.error is None
        assert found.labels == {"calm": 3, "loud": 2, **({"long": 2} if several else {})}


def test_a_task_with_a_row_for_each_annotation_is_one_row() -> None:
    twice = [
        row for i, row in enumerate(least()) for row in (row, {**row, "annotation_id": 90 + i, "label": []})
    ]
    found = check(twice, label_column="label")
    assert (found.count, found.labels["B-PER"]) == (5, 3)
    assert found.notes == [
        "rows with several annotations, of which the first is read: 5 (item 1; item 3; item 5; and 2 more)"
    ]
    bad = [{**row, "label": [{"start": 0, "end": 999, "labels": ["X"]}]} for row in twice[:2]]
    assert len(check([*twice, *bad]).problems) == 0, "of a task that is read already"
    lost = [{**row, "label": [{"start": 0, "labels": ["X"], "end": "9"}], "id": 77} for row in twice[:2]]
    assert len(check([*twice, *lost]).problems) == 2, "each row that cannot be read is told"
    topics = [
        {"text": t, "topic": "ab"[i % 2], "id": i, "annotation_id": i, **META} for i, t in enumerate(TEXTS)
    ]
    agreed = [each for row in topics for each in (row, {**row, "annotation_id": 90, "annotator": 2})]
    assert check(agreed).count == 5
    told = check([*agreed, {**topics[0], "annotation_id": 91, "topic": "b"}])
    assert told.count == 7, "where annotators differ, each counts"
    assert len(read_unlabelled_file(json.dumps(twice).encode(), "tagging", paired=False).rows) == 5


def test_of_several_annotations_it_is_told_which_one_is_read() -> None:
    rows = tasks()
    rows[0]["annotations"].append(annotation(TEXTS[1], ground_truth=True))
    rows[0]["data"]["text"] = TEXTS[1]
    rows[1]["annotations"].append({"result": []})
    notes = check(rows, label_column="label").notes
    assert notes[-2:] == [
        "rows with several annotations, of which the first is read: 1 (item 2)",
        "rows with several annotations, of which the ground truth is read: 1 (item 1)",
    ]


def test_texts_that_are_tagged_in_two_ways_show_their_entities() -> None:
    words = ["Anna", "left", "New", "York"]
    both, one = ("B-PER", "O", "B-LOC", "I-LOC"), ("B-PER", "O", "O", "O")
    said = conflicts_of([(words, both), (words, one)]).remark()
    assert "“Anna left New York” (New York LOC: 1, no other entity: 1)" in said
    said = conflicts_of([(words, both), (words, ("O",) * 4)]).remark()
    assert "(Anna PER and New York LOC: 1, no entity: 1)" in said


def moved(rows: list[dict[str, Any]], *, own: bool) -> list[dict[str, Any]]:
    """Tasks with their text in `said`, beside another text. own: whether spans have their own texts."""
    for row in rows:
        row["data"] = {"heading": "News of the day", "said": row["data"]["text"]}
        for result in row["annotations"][0]["result"]:
            result["value"] = {n: v for n, v in result["value"].items() if own or n != "text"}
    return rows


def test_the_spans_own_texts_tell_which_field_is_the_text() -> None:
    assert check(moved(tasks(), own=True)).labels == {"O": 10, "B-PER": 3, "B-LOC": 3}
    rows = [{"heading": "No", "said": row.pop("text"), **row} for row in least()]
    assert check(rows).labels == {"O": 10, "B-PER": 3, "B-LOC": 3}
    emoji = [{**r, "data": {"text": "a title", "said": f"🙂🙂 {r['data']['text']}"}} for r in tasks()]
    for row in emoji:
        for result in row["annotations"][0]["result"]:
            result["value"] |= {at: result["value"][at] + 5 for at in ("start", "end")}
    assert check(emoji).labels == {"O": 15, "B-PER": 3, "B-LOC": 3}


def test_else_one_line_names_the_fields() -> None:
    rows = moved(tasks(), own=False)
    found = check(rows)
    assert found.error == (
        "the file was read as a JSON list: spans in Label Studio's JSON, UTF-8: it has no text, since any of "
        "`heading`, `said` may be it: name the field that holds it `text`, or give its name (--text-column, "
        "over HTTP options.text_column)"
    )
    assert found.problems == []
    assert check(rows, text_column="said").labels["B-PER"] == 3
    other = check(rows, text_column="other").error
    assert other is not None
    assert "it has no text in `other` (text_column): texts are in `heading`, `said`" in other


def test_the_text_of_a_batch_can_be_named() -> None:
    raw = json.dumps(moved(tasks(), own=False)).encode()
    with pytest.raises(InvalidData, match=r"item 1 of batch has no text, .*`heading`, `said`.*--text-column"):
        list(read_batch(raw))
    assert [each.text for each in read_batch(raw, text_columns=["said"])] == [*TEXTS]
    table = "".join(f"{i};{text};x\n" for i, text in enumerate(TEXTS))
    rows = [*read_batch(f"no;said;heading\n{table}".encode(), text_columns=["said", "heading"])]
    assert (rows[0].text, rows[0].place) == (f"{TEXTS[0]}\nx", "line 2")


HYPER = {"start": "/p[1]/text()[1]", "end": "/p[1]/text()[1]", "startOffset": 0, "endOffset": 4}
STARS = {"result": [{"type": "rating", "from_name": "stars", "value": {"rating": 3}}]}
OPEN = [
    {"text": text, "id": i, "annotator": "", "annotation_id": "", "lead_time": ""}
    for i, text in enumerate(TEXTS)
]
UNREAD: dict[str, tuple[Any, str]] = {
    "open": ([{**t, "annotations": []} for t in tasks()], "none of the 5 that were looked at is annotated"),
    "skipped": (tasks({"result": [], "was_cancelled": True}), "is annotated: annotate them there"),
    "predicted": (
        [{**t, "annotations": [], "predictions": [{"result": [tone(1)]}]} for t in tasks()],
        "there are predictions alone. Submit them there as annotations",
    ),
    "open, JSON-MIN": (OPEN, "none of the 5 that were looked at is annotated"),
    "open, CSV": (as_csv(OPEN), "none of the 5 that were looked at is annotated"),
    "pages": (
        tasks({"result": [{"type": "hypertextlabels", "value": {**HYPER, "hypertextlabels": ["PER"]}}]}),
        "spans are in pages or dialogues (`hypertextlabels`)",
    ),
    "pages, JSON-MIN": (
        [{**row, "label": [{**HYPER, "hypertextlabels": ["PER"]}], "more": []} for row in least()],
        "spans are in pages or dialogues (`hypertextlabels`)",
    ),
    "others": (tasks(STARS), "their annotations (`rating`) are no labels of texts"),
}


@pytest.mark.parametrize("task", [None, "tagging", "classification"])
@pytest.mark.parametrize("name", UNREAD)
def test_what_has_nothing_to_learn_from_is_called_what_it_is(name: str, task: Task | None) -> None:
    rows, said = UNREAD[name]
    found = check(rows, task)
    assert found.error is not None
    assert "it holds tasks of Label Studio" in found.error
    assert said in found.error
    assert found.error.count("; ") == 0, "one line, not one for each row"


@pytest.mark.parametrize("empty", ["annotations", "predictions"])
def test_rows_that_have_an_object_data_are_no_tasks(empty: str) -> None:
    rows = [{"text": t, "label": "ab"[i % 2], "data": {"k": "v"}, empty: []} for i, t in enumerate(TEXTS)]
    assert ((found := check(rows)).error, found.labels) == (None, {"a": 3, "b": 2})
    spans = [
        {**row, "label": [span(t, "n", "N", "label")]} for row, t in zip(rows, TEXTS, strict=True) if "n" in t
    ]
    assert check(spans).labels["B-N"] == len(spans)
    texts = read_unlabelled_file(json.dumps(rows).encode(), "tagging", paired=False).rows
    assert texts[0].text == TEXTS[0].split()


@pytest.mark.parametrize("empty", ["", " "])
def test_a_task_without_a_text_that_nobody_annotated_is_left_out(empty: str) -> None:
    given = [*tasks(), {"id": 9, "data": {"text": empty}, "annotations": []}]
    assert (found := check(given)).error is None
    assert "1 record is left out: without an annotation" in found.notes
    given[-1]["annotations"] = [{"id": 1, "result": []}]
    assert "item 6: has an empty text" in (check(given).error or "")


def test_spans_that_overlap_are_told_with_the_one_that_is_kept() -> None:
    text = "New York Times"
    spans = [span(text, "New York", "LOC"), span(text, text, "ORG"), span(text, "York", "LOC")]
    found = check([*({"text": text, "label": spans} for _ in range(2)), *({"text": "x y", "label": []},) * 3])
    assert found.notes[-1] == (
        "4 spans are left out, since they overlap another one: a word has one tag, so the longest is kept, "
        "of equally long ones the first: item 1, “New York Times” (ORG) is kept, “New York” (LOC) is not; "
        "item 1, “New York Times” (ORG) is kept, “York” (LOC) is not; item 2, “New York Times” (ORG) is "
        "kept, “New York” (LOC) is not; and 1 more"
    )
