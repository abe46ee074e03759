"""The Open Inference Protocol's calls over HTTP, except those that infer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hmi.api.loop import OFF_LOOP_ROWS
from hmi.api.open_inference import Repository, server_metadata
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
from hmi.api.route import Call, Handler, Reply


async def about_server(call: Call) -> Reply:
    return Reply(ServerMetadata(**server_metadata()))


async def live(call: Call) -> Reply:
    return Reply(ServerLive())


async def ready(call: Call) -> Reply:
    call.services.check_ready()
    return Reply(ServerReady())


async def model_ready(call: Call) -> Reply:
    await asyncio.to_thread(_repository(call).check_model_ready, *_named(call))
    return Reply(ModelReady(name=call.path["model"]))


def shown(kind: type[ModelMetadata | ModelConfig], what: Callable[..., dict[str, Any]]) -> Handler:
    """A handler that shows a model. what: a method of `Repository`, whose result `kind` documents."""

    async def show(call: Call) -> Reply:
        found = await asyncio.to_thread(what, _repository(call), *_named(call))
        return Reply(kind(**found))

    return show


about_model = shown(ModelMetadata, Repository.metadata)
config = shown(ModelConfig, Repository.config)


async def statistics(call: Call) -> Reply:
    """Answer what a model did; without a model in the path, all models that the caller reaches."""
    named = _named(call) if "model" in call.path else ()
    found = ModelStatistics(**await asyncio.to_thread(_repository(call).statistics, *named))
    return Reply(found, large=len(found.model_stats) > OFF_LOOP_ROWS)


async def index(call: Call) -> Reply:
    body: IndexRequest = call.body
    found = await asyncio.to_thread(_repository(call).index, ready=body.ready)
    return Reply([ModelIndex.model_validate(entry) for entry in found], large=len(found) > OFF_LOOP_ROWS)


async def load(call: Call) -> Reply:
    body: LoadRequest = call.body
    await asyncio.to_thread(_repository(call).load, call.path["model"], body.parameters)
    return Reply(ModelReady(name=call.path["model"]))


async def unload(call: Call) -> Reply:
    await asyncio.to_thread(_repository(call).unload, call.path["model"])
    raise AssertionError("unload always refuses")


async def generate(call: Call) -> Reply:
    await asyncio.to_thread(_repository(call).generate, *_named(call))
    raise AssertionError("generate always refuses")


def _repository(call: Call) -> Repository:
    return Repository(call.services, call.caller)


def _named(call: Call) -> tuple[str, str]:
    """The model and the version in the path."""
    return call.path["model"], call.path.get("version", "")
