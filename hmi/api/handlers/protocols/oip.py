"""The Open Inference Protocol's calls over HTTP, except those that infer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hmi.api.handlers.protocols.open_inference import Repository, server_metadata
from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.route import Handler
from hmi.api.in_thread import OFF_LOOP_ROWS
from hmi.api.protocols.oip.described import (
    IndexRequest,
    LoadRequest,
    ModelConfig,
    ModelIndex,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    ServerLive,
    ServerMetadata,
    ServerReady,
)


async def about_server(call: RouteCall) -> Reply:
    return Reply(ServerMetadata(**server_metadata()))


async def live(call: RouteCall) -> Reply:
    return Reply(ServerLive())


async def ready(call: RouteCall) -> Reply:
    call.services.lifecycle.check_ready()
    return Reply(ServerReady())


async def model_ready(call: RouteCall) -> Reply:
    await asyncio.to_thread(_repository(call).check_model_ready, *_model_and_version(call))
    return Reply(ModelReady(name=call.path["model"]))


def show_handler(kind: type[ModelMetadata | ModelConfig], what: Callable[..., dict[str, Any]]) -> Handler:
    """A handler that shows a model. what: a method of `Repository`, whose result `kind` documents."""

    async def show(call: RouteCall) -> Reply:
        found = await asyncio.to_thread(what, _repository(call), *_model_and_version(call))
        return Reply(kind(**found))

    return show


about_model = show_handler(ModelMetadata, Repository.metadata)
config = show_handler(ModelConfig, Repository.config)


async def statistics(call: RouteCall) -> Reply:
    """Answer what a model did; without a model in the path, all models that the caller reaches."""
    named = _model_and_version(call) if "model" in call.path else ()
    found = ModelStatistics(**await asyncio.to_thread(_repository(call).statistics, *named))
    return Reply(found, large=len(found.model_stats) > OFF_LOOP_ROWS)


async def index(call: RouteCall) -> Reply:
    body: IndexRequest = call.body
    found = await asyncio.to_thread(_repository(call).index, ready=body.ready)
    return Reply([ModelIndex.model_validate(entry) for entry in found], large=len(found) > OFF_LOOP_ROWS)


async def load(call: RouteCall) -> Reply:
    body: LoadRequest = call.body
    await asyncio.to_thread(_repository(call).load, call.path["model"], body.parameters)
    return Reply(ModelReady(name=call.path["model"]))


async def unload(call: RouteCall) -> Reply:
    await asyncio.to_thread(_repository(call).unload, call.path["model"])
    raise AssertionError("unload always refuses")


def _repository(call: RouteCall) -> Repository:
    return Repository(call.services, call.caller)


def _model_and_version(call: RouteCall) -> tuple[str, str]:
    """The model and the version in the path."""
    return call.path["model"], call.path.get("version", "")
