"""The tasks of huggingface_hub's InferenceClient. See docs/protocols.md."""

from __future__ import annotations

from hmi.api.protocols.huggingface.dialect import HUGGINGFACE, from_hub_client

__all__ = ["HUGGINGFACE", "from_hub_client"]
