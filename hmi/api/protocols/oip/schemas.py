"""The JSON bodies of the protocol's calls to infer, and its errors.

Other servers' clients send fields that HMI does not know, so unknown fields are ignored here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from hmi.api.protocols.native.schemas import Parameters
from hmi.api.schemas.shared import LONGEST_MS, Answer

MOST_TENSORS = 16
"""Most inputs or outputs that a call may name."""
ID_CHARS = 256
"""The longest id of a call, in characters."""
_PRIORITIES = {0: "normal", 1: "high", 2: "normal"}
"""HMI's names of Triton's priorities. Larger numbers are low."""


class Open(BaseModel):
    """A part of a request. Unknown fields are ignored, wrong types refused."""

    model_config = ConfigDict(extra="ignore", strict=True)


class TensorParameters(Open):
    """The parameters of an input."""

    binary_data_size: int | None = Field(
        default=None, ge=0, description="The bytes of this tensor, which follow the JSON instead of `data`."
    )
    shared_memory_region: Any = Field(default=None, description="Refused: send the data in the request.")


class InputTensor(Open):
    """An input. TEXT and TEXT_PAIR hold one text a row, TOKENS the words of one text a row."""

    name: str = Field(max_length=200)
    shape: list[int] = Field(max_length=8, description="[n] or [n, 1]; of TOKENS also [n, words].")
    datatype: Literal["BYTES"]
    parameters: TensorParameters = Field(default_factory=TensorParameters)
    data: list[Any] | None = Field(
        default=None, description="The texts, row by row: a flat list, or one list a row."
    )


class OutputParameters(Open):
    """The parameters of a requested output."""

    binary_data: bool | None = Field(default=None, description="Send this output as bytes after the JSON.")
    classification: Any = Field(default=None, description="Refused: request LABEL or SCORES.")
    shared_memory_region: Any = Field(default=None, description="Refused: read the data from the answer.")


class RequestedOutput(Open):
    """An output that the caller wants."""

    name: str = Field(max_length=200)
    parameters: OutputParameters = Field(default_factory=OutputParameters)


class Options(Parameters):
    """The parameters of a call: those of HMI's own calls, and Triton's. Unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    binary_data_output: bool = Field(default=False, description="Send all outputs as bytes after the JSON.")
    timeout: int | None = Field(
        default=None, ge=0, description="Triton's deadline, in microseconds; 0: none. `deadline_ms` wins."
    )
    sequence_id: Any = Field(default=None, description="Refused: models here keep no state between calls.")

    @field_validator("priority", mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        """Name a priority that is a number."""
        is_number = isinstance(given, int) and not isinstance(given, bool)
        return _PRIORITIES.get(given, "low") if is_number else given

    @property
    def deadline(self) -> float | None:
        """Return the deadline in ms, or None if there is none."""
        if self.deadline_ms is None and self.timeout:
            return min(self.timeout / 1000, LONGEST_MS)
        return self.deadline_ms


class InferRequest(Open):
    """A request to infer."""

    id: str | None = Field(default=None, max_length=ID_CHARS, description="The answer repeats it.")
    parameters: Options = Field(default_factory=Options)
    inputs: list[InputTensor] = Field(min_length=1, max_length=MOST_TENSORS)
    outputs: list[RequestedOutput] = Field(
        default_factory=list, max_length=MOST_TENSORS, description="The outputs to return; empty: all."
    )


class OutputTensor(Answer):
    """An output in JSON."""

    name: str
    datatype: str
    shape: list[int]
    data: list[str] | list[float] | list[bool] = Field(description="Row by row, as a flat list.")


class BinaryParameters(Answer):
    binary_data_size: int


class BinaryTensor(Answer):
    """An output whose elements follow the JSON as bytes."""

    name: str
    datatype: str
    shape: list[int]
    parameters: BinaryParameters


class InferResponse(Answer):
    """The answer to a request to infer."""

    model_name: str
    model_version: str
    id: str = Field(description="The request's; without one the answer's X-Request-Id.")
    outputs: list[Annotated[OutputTensor | BinaryTensor, Field(union_mode="left_to_right")]]


class OipError(Answer):
    """An error of the protocol."""

    error: str = Field(description="What is wrong, and what to do about it.")


def count_members(body: InferRequest) -> int:
    """The number of members in all JSON objects that `body` was parsed from, if it has no unknown ones."""
    owners: list[InferRequest | InputTensor | RequestedOutput] = [body, *body.inputs, *body.outputs]
    return sum(len(each.model_fields_set) + len(each.parameters.model_fields_set) for each in owners)
