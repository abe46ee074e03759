"""The protocol of huggingface_hub's InferenceClient: one call, whose answer depends on the model's task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.api.protocols.base import Endpoint, Failure
from hmi.api.protocols.huggingface import calls, schemas


@dataclass(frozen=True)
class HuggingFace:
    """The `Dialect` of Hugging Face's inference API."""

    endpoints: Sequence[Endpoint] = (
        Endpoint(
            "/hf/{model}",
            "Infer with one model (huggingface_hub's InferenceClient). POST /infer/{model} does the same for "
            "clients whose User-Agent names hf_hub.",
            schemas.HubBody,
            schemas.HubAnswer,
            calls.decode,
            calls.encode,
            "inputs",
        ),
    )
    error: Any = schemas.HubError
    prefixes: Sequence[str] = ("/hf",)
    statuses: Mapping[str, int] = field(default_factory=dict)

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """A `HubError` as JSON values."""
        return {"error": failure.message, "error_type": failure.kind}


HUGGINGFACE = HuggingFace()


def from_hub_client(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from huggingface_hub, which names itself in every request."""
    return "hf_hub/" in headers.get("User-Agent", "")
