"""OpenAI's protocol: the call that infers, and the shape of errors below /v1."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import Field

from hmi.api.protocols.asks import Ask, AskResult
from hmi.api.protocols.base import Endpoint, Failure, Where
from hmi.api.protocols.inputs import inputs_of, one_or_many
from hmi.api.protocols.openai.names import model_named
from hmi.api.protocols.results import check_dimensions, live_of
from hmi.api.schemas.shared import Answer, Request

STATUSES = {
    "invalid_input": 400,
    "invalid_data": 400,
    "unsupported_model": 400,
    "unsupported_media_type": 400,
}
"""The statuses that differ from HMI's own, by the kind of the error: clients of OpenAI expect these."""
_TYPES = {
    "unauthorised": "authentication_error",
    "forbidden": "permission_error",
    "quota_exceeded": "rate_limit_error",
    "unavailable": "server_error",
    "deadline_exceeded": "server_error",
    "storage_full": "server_error",
    "damaged": "server_error",
    "internal": "server_error",
}
_CODES = {"unauthorised": "invalid_api_key", "quota_exceeded": "rate_limit_exceeded"}


class OpenAIErrorBody(Answer):
    message: str = Field(description="What is wrong, and what to do about it.")
    type: str
    param: str | None = Field(description="The field of the request that is wrong.")
    code: str = Field(description="A stable name, which clients may match on.")


class OpenAIError(Answer):
    """An error in OpenAI's form."""

    error: OpenAIErrorBody


def _error(failure: Failure) -> dict[str, Any]:
    """An `OpenAIError` as JSON values."""
    about = failure.details.get("field")
    code = _CODES.get(failure.kind, failure.kind)
    if failure.kind == "not_found" and about == "model":
        code = "model_not_found"
    return {
        "error": {
            "message": failure.message,
            "type": _TYPES.get(failure.kind, "invalid_request_error"),
            "param": about,
            "code": code,
        }
    }


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


@dataclass(frozen=True)
class OpenAI:
    """OpenAI's `Dialect`."""

    endpoints: Sequence[Endpoint] = (
        Endpoint(
            "/v1/embeddings",
            "Embed texts (OpenAI).",
            EmbeddingsBody,
            EmbeddingList,
            decode,
            encode,
            "input",
            count_members,
        ),
    )
    error: Any = OpenAIError
    prefixes: Sequence[str] = ("/v1",)
    statuses: Mapping[str, int] = field(default_factory=lambda: STATUSES)

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """An `OpenAIError` as JSON values."""
        return _error(failure)


OPENAI = OpenAI()
