"""The type of a route. `dispatch` serves the table of routes and `openapi` documents it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from hmi.api.caller import Caller
from hmi.api.protocols.base import Dialect
from hmi.api.protocols.native import NATIVE
from hmi.api.schemas import DomainName, ModelName, Name, Query
from hmi.api.services import Services
from hmi.core import ID_PATTERN, DomainId, ModelId, Scope, check_name
from hmi.errors import NotFound


@dataclass
class Call:
    """One request, checked: what a handler gets. `body` and `query` are instances of the route's models.

    The command line makes the same calls without HTTP (`hmi.api.local`): then there is no `request`.
    """

    services: Services
    caller: Caller
    path: Mapping[str, str]
    """Parameters in the path."""
    arrived: float
    """Monotonic seconds."""
    request: web.Request | None = None
    body: Any = None
    query: Any = None
    files: Mapping[str, Path] = field(default_factory=dict)
    size: int = 0
    """Bytes of the JSON body; 0 where it came without HTTP."""

    def holder(self) -> str | None:
        """The tenant whose share of the server the request uses: the caller's, or for an administrator the
        model's.

        Raises NotFound if the caller may not reach the model in the path.
        """
        if "model" in self.path:
            return self.model().tenant
        return self.caller.tenant

    def model(self) -> ModelId:
        """The model in the path; raises NotFound where the caller does not reach its tenant."""
        model = ModelId.parse(self.path["model"])
        self.caller.must_reach(model.tenant, f"model {str(model)!r}")
        return model

    def tenant(self) -> str:
        """The tenant in the path; raises NotFound where the caller does not reach it."""
        tenant = check_name(self.path["tenant"], "tenant")
        self.caller.must_reach(tenant, f"tenant {tenant!r}")
        return tenant

    def domain(self) -> DomainId:
        return DomainId.parse(self.path["domain"])

    def root(self) -> str:
        return check_name(self.path["root"], "root")

    def opaque(self, name: str) -> str:
        """The id of a job or key in the path; raises NotFound for one that no job or key can have."""
        value = self.path[name]
        if not re.fullmatch(ID_PATTERN, value):
            raise NotFound(f"there is no {name} {value[:80]!r}: check the id")
        return value


@dataclass(frozen=True)
class Reply:
    """A JSON answer. `location` is where to follow a job; `keep` replaces the body that an
    Idempotency-Key keeps, where the body itself must not be stored; `large`: render it off the loop."""

    body: Any
    location: str | None = None
    keep: dict[str, Any] | None = None
    large: bool = False


Handler = Callable[[Call], Awaitable[Reply | web.StreamResponse]]
Again = Callable[[Call, dict[str, Any]], Awaitable[Reply]]


@dataclass(frozen=True)
class Route:
    """One call. `answer` is the type of the JSON body; `media` other than JSON has none.

    `files` are the multipart parts beside `spec`, True where required. `scope` None needs no key.
    `creates`: Idempotency-Key is honoured; `again` then answers a repetition from what was kept.
    `cancellable`: the work is dropped when the client goes away.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any = None
    scope: Scope | None = None
    status: int = 200
    body: Any = None
    files: Mapping[str, bool] = field(default_factory=dict)
    query: type[Query] | None = None
    media: str = "application/json"
    creates: bool = False
    again: Again | None = None
    cancellable: bool = False
    draining: bool = False
    """Answered while the server drains, too."""
    tagged: bool = False
    """The answer has an ETag, and is 304 without a body to a client that has it."""
    dialect: Dialect = NATIVE
    """The protocol whose shape its errors have."""
    inputs_field: str = "body"
    """The field that an error names if the body has too many values."""
    count_members: Callable[[Any], int] | None = None
    """See `Endpoint.count_members`."""
    kinds: tuple[str, ...] = ()
    """Errors of its own, beside those that its shape implies."""

    @property
    def changes(self) -> bool:
        """Whether it creates, changes or deletes something: a tenant may do so often, and not without end."""
        return self.method != "GET" and self.scope in ("manage", "admin")

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+)}", self.path))


PARAMETERS: dict[str, Any] = {"model": ModelName, "tenant": Name, "domain": DomainName, "root": Name}
"""Types of path parameters; any other is an opaque id."""
OPAQUE_PATTERN = f"^{ID_PATTERN}$"
