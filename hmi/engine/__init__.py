"""The engine: answers requests of many tenants in shared batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hmi.engine.texts.request import TextRequest, TextResult

if TYPE_CHECKING:
    from hmi.engine.engine import Engine

__all__ = ["Engine", "TextRequest", "TextResult"]


def __getattr__(name: str) -> Any:
    """Import `Engine` at its first use: it imports torch, which takes seconds."""
    if name == "Engine":
        from hmi.engine.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
