"""Requests for text: a prompt or a chat, and how the next token is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from hmi.client.errors import InvalidInput

Messages = Iterable[Mapping[str, str]]
"""A chat: mappings with `role` (system, user, assistant) and `content`."""


class GenerateOptions(TypedDict, total=False):
    """How tokens are chosen. docs/writing.md explains each field. None leaves a field out."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    stop: str | Iterable[str] | None
    form: Mapping[str, Any] | None
    logprobs: int | None
    deadline_ms: float | None


def generate_body(
    prompt: str | None, messages: Messages | None, options: GenerateOptions, *, stream: bool
) -> dict[str, Any]:
    """Return the JSON of a call.

    Raises InvalidInput unless there is either a prompt or a chat, and for stop strings or messages that JSON
    cannot be made of.
    """
    if (prompt is None) == (messages is None):
        raise InvalidInput("a model writes after a prompt or after messages: give one of them")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if not isinstance(given.get("stop", ""), str):
        given["stop"] = _stops(given["stop"])
    asked = {"prompt": prompt} if messages is None else {"messages": _chat(messages)}
    return {**asked, **given, "stream": stream}


def _stops(stop: Any) -> list[str]:
    found = list(stop) if isinstance(stop, Iterable) and not isinstance(stop, bytes) else [stop]
    wrong = next((text for text in found if not isinstance(text, str)), None)
    if wrong is not None:
        raise InvalidInput(
            f"stop: {wrong!r} is not a text: give a text, or several in a list", details={"field": "stop"}
        )
    return found


def _chat(messages: Messages) -> list[dict[str, str]]:
    field = {"field": "messages"}
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes | Mapping):
        raise InvalidInput(
            "messages is not a list: give a list of mappings with role and content", details=field
        )
    found = list(messages)
    wrong = next((i for i, message in enumerate(found) if not isinstance(message, Mapping)), None)
    if wrong is not None:
        raise InvalidInput(
            f"messages[{wrong}] is {found[wrong]!r}: give a mapping with role and content", details=field
        )
    return [dict(message) for message in found]
