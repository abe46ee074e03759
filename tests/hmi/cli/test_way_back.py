"""What people gave in an annotation tool is still there after `hmi infer --batch` answered its export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hmi.cli import main
from hmi.cli.models.preannotations import Controls, doccano_row, is_annotated, label_studio_task
from hmi.errors import InvalidInput
from hmi.training.data.batch_texts import read_batch

MEANT = ("finance", "biology")
"""The labels of the model that is asked."""


def chosen(*labels: str) -> dict[str, Any]:
    """An annotation by a control of choices."""
    value = {"choices": [*labels]}
    return {"result": [{"type": "choices", "from_name": "topic", "to_name": "text", "value": value}]}


def lines(*rows: Any) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


def infer(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, *options: str
) -> tuple[Any, str]:
    """What `hmi infer --batch` writes of a file, one value a line or one list, and what it says."""
    file = tmp_path / "export"
    file.write_bytes(data)
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(["infer", "acme.m", "--batch", str(file), "--data", str(folder), *options])
    made, said = capsys.readouterr()
    assert caught.value.code == 0, said
    return json.loads(made) if "label-studio" in options else [json.loads(x) for x in made.splitlines()], said


def test_tasks_with_choices_come_back_whole(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [
        {"id": 1, "data": {"text": "the market"}, "annotations": [chosen("HUMAN")], "meta": {"by": "Eve"}},
        {"id": 2, "data": {"text": "a gene"}, "annotations": []},
        {"id": 3, "data": {"text": "a cell"}, "annotations": [chosen("A"), chosen("B")]},
    ]
    data = json.dumps(tasks).encode()
    made, said = infer(folder, tmp_path, capsys, data, "--form", "label-studio")
    assert [{n: v for n, v in task.items() if n != "predictions"} for task in made] == tasks
    for task in made:
        [prediction] = task["predictions"]
        [result] = prediction["result"]
        assert (result["from_name"], result["to_name"], result["type"]) == ("topic", "text", "choices")
        assert result["value"]["choices"][0] in MEANT
    assert "of 3 rows 2 annotated already" in said
    made, _ = infer(folder, tmp_path, capsys, data)
    assert [(row["id"], row["text"]) for row in made] == [(1, "the market"), (2, "a gene"), (3, "a cell")]


def test_rows_of_doccano_with_classes_come_back_whole(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"id": 1, "text": "the market", "label": ["HUMAN"], "Comments": ["ask Eve"]},
        {"id": 2, "text": "a gene", "label": [], "Comments": ["ask Bob"], "source": "crm"},
    ]
    made, said = infer(folder, tmp_path, capsys, lines(*rows), "--form", "doccano")
    [label] = made[1]["label"]
    assert label in MEANT
    assert made == [rows[0], {**rows[1], "label": [label]}]
    assert "of 2 rows 1 annotated already: they stay as they are" in said


def test_one_object_that_holds_all_rows_is_still_unfolded() -> None:
    examples = [{"text": "hello", "intent": "greet"}, {"text": "bye", "intent": "leave"}]
    data = json.dumps({"rasa_nlu_data": {"common_examples": examples}}).encode()
    assert [text.text for text in read_batch(data)] == ["hello", "bye"]


@pytest.mark.parametrize(
    "given",
    [
        {"label": "HUMAN"},
        {"label": 0},
        {"labels": ["HUMAN"]},
        {"cats": ["greet"], "entities": []},
        {"entities": [[0, 4, "HUMAN"]], "cats": []},
        {"entities": [{"start_offset": 0, "end_offset": 4, "label": "HUMAN"}]},
        {"annotations": [{"label": 3, "user": 1}], "meta": {"k": "v"}},
    ],
)
def test_a_labelled_row_of_doccano_stays_as_it_is(given: dict[str, Any]) -> None:
    row = {"id": 1, "text": "Anna is", **given}
    [text] = read_batch(lines(row))
    assert is_annotated(text, "doccano")
    assert doccano_row(text, {"label": "MODEL"}) == row


def test_a_row_of_doccano_without_labels_keeps_what_else_it_has() -> None:
    row = {
        "id": 1,
        "text": "Anna",
        "label": "",
        "labels": [],
        "cats": {},
        "Comments": ["?"],
        "meta": {"a": 1},
    }
    [text] = read_batch(lines(row))
    assert not is_annotated(text, "doccano")
    assert doccano_row(text, {"label": "MODEL"}) == {**row, "label": ["MODEL"]}


@pytest.mark.parametrize("skipped", [{"skipped": True}, {"was_cancelled": True}])
def test_a_task_that_was_skipped_is_not_annotated(skipped: dict[str, Any]) -> None:
    [text] = read_batch(lines({"id": 1, "data": {"text": "a"}, "completions": [{**skipped, "result": []}]}))
    assert not is_annotated(text, "label-studio")


@pytest.mark.parametrize("result", [None, {"a": 1}, 5, [5]])
def test_an_annotation_of_another_shape_names_no_control(result: Any) -> None:
    task = {"id": 1, "data": {"text": "a"}, "annotations": [{"result": result}]}
    assert Controls.of(read_batch(lines(task)), None, None).found == {}


@pytest.mark.parametrize(
    ("row", "named", "wanted"),
    [
        ({"text": "the real text", "data": {"source": "crm"}}, (), "the real text"),
        ({"Review": "the real text", "data": {"source": "crm"}, "annotations": []}, (), "the real text"),
        ({"note": "the real text", "data": {"source": "crm"}}, ("note",), "the real text"),
        ({"premise": "one", "hypothesis": "two", "data": {"source": "crm"}}, (), ("one", "two")),
        ({"text": None, "data": {"source": "crm"}}, (), ""),
    ],
)
def test_an_object_beside_the_text_is_no_task(
    row: dict[str, Any], named: tuple[str, ...], wanted: Any
) -> None:
    [text] = read_batch(lines(row), text_columns=named)
    assert (text.text, text.record, text.task) == (wanted, row, {})


SPANS = {"label": [[0, 1, "X"]]}
ODD = {"start": "/p[1]", "end": "/p[1]", "hypertextlabels": ["X"]}


@pytest.mark.parametrize(
    "rows",
    [
        [{"text": "a b", **SPANS}, {"text": "c d", "label": [[0, 1, 7]]}, {"text": "e", "label": [[0, 1]]}],
        [{"text": "a b", **SPANS}, {"text": "c d", "label": "X"}, {"text": "e", "label": [[0, 1, ""]]}],
        [
            {"data": {"text": text}, "annotations": [{"result": [{"from_name": "ner", "value": value}]}]}
            for text, value in (
                ("a b", {"start": 0, "end": 1, "labels": ["X"]}),
                ("c d", ODD),
                ("e", {"labels": [7]}),
            )
        ],
        [
            {"tokenized_text": text.split(), "ner": spans}
            for text, spans in (("a b", [[0, 0, "X"]]), ("c d", [[0]]), ("e", [[0, 0, 1]]))
        ],
    ],
)
def test_a_text_is_asked_about_whatever_is_wrong_with_its_labels(rows: list[dict[str, Any]]) -> None:
    assert [text.text for text in read_batch(lines(*rows))] == ["a b", "c d", "e"]


JOINED = lines({"id": 1, "title": "Short", "body": "Anna is here"})
FOUND = {"entities": [{"label": "PER", "start": 6, "end": 10, "text": "Anna", "score": 0.9}]}


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (JOINED, ("title", "body")),
        (lines({"id": 1, "data": {"title": "Short", "body": "Anna is here"}}), ("title", "body")),
        (lines({"tokenized_text": ["Short", "Anna"], "ner": [[0, 0, "X"]]}), ()),
    ],
)
def test_offsets_in_a_text_that_no_field_holds_are_refused(data: bytes, named: tuple[str, ...]) -> None:
    [text] = read_batch(data, text_columns=named)
    with pytest.raises(InvalidInput, match=r"^line 1 has entities, but .* Name the one field .*--form rows"):
        label_studio_task(text, FOUND, "m")
    row = doccano_row(text, FOUND)  # which brings the text along
    assert [row["text"][start:end] for start, end, _ in row["label"]] == ["Anna"]
    assert label_studio_task(text, {"label": "good"}, "m")["predictions"]


def test_offsets_in_a_text_that_a_field_holds_are_written() -> None:
    [one] = read_batch(JOINED, text_columns=["body"])
    [plain] = read_batch(b"Short Anna")
    for text in (one, plain):
        assert len(label_studio_task(text, FOUND, "m")["predictions"][0]["result"]) == 1


@pytest.mark.parametrize(
    "data",
    [
        lines(
            {"id": 1, "text": "a gene", "topic": "HUMAN", "annotation_id": 5, "annotator": 1, "lead_time": 2}
        ),
        b"annotation_id,annotator,id,lead_time,text,topic\n5,1,1,2.0,a gene,HUMAN\n",
    ],
)
def test_an_export_without_tasks_is_told_to_be_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    made, said = infer(folder, tmp_path, capsys, data, "--form", "label-studio")
    assert [(task["data"]["text"], task["data"]["topic"]) for task in made] == [("a gene", "HUMAN")]
    assert "Export as JSON to keep ids and annotations" in said
    for options in ((), ("--form", "doccano")):
        assert "Export as JSON" not in infer(folder, tmp_path, capsys, data, *options)[1]
