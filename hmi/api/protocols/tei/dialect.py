"""The protocol of text-embeddings-inference: its calls and the shape of its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.api.protocols.base import Endpoint, Failure
from hmi.api.protocols.tei import calls, schemas

_TYPES = {
    "unavailable": "Unhealthy",
    "quota_exceeded": "Overloaded",
    "internal": "Backend",
    "damaged": "Backend",
    "deadline_exceeded": "Backend",
}


@dataclass(frozen=True)
class Tei:
    """The `Dialect` of text-embeddings-inference."""

    endpoints: Sequence[Endpoint] = (
        Endpoint(
            "/embed",
            "Embed texts (text-embeddings-inference).",
            schemas.EmbedBody,
            schemas.Embeddings,
            calls.decode_embed,
            calls.encode_embed,
            "inputs",
            headers=calls.HEADERS,
        ),
        Endpoint(
            "/predict",
            "Label texts or pairs of texts (text-embeddings-inference).",
            schemas.PredictBody,
            schemas.Predictions,
            calls.decode_predict,
            calls.encode_predict,
            "inputs",
            headers=calls.HEADERS,
        ),
        Endpoint(
            "/rerank",
            "Order texts by their similarity to a query (text-embeddings-inference).",
            schemas.RerankBody,
            schemas.Ranks,
            calls.decode_rerank,
            calls.encode_rerank,
            "texts",
            headers=calls.HEADERS,
        ),
        Endpoint(
            "/similarity",
            "Compare sentences with one sentence (text-embeddings-inference).",
            schemas.SimilarityBody,
            schemas.Similarities,
            calls.decode_similarity,
            calls.encode_similarity,
            "inputs.sentences",
            headers=calls.HEADERS,
        ),
    )
    error: Any = schemas.TeiError
    prefixes: Sequence[str] = ("/embed", "/predict", "/rerank", "/similarity", "/info", "/health")
    statuses: Mapping[str, int] = field(default_factory=dict)

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """A `TeiError` as JSON values."""
        return {"error": failure.message, "error_type": _TYPES.get(failure.kind, "Validation")}


TEI = Tei()
