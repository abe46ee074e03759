"""The interface of a wire protocol of inference: calls that decode to asks and encode results, and its
errors.

A protocol knows neither the web server nor the engine; `hmi.api.handlers.protocols.infer` serves it. To add
one, write a folder beside `native` with a `Dialect`, and add `infer.routes_of` that dialect to the route
table. Calls of a protocol that ask no model, such as a model's metadata, are ordinary routes with `dialect=`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hmi.api.protocols.asks import Ask, AskResult
from hmi.core import ModelId, ModelRecord, ModelVersion

JSON = "application/json"
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
"""The media types of streams: server-sent events, and JSON values with a line break after each."""
UNNAMED = "application/octet-stream"
"""The media type of a body without a Content-Type (RFC 9110, section 8.3)."""


class ReachableModels(Protocol):
    """The models that a caller reaches. Each look-up takes microseconds."""

    def default(self) -> ModelId:
        """The model of a call that names none. Raises InvalidInput if there is none."""
        ...

    def record(self, model: ModelId) -> ModelRecord:
        """A model with its versions. Raises NotFound, also if the caller does not reach it."""
        ...

    def live(self, model: ModelId) -> ModelVersion:
        """The version of a model that answers. Raises NotFound, also if the caller does not reach it."""
        ...


@dataclass(frozen=True)
class Where:
    """A request without its body."""

    path: Mapping[str, str] = field(default_factory=dict)
    """The parameters in the path."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers, by name in lower case."""
    query: Mapping[str, str] = field(default_factory=dict)
    models: ReachableModels | None = None
    """The models that the caller may know of. None while a body is read, and in tests."""


class BodyReader(Protocol):
    """Keeps the parts of a raw body under the limits on JSON: on the number of values and on memory."""

    def json(self, model: Any, data: bytes, count_members: Callable[[Any], int] | None = None) -> Any:
        """Parse JSON bytes to an instance of the pydantic type `model`. `count_members`: see `Endpoint`.

        Raises Malformed, TooLarge, InvalidInput, QuotaExceeded, Unavailable.
        """
        ...

    def hold(self, values: int) -> None:
        """Count `values` values that are no JSON, such as texts, before they are created.

        Raises TooLarge, QuotaExceeded, Unavailable.
        """
        ...


@dataclass(frozen=True)
class RawBody:
    """A body that is not simply JSON: other media types, or JSON with bytes after it.

    It is read through the same limits on bytes and memory as a JSON body.
    """

    media: tuple[str, ...]
    """The media types that are accepted. UNNAMED accepts a body without a Content-Type, too."""
    read: Callable[[bytes, Where, BodyReader], Any]
    """Turns the decompressed bytes into the body that `decode` or a handler gets. A large body is read in a
    thread, so this function must not touch shared state."""


@dataclass(frozen=True)
class Raw:
    """An answer as bytes, instead of a pydantic model."""

    body: bytes
    media: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    """One call of a protocol: a POST with a body that asks one model or several."""

    path: str
    """The path of the URL. It may have parameters, such as `{model}`."""
    summary: str
    """One sentence for the OpenAPI document."""
    body: Any
    """The pydantic type of a JSON body. It checks the body before `decode`, and documents it."""
    answer: Any
    """The type of a JSON answer: a pydantic model or a list of them. None: it is always a `Raw`."""
    decode: Callable[[Any, Where], list[Ask]]
    """Turns the body into asks. It runs on the event loop, so it must be quick. `Ask.inputs` should create
    each
    input only when it is iterated."""
    encode: Callable[[Sequence[AskResult], Any, Where], Any]
    """Turns the results, in the order of the asks, into an instance of `answer` or a `Raw`. It also gets the
    arguments of `decode`. Large results are encoded in a thread."""
    inputs_field: str
    """The field that an error names if there are too many inputs."""
    count_members: Callable[[Any], int] | None = None
    """The number of members of JSON objects that a body was parsed from. With it, a large body need not
    be parsed a second time to find out whether it gives a name twice; None always parses it again."""
    raw: RawBody | None = None
    """The reader of a body that is not simply JSON. `body` then only documents its JSON form."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that choose what the call does, each with its description."""
    raw_answer: str | None = None
    """The media type of the answer's other form, if `encode` may return a `Raw`."""


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

    @property
    def prefixes(self) -> Sequence[str]:
        """The beginnings of paths that belong to this protocol, such as `/v2`. Errors about unknown paths
        there have its shape, too. A prefix ends where a part of the path ends: `/v2` does not include
        `/v20`."""
        ...

    @property
    def statuses(self) -> Mapping[str, int]:
        """The HTTP statuses that differ from those of `hmi.api.protocols.errors`, by the error's kind."""
        ...

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """The JSON body of an error, of the type `error`."""
        ...


def is_below(path: str, prefix: str) -> bool:
    """Return whether a URL's `path` is `prefix` or lies below it."""
    return path == prefix or path.startswith(f"{prefix}/")
