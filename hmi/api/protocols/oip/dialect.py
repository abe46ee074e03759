"""The protocol over HTTP: its calls to infer, and the shape of errors below /v2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.api.protocols.base import JSON, UNNAMED, Endpoint, Failure, RawBody
from hmi.api.protocols.oip.http import decode, encode, read
from hmi.api.protocols.oip.schemas import InferRequest, InferResponse, OipError, count_members


def _infer(path: str, summary: str) -> Endpoint:
    return Endpoint(
        path,
        summary,
        InferRequest,
        InferResponse,
        decode,
        encode,
        "inputs",
        count_members,
        raw=RawBody((JSON, UNNAMED), read),
        raw_answer=UNNAMED,
    )


@dataclass(frozen=True)
class OpenInference:
    """The protocol's `Dialect`."""

    endpoints: Sequence[Endpoint] = (
        _infer("/v2/models/{model}/infer", "Infer with one model (Open Inference Protocol)."),
        _infer(
            "/v2/models/{model}/versions/{version}/infer",
            "Infer with the version that answers (Open Inference Protocol).",
        ),
    )
    error: Any = OipError
    prefixes: Sequence[str] = ("/v2",)
    statuses: Mapping[str, int] = field(default_factory=dict)

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """An `OipError` as JSON values."""
        return {"error": failure.message}


OIP = OpenInference()
