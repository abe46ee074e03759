"""The native protocol's calls and its shape of errors, which the calls to manage have too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hmi.api.protocols.base import Endpoint, Failure
from hmi.api.protocols.native.decode import decode_mixed, decode_one
from hmi.api.protocols.native.encode import encode_mixed, encode_one
from hmi.api.protocols.native.schemas import InferAnswer, InferBody, MixedAnswer, MixedBody


@dataclass(frozen=True)
class Native:
    """A Dialect."""

    endpoints: Sequence[Endpoint] = (
        Endpoint(
            "/infer/{model}",
            "Infer with one model.",
            InferBody,
            InferAnswer,
            decode_one,
            encode_one,
            "inputs",
        ),
        Endpoint(
            "/infer",
            "Infer with several models at once.",
            MixedBody,
            MixedAnswer,
            decode_mixed,
            encode_mixed,
            "body",
        ),
    )

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """As `hmi.api.schemas.ErrorAnswer`; see docs/http.md."""
        return {
            "error": {
                "kind": failure.kind,
                "message": failure.message,
                "details": failure.details,
                "request_id": failure.request_id,
            }
        }


NATIVE = Native()
