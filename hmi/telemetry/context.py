"""The request that the current task works for. Log lines and spans take their fields from it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hmi.telemetry.tracing import Trace


@dataclass(slots=True)
class RequestContext:
    """One request, as far as it is known. Fields are filled in while the request is read."""

    request_id: str
    trace_id: str = ""
    """32 hexadecimal digits; "" if the request belongs to no trace."""
    tenant: str | None = None
    model: str | None = None
    key_id: str | None = None
    """The id of the key, which is not secret."""
    trace: Trace | None = None
    """The request's spans; None if the request is not traced."""


CURRENT: ContextVar[RequestContext | None] = ContextVar("hmi_request", default=None)


def note_caller(*, tenant: str | None = None, model: str | None = None, key_id: str | None = None) -> None:
    """Add what has become known of the current request. Outside a request it does nothing."""
    current = CURRENT.get()
    if current is not None:
        current.tenant = tenant or current.tenant
        current.model = model or current.model
        current.key_id = key_id or current.key_id
