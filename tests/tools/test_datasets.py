"""Files that Hugging Face's `datasets` writes, as HMI reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hmi.jobs.checks import inspect_file
from tests.tools.lab import check_labels, check_sets, read, written

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("datasets"), "datasets", "datasets_files.py")


def names(files: Path, of: str) -> Any:
    return json.loads((files / "names.json").read_text())[of]


@pytest.mark.parametrize("name", ["one.jsonl", "one.json", "one.csv", "one-index.csv", "one.tsv"])
def test_classes_get_their_names(files: Path, name: str) -> None:
    check_labels(read(files / name, "classification", labels=names(files, "label")))
    found = inspect_file(files / name, None)
    assert found.labels == {"0": 4, "1": 4}
    assert any("--labels" in note for note in found.notes)


def test_names_of_classes_need_no_option(files: Path) -> None:
    check_labels(read(files / "one-named.jsonl", "classification", label_column="name"))


def test_lists_of_classes_get_their_names(files: Path) -> None:
    check_sets(read(files / "several.jsonl", "multilabel", labels=names(files, "label")))
    assert any("--labels" in note for note in inspect_file(files / "several.jsonl", None).notes)


def test_tags_get_their_names(files: Path) -> None:
    words, tags = json.loads((files / "words.json").read_text())
    rows = read(files / "ner.jsonl", "tagging", labels=names(files, "tags"))
    assert [(row.text, list(row.label)) for row in rows] == list(zip(words, tags, strict=True))  # type: ignore[arg-type]
    assert "--labels O,B-PER" in str(inspect_file(files / "ner.jsonl", None).error)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("several.csv", "give JSON, one object a line"),
        ("ner.csv", "give JSON, one object a line"),
        ("one-split.json", "orient='records', lines=True"),
        ("ner-columns.json", "orient='records', lines=True"),
        ("ner.parquet", "to_json"),
    ],
)
def test_forms_that_are_not_read_name_the_one_that_is(files: Path, name: str, cure: str) -> None:
    assert cure in str(inspect_file(files / name, None).error)
