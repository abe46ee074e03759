"""Rows of prompts and completions: which files are such rows, and what is wrong with others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hmi.errors import InvalidData
from hmi.jobs.checks import inspect_file
from hmi.training.data.golds import Completion
from hmi.training.data.reading import Reading
from hmi.training.data.rows import Row, parse_rows, read_labelled_rows
from hmi.training.tasks.row_keys import hold_out


def lines(*rows: dict[str, Any]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


def columns(*names: str, count: int = 6) -> bytes:
    return lines(*({name: f"some {name} {i % 4}" for name in names} for i in range(count)))


def chat(*said: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in said]}


@pytest.mark.parametrize(
    ("names", "task"),
    [
        (("prompt", "completion"), "generation"),
        (("instruction", "output"), "generation"),
        (("Prompt", "Response", "id"), "generation"),
        (("text", "label"), "classification"),
        (("text", "label", "prompt", "completion"), "classification"),
        (("text", "intent", "prompt", "completion"), "classification"),
        (("sentence1", "sentence2", "label"), "pair"),
    ],
)
def test_columns_tell_the_task_as_before(names: tuple[str, ...], task: str) -> None:
    assert inspect_file(columns(*names), None).task == task


@pytest.mark.parametrize("names", [("question", "answer"), ("prompt", "label"), ("input", "target")])
def test_columns_that_may_be_anything_are_rows_once_the_task_is_named(names: tuple[str, ...]) -> None:
    assert inspect_file(columns(*names), None).error is not None
    prompt, completion = names
    rows = read_labelled_rows(columns(*names), "generation")
    assert rows[1] == Row(f"some {prompt} 1", Completion(f"some {completion} 1"))
    found = inspect_file(columns(*names), "generation")
    assert found.error is None
    assert found.sample[0] == {"prompt": f"some {prompt} 0", "completion": f"some {completion} 0"}
    assert found.labels == {}


def test_several_columns_are_joined_if_they_are_named() -> None:
    data = columns("instruction", "input", "output")
    with pytest.raises(InvalidData, match=r"2 columns could be the `prompt` .*--text-column.* joined"):
        read_labelled_rows(data, "generation")
    reading = Reading(text_column=("instruction", "input"), label_column="output")
    found = parse_rows(data, "generation", "data", reading=reading)
    assert found.rows[0] == Row("some instruction 0\nsome input 0", Completion("some output 0"))


def test_chats_end_with_what_is_learnt() -> None:
    said = (("system", "be brief"), ("user", "hi"), ("assistant", "yes?"), ("user", "so"))
    rows = read_labelled_rows(lines(*[chat(*said, ("assistant", f"ok {i}")) for i in range(4)]), "generation")
    assert rows[2] == Row("system: be brief\nuser: hi\nassistant: yes?\nuser: so", Completion("ok 2", said))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"prompt": "a", "completion": " "}, "`completion` is missing or empty"),
        ({"prompt": "a"}, "`completion` is missing or empty"),
        ({"prompt": 3, "completion": "a"}, "`prompt` is a number, not a text"),
        ({"prompt": "a", "completion": ["b"]}, "`completion` is a list, not a text"),
        ({"prompt": "a", "completion": "\ud800"}, "half a surrogate pair"),
        (chat(("user", "a")), "the last of `messages` is not the assistant's: add"),
        (chat(("assistant", "a")), "has the assistant's answer alone"),
        (chat(("user", "a"), ("assistant", " ")), "`messages[1]` has no text"),
        (chat(("system", None), ("user", "a"), ("assistant", "b")), "`messages[0]` has no text"),
    ],
)
def test_bad_rows_say_why(wrong: dict[str, Any], says: str) -> None:
    good = [{"prompt": "a", "completion": "b"}, {"prompt": "", "completion": "b"}, {"completion": " c"}]
    found = parse_rows(lines(*good, wrong), "generation", "data")
    assert [row.text for row in found.rows] == ["a", "", ""]
    assert found.rows[2].label == Completion(" c"), "as it is written, its spaces too"
    (bad,) = found.left_out
    assert bad.line == 4
    assert says in bad.message


def test_a_share_is_held_out_though_all_completions_differ() -> None:
    rows = read_labelled_rows(columns("prompt", "completion", count=200), "generation")
    train, dev = hold_out(rows)
    assert (len(train), len(dev)) == (180, 20)


def test_csv_with_blank_prompts() -> None:
    found = parse_rows(b"prompt,completion\na,b\n,c\n", "generation", "data")
    assert [(row.text, row.label) for row in found.rows] == [("a", Completion("b")), ("", Completion("c"))]
