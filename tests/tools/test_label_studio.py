"""Files that Label Studio's own converter writes, as HMI reads them, and predictions the way back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hmi.cli.models.preannotations import Controls, label_studio_task
from hmi.jobs.checks import inspect_file
from hmi.training.data.batch_texts import BatchText
from hmi.training.data.reading import Reading
from hmi.training.data.rows import read_labelled_file
from tests.tools.lab import check_entities, check_labels, check_sets, read, written
from tests.tools.truth import TRUTH, in_units

pytestmark = pytest.mark.slow
Result = list[dict[str, Any]]
LABELS = '<Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/></Labels>'
PARTS = "".join(
    f'<Labels name="{name}" toName="text"><Label value="{value}"/></Labels>'
    for name, value in (("label", "PER"), ("more", "LOC"))
)
TEXT = '<Text name="text" value="$text"/>'
VALUES = {"topic": ("news", "talk"), "label": ("news", "talk"), "tone": ("calm", "loud")}
RAW = ("JSON/result.json", "JSON_MIN/result.json", "CSV/result.csv", "TSV/result.csv")


def config(*controls: str, choice: str = "single") -> str:
    """A project's labelling interface with a text and these controls: `entities`, or names of choices."""
    shown = [LABELS if name == "entities" else _choices(name, choice) for name in controls]
    return f"<View>{TEXT}{''.join(shown)}</View>"


def _choices(name: str, choice: str) -> str:
    values = "".join(f'<Choice value="{value}"/>' for value in VALUES[name])
    return f'<Choices name="{name}" toName="text" choice="{choice}">{values}</Choices>'


def chosen(name: str, labels: Sequence[str]) -> Result:
    value = {"choices": list(labels)}
    return (
        [{"id": name, "from_name": name, "to_name": "text", "type": "choices", "value": value}]
        if labels
        else []
    )


def regions(text: str, spans: Sequence[Any], held: Sequence[Any]) -> Result:
    """Regions at offsets that may count other units than `held`, the spans in code points."""
    names = {"from_name": "label", "to_name": "text", "type": "labels"}
    return [
        {"id": str(i), **names, "value": {"start": a, "end": b, "text": text[start:end], "labels": [name]}}
        for i, ((a, b, name), (start, end, _)) in enumerate(zip(spans, held, strict=True))
    ]


def entities(row: dict[str, Any]) -> Result:
    return regions(row["text"], row["entities"], row["entities"])


def entities_in_units(row: dict[str, Any]) -> Result:
    return regions(row["text"], in_units(row), row["entities"])


def parted(row: dict[str, Any]) -> Result:
    """The entities by two controls, one for each type."""
    return [
        {**region, "from_name": "label" if region["value"]["labels"] == ["PER"] else "more"}
        for region in entities(row)
    ]


def tasks(result_of: Callable[[dict[str, Any]], Result], *, loose: bool = False) -> Result:
    """The raw export of a project. loose: with a task that nobody annotated, and one that was skipped."""
    made = []
    for i, row in enumerate(TRUTH, 1):
        annotation = {"id": 100 + i, "completed_by": 1, "result": result_of(row), "was_cancelled": False}
        annotation |= {
            "created_at": "2026-01-01T00:00:00Z",
            "updated_at": "2026-01-01T00:00:00Z",
            "lead_time": 1.5,
        }
        made.append({"id": i, "data": {"text": row["text"]}, "annotations": [annotation], "predictions": []})
    if loose:
        skipped = {**made[0]["annotations"][0], "result": [], "was_cancelled": True}  # type: ignore[dict-item]
        made.append(
            {"id": 98, "data": {"text": "Anna is not annotated yet"}, "annotations": [], "predictions": []}
        )
        made.append(
            {"id": 99, "data": {"text": "Anna was skipped"}, "annotations": [skipped], "predictions": []}
        )
    return made


def tone(row: dict[str, Any]) -> str:
    return "calm" if TRUTH.index(row) < len(TRUTH) // 2 else "loud"


def topic(row: dict[str, Any]) -> Result:
    return chosen("topic", [row["label"]])


EXPORTS = {
    "entities": (config("entities"), tasks(entities, loose=True)),
    "parts": (f"<View>{TEXT}{PARTS}</View>", tasks(parted)),
    "units": (config("entities"), tasks(entities_in_units)),
    "one": (config("topic"), tasks(topic, loose=True)),
    "several": (config("topic", choice="multiple"), tasks(lambda row: chosen("topic", row["labels"]))),
    "both": (config("entities", "topic"), tasks(lambda row: entities(row) + topic(row))),
    "two": (
        config("label", "tone"),
        tasks(lambda row: chosen("tone", [tone(row)]) + chosen("label", [row["label"]])),
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = {name: {"config": made, "tasks": raw} for name, (made, raw) in EXPORTS.items()}
    folder = tmp_path_factory.mktemp("label-studio")
    return written(folder, "label-studio-sdk", "label_studio_files.py", {"exports": given})


@pytest.mark.parametrize("form", RAW)
@pytest.mark.parametrize("name", ["entities", "units", "both", "parts"])
def test_entities_are_those_of_the_project(files: Path, name: str, form: str) -> None:
    check_entities(read(files / f"{name}-{form}", "tagging"))


@pytest.mark.parametrize("name", ["entities", "both"])
def test_conll_has_the_entities_and_texts_that_nobody_annotated(files: Path, name: str) -> None:
    # The converter takes offsets as they are: of units, entities behind an emoji would be wrong there.
    rows = read(files / f"{name}-CONLL2003/result.conll", "tagging")
    check_entities(rows[: len(TRUTH)])
    # Words and tags alone: a task without an annotation looks like a text without entities.
    loose = [["Anna", "is", "not", "annotated", "yet"]] if name == "entities" else []
    assert [row.text for row in rows[len(TRUTH) :]] == loose


@pytest.mark.parametrize("form", RAW)
def test_choices_are_those_of_the_project(files: Path, form: str) -> None:
    check_labels(read(files / f"one-{form}", "classification"))


@pytest.mark.parametrize("form", RAW)
def test_several_choices_are_a_set(files: Path, form: str) -> None:
    rows = read(files / f"several-{form}", "multilabel")
    check_sets(rows)


@pytest.mark.parametrize("form", RAW)
def test_the_choices_beside_entities_can_be_had(files: Path, form: str) -> None:
    reading = {} if form.startswith("JSON/") else {"label_column": "topic"}
    found = read_labelled_file(files / f"both-{form}", "classification", reading=Reading(**reading))
    check_labels(found.rows)


@pytest.mark.parametrize("form", RAW)
def test_two_choices_of_which_one_is_read_are_told(files: Path, form: str) -> None:
    path = files / f"two-{form}"
    check_labels(read(path, "classification"))
    assert any("`tone` not" in note and "--label-column" in note for note in inspect_file(path, None).notes)
    other = inspect_file(path, None, reading=Reading(label_column="tone"))
    assert other.labels == {"calm": 4, "loud": 4}
    assert other.notes == []


def output(**answer: Any) -> dict[str, Any]:
    return answer


def found_entities(row: dict[str, Any]) -> dict[str, Any]:
    places = [{"label": name, "start": a, "end": b, "score": 0.9} for a, b, name in row["entities"]]
    return output(entities=[{**one, "text": row["text"][one["start"] : one["end"]]} for one in places])


PREDICTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "entities": (config("entities"), found_entities, "label"),
    "one": (config("topic"), lambda row: output(label=row["label"], score=0.8), "topic"),
    "several": (
        config("topic", choice="multiple"),
        lambda row: output(labels=[{"label": name, "score": 0.7} for name in row["labels"]]),
        "topic",
    ),
    "number": (
        f'<View>{TEXT}<Number name="value" toName="text"/></View>',
        lambda row: output(value=len(row["text"]) / 2),
        "value",
    ),
}


def test_predictions_pass_the_checks_of_label_studio_and_come_back(tmp_path: Path) -> None:
    """A person who accepts each prediction exports what the model said."""
    given, exports = {}, {}
    for name, (made, answer, control) in PREDICTIONS.items():
        raw = [
            label_studio_task(BatchText(row["text"], i), answer(row), "acme.m version 1", Controls(control))
            for i, row in enumerate(TRUTH, 1)
        ]
        given[name] = {"config": made, "tasks": raw}
        results = [task["predictions"][0]["result"] for task in raw]
        accepted = [
            {"id": i, "data": task["data"], "annotations": [{"id": i, "result": result}]}
            for i, (task, result) in enumerate(zip(raw, results, strict=True), 1)
        ]
        exports[name] = {"config": made, "tasks": accepted}
    told = {"predictions": given, "exports": exports}
    folder = written(tmp_path, "label-studio-sdk", "label_studio_files.py", told)
    for name in PREDICTIONS:
        assert json.loads((folder / f"{name}-problems.json").read_text()) == []
    for form in RAW:
        check_entities(read(folder / f"entities-{form}", "tagging"))
        check_labels(read(folder / f"one-{form}", "classification"))
        check_sets(read(folder / f"several-{form}", "multilabel"))
