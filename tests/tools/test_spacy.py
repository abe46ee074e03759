"""Files that spaCy writes, as HMI reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmi.jobs.checks import inspect_file
from tests.tools.lab import check_entities, check_labels, check_sets, read, written
from tests.tools.truth import TRUTH

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("spacy"), "spacy", "spacy_files.py")


@pytest.mark.parametrize(
    "name", ["docs.jsonl", "groups.jsonl", "tuples.json", "both.json", "biluo.conll", "iob.conll"]
)
def test_entities_are_those_of_the_documents(files: Path, name: str) -> None:
    check_entities(read(files / name, "tagging"))


@pytest.mark.parametrize("name", ["cats.jsonl", "cats.json"])
def test_classes_are_those_of_the_documents(files: Path, name: str) -> None:
    check_labels(read(files / name, "classification"))


def test_several_classes_are_a_set(files: Path) -> None:
    check_sets(read(files / "several.json", "multilabel"))


def test_words_of_white_space_are_named(files: Path) -> None:
    # A document has a word for a line break: written as CoNLL, it ends the sentence within.
    found = inspect_file(files / "blank.conll", None)
    assert (found.kind, found.task, found.count) == ("rows", "tagging", len(TRUTH))
    [problem] = found.problems
    assert "give a token without spaces and its tag" in problem.message
    assert inspect_file(files / "blank.conll", None, skip=1).error is None


@pytest.mark.parametrize("name", ["examples.json", "v2.json", "train.spacy"])
def test_forms_that_are_not_read_name_the_one_that_is(files: Path, name: str) -> None:
    assert "doc.to_json()" in str(inspect_file(files / name, None).error)
