"""Inputs of `infer`: their JSON, and the cutting of long lists into calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from hmi.client.errors import ApiError, InvalidInput, TooLarge

BATCH_CHARACTERS = 60_000
"""A batch has at most this many characters, each input counted as 64 more: the server lets a tenant's larger
calls through one at a time."""
INPUT_CHARACTERS = 64
Input = str | tuple[str, str] | Mapping[str, Any] | list[str]
"""A text; a pair of texts; `{"text"}`, `{"text", "text_pair"}` or `{"tokens"}`; or a list of words."""
Returns = Literal["scores", "provenance", "words"]


class InferOptions(TypedDict, total=False):
    """The parameters of a call to infer: docs/http.md explains each."""

    deadline_ms: float
    utility: float
    priority: Literal["high", "normal", "low"]
    exact: bool
    calibrated: bool
    early: bool
    aggregation: Literal["none", "simple", "first", "average", "max"]
    returns: Iterable[Returns]


def parameters(options: InferOptions) -> dict[str, Any]:
    """Return the JSON of the options."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "returns" in given:
        given["return"] = list(given.pop("returns"))
    return given


def is_one(inputs: Any) -> bool:
    """Return whether `inputs` is one input. A list or another iterable holds several."""
    return isinstance(inputs, str | Mapping) or (
        isinstance(inputs, tuple) and len(inputs) == 2 and all(isinstance(text, str) for text in inputs)
    )


def encoded(value: Any) -> Any:
    """Return the JSON of one input. Raises InvalidInput if it is none."""
    if isinstance(value, str | Mapping):
        return value if isinstance(value, str) else dict(value)
    if isinstance(value, tuple) and len(value) == 2:
        return {"text": value[0], "text_pair": value[1]}
    if isinstance(value, list | tuple):
        return {"tokens": list(value)}
    raise InvalidInput(
        f"{type(value).__name__} is no input: give a text, a pair of texts as a tuple, words as a list, or a "
        "mapping"
    )


@dataclass(frozen=True)
class Batch:
    """Some inputs in JSON; `start` is the place of the first one among the caller's."""

    start: int
    inputs: list[Any]

    def halves(self) -> tuple[Batch, Batch]:
        middle = len(self.inputs) // 2
        return Batch(self.start, self.inputs[:middle]), Batch(self.start + middle, self.inputs[middle:])

    def may_halve(self, error: TooLarge) -> bool:
        """Return whether the server refused the number of inputs or the size of all, not a single input."""
        return len(self.inputs) > 1 and "[" not in str(error.details.get("field", ""))

    def placed(self, error: ApiError) -> ApiError:
        """Return the error, whose names of inputs count from this batch, with a note for the caller."""
        if self.start:
            error.details["first_input"] = self.start
            error.add_note(f"inputs[0] of this call was input {self.start} of all")
        return error


def batches(inputs: Iterable[Any], most: int) -> Iterator[Batch]:
    """Cut inputs into batches of at most `most` inputs, as they are asked for."""
    start, held, size = 0, list[Any](), 0
    for value in inputs:
        item = encoded(value)
        weight = INPUT_CHARACTERS + _characters(item)
        if held and (len(held) >= most or size + weight > BATCH_CHARACTERS):
            yield Batch(start, held)
            start, held, size = start + len(held), [], 0
        held.append(item)
        size += weight
    if held:
        yield Batch(start, held)


def _characters(item: Any) -> int:
    if isinstance(item, str):
        return len(item)
    values = [each for value in item.values() for each in (value if isinstance(value, list) else [value])]
    return sum(len(each) for each in values if isinstance(each, str))  # the server names a wrong one's place
