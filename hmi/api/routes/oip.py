"""The part of the route table that speaks the Open Inference Protocol."""

from __future__ import annotations

from functools import partial

from hmi.api.handlers.protocols import infer, oip, write
from hmi.api.http.route import Route
from hmi.api.protocols.oip import OIP
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
    UnloadRequest,
    optional,
)
from hmi.api.protocols.oip.generate import WRITING

_Route = partial(Route, dialect=OIP)
MODEL, VERSION = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
REPOSITORY = "/v2/repository"

SERVER = (
    _Route(
        "GET",
        "/v2",
        oip.about_server,
        "The server's name and extensions.",
        ServerMetadata,
        while_draining=True,
    ),
    _Route(
        "GET", "/v2/health/live", oip.live, "Whether the process is alive.", ServerLive, while_draining=True
    ),
    _Route(
        "GET",
        "/v2/health/ready",
        oip.ready,
        "Whether the server takes requests.",
        ServerReady,
        while_draining=True,
        kinds=("unavailable",),
    ),
)
ABOUT_MODELS = tuple(
    _Route("GET", path + more, handler, f"{summary}{which}.", answer, "infer", kinds=kinds)
    for path, which in ((MODEL, ""), (VERSION, ", of the version that answers"))
    for more, handler, summary, answer, kinds in (
        ("", oip.about_model, "The inputs and outputs of a model", ModelMetadata, ("conflict",)),
        ("/ready", oip.model_ready, "Whether a model answers", ModelReady, ("conflict", "unavailable")),
        ("/config", oip.config, "The configuration of a model, in Triton's form", ModelConfig, ("conflict",)),
        ("/stats", oip.statistics, "What a model answered", ModelStatistics, ("conflict",)),
    )
)
STATISTICS = (
    _Route("GET", "/v2/models/stats", oip.statistics, "What all models answered.", ModelStatistics, "infer"),
)
MODELS = (
    _Route(
        "POST",
        f"{REPOSITORY}/index",
        oip.index,
        "List the versions of the models that the key reaches.",
        list[ModelIndex],
        "infer",
        body=IndexRequest,
        raw=optional(IndexRequest),
        kinds=("too_large",),
    ),
    _Route(
        "POST",
        f"{REPOSITORY}/models/{{model}}/load",
        oip.load,
        "Check that a model can be asked; it is loaded when it is.",
        ModelReady,
        "infer",
        body=LoadRequest,
        raw=optional(LoadRequest),
        kinds=("conflict",),
    ),
    _Route(
        "POST",
        f"{REPOSITORY}/models/{{model}}/unload",
        oip.unload,
        "Refused: models leave memory by themselves.",
        None,
        "infer",
        body=UnloadRequest,
        raw=optional(UnloadRequest),
        kinds=("conflict",),
    ),
)
ASKING = (*infer.routes_of(OIP), *write.routes_of(OIP, WRITING))
OIP_ROUTES = (*SERVER, *STATISTICS, *ABOUT_MODELS, *ASKING, *MODELS)
