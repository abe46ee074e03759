"""Files that doccano's own exporter writes, as HMI reads them, after doccano imported HMI's predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hmi.cli.models.preannotations import doccano_row
from hmi.training.data.batch_texts import BatchText
from hmi.training.data.rows import read_labelled_file
from tests.tools.lab import check_entities, check_labels, check_sets, read, written
from tests.tools.truth import TRUTH, in_units

pytestmark = pytest.mark.slow
FORMS = ("CSV.csv", "JSON.json", "JSONL.jsonl", "fastText.txt")


def predicted(row: dict[str, Any], **answer: Any) -> dict[str, Any]:
    """The row of doccano that `hmi infer --batch --form doccano` writes of an answer."""
    return doccano_row(BatchText(row["text"], 1), answer)


def entities(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"label": name, "start": a, "end": b} for a, b, name in row["entities"]]


def related(row: dict[str, Any], first: int) -> dict[str, Any]:
    spans = [
        {"id": first + i, "start_offset": a, "end_offset": b, "label": name}
        for i, (a, b, name) in enumerate(in_units(row))
    ]
    return {"text": row["text"], "entities": spans, "relations": []}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sets = [predicted(row, labels=[{"label": name} for name in row["labels"]]) for row in TRUTH]
    intents = [{"text": row["text"], "cats": [row["label"]], "entities": in_units(row)} for row in TRUTH]
    given = {
        "one": {"kind": "classes", "rows": [predicted(row, label=row["label"]) for row in TRUTH]},
        "noted": {
            "kind": "classes",
            "rows": [predicted(row, label=row["label"]) for row in TRUTH],
            "comments": 2,
        },
        "several": {"kind": "classes", "rows": sets},
        "spans": {"kind": "spans", "rows": [predicted(row, entities=entities(row)) for row in TRUTH]},
        "relations": {"kind": "relations", "rows": [related(row, 10 * i) for i, row in enumerate(TRUTH)]},
        "intents": {"kind": "intents", "rows": intents},
    }
    return written(tmp_path_factory.mktemp("doccano"), "doccano", "doccano_files.py", given)


def as_written(form: str) -> list[dict[str, Any]]:
    """The truth as a form can hold it: fastText has texts of one line, and no rows without a label."""
    if not form.startswith("fastText"):
        return TRUTH
    return [{**row, "text": " ".join(row["text"].split())} for row in TRUTH]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["one", "noted"])
def test_a_class_is_that_of_the_project(files: Path, name: str, form: str) -> None:
    check_labels(read(files / f"{name}-{form}", "classification"), as_written(form))


@pytest.mark.parametrize("form", FORMS)
def test_several_classes_are_a_set(files: Path, form: str) -> None:
    wanted = [row for row in as_written(form) if row["labels"] or not form.startswith("fastText")]
    check_sets(read(files / f"several-{form}", "multilabel"), wanted)


@pytest.mark.parametrize("name", ["spans", "relations", "intents"])
def test_entities_are_those_of_the_project(files: Path, name: str) -> None:
    check_entities(read(files / f"{name}-JSONL.jsonl", "tagging"))


def test_intents_can_be_had_without_their_slots(files: Path) -> None:
    check_labels(read_labelled_file(files / "intents-JSONL.jsonl", "classification").rows)
