"""The engine: batch queue, retrieval, packed upper layers, heads. Requests of many tenants share one
batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hmi.engine.request import InferRequest, InferResult

if TYPE_CHECKING:
    from hmi.engine.engine import Engine

__all__ = ["Engine", "InferRequest", "InferResult"]


def __getattr__(name: str) -> Any:
    """Engine brings torch, which takes seconds to import: who only speaks of requests need not wait for
    it."""
    if name == "Engine":
        from hmi.engine.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
