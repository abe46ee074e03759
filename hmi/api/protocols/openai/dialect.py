"""OpenAI's protocol: the call that infers, and the shape of errors below /v1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.api.protocols.base import Endpoint, Failure
from hmi.api.protocols.openai import embeddings
from hmi.api.protocols.openai.errors import STATUSES, OpenAIError, encode_error


@dataclass(frozen=True)
class OpenAI:
    """OpenAI's `Dialect`."""

    endpoints: Sequence[Endpoint] = (
        Endpoint(
            "/v1/embeddings",
            "Embed texts (OpenAI).",
            embeddings.EmbeddingsBody,
            embeddings.EmbeddingList,
            embeddings.decode,
            embeddings.encode,
            "input",
            embeddings.count_members,
        ),
    )
    error: Any = OpenAIError
    prefixes: Sequence[str] = ("/v1",)
    statuses: Mapping[str, int] = field(default_factory=lambda: STATUSES)

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """An `OpenAIError` as JSON values."""
        return encode_error(failure)


OPENAI = OpenAI()
