"""Rows as annotation tools and libraries export them, how they are read by names, and what a corpus of them
gets."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.cli.framework.reading import as_arguments
from hmi.core import Task
from hmi.errors import InvalidData
from hmi.jobs.checks import inspect_file
from hmi.jobs.options import FineTuneOptions, Reading
from hmi.training.data.rows import read_labelled_file, read_labelled_rows, read_unlabelled_file
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.tool_files import (
    EXPORTS,
    FLAGS,
    HEADLESS,
    LABELS,
    RASA,
    ROWS,
    SEVERAL,
    STRANGE,
    TEXTS,
    chosen,
    jsonl,
    task_of_label_studio,
)


@pytest.mark.parametrize("tool", EXPORTS)
def test_an_export_is_read_as_rows_of_one_label(tool: str) -> None:
    data, said = EXPORTS[tool]
    found = read_labelled_file(data.encode(), "classification")
    assert Counter((row.text, row.label) for row in found.rows) == Counter(ROWS)
    assert said in found.read
    seen = inspect_file(data.encode(), None)
    assert (seen.task, seen.count, seen.error) == ("classification", 6, None)
    texts = read_unlabelled_file(data.encode(), "classification", paired=False)
    assert sorted(str(row.text) for row in texts.rows) == sorted(TEXTS)


def test_lines_of_rasa_are_told_and_a_broken_file_is_refused() -> None:
    assert read_labelled_file(RASA.encode(), "classification").lines == [5, 6, 9, 11, 17, 19]
    with pytest.raises(InvalidData, match=r"line 3 of data is not YAML"):
        read_labelled_rows(b"nlu:\n- intent: a\n\texamples: |\n    - b\n", "classification")


@pytest.mark.parametrize("tool", SEVERAL)
def test_several_labels_a_text_are_rows_of_multilabel(tool: str) -> None:
    data = SEVERAL[tool].encode()
    seen = inspect_file(data, None)
    assert (seen.task, seen.count, seen.labels) == (
        "multilabel",
        6,
        {"x": 6, "parcel": 2, "refund": 2, "login": 2},
    )
    assert {frozenset(row.label) for row in read_labelled_rows(data, "multilabel")} == {
        frozenset((label, "x")) for label in LABELS
    }
    with pytest.raises(InvalidData, match="for several labels a text give --task multilabel"):
        read_labelled_rows(data, "classification")


@pytest.mark.parametrize("tool", ["Label Studio", "doccano", "Prodigy, choice", "spaCy", "fastText"])
def test_single_labels_are_sets_where_the_task_wants_sets(tool: str) -> None:
    rows = read_labelled_rows(EXPORTS[tool][0].encode(), "multilabel")
    assert Counter((row.text, row.label) for row in rows) == Counter((t, (a,)) for t, a in ROWS)


def test_tasks_without_an_answer_are_left_out_and_counted() -> None:
    tasks = [task_of_label_studio(t, chosen(a)) for t, a in ROWS]
    tasks += [task_of_label_studio("skipped", chosen("login", was_cancelled=True))]
    tasks += [
        task_of_label_studio("new"),
        task_of_label_studio("newer"),
        task_of_label_studio("empty", chosen()),
    ]
    data = json.dumps(tasks).encode()
    found = read_labelled_file(data, "classification")
    assert len(found.rows) == 6
    assert found.notes == [
        "1 record is left out: skipped by the annotator",
        "2 records are left out: without an annotation",
        "1 record is left out: without a label",
    ]
    assert len(read_unlabelled_file(data, "classification", paired=False).rows) == 10


def test_annotators_who_agree_make_one_row_and_the_ground_truth_decides() -> None:
    tasks = [task_of_label_studio(t, chosen(a), chosen(a)) for t, a in ROWS]
    tasks += [task_of_label_studio("both", chosen("login"), chosen("refund"))]
    tasks += [task_of_label_studio("told", chosen("login"), chosen("refund", ground_truth=True))]
    rows = read_labelled_file(json.dumps(tasks).encode(), "classification")
    assert [(row.text, row.label) for row in rows.rows[6:]] == [
        ("both", "login"),
        ("both", "refund"),
        ("told", "refund"),
    ]
    assert "1 text is labelled in more than one way" in rows.notes[0]


def test_old_doccano_has_numbers_which_may_be_named() -> None:
    rows = [{"id": 1, "text": t, "annotations": [{"label": LABELS.index(a) + 1, "user": 1}]} for t, a in ROWS]
    data = jsonl(rows).encode()
    assert set(inspect_file(data, None).labels) == {"1", "2", "3"}
    named = Reading(labels=("1=parcel", "2=refund", "3=login"))
    read = read_labelled_file(data, "classification", reading=named).rows
    assert [(row.text, row.label) for row in read] == ROWS


def test_integers_get_the_names_that_are_given() -> None:
    tagged = jsonl([{"tokens": ["to", "Rome"], "ner_tags": [0, 1]}] * 5).encode()
    with pytest.raises(InvalidData, match="give their names"):
        read_labelled_rows(tagged, "tagging")
    named = read_labelled_file(tagged, "tagging", reading=Reading(labels=("O", "B-LOC")))
    assert named.rows[0].label == ("O", "B-LOC")
    numbers = jsonl([{"text": t, "label": i % 4 - 1} for i, t in enumerate(TEXTS)]).encode()
    with pytest.raises(
        InvalidData, match="line 1: the label is -1, by which datasets mean that there is none"
    ):
        read_labelled_file(numbers, "classification", reading=Reading(labels=("a", "b", "c")))
    with pytest.raises(InvalidData, match=r"the label '2' has no name: .* for 0 to 1 .* such as 1=World"):
        read_labelled_file(numbers, "classification", skip=2, reading=Reading(labels=("a", "b")))
    csv = ("text,label\n" + "".join(f'"{t}",{i % 2}\n' for i, t in enumerate(TEXTS))).encode()
    read = read_labelled_file(csv, "classification", reading=Reading(labels=("no", "yes"))).rows
    assert [row.label for row in read] == ["no", "yes"] * 3


GUESSES: list[tuple[str, Task, dict[str, Any]]] = [
    (FLAGS, "multilabel", {"text_column": "comment_text", "labels_columns": ["toxic", "threat"]}),
    (STRANGE, "classification", {"text_column": "said", "label_column": "what"}),
    (HEADLESS, "classification", {"text_column": ["2", "3"], "label_column": "1", "header": False}),
    (
        "".join(f"{a}\t{t}\n" for t, a in ROWS),
        "classification",
        {"text_column": "2", "label_column": "1", "header": False},
    ),
]


@pytest.mark.parametrize(("data", "task", "options"), GUESSES)
def test_columns_are_read_by_name_and_the_check_guesses_which(
    data: str, task: Task, options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = inspect_file(data.encode(), None)
    assert (refused.task, refused.guess) == (task, options)
    assert refused.error is not None
    file = tmp_path / "the rows"
    file.write_text(data)
    printed = hmi(capsys, "check", file, code=1)
    command = next(line for line in printed.splitlines() if "it may be meant so: " in line)
    assert command.endswith(f"--task {task}{as_arguments(options)}")
    words = as_arguments(options).split()
    again = json.loads(hmi(capsys, "check", file, "--json", *words))
    assert (again["usable"], again["task"], again["count"]) == (True, task, 6)
    assert "next: hmi model create" in (said := hmi(capsys, "check", file, *words))
    assert as_arguments(options) in said


def test_two_texts_may_be_a_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "two.csv"
    file.write_text(HEADLESS)
    assert f"if its two texts are a pair: hmi check {file} --task pair" in hmi(capsys, "check", file, code=1)
    seen = inspect_file(file, "pair")
    options = {"text_column": "2", "text_pair_column": "3", "label_column": "1", "header": False}
    assert (seen.task, seen.guess) == ("pair", options)
    read = read_labelled_file(file, "pair", reading=Reading.model_validate(options)).rows
    assert read[0].text == (TEXTS[0], f"{TEXTS[0]} It matters to us.")
    with pytest.raises(
        InvalidData, match=r"name it \(--text-pair-column, over HTTP options\.text_pair_column\)"
    ):
        read_labelled_rows(b"text,foo\na,b\n", "pair")


def test_what_each_named_column_gives() -> None:
    def of(data: str, task: Task, **reading: Any) -> list[Any]:
        rows = read_labelled_file(data.encode(), task, reading=Reading(**reading)).rows
        return [(row.text, row.label) for row in rows]

    flags = of(FLAGS, "multilabel", text_column="comment_text", labels_columns=["toxic", "threat"])
    assert [label for _, label in flags] == [
        (),
        ("toxic",),
        (),
        ("toxic", "threat"),
        ("threat",),
        ("toxic", "threat"),
    ]
    assert of(STRANGE, "classification", text_column="SAID", label_column="what") == ROWS
    both = of(HEADLESS, "classification", text_column=["2", "3"], label_column="1", header=False)
    assert both[0] == (f"{TEXTS[0]}\n{TEXTS[0]} It matters to us.", "1")
    pairs = jsonl([{"a": t, "b": t[::-1], "text": "x", "c": a} for t, a in ROWS])
    read = of(pairs, "pair", text_column="a", text_pair_column="b", label_column="c")
    assert read == [((t, t[::-1]), a) for t, a in ROWS]
    values = jsonl([{"a": t, "n": i + 0.5} for i, t in enumerate(TEXTS)])
    assert of(values, "regression", text_column="a", label_column="n")[1] == (TEXTS[1], 1.5)


@pytest.mark.parametrize(
    ("task", "reading", "said"),
    [
        (
            "classification",
            {"text_column": "said", "label_column": "which"},
            "no column `which` (label_column)",
        ),
        ("classification", {"text_column": "said", "label_column": "said"}, "`said` is named twice"),
        ("multilabel", {"text_column": "what", "labels_columns": ["said"]}, "`said` is 'Where is my parcel"),
        ("classification", {"text_column": "said", "labels_columns": ["what"]}, "give --task multilabel"),
        ("multilabel", {"label_column": "said", "labels_columns": ["what"]}, "give one of them"),
    ],
)
def test_names_that_do_not_fit_are_refused(task: Task, reading: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidData) as error:
        read_labelled_file(STRANGE.encode(), task, reading=Reading(**reading))
    assert said in error.value.message


def test_texts_without_answers_may_have_their_usual_names() -> None:
    reading = Reading(text_column="said", label_column="what")
    for data in (STRANGE, jsonl([{"text": t} for t in TEXTS]), jsonl([{"said": t} for t in TEXTS])):
        found = read_unlabelled_file(data.encode(), "classification", paired=False, reading=reading)
        assert [row.text for row in found.rows] == [*TEXTS]


def test_options_of_a_training_hold_the_reading() -> None:
    given = {"text_column": ["a", "b"], "labels": ["x", "y"], "header": False, "encoding": "cp1252"}
    options = FineTuneOptions(**given, epochs=3)  # type: ignore[arg-type]
    assert options.reading() == Reading(**given)  # type: ignore[arg-type]
    assert options.recipe().epochs == 3
    for wrong in (
        {"encoding": "rot13"},
        {"encoding": "idna"},
        {"encoding": "klingon"},
        {"labels": []},
        {"text_column": ""},
    ):
        with pytest.raises(ValueError):
            FineTuneOptions(**wrong)  # type: ignore[arg-type]


CORPORA = {
    "fastText": EXPORTS["fastText"][0],
    "Rasa": RASA,
    "CSV without a header": HEADLESS,
    "CSV without": "".join(f"{a}\t{t}\n" for t, a in ROWS),
}


@pytest.mark.parametrize("tool", CORPORA)
def test_rows_are_no_corpus(tool: str) -> None:
    seen = inspect_file(CORPORA[tool].encode(), None, corpus=True)
    assert seen.error is not None
    assert f"looks like rows of {tool}" in seen.error
    assert "to train a model of them, give them to `hmi model create`" in seen.error


@pytest.mark.parametrize("field", ["spans", "entities", "answer"])
def test_json_with_a_text_is_a_corpus_only_if_it_is_called_one(field: str) -> None:
    data = jsonl([{"text": t, field: [] if field != "answer" else "accept"} for t in TEXTS]).encode()
    called = inspect_file(data, None, corpus=True)
    assert (called.error, called.count) == (None, 6)
    assert f"this looks like rows (`{field}`)" in called.notes[0]
    assert (seen := inspect_file(data, None)).kind == "rows"
    assert seen.error is not None
    plain = inspect_file(jsonl([{"text": t, "title": "x"} for t in TEXTS]).encode(), None)
    assert (plain.kind, plain.error, plain.notes) == ("corpus", None, [])


KEYS = ["data", "annotations", "result", "value", "choices", "from_name", "text", "label", "labels", "accept"]
KEYS += ["options", "config", "cats", "features", "rows", "row", "name", "type", "names", "feature", "_type"]
KEYS += [
    "rasa_nlu_data",
    "common_examples",
    "intent",
    "annotation_id",
    "lead_time",
    "topic",
    "answer",
    "spans",
]
LEAVES = st.sampled_from(
    [None, True, 0, 1.5, "", "a text of words", "ClassLabel", "reject", '{"choices": 1}']
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5), max_size=5), st.booleans())
def test_whatever_an_export_holds_gets_an_answer(records: list[dict[str, Any]], listed: bool) -> None:
    data = (json.dumps(records) if listed else jsonl(records)).encode()
    for task in (None, "classification", "multilabel"):
        seen = inspect_file(data, task)  # type: ignore[arg-type]
        assert seen.error or seen.count
    inspect_file(data, None, corpus=True)
    named = Reading(text_column=("text",), label_column="label", labels=("²", "b"))
    inspect_file(data, "classification", reading=named)


def test_deep_yaml_is_refused() -> None:
    deep = "nlu:\n- intent: a\n  examples: " + "[" * 100_000
    with pytest.raises(InvalidData, match="is not YAML"):
        read_labelled_rows(deep.encode(), "classification")


PROSE = (
    "Yes, he said it.\nNo, she said it.\nYes, they did.\nWell, it is so.\nNo, it is not.\n" * 3,
    '"Yes, I said it.\nNo, she said it.\nYes, they did.\nWell, it is so.\n' * 3,
    "Roses are red\nViolets are blue\nSugar is sweet\nAnd so are you\n" * 3,
    "See also; the sea is blue\nSee also; the sky is grey\nNote; the end is near\nNote; it is not\n",
)


@pytest.mark.parametrize("prose", PROSE)
def test_prose_is_still_a_corpus(prose: str) -> None:
    seen = inspect_file(prose.encode(), None, corpus=True)
    assert (seen.error, seen.count) == (None, prose.count("\n"))


def test_rows_that_are_sorted_by_their_labels_are_seen_and_guessed() -> None:
    rows = "".join(
        f"{label},was it a {label} day? It was number {i}\n" for label in ("bad", "good") for i in range(300)
    )
    assert "CSV without a header" in (inspect_file(rows.encode(), None, corpus=True).error or "")
    seen = inspect_file(rows.encode(), None)
    assert seen.guess == {"text_column": "2", "label_column": "1", "header": False}
