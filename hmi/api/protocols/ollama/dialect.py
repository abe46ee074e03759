"""Ollama's protocol: the shape of its errors, and its names of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.api.protocols.base import Endpoint, Failure, Where
from hmi.api.protocols.ollama.schemas import OllamaError
from hmi.api.protocols.openai.names import model_named
from hmi.api.protocols.writing import check_writes
from hmi.core import ModelId


def model_of(name: str, where: Where) -> ModelId:
    """The model of this name. Raises NotFound, and InvalidInput if it does not write."""
    model = model_named(name.removesuffix(":latest"), "GET /api/tags")
    check_writes(
        where, model, lambda task: "POST /v1/embeddings" if task == "embedding" else f"POST /infer/{model}"
    )
    return model


@dataclass(frozen=True)
class Ollama:
    """Ollama's `Dialect`."""

    endpoints: Sequence[Endpoint] = ()
    error: Any = OllamaError
    prefixes: Sequence[str] = ("/api",)
    statuses: Mapping[str, int] = field(default_factory=lambda: {"invalid_input": 400})

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """An `OllamaError` as JSON values."""
        return {"error": failure.message}


OLLAMA = Ollama()
