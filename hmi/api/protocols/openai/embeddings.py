"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from hmi.api.protocols.asks import Ask, AskResult
from hmi.api.protocols.base import Where
from hmi.api.protocols.inputs import inputs_of, one_or_many
from hmi.api.protocols.openai.names import model_named
from hmi.api.protocols.results import check_dimensions, live_of
from hmi.api.schemas.shared import Answer, Request

_WRONG = (
    "must be a text or a list of texts; tokens are not read, since those of another vocabulary mean nothing "
    "to this model: send the text (with LangChain, pass check_embedding_ctx_length=False to OpenAIEmbeddings)"
)


class EmbeddingsBody(Request):
    """A request for embeddings."""

    model: str = Field(max_length=200, description="tenant.model, a model of the task embedding.")
    input: one_or_many(_WRONG)  # type: ignore[valid-type]
    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="base64: of little-endian 32-bit floats."
    )
    dimensions: int | None = Field(
        default=None, ge=1, description="Only the model's own number: no fewer are trained for."
    )
    user: str | None = Field(default=None, description="Ignored.")


class EmbeddingItem(Answer):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class TokenUsage(Answer):
    prompt_tokens: int = Field(description="Tokens that the model read, special tokens included.")
    total_tokens: int


class EmbeddingList(Answer):
    """Embeddings, in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: TokenUsage


def decode(body: EmbeddingsBody, where: Where) -> list[Ask]:
    """Raises NotFound, and InvalidInput if the model gives no embeddings."""
    model = model_named(body.model)
    live_of(where, model, ("embedding",), "/v1/embeddings")
    return [Ask(model, inputs_of(body.input, "input"), "model")]


def encode(results: Sequence[AskResult], body: EmbeddingsBody, where: Where) -> EmbeddingList:
    (result,) = results
    check_dimensions(result, body.dimensions)
    vectors = [output.embedding or [] for output in result.outputs]
    data = [
        EmbeddingItem(index=i, embedding=_base64(vector) if body.encoding_format == "base64" else vector)
        for i, vector in enumerate(vectors)
    ]
    tokens = sum(output.tokens for output in result.outputs)
    usage = TokenUsage(prompt_tokens=tokens, total_tokens=tokens)
    return EmbeddingList(data=data, model=str(result.model), usage=usage)


def count_members(body: EmbeddingsBody) -> int:
    """See `Endpoint.count_members`."""
    return len(body.model_fields_set)


def _base64(vector: list[float]) -> str:
    return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()
