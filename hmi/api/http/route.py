"""A row of the route table: a call of the server. `dispatch` serves the table and `openapi` documents it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import StringConstraints

from hmi.api.http.call import Reply, RouteCall
from hmi.api.protocols.base import JSON, Dialect, RawBody
from hmi.api.protocols.native import NATIVE
from hmi.api.schemas.shared import DomainName, ModelName, Name, Query, VersionNumber
from hmi.core import ID_PATTERN, Scope

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web


Handler: TypeAlias = "Callable[[RouteCall], Awaitable[Reply | web.StreamResponse]]"
Again = Callable[[RouteCall, dict[str, Any]], Awaitable[Reply]]


@dataclass(frozen=True)
class Instead:
    """A second call of one path, for clients that can only be given one address."""

    wanted: Callable[[Mapping[str, str]], bool]
    """Tells from a request's headers (names in any case) whether it is for the second call."""
    route: Route


@dataclass(frozen=True)
class Route:
    """One call of the server."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any = None
    """The type of the JSON answer; None if `media` is not JSON."""
    scope: Scope | None = None
    """The scope that the key must have; None: no key is needed."""
    status: int = 200
    """The status of success."""
    body: Any = None
    """The type of the JSON body; None: the call has no body."""
    raw: RawBody | None = None
    """The reader of a body that is not simply JSON. `body` then documents its JSON form."""
    raw_answer: str | None = None
    """The media type of the answer's other form, if the handler may reply with a `Raw` or a stream."""
    files: Mapping[str, bool] = field(default_factory=dict)
    """The multipart parts beside `spec`, and whether each is required."""
    form: bool = False
    """The body is always multipart, and each field of `body` is a part of its own."""
    query: type[Query] | None = None
    media: str = JSON
    """The media type of the answer."""
    reads: bool = False
    """The call changes nothing, although its method is not GET."""
    creates: bool = False
    """The call creates something, and honours Idempotency-Key."""
    again: Again | None = None
    """Answers a repeated request from the `Reply.keep` of the first."""
    cancellable: bool = False
    """The work is dropped when the client disconnects."""
    while_draining: bool = False
    """The call is answered while the server drains, too, and on guest connections."""
    here: bool = False
    """The call is about the server that it reaches, and is not passed on to another one."""
    etag: bool = False
    """The answer has an ETag. A client that already has this answer gets 304 without a body."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that choose what the call does, each with its description."""
    dialect: Dialect = NATIVE
    """The protocol that shapes the call's errors."""
    instead: Instead | None = None
    """Another call that the path stands for if a request's headers say so."""
    inputs_field: str = "body"
    """The field that an error names if the body has too many values."""
    count_members: Callable[[Any], int] | None = None
    """See `Endpoint.count_members`."""
    kinds: tuple[str, ...] = ()
    """Kinds of errors beside those that follow from the other fields; see `openapi.error_kinds`."""

    @property
    def changes(self) -> bool:
        """Whether the call creates, changes or deletes something, and so counts towards the quota of
        changes."""
        return self.method != "GET" and self.scope in ("manage", "admin") and not self.reads

    @property
    def asks_models(self) -> bool:
        """Whether the call asks models. If servers share a bucket, the tenant's own server answers it."""
        return self.scope == "infer" and self.cancellable

    @property
    def manages(self) -> bool:
        """Whether the call manages. If servers share a bucket, only the primary answers it."""
        return self.scope in ("manage", "admin") and not self.here

    @property
    def fields(self) -> tuple[str, ...]:
        """The multipart parts that hold the body: its fields in a form, else `spec`."""
        return tuple(self.body.model_fields) if self.form else ("spec",)

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+)}", self.path))


PARAMETERS: dict[str, Any] = {
    "model": ModelName,
    "id": ModelName,
    "tenant": Name,
    "domain": DomainName,
    "root": Name,
    "version": VersionNumber,
    "file": Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*\.[a-z]{2,4}$")],
}
"""Types of path parameters. A parameter of any other name is an opaque id."""
OPAQUE_PATTERN = f"^{ID_PATTERN}$"
