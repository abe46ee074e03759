"""The interface of a wire protocol of inference: calls that decode to asks and encode results, and its
errors.

A protocol knows neither the web server nor the engine; `hmi.api.handlers.infer` serves it. To add one,
write a folder beside `native` with a `Dialect`, and add `infer.routes_of` that dialect to the route table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hmi.api.asks import Ask, AskResult


@dataclass(frozen=True)
class Endpoint:
    """One call of a protocol: a POST with a JSON body that asks one model or several."""

    path: str
    """The path of the URL. It may contain `{model}`."""
    summary: str
    """One sentence for the OpenAPI document."""
    body: Any
    """The pydantic type of the body. It checks the body before `decode`, and documents it."""
    answer: Any
    """The type that `encode` returns: a pydantic model or a list of pydantic models."""
    decode: Callable[[Any, Mapping[str, str]], list[Ask]]
    """From the body and the path's parameters to asks. It runs on the event loop, so it must be quick.
    `Ask.inputs` should create each input only when it is iterated."""
    encode: Callable[[Sequence[AskResult]], Any]
    """From the results, in the order of the asks, to the answer. Large results are encoded in a thread."""
    inputs_field: str
    """The field that an error names if there are too many inputs."""
    count_members: Callable[[Any], int] | None = None
    """The number of members of JSON objects that a body was parsed from. With it, a large body need not
    be parsed a second time to find out whether it gives a name twice; None always parses it again."""


@dataclass(frozen=True)
class Failure:
    """An error as a client may see it."""

    kind: str
    message: str
    details: Mapping[str, Any]
    request_id: str


class Dialect(Protocol):
    """One wire protocol."""

    @property
    def endpoints(self) -> Sequence[Endpoint]: ...

    @property
    def error(self) -> Any:
        """The type of an error's JSON body, for the OpenAPI document: a pydantic model."""
        ...

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """The JSON body of an error, of the type `error`. `hmi.api.errors` chooses the status."""
        ...
