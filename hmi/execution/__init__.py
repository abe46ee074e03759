"""Execution of a batch through a root's upper layers.

Executors know rows, modules and hooks, but no tenant or request. `batch` has the data types that executors
and stages share, `base` the interfaces, and `choose` picks an executor for a root.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hmi.execution.base import Executor, Hook, Weights
    from hmi.execution.batch import BatchKey, Left, Rows

__all__ = ["BatchKey", "Executor", "Hook", "Left", "Rows", "Weights"]


def __getattr__(name: str) -> Any:
    """Import a name at its first use: `base` and `batch` import torch, which takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = "batch" if name in ("BatchKey", "Left", "Rows") else "base"
    return getattr(importlib.import_module(f"hmi.execution.{room}"), name)
