"""OpenAI's calls about models."""

from __future__ import annotations

import asyncio

from hmi.api.http.call import Reply, RouteCall
from hmi.api.in_thread import OFF_LOOP_ROWS
from hmi.api.protocols.openai.models import Deleted, OpenAIModel, OpenAIModelList, OpenAIModelQuery, model_of
from hmi.api.protocols.openai.names import model_named
from hmi.core import ModelId


async def list_models(call: RouteCall) -> Reply:
    """List the models that the key reaches, by name."""
    query: OpenAIModelQuery = call.query

    def page() -> OpenAIModelList:
        found = call.services.manager.models(call.caller.tenant, query.after, query.limit + 1)
        data = [model_of(record) for record in found[: query.limit]]
        return OpenAIModelList(data=data, has_more=len(found) > query.limit)

    listed = await asyncio.to_thread(page)
    return Reply(listed, large=len(listed.data) > OFF_LOOP_ROWS)


async def show_model(call: RouteCall) -> Reply:
    model = _model(call)

    def shown() -> OpenAIModel:
        return model_of(call.services.manager.registry.model(model))

    return Reply(await asyncio.to_thread(shown))


async def delete_model(call: RouteCall) -> Reply:
    model = _model(call)
    await asyncio.to_thread(call.services.manager.delete_model, str(model))
    return Reply(Deleted(id=str(model), object="model"))


def _model(call: RouteCall) -> ModelId:
    """The model in the path. Raises NotFound, also for a name that no model here can have."""
    model = model_named(call.path["id"])
    assert call.where.models is not None
    call.where.models.live(model)
    return model
