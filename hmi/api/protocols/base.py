"""What a wire protocol of inference is: calls that decode to asks and encode results, and a shape of errors.

A protocol knows neither the web server nor the engine. `hmi.api.handlers.infer` serves it. A further protocol
is a folder beside `native` with a `Dialect`, and a `routes_of` of it in the route table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hmi.api.asks import Ask, AskResult


@dataclass(frozen=True)
class Endpoint:
    """One call of a protocol. It is a POST with a JSON body, which asks models."""

    path: str
    """May hold `{model}`."""
    summary: str
    """One sentence for the OpenAPI document."""
    body: Any
    """The type of the body: it is checked against this before `decode` sees it, and documented by it."""
    answer: Any
    """The type of what `encode` returns: pydantic models, or a list of them."""
    decode: Callable[[Any, Mapping[str, str]], list[Ask]]
    """The body and the parameters of the path to asks. It is quick: inputs may be made as they are read."""
    encode: Callable[[Sequence[AskResult]], Any]
    """The results of these asks, in their order, to the answer. Large ones are encoded in a thread."""
    inputs_field: str
    """The field that an error names if there are too many inputs."""
    count_members: Callable[[Any], int] | None = None
    """The number of members of JSON objects that a body was parsed from. With it, a large body need not be
    parsed a second time to find out whether it gives a name twice; None always parses it again."""


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
