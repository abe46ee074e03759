"""Chats, the training rows of generative models, are read as rows of a classification."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hmi.errors import InvalidData
from hmi.jobs.checks import inspect_file
from hmi.training.data.rows import Row, parse_rows, read_labelled_rows, read_unlabelled_file


def chat(*said: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in said]}


CHATS = [
    chat(("system", "label it"), ("user", "good"), ("assistant", "pos")),
    chat(("user", [{"type": "text", "text": "bad"}]), ("assistant", "neg")),
    chat(("user", "so"), ("assistant", "yes?"), ("user", "fine"), ("assistant", "pos")),
    {**chat(("developer", ["any form"]), ("user", "awful"), ("assistant", "neg")), "weight": 1},
]
ROWS = [Row("good", "pos"), Row("bad", "neg"), Row("so\nfine", "pos"), Row("awful", "neg")]


def lines(chats: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, chats)).encode()


def test_the_last_message_is_the_label_and_the_users_are_the_text() -> None:
    assert read_labelled_rows(lines(CHATS), "classification") == ROWS
    assert read_labelled_rows(json.dumps(CHATS).encode(), "classification") == ROWS
    assert inspect_file(lines(CHATS), None).task == "classification"


def test_without_an_answer_they_are_texts() -> None:
    asked = [chat(*[(m["role"], m["content"]) for m in c["messages"][:-1]]) for c in CHATS]
    found = read_unlabelled_file(lines(asked), "classification", paired=False).rows
    assert [row.text for row in found] == [row.text for row in ROWS]
    with pytest.raises(InvalidData, match="`label` is missing"):
        read_labelled_rows(lines(asked), "classification")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"messages": []}, "is not a list of messages"),
        ({"messages": "good"}, "is not a list of messages"),
        ({"messages": [{"content": "good"}]}, "`messages[0]` has no role"),
        (chat(("user", "good"), ("tool", "x")), "`messages[1]` has the role 'tool'"),
        (chat(("user", [{"type": "image_url"}]), ("assistant", "x")), "a content that is not text"),
        (chat(("user", None), ("assistant", "x")), "a content that is not text"),
        (chat(("assistant", "x")), "`text` is missing or empty"),
    ],
)
def test_what_is_no_chat_is_a_bad_row(wrong: dict[str, Any], says: str) -> None:
    found = parse_rows(lines([*CHATS, wrong]), "classification", "data")
    assert found.rows == ROWS
    (bad,) = found.left_out
    assert (bad.line, says in bad.message) == (5, True), bad.message
