"""The call of huggingface_hub's InferenceClient, whose answer depends on the model's task."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hmi.api.handlers.protocols import infer, write
from hmi.api.http.call import Reply, RouteCall
from hmi.api.protocols.base import EVENTS
from hmi.api.protocols.huggingface import HUGGINGFACE
from hmi.api.protocols.huggingface.writing import WRITING, TextGeneration

if TYPE_CHECKING:
    from aiohttp import web

(_INFER,) = infer.routes_of(HUGGINGFACE)
_write = write.handler_of(TextGeneration)


async def _ask(call: RouteCall) -> Reply | web.StreamResponse:
    """Let a model that writes do so, and others infer."""
    assert call.where.models is not None
    writes = call.where.models.live(call.model()).task == "generation"
    return await (_write if writes else _INFER.handler)(call)


ASK = replace(_INFER, handler=_ask, raw_answer=EVENTS)
ROUTES = (ASK, *write.routes_of(HUGGINGFACE, WRITING))
