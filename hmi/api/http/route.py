"""The types of a route, a call and a reply. `dispatch` serves the route table and `openapi` documents it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import StringConstraints

from hmi.api.access.caller import Caller
from hmi.api.http.services import Services
from hmi.api.infer.own_models import OwnModels
from hmi.api.protocols.base import JSON, Dialect, RawBody, Where
from hmi.api.protocols.native import NATIVE
from hmi.api.schemas.shared import DomainName, ModelName, Name, Query, VersionNumber
from hmi.core import ID_PATTERN, DomainId, ModelId, Scope, check_name
from hmi.errors import NotFound

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web


@dataclass
class RouteCall:
    """One checked request, as a handler gets it. `body` and `query` are instances of the route's models.

    The command line makes the same calls without HTTP (`hmi.api.process.local`); `request` is then None.
    """

    services: Services
    caller: Caller
    path: Mapping[str, str]
    """Parameters in the path."""
    arrived: float
    """When the request arrived, in seconds of `time.monotonic()`."""
    request: web.Request | None = None
    body: Any = None
    query: Any = None
    files: Mapping[str, Path] = field(default_factory=dict)
    file_names: Mapping[str, str] = field(default_factory=dict)
    """The caller's names of uploaded files, by part name. They are shown, and never become paths."""
    size: int = 0
    """Bytes of the JSON body; 0 for a multipart body or a call without HTTP."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The X-Request-Id of the answer."""
    noted: dict[str, Any] = field(default_factory=dict)
    """Ids and numbers that the audit log is to have beside the names in path and body."""

    @cached_property
    def where(self) -> Where:
        """The request without its body, as protocols see it."""
        services = self.services
        models = OwnModels(services.manager.registry, self.caller, services.settings.default_model)
        if self.request is None:
            return Where(self.path, models=models)
        headers = {name.lower(): value for name, value in self.request.headers.items()}
        return Where(self.path, headers, dict(self.request.query), models)

    def holder(self) -> str | None:
        """The tenant whose share of the server the request uses: the model's if the path names one, else
        the caller's. None is the administrator.

        Raises NotFound if the caller does not reach the model.
        """
        if "model" in self.path:
            return self.model().tenant
        return self.caller.tenant

    def model(self) -> ModelId:
        """The model in the path. Raises InvalidInput, and NotFound if the caller does not reach its
        tenant."""
        model = ModelId.parse(self.path["model"])
        self.caller.must_reach(model.tenant, f"model {str(model)!r}")
        return model

    def tenant(self) -> str:
        """The tenant in the path. Raises InvalidInput, and NotFound if the caller does not reach it."""
        tenant = check_name(self.path["tenant"], "tenant")
        self.caller.must_reach(tenant, f"tenant {tenant!r}")
        return tenant

    def domain(self) -> DomainId:
        return DomainId.parse(self.path["domain"])

    def root(self) -> str:
        return check_name(self.path["root"], "root")

    def opaque(self, name: str) -> str:
        """The id of a job or key in the path. Raises NotFound for an id that no job or key can have."""
        value = self.path[name]
        if not re.fullmatch(ID_PATTERN, value):
            raise NotFound(f"there is no {name} {value[:80]!r}: check the id")
        return value


@dataclass(frozen=True)
class Reply:
    """An answer: JSON, unless its body is a `Raw`."""

    body: Any
    """A pydantic model, a list of them, or a `Raw`."""
    location: str | None = None
    """The path of the job that the call started."""
    keep: dict[str, Any] | None = None
    """What an Idempotency-Key stores instead of a body that must not be stored. `Route.again` gets it
    back."""
    large: bool = False
    """Render the body in a thread instead of on the event loop."""


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
    """The media type of the answer's other form, if the handler may reply with a `Raw`."""
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
