"""The engine: batch queue, retrieval, packed upper layers, heads. Requests of many tenants share one batch."""

from __future__ import annotations

from hmi.engine.engine import Engine
from hmi.engine.request import InferRequest, InferResult

__all__ = ["Engine", "InferRequest", "InferResult"]
