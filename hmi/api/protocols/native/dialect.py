"""The native protocol: its calls, and the shape of its errors, which all calls outside a protocol share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.api.protocols.base import Endpoint, Failure
from hmi.api.protocols.native.decode import decode_mixed, decode_one
from hmi.api.protocols.native.encode import encode_mixed, encode_one
from hmi.api.protocols.native.schemas import InferAnswer, InferBody, MixedAnswer, MixedBody, count_members
from hmi.api.schemas.shared import ErrorAnswer


@dataclass(frozen=True)
class Native:
    """The native `Dialect`."""

    endpoints: Sequence[Endpoint] = (
        Endpoint(
            "/infer/{model}",
            "Infer with one model.",
            InferBody,
            InferAnswer,
            decode_one,
            encode_one,
            "inputs",
            count_members,
        ),
        Endpoint(
            "/infer",
            "Infer with several models at once.",
            MixedBody,
            MixedAnswer,
            decode_mixed,
            encode_mixed,
            "body",
            count_members,
        ),
    )
    error: Any = ErrorAnswer
    prefixes: Sequence[str] = ()
    statuses: Mapping[str, int] = field(default_factory=dict)

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """An `ErrorAnswer` as JSON values."""
        return {
            "error": {
                "kind": failure.kind,
                "message": failure.message,
                "details": failure.details,
                "request_id": failure.request_id,
            }
        }


NATIVE = Native()
