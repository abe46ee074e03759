"""What commands say of a user's rows: what is left out of long texts, which task they are of, and each remark
once."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hmi.cli.framework import endings, second_version
from hmi.cli.framework.second_version import tell_improving
from hmi.cli.models import check as checking
from hmi.cli.models import infer_batch
from hmi.cli.models.check import lengths_of, show_formats
from hmi.cli.models.infer_batch import tell_cut
from hmi.core import Task
from hmi.errors import InvalidData
from hmi.jobs.checks import inspect_file
from hmi.model.text.batching import Encoded
from hmi.sizes import counted
from hmi.training.data.long_texts import Limit, long_note
from hmi.training.data.meaning.columns import task_of_columns
from hmi.training.data.meaning.conflicts import conflicts_of
from hmi.training.data.rows import Row, read_labelled_rows, reasons_of
from hmi.training.tasks.remarks import cut_remarks
from hmi.training.tasks.splits import Split
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.span_files import SPANS, TEXT, least, lines

SPLIT = "Split such texts into several rows"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What commands write to stderr."""
    out = io.StringIO()
    for module in (checking, second_version, infer_batch):
        monkeypatch.setattr(module, "notes", Console(file=out, width=10_000))
    return out


@pytest.mark.parametrize(
    ("task", "limit", "cure"),
    [
        ("tagging", "1,593 tokens (up to 8 windows of 256)", SPLIT),
        ("classification", "256 tokens", "--option long_texts=windows (over HTTP options.long_texts), which"),
        ("pair", "256 tokens", "Shorten such texts"),
    ],
)
def test_a_check_says_how_much_of_long_texts_is_left_out(task: Task, limit: str, cure: str) -> None:
    long = "word " * 2_000
    row: dict[str, Any] = {"text": long, "text_pair": "b"} if task == "pair" else {"text": long}
    short = dict.fromkeys(row, "a b")
    rows = [{**(row if i == 1 else short), "label": "xy"[i % 2]} for i in range(8)]
    if task == "tagging":
        rows = [
            {"tokens": each["text"].split(), "tags": ["B-X" if i % 2 else "O"] * len(each["text"].split())}
            for i, each in enumerate(rows)
        ]
    [note] = [each for each in inspect_file(lines(*rows), task).notes if "more words" in each]
    words = 2_001 if task == "pair" else 2_000
    lost = words - (1_593 if task == "tagging" else 256) + 2
    assert note.startswith(f"1 text has more words than the {limit} that a model reads of a text: of their ")
    assert f"{words:,} words at least {lost:,} are left out (the longest has {words:,})" in note
    assert cure in note
    assert long_note(["a b"] * 3, Limit(16, windows=False)) == ""


def test_a_training_says_how_many_rows_it_cut() -> None:
    def read(*words: int, truncated: bool = False) -> Encoded:
        return Encoded([1, *words, 2], [0] * (len(words) + 2), [None, *words, None], truncated)

    rows = [Row(["a"] * 9, ("O",) * 9), Row(["b"] * 2, ("O",) * 2)]
    split = Split(rows, [read(0, 1, 2), read(2, 3, truncated=True), read(0, 1)], [0, 0, 1])
    whole = Split(rows[1:], [read(0, 1)])
    assert cut_remarks(Limit(5, windows=True), training=split, **{"held-out": whole}) == [
        "1 of 2 training rows is longer than the 26 tokens (up to 8 windows of 5) that the model reads of a "
        f"text: the rest was left out, 5 words with their tags. {SPLIT}"
    ]


def test_the_lengths_of_an_update_are_those_of_the_live_version() -> None:
    live = {"version": 2, "max_length": 32, "rules": {"windows": True}}
    found = lengths_of({"current": 2, "versions": [{"version": 1}, live]})
    assert found == {"max_length": 32, "long_texts": "windows"}


def test_the_task_is_that_of_the_columns_unless_it_is_given(tmp_path: Path, told: io.StringIO) -> None:
    file = tmp_path / "rows.json"
    file.write_bytes(lines(*[least(f"{TEXT} {i}", SPANS) for i in range(8)], least(TEXT * 50, SPANS)))
    shown = show_formats(None, {"data": file}, {"max_length": 16})
    assert shown.task == "tagging"
    said = told.getvalue()
    assert "data: rows of the task tagging; --task takes another one" in said
    assert "1 text has more words than the 93 tokens (up to 8 windows of 16)" in said
    with pytest.raises(InvalidData, match="Give --task tagging"):
        show_formats("classification", {"data": file}, {})


def test_a_remark_is_made_once(told: io.StringIO, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,label\n" + "".join(f"text {i // 2},{'ab'[i % 2]}\n" for i in range(20)))
    shown = show_formats(None, {"data": file}, {})
    [note] = shown.notes
    assert told.getvalue().count("labelled in more than one way") == 1
    result = {"metrics": {"warnings": [note, "another"]}}
    view = {"kind": "fine_tune", "target": "a.b", "job": "j", "result": result}
    assert [line for line in endings.lines(view, shown.notes) if "note:" in line] == ["  note: another"]
    assert f"  note: {note}" in endings.lines(view), "as after 'hmi job resume', which has not said it"
    held_out = conflicts_of([("text 1", "a"), ("text 1", "b")]).remark("held-out ", shown=False)
    assert held_out.startswith(
        "1 text is labelled in more than one way, in 2 of the 2 held-out rows. A perfect"
    )


@pytest.mark.parametrize(
    ("columns", "task"),
    [
        (("text", "label", "score"), "classification"),
        (("text", "score"), "regression"),
        (("text", "sentiment", "score"), "classification"),
        (("text", "label", "value"), "regression"),
        (("premise", "hypothesis", "label"), "pair"),
        (("tokens", "ner_tags"), "tagging"),
        (("text", "label", "categories"), "classification"),
    ],
)
def test_an_answer_under_its_own_name_tells_the_task(columns: tuple[str, ...], task: Task) -> None:
    assert task_of_columns(columns) == task


def test_a_training_without_a_task_is_of_the_rows(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    file.write_bytes(lines(*[least(f"{TEXT} {i}", SPANS) for i in range(8)]))
    create = ("model", "create", "acme.ner", file, "--domain", "tiny", "--detach", "--data", folder)
    job = hmi(capsys, *create).strip()
    assert json.loads(hmi(capsys, "job", "show", job, "--json", "--data", folder))["kind"] == "fine_tune"


def test_texts_of_a_batch_that_were_cut_are_named(told: io.StringIO) -> None:
    tell_cut([], 3)
    assert told.getvalue() == ""
    tell_cut(["item 1", "item 2", "item 4", "item 5"], 9)
    assert told.getvalue() == (
        "note: 4 of 9 texts could not be read whole, and what lies beyond the model's limit has no answer: "
        "item 1; item 2; item 4; and 1 more\n"
    )


def test_a_batch_for_label_studio_says_what_was_cut(
    folder: Path, tmp_path: Path, told: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.json"
    file.write_text(json.dumps([{"said": text, "by": "x y"} for text in ("market", "gene " * 99)]))
    ask = ("infer", "acme.m", "--batch", file, "--form", "label-studio", "--data", folder)
    found = json.loads(hmi(capsys, *ask, "--text-column", "said"))
    assert [task["data"]["said"] for task in found] == ["market", "gene " * 99]
    assert "note: 1 of 2 texts could not be read whole" in told.getvalue()
    assert told.getvalue().endswith("item 2\n")
    assert "--text-column is for --batch" in hmi(
        capsys, "infer", "acme.m", "x", "--text-column", "y", "--data", folder, code=2
    )


class Remote:
    remote = True


@pytest.mark.parametrize(("version", "said"), [(1, "a second version may"), (2, "a further version may")])
def test_the_next_version_is_called_rightly(told: io.StringIO, version: int, said: str) -> None:
    tell_improving(Remote(), {"result": {"improving": "j1", "version": version}, "target": "a.b"})  # type: ignore[arg-type]
    assert told.getvalue().startswith(said)


def test_one_is_a_row_and_two_are_rows() -> None:
    assert [counted(n, "entity", "entities") for n in (1, 1_000)] == ["1 entity", "1,000 entities"]
    assert inspect_file(b'{"text": "a", "label": "b"}\n', None).error == "the file has 1 row: give at least 4"
    with pytest.raises(InvalidData, match=r"^1 of 1 row of data is not usable: line 1: "):
        read_labelled_rows(b'{"text": "a", "label": null}\n', "classification")
    rows = [
        {"text": f"text {i}", "label": "ab"[i % 2], "answer": "accept" if i else "ignore"} for i in (0, 1)
    ]
    assert "the annotator accepted 1 row, rejected 0" in inspect_file(lines(*rows), None).notes[0]


def test_a_reason_that_holds_for_many_rows_is_given_once() -> None:
    rows = [{"text": "a", "label": None if i else "b"} for i in range(9)]
    found = inspect_file(lines(*rows), "classification")
    assert found.error is not None
    assert found.error.startswith(
        "8 of 9 rows of the file are not usable: line 2: `label` is missing (line 3, line 4, line 5, line 6, "
        "line 7 and 2 more, too). It was read as"
    )
    assert reasons_of(found.problems[:1]) == ["line 2: `label` is missing"]
