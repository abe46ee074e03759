"""The calls of text-embeddings-inference that infer nothing: /info and /health."""

from __future__ import annotations

from typing import Any

import hmi
from hmi.api.edge.capacity import most_connections
from hmi.api.handlers import health
from hmi.api.handlers.protocols import infer
from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.route import Route
from hmi.api.protocols.tei import TEI
from hmi.api.protocols.tei.calls import HEADERS, model_of
from hmi.api.protocols.tei.schemas import Info
from hmi.api.schemas.shared import Health
from hmi.core import ModelVersion


async def info(call: RouteCall) -> Reply:
    """Show the model that a call with the same headers would ask."""
    where, settings = call.where, call.services.settings
    assert where.models is not None
    model = model_of(where)
    live = where.models.live(model)
    return Reply(
        Info(
            model_id=str(model),
            model_sha=live.artefact,
            model_dtype=settings.precision,
            model_type=_kind(live),
            max_concurrent_requests=most_connections(settings),
            max_input_length=live.max_length,
            max_batch_tokens=settings.max_batch_tokens,
            max_batch_requests=None,
            max_client_batch_size=settings.max_inputs,
            tokenization_workers=1,
            version=hmi.__version__,
        )
    )


def _kind(live: ModelVersion) -> dict[str, Any]:
    """The model's kind, in the words of text-embeddings-inference."""
    if live.task == "embedding":
        return {"embedding": {"pooling": live.rules.pooling}}
    names = {str(i): label for i, label in enumerate(live.labels)}
    return {"classifier": {"id2label": names, "label2id": {label: int(i) for i, label in names.items()}}}


ROUTES = (
    *infer.routes_of(TEI),
    Route(
        "GET",
        "/info",
        info,
        "The model that a call would ask (text-embeddings-inference).",
        Info,
        "infer",
        headers=HEADERS,
        dialect=TEI,
        kinds=("not_found", "invalid_input", "damaged"),
    ),
    Route(
        "GET",
        "/health",
        health.readyz,
        "Whether the server takes requests (text-embeddings-inference).",
        Health,
        while_draining=True,
        dialect=TEI,
        kinds=("unavailable",),
    ),
)
