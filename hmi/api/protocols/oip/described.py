"""The JSON bodies of the protocol's calls about the server and its models."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hmi.api.protocols.base import JSON, UNNAMED, BodyReader, RawBody, Where
from hmi.api.protocols.oip.schemas import Open
from hmi.api.schemas.shared import Answer


class ServerMetadata(Answer):
    """The server's name, version and extensions."""

    name: str
    version: str
    extensions: list[str]


class ServerLive(Answer):
    live: Literal[True] = True


class ServerReady(Answer):
    ready: Literal[True] = True


class ModelReady(Answer):
    name: str
    ready: Literal[True] = True


class TensorMetadata(Answer):
    """An input or output of a model."""

    name: str
    datatype: str
    shape: list[int] = Field(description="-1 stands for any length.")


class ModelMetadata(Answer):
    """The inputs and outputs of a model."""

    name: str
    versions: list[str] = Field(description="The version that answers.")
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelConfig(Answer):
    """A model's configuration in Triton's form."""

    name: str
    platform: str
    backend: str
    version_policy: dict[str, Any]
    max_batch_size: int = Field(description="0: the first number of each shape is the number of rows.")
    input: list[dict[str, Any]]
    output: list[dict[str, Any]]
    parameters: dict[str, dict[str, str]] = Field(description="`task`, `labels` (JSON), `domain`, `root`.")


class StatisticDuration(Answer):
    count: int
    ns: int


class ModelStatistic(Answer):
    """The calls that a model's version answered since the server started."""

    name: str
    version: str
    last_inference: int = Field(description="Milliseconds since 1970; 0: none.")
    inference_count: int = Field(description="Inputs.")
    execution_count: int = Field(description="Calls.")
    inference_stats: dict[str, StatisticDuration]
    batch_stats: list[Any] = Field(description="Empty: batches hold texts of several models.")


class ModelStatistics(Answer):
    model_stats: list[ModelStatistic]


class IndexRequest(Open):
    ready: bool = Field(default=False, description="List only versions that answer.")


class ModelIndex(Answer):
    """A version of a model."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class LoadRequest(Open):
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Refused unless it is empty: a model's files cannot be replaced."
    )


class UnloadRequest(Open):
    parameters: dict[str, Any] = Field(default_factory=dict, description="Ignored.")


def optional(model: type[Open]) -> RawBody:
    """A JSON body that clients may leave out."""

    def read(data: bytes, where: Where, reader: BodyReader) -> Any:
        return reader.json(model, data) if data.strip() else model()

    return RawBody((JSON, UNNAMED), read)
