"""Checks the fields of one raw row: texts, words, labels, values. A ValueError says what is wrong
with the row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hmi.core import Task
from hmi.sizes import counted
from hmi.training.data.golds import Completion, Gold
from hmi.training.data.records import Place
from hmi.training.data.tables import kind_of

if TYPE_CHECKING:
    from hmi.model.text.tokenizer import Text

MAX_ROW_CHARACTERS = 1_000_000
MAX_VALUE = 1e9
"""The largest absolute value for regression. With larger ones the standard deviation loses precision."""


def written_of(
    raw: dict[str, Any], chat: tuple[tuple[str, str], ...], place: Place
) -> tuple[str, Completion]:
    """A row's prompt and what is to be written after it: a chat's last message, if the row is a `chat`. Then
    the prompt has a message a line.

    place: where the row stands in its file. Raises ValueError.
    """
    if not chat:
        prompt = raw.get("prompt")
        blank = prompt is None or (isinstance(prompt, str) and not prompt.strip())
        return prompt or "" if blank else _text(raw, "prompt"), Completion(
            _text(raw, "completion"), place=place
        )
    *before, (role, text) = chat
    if role != "assistant":
        raise ValueError(
            "the last of `messages` is not the assistant's: add the answer that is to be learnt, with the "
            "role assistant"
        )
    if not before:
        raise ValueError("`messages` has the assistant's answer alone: give the user's message before it")
    empty = next((i for i, (_, said) in enumerate(chat) if not said.strip()), None)
    if empty is not None:
        raise ValueError(f"`messages[{empty}]` has no text: give it one, or leave the message out")
    prompt = "\n".join(f"{who}: {said}" for who, said in before)
    read = {"prompt": prompt, "completion": text}
    return _text(read, "prompt"), Completion(_text(read, "completion"), tuple(before), place)


def answer_of(raw: dict[str, Any], task: Task) -> Gold:
    """A row's right answer. Raises ValueError."""
    if task == "tagging":
        tokens, tags = _words(raw, "tokens"), _words(raw, "tags")
        if len(tokens) != len(tags):
            raise ValueError(f"{counted(len(tokens), 'token')} but {counted(len(tags), 'tag')}")
        return tuple(tags)
    if task == "multilabel":
        return _labels(raw)
    return _value(raw) if task == "regression" else _label(raw.get("label"), "`label`")


def input_of(raw: dict[str, Any], task: Task, *, paired: bool | None = None) -> Text:
    """A row's input, without its answer. Raises ValueError.

    paired: whether it has two texts; None: as the task and the row imply.
    """
    if task == "tagging":
        return _words(raw, "tokens")
    second = raw.get("text_pair") is not None
    if paired is None:
        paired = task == "pair" or (task == "regression" and second)
    if second and not paired and str(raw["text_pair"]).strip():
        raise ValueError(f"it has a `text_pair`, which the task {task} does not take")
    return (_text(raw, "text"), _text(raw, "text_pair")) if paired else _text(raw, "text")


def _label(value: Any, name: str) -> str:
    """A label's name. 1, "1" and 1.0 are the same label. Spaces around a label are dropped."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise ValueError(f"{name} is missing")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError(f"{name} is NaN, not a class: give one, or leave the row out")
        if not value.is_integer():
            raise ValueError(
                f"{name} is {value}, not a class: for numbers use the task regression, with the field `value`"
            )
        value = int(value)
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        raise ValueError(
            f"{name} is a list of spans: for these give --task tagging, for classes --label-column"
        )
    if isinstance(value, list):
        raise ValueError(
            f"{name} is a list, not a single label: for several labels a text give --task multilabel"
        )
    if not isinstance(value, (str, int)):
        raise ValueError(f"{name} is {kind_of(value)}, not a string or an integer")
    return writable(str(value).strip(), name)


def writable(text: str, name: str) -> str:
    r"""The text. Raises ValueError if it has half a surrogate pair (\\ud800 in JSON), so that UTF-8
    cannot encode it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has half a surrogate pair at character {error.start + 1}") from error
    return text


def _labels(raw: dict[str, Any]) -> tuple[str, ...]:
    labels = raw.get("labels")
    if not isinstance(labels, list):
        what = "is missing" if labels is None else f"is {kind_of(labels)}"
        raise ValueError(f"`labels` {what}: give a list, [] where none applies")
    return tuple(dict.fromkeys(_label(label, "one of `labels`") for label in labels))


def _value(raw: dict[str, Any]) -> float:
    value = raw.get("value")
    if value is None or value == "":
        raise ValueError("`value` is missing")
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # in CSV numbers are text
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or abs(number) > MAX_VALUE:
        comma = (
            isinstance(value, str) and value.count(",") == 1 and value.replace(",", "").strip("-+ ").isdigit()
        )
        cure = ": write the decimal point as a point" if comma else ""
        raise ValueError(f"`value` is {str(value)[:40]!r}, not a number between ±{MAX_VALUE:g}{cure}")
    return number


def _words(raw: dict[str, Any], name: str) -> list[str]:
    words = raw.get(name)
    if isinstance(words, list) and words and all(isinstance(v, int) for v in words):
        raise ValueError(
            f"`{name}` holds numbers: give their names (--labels O,B-PER,…; over HTTP options.labels)"
        )
    if not isinstance(words, list) or not words or not all(isinstance(v, str) and v.strip() for v in words):
        raise ValueError(f"`{name}` is not a list of non-empty strings")
    characters = sum(map(len, words))
    if characters > MAX_ROW_CHARACTERS:
        raise ValueError(f"`{name}` have {characters} characters, more than {MAX_ROW_CHARACTERS}")
    writable("".join(words), f"`{name}`")
    return words


def _text(raw: dict[str, Any], name: str) -> str:
    value = raw.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"`{name}` is {kind_of(value)}, not a text")
    if value is None or not value.strip():
        raise ValueError(f"`{name}` is missing or empty")
    if len(value) > MAX_ROW_CHARACTERS:
        raise ValueError(f"`{name}` has {len(value)} characters, more than {MAX_ROW_CHARACTERS}")
    return writable(value, f"`{name}`")
