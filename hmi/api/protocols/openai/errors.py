"""Errors in OpenAI's form."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from hmi.api.protocols.base import Failure
from hmi.api.schemas.shared import Answer

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


def encode_error(failure: Failure) -> dict[str, Any]:
    """An `OpenAIError` as JSON values."""
    field = failure.details.get("field")
    code = _CODES.get(failure.kind, failure.kind)
    if failure.kind == "not_found" and field == "model":
        code = "model_not_found"
    return {
        "error": {
            "message": failure.message,
            "type": _TYPES.get(failure.kind, "invalid_request_error"),
            "param": field,
            "code": code,
        }
    }
