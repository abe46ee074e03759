"""Reads a chat, the form of training rows for generative models: as a row, which has a text and a label, and
as its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELD = "messages"
"""The field of a record that holds a chat."""
_NOT_READ = ("system", "developer")
"""Instructions to a generative model. They are the same in every row, so a text to classify lacks them."""
Messages = tuple[tuple[str, str], ...]
"""The role and the text of each message; of an instruction that is not text, ""."""


def row_of_chat(values: Mapping[str, Any]) -> tuple[dict[str, Any], Messages]:
    """The fields of a row whose `messages` are a chat, with `text` and `label` in place of the chat; and the
    messages.

    The label is the last message, if the assistant wrote it; without it the row has none. The text is what
    the user wrote, one message a line. Raises ValueError if the messages are no chat.
    """
    messages = values[FIELD]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"`{FIELD}` is not a list of messages")
    said = tuple(_role_and_text(message, i) for i, message in enumerate(messages))
    row = {name: value for name, value in values.items() if name != FIELD}
    row["text"] = "\n".join(text for role, text in said if role == "user")
    if said[-1][0] == "assistant":
        row["label"] = said[-1][1]
    return row, said


def _role_and_text(message: object, index: int) -> tuple[str, str]:
    """The role and the text of a message."""
    place = f"`{FIELD}[{index}]`"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f"{place} has no role")
    role = message["role"]
    if role not in ("user", "assistant", *_NOT_READ):
        raise ValueError(f"{place} has the role {role[:40]!r}, not user or assistant")
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    try:
        return role, "\n".join(_text_of(part, place) for part in parts)
    except ValueError:
        if role in _NOT_READ:
            return role, ""
        raise


def _text_of(part: object, place: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text":
        part = part.get("text")
    if not isinstance(part, str):
        raise ValueError(f"{place} has a content that is not text")
    return part
