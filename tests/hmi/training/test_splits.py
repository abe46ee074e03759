"""Which rows are held out, and the notes that users get about their rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from hmi.errors import InvalidData
from hmi.training.data.rows import Row, read_labelled_rows
from hmi.training.tasks.objectives import learn_task
from hmi.training.tasks.remarks import remarks
from hmi.training.tasks.row_keys import hold_out
from hmi.training.tasks.splits import imbalance


def labelled(**counts: int) -> list[Row]:
    return [Row(f"{label} {i}", label) for label, count in counts.items() for i in range(count)]


def test_every_label_is_held_out_and_none_wholly() -> None:
    rows = labelled(a=100, b=30, c=10, d=1)
    train, dev = hold_out(rows)
    assert len(train) + len(dev) == len(rows)
    assert {id(r) for r in train}.isdisjoint({id(r) for r in dev})
    counts = Counter(str(r.label) for r in dev)
    assert counts["d"] == 0, "a label's only row is trained on"
    assert counts["c"] == 1
    assert 8 <= counts["a"] <= 10
    assert hold_out(rows) == (train, dev)


def test_of_twenty_rows_four_are_held_out() -> None:
    train, dev = hold_out(labelled(a=10, b=10))
    assert (len(train), len(dev)) == (16, 4)
    assert Counter(str(r.label) for r in dev) == {"a": 2, "b": 2}
    values = [Row(str(i), float(i)) for i in range(20)]
    assert len(hold_out(values)[1]) == 4


def test_one_row_a_label_cannot_be_held_out() -> None:
    with pytest.raises(InvalidData, match="at least two rows of a label, or the task generation"):
        hold_out(labelled(a=1, b=1, c=1, d=1))


def test_users_are_told_of_what_is_strange() -> None:
    train, dev = labelled(a=100, b=5), labelled(a=3, z=1)
    told = " ".join(
        remarks(learn_task("classification", [r.label for r in train]), train, dev, dev_given=True)
    )
    for said in (
        "1 held-out row has labels that no training row has (z)",
        "'a' has 20 times the rows of 'b'",
        "rest on 4 held-out rows",
    ):
        assert said in told
    fair = labelled(a=20, b=20)
    assert remarks(learn_task("classification", ["a", "b"]), fair, fair, dev_given=False) == []
    assert imbalance(fair) == (1.0, "a", "b")


def test_tags_that_break_bio_are_named_by_row_and_word() -> None:
    rows = [Row(["x", "y"], ("O", "I-d")), Row(["x"], ("B-d",))]
    task = learn_task("tagging", [r.label for r in rows])
    assert task.rules.scheme == "free"
    told = remarks(task, rows, rows * 10, dev_given=True)
    assert len(told) == 1
    assert "row 1, word 2: I-d after O" in told[0]


def rows_of(tmp_path: Path, task: str, *given: object) -> list[Row]:
    path = tmp_path / "rows"
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    return read_labelled_rows(path, task)  # type: ignore[arg-type]


def test_rows_of_labels_and_values_are_read(tmp_path: Path) -> None:
    some = [{"text": "t", "labels": ["a", 1, "a"]}, *[{"text": "t", "labels": []}] * 4]
    assert [r.label for r in rows_of(tmp_path, "multilabel", *some)][:2] == [("a", "1"), ()]
    some = [{"text": "t", "text_pair": "u", "value": -1.5}] * 4
    assert (
        rows_of(tmp_path, "regression", *some)[0].text,
        rows_of(tmp_path, "regression", *some)[0].label,
    ) == (("t", "u"), -1.5)
    csv = tmp_path / "rows.csv"
    csv.write_text("text,value\na,1\nb,2.5\nc,3\nd,4\n")
    assert [r.label for r in read_labelled_rows(csv, "regression")] == [1.0, 2.5, 3.0, 4.0]


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ("multilabel", {"text": "a"}, "`labels` is missing"),
        ("multilabel", {"text": "a", "labels": "b"}, "`labels` is a text"),
        ("multilabel", {"text": "a", "labels": [None]}, "one of `labels` is missing"),
        ("regression", {"text": "a"}, "`value` is missing"),
        ("regression", {"text": "a", "value": "high"}, "'high', not a number"),
        ("regression", {"text": "a", "value": True}, "'True', not a number"),
        ("regression", {"text": "a", "value": 1e300}, "not a number between"),
        ("regression", {"text": "a", "text_pair": "", "value": 1}, "`text_pair` is missing or empty"),
    ],
)
def test_bad_rows_of_the_new_kinds_are_named(tmp_path: Path, task: str, row: object, message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        rows_of(tmp_path, task, *[row] * 5)


def test_a_pair_among_single_texts_is_named(tmp_path: Path) -> None:
    some = [{"text": "t", "value": 1}] * 4 + [{"text": "t", "text_pair": "u", "value": 2}]
    with pytest.raises(InvalidData, match="line 5 of data has a `text_pair`, unlike the first row"):
        rows_of(tmp_path, "regression", *some)
