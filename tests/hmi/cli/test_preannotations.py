"""The way back: answers of a model as rows of annotation tools, and a model from such rows over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmi.cli import main
from hmi.cli.models.preannotations import Controls, answered_row, doccano_row, is_annotated, label_studio_task
from hmi.errors import InvalidData, InvalidInput
from hmi.model.text.splitting import Splitter
from hmi.training.data.batch_texts import BatchText, read_batch
from hmi.training.data.rows import parse_rows
from tests.hmi.labs.api_world import hmi, running
from tests.tiny import random_texts

OPTIONS = {"epochs": 6, "module": {"rank": 2}, "max_length": 32, "ramps": False}


def entity(text: str, start: int, end: int, label: str = "X") -> dict[str, Any]:
    return {"label": label, "start": start, "end": end, "text": text[start:end], "score": 0.75}


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30), st.data())
def test_predictions_come_back_from_either_tool_as_the_same_spans(text: str, data: st.DataObject) -> None:
    """A person who accepts every prediction gets rows with the model's own entities, emoji or not."""
    split = Splitter().split(text)
    if not split.words:
        return
    at = data.draw(st.integers(0, len(split.words) - 1))
    start, end = split.spans[at]
    output = {"entities": [entity(text, start, end)]}
    given = BatchText(text, 1)
    made = label_studio_task(given, output, "acme.ner version 1")
    [prediction] = made["predictions"]
    assert prediction["score"] == 0.75
    accepted = [{"data": made["data"], "annotations": [{"result": prediction["result"]}]}]
    wanted = tuple("B-X" if i == at else "O" for i in range(len(split.words)))
    for rows in (accepted, doccano_row(given, output)):
        found = parse_rows(json.dumps(rows).encode(), "tagging", "data", patterns=())
        assert [(row.text, row.label) for row in found.rows] in ([(split.words, wanted)], [])
        for bad in found.left_out:  # nothing else in this file of one row tells what offsets count
            assert max(text) > "\uffff"
            assert "it cannot be told" in bad.message


def test_each_tasks_answers_have_the_forms_of_the_tools() -> None:
    text = BatchText("a 😀 gene", 1, {"text": "a 😀 gene", "id": 7})
    made = label_studio_task(
        text, {"entities": [entity(str(text.text), 4, 8)]}, "m version 2", Controls("ner", "body")
    )
    assert made["data"] == {"text": "a 😀 gene", "id": 7}
    assert made["predictions"] == [
        {
            "model_version": "m version 2",
            "score": 0.75,
            "result": [
                {
                    "id": "0",
                    "from_name": "ner",
                    "to_name": "body",
                    "type": "labels",
                    "value": {"start": 4, "end": 8, "text": "gene", "labels": ["X"]},
                    "score": 0.75,
                }
            ],
        }
    ]
    assert doccano_row(text, {"entities": [entity(str(text.text), 4, 8)]})["label"] == [[5, 9, "X"]]
    one = label_studio_task(text, {"label": "good", "score": 0.9}, "m")["predictions"][0]
    assert (one["score"], one["result"][0]["type"]) == (0.9, "choices")
    assert one["result"][0]["value"] == {"choices": ["good"]}
    several = {"labels": [{"label": "a", "score": 0.9}, {"label": "b", "score": 0.6}]}
    assert doccano_row(text, several)["label"] == ["a", "b"]
    assert label_studio_task(text, several, "m")["predictions"][0]["result"][0]["value"] == {
        "choices": ["a", "b"]
    }
    assert label_studio_task(text, {"labels": []}, "m")["predictions"][0]["result"] == []
    number = label_studio_task(text, {"value": 2.5}, "m")["predictions"][0]["result"][0]
    assert (number["type"], number["value"]) == ("number", {"number": 2.5})
    pair = BatchText(("a", "b"), 1, {"premise": "a", "hypothesis": "b"})
    assert label_studio_task(pair, {"label": "x", "score": 1.0}, "m")["data"] == pair.record
    assert answered_row(pair, {"label": "x", "tags": None}) == {"text": "a", "text_pair": "b", "label": "x"}
    with pytest.raises(InvalidInput, match="no form for pairs"):
        doccano_row(pair, {"label": "x"})
    with pytest.raises(InvalidInput, match="neither labels nor entities"):
        doccano_row(text, {"value": 1.0})


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        ("one text\n\nanother, with a comma\n", ["one text", "another, with a comma"]),
        ('{"text": "a"}\n{"text": "b", "spans": []}\n', ["a", "b"]),
        ('[{"data": {"text": "a"}, "annotations": []}]', ["a"]),
        ("id,Text\n1,a\n2,b\n", ["a", "b"]),
        ("text\na\nb\n", ["a", "b"]),
        ('{"tokenized_text": ["a", "b"], "ner": [[0, 0, "X"]]}\n', ["a b"]),
        ('{"premise": "a", "hypothesis": "b"}\n', [("a", "b")]),
    ],
)
def test_texts_of_a_batch_are_read_from_every_form(data: str, texts: list[Any]) -> None:
    assert [text.text for text in read_batch(data.encode())] == texts


@pytest.mark.parametrize(
    ("data", "named", "texts"),
    [
        ('{"text": "a"}\n{"text": " "}\n{"text": null, "id": "x"}\n{"id": "y"}\n', None, ["a", "", "", ""]),
        (
            '{"premise": "a", "hypothesis": null}\n{"premise": "a", "hypothesis": "b"}\n',
            None,
            ["", ("a", "b")],
        ),
        ('[{"data": {"title": "t", "note": "a"}}, {"data": {"title": "t"}}]', "note", ["a", ""]),
        ("id,note\n1,a\n2,\n", "Note", ["a", ""]),
    ],
)
def test_a_row_without_a_text_leaves_the_others(data: str, named: str | None, texts: list[Any]) -> None:
    assert [text.text for text in read_batch(data.encode(), text_columns=[named] if named else [])] == texts


def test_a_text_in_another_encoding_is_read_as_told() -> None:
    [text] = read_batch("text\nçok güzel şey\n".encode("windows-1254"), encoding="windows-1254")
    assert text.text == "çok güzel şey"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "batch is empty"),
        ('{"foo": 1}\n', "line 1 of batch has no text"),
        ('{"text": "a"}\n{"text": \n', "line 2 of batch is not JSON"),
        (
            '[{"data": {"title": "a", "note": "b"}}]',
            r"\(`title`, `note`\): give the name of the text.*--text-column",
        ),
    ],
)
def test_a_row_without_a_text_is_named(data: str, said: str) -> None:
    with pytest.raises(InvalidData, match=said):
        list(read_batch(data.encode()))


ANNOTATED = [
    {
        "id": 41,
        "inner_id": 1,
        "data": {"text": "a 😀 gene"},
        "annotations": [
            {
                "result": [
                    {"from_name": "ner", "to_name": "body", "type": "labels", "value": {}},
                    {"from_name": "topic", "to_name": "body", "type": "choices", "value": {}},
                ]
            }
        ],
        "predictions": [{"model_version": "m version 1", "result": []}, {"model_version": "other"}, 7],
    },
    {"id": 42, "data": {"text": " "}, "annotations": [{"result": [], "was_cancelled": True}]},
]


def test_a_task_keeps_its_id_and_annotations_whose_controls_the_prediction_names() -> None:
    text, empty = read_batch(json.dumps(ANNOTATED).encode())
    controls = Controls.of([text, empty], None, None)
    found = {"entities": [entity(str(text.text), 4, 8)]}
    made = label_studio_task(text, found, "m version 1", controls, "utf-16")
    assert (made["id"], made["annotations"]) == (41, ANNOTATED[0]["annotations"])
    other, new = made["predictions"]
    assert other == {"model_version": "other"}
    [region] = new["result"]
    assert (region["from_name"], region["to_name"]) == ("ner", "body")
    assert region["value"] == {"start": 5, "end": 9, "text": "gene", "labels": ["X"]}
    chosen = label_studio_task(text, {"label": "good", "score": 0.9}, "m version 2", controls)
    assert chosen["predictions"][-1]["result"][0]["from_name"] == "topic"
    assert (is_annotated(text, "label-studio"), is_annotated(empty, "label-studio")) == (True, False)
    assert label_studio_task(empty, None, "")["predictions"] == []
    both = [
        {**ANNOTATED[0], "annotations": [{"result": [{"from_name": n, "type": "choices"}]}]} for n in "ab"
    ]
    two = Controls.of(read_batch(json.dumps(both).encode()), None, None)
    with pytest.raises(InvalidInput, match=r"several controls of the type choices \(`a`, `b`\).*--from-name"):
        two.names("choices")
    assert Controls("b", None, two.found).names("choices") == {"from_name": "b", "to_name": "text"}
    assert Controls("new", None, controls.found).names("number") == {"from_name": "new", "to_name": "body"}


def test_rows_of_doccano_keep_their_ids_and_what_people_gave_them() -> None:
    rows = [
        {"id": 1, "text": "a 😀 gene", "label": []},
        {"id": 2, "text": "gene", "label": [[0, 4, "Y"]], "Comments": []},
        {"id": 3, "text": "gene", "entities": [{"start_offset": 0, "end_offset": 4, "label": "Y"}]},
    ]
    texts = list(read_batch("\n".join(map(json.dumps, rows)).encode()))
    found = {"entities": [entity("a 😀 gene", 4, 8)]}
    assert doccano_row(texts[0], found) == {"id": 1, "text": "a 😀 gene", "label": [[5, 9, "X"]]}
    assert doccano_row(texts[0], found, "code-points")["label"] == [[4, 8, "X"]]
    assert [doccano_row(text, found) for text in texts[1:]] == rows[1:]
    assert [is_annotated(text, "doccano") for text in texts] == [False, True, True]
    assert answered_row(texts[0], {"label": "x"}) == {"id": 1, "text": "a 😀 gene", "label": "x"}


def prodigy_rows(count: int = 60) -> bytes:
    rows = []
    for text in random_texts(count, seed=4, low=3, high=6):
        whole = f"😀 {text} gene-protein"
        start = whole.index("gene-protein")
        rows.append({"text": whole, "spans": [{"start": start, "end": start + 4, "label": "GENE"}]})
    return "\n".join(json.dumps(row) for row in rows).encode()


def both(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str]:
    """What a command that succeeds writes to its standard output and to its standard error."""
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    assert caught.value.code == 0
    return capsys.readouterr()


async def test_a_check_over_http_reads_spans_and_a_batch_becomes_tasks(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    todo = tmp_path / "todo.jsonl"
    texts = ["the market price rises", "cell gene protein", "😀 market"] * 30
    todo.write_text("".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts)))
    async with running(folder) as world:
        status, seen, _ = await world.upload("/manage/check", {}, {"data": prodigy_rows()})
    assert (status, seen["task"], seen["usable"]) == (200, "tagging", True)
    assert "as Prodigy writes them" in seen["read"]

    def on_the_folder() -> None:
        ask = ("infer", "acme.m", "--batch", todo, "--data", folder)
        tasks = json.loads(hmi(capsys, *ask, "--form", "label-studio", "--from-name", "topic"))
        assert [task["data"] for task in tasks] == [{"text": text, "id": i} for i, text in enumerate(texts)]
        [result] = tasks[0]["predictions"][0]["result"]
        assert (result["from_name"], result["type"]) == ("topic", "choices")
        assert result["value"]["choices"][0] in ("finance", "biology")
        assert tasks[0]["predictions"][0]["model_version"] == "acme.m version 1"
        assert "--batch goes without TEXT" in hmi(capsys, *ask, "a text", code=2)
        exported = tmp_path / "export.json"
        exported.write_text(json.dumps([{"data": {"text": "cell"}, "id": 7}, *ANNOTATED]))
        asked = ("infer", "acme.m", "--batch", exported, "--data", folder)
        made, said = both(capsys, *asked, "--form", "label-studio")
        assert [(task["id"], len(task["predictions"])) for task in json.loads(made)] == [
            (7, 1),
            (41, 3),
            (42, 0),
        ]
        assert "of 3 rows 1 without a text, so without an answer: item 3" in said
        assert "of 3 rows 1 annotated already: they keep their annotations beside the prediction" in said
        made, _ = both(capsys, *asked)
        assert [json.loads(line)["id"] for line in made.splitlines()] == [7, 41]
        assert "--offsets is for pre-annotations" in hmi(capsys, *ask, "--offsets", "utf-16", code=2)
        assert "is no encoding" in hmi(capsys, *ask, "--encoding", "x", code=1)
        without = ("infer", "acme.m", "x", "--form", "doccano", "--data", folder)
        assert "--form is for --batch" in hmi(capsys, *without, code=2)

    await asyncio.to_thread(on_the_folder)


async def test_over_http_the_text_of_spans_can_be_named(folder: Path) -> None:
    rows = json.dumps([{"title": "t", "note": "Oslo is cold", "label": [[0, 4, "LOC"]]}] * 4).encode()
    async with running(folder) as world:
        _, refused, _ = await world.upload("/manage/check", {}, {"data": rows})
        asked = {"options": {"text_column": "note"}}
        _, seen, _ = await world.upload("/manage/check", asked, {"data": rows})
    assert "options.text_column" in refused["error"]
    assert (seen["usable"], seen["task"], seen["count"]) == (True, "tagging", 4)


@pytest.mark.slow
async def test_from_spans_over_http_to_pre_annotations(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    todo = tmp_path / "todo.txt"
    todo.write_text("the 😀 gene-protein\ngood\n" + "the old cell gene-protein\n" * 80)
    ask = ("infer", "acme.genes", "--batch", todo)
    async with running(folder) as world:
        spec = {"model": "acme.genes", "domain": "tiny", "task": "tagging", "options": OPTIONS}
        _, made, _ = await world.upload("/manage/models", spec, {"data": prodigy_rows()})
        job = await world.finish(made["job"])
        assert job["state"] == "succeeded", job
        assert job["result"]["metrics"]["entity_f1"] > 0.5
        _, shown, _ = await world.call("GET", "/manage/models/acme.genes")
        assert shown["versions"][0]["rules"]["words"] == ["a - a"], "as the spans need it"
        url = world.client.make_url("/")
        said = await asyncio.to_thread(hmi, capsys, *ask, "--form", "doccano", "--url", url)
    rows = [json.loads(line) for line in said.splitlines()]
    found = sum(len(row["label"]) for row in rows)
    assert found >= 40

    def on_the_folder() -> None:
        tasks = json.loads(hmi(capsys, *ask, "--form", "label-studio", "--data", folder))
        assert [task["data"]["text"] for task in tasks] == [row["text"] for row in rows]
        assert len(tasks) == 82
        assert tasks[0]["predictions"][0]["model_version"] == "acme.genes version 1"
        results = [(i, each) for i, task in enumerate(tasks) for each in task["predictions"][0]["result"]]
        assert len(results) == found
        for i, result in results:
            value, text = result["value"], rows[i]["text"]
            assert text[value["start"] : value["end"]] == value["text"]
            assert value["labels"] == ["GENE"]
            places = [row[:2] for row in rows[i]["label"]]
            assert [len(text[: value[at]].encode("utf-16-le")) // 2 for at in ("start", "end")] in places

    await asyncio.to_thread(on_the_folder)
