"""One call as a handler gets it, and what the handler answers."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmi.api.access.caller import Caller
from hmi.api.http.services import Services
from hmi.api.infer.own_models import OwnModels
from hmi.api.protocols.base import Where
from hmi.core import ID_PATTERN, DomainId, ModelId, check_name
from hmi.errors import NotFound

if TYPE_CHECKING:
    from aiohttp import web


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
    """Stored under an Idempotency-Key in place of a body that must not be stored. `Route.again` makes the
    answer to a repeated request from it."""
    large: bool = False
    """Render the body in a thread instead of on the event loop."""
