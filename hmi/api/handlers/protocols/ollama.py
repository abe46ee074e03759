"""Ollama's calls about models, and its version."""

from __future__ import annotations

import asyncio
from functools import partial

import hmi
from hmi.api.handlers.protocols import write
from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.route import Route
from hmi.api.protocols.ollama.dialect import OLLAMA, model_of
from hmi.api.protocols.ollama.schemas import (
    OllamaDetails,
    OllamaListed,
    OllamaModels,
    OllamaShowBody,
    OllamaShown,
    OllamaVersion,
)
from hmi.api.protocols.ollama.writing import WRITING
from hmi.core import ModelRecord


async def tags(call: RouteCall) -> Reply:
    """List the models that write and that the key reaches, by name. Ollama has no pages."""

    def found() -> OllamaModels:
        models = call.services.manager.models(call.caller.tenant)
        return OllamaModels(models=[_listed(record) for record in models if record.live.task == "generation"])

    return Reply(await asyncio.to_thread(found), large=True)


async def show(call: RouteCall) -> Reply:
    assert call.where.models is not None
    live = call.where.models.live(model_of(call.body.model, call.where))
    info: dict[str, str | int] = {"general.architecture": "hmi", "hmi.version": live.version}
    details = OllamaDetails(parent_model=live.root, family=live.domain)
    return Reply(
        OllamaShown(modified_at=live.created, details=details, model_info=info, capabilities=["completion"])
    )


async def version(call: RouteCall) -> Reply:
    return Reply(OllamaVersion(version=hmi.__version__))


def _listed(record: ModelRecord) -> OllamaListed:
    name, live = f"{record.tenant}.{record.name}", record.live
    details = OllamaDetails(parent_model=live.root, family=live.domain)
    return OllamaListed(
        name=name,
        model=name,
        modified_at=live.created,
        size=live.bytes,
        digest=live.artefact,
        details=details,
    )


_Route = partial(Route, dialect=OLLAMA)
ROUTES = (
    *write.routes_of(OLLAMA, WRITING),
    _Route("GET", "/api/tags", tags, "List the models that write (Ollama).", OllamaModels, "infer"),
    _Route(
        "POST",
        "/api/show",
        show,
        "A model that writes (Ollama).",
        OllamaShown,
        "infer",
        body=OllamaShowBody,
        kinds=("not_found",),
    ),
    _Route(
        "GET", "/api/version", version, "The server's version (Ollama).", OllamaVersion, while_draining=True
    ),
)
